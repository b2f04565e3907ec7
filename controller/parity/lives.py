"""One run of a trial, to be asked who waited, who left before whom, and what an event came right after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.parity.timeline import Event, How, Lived, Stay, Timeline

Name = tuple[str, str, int]


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Something that another event may have waited for.

    ``number``: of the job's stays; 0: the last one, if it was not ended by a preemption.
    """

    time: float
    kind: str  # came (into the queue) | left (its GPUs) | start
    key: str
    number: int

    @property
    def name(self) -> Name:
        """The same in both runs."""
        return self.kind, self.key, self.number

    def __str__(self) -> str:
        match self.kind:
            case "start":
                return str(Event(self.time, "start", self.key, self.number))
            case "left":
                return f"{self.key}'s leaving"
            case _:
                return f"{self.key}'s coming {'back ' if self.number > 1 else ''}into the queue"


class Lives:
    """A timeline by the names of its events. Stays are counted from 1; a run's last is the only one that is
    not ended by a preemption."""

    def __init__(self, timeline: Timeline, soon: float) -> None:
        """``soon``: within how many seconds after GPUs came free a start is put down to that."""
        self.events: dict[Name, Event] = {event.name: event for event in timeline.events()}
        self.jobs: dict[str, Lived] = {job.key: job for job in timeline.jobs}
        self._soon = soon
        self._moments = sorted(self._all())
        self._times: dict[Name, float] = {moment.name: moment.time for moment in self._moments}

    def _all(self) -> Iterator[Moment]:
        for key, job in self.jobs.items():
            for n, stay in enumerate(job.stays, start=1):
                yield Moment(self.ready(key, n), "came", key, n)
                yield Moment(stay.admitted, "start", key, n)
                yield Moment(stay.freed, "left", key, self._numbered(key, n))

    def when(self, moment: Moment) -> float | None:
        """When the same thing was in this run; None: it was not."""
        return self._times.get(moment.name)

    def before(self, event: Event) -> Moment:
        """The last thing that a start or a preemption waited for."""
        return self._before_start(event) if event.kind == "start" else self._before_preempt(event)

    def _before_start(self, event: Event) -> Moment:
        """GPUs of its own nodes that came free, or its own coming.

        Where that was not right before: GPUs that came free elsewhere, or the first start of another then,
        which let the queue move on. Where there is neither: that after all, however long before.
        """
        key, number = event.key, event.nth
        last = self.last_free(key, number)
        if last is None:
            newest = Moment(self.ready(key, number), "came", key, number)
        else:
            freed, other, n = last
            newest = Moment(freed, "left", other, self._numbered(other, n))
        if event.time - newest.time <= self._soon:
            return newest
        near = [m for m in self._near(event) if m.key != key]
        for kind in ("left", "start"):
            if found := [m for m in near if m.kind == kind]:
                return min(found) if kind == "start" else max(found)
        return newest

    def _before_preempt(self, event: Event) -> Moment:
        """What moved right before: the coming of whom it made way for, or else anything.

        Where nothing did: the start of the run itself, whose service or progress went over a bound.
        """
        taker = self.taker(event)
        near = [m for m in self._near(event) if m.key != event.key]
        mine = [m for m in near if taker is not None and (m.kind, m.key) == ("came", taker.key)]
        start = self.events["start", event.key, event.nth].time
        return max(mine or near, default=Moment(start, "start", event.key, event.nth))

    def _near(self, event: Event) -> list[Moment]:
        """Whatever was at most so long before an event as makes it put down to that."""
        return [m for m in self._moments if event.time - self._soon <= m.time <= event.time]

    def _numbered(self, key: str, number: int) -> int:
        stays = self.jobs[key].stays
        return number if stays[number - 1].how is How.PREEMPT else 0

    def holding(self, since: float, until: float) -> dict[tuple[str, int], Stay]:
        """By job and number, the stays that had begun before ``until`` and held their GPUs past ``since``."""
        return {
            (key, n): stay
            for key, job in self.jobs.items()
            for n, stay in enumerate(job.stays, start=1)
            if stay.admitted < until and stay.freed > since
        }

    def stay(self, event: Event) -> Stay:
        """The stay that one of its events begins or ends."""
        return self.jobs[event.key].stays[self.number(event) - 1]

    def number(self, event: Event) -> int:
        """Which of its job's stays that is."""
        if event.kind in ("start", How.PREEMPT):
            return event.nth
        return len(self.jobs[event.key].stays)

    def last_start(self, key: str) -> Event:
        """Of a job that ran."""
        return self.events["start", key, len(self.jobs[key].stays)]

    def ready(self, key: str, number: int) -> float:
        """Since when a job had waited for that stay of its: its submission, or its GPUs' coming free."""
        job = self.jobs[key]
        return job.submitted if number == 1 else job.stays[number - 2].freed

    def waits(self, key: str, now: float) -> bool:
        """Whether a job was in the queue then."""
        stays = self.jobs[key].stays
        return any(self.ready(key, n) <= now < stay.admitted for n, stay in enumerate(stays, start=1))

    def last_free(self, key: str, number: int) -> tuple[float, str, int] | None:
        """(when, job, number of its stay) of the last GPUs that came free for this stay while its job waited:
        on its own nodes, or anywhere where nodes are not known."""
        job, ready = self.jobs[key], self.ready(key, number)
        mine = job.stays[number - 1]
        found = [
            (stay.freed, other.key, n)
            for other in self.jobs.values()
            if other.key != key
            for n, stay in enumerate(other.stays, start=1)
            if ready <= stay.freed <= mine.admitted and meet(stay, mine)
        ]
        return max(found, default=None)

    def giver(self, key: str, number: int) -> tuple[str, int] | None:
        """Whose leaving (job, number of its stay) a stay began right after, its job waiting already."""
        last = self.last_free(key, number)
        if last is None or self.jobs[key].stays[number - 1].admitted - last[0] > self._soon:
            return None
        return last[1:]

    def taker(self, event: Event) -> Event | None:
        """The first start on the GPUs that a preemption freed, of a job that waited when it was decided.

        Of several that had to leave at the same time, that is once the last of them has left. None: nobody's
        came right after that, or the job itself was the first to be back.
        """
        left = self.stay(event)
        with_it = (
            m.time
            for m in self._moments
            if m.kind == "left" and m.number and self._together(self.jobs[m.key].stays[m.number - 1], left)
        )
        until = max(left.freed, *with_it) + self._soon
        found = [
            e
            for e in self.events.values()
            if e.kind == "start"
            and left.freed <= e.time <= until
            and meet(left, self.stay(e))
            and (e.key == event.key or self.ready(e.key, e.nth) <= event.time)
        ]
        first = min(found, default=None)
        return None if first is None or first.key == event.key else first

    def elsewhere(self, event: Event) -> Event | None:
        """The first start between a preemption and the leaving, of another job that waited already."""
        until = self.stay(event).freed + self._soon
        found = [
            e
            for e in self.events.values()
            if e.kind == "start"
            and e.key != event.key
            and event.time < e.time <= until
            and self.ready(e.key, e.nth) <= event.time
        ]
        return min(found, default=None)

    def _together(self, one: Stay, other: Stay) -> bool:
        """Whether two stays' ends were decided at one time."""
        return (
            one.decided is not None
            and other.decided is not None
            and abs(one.decided - other.decided) <= self._soon
        )

    def made_way_for(self, key: str) -> set[str]:
        """All jobs that a job was preempted for."""
        takers = (self.taker(e) for e in self.events.values() if e.key == key and e.kind == How.PREEMPT)
        return {e.key for e in takers if e is not None}


def meet(one: Stay, other: Stay) -> bool:
    """Whether two stays had a node in common; true where it is not known."""
    return not (one.nodes and other.nodes) or not set(one.nodes).isdisjoint(other.nodes)
