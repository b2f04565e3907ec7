"""Evidence in checkpoint formats that a checkpoint is whole: DCP metadata, DeepSpeed ranks, pickles, streams.

Who asks them, and in which order, is `checkpoints.judge`.

May import: nothing of the API or of Kubernetes: it runs in the access program.
Tests: tests/checkpoints, tests/torn, tests/fuzz.
"""
