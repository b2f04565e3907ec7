"""Age of verdicts: one may no longer be about the run as it is now.

A stop rule says what it thinks when an eval comes in, and that verdict stands until the next one. It proposes
nothing while the run cannot be read, after evals have failed to come for a few of their intervals, and while
a process has begun of which it is not known where it went on: that verdict may be of a branch that was left.
Nor does it while the newest eval may be one in another unit. A guardrail's verdict stands for as long as two
of its own evals usually lie apart, twice over: safety evals are dear, and made more seldom than others.
"""

from __future__ import annotations

from statistics import median_high

from controller.policy.job import conditions as c
from controller.policy.job import score_unit
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Guard, JobRecord
from controller.policy.job.types import ScrapeView
from controller.policy.types import Attempt, Problem
from controller.policy.wording import OUT_OF_DATE

GUARD_LATE = 3  # evals of the Primary metric without one of the guardrail's: it is not late before
GUARD_INTERVALS = 2  # nor before as many times the steps that usually lie between two of its own


def problem(context: PlanContext, metric: str = "", *, decided: bool = False) -> Problem | None:
    """Return why the standing verdict proposes nothing now; None: it may.

    Called once the newest scrape is taken in (condition MetricsAvailable is of this pass).

    Args:
        context: of this pass.
        metric: of the guardrail that the verdict is on; "": the Primary metric.
        decided: a stop was granted on it while it was new. It may take as long as its checkpoint's copy, and
            no eval of the guardrail in that time is no news: only one that says otherwise is.
    """
    record, scrape = context.record, context.observed.scrape
    if scrape is None:
        return Problem("MetricsNotRead", "its metrics were not read since the operator began")
    read = context.conditions.get(c.METRICS)
    if read is None or not read.status:
        why = "" if read is None else f" ({read.reason}: {read.message})"
        reason = "VerdictOutdated" if read is not None and read.reason == "NoNewEvals" else "MetricsNotRead"
        message = f"the verdict may be out of date, for its metrics bring no evals now{why}"
        return Problem(reason, message)
    newest = record.lives[-1] if record.lives else None
    if newest is None or not record.evals:
        return None
    if record.admission is not None and newest.attempt.number != record.admission.number:
        return Problem("NewLife", _nothing_of(record.admission.number, newest.attempt, scrape))
    if newest.resumed is None and record.evals[-1].attempt != newest.attempt:
        return Problem(
            "NewLife",
            f"process {newest.attempt} has not said at which step it went on, nor has an eval yet",
        )
    if not metric and score_unit.in_doubt(record.evals):
        step = record.evals[-1].step
        why = (
            f"the eval of step {step} is about a hundredth, or 100 times, of those before: its unit may have "
            "changed"
        )
        return Problem("UnitDoubtful", f"{why}; the next one will tell")
    guard = next((g for g in record.guards if metric and g.metric == metric), None)
    return _guard_problem(context, guard) if guard is not None and not decided else None


def _nothing_of(number: int, newest: Attempt, scrape: ScrapeView) -> str:
    """Return that no eval of an attempt was read; of a page that labels its evals with another, so."""
    if scrape.page is None and scrape.points and scrape.points[-1].attempt == newest:
        return (
            f"no eval of attempt {number} was read: those on the page are labelled attempt='{newest}', "
            f"expected '{number}-<life>', with the number of run.json"
        )
    return f"nothing was read of attempt {number} yet"


def is_overdue(guard: Guard, record: JobRecord) -> bool:
    """Return whether the Primary metric's evals went on without the guardrail's for longer than usual, in
    whichever process: it is told, and its verdict proposes nothing."""
    if _later(guard, record) < GUARD_LATE:
        return False
    return record.evals[-1].step - guard.step > GUARD_INTERVALS * _usual(guard)


def how_often(guard: Guard) -> str:
    """Return how often a guardrail is scored, as the end of a sentence; "": it is not known yet."""
    steps = _usual(guard)
    return f", and one of its own usually comes each {steps} steps" if steps else ""


def _guard_problem(context: PlanContext, guard: Guard) -> Problem | None:
    if not is_overdue(guard, context.record):
        return None
    later = _later(guard, context.record)
    why = f"{later} evals of {context.desired.metric!r} came after its newest, at step {guard.step}"
    return Problem("VerdictOutdated", f"guardrail {guard.metric!r} {OUT_OF_DATE}: {why}{how_often(guard)}")


def _later(guard: Guard, record: JobRecord) -> int:
    return sum(1 for point in record.evals if point.step > guard.step)


def _usual(guard: Guard) -> int:
    """Return how many steps usually lie between two of its evals; 0: two are not known yet. Of two numbers in
    the middle the larger: one that was scored once more in between is not late for that."""
    known = [steps for steps in guard.apart if isinstance(steps, int)]
    return median_high(known) if known else 0
