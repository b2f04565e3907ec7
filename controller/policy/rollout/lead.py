"""The lead of actors: how long before a step begins they are asked for, so that most are ready when it does.

An actor's start is known from its entry in the status to its being ready. What lies before that, a pass of
the job and one of the pool, is known only from whole ways: from when actors were asked for to when each was
ready. Half of all starts take longer than the median, and a step goes on with what it has: so three in four
are to be there.
"""

from __future__ import annotations

from collections.abc import Sequence

REMEMBERED = 16  # whole ways
SHARE = 0.75  # of actors that are to be ready when the step begins
MOST_BEFORE = 10.0  # s that count between asking and an entry: beyond that there were no GPUs


def lead_seconds(start: float, ways: Sequence[float]) -> float:
    """Return s before the begin at which actors are asked for.

    Args:
        start: s that a start takes, from the entry.
        ways: s from asking to being ready, of the newest actors.
    """
    known = sorted(ways)
    if not known:
        return start
    return min(max(start, known[int(SHARE * (len(known) - 1) + 0.5)]), start + MOST_BEFORE)
