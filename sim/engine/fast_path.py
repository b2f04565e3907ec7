"""The engine's loop where nothing but training takes time, GPUs are slots and nobody takes notes.

The same rounds as in `run`, of the same policy objects, in one function and without a kernel: of a small
event's time most is the calls it takes. A property test holds its results equal to the general engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any

from controller.policy.pool import SlotRoom
from controller.policy.queueing.base import NOTHING, QueuePolicy
from controller.policy.types import JobState
from sim.engine.evaluations import Evaluations
from sim.engine.ledger import JobColumns
from sim.engine.result import Result
from sim.engine.training import Training
from sim.engine.virtual_job import VirtualJob
from sim.workload import Workload

_QUEUED, _ADMITTED = JobState.QUEUED, JobState.ADMITTED
_STOPPING, _PREEMPTING = JobState.STOPPING, JobState.PREEMPTING
_ALARM = -1  # row of an alarm: before all jobs of its instant, and the last place in a list


def run_bare(
    workload: Workload,
    policy: QueuePolicy,
    room: SlotRoom,
    training: Training,
    evals: Evaluations,
    views: Iterator[VirtualJob],
) -> Result:
    """Run the workload to its end.

    Args:
        workload: the jobs.
        policy: a queue policy that nobody has used yet.
        room: the cluster's GPUs.
        training: without latencies.
        evals: none, or foreseen.
        views: what the policy is shown of each job, by row.
    """
    submitted, admitted, leaving, removed = policy.submitted, policy.admitted, policy.leaving, policy.removed
    decide, give = policy.decide, room.give
    ledger = JobColumns(workload)
    started, ended, service, counted = ledger.started, ledger.ended, ledger.service, ledger.counted
    preempted, stopped = ledger.preempted, ledger.stopped
    work, done, stops_due = workload.work, training.done, evals.stops_due
    heap: list[tuple[float, int, int, Any]] = []  # (time, row, ticket, job)
    live = [0] * (len(workload) + 1)  # ticket of each row's next event; what has another one is void
    ticket = events = 0
    armed: float = inf  # when an alarm is set to ring
    wake_at: float | None = None  # when the policy wants to be asked
    times = iter(workload.submitted)
    coming = next(times, inf)
    now: float = 0.0
    job: Any  # a policy gives back the very views it was given
    while True:
        news = False
        if heap and heap[0][0] <= coming:
            now, row, number, job = heappop(heap)
            while True:
                if number != live[row]:
                    pass  # void
                elif row == _ALARM:
                    events += 1
                    armed = inf
                    if wake_at is None:
                        pass
                    elif wake_at <= now:
                        wake_at, news = None, True
                    else:  # it rang too early: set anew
                        armed = wake_at
                        live[_ALARM] = ticket = ticket + 1
                        heappush(heap, (armed, _ALARM, ticket, None))
                elif row in stops_due:
                    events += 1
                    news = True
                    live[row] = ticket = ticket + 1
                    end_at = job.since + (work[row] - done[row])
                    heappush(heap, (end_at, row, ticket, job))
                    job.attained += (now - counted[row]) * job.gpus
                    job.remaining = end_at - now
                    counted[row] = now
                    evals.scrape(job, evals.made(row), now, job.attained)
                    policy.updated(job, now)
                else:
                    events += 1
                    news = True
                    removed(job, now)
                    give(job)
                    ended[row] = now
                    service[row] = job.attained + (now - counted[row]) * job.gpus
                if not heap or heap[0][0] != now:
                    break
                _, row, number, job = heappop(heap)
        elif coming < inf:
            now = coming
        else:
            return ledger.result(training, evals, events)
        while coming == now:
            events += 1
            news = True
            submitted(next(views), now)
            coming = next(times, inf)

        while news:
            decision = decide(now, room)
            if decision is NOTHING:
                wake_at = None
                break
            admit, preempt, release, asked = decision
            if asked != wake_at:
                wake_at = asked
                if asked is not None and now < asked < armed:
                    armed = asked
                    live[_ALARM] = ticket = ticket + 1
                    heappush(heap, (armed, _ALARM, ticket, None))
            for job in admit:
                row = job.sequence
                if started[row] < 0:
                    started[row] = now
                job.state = _ADMITTED
                job.since = counted[row] = now
                admitted(job, now)
                live[row] = ticket = ticket + 1
                if row in stops_due:
                    at = now + (stops_due[row] * work[row] - done[row])
                    heappush(heap, (at, row, ticket, job))
                else:
                    heappush(heap, (now + (work[row] - done[row]), row, ticket, job))
            if not preempt and not release:
                break
            # Nobody needs time to leave: what they free is given out in another round of this instant.
            for job, _ in preempt:
                row = job.sequence
                job.state = _PREEMPTING
                leaving(job, now)
                _pause(job, now, ledger, training)
                live[row] = 0
                preempted[row] = preempted.get(row, 0) + 1
                job.state = _QUEUED
                job.since = now
                job.remaining = work[row] - done[row]
                give(job)
                submitted(job, now)
            for job in release:
                row = job.sequence
                job.state = _STOPPING
                leaving(job, now)
                if evals.stops[row].at < now:  # it went on, as long as nobody waited
                    training.begin(row, job.since, False)
                    training.next[row] = training.made(row, now)
                else:
                    training.next[row] = evals.stops[row].eval + 1
                _pause(job, now, ledger, training)
                live[row] = 0
                removed(job, now)
                give(job)
                ended[row] = now
                stopped.add(row)


def _pause(job: VirtualJob, now: float, ledger: JobColumns, training: Training) -> None:
    """Stop a run where it stands; it loses no work."""
    row = job.sequence
    job.attained += (now - ledger.counted[row]) * job.gpus
    ledger.service[row] = job.attained
    assert job.since is not None  # it runs
    training.done[row] = min(training.done[row] + (now - job.since), training.work[row])
