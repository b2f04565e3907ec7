"""What a run that was stopped would have done, had it been let run: nobody saw it.

Three ways to deal with that, none of which makes it known:

- ``bounds``: the two ends of what is possible. *least*: the other rule stops it where the recorded one did,
  so that it costs nothing more; *most*: it is never stopped, trains its whole length, and nothing of what it
  trains there is of use. Jobs' lengths lie between; a queue can put a mean a little outside, for with other
  lengths other jobs go first.
- ``nearest``: the curve goes on as one of the runs did that were seen whole and were nearest to it up to
  there. Each draw takes another of them, and the differences between draws go into the intervals. Where at
  least `ENOUGH` runs were seen whole although their rule would have stopped them (Shadow), only those are
  taken: the others are runs of which no rule thought ill, and what is made of them is too good.
- ``recorded``: where the recorded rule stopped it, it would have been stopped anyway: *least* alone, for
  those who change rules only to stop more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from controller.policy.types import Verb
from sim.foresight import RuleSpec, first_stop
from sim.traces.trace import TraceJob
from sim.workload import Evals

MODES = ("bounds", "nearest", "recorded")
ENOUGH = 3  # runs seen whole, from which on one can be drawn
NEAR = 5  # nearest runs among which is drawn
_JOINED = 3  # evals whose mean is where the curve goes on


@dataclass(frozen=True, slots=True)
class Donors:
    """Runs that were seen whole. ``doubted``: only such as their rule would have stopped."""

    jobs: tuple[TraceJob, ...]
    doubted: bool

    @property
    def note(self) -> str:
        which = "that their rule would have stopped" if self.doubted else "of which no rule thought ill"
        bias = "" if self.doubted else "; what is made of those is likely too good"
        return (
            f"Runs that were stopped go on as one of the {min(NEAR, len(self.jobs))} nearest of the"
            f" {len(self.jobs)} runs seen whole {which}{bias}."
        )


def donors(jobs: Sequence[TraceJob], rule: RuleSpec | None) -> Donors:
    """Whose curves may be taken for what was not seen; ``rule``: of jobs that bring none of their own.

    Raises:
        ValueError: fewer than `ENOUGH` runs were seen whole.
    """
    whole = [job for job in jobs if job.evals is not None and (job.past is None or job.past.whole)]
    if len(whole) < ENOUGH:
        raise ValueError(
            f"--future: nearest is not allowed here, for {len(whole)} runs with evals were seen whole,"
            f" expected at least {ENOUGH}; bounds needs none"
        )
    doubted = [job for job in whole if _doubted(job, rule)]
    if len(doubted) >= ENOUGH:
        return Donors(tuple(doubted), True)
    return Donors(tuple(whole), False)


def continued(job: TraceJob, found: Donors, draw: Random) -> Evals:
    """The job's evals with what one of the nearest runs did from there on.

    Nearest by the root mean square of the difference to its scores at the same shares of the training, each
    curve less its mean. Runs of the same metric are taken, where there are `ENOUGH`.
    """
    evals, past = job.evals, job.past
    assert evals is not None
    assert past is not None
    same = [other for other in found.jobs if other.past is None or other.past.metric == past.metric]
    candidates = same if len(same) >= ENOUGH else list(found.jobs)
    nearest = sorted(candidates, key=lambda other: (_distance(evals, other.evals), other.key))[:NEAR]
    other = draw.choice(nearest).evals
    assert other is not None
    seen = max(past.seen, evals.at[-1])
    level, began = _level(evals, len(evals.at)), _level(other, bisect_right(other.at, seen))
    at, scores = list(evals.at), list(evals.scores)
    for share, score in zip(other.at, other.scores, strict=True):
        if share > seen:
            at.append(share)
            scores.append(level + score - began)
    return Evals(at, scores)


def _doubted(job: TraceJob, rule: RuleSpec | None) -> bool:
    past = job.past
    if past is not None and past.stop_eval is not None:
        return True
    own = past.rule if past is not None and past.rule is not None else rule
    if own is None or job.evals is None:
        return False
    found = first_stop(own.make(), job.evals)
    return found is not None and found.verdict.verb is Verb.STOP and found.eval < len(job.evals.at) - 1


def _distance(one: Evals, other: Evals | None) -> float:
    if other is None:
        return math.inf
    pairs = [
        (score, there)
        for share, score in zip(one.at, one.scores, strict=True)
        if math.isfinite(score) and (there := _score_at(other, share)) is not None
    ]
    if not pairs:
        return math.inf
    mean_one = math.fsum(a for a, _ in pairs) / len(pairs)
    mean_other = math.fsum(b for _, b in pairs) / len(pairs)
    return math.sqrt(math.fsum(((a - mean_one) - (b - mean_other)) ** 2 for a, b in pairs) / len(pairs))


def _score_at(evals: Evals, share: float) -> float | None:
    """Linear between its evals; its first (last) one before (after) them; None: it is not finite there."""
    place = bisect_right(evals.at, share)
    if place in (0, len(evals.at)):
        found = evals.scores[min(place, len(evals.at) - 1)]
    else:
        left, right = evals.at[place - 1], evals.at[place]
        part = (share - left) / (right - left)
        found = evals.scores[place - 1] * (1.0 - part) + evals.scores[place] * part
    return found if math.isfinite(found) else None


def _level(evals: Evals, until: int) -> float:
    """Mean of the last finite scores before eval ``until``; of its first one, if there is none before."""
    known = [score for score in evals.scores[:until] if math.isfinite(score)][-_JOINED:]
    if not known:
        known = [score for score in evals.scores if math.isfinite(score)][:1] or [0.0]
    return math.fsum(known) / len(known)
