"""Checkpoints in safety: layouts, stores, the access program and its Jobs (docs/use/checkpoints.md)."""
