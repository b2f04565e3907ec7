"""FIFO by others, on the same jobs: SimPy, and a bare loop over heapq that knows nothing but FIFO."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

import simpy

from tests.bench.sim_workloads import Job


def with_simpy(jobs: Sequence[Job], gpus: int) -> float:
    """Mean JCT; one process per job, GPUs a `Container`, whose queue is strictly first in, first out."""
    env = simpy.Environment()
    pool = simpy.Container(env, capacity=gpus, init=gpus)
    total = 0

    def job(submitted: int, size: int, work: int) -> Iterator[simpy.Event]:
        nonlocal total
        yield pool.get(size)
        yield env.timeout(work)
        yield pool.put(size)
        total += env.now - submitted

    def arrivals() -> Iterator[simpy.Event]:
        for submitted, size, work in jobs:
            if submitted > env.now:
                yield env.timeout(submitted - env.now)
            env.process(job(submitted, size, work))

    env.process(arrivals())
    env.run()
    return total / len(jobs)


def with_heapq(jobs: Sequence[Job], gpus: int) -> float:
    """Mean JCT; no policy, no job objects, nothing recorded: what the events alone cost."""
    heap: list[tuple[int, int, int]] = []
    waiting: deque[Job] = deque()
    at = count = total = 0
    while at < len(jobs) or heap:
        if heap and (at == len(jobs) or heap[0][0] <= jobs[at][0]):
            now, _, size = heapq.heappop(heap)
            gpus += size
        else:
            now = jobs[at][0]
            waiting.append(jobs[at])
            at += 1
        while waiting and waiting[0][1] <= gpus:
            submitted, size, work = waiting.popleft()
            gpus -= size
            count += 1
            heapq.heappush(heap, (now + work, count, size))
            total += now + work - submitted
    return total / len(jobs)
