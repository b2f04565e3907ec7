"""Shared drops: if many jobs' scores fall at the same moment, it is not the decline of any one run.

Another evaluator, a broken prompt set or a judge that answers differently lowers every score at once, and
every stop rule is right about what it sees. Only the pool sees that they fell together. So a run that asks to
be stopped after a sudden fall is compared with the others of its namespace: for the gap between two of its
evals in which it fell,

    u = (median of the three evals before - drift - mean of the one to three after) / scale

is formed for each run that has evals on both sides of the gap. The drift is by how much evals lay below the
three before them already: the median of the last three such differences, if it is a fall; or by how much
they fall over the last three before the gap, or go on to fall after it, where that is beyond their noise,
if it is more. The scale is the standard deviation of the difference, as its sizes before the gap show it or
as the noise makes it, whichever is larger. So a steady decline is no sudden fall, however steep, and
over-optimising runs that turn down together, as seeds of one recipe do, and decline side by side, are
stopped as they should be.

The fall is shared when as large a share of the runs as the pool's limit says fell, `FEW` at least, each by so
much that as many others would do it by luck once in a thousand times (`_least`): by 2.4 if three must fall of
five, by `SMALLEST` if ten of twenty. Nobody is stopped for it then; each run's memory begins anew behind it
(`comparable`), and a run that declines by itself among them is found again by what comes after.

While fewer than that share of the runs have had an eval since, or as many may have fallen (u of `LIKELY`) but
have not had `AFTER` evals yet, the answer is not known, and the stop waits: the first run that is evaluated
under the new evaluator must not be its victim. It waits for the time that the pool's limit says, and where
the others' evals are rarer than that, for as long as the ones that are missing usually take (`_patience`).

**Other namespaces** report what they like, together if they like. Where the pool's scope lets them count
(`FleetScope.POOL`) and a run's own namespace has too few runs to tell, each of them has one vote, the middle
one of its runs, from `VOTES` on (`elsewhere`). If they fell too, or may yet, the stop waits once, for the
time that the pool's limit says, and is then carried out; nobody begins anew for what others report.

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
from statistics import NormalDist, median, median_low
from typing import NamedTuple

from controller.policy.fleet.tables import fair
from controller.policy.types import FleetNoise, JobView, MetricNoise, ScoredBy, SharedFall

SMALLEST = 1.8  # u below which nothing is sudden: what smooth curves come to that turn together
LUCK = 1e-3  # chance that the others fall with the one that asks, without a cause
MOST = 64  # runs that are asked
GAPS = 4  # of the run that asks, the sharpest ones
FEW = 3  # runs that must fall together, the one that asks among them
BEFORE = 3  # evals that make the level before the gap
AFTER = 3  # evals that make the level after it, at most
GOES_ON = 2.0  # standard deviations by which evals must differ to be a fall that goes on
LIKELY = 1.0  # u of a run that may have fallen; more evals will tell
FALLS_KEPT = 8  # of a namespace
ALL_KEPT = 128  # of all namespaces
VOTES = 3  # other namespaces that must be able to tell
VOTERS = 16  # runs that a namespace's vote is made of

_FROM_MEAN = math.sqrt(math.pi / 2.0)  # standard deviation of Gaussian noise from its mean size
_CAP = 4.0  # times the median size that one difference may count
_DIFFERENCES = 4  # before the gap, from which their usual size can be told
_MEDIAN = 0.45  # variance of the median of three evals, in that of one


class Asked(NamedTuple):
    """Answer that the other jobs' scores give about a drop.

    With neither ``fall`` nor ``wait_until`` the run's drop, if there is one, is its own.

    Attributes:
        fall: the drop that they share.
        wait_until: too few have had an eval yet; when to decide without them (s).
        message: what ``wait_until`` waits for.
        evals: for how many evals of each of the others it waits.
    """

    fall: SharedFall | None = None
    wait_until: float | None = None
    message: str = ""
    evals: int = 0


NOBODY = Asked()
Usual = Mapping[ScoredBy, FleetNoise]
Gap = tuple[float, float, float]  # u of the run that asks, its last eval before, its first one after


class _Answer(NamedTuple):
    """The drop u of a job in a gap (standard deviations), and how many evals after the gap it is from."""

    u: float
    evals: int


class _Poll(NamedTuple):
    """Count of a group's jobs that fell in a gap.

    Attributes:
        shared: enough of it fell.
        evals: else, of how many evals of each it is to be asked again; 0: it is known that they did not fall
            together.
    """

    shared: bool
    evals: int
    fell: int  # by enough
    likely: int  # or by less
    answered: int  # have had an eval since
    of: int  # can tell at all


def ask(
    job: JobView, jobs: Sequence[JobView], noise: Sequence[MetricNoise], percent: int, wait: float, now: float
) -> Asked:
    """Return whether the sudden fall of a run that asks to be stopped, if it had one, is shared by the
    others.

    ``jobs``: its namespace's running jobs, that one among them. ``percent``: the share from which it is
    shared. ``wait``: s that it waits for the others' evals, at least, from its first low one. Those of the
    same metric and evaluator are asked; where they are too few, all.
    """
    usual = _usual(noise)
    like, all_ = _some([j for j in jobs if j.scored_by == job.scored_by]), _some(jobs)
    waits = NOBODY
    for gap in _gaps(job, usual):
        _, after, before = gap
        found, group, who = _poll(like, gap, percent, usual), like, job.scored_by
        if found is None:
            found, group, who = _poll(all_, gap, percent, usual), all_, ScoredBy(job.namespace, "", "")
        if found is None:
            continue
        if found.shared:
            return Asked(SharedFall(*who, after, before, found.fell, found.answered))
        if found.evals:
            until = before + max(wait, _patience(job, group, found.evals))
            if until > max(now, waits.wait_until or 0.0):
                waits = Asked(None, until, _why(found, "jobs that may share the cause"), found.evals)
    return waits


def elsewhere(
    job: JobView,
    own: Sequence[JobView],
    others: Mapping[str, Sequence[JobView]],
    noise: Sequence[MetricNoise],
    percent: int,
) -> str:
    """Return why the stop of a run whose own namespace cannot tell should wait, by what others report; "": it
    should not.

    ``own``: its namespace's running jobs. ``others``: those of the other namespaces, by namespace; the ones
    that are scored as it is are asked. They have one vote each.
    """
    usual, scored = _usual(noise), job.scored_by[1:]
    alike = [
        [j for j in jobs if j.scored_by[1:] == scored and len(j.readings) >= BEFORE][:VOTERS]
        for _, jobs in sorted(others.items())
    ]
    if sum(map(bool, alike)) < VOTES:
        return ""
    like, all_ = _some([j for j in own if j.scored_by == job.scored_by]), _some(own)
    for gap in _gaps(job, usual):
        if _poll(like, gap, percent, usual) or _poll(all_, gap, percent, usual):
            continue  # its own namespace can tell
        votes = [vote for jobs in alike if (vote := _vote(jobs, gap, usual)) is not None]
        mine = _answer(job, *gap[1:], usual)
        assert mine is not None  # it has a gap there
        found = _counted([mine, *votes], gap[0], percent)
        if len(votes) < VOTES or found is None:
            continue
        if found.shared:
            return (
                f"it fell suddenly, and so did the runs of {found.fell} of {found.answered} namespaces, its "
                "own among them, at the same moment; it waits once for what the next evals say"
            )
        if found.evals:
            return _why(found, "namespaces whose runs may share the cause, its own among them,")
    return ""


def _vote(jobs: Sequence[JobView], gap: Gap, usual: Usual) -> _Answer | None:
    """Return the middle one of a namespace's answers; None: none of its runs can tell."""
    answers = [answer for j in jobs if (answer := _answer(j, *gap[1:], usual)) is not None]
    answered = [answer for answer in answers if answer.evals]
    if not answered:
        return _Answer(0.0, 0) if answers else None
    return _Answer(median(a.u for a in answered), median_low(a.evals for a in answered))


def _usual(noise: Sequence[MetricNoise]) -> Usual:
    return {entry.scored_by: entry.noise for entry in noise if entry.noise.freedom > 0.0}


def _why(found: _Poll, whom: str) -> str:
    return (
        f"it fell suddenly, and of {found.of} {whom} only {found.answered} have had an eval since, "
        f"{found.likely} of which fell; the others, and more evals, are waited for"
    )


def _patience(job: JobView, group: Sequence[JobView], evals: int) -> float:
    """Return how long (s) the others take for so many evals, by the median of their median intervals, and
    half an interval more; 0: nobody knows."""
    usual = []
    for other in group:
        times = sorted({r.at for r in other.readings})
        if other.key != job.key and len(times) > 1:
            usual.append(median(b - a for a, b in pairwise(times)))
    return (evals + 0.5) * median(usual) if usual else 0.0


def _some(jobs: Sequence[JobView]) -> Sequence[JobView]:
    """Return those with evals; of very many, `MOST` spread over all of them, which tell as much."""
    able = [j for j in jobs if len(j.readings) >= BEFORE]
    return able[:: -(-len(able) // MOST)] if len(able) > MOST else able


def mixes(job: JobView, falls: Sequence[SharedFall]) -> SharedFall | None:
    """Return the shared fall on both sides of which the job still has evals: its verdict mixes two scales."""
    for fall in reversed(falls):
        if not fall.concerns(job.scored_by) or not job.readings:
            continue
        if not fall.counts(job.readings[0].at) and fall.counts(job.readings[-1].at):
            return fall
    return None


def remember(known: Sequence[SharedFall], found: SharedFall) -> tuple[SharedFall, ...]:
    """With a newly found fall: the newest of each namespace's metrics, newest last; bounded by `fair`."""
    others = [f for f in known if f[:3] != found[:3]]
    newest = sorted((*others, found), key=lambda f: (f.before, f.metric, f.namespace, f.evaluator))[::-1]
    own = [f for f in newest if f.namespace == found.namespace][:FALLS_KEPT]
    kept = [f for f in newest if f.namespace != found.namespace or f in own]
    return tuple(fair(kept, lambda f: f.namespace, ALL_KEPT))[::-1]


def _poll(group: Sequence[JobView], gap: Gap, percent: int, usual: Usual) -> _Poll | None:
    """Return what a group says to a gap; None: too few of it can tell."""
    answers = [answer for j in group if (answer := _answer(j, *gap[1:], usual)) is not None]
    return _counted(answers, gap[0], percent)


def _counted(answers: Sequence[_Answer], fell: float, percent: int) -> _Poll | None:
    """Return what these answers come to, that of the run that asks among them; None: they are too few."""
    if len(answers) < FEW:
        return None
    answered = [answer for answer in answers if answer.evals]
    needed = max(FEW, -(-percent * len(answered) // 100))
    least = _least(len(answered), needed)
    low = sum(1 for answer in answered if answer.u >= least)
    likely = sum(1 for a in answered if a.u >= LIKELY)
    enough = len(answered) >= FEW and 100 * len(answered) >= percent * len(answers)
    poll = _Poll(False, 0, low, likely, len(answered), len(answers))
    if enough and fell >= least and low >= needed:
        return poll._replace(shared=True)
    # May it still be shared, by what the others have yet to say?
    needed = max(FEW, -(-percent * len(answers) // 100))
    open_ = [a for a in answers if not a.evals or (a.evals < AFTER and a.u >= LIKELY)]
    sure = sum(1 for a in answers if a.evals == AFTER and a.u >= least)
    if (enough and likely < needed) or len(open_) + sure < needed:
        return poll
    return poll._replace(evals=AFTER if enough else 1)


@cache
def _least(runs: int, needed: int) -> float:
    """Return u by which ``needed`` of ``runs`` must fall so that it is luck with probability `LUCK`.

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


def _gaps(job: JobView, usual: Usual) -> list[Gap]:
    """(u, last eval before, first eval after) of the falls that its newest evals show, sharpest first."""
    times = sorted({r.at for r in job.readings})
    answers = ((_answer(job, *gap, usual), gap) for gap in pairwise(times))
    found = ((answer.u, *gap) for answer, gap in answers if answer is not None and answer.u >= LIKELY)
    return sorted(found, reverse=True)[:GAPS]


def _answer(job: JobView, after: float, before: float, usual: Usual) -> _Answer | None:
    """Return what the job says to the gap. None: too little is known of it before."""
    past = [r.score for r in job.readings if r.at <= after]
    scale = _scale(past, job.noise or usual.get(job.scored_by)) if len(past) >= BEFORE else None
    if scale is None:
        return None
    low = [r.score for r in job.readings if r.at >= before][:AFTER]
    if not low:
        return _Answer(0.0, 0)
    # The mean of m evals after the gap lies (3 + m) / 4 times as far down a slope as the first one does.
    count = len(low)
    drift = max(0.0, median(_differences(past)[-3:] or [0.0]))
    noise = _roughness(past) if len(past) >= BEFORE + _DIFFERENCES else scale
    drift = max(drift, _goes_on(past[-BEFORE:], noise), _goes_on(low, noise))
    down = _middle(*past[-BEFORE:]) - drift * (3 + count) / 4.0 - sum(low) / count
    spread = scale * math.sqrt(1.0 / count + _MEDIAN)
    if spread > 0.0:
        return _Answer(down / spread, count)
    return _Answer(math.inf if down > 0.0 else 0.0, count)


def _goes_on(scores: Sequence[float], noise: float) -> float:
    """Return by how much evals lie below the median of the three before them if they go on to fall as these
    do, which is two steps of theirs; 0: by noise they may not fall.

    Another evaluator scores lower once, and before and after it as evenly as ever.
    """
    fell = scores[0] - scores[-1]
    return 2.0 * fell / (len(scores) - 1) if fell > GOES_ON * math.sqrt(2.0) * noise else 0.0


def _scale(past: Sequence[float], noise: FleetNoise | None) -> float | None:
    """Return the standard deviation of one eval, from the evals before the gap; None: too little is known.

    What the run shows of its noise over all its evals counts only where there are too few before: the drop
    itself is in it.
    """
    falls = _differences(past)
    if len(falls) < _DIFFERENCES:
        return noise.sigma if noise is not None else None
    seen = _FROM_MEAN * _mean([abs(d) for d in falls]) / math.sqrt(1.0 + _MEDIAN)
    return max(seen, _roughness(past))


def _roughness(past: Sequence[float]) -> float:
    """Return the standard deviation of one eval by the second differences, in which no steady change is."""
    second = [abs(a - 2.0 * b + c) for a, b, c in zip(past, past[1:], past[2:], strict=False)]
    return _FROM_MEAN * _mean(second) / math.sqrt(6.0)


def _middle(a: float, b: float, c: float) -> float:
    return max(min(a, b), min(max(a, b), c))


def _differences(scores: Sequence[float]) -> list[float]:
    """Return how far each eval lies below the median of the three before it."""
    return [_middle(*scores[i - BEFORE : i]) - scores[i] for i in range(BEFORE, len(scores))]


def _mean(sizes: Sequence[float]) -> float:
    """Their mean, without what earlier jumps make of it."""
    most = _CAP * median(sizes)
    return sum(min(size, most) for size in sizes) / len(sizes)
