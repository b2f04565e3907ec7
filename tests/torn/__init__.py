"""Savers killed at random moments, and what the product's own access program then calls whole.

    python -m tests.torn --layout HuggingFace --kills 200 --seed 1

The truth is a list of names and sizes, taken by the saver when the save call has returned on all ranks.
"""
