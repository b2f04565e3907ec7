"""Find the cause of each difference in order between two runs, only where what both recorded shows it.

Where a cause has a size, it has the sign of the move (the cluster's time, less the simulator's), and is at
least half as large. Others tell who came first, or what an event came after in either run.
docs/understand/parity.md has the rules; what none of them explains is called unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.parity.end_causes import close, end
from controller.parity.run_pair import TIE, Both, Cause, signed
from controller.parity.run_timeline import RunTimeline
from controller.parity.start_causes import preempt, start
from controller.parity.timeline import Event, How


def passed(both: Both, event: Event, others: Sequence[Event]) -> Cause:
    """Of an event that changed places with others, which are in order.

    Of it and the one of them that is farthest from it in the simulator, the one that moved more is
    explained: it accounts for at least half of what they moved against each other.
    """
    there, here = ([_apart(side, event, o) for o in others] for side in (both.sim, both.cluster))
    whom = others[there.index(max(there))]
    if max(*there, *here) <= TIE:
        words = f"{_apart(both.sim, event, whom):.1f} s from {whom} in the simulator"
        return Cause("tie", f"{words}, {_apart(both.cluster, event, whom):.1f} s in the cluster")
    shift, other = both.shift(event), both.shift(whom)
    if abs(shift) >= abs(other):
        why = _moved(both, event, shift)
        words = f"{signed(shift)}, past {whom} ({signed(other)})"
    else:
        why = _moved(both, whom, other)
        words = f"{signed(shift)}, passed by {whom} ({signed(other)})"
    return Cause(why.kind, f"{words}: {why.words}" if why.words else words, why.moved, why.by)


def alone(both: Both, event: Event) -> Cause:
    """Of an event that only one of the two runs has."""
    mine, theirs = both.sides(event.name in both.cluster.events)
    where = both.called(theirs)
    if event.kind == "start":
        return _back(both, event, mine, theirs)
    if event.kind == How.PREEMPT:
        if (began := mine.began(event)).name not in theirs.events:
            return Cause("follows", f"after {began}")
        return _made_way(both, event, mine, theirs)
    if (barely := close(both, event)) is not None:
        return barely
    return _follows(both, event, mine) or Cause("unexplained", f"not in the {where}")


def _back(both: Both, event: Event, mine: RunTimeline, theirs: RunTimeline) -> Cause:
    """Of a stay that only one run has: it had been preempted in that run only, or waited on in the other."""
    left = mine.preempted_before(event)
    if left is not None and left.name not in theirs.events:
        return Cause("follows", f"after {left}")
    there = "waited on" if theirs.waits(event.key, event.time) else "was on GPUs already"
    return Cause("order", f"it came {both.after(mine, event)}; in the {both.called(theirs)} it {there}")


def _made_way(both: Both, event: Event, mine: RunTimeline, theirs: RunTimeline) -> Cause:
    """Return whom a preemption that only one run has was for, and what was of that in the other one."""
    where = both.called(theirs)
    if (over := theirs.over(event.key, event.time)) is not None:
        return Cause("follows", f"in the {where} it was {over}")
    if (taker := mine.made_way_for(event)) is not None:
        words = f"made way for {taker} at {taker.time:.1f} s"
        if taker.key not in theirs.ever_made_way_for(event.key):
            return Cause("order", f"{words}; in the {where} it never did for that job")
        if taker.name not in theirs.events:
            return Cause("order", f"{words}; in the {where} that start is not")
        return Cause(
            "order", f"{words}; in the {where} that came after {theirs.before(theirs.events[taker.name])}"
        )
    words = f"decided {both.after(mine, event)}; "
    if (taker := mine.taker(event)) is not None:
        later = mine.ready(taker.key, taker.nth) - event.time
        words += f"its GPUs went to {taker}, which came into the queue {later:.1f} s later"
    elif (other := mine.elsewhere(event)) is not None:
        words += f"before it had left, {other} had got other GPUs, and it went on"
    else:
        words += "nobody else had got its GPUs when it was back"
    return Cause("order", words)


def _moved(both: Both, event: Event, by: float) -> Cause:
    """Return why an event moved by so many seconds."""
    rule = {"start": start, How.PREEMPT: preempt}.get(event.kind, end)
    found = rule(both, event, by)
    return found or _follows(both, event, both.cluster) or Cause("unexplained", "")


def _follows(both: Both, event: Event, mine: RunTimeline) -> Cause | None:
    """Return the same job's last difference before it."""
    at = mine.events[event.name].time
    before = [e for n, e in mine.events.items() if e.key == event.key and e.time < at and n in both.differing]
    return Cause("follows", f"after {max(before)}") if before else None


def _apart(side: RunTimeline, one: Event, other: Event) -> float:
    return abs(side.events[one.name].time - side.events[other.name].time)
