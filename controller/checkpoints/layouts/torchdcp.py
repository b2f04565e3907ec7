"""Checkpoints that torch.distributed.checkpoint writes by itself, as torchtitan's are."""

from __future__ import annotations

import re
from collections.abc import Collection

from controller.checkpoints.completeness import dcp
from controller.checkpoints.layouts.base import Candidate, Evidence, Numbered, Times, by_times, truncated
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class TorchDCP(Numbered):
    """``step-<N>/`` with shards and ``.metadata``, in it or in folders of it (torchtitan, plain loops).

    ``torch.distributed.checkpoint.save`` writes the shards of all ranks, then ``.metadata``, which promises
    them. What a loop writes beside it, and in which order, no format says: so the newest checkpoint waits for
    another one that has the same files, or for a save record.
    """

    name, form = "TorchDCP", "step-{}"
    pattern = re.compile(r"step-(?P<step>\d{1,15})")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        newest = max((c.step for c in found), default=-1)
        unproven = "it is the newest one: nothing tells whether more than the shards is still to come"
        return [
            Candidate(c.step, c.name, c.parts, c.problem, unproven if c.step == newest else None)
            for c in found
        ]

    def problem(self, content: Content, step: int) -> str | None:
        return dcp.any_problem(content) or truncated(content)

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        if not dcp.folders(content):
            return Evidence(f"no {dcp.METADATA} and no shards: the save is not finished")
        return Evidence(unproven=by_times(times))

    def fits(self, names: Collection[str]) -> str | None:
        found = [n for n in names if n.rpartition("/")[2] == dcp.METADATA and n.count("/") <= 1]
        return min(found, default=None)

    def loads(self, content: Content) -> str:
        at = min(dcp.folders(content), default="") or "."
        return f"torch.load, after python -m torch.distributed.checkpoint.format_utils dcp_to_torch {at} OUT"
