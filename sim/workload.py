"""Workload of a simulation: jobs in columns, in the order of their submission.

A workload is the hidden truth: how long each job really trains and what its evals will say. Policies never
see it; the engine shows them a `VirtualJob`, which has no way back to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from math import inf
from operator import le

from controller.frozen import dataclass
from controller.policy.actor_types import Part
from controller.policy.types import Paired
from controller.policy.wording import counted


@dataclass(frozen=True, slots=True)
class Evals:
    """The evals a job will make if it is let run to its end. The last five may be empty: not reported.

    Attributes:
        at: share of the training done at each, strictly rising, in (0, 1].
        scores: what each will report, higher is better, noise included.
        losses: the training loss at each.
        proxies: the proxy reward at each.
        paired: differences to an earlier eval, whose reference step is that eval's number from 1.
        others: the scores of guardrail metrics at each, by metric, higher is better.
        stderrs: the standard error of each score.
    """

    at: Sequence[float]
    scores: Sequence[float]
    losses: Sequence[float] = ()
    proxies: Sequence[float | None] = ()
    paired: Sequence[Paired | None] = ()
    others: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    stderrs: Sequence[float | None] = ()

    def __post_init__(self) -> None:
        for name, scores in self.others.items():
            if len(scores) != len(self.at):
                raise ValueError(
                    f"evals.others[{name!r}]: {len(scores)} for {counted(len(self.at), 'eval')}, expected "
                    "one for each"
                )
        for number, error in enumerate(self.stderrs):
            if error is not None and not 0.0 <= error < inf:
                raise ValueError(f"evals.stderrs[{number}]: {error!r}, expected at least 0")
        for name in ("proxies", "paired", "stderrs"):
            column = getattr(self, name)
            if len(column) not in (0, len(self.at)):
                raise ValueError(
                    f"evals.{name}: {len(column)} for {counted(len(self.at), 'eval')}, expected one for each "
                    "or none"
                )
        if len(self.scores) != len(self.at) or (len(self.losses) and len(self.losses) != len(self.at)):
            raise ValueError(
                f"evals: {counted(len(self.at), 'time')}, {counted(len(self.scores), 'score')} and "
                f"{counted(len(self.losses), 'loss')}; expected as many of each (or no losses)"
            )
        before = 0.0
        for number, share in enumerate(self.at):
            if not before < share <= 1.0:
                raise ValueError(f"evals.at[{number}]: {share!r}, expected above {before!r} and at most 1")
            before = share


@dataclasses.dataclass(slots=True)
class Workload:
    """Jobs by column; row i is job i. Optional columns are empty where nobody needs them.

    ``submitted`` and ``work`` in s (ints stay exact), ``gpus`` of the whole gang, base actors included.

    Raises:
        ValueError: a column has the wrong length, or a value cannot be; the message names row and column.
    """

    submitted: Sequence[float]
    gpus: Sequence[int]
    work: Sequence[float]  # s of training from start to end, without any latency
    keys: Sequence[str] = ()  # "namespace/name"; default sim/0, sim/1, …
    gpus_per_replica: Sequence[int] = ()
    priority: Sequence[int] = ()
    weight: Sequence[float] = ()  # of the job's namespace, for fair share
    estimate: Sequence[float | None] = ()  # s, what its submitter believes ``work`` to be
    group: Sequence[str] = ()  # runs of one group are each other's peers
    evals: Sequence[Evals | None] = field(default=())
    actors: Sequence[Part | None] = ()  # base rollout actors that are admitted with the gang or not at all

    def __post_init__(self) -> None:
        rows = len(self.submitted)
        for name in ("gpus", "work", *OPTIONAL):
            column = getattr(self, name)
            if len(column) != rows and (name not in OPTIONAL or len(column)):
                raise ValueError(
                    f"workload.{name}: {counted(len(column), 'value')} for {counted(rows, 'job')}, expected "
                    "one for each"
                )
        _check_rows("submitted", self.submitted, 0, "a time of at least 0 s")
        _check_rows("work", self.work, 0, "a duration of at least 0 s")
        _check_rows("gpus", self.gpus, 0, "at least 0 GPUs")
        _check_order(self.submitted)
        if len(self.keys) and len(set(self.keys)) != rows:
            seen: dict[str, int] = {}
            for row, key in enumerate(self.keys):
                if key in seen:
                    raise ValueError(f"workload.keys[{row}]: {key!r} is that of row {seen[key]} already")
                seen[key] = row

    def __len__(self) -> int:
        return len(self.submitted)

    @staticmethod
    def of(rows: Iterable[tuple[float, int, float]]) -> Workload:
        """From (submitted, gpus, work), in any order; equal times keep theirs."""
        ordered = sorted(rows, key=lambda row: row[0])
        columns = list(zip(*ordered, strict=True)) or [(), (), ()]
        return Workload(columns[0], columns[1], columns[2])

    def key(self, row: int) -> str:
        return self.keys[row] if self.keys else f"sim/{row}"


OPTIONAL = ("keys", "gpus_per_replica", "priority", "weight", "estimate", "group", "evals", "actors")


def _check_rows(name: str, column: Sequence[float], low: float, expected: str) -> None:
    # Comparing in C first: only a column with something wrong is looked at row by row. NaN hides from min
    # and max, but not from a sum.
    if not column:
        return
    total = sum(column)
    if total == total and min(column) >= low and max(column) < inf:
        return
    for row, value in enumerate(column):
        if not low <= value < inf:
            raise ValueError(f"workload.{name}[{row}]: {value!r}, expected {expected}")


def _check_order(submitted: Sequence[float]) -> None:
    if all(map(le, submitted, islice(submitted, 1, None))):
        return
    for row in range(1, len(submitted)):
        if submitted[row] < submitted[row - 1]:
            raise ValueError(
                f"workload.submitted[{row}]: {submitted[row]!r} is before row {row - 1}'s "
                f"{submitted[row - 1]!r}, expected the order of time (Workload.of sorts)"
            )
