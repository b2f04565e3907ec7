"""Common mode: did the others fall at the same moment? Then it is no run's own decline.

Another evaluator, a broken prompt set or a judge that answers differently lowers every score at once, and
every stop rule is right about what it sees. Only the pool sees that they fell together. So a run that asks to
be stopped after a sudden fall is compared with the others: for the gap between two of its evals in which it
fell,

    u = (median of the three evals before - drift - mean of the one or two after) / scale

is formed for each run that has evals on both sides of the gap. The drift is by how much evals lay below the
three before them already: the median of the last three such differences, if it is a fall. The scale is the
standard deviation of the difference, as its sizes before the gap show it or as the run's noise makes it,
whichever is larger. So a steady decline is no sudden fall, however steep, and over-optimising runs that
decline side by side are stopped as they should be.

When as large a share of the runs as the pool's limit says fell by `SUDDEN` or more, `FEW` at least, the fall
is shared. Nobody is stopped for it; each run's memory begins anew behind it (`comparable`), and a run that
declines by itself among them is found again by what comes after.

While fewer than that share of the runs have had an eval since, the answer is not known yet, and the stop
waits for them for a limited time: the first run that is evaluated under the new evaluator must not be its
victim.

What it cannot see: falls of less than about three standard deviations of an eval, which few runs show by
themselves; faults that creep in; pools with fewer than `FEW` runs that are far enough. A trainer that exports
its evaluator's version is safe from all of that, and from its first eval on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from controller.policy.types import FleetNoise, JobView, MetricNoise, SharedFall

SUDDEN = 2.0  # scales below the level before
FEW = 3  # runs that must fall together, the one that asks among them
BEFORE = 3  # evals that make the level before the gap
FALLS_KEPT = 8

_FROM_MEAN = math.sqrt(math.pi / 2.0)  # standard deviation of Gaussian noise from its mean size
_CAP = 4.0  # times the median size that one difference may count
_DIFFERENCES = 4  # before the gap, from which their usual size can be told
_NOISE = math.sqrt(
    1.0 + 0.45
)  # of the difference, in standard deviations of one eval: median of three has .45
_TWO = math.sqrt((0.5 + 0.45) / (1.0 + 0.45))  # the same with two evals after the gap, relative to one


class Asked(NamedTuple):
    """What the others say. ``fall``: it is shared. ``wait_until`` (s): too few have answered so far.

    Neither: the run's fall, if there is one, is its own. ``message`` says what ``wait_until`` waits for.
    """

    fall: SharedFall | None = None
    wait_until: float | None = None
    message: str = ""


NOBODY = Asked()


def ask(
    job: JobView, jobs: Sequence[JobView], noise: Sequence[MetricNoise], percent: int, wait: float, now: float
) -> Asked:
    """Whether the sudden fall of a run that asks to be stopped, if it had one, is shared by the others.

    ``jobs``: the pool's running jobs, that one among them. ``percent``: the share from which it is shared.
    ``wait``: s that it waits for the others' evals, from its first low one. Those of the same metric are
    asked; where they are too few, all.
    """
    usual = {entry.metric: entry.noise for entry in noise}
    like = [j for j in jobs if j.metric == job.metric]
    waits = NOBODY
    for after, before in _gaps(job, usual.get(job.metric)):
        for metric, group in ((job.metric, like), ("", jobs)):
            able = [j for j in group if _scale(j, after, usual) is not None]
            if len(able) >= FEW:
                found = _poll(metric, able, usual, after, before, percent)
                if found.fall is not None:
                    return found
                if found.wait_until is not None and now < found.wait_until + wait:
                    waits = found._replace(wait_until=found.wait_until + wait)
                break
    return waits


def mixes(job: JobView, falls: Sequence[SharedFall]) -> SharedFall | None:
    """The shared fall on both sides of which the job still has evals: its verdict mixes two scales."""
    for fall in reversed(falls):
        concerned = fall.metric in ("", job.metric)
        if concerned and job.readings and job.readings[0].at < fall.before <= job.readings[-1].at:
            return fall
    return None


def remember(known: Sequence[SharedFall], found: SharedFall) -> tuple[SharedFall, ...]:
    """With a newly found fall: the newest of each metric, `FALLS_KEPT` at most, newest last."""
    others = [f for f in known if f.metric != found.metric]
    return tuple(sorted((*others, found), key=lambda f: (f.before, f.metric))[-FALLS_KEPT:])


def _poll(
    metric: str,
    able: Sequence[JobView],
    usual: dict[str, FleetNoise],
    after: float,
    before: float,
    percent: int,
) -> Asked:
    """``wait_until`` is here since when the others are waited for."""
    falls = [u for j in able if (u := _fall(j, after, before, usual)) is not None]
    fell = sum(1 for u in falls if u >= SUDDEN)
    if fell >= FEW and 100 * fell >= percent * len(falls) and 100 * len(falls) >= percent * len(able):
        return Asked(SharedFall(metric, after, before, fell, len(falls)))
    enough = len(falls) >= FEW and 100 * len(falls) >= percent * len(able)
    most = fell + len(able) - len(falls)  # that may have fallen, by the answers that are open
    if enough or most < FEW or 100 * most < percent * len(able):
        return NOBODY
    why = (
        f"it fell suddenly, and of {len(able)} jobs that may share the cause only {len(falls)} have had an "
        f"eval since, {fell} of which fell; the others are waited for"
    )
    return Asked(None, before, why)


def _gaps(job: JobView, usual: FleetNoise | None) -> list[tuple[float, float]]:
    """(last eval before, first eval after) of each sudden fall that its newest evals show, sharpest first."""
    times = sorted({r.at for r in job.readings})
    known = {job.metric: usual} if usual is not None else {}
    sharp = [(_fall(job, *gap, known) or 0.0, gap) for gap in pairwise(times)]
    return [gap for u, gap in sorted(sharp, reverse=True) if u >= SUDDEN]


def _fall(job: JobView, after: float, before: float, usual: dict[str, FleetNoise]) -> float | None:
    """u of the job in the gap; None: it has no eval since, or too few before."""
    low = [r.score for r in job.readings if r.at >= before][:2]
    past = [r.score for r in job.readings if r.at <= after]
    scale = _scale(job, after, usual)
    if not low or scale is None:
        return None
    # The mean of two evals after the gap lies one and a quarter times as far down a slope as one does.
    lag, spread = (1.0, scale) if len(low) == 1 else (1.25, scale * _TWO)
    drift = max(0.0, median(_differences(past)[-3:] or [0.0]))
    down = median(past[-BEFORE:]) - lag * drift - sum(low) / len(low)
    if spread > 0.0:
        return down / spread
    return math.inf if down > 0.0 else 0.0


def _scale(job: JobView, after: float, usual: dict[str, FleetNoise]) -> float | None:
    """Standard deviation of the difference before the gap, in score units; None: too little is known."""
    past = [r.score for r in job.readings if r.at <= after]
    if len(past) < BEFORE:
        return None
    sizes = [abs(d) for d in _differences(past)]
    seen = _FROM_MEAN * _mean(sizes) if len(sizes) >= _DIFFERENCES else None
    noise = job.noise or usual.get(job.metric)
    made = noise.sigma * _NOISE if noise is not None else None
    known = [s for s in (seen, made) if s is not None]
    return max(known) if known else None


def _differences(scores: Sequence[float]) -> list[float]:
    """How far each eval lies below the median of the three before it."""
    return [median(scores[i - BEFORE : i]) - scores[i] for i in range(BEFORE, len(scores))]


def _mean(sizes: Sequence[float]) -> float:
    """Their mean, without what earlier jumps make of it."""
    most = _CAP * median(sizes)
    return sum(min(size, most) for size in sizes) / len(sizes)
