"""The lead of actors: how long before a step begins they are asked for, so that all are ready when it does.

An actor's start is known from its entry in the status to its being ready. What lies before that, a pass of
the job and one of the pool, is known only from whole ways: from when a step's actors were asked for to when
the last of them was ready. A step has one way, and nine in ten of its like are to be over when it begins: a
step goes on with what it has, and the one response that waits for an actor may be the longest.

Where an actor waits for GPUs, which others have, asking sooner gets it none: of that time little counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.frozen import dataclass

REMEMBERED = 16  # ways, of a step each
SHARE = 0.9  # of steps all of whose actors are to be ready when they begin
MOST_PASSES = 2.0  # s that count between asking and an entry: beyond that there were no GPUs
MOST_BEFORE = 10.0  # s more than a start takes, at most


def way_seconds(asked: float, entry: float, ready: float) -> float:
    """Return s that an actor's way counts.

    Args:
        asked: when the step's actors were asked for (s).
        entry: when its entry was written (s).
        ready: when it took prompts (s).
    """
    waited = max(0.0, entry - asked)
    return max(0.0, ready - asked - max(0.0, waited - MOST_PASSES))


def lead_seconds(start: float, ways: Sequence[float]) -> float:
    """Return s before the begin at which actors are asked for.

    Args:
        start: s that a start takes, from the entry.
        ways: s of the newest steps, from asking to the last of their actors being ready (`way_seconds`).
    """
    known = sorted(ways)
    if not known:
        return start
    return min(max(start, known[int(SHARE * (len(known) - 1) + 0.5)]), start + MOST_BEFORE)


@dataclass(frozen=True, slots=True)
class Due:
    """Time at which actors for a step are to be asked for: so many ``seconds`` before its begin.

    ``lent``: base actors of the job have to be recalled from others first.
    """

    seconds: float
    lent: bool


def actors_due(start: float, recall: float, ways: Sequence[float], base: int, at_hand: int | None) -> Due:
    """Return when a step's actors are to be asked for: as late as they may, for what they hold before the
    begin helps nobody (`curve.bound_times`); by a recall sooner where GPUs of base actors are lent.

    Args:
        start: s that a start takes, from the entry.
        recall: s until GPUs that were taken back are free.
        ways: as `lead_seconds` has them.
        base: actors of the plan that are base actors.
        at_hand: actors that stay or that free GPUs hold; None: not known, so none is lent.
    """
    lent = at_hand is not None and base > at_hand
    return Due(lead_seconds(start, ways) + (recall if lent else 0.0), lent)
