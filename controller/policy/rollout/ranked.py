"""`Ranked`: RLHFless's groups (arXiv 2602.22718, 4.3). Sorted by prediction, cut into groups of equal counts.

Groups of short responses end early, and their actors with them. An actor of which the share ``cut`` of its
own responses is done gives the rest to free slots of other running actors, if they all fit there; it pays
for that with the prefill of what they had. The longest groups go to the actors that are ready first.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from controller.policy.rollout.batching import ends, group_seconds
from controller.policy.rollout.sample import Sample
from controller.policy.rollout.types import ActorLaw


def actor_ends(
    sample: Sample, slots: int, law: ActorLaw, ready: Sequence[float], cut: float
) -> list[float | None]:
    """Return s from the begin to the end of each actor; None for one that gets nothing to do.

    Args:
        sample: responses, longest first.
        slots: of an actor, thinned as the sample is.
        law: of an actor.
        ready: s from the begin until each actor can take a prompt, ascending.
        cut: share of an actor's responses that must be done before the rest may move.
    """
    count, lengths = len(ready), sample.lengths
    found: list[float | None] = []
    times: list[list[float]] = []
    for k in range(count):
        part = slice(k * len(lengths) // count, (k + 1) * len(lengths) // count)
        group = lengths[part]
        if not group:
            found.append(None)
            times.append([])
            continue
        done = ends(group, slots)
        # The longest responses are the first group's, which is not actor 0's where actors outnumber them.
        last = done[-1] if any(times) else max(done[-1], sample.longest)
        seconds = group_seconds(law, group, sample.squares[part], last, sample, count)
        # Iterations of an actor take about equally long.
        rate = seconds / last
        times.append([ready[k] + rate * end for end in (*done[:-1], last)])
        found.append(ready[k] + seconds)
    return _cut(found, times, slots, cut) if cut < 1.0 else found


def _cut(found: list[float | None], times: list[list[float]], slots: int, cut: float) -> list[float | None]:
    """Return the ends with moves, one actor after the other by the time at which it may first give away.

    What an actor has taken from others it gives away with the rest of its own. ``times`` is used up.
    """
    places = {k: _needed(done, cut) for k, done in enumerate(times) if done}
    firsts = {k: times[k][place] for k, place in places.items()}
    running = sorted(firsts, key=lambda k: (firsts[k], k))
    for k in tuple(running):
        first, done = firsts[k], times[k]
        others = [times[j] for j in running if j != k]
        # The later, the less is left and the more slots are free: the first place that fits, by halving.
        low, high = places[k], len(done) - 1
        while low < high:
            place = (low + high) // 2
            at = done[place] if done[place] > first else first
            if _fits(len(done) - 1 - place, others, at, slots):
                high = place
            else:
                low = place + 1
        if low < len(done) - 1:
            found[k] = max(first, done[low])
            running.remove(k)
            # They go to the actor that lasts longest.
            target = max(running, key=lambda j: times[j][-1])
            for end in done[low + 1 :]:
                insort(times[target], end)
                places[target] += end < firsts[target]
            found[target] = max(found[target] or 0.0, done[-1])
    return found


def _fits(left: int, others: Sequence[Sequence[float]], at: float, slots: int) -> bool:
    """Return whether so many responses fit into free slots of actors that still run at ``at``."""
    for done in others:
        more = len(done) - bisect_right(done, at)
        if 0 < more < slots:
            left -= slots - more
            if left <= 0:
                return True
    return False


def _needed(done: Sequence[float], cut: float) -> int:
    """Return the place of the response with which the share is reached."""
    return min(len(done) - 1, max(0, -int(-cut * len(done) // 1) - 1))
