"""Secured checkpoints: layouts, stores, the access program and its Jobs (docs/use/checkpoints.md)."""
