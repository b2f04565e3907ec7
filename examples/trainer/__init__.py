"""A small, real RLHF trainer that really over-optimises its reward model: ``python -m examples.trainer``.

NumPy only. All arrays carry a leading axis of independent runs (seeds), so that one trainer process (one run)
and an experiment over twenty seeds (twenty runs) are the same code.
"""
