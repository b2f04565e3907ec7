"""Simulator and cluster side by side: mean JCTs, and every difference in the order of events with its cause.

Events are decisions (a start, a preemption, a stop) and the ends of runs. Of those that both have, the fewest
are taken out so that the rest is in the same order in both (what is left is a longest increasing
subsequence, and of several the one that moved least); those taken out, and those that only one of them has,
are the differences.

The cause of each is told by what was measured, in this order: a tie (what changed places lies within a second
in the simulator), delays of its own run that differ from the calibration's mean, the delays of the run whose
GPUs or whose end it waited for, or an earlier difference of the same job. What none of these explains is
called unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, nan
from typing import Any

from controller.parity.calibration import Calibration
from controller.parity.facts import Admitted, Facts
from controller.parity.scatter import Scatter
from controller.parity.timeline import Event, How, Timeline

TIE = 1.0  # s

Name = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """An event that is at another place, or in one of the two only (the other's time is None)."""

    event: Event
    sim: float | None
    cluster: float | None
    cause: str
    kind: str  # tie | delay | carried | follows | unexplained

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
    differences = tuple(_Causes(sim, cluster, facts, calibration).differences())
    return Compared(policy, sim, cluster, differences, scatter)


def in_order(places: Sequence[int], moved: Sequence[float] = ()) -> set[int]:
    """Indices of a longest increasing subsequence; of several, one whose events moved least in sum.

    Args:
        moved: how far each is from where it should be; default: all alike. Takes the square of their number.
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


class _Causes:
    """Finds the differences and why they are there."""

    def __init__(
        self, sim: Timeline, cluster: Timeline, facts: Sequence[Facts], calibration: Calibration
    ) -> None:
        self._sim = {event.name: event for event in sim.events()}
        self._cluster = {event.name: event for event in cluster.events()}
        self._timeline = cluster
        self._facts: Mapping[str, Facts] = {one.key: one for one in facts}
        self._mean = calibration.mean
        self._moved: set[Name] = set()

    def differences(self) -> list[Difference]:
        """In the order of the cluster's time; what only the simulator has, of its."""
        both = [event for name, event in self._cluster.items() if name in self._sim]
        place = {
            event.name: n for n, event in enumerate(e for e in self._sim.values() if e.name in self._cluster)
        }
        places = [place[event.name] for event in both]
        kept = in_order(places, [abs(e.time - self._sim[e.name].time) for e in both])
        one_sided = [e for n, e in self._cluster.items() if n not in self._sim]
        one_sided += [e for n, e in self._sim.items() if n not in self._cluster]
        self._moved = {event.name for n, event in enumerate(both) if n not in kept}
        self._moved |= {event.name for event in one_sided}
        found = []
        for n, event in enumerate(both):
            if n not in kept:
                # Those it changed places with, of what is in order.
                passed = [both[m] for m in kept if (m < n) != (places[m] < places[n])]
                found.append(self._changed(event, passed))
        found += [self._lone(event) for event in one_sided]
        return sorted(found, key=lambda d: (d.event.time, d.event.name))

    def _changed(self, event: Event, passed: Sequence[Event]) -> Difference:
        """The cause of an event that changed places with others, which are in order."""
        at = self._sim[event.name].time
        apart = max((abs(at - self._sim[p.name].time) for p in passed), default=0.0)
        whom = max(passed, key=lambda p: abs(at - self._sim[p.name].time)) if passed else event

        def told(kind: str, cause: str) -> Difference:
            return Difference(event, at, event.time, cause, kind)

        if apart <= TIE:
            return told("tie", f"{apart:.1f} s from {whom} in the simulator")
        shift = event.time - at
        other = self._cluster[whom.name].time - self._sim[whom.name].time
        lead = f"{_signed(shift)} against the simulator, {whom} {_signed(other)}"
        for one, moved in sorted(((event, shift), (whom, other)), key=lambda pair: -abs(pair[1])):
            own, words = self._own(one)
            if abs(own) >= abs(moved) / 2 and own * moved > 0:
                return told("delay", f"{lead}: {words}")
        if (giver := self._giver(event)) is not None:
            key, late, words = giver
            return told("carried", f"{lead}: it took the GPUs of {key}, free {_signed(late)}{words}")
        if earlier := self._earlier(event):
            return told("follows", f"{lead}: after {earlier}")
        if abs(shift - other) >= apart:
            source = event if abs(shift) >= abs(other) else whom
            return told("carried", f"{lead}: {source.key} has been so since its {self._since(source)}")
        return told("unexplained", lead)

    def _lone(self, event: Event) -> Difference:
        """The cause of an event that only one of the two has."""
        here = event.name in self._cluster
        sim, cluster = (None, event.time) if here else (event.time, None)

        def told(kind: str, cause: str) -> Difference:
            return Difference(event, sim, cluster, cause, kind)

        if event.kind in (How.STOP, How.END):
            facts = self._facts[event.key]
            if facts.ended is not None and facts.decided is not None:
                left = facts.ended - facts.decided
                return told("delay", f"decided to stop {left:.1f} s before the training ended by itself")
            other = How.END if event.kind == How.STOP else How.STOP
            theirs = (self._sim if here else self._cluster).get((str(other), event.key, 1))
            if theirs is not None:
                where = "simulator" if here else "cluster"
                return told("delay", f"{other} in the {where}: a score or the end came just before the other")
        if earlier := self._earlier(event):
            return told("follows", f"after {earlier}")
        both = "the simulator" if here else "the cluster"
        shift = self._shift_before(event)
        if shift is not None:
            return told(
                "carried", f"{event.key} ran {_signed(shift)} against the simulator; not so in {both}"
            )
        return told("unexplained", f"not in {both}")

    # -- what was measured

    def _admitted(self, event: Event) -> Admitted | None:
        """The admission that an event belongs to, of the cluster's."""
        admissions = self._facts[event.key].admissions
        numbers = sorted(admissions)
        if event.kind in ("start", How.PREEMPT):
            return admissions[numbers[event.nth - 1]] if event.nth <= len(numbers) else None
        return admissions[numbers[-1]] if numbers else None

    def _own(self, event: Event) -> tuple[float, str]:
        """How much longer the event's own run took than calibrated, up to it (s), and in words."""
        admitted = self._admitted(event)
        parts: list[tuple[float, str]] = []
        facts = self._facts[event.key]
        if admitted is None:
            return 0.0, ""
        if event.kind == "start":
            if event.nth == 1:
                parts.append((self._waited(event), "handing GPUs over"))
        else:
            began = admitted.words.began if admitted.words is not None else admitted.running
            if began is not None:
                parts.append((began - admitted.at - self._mean("start_delay"), "its start"))
        if event.kind == How.STOP and admitted.words is not None and facts.decided is not None:
            heard = next((at for step, at in admitted.words.evals if step == facts.decided_step), None)
            if heard is not None:
                parts.append((facts.decided - heard - self._mean("eval_delay"), "reading the eval"))
        if event.kind == How.END and admitted.words is not None and facts.freed is not None:
            parts.append((facts.freed - admitted.words.ended - self._mean("end_delay"), "seeing its end"))
        own = sum(seconds for seconds, _ in parts)
        words = ", ".join(f"{what} took {_signed(seconds, 'than calibrated')}" for seconds, what in parts)
        return own, words

    def _waited(self, event: Event) -> float:
        """From the GPUs that it took being free to its admission, beyond the calibrated hand-over."""
        free = [stay.freed for job in self._timeline.jobs for stay in job.stays if stay.freed <= event.time]
        submitted = self._cluster_submitted(event.key)
        last = max([*free, submitted])
        usual = self._mean("queue_delay") if last == submitted else self._mean("handover_delay")
        return event.time - last - usual

    def _cluster_submitted(self, key: str) -> float:
        return next(job.submitted for job in self._timeline.jobs if job.key == key)

    def _giver(self, event: Event) -> tuple[str, float, str] | None:
        """For a start: whose GPUs came free last before it, how much later than simulated, and why."""
        if event.kind != "start":
            return None
        freed = [
            (stay.freed, job.key, number, stay.how)
            for job in self._timeline.jobs
            for number, stay in enumerate(job.stays, start=1)
            if stay.freed <= event.time and job.key != event.key
        ]
        if not freed:
            return None
        _, key, nth, how = max(freed)
        name = (str(how), key, nth if how is How.PREEMPT else 1)
        mine, theirs = self._cluster.get(name), self._sim.get(name)
        if mine is None or theirs is None:
            return key, 0.0, f" by its {how}, which the simulator does not have"
        own, words = self._own(mine)
        late = mine.time - theirs.time
        return key, late, f" ({words})" if words and abs(own) >= abs(late) / 2 else ""

    def _earlier(self, event: Event) -> Event | None:
        """The same job's last difference before this one."""
        mine = self._cluster if event.name in self._cluster else self._sim
        before = [
            e for e in mine.values() if e.key == event.key and e.time < event.time and e.name in self._moved
        ]
        return max(before, default=None, key=lambda e: e.time)

    def _since(self, event: Event) -> str:
        """The first event of the job that is about as late or early as this one."""
        shift = event.time - self._sim[event.name].time
        for other in sorted(e for e in self._cluster.values() if e.key == event.key and e.name in self._sim):
            moved = other.time - self._sim[other.name].time
            if moved * shift > 0 and abs(moved) >= abs(shift) / 2:
                return f"{other.kind} {other.nth}" if other.nth > 1 else other.kind
        return event.kind

    def _shift_before(self, event: Event) -> float | None:
        """How late the job was, at its last event before this one that both have."""
        mine = self._cluster if event.name in self._cluster else self._sim
        before = [
            e
            for n, e in mine.items()
            if e.key == event.key and e.time <= event.time and n in self._sim and n in self._cluster
        ]
        if not before:
            return None
        last = max(before, key=lambda e: e.time).name
        return self._cluster[last].time - self._sim[last].time


def _signed(seconds: float, than: str = "") -> str:
    """``1.5 s later``, ``1.5 s longer than calibrated``."""
    words = ("longer", "shorter") if than else ("later", "earlier")
    return f"{abs(seconds):.1f} s {words[seconds < 0]}" + (f" {than}" if than else "")
