"""Futures of runs that were stopped, had they been let run: nobody saw them.

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
from random import Random

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from controller.policy.types import Verb
from controller.policy.wording import agreeing, counted
from sim.foresight import RuleSpec, first_stop
from sim.traces.trace import TraceJob
from sim.workload import Evals

MODES = ("bounds", "nearest", "recorded")
ENOUGH = 3  # runs seen whole, from which on one can be drawn
NEAR = 5  # nearest runs among which is drawn
_SHARES = 201  # of the training, at which donors' curves are compared
_JOINED = 3  # evals whose mean is where the curve goes on


@dataclass(frozen=True, slots=True)
class Donors:
    """Runs that were seen whole.

    Attributes:
        doubted: only such as their rule would have stopped.
        grid: (jobs, `_SHARES`) scores, linear between the evals, at even shares of the training.
    """

    jobs: tuple[TraceJob, ...]
    doubted: bool
    grid: npt.NDArray[np.float64]

    @staticmethod
    def of(jobs: Sequence[TraceJob], *, doubted: bool) -> Donors:
        return Donors(tuple(jobs), doubted, np.array([_on_grid(job.evals) for job in jobs]))

    @property
    def note(self) -> str:
        which = "that their rule would have stopped" if self.doubted else "of which no rule thought ill"
        bias = "" if self.doubted else "; what is made of those is likely too good"
        return (
            f"Runs that were stopped go on as one of the {min(NEAR, len(self.jobs))} nearest of the "
            f"{counted(len(self.jobs), 'run')} seen whole {which}{bias}."
        )


def donors(jobs: Sequence[TraceJob], rule: RuleSpec | None) -> Donors:
    """Return whose curves may be taken for what was not seen; ``rule``: of jobs that bring none of their own.

    Raises:
        ValueError: fewer than `ENOUGH` runs were seen whole.
    """
    whole = [job for job in jobs if job.evals is not None and (job.past is None or job.past.whole)]
    if len(whole) < ENOUGH:
        raise ValueError(
            f"--future: nearest is not allowed here, for {counted(len(whole), 'run')} with evals "
            f"{agreeing(len(whole), 'was', 'were')} seen whole, expected at least {ENOUGH}; bounds needs none"
        )
    doubted = [job for job in whole if _doubted(job, rule)]
    if len(doubted) >= ENOUGH:
        return Donors.of(doubted, doubted=True)
    return Donors.of(whole, doubted=False)


def nearest(job: TraceJob, found: Donors) -> list[TraceJob]:
    """Return the runs that went most like this one as far as it was seen, the nearest first, `NEAR` at most.

    By the root mean square of the difference of the scores at the same shares of the training, each curve
    less its mean there. Runs of the same metric are taken, where there are `ENOUGH`.
    """
    evals, past = job.evals, job.past
    assert evals is not None
    assert past is not None
    metrics = [other.past.metric if other.past is not None else past.metric for other in found.jobs]
    rows = np.array([n for n, metric in enumerate(metrics) if metric == past.metric], dtype=np.int64)
    if len(rows) < ENOUGH:
        rows = np.arange(len(found.jobs))
    scores, at = np.asarray(evals.scores, dtype=np.float64), np.asarray(evals.at)
    known = np.isfinite(scores)
    own = scores[known] - scores[known].mean() if known.any() else scores[known]
    places = np.rint(at[known] * (_SHARES - 1)).astype(np.int64)
    theirs = found.grid[rows][:, places]
    gaps = theirs - theirs.mean(axis=1, keepdims=True) - own if known.any() else np.zeros((len(rows), 1))
    distances = np.sqrt((gaps**2).mean(axis=1))
    ordered = sorted(range(len(rows)), key=lambda n: (distances[n], found.jobs[rows[n]].key))
    return [found.jobs[rows[n]] for n in ordered[:NEAR]]


def continued(job: TraceJob, near: Sequence[TraceJob], draw: Random) -> Evals:
    """Return the job's evals, and from there on what one of ``near`` did, drawn, as high as the job then
    stood."""
    evals, past, other = job.evals, job.past, draw.choice(near).evals
    assert evals is not None
    assert past is not None
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


def _on_grid(evals: Evals | None) -> npt.NDArray[np.float64]:
    assert evals is not None  # of a donor
    known = [(share, s) for share, s in zip(evals.at, evals.scores, strict=True) if math.isfinite(s)]
    if not known:
        return np.full(_SHARES, 0.0)
    at, scores = zip(*known, strict=True)
    return np.asarray(np.interp(np.linspace(0.0, 1.0, _SHARES), at, scores), dtype=np.float64)


def _level(evals: Evals, until: int) -> float:
    """Mean of the last finite scores before eval ``until``; of its first one, if there is none before."""
    known = [score for score in evals.scores[:until] if math.isfinite(score)][-_JOINED:]
    if not known:
        known = [score for score in evals.scores if math.isfinite(score)][:1] or [0.0]
    return math.fsum(known) / len(known)
