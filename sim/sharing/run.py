"""Runs of a fixed number of residents on one group, and of a job alone."""

from __future__ import annotations

from collections.abc import Sequence

from controller.frozen import dataclass
from controller.policy.sharing import TurnQueue
from sim.kernel import Kernel
from sim.sharing.group import VirtualGroup, VirtualResident
from sim.sharing.orders import ORDERS
from sim.sharing.workload import TurnLaw, turns

FIFO = "first come, first served"


@dataclass(frozen=True, slots=True)
class GroupTrial:
    """Residents on one group.

    Args:
        laws: of the residents.
        switch: microseconds of a switch.
        steps: that each resident has; the run ends when the first has done them.
        lag: steps of each.
        order: of turns, a name of `ORDERS`.
        consecutive: turns in a row (first come, first served only).
        seed: of the random times; no two residents have the same.
    """

    laws: tuple[TurnLaw, ...]
    switch: int
    steps: int
    lag: int = 0
    order: str = FIFO
    consecutive: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Of each resident: microseconds of its steps on the group, and of the same steps alone."""

    took: tuple[int, ...]
    alone: tuple[int, ...]
    turns: int
    switches: int

    @property
    def slowdown(self) -> float:
        return sum(self.took) / sum(self.alone)

    def slowdowns(self) -> tuple[float, ...]:
        """Return each resident's; 1 for one that did fewer than two turns."""
        pairs = zip(self.took, self.alone, strict=True)
        return tuple(took / alone if alone else 1.0 for took, alone in pairs)


def run_group(trial: GroupTrial) -> GroupOutcome:
    """Return what residents' steps took, while all of them were there."""
    times = [turns(law, trial.steps, 1000 * trial.seed + i) for i, law in enumerate(trial.laws)]
    return play(trial, times)


def play(trial: GroupTrial, times: Sequence[tuple[list[int], list[int]]]) -> GroupOutcome:
    """Return what residents with these times away and held take."""
    kernel = Kernel()
    queue: TurnQueue[VirtualResident] = (
        TurnQueue(trial.consecutive) if trial.order == FIFO else ORDERS[trial.order](kernel)
    )

    def ended(_: VirtualResident) -> None:
        group.closed = True

    group = VirtualGroup(kernel, 1, queue, ended)
    load = trial.switch // 2
    residents = [
        VirtualResident(f"job-{i}", i, one, lag=trial.lag, load=load, offload=trial.switch - load)
        for i, one in enumerate(times)
    ]
    for i, resident in enumerate(residents):
        # They come a part of a cycle apart, so that the first steps are like the later ones.
        apart = (resident.away[0] + resident.held[0]) * i // len(residents)
        group.join(resident, apart)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    return GroupOutcome(
        tuple(one.took for one in residents),
        tuple(one.alone for one in residents),
        group.turns,
        group.switches,
    )
