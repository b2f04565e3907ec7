"""The simulator's and the cluster's run of one trial as a pair, and the causes of their differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.frozen import dataclass
from controller.parity.calibration import Calibration
from controller.parity.facts import Facts
from controller.parity.run_timeline import Name, RunTimeline
from controller.parity.timeline import Event, Timeline

TIE = 1.0  # s

# The four kinds of cause, as a report counts them. What none of them explains is listed as unexplained.
KINDS: Mapping[str, str] = {
    "tie": "ties",
    "delay": "by delays of their own",
    "follows": "that follow from another event",
    "order": "by another order",
    "unexplained": "unexplained",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of an event that is at another place.

    Attributes:
        kind: one of `KINDS`.
        words: the cause in a sentence.
        moved: the move that is explained (s). None if the cause has no size: who came first, or after what.
        by: the number that explains it (s), of the same sign and at least half as large; None likewise.
    """

    kind: str
    words: str
    moved: float | None = None
    by: float | None = None


class Both:
    """The simulator's run and the cluster's."""

    def __init__(
        self,
        sim: Timeline,
        cluster: Timeline,
        facts: Sequence[Facts],
        calibration: Calibration,
        differing: Collection[Name],
    ) -> None:
        """Take the runs as `controller.parity.pairing` gives them.

        Args:
            sim: events of the simulator's run.
            cluster: events of the cluster's run.
            facts: what the cluster recorded about each job.
            calibration: delays measured on the cluster.
            differing: events that differ between the two runs.
        """
        soon = TIE + calibration.mean("handover_delay")
        self.sim, self.cluster = RunTimeline(sim, soon), RunTimeline(cluster, soon)
        self.facts: Mapping[str, Facts] = {one.key: one for one in facts}
        self.mean = calibration.mean
        self.differing = differing

    def shift(self, event: Event) -> float:
        """By how much later (s) an event of both was on the cluster."""
        return self.cluster.events[event.name].time - self.sim.events[event.name].time

    def trained(self, side: RunTimeline, key: str, number: int) -> float:
        """Return how much of its training (s) a run had behind it at that start."""
        place = side.place(key, number)
        facts = self.facts.get(key)
        if side is self.cluster and facts is not None and place < len(facts.admissions):
            words = facts.admissions[sorted(facts.admissions)[place]].words
            if words is not None:
                return words.start
        lost = self.mean("start_delay") + self.mean("suspend_delay")
        return sum(max(0.0, stay.freed - stay.admitted - lost) for stay in side.jobs[key].stays[:place])

    def sides(self, cluster: bool) -> tuple[RunTimeline, RunTimeline]:
        """Return (the cluster, the simulator), or the other way round if ``cluster`` is false."""
        return (self.cluster, self.sim) if cluster else (self.sim, self.cluster)

    def other(self, side: RunTimeline) -> RunTimeline:
        return self.sim if side is self.cluster else self.cluster

    def after(self, side: RunTimeline, event: Event) -> str:
        """Return what an event came after, and when that was in the other run: ``.1 s after start of b
        (…)``."""
        there, moment = self.other(side), side.before(event)
        when = there.when(moment)
        text = "never" if when is None else f"{when:.1f} s"
        return f"{max(0.0, event.time - moment.time):.1f} s after {moment} ({self.called(there)}: {text})"

    def called(self, side: RunTimeline) -> str:
        return "cluster" if side is self.cluster else "simulator"


def bears(by: float, moved: float) -> bool:
    """Return whether a number bears out a move: of the same sign, and at least half as large."""
    return by * moved > 0.0 and abs(by) >= abs(moved) / 2


def signed(seconds: float) -> str:
    """``1.5 s later``"""
    return f"{abs(seconds):.1f} s {'earlier' if seconds < 0 else 'later'}"


def longer(seconds: float, than: str) -> str:
    """``1.5 s longer than calibrated``"""
    return f"{abs(seconds):.1f} s {'shorter' if seconds < 0 else 'longer'} than {than}"
