"""Why an event is at another place in the one run than in the other: what measured numbers bear out, no more.

Every rule compares what an event moved by (the cluster's time, less the simulator's) with a number that would
have moved it: of the same sign, and at least half as large. docs/parity.md has the rules as a table; what
none of them explains is called unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.parity.calibration import Calibration
from controller.parity.facts import Admitted, Facts
from controller.parity.lives import Lives, Name
from controller.parity.timeline import Event, How, Timeline

TIE = 1.0  # s
_SAME = 0.001  # s, by which two sums of the same numbers may differ

# As a report counts them, in the order in which they are looked for.
KINDS: Mapping[str, str] = {
    "tie": "ties",
    "delay": "by delays of their own",
    "carried": "carried over",
    "queue": "by another order in the queue",
    "follows": "that follow an earlier one of the same job",
    "unexplained": "unexplained",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """``moved``: what is explained (s). ``by``: the number that bears it out (s), of the same sign and at
    least half of it. Both None where the cause is not one of size."""

    kind: str
    words: str
    moved: float | None = None
    by: float | None = None


class Causes:
    """Of the differences between two runs of a trial."""

    def __init__(
        self,
        sim: Timeline,
        cluster: Timeline,
        facts: Sequence[Facts],
        calibration: Calibration,
        differing: Collection[Name],
    ) -> None:
        """``facts``: what the cluster told. ``differing``: events that are differences."""
        soon = TIE + calibration.mean("handover_delay")
        self._sim, self._cluster = Lives(sim, soon), Lives(cluster, soon)
        self._facts: Mapping[str, Facts] = {one.key: one for one in facts}
        self._mean = calibration.mean
        self._differing = differing

    def passed(self, event: Event, others: Sequence[Event]) -> Cause:
        """Of an event that changed places with others, which are in order.

        Of it and the one of them that is farthest from it in the simulator, the one that moved more is
        explained: it accounts for at least half of what they moved against each other.
        """
        there, here = ([_apart(side, event, o) for o in others] for side in (self._sim, self._cluster))
        whom = others[there.index(max(there))]
        if max(*there, *here) <= TIE:
            words = f"{_apart(self._sim, event, whom):.1f} s from {whom} in the simulator"
            return Cause("tie", f"{words}, {_apart(self._cluster, event, whom):.1f} s in the cluster")
        shift, other = self._shift(event), self._shift(whom)
        if abs(shift) >= abs(other):
            why = self._moved(event, shift)
            words = f"{signed(shift)}, past {whom} ({signed(other)})"
        else:
            why = self._moved(whom, other)
            words = f"{signed(shift)}, passed by {whom} ({signed(other)})"
        return Cause(why.kind, f"{words}: {why.words}" if why.words else words, why.moved, why.by)

    def alone(self, event: Event) -> Cause:
        """Of an event that only one of the two runs has."""
        mine, theirs = self._sides(event.name in self._cluster.events)
        where = self._called(theirs)
        if event.kind == "start":
            # It could not have come without that, which the other run does not have either.
            return Cause("follows", f"after {Event(0.0, How.PREEMPT, event.key, event.nth - 1)}")
        if event.kind == How.PREEMPT:
            taker = mine.taker(event)
            if taker is not None and taker.key not in theirs.made_way_for(event.key):
                words = (
                    f"made way for {taker} at {taker.time:.1f} s; in the {where} it never did for that job"
                )
                return Cause("queue", words)
        elif (close := self._close(event)) is not None:
            return close
        return self._follows(event, mine) or Cause("unexplained", f"not in the {where}")

    # -- what moved an event that both have

    def _moved(self, event: Event, by: float) -> Cause:
        """Why an event moved by so many seconds."""
        rules: Mapping[str, Callable[[Event, float], Cause | None]] = {
            "start": self._start,
            How.PREEMPT: self._preempt,
        }
        found = rules.get(event.kind, self._end)(event, by)
        return found or self._follows(event, self._cluster) or Cause("unexplained", "")

    def _start(self, event: Event, moved: float) -> Cause | None:
        key, nth = event.key, event.nth
        waited, than = self._waited(event)
        if bears(waited, moved):
            words = f"its admission took {longer(waited, than)} after the last GPUs came free"
            return Cause("delay", words, moved, waited)
        back = self._cluster.ready(key, nth) - self._sim.ready(key, nth)
        if bears(back, moved):
            since = f"after {Event(0.0, How.PREEMPT, key, nth - 1)}" if nth > 1 else "by its submission"
            return Cause("carried", f"it came into the queue {signed(back)}, {since}", moved, back)
        return (
            self._made_room(event, moved) or self._waited_for(event, moved) or self._overtaken(event, moved)
        )

    def _made_room(self, event: Event, moved: float) -> Cause | None:
        """In both runs it started when one that was preempted had left, which took longer in the one."""
        took = []
        for side in (self._cluster, self._sim):
            giver = side.giver(event.key, event.nth)
            stay = None if giver is None else side.jobs[giver[0]].stays[giver[1] - 1]
            if giver is None or stay is None or stay.how is not How.PREEMPT or stay.decided is None:
                return None
            took.append((stay.freed - stay.decided, giver[0]))
        (here, who), (there, _) = took
        if not bears(here - there, moved):
            return None
        words = f"{who} left for it, which took {longer(here - there, 'such leaving in the simulator')}"
        return Cause("delay", words, moved, here - there)

    def _waited_for(self, event: Event, moved: float) -> Cause | None:
        """In the run in which it started later it started when somebody left, who in the other one had left
        before it started."""
        late, early = self._sides(moved > 0)
        giver = late.giver(event.key, event.nth)
        if giver is None:
            return None
        other, number = giver
        stay = late.jobs[other].stays[number - 1]
        freed = early.freed(other, number, stay.how)
        if freed is None or freed > early.events[event.name].time:
            return None
        by = (stay.freed - freed) * (1 if moved > 0 else -1)
        if not bears(by, moved):
            return None
        words = f"in the {self._called(late)} it waited for {other}, which left {signed(by)} than simulated"
        return Cause("carried", words, moved, by)

    def _overtaken(self, event: Event, moved: float) -> Cause | None:
        """In the run in which it started later somebody else was first, while it waited, who in the other one
        started after it, or not at all; and who got as many GPUs, or waited there when it started."""
        late, early = self._sides(moved > 0)
        mine, theirs = late.events[event.name].time, early.events[event.name].time
        found = [
            e
            for e in late.events.values()
            if e.kind == "start"
            and e.key != event.key
            and (late.jobs[e.key].gpus >= late.jobs[event.key].gpus or early.waits(e.key, theirs))
            and late.ready(event.key, event.nth) <= e.time < mine
            and (e.name not in early.events or early.events[e.name].time > theirs)
            and bears(mine - e.time, abs(moved))
        ]
        if not found:
            return None
        first = min(found, key=lambda e: abs(mine - e.time - abs(moved)))
        gap = mine - first.time
        there = "after it" if first.name in early.events else "not at all"
        words = (
            f"in the {self._called(late)} {first} came {gap:.1f} s before it,"
            f" in the {self._called(early)} {there}"
        )
        before = [
            e
            for e in late.events.values()
            if e.key in (event.key, first.key) and e.name in self._differing and e.time < first.time
        ]
        if before:
            words += f"; first of these two jobs' differences: {min(before)}"
        return Cause("queue", words, moved, gap * (1 if moved > 0 else -1))

    def _preempt(self, event: Event, moved: float) -> Cause | None:
        start = self._shift(Event(0.0, "start", event.key, event.nth))
        if bears(start, moved):
            return Cause("carried", f"it had started {signed(start)}", moved, start)
        here, there = self._cluster.taker(event), self._sim.taker(self._sim.events[event.name])
        if here is not None and there is not None and here.key != there.key:
            return Cause("queue", f"made way for {here}, in the simulator for {there}")
        return None

    def _end(self, event: Event, moved: float) -> Cause | None:
        """Of a stop, or of an end by itself."""
        if (own := self._own(event)) is not None and bears(own[0], moved):
            return Cause("delay", own[1], moved, own[0])
        key = event.key
        start = self._cluster.last_start(key).time - self._sim.last_start(key).time
        found = [(start, f"its last start came {signed(start)}")]
        if more := self._trained(key):
            before = (
                f"it had trained {abs(more):.1f} s {'less' if more < 0 else 'more'} before its last start"
            )
            found += [(-more, before), (start - more, f"{before}, which came {signed(start)}")]
        by, words = min(found, key=lambda one: abs(one[0] - moved))
        return Cause("carried", words, moved, by) if bears(by, moved) else None

    # -- what was measured

    def _waited(self, event: Event) -> tuple[float, str]:
        """From the last GPUs' coming free, or its own coming, to its admission: beyond what is calibrated or,
        where it was more than that in the simulator, beyond that (s); and beyond which of the two."""
        first = self._cluster.last_free(event.key, event.nth) is None and event.nth == 1
        usual = self._mean("queue_delay" if first else "handover_delay")
        took, simulated = self._cluster.idle(event.key, event.nth), self._sim.idle(event.key, event.nth)
        if took > simulated > usual + _SAME:
            return took - simulated, "in the simulator"
        return (took - usual, "calibrated") if not usual < took <= simulated else (0.0, "")

    def _own(self, event: Event) -> tuple[float, str] | None:
        """How much longer than calibrated a run took in its last stay besides training (s), and in words."""
        facts = self._facts.get(event.key)
        admitted = None if facts is None else _last(facts)
        if facts is None or admitted is None:
            return None
        words, parts = admitted.words, list[tuple[float, str]]()
        began = admitted.running if words is None else words.began
        if began is not None:
            parts.append((began - admitted.at - self._mean("start_delay"), "its start"))
        if event.kind == How.STOP and words is not None and facts.decided is not None:
            heard = next((at for step, at in words.evals if step == facts.decided_step), None)
            if heard is not None:
                parts.append((facts.decided - heard - self._mean("eval_delay"), "reading the eval"))
        if event.kind == How.END and words is not None and facts.freed is not None:
            parts.append((facts.freed - words.ended - self._mean("end_delay"), "seeing its end"))
        told = [
            f"{what} took {longer(seconds, 'calibrated')}" for seconds, what in parts if abs(seconds) >= 0.05
        ]
        return sum(seconds for seconds, _ in parts), ", ".join(told)

    def _trained(self, key: str) -> float | None:
        """How much more of its training than in the simulator a run had behind it at its last start (s)."""
        facts = self._facts.get(key)
        last = None if facts is None else _last(facts)
        if last is None or last.words is None:
            return None
        return last.words.start - self._earlier_stays(key)

    # -- the rest

    def _close(self, event: Event) -> Cause | None:
        """A run that was stopped in the one run and ended by itself in the other."""
        facts = self._facts.get(event.key)
        last = None if facts is None else _last(facts)
        words = None if last is None else last.words
        if facts is None or last is None or words is None:
            return None
        if facts.ended is not None and facts.decided is not None and facts.decided <= words.ended:
            left = words.ended - facts.decided
            return Cause("delay", f"decided to stop {left:.1f} s before the training ended by itself")
        behind = self._behind(event.key)
        if facts.ended is None and facts.decided is not None:
            left, where = behind - (words.start + facts.decided - words.began), "cluster"
        else:
            left, where = words.to - behind, "simulator"
        if not 0.0 <= left <= TIE:
            return None
        return Cause("tie", f"decided in the {where} {left:.1f} s before the training would have ended")

    def _behind(self, key: str) -> float:
        """How much of its training a run of the simulator had behind it at its stop, or its end (s)."""
        last = self._sim.jobs[key].stays[-1]
        left = last.freed - self._mean("end_delay") if last.decided is None else last.decided
        return self._earlier_stays(key) + left - last.admitted - self._mean("start_delay")

    def _earlier_stays(self, key: str) -> float:
        """How much a run of the simulator had trained before its last start (s)."""
        lost = self._mean("start_delay") + self._mean("suspend_delay")
        return sum(max(0.0, s.freed - s.admitted - lost) for s in self._sim.jobs[key].stays[:-1])

    def _follows(self, event: Event, mine: Lives) -> Cause | None:
        """The same job's last difference before it."""
        at = mine.events[event.name].time
        before = [
            e for n, e in mine.events.items() if e.key == event.key and e.time < at and n in self._differing
        ]
        return Cause("follows", f"after {max(before)}") if before else None

    def _shift(self, event: Event) -> float:
        return self._cluster.events[event.name].time - self._sim.events[event.name].time

    def _sides(self, cluster: bool) -> tuple[Lives, Lives]:
        """(The cluster, the simulator), or the other way round."""
        return (self._cluster, self._sim) if cluster else (self._sim, self._cluster)

    def _called(self, side: Lives) -> str:
        return "cluster" if side is self._cluster else "simulator"


def bears(by: float, moved: float) -> bool:
    """Whether a number bears out a move: of the same sign, and at least half as large."""
    return by * moved > 0.0 and abs(by) >= abs(moved) / 2


def signed(seconds: float) -> str:
    """``1.5 s later``"""
    return f"{abs(seconds):.1f} s {'earlier' if seconds < 0 else 'later'}"


def longer(seconds: float, than: str) -> str:
    """``1.5 s longer than calibrated``"""
    return f"{abs(seconds):.1f} s {'shorter' if seconds < 0 else 'longer'} than {than}"


def _apart(side: Lives, one: Event, other: Event) -> float:
    return abs(side.events[one.name].time - side.events[other.name].time)


def _last(facts: Facts) -> Admitted | None:
    return facts.admissions.get(max(facts.admissions, default=0))
