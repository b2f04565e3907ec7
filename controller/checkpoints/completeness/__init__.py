"""The one judge of whether a checkpoint is whole, and what it goes by (docs/use/checkpoints.md).

`judge.Survey` asks, in this order: the trainer's save record; the format's own manifest (`dcp`, `deepspeed`,
the layouts); the file set of whole checkpoints beside it. What none of them tells is not whole.
"""
