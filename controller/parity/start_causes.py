"""Find the cause of a start or a preemption that is earlier or later in one run: what it came after."""

from __future__ import annotations

from controller.parity.run_pair import TIE, Both, Cause, bears, longer, signed
from controller.parity.run_timeline import SKEW, RunTimeline, TimelineEvent, meet
from controller.parity.timeline import Event, How

_TRAINED = 0.2  # s of training more or less that are told where they may have decided who is first


def start(both: Both, event: Event, moved: float) -> Cause | None:
    """Return why a start moved by so many seconds; None: nothing bears it out."""
    key, nth = event.key, event.nth
    back = both.cluster.ready(key, nth) - both.sim.ready(key, nth)
    if bears(back, moved):
        left = both.cluster.preempted_before(event) or both.sim.preempted_before(event)
        since = "by its submission" if left is None else f"after {left}"
        return Cause("follows", f"it came into the queue {signed(back)}, {since}", moved, back)
    return (
        _made_room(both, event, moved)
        or _carried(both, event, moved)
        or _overtaken(both, event, moved)
        or _held(both, event, moved)
        or _longer(both, event, moved, "its admission")
        or _another(both, event, moved)
    )


def preempt(both: Both, event: Event, moved: float) -> Cause | None:
    """Return why a preemption moved by so many seconds; None: nothing bears it out."""
    began = both.cluster.began(event).time - both.sim.began(event).time
    if bears(began, moved):
        return Cause("follows", f"it had started {signed(began)}", moved, began)
    here = both.cluster.made_way_for(both.cluster.events[event.name])
    there = both.sim.made_way_for(both.sim.events[event.name])
    if here is not None and there is not None and here.key != there.key:
        return Cause("order", f"made way for {here}, in the simulator for {there}")
    return (
        _carried(both, event, moved)
        or _longer(both, event, moved, "its preemption")
        or _another(both, event, moved)
    )


def _made_room(both: Both, event: Event, moved: float) -> Cause | None:
    """In both runs it started when one that was preempted had left, which took longer in the one."""
    took = []
    for side in (both.cluster, both.sim):
        giver = side.giver(event)
        if giver is None or giver[1].how is not How.PREEMPT or giver[1].decided is None:
            return None
        took.append((giver[1].freed - giver[1].decided, giver[0]))
    (here, who), (there, _) = took
    if not bears(here - there, moved):
        return None
    words = f"{who} left for it, which took {longer(here - there, 'such leaving in the simulator')}"
    return Cause("delay", words, moved, here - there)


def _overtaken(both: Both, event: Event, moved: float) -> Cause | None:
    """Return the cause where another job's start changed places with this one; None: there is none.

    In the run where this start came later, another job was first while this one waited. In the other run that
    job started after it or not at all. That job was there already when the other run started this one, got as
    many GPUs or waited there too, and came right after that time or held its GPUs until right before this
    start. If one of the two jobs had a difference before, the order follows from it.
    """
    late, early = both.sides(moved > 0)
    mine, theirs = late.events[event.name], early.events[event.name]
    found = [
        e
        for e in late.events.values()
        if e.kind == "start"
        and e.key != event.key
        and late.jobs[e.key].submitted <= theirs.time
        and (late.jobs[e.key].gpus >= late.jobs[event.key].gpus or early.waits(e.key, theirs.time))
        and late.ready(event.key, event.nth) <= e.time < mine.time
        and (e.name not in early.events or early.events[e.name].time > theirs.time)
        and bears(mine.time - e.time, abs(moved))
        and (e.time <= theirs.time + late.soon or late.stay(e).freed >= mine.time - late.soon)
    ]
    if not found:
        return None
    first = min(found, key=lambda e: abs(mine.time - e.time - abs(moved)))
    gap = mine.time - first.time
    there = "after it" if first.name in early.events else "not at all"
    words = (
        f"in the {both.called(late)} {first} came {gap:.1f} s before it, in the {both.called(early)} {there};"
        f" {_why_first(both, event, first, late)}"
    )
    before = [
        e
        for e in late.events.values()
        if e.key in (event.key, first.key) and e.name in both.differing and e.time < first.time
    ]
    if before:
        words += f"; first of these two jobs' differences: {min(before)}"
    return Cause("follows" if before else "order", words, moved, gap * (1 if moved > 0 else -1))


def _why_first(both: Both, event: Event, first: Event, late: RunTimeline) -> str:
    """Return what was other of two jobs when the one run started the one first, and the other the other."""
    early = both.other(late)
    theirs = early.events[event.name].time
    if not early.waits(first.key, theirs):
        return f"there {first.key} was not in the queue when it started"
    sentences = []
    for one in (event, first):
        if not early.jobs[one.key].stays:
            continue
        more = _trained(both, both.cluster, one) - _trained(both, both.sim, one)
        if abs(more) >= _TRAINED:
            sentences.append(f"{one.key} had trained {abs(more):.1f} s {'less' if more < 0 else 'more'}")
    return f"on the cluster {' and '.join(sentences)}" if sentences else f"it came {both.after(late, first)}"


def _trained(both: Both, side: RunTimeline, start: Event) -> float:
    """Return how much of its training (s) a job had behind it at a start, or at its last one if it has not
    that."""
    known = side.events.get(start.name) or side.last_start(start.key)
    return both.trained(side, known.key, known.nth)


def _carried(both: Both, event: Event, moved: float) -> Cause | None:
    """Return the cause if what the event came right after moved by as much itself; None: it did not."""
    here, there = _came_after(both, event)
    if here.name == there.name:
        shift = here.time - there.time
        if not bears(shift, moved):
            return None
        return Cause("follows", f"it came after {here}, which was {signed(shift)}", moved, shift)
    late, _ = both.sides(moved > 0)
    found = []
    for side, moment in ((both.cluster, here), (both.sim, there)):
        other = both.other(side)
        when = other.when(moment)
        if when is None or (side is late and when > other.events[event.name].time):
            # What it waited for in the later run is a reason only if it was over in the earlier one.
            continue
        shift = moment.time - when if side is both.cluster else when - moment.time
        if bears(shift, moved):
            words = f"in the {both.called(side)} it came after {moment}, which was {signed(shift)}"
            found.append((abs(shift - moved), Cause("follows", words, moved, shift)))
    return min(found, default=(0.0, None), key=lambda one: one[0])[1]


def _longer(both: Both, event: Event, moved: float, what: str) -> Cause | None:
    """Return a delay as the cause if the event came after the same thing in both runs, but took longer.

    A move after the same thing is that thing's move and the longer time in sum: if nothing was `_carried`,
    this bears it out.
    """
    here, there = _came_after(both, event)
    by = moved - (here.time - there.time)
    if here.name != there.name or not bears(by, moved):
        return None
    return Cause("delay", f"{what} took {longer(by, 'in the simulator')} after {here}", moved, by)


def _came_after(both: Both, event: Event) -> tuple[TimelineEvent, TimelineEvent]:
    """Return what it came right after on the cluster, and in the simulator."""
    here, there = (side.before(side.events[event.name]) for side in (both.cluster, both.sim))
    return here, there


def _held(both: Both, event: Event, moved: float) -> Cause | None:
    """In the run in which it started later somebody held GPUs until shortly before it, who in the other one
    had left when it started, or had not come yet."""
    late, early = both.sides(moved > 0)
    mine, theirs = late.events[event.name], early.events[event.name]
    since = mine.time - abs(moved) / 2
    there = {key for key, _ in early.holding(theirs.time, theirs.time)}
    found = [
        (meet(stay, late.stay(mine)), late.jobs[key].gpus, stay.freed, key, stay.began)
        for key, stay in late.holding(since, mine.time)
        if key != event.key and key not in there and stay.freed <= mine.time + SKEW
    ]
    if not found:
        return None
    *_, freed, key, number = max(found)
    words = f"in the {both.called(late)} {key} held GPUs until {freed:.1f} s, in the {both.called(early)}"
    other = early.numbered(key, number)
    if other is None or other.admitted >= theirs.time:
        return Cause("order", f"{words} it had not got any before {theirs.time:.1f} s")
    by = (freed - other.freed) * (1 if moved > 0 else -1)
    return Cause("follows", f"{words} until {other.freed:.1f} s", moved, by) if bears(by, moved) else None


def _another(both: Both, event: Event, moved: float) -> Cause | None:
    """Return another order as the cause if the event came after different things in the two runs."""
    here, there = _came_after(both, event)
    if here.name == there.name:
        return None
    afters = (both.after(side, side.events[event.name]) for side in (both.cluster, both.sim))
    words = "in the cluster it came {}, in the simulator {}".format(*afters)
    if event.kind == "start" and _in_other_pieces(both, event, moved):
        late, _ = both.sides(moved > 0)
        words += f"; as many GPUs were free in the {both.called(late)} by then, but in other pieces"
    return Cause("order", words)


def _in_other_pieces(both: Both, event: Event, moved: float) -> bool:
    """In the run in which it started later, what it waited for in the other one had come long before, no more
    GPUs were held then than when it started in the other one, and it is known where they are."""
    late, early = both.sides(moved > 0)
    mine, theirs = late.events[event.name], early.events[event.name]
    when = late.when(early.before(theirs))
    if when is None or mine.time - when <= TIE or not (late.stay(mine).nodes and early.stay(theirs).nodes):
        return False
    held = [
        sum(side.jobs[key].gpus for key, _ in side.holding(at, at) if key != event.key)
        for side, at in ((late, when), (early, theirs.time))
    ]
    return held[0] <= held[1]
