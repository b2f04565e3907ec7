"""The timeline of one run, to be asked: who waited, who left before whom, what an event came after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.parity.timeline import Event, How, Lived, Stay, Timeline

Name = tuple[str, str, int]
# On a cluster the members of a gang leave one after the other, and what is free of it is given away before
# the last one is seen to be gone: by so many seconds something may be noted later than what came of it.
SKEW = 0.2


@dataclass(frozen=True, slots=True, order=True)
class TimelineEvent:
    """Something that another event may have waited for.

    ``number``: of the start that it is or was waited for, or of the preemption; 0: the last leaving.
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


class RunTimeline:
    """A timeline by the names of its events, its stays numbered (`controller.parity.pairing`). A job's last
    stay is the only one that no preemption ended."""

    def __init__(self, timeline: Timeline, soon: float) -> None:
        """``soon``: within how many seconds after GPUs came free a start is put down to that."""
        self.events: dict[Name, Event] = {event.name: event for event in timeline.events()}
        self.jobs: dict[str, Lived] = {job.key: job for job in timeline.jobs}
        self.soon = soon
        # Which of its job's stays an event begins or ends.
        self._places: dict[Name, int] = {}
        for key, job in self.jobs.items():
            for place, stay in enumerate(job.stays):
                self._places["start", key, stay.began] = place
                if stay.how is How.PREEMPT:
                    self._places[How.PREEMPT, key, stay.left] = place
        self._moments = sorted(self._all())
        self._times: dict[Name, float] = {moment.name: moment.time for moment in self._moments}

    def _all(self) -> Iterator[TimelineEvent]:
        for key, stay in self._each():
            yield TimelineEvent(self.ready(key, stay.began), "came", key, stay.began)
            yield TimelineEvent(stay.admitted, "start", key, stay.began)
            yield _left(key, stay)

    def _each(self) -> Iterator[tuple[str, Stay]]:
        """Return all stays, with their jobs."""
        return ((key, stay) for key, job in self.jobs.items() for stay in job.stays)

    def when(self, moment: TimelineEvent) -> float | None:
        """Return when the same thing was in this run; None: it was not."""
        return self._times.get(moment.name)

    # -- a stay

    def stay(self, event: Event) -> Stay:
        """Return the stay that one of its events begins or ends."""
        return self.jobs[event.key].stays[self._places.get(event.name, -1)]

    def numbered(self, key: str, number: int) -> Stay | None:
        """Return the stay that begins with a job's start of that number; None: this run has none."""
        place = self._places.get(("start", key, number))
        return None if place is None else self.jobs[key].stays[place]

    def last_start(self, key: str) -> Event:
        """Of a job that ran."""
        return self.events["start", key, self.jobs[key].stays[-1].began]

    def place(self, key: str, number: int) -> int:
        """Return how many stays of its the job had before that start."""
        return self._places["start", key, number]

    def preempted_before(self, event: Event) -> Event | None:
        """Return what put a job back into the queue before a start; None: it is the first one."""
        place = self.place(event.key, event.nth)
        if not place:
            return None
        return self.events[How.PREEMPT, event.key, self.jobs[event.key].stays[place - 1].left]

    def began(self, event: Event) -> Event:
        """Return the start of the stay that a preemption ends."""
        return self.events["start", event.key, self.stay(event).began]

    def ready(self, key: str, number: int) -> float:
        """Return since when a job had waited for that start: its submission, or its GPUs' coming free."""
        job, place = self.jobs[key], self.place(key, number)
        return job.stays[place - 1].freed if place else job.submitted

    def waits(self, key: str, now: float) -> bool:
        """Return whether a job was in the queue then."""
        job = self.jobs[key]
        since = [job.submitted, *(stay.freed for stay in job.stays)]
        return any(at <= now < stay.admitted for at, stay in zip(since, job.stays, strict=False))

    def over(self, key: str, now: float) -> str | None:
        """Return how a run had ended by then: ``stopped at 3.0 s``; None: it had not."""
        last = self.jobs[key].stays[-1] if self.jobs[key].stays else None
        if last is None or last.how is How.PREEMPT:
            return None
        if last.end > now:
            return None
        return f"{'stopped' if last.how is How.STOP else 'at its end'} at {last.end:.1f} s"

    def holding(self, since: float, until: float) -> list[tuple[str, Stay]]:
        """Return the stays that had begun before ``until`` and held their GPUs past ``since``, with their
        jobs."""
        return [(key, stay) for key, stay in self._each() if stay.admitted < until and stay.freed > since]

    # -- what an event came after

    def before(self, event: Event) -> TimelineEvent:
        """Return the last thing that a start or a preemption waited for."""
        return self._before_start(event) if event.kind == "start" else self._before_preempt(event)

    def _before_start(self, event: Event) -> TimelineEvent:
        """Return GPUs of its own nodes that came free, or its own coming.

        Where that was not right before: GPUs that came free elsewhere, or the first start of another then,
        which let the queue move on. Where there is neither: that after all, however long before.
        """
        key, number = event.key, event.nth
        last = self._last_free(key, number)
        newest = TimelineEvent(self.ready(key, number), "came", key, number) if last is None else last
        if event.time - newest.time <= self.soon:
            return newest
        near = [m for m in self._near(event) if m.key != key]
        if left := [m for m in near if m.kind == "left"]:
            return max(left)
        return min((m for m in near if m.kind == "start"), default=newest)

    def _before_preempt(self, event: Event) -> TimelineEvent:
        """Return what moved right before: the coming of whom it made way for, or else anything.

        Where nothing did: the start of the run itself, whose service or progress went over a bound.
        """
        taker = self.taker(event)
        near = [m for m in self._near(event) if m.key != event.key]
        mine = [m for m in near if taker is not None and (m.kind, m.key) == ("came", taker.key)]
        start = self.began(event)
        return max(mine or near, default=TimelineEvent(start.time, "start", start.key, start.nth))

    def _near(self, event: Event) -> list[TimelineEvent]:
        """Return the moments that were at most ``soon`` seconds before an event."""
        return [
            m
            for m in self._moments
            if event.time - self.soon <= m.time <= event.time + (SKEW if m.kind == "left" else 0.0)
        ]

    def _last_free(self, key: str, number: int) -> TimelineEvent | None:
        """Return the last GPUs that came free for this stay while its job waited: on its own nodes, or
        anywhere where nodes are not known."""
        ready, mine = self.ready(key, number), self.jobs[key].stays[self.place(key, number)]
        found = [
            _left(other, stay)
            for other, stay in self._each()
            if other != key and ready <= stay.freed <= mine.admitted + SKEW and meet(stay, mine)
        ]
        return max(found, default=None)

    def giver(self, event: Event) -> tuple[str, Stay] | None:
        """Return whose leaving a start came right after, its job waiting already: job and stay."""
        last = self._last_free(event.key, event.nth)
        if last is None or self.events[event.name].time - last.time > self.soon:
            return None
        return last.key, self.jobs[last.key].stays[self._places.get((How.PREEMPT, last.key, last.number), -1)]

    # -- whom a preemption was for

    def taker(self, event: Event) -> Event | None:
        """Return the first start on the GPUs that a preemption freed.

        Of several that had to leave at the same time, that is once the last of them has left. None: nobody's
        came right after that, or the job itself was the first to be back.
        """
        left = self.stay(event)
        together = (s.freed for _, s in self._each() if s.how is How.PREEMPT and self._together(s, left))
        until = max(left.freed, *together) + self.soon
        found = [
            e
            for e in self.events.values()
            if e.kind == "start"
            and max(event.time, left.freed - SKEW) <= e.time <= until
            and meet(left, self.stay(e))
        ]
        first = min(found, default=None)
        return None if first is None or first.key == event.key else first

    def made_way_for(self, event: Event) -> Event | None:
        """Return the taker, if it waited when the preemption was decided."""
        taker = self.taker(event)
        return taker if taker is not None and self.ready(taker.key, taker.nth) <= event.time else None

    def ever_made_way_for(self, key: str) -> set[str]:
        """Return all jobs that a job was preempted for."""
        takers = (
            self.made_way_for(e) for e in self.events.values() if e.key == key and e.kind == How.PREEMPT
        )
        return {e.key for e in takers if e is not None}

    def elsewhere(self, event: Event) -> Event | None:
        """Return the first start between a preemption and the leaving, of another job that waited already."""
        until = self.stay(event).freed + self.soon
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
        """Return whether two stays' ends were decided at one time."""
        return (
            one.decided is not None
            and other.decided is not None
            and abs(one.decided - other.decided) <= self.soon
        )


def _left(key: str, stay: Stay) -> TimelineEvent:
    return TimelineEvent(stay.freed, "left", key, stay.left)


def meet(one: Stay, other: Stay) -> bool:
    """Return whether two stays had a node in common; true where it is not known."""
    return not (one.nodes and other.nodes) or not set(one.nodes).isdisjoint(other.nodes)
