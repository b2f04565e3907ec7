"""e-BH over one namespace's jobs of one day; bounds the false discovery rate of stops.

Each job's rule yields an e-value e_j: evidence against "this run is not past its best", with mean at most 1
if that is so, at whatever time one looks (an e-process, of the joint history of all jobs). e-BH stops the r
largest with

    e_(r) >= J / (r alpha),   alpha = 1 - precision,

for the largest such r (Wang and Ramdas 2022, "False discovery rate control with e-values", JRSS B 84, section
4). The expected share of wrong ones among them is then at most alpha, under arbitrary dependence between
jobs.

**Looking again and again.** Each account is a daily budget: one namespace, one UTC day. Its jobs are those
that run at any time of that day. Evidence of a stopped job stays what it was when it was stopped. Then every
look is e-BH on the same jobs, and what it rejected once it rejects again: with r stopped at values of J / (r
alpha) and more, at least r are always rejected. So what has been stopped by any moment is the rejection of
one e-BH at that moment, on e-processes that were each stopped at a stopping time, which are e-values. The
bound holds for the stops of the day as a whole, and at every moment of it, with as many looks as one likes.
Running maxima of e-values, which Ville's inequality would allow for a single job, are not e-values and are
not used.

**What that rests on.** (1) J is at least the number of jobs that ran on that day. It is `precision_jobs`
(`StopLimits`) or what the operator counts, whichever is larger; if the count outgrows the setting during the
day, the bound is alpha * (jobs counted in the end) / (setting). (2) A run whose rule was reset (another
evaluator, a resume) has one chance of a wrong stop for each start: count each start as a job of the day. (3)
A stop held back by another limit does not count as a rejection, and is not remembered. (4) Stops that users
ask for are neither counted nor bounded. (5) The bound is on the mean over days: a single day may be worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.policy.stopping import RULES
from controller.policy.types import PolicySpec

DAY = 86400.0  # s


def day_start(now: float) -> float:
    """Return when the day (UTC) of ``now`` began, s."""
    return now - now % DAY


def rejection_count(evidence: Sequence[float], jobs: int, alpha: float, stopped: Sequence[float] = ()) -> int:
    """Return how many of the jobs with the largest evidence may be stopped, besides those that are stopped
    already.

    Args:
        evidence: e-values of the jobs that could be stopped now, in any order.
        jobs: J, at least as many as there are e-values in both lists.
        alpha: share of wrong stops that is allowed, above 0 and below 1.
        stopped: e-values, at their stop, of the jobs stopped in this account (one namespace, one UTC day).

    A NaN is no evidence.
    """
    tagged = [(e, 1) for e in stopped if e == e] + [(e, 0) for e in evidence if e == e]
    tagged.sort(reverse=True)  # of equal ones those already stopped come first
    jobs = max(jobs, len(stopped) + len(evidence))
    found = new = 0
    for rank, (e, before) in enumerate(tagged, start=1):
        new += not before
        if e * rank * alpha >= jobs:
            found = new
    return found


def evidence_threshold(jobs: int, alpha: float, rank: int) -> float:
    """Return the e-value that the ``rank``-th stop of an account needs."""
    return jobs / (rank * alpha)


def without_e_value(rules: Iterable[PolicySpec]) -> PolicySpec | None:
    """Return the first of these rules that yields no e-value, and so cannot be weighed; None: all do.

    Modifiers do not matter: they hold a stop back or grade it, and hand the e-value on as it is.
    """
    return next((r for r in rules if r.name in RULES and not RULES[r.name].yields_e_value), None)


def rules_with_e_values() -> tuple[str, ...]:
    """Return names of the rules that yield them."""
    return tuple(name for name, entry in RULES.items() if entry.yields_e_value)
