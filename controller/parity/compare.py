"""Simulator and cluster side by side: mean JCTs, and every difference in the order of events with its cause.

Events are decisions (a start, a preemption, a stop) and the ends of runs. Of those that both have, the fewest
are taken out so that the rest is in the same order in both (what is left is a longest increasing
subsequence, and of several the one that moved least); those taken out, and those that only one of them has,
are the differences. Stays of a job that was preempted more often in one of them: `controller.parity.pairing`.

Why each of them is there: `controller.parity.attribution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf, nan
from typing import Any

from controller.frozen import dataclass
from controller.parity.attribution import alone, passed
from controller.parity.calibration import Calibration
from controller.parity.facts import Facts
from controller.parity.pairing import paired
from controller.parity.run_pair import Both, Cause
from controller.parity.scatter import Scatter
from controller.parity.timeline import Event, Timeline


@dataclass(frozen=True, slots=True)
class Difference:
    """An event that is at another place, or in one of the two only (the other's time is None)."""

    event: Event
    sim: float | None
    cluster: float | None
    why: Cause

    @property
    def kind(self) -> str:
        return self.why.kind

    @property
    def cause(self) -> str:
        return self.why.words

    def as_dict(self) -> dict[str, Any]:
        where = (
            "both" if None not in (self.sim, self.cluster) else "sim" if self.cluster is None else "cluster"
        )
        return {
            "event": self.event.kind,
            "job": self.event.key,
            "nth": self.event.nth,
            "in": where,
            "sim": self.sim,
            "cluster": self.cluster,
            "kind": self.kind,
            "cause": self.cause,
            "moved": self.why.moved,
            "by": self.why.by,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy in both."""

    policy: str
    sim: Timeline
    cluster: Timeline
    differences: tuple[Difference, ...]
    scatter: Scatter | None = None

    @property
    def relative_error(self) -> float:
        """Of the simulated mean JCT, against the cluster's."""
        return self._error(self.sim.mean_jct)

    def _error(self, simulated: float) -> float:
        measured = self.cluster.mean_jct
        return (simulated - measured) / measured if measured else nan

    @property
    def scattered_error(self) -> float | None:
        """Of the mean over replays with drawn delays, against the cluster's; None: there were none."""
        return None if self.scatter is None else self._error(self.scatter.mean)

    def as_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "jobs": len(self.cluster.jobs),
            "jct_sim": self.sim.mean_jct,
            "jct_cluster": self.cluster.mean_jct,
            "relative_error": self.relative_error,
            "jct_sim_scattered": None if self.scatter is None else asdict(self.scatter),
            "relative_error_scattered": self.scattered_error,
            "stops": self.cluster.stops,
            "stops_sim": self.sim.stops,
            "preemptions": self.cluster.preemptions,
            "preemptions_sim": self.sim.preemptions,
            "makespan_sim": self.sim.makespan,
            "makespan_cluster": self.cluster.makespan,
            "order_differences": [d.as_dict() for d in self.differences],
        }


def compare(
    policy: str,
    sim: Timeline,
    cluster: Timeline,
    facts: Sequence[Facts],
    calibration: Calibration,
    scatter: Scatter | None = None,
) -> Compared:
    """Set a policy's two runs side by side; ``facts``: what the cluster told of its."""
    differences = tuple(_differences(sim, cluster, facts, calibration))
    return Compared(policy, sim, cluster, differences, scatter)


def in_order(places: Sequence[int], moved: Sequence[float] = ()) -> set[int]:
    """Return the indices of a longest increasing subsequence; of several, the one whose events moved least.

    Args:
        places: the numbers; the time it takes grows with the square of how many there are.
        moved: how far each event is from where it should be; default: all alike.
    """
    costs = moved or [0.0] * len(places)
    best: list[tuple[int, float]] = []  # (length, minus the sum of moves) of the best that ends here
    before: list[int] = []
    for index, place in enumerate(places):
        length, spared, source = 0, 0.0, -1
        for earlier in range(index):
            if places[earlier] < place and best[earlier] > (length, spared if source >= 0 else -inf):
                length, spared = best[earlier]
                source = earlier
        best.append((length + 1, spared - costs[index]))
        before.append(source)
    kept: set[int] = set()
    index = max(range(len(places)), key=best.__getitem__, default=-1)
    while index >= 0:
        kept.add(index)
        index = before[index]
    return kept


def _differences(
    sim: Timeline, cluster: Timeline, facts: Sequence[Facts], calibration: Calibration
) -> list[Difference]:
    """In the order of the cluster's time; what only the simulator has, of its."""
    sim, cluster = paired(sim, cluster)
    here = {event.name: event for event in cluster.events()}
    there = {event.name: event for event in sim.events()}
    both = [event for name, event in here.items() if name in there]
    place = {name: n for n, name in enumerate(name for name in there if name in here)}
    places = [place[event.name] for event in both]
    kept = in_order(places, [abs(event.time - there[event.name].time) for event in both])
    single = [e for n, e in here.items() if n not in there] + [e for n, e in there.items() if n not in here]
    moved = [n for n in range(len(both)) if n not in kept]
    differing = {both[n].name for n in moved} | {event.name for event in single}
    sides = Both(sim, cluster, facts, calibration, differing)
    found = []
    for n in moved:
        event = both[n]
        # Those it changed places with, of what is in order.
        others = [both[m] for m in kept if (m < n) != (places[m] < places[n])]
        found.append(Difference(event, there[event.name].time, event.time, passed(sides, event, others)))
    for event in single:
        at, then = (None, event.time) if event.name in here else (event.time, None)
        found.append(Difference(event, at, then, alone(sides, event)))
    return sorted(found, key=lambda d: (d.event.time, d.event.name))
