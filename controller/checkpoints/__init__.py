"""Secured checkpoints: layouts, stores, the access program and its Jobs (docs/use/checkpoints.md).

May import: `controller.api`, `controller.policy`; the access program (`access`) only the
standard library and what reads formats (contract "The access program starts fast").
Tests: tests/checkpoints, tests/torn.
"""
