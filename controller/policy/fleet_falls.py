"""Common mode: did the others fall at the same moment? Then it is no run's own decline.

Another evaluator, a broken prompt set or a judge that answers differently lowers every score at once, and
every stop rule is right about what it sees. Only the pool sees that they fell together. So a run that asks to
be stopped after a sudden fall is compared with the others: for the gap between two of its evals in which it
fell,

    u = (median of the three evals before - drift - mean of the one to three after) / scale

is formed for each run that has evals on both sides of the gap. The drift is by how much evals lay below the
three before them already: the median of the last three such differences, if it is a fall. The scale is the
standard deviation of the difference, as its sizes before the gap show it or as the noise makes it, whichever
is larger. So a steady decline is no sudden fall, however steep, and over-optimising runs that
decline side by side are stopped as they should be.

The fall is shared when as large a share of the runs as the pool's limit says fell, `FEW` at least, each by so
much that as many others would do it by luck once in a thousand times (`_least`): by 2.4 if three must fall of
five, by `SMALLEST` if ten of twenty. Nobody is stopped for it then; each run's memory begins anew behind it
(`comparable`), and a run that declines by itself among them is found again by what comes after.

While fewer than that share of the runs have had an eval since, or as many may have fallen (u of `LIKELY`) but
have not had `AFTER` evals yet, the answer is not known, and the stop waits: the first run that is evaluated
under the new evaluator must not be its victim. It waits for the time that the pool's limit says, and where
the others' evals are rarer than that, for as long as the ones that are missing usually take (`_patience`).

What it cannot see: falls of less than two or three standard deviations of an eval (the more runs, the less);
faults that creep in; guardrail metrics, of which no history is kept; pools with fewer than `FEW` runs that
are far enough. What it takes for one: runs without noise that all turn down between the same two evals. A
trainer that exports its evaluator's version is safe from all of that, and from its first eval on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import NormalDist, median
from typing import NamedTuple

from controller.policy.types import FleetNoise, JobView, MetricNoise, SharedFall

SMALLEST = 1.8  # u below which nothing is sudden: what smooth curves come to that turn together
LUCK = 1e-3  # chance that the others fall with the one that asks, without a cause
MOST = 64  # runs that are asked
GAPS = 4  # of the run that asks, the sharpest ones
FEW = 3  # runs that must fall together, the one that asks among them
BEFORE = 3  # evals that make the level before the gap
AFTER = 3  # evals that make the level after it, at most
LIKELY = 1.0  # u of a run that may have fallen; more evals will tell
FALLS_KEPT = 8

_FROM_MEAN = math.sqrt(math.pi / 2.0)  # standard deviation of Gaussian noise from its mean size
_CAP = 4.0  # times the median size that one difference may count
_DIFFERENCES = 4  # before the gap, from which their usual size can be told
_MEDIAN = 0.45  # variance of the median of three evals, in that of one


class Asked(NamedTuple):
    """What the others say. ``fall``: it is shared. ``wait_until`` (s): too few have answered so far.

    Neither: the run's fall, if there is one, is its own. ``message`` says what ``wait_until`` waits for,
    ``evals`` for how many of each of the others.
    """

    fall: SharedFall | None = None
    wait_until: float | None = None
    message: str = ""
    evals: int = 0


NOBODY = Asked()
Usual = Mapping[str, FleetNoise]  # by metric


def ask(
    job: JobView, jobs: Sequence[JobView], noise: Sequence[MetricNoise], percent: int, wait: float, now: float
) -> Asked:
    """Whether the sudden fall of a run that asks to be stopped, if it had one, is shared by the others.

    ``jobs``: the pool's running jobs, that one among them. ``percent``: the share from which it is shared.
    ``wait``: s that it waits for the others' evals, at least, from its first low one. Those of the same
    metric are asked; where they are too few, all.
    """
    usual = {entry.metric: entry.noise for entry in noise}
    like, all_ = _some([j for j in jobs if j.metric == job.metric]), _some(jobs)
    waits = NOBODY
    for fell, after, before in _gaps(job, usual):
        found, group = _poll(job.metric, like, fell, after, before, percent, usual), like
        if found is None:
            found, group = _poll("", all_, fell, after, before, percent, usual) or NOBODY, all_
        if found.fall is not None:
            return found
        if found.evals:
            until = before + max(wait, _patience(job, group, found.evals))
            if until > max(now, waits.wait_until or 0.0):
                waits = found._replace(wait_until=until)
    return waits


def _patience(job: JobView, group: Sequence[JobView], evals: int) -> float:
    """How long (s) the others take for so many evals, by the median of their median intervals, and half an
    interval more; 0: nobody knows."""
    usual = []
    for other in group:
        times = sorted({r.at for r in other.readings})
        if other.key != job.key and len(times) > 1:
            usual.append(median(b - a for a, b in pairwise(times)))
    return (evals + 0.5) * median(usual) if usual else 0.0


def _some(jobs: Sequence[JobView]) -> Sequence[JobView]:
    """Those with evals; of very many, `MOST` spread over all of them, which tell as much."""
    able = [j for j in jobs if len(j.readings) >= BEFORE]
    return able[:: -(-len(able) // MOST)] if len(able) > MOST else able


def mixes(job: JobView, falls: Sequence[SharedFall]) -> SharedFall | None:
    """The shared fall on both sides of which the job still has evals: its verdict mixes two scales."""
    for fall in reversed(falls):
        if not fall.concerns(job.metric) or not job.readings:
            continue
        if not fall.counts(job.readings[0].at) and fall.counts(job.readings[-1].at):
            return fall
    return None


def remember(known: Sequence[SharedFall], found: SharedFall) -> tuple[SharedFall, ...]:
    """With a newly found fall: the newest of each metric, `FALLS_KEPT` at most, newest last."""
    others = [f for f in known if f.metric != found.metric]
    return tuple(sorted((*others, found), key=lambda f: (f.before, f.metric))[-FALLS_KEPT:])


def _poll(
    metric: str,
    group: Sequence[JobView],
    fell: float,
    after: float,
    before: float,
    percent: int,
    usual: Usual,
) -> Asked | None:
    """What a group says to a gap in which the asking run fell by ``fell``; None: too few of it can tell.

    Until when the others are waited for, if they are, is not said yet.
    """
    answers = [answer for j in group if (answer := _answer(j, after, before, usual)) is not None]
    if len(answers) < FEW:
        return None
    told = [answer for answer in answers if answer.evals]
    needed = max(FEW, -(-percent * len(told) // 100))
    least = _least(len(told), needed)
    low = sum(1 for answer in told if answer.u >= least)
    enough = len(told) >= FEW and 100 * len(told) >= percent * len(answers)
    if enough and fell >= least and low >= needed:
        return Asked(SharedFall(metric, after, before, low, len(told)))
    # May it still be shared, by what the others have yet to say?
    needed = max(FEW, -(-percent * len(answers) // 100))
    open_ = [a for a in answers if not a.evals or (a.evals < AFTER and a.u >= LIKELY)]
    sure = sum(1 for a in answers if a.evals == AFTER and a.u >= least)
    likely = sum(1 for a in told if a.u >= LIKELY)
    if (enough and likely < needed) or len(open_) + sure < needed:
        return NOBODY
    why = (
        f"it fell suddenly, and of {len(answers)} jobs that may share the cause only {len(told)} have had an "
        f"eval since, {likely} of which fell; the others, and more evals, are waited for"
    )
    return Asked(None, None, why, AFTER if enough else 1)


@cache
def _least(runs: int, needed: int) -> float:
    """u by which ``needed`` of ``runs`` must fall, so that luck makes the others do so `LUCK` of the time.

    Solves others * KL(share, p) = -log(LUCK) for the chance p of one (Chernoff's bound of the binomial tail);
    u is the normal deviate that is exceeded with chance p.
    """
    others, share = runs - 1, (needed - 1) / max(1, runs - 1)
    if others < 1 or share > 1.0:
        return math.inf
    low, high = 0.0, share
    for _ in range(50):
        p = (low + high) / 2.0
        distance = share * math.log(share / p) if p > 0.0 else math.inf
        if share < 1.0:
            distance += (1.0 - share) * math.log((1.0 - share) / (1.0 - p))
        low, high = (p, high) if others * distance > -math.log(LUCK) else (low, p)
    return max(SMALLEST, -NormalDist().inv_cdf(low)) if low > 0.0 else math.inf


def _gaps(job: JobView, usual: Usual) -> list[tuple[float, float, float]]:
    """(u, last eval before, first eval after) of the falls that its newest evals show, sharpest first."""
    times = sorted({r.at for r in job.readings})
    answers = ((_answer(job, *gap, usual), gap) for gap in pairwise(times))
    found = ((answer.u, *gap) for answer, gap in answers if answer is not None and answer.u >= LIKELY)
    return sorted(found, reverse=True)[:GAPS]


class _Answer(NamedTuple):
    """u of a job in a gap, and from how many evals after it."""

    u: float
    evals: int


def _answer(job: JobView, after: float, before: float, usual: Usual) -> _Answer | None:
    """What the job says to the gap. None: too little is known of it before."""
    past = [r.score for r in job.readings if r.at <= after]
    scale = _scale(past, job.noise or usual.get(job.metric)) if len(past) >= BEFORE else None
    if scale is None:
        return None
    low = [r.score for r in job.readings if r.at >= before][:AFTER]
    if not low:
        return _Answer(0.0, 0)
    # The mean of m evals after the gap lies (3 + m) / 4 times as far down a slope as the first one does.
    count = len(low)
    drift = max(0.0, median(_differences(past)[-3:] or [0.0]))
    down = _middle(*past[-BEFORE:]) - drift * (3 + count) / 4.0 - sum(low) / count
    spread = scale * math.sqrt(1.0 / count + _MEDIAN)
    if spread > 0.0:
        return _Answer(down / spread, count)
    return _Answer(math.inf if down > 0.0 else 0.0, count)


def _scale(past: Sequence[float], noise: FleetNoise | None) -> float | None:
    """Standard deviation of one eval, by what came before the gap; None: too little is known.

    What the run shows of its noise over all its evals counts only where there are too few before: the fall
    itself is in it.
    """
    falls = _differences(past)
    if len(falls) < _DIFFERENCES:
        return noise.sigma if noise is not None else None
    seen = _FROM_MEAN * _mean([abs(d) for d in falls]) / math.sqrt(1.0 + _MEDIAN)
    second = [abs(a - 2.0 * b + c) for a, b, c in zip(past, past[1:], past[2:], strict=False)]
    return max(seen, _FROM_MEAN * _mean(second) / math.sqrt(6.0))


def _middle(a: float, b: float, c: float) -> float:
    return max(min(a, b), min(max(a, b), c))


def _differences(scores: Sequence[float]) -> list[float]:
    """How far each eval lies below the median of the three before it."""
    return [_middle(*scores[i - BEFORE : i]) - scores[i] for i in range(BEFORE, len(scores))]


def _mean(sizes: Sequence[float]) -> float:
    """Their mean, without what earlier jumps make of it."""
    most = _CAP * median(sizes)
    return sum(min(size, most) for size in sizes) / len(sizes)
