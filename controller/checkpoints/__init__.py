"""Checkpoints in safety: layouts, stores, the access program and its Jobs (docs/checkpoints.md)."""
