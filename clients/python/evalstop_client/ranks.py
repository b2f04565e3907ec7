"""Decisions that the processes of a run make together, so that all of them act in the same step.

Two ranks that read ``run.json`` for themselves see a change seconds apart (each node's kubelet updates its
copy when it gets to it), and a collective that only some of them enter ends the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any


class Ranks:
    """A process that is alone. A subclass stands for several, each of which makes the same calls in order."""

    size = 1

    def highest(self, values: Sequence[int]) -> list[int]:
        """Return of each value the highest that any rank has given."""
        return list(values)

    def one(self, text: str | None) -> str | None:
        """Return the text of the first rank that gave one; None if none did."""
        return text

    def barrier(self) -> None:
        """Wait until every rank has come here."""


class TorchRanks(Ranks):
    """The ranks of ``torch.distributed``, in a gloo group of their own.

    The trainer's own group may be NCCL's, where a collective waits for everything the GPU has in its queue.
    """

    def __init__(self, torch: Any) -> None:
        self._torch, self._dist = torch, torch.distributed
        self.size = int(self._dist.get_world_size())
        self._group = self._dist.new_group(backend="gloo")

    def highest(self, values: Sequence[int]) -> list[int]:
        """Return of each value the highest that any rank has given."""
        tensor = self._torch.tensor(list(values), dtype=self._torch.int64)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def one(self, text: str | None) -> str | None:
        """Return the text of the first rank that gave one; None if none did."""
        found: list[str | None] = [None] * self.size
        self._dist.all_gather_object(found, text, group=self._group)
        return next((given for given in found if given is not None), None)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._dist.barrier(group=self._group)


def find() -> Ranks | None:
    """Return the ranks of this run; None: there are several, but no way for them to agree yet.

    torch is looked for, never imported: a trainer that uses it has it.
    """
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        return TorchRanks(torch) if dist.get_world_size() > 1 else Ranks()
    return Ranks() if os.environ.get("WORLD_SIZE", "1") == "1" else None
