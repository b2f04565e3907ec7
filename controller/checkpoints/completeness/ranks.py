"""Missing ranks of a checkpoint whose number of ranks only a file, or a file's name, tells."""

from __future__ import annotations

from collections.abc import Collection

DIGITS = r"\d{1,9}"  # of a rank in a file's name


def first_missing(have: Collection[int], size: int) -> int | None:
    """Return the lowest rank of ``size`` that is not among those that are there; None: all are.

    It takes as long as there are ranks, however many are said to be.
    """
    return next((rank for rank in range(min(size, len(have) + 1)) if rank not in have), None)
