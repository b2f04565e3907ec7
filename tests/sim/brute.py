"""Schedulers by brute force, after `golden.json`'s semantics: everything is looked at again at every event.

Gang jobs on counted GPUs, whole seconds, ends before arrivals at one instant, no costs. Each returns the end
of every job and how often anybody was preempted. Slow, and meant to be obviously right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Job = tuple[int, int, int]  # submitted, GPUs, seconds
Answer = tuple[list[int], int]


def fifo(jobs: Sequence[Job], gpus: int, *, backfill: bool = False) -> Answer:
    """In the order of submission; without backfill the first that does not fit blocks all behind it."""

    def choose(waiting: list[int], running: list[int], _: list[int]) -> list[int]:
        free = gpus - sum(jobs[j][1] for j in running)
        chosen = list(running)
        for j in waiting:
            if jobs[j][1] <= free:
                free -= jobs[j][1]
                chosen.append(j)
            elif not backfill:
                break
        return chosen

    return _replay(jobs, choose)


def srtf(jobs: Sequence[Job], gpus: int) -> Answer:
    """By remaining time; ties: running first, then the job's number; what does not fit is skipped."""

    def choose(waiting: list[int], running: list[int], done: list[int]) -> list[int]:
        order = sorted([*waiting, *running], key=lambda j: (jobs[j][2] - done[j], j not in running, j))
        return _first_fit(jobs, order, gpus)

    return _replay(jobs, choose)


def _first_fit(jobs: Sequence[Job], order: Sequence[int], gpus: int) -> list[int]:
    chosen = []
    for j in order:
        if jobs[j][1] <= gpus:
            gpus -= jobs[j][1]
            chosen.append(j)
    return chosen


def _replay(jobs: Sequence[Job], choose: Callable[[list[int], list[int], list[int]], list[int]]) -> Answer:
    waiting: list[int] = []
    running: list[int] = []
    done, ends, preempted, now, coming = [0] * len(jobs), [0] * len(jobs), 0, 0, 0
    while coming < len(jobs) or waiting or running:
        times = [now + jobs[j][2] - done[j] for j in running]
        if coming < len(jobs):
            times.append(jobs[coming][0])
        then = min(times)
        for j in running:
            done[j] += then - now
        now = then
        for j in [j for j in running if done[j] == jobs[j][2]]:
            running.remove(j)
            ends[j] = now
        while coming < len(jobs) and jobs[coming][0] == now:
            waiting.append(coming)
            coming += 1
        chosen = choose(waiting, running, done)
        preempted += sum(j not in chosen for j in running)
        waiting = sorted(j for j in [*waiting, *running] if j not in chosen)
        running = chosen
    return ends, preempted


def las(jobs: Sequence[Job], gpus: int, limits: tuple[int, int] = (3250, 7200)) -> Answer:
    """Tiresias's 2D-LAS (`dlas-gpu`), list for list: order, late looks and all."""
    n = len(jobs)
    runs, done, level, checked, ends = [False] * n, [0] * n, [0] * n, [0] * n, [0] * n
    queues: list[list[int]] = [[], [], []]
    alive: list[int] = []
    preempted = coming = 0
    end = look = math.inf
    while coming < n or alive:
        event = min(jobs[coming][0] if coming < n else math.inf, end)
        now = int(min(event, look))
        if event <= look:
            for j in [j for j in alive if runs[j] and done[j] + now - checked[j] == jobs[j][2]]:
                alive.remove(j)
                queues[level[j]].remove(j)
                ends[j] = now
            while coming < n and jobs[coming][0] == now:
                alive.append(coming)
                queues[0].append(coming)
                checked[coming] = now
                coming += 1
        for j in alive:
            if runs[j]:
                done[j] += now - checked[j]
                if level[j] < 2 and done[j] * jobs[j][1] >= limits[level[j]]:
                    queues[level[j]].remove(j)
                    level[j] += 1
                    queues[level[j]].append(j)
            checked[j] = now
        chosen = _first_fit(jobs, [j for queue in queues for j in queue], gpus)
        for j in alive:
            preempted += runs[j] and j not in chosen
            runs[j] = j in chosen
        for number, queue in enumerate(queues):
            queues[number] = sorted(queue, key=lambda j: not runs[j])  # stable: who runs goes to the front
        end = min((now + jobs[j][2] - done[j] for j in chosen), default=math.inf)
        looks = [
            now + math.ceil((limits[level[j]] - done[j]) / jobs[j][1])
            for j in alive
            if runs[j] and level[j] < 2
        ]
        look = min(looks, default=math.inf)
    return ends, preempted
