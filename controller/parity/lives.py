"""One run of a trial, to be asked who waited, who left before whom, and who came after."""

from __future__ import annotations

from controller.parity.timeline import Event, How, Lived, Stay, Timeline

Name = tuple[str, str, int]


class Lives:
    """A timeline by the names of its events. Stays are counted from 1; a run's last is the only one that is
    not ended by a preemption."""

    def __init__(self, timeline: Timeline, soon: float) -> None:
        """``soon``: within how many seconds after GPUs came free a start is put down to that."""
        self.events: dict[Name, Event] = {event.name: event for event in timeline.events()}
        self.jobs: dict[str, Lived] = {job.key: job for job in timeline.jobs}
        self._soon = soon

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
            if ready <= stay.freed <= mine.admitted and _meet(stay, mine)
        ]
        return max(found, default=None)

    def idle(self, key: str, number: int) -> float:
        """How long after that, or after its own coming if nothing came free since, the stay began (s)."""
        last = self.last_free(key, number)
        began = self.jobs[key].stays[number - 1].admitted
        return began - (self.ready(key, number) if last is None else last[0])

    def giver(self, key: str, number: int) -> tuple[str, int] | None:
        """Whose leaving (job, number of its stay) a stay began right after, its job waiting already."""
        last = self.last_free(key, number)
        if last is None or self.jobs[key].stays[number - 1].admitted - last[0] > self._soon:
            return None
        return last[1:]

    def taker(self, event: Event) -> Event | None:
        """The first start on the GPUs that a preemption freed, of a job that waited when it was decided.

        None: nobody's came right after, or the job itself was the first to be back.
        """
        left = self.stay(event)
        found = [
            e
            for e in self.events.values()
            if e.kind == "start"
            and left.freed <= e.time <= left.freed + self._soon
            and _meet(left, self.stay(e))
            and (e.key == event.key or self.ready(e.key, e.nth) <= event.time)
        ]
        first = min(found, default=None)
        return None if first is None or first.key == event.key else first

    def made_way_for(self, key: str) -> set[str]:
        """All jobs that a job was preempted for."""
        takers = (self.taker(e) for e in self.events.values() if e.key == key and e.kind == How.PREEMPT)
        return {e.key for e in takers if e is not None}

    def freed(self, key: str, number: int, how: How) -> float | None:
        """When that stay was over; None where it was not, or not by a preemption as in the other run."""
        stays = self.jobs[key].stays
        if how is not How.PREEMPT:
            return stays[-1].freed if stays else None
        if number > len(stays) or stays[number - 1].how is not How.PREEMPT:
            return None
        return stays[number - 1].freed


def _meet(one: Stay, other: Stay) -> bool:
    """Whether two stays had a node in common; true where it is not known."""
    return not (one.nodes and other.nodes) or not set(one.nodes).isdisjoint(other.nodes)
