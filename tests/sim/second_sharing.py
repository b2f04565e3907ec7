"""A second simulator of residents that take turns, from the issue's text alone; it shares no code with ours.

Every resident has exactly one next request, and turns are first come, first served and never cut short. So
whoever has the earliest request of all has the next turn: there is nothing else to simulate.
"""

from __future__ import annotations


def second(
    away: list[list[int]], held: list[list[int]], load: int, offload: int, lag: int
) -> tuple[list[int], list[int]]:
    """Return what steps took from each job's first release to its last before one of them ran out of turns.

    Twice: shared and alone. All times are whole microseconds.
    """
    shared_releases = _releases(away, held, load, offload, lag)
    alone_releases = [_releases([a], [h], 0, 0, lag)[0] for a, h in zip(away, held, strict=True)]
    last = min(releases[-1] for releases in shared_releases if len(releases) == len(away[0]))
    took, alone = [], []
    for mine, theirs in zip(shared_releases, alone_releases, strict=True):
        count = sum(1 for at in mine if at <= last)
        took.append(mine[count - 1] - mine[0])
        alone.append(theirs[count - 1] - theirs[0])
    return took, alone


def _releases(
    away: list[list[int]], held: list[list[int]], load: int, offload: int, lag: int
) -> list[list[int]]:
    jobs = range(len(away))
    total = [len(times) for times in away]
    request = []
    rollouts_end = []
    for job in jobs:
        begins = (away[job][0] + held[job][0]) * job // len(away)
        request.append(begins + away[job][0])
        # With lag the second rollouts begin when the first are over.
        rollouts_end.append(request[job] + (away[job][1] if total[job] > 1 else 0))
    done = [0] * len(away)
    releases: list[list[int]] = [[] for _ in jobs]
    free, loaded = 0, None
    while min(total[job] - done[job] for job in jobs) > 0:
        job = min(jobs, key=lambda one: (request[one], one))
        start = max(free, request[job])
        if loaded is None:
            start += load
        elif loaded != job:
            start += offload + load
        loaded = job
        free = start + held[job][done[job]]
        releases[job].append(free)
        done[job] += 1
        if done[job] == total[job]:
            continue
        if lag == 0:
            request[job] = free + away[job][done[job]]
        else:
            request[job] = max(rollouts_end[job], free)
            after = done[job] + 1
            rollouts_end[job] = request[job] + (away[job][after] if after < total[job] else 0)
    return releases
