"""Rights of return, placed all at once into free GPUs and those of spare actors, as far as they fit.

A right is a size, and bound to no node. Packing is best fit, larger ones first: exact where sizes divide one
another (1, 2, 4, 8), else it may say "no" too often and never "yes" wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.policy.pool.best_fit import FreeGpus


class Packed(NamedTuple):
    """One way to place rights.

    Attributes:
        on_free, on_spare: GPUs by node that they take of free ones, and of spare actors.
        short: how many find no room.
    """

    on_free: dict[str, int]
    on_spare: dict[str, int]
    short: int = 0


NO_RIGHTS = Packed({}, {})


def pack(rights: Iterable[int], free: Mapping[str, int], spare: Mapping[str, int]) -> Packed:
    """Place rights (GPUs of each) where free GPUs stay free as far as that goes: on spare actors first.

    ``free`` and ``spare``: GPUs by node; what ``spare`` has on nodes that ``free`` does not know is no room.
    """
    sizes = sorted((size for size in rights if size > 0), reverse=True)
    if not sizes:
        return NO_RIGHTS
    lent = FreeGpus({node: gpus for node, gpus in spare.items() if node in free})
    every = FreeGpus({node: gpus + lent.get(node, 0) for node, gpus in free.items()})
    on_free: Counter[str] = Counter()
    on_spare: Counter[str] = Counter()
    short = 0
    for size in sizes:
        found = lent.fit(1, size) or every.fit(1, size)
        if found is None:
            short += 1
            continue
        (node,) = found
        of_spare = min(size, lent.get(node, 0))
        lent.add(node, -of_spare)
        every.add(node, -size)
        on_spare[node] += of_spare
        on_free[node] += size - of_spare
    return Packed(+on_free, +on_spare, short)
