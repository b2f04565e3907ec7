"""What formats say about whether a checkpoint is whole: DCP metadata, DeepSpeed ranks, pickles and streams.

Who asks them, and in which order, is `checkpoints.judge`.
"""
