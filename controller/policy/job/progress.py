"""The record of a job's progress and training loss, for queue policies that use them.

Noted when an eval comes in, which is a write of the status anyway, and else only when a twentieth of the run
has passed: a step alone is no reason to write.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf, isclose, isfinite
from statistics import median

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.estimates import paced
from controller.policy.job.evals import is_eval
from controller.policy.job.record import QUIET_INTERVALS, QUIET_LEAST, EvalsDue, JobRecord, RunProgress
from controller.policy.job.service import attained
from controller.policy.job.types import ScrapeOutcome
from controller.policy.queueing.slaq import add_loss
from controller.policy.wording import STANDS_STILL

COARSE = 0.05  # share of the run


def total_steps(context: PlanContext) -> int | None:
    """Return how many steps the whole run has, as its trainer says or last said; None: it never did."""
    scrape, known = context.observed.scrape, context.record.progress
    if scrape is not None and scrape.outcome is ScrapeOutcome.OK and scrape.total_steps:
        return scrape.total_steps
    return known.total_steps if known is not None else None


def note(context: PlanContext, *, news: bool) -> None:
    """Take progress and loss of the newest scrape into the record. ``news``: an eval came with it."""
    record, scrape = context.record, context.observed.scrape
    if record.admission is None or record.admission.running_since is None:
        return
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK:
        return
    served = attained(context.desired, record, context.now)
    if scrape.step is not None and scrape.total_steps:
        seen, known = RunProgress(scrape.step, scrape.total_steps, served - record.lost), record.progress
        if known is None or seen.step < known.first_step or seen.worked < known.first_worked:
            seen = replace(seen, first_step=seen.step, first_worked=seen.worked)
        else:
            seen = replace(seen, first_step=known.first_step, first_worked=known.first_worked)
        if known is None or news or abs(seen.share - known.share) >= COARSE:
            context.update(progress=seen, expected=paced(record.expected, seen, context.desired))
    if news and scrape.loss is not None and isfinite(scrape.loss):
        context.update(loss_trend=add_loss(record.loss_trend, scrape.loss, served))


def put_back(record: JobRecord, step: int) -> JobRecord:
    """Return the record once the run is to go on from a checkpoint of an earlier step: it has come as far as
    that. Its pace stays what it was, by the work that led there; the rest is to be done once more."""
    known = record.progress
    if known is None or known.step <= step:
        return record
    first, made = min(known.first_step, step), known.step - known.first_step
    led = (known.worked - known.first_worked) * (step - first) / made if made > 0 else 0.0
    back = replace(known, step=step, first_step=first, first_worked=known.worked - led)
    return replace(record, progress=back)


STEPS_BEGAN_ANEW = "StepsBeganAnew"


def watch_evals(context: PlanContext, before: JobRecord) -> None:
    """Note since when the next usable eval is waited for, and how long one usually takes.

    Apart from `eval_times`, which end where a process resumes: a process that begins anew and brings nothing
    usable is missed all the same. Called on each page that shows the metric. ``before``: the record without
    what the page brought.
    """
    record, known = context.record, context.record.evals_due
    newest = record.evals[-1] if record.evals else None
    if newest is not None and newest not in before.evals:
        context.update(evals_due=EvalsDue(context.now, _usual(record) or _first_took(context, known)))
    elif known is None or known.since < _began(record):
        # The first page of a process: an eval is waited for from now on.
        context.update(evals_due=EvalsDue(context.now, known.interval if known is not None else None))


def without_evals(context: PlanContext) -> str:
    """Return in words that the page has brought no usable eval for a few eval intervals.

    Return "" if it has, or if none is due yet.
    """
    due = context.record.evals_due
    if due is None:
        return ""
    usual = due.interval
    quiet, most = context.now - due.since, max(QUIET_LEAST, QUIET_INTERVALS * (usual or QUIET_LEAST))
    at = _stands_still(context)
    if _pace_unknown(context.record):
        # How often they come is not known yet; how long a trainer may take, its owner says.
        most = max(context.desired.first_eval, QUIET_LEAST if at is not None else most, usual or 0.0)
    if quiet <= most:
        context.wake_in(most - quiet + 1.0)
        return ""
    if at is not None:
        return (
            f"no eval of {context.desired.metric!r} since that of step {at}, for {quiet / 60.0:.0f} min, and "
            f"the trainer {STANDS_STILL}"
        )
    message = f"no usable eval of {context.desired.metric!r} for {quiet / 60.0:.0f} min"
    if usual is not None:
        often = f"{usual:.0f} s" if usual < 120.0 else f"{usual / 60.0:.0f} min"
        message += f", though one takes {often}"
    return message + _unusable(context)


def _pace_unknown(record: JobRecord) -> bool:
    """Return whether the process that speaks has made an eval, and no second one tells how long one takes."""
    if not record.evals or not record.lives or record.evals[-1].attempt != record.lives[-1].attempt:
        return False
    return _usual(record) is None


def _stands_still(context: PlanContext) -> int | None:
    """Return the step at which a trainer stands since its only eval, as its page says; None: it has gone on,
    has ended, or does not say. A page that tells another step than the eval's may count something else."""
    record, scrape = context.record, context.observed.scrape
    if scrape is None or scrape.step is None or not _pace_unknown(record):
        return None
    if scrape.step != record.evals[-1].step or scrape.step >= (scrape.total_steps or inf):
        return None
    return scrape.step


def newest_are_not_finite(context: PlanContext) -> bool:
    """Return whether the page shows scores that are no numbers, after the newest one that is."""
    scrape, record = context.observed.scrape, context.record
    if scrape is None or not record.lives:
        return False
    mine = [p for p in scrape.points if p.attempt == record.lives[-1].attempt and p.samples != 0]
    newest = max(mine, key=lambda p: p.step, default=None)
    return newest is not None and not isfinite(newest.score)


def steps_began_anew(context: PlanContext) -> str:
    """Return in words that the process counts its steps from the start again, so that no eval of it is new;
    "": it does not.

    The client reports no step twice, so its page merely stands still. The trainer's own step tells: once as
    far as the evals, it is more than the distance of two of them below the newest. Other pages show a step
    that is known with another score.
    """
    scrape, record = context.observed.scrape, context.record
    if scrape is None or not record.evals or not record.lives:
        return ""
    newest = record.evals[-1]
    if newest.attempt != record.lives[-1].attempt:
        return ""  # another process may begin at any step
    known = {p.step: p.score for p in record.evals if p.attempt == newest.attempt}
    again = [
        p.step
        for p in scrape.points
        if p.attempt == newest.attempt
        and p.step in known
        and is_eval(p)
        and not _same(p.score, known[p.step])
    ]
    if not again and not _fell_behind(context, newest.step):
        return ""
    # Without the step itself: a status is written when it changes.
    what = f" (on its page with another score: step {', '.join(map(str, again[:5]))})" if again else ""
    return (
        f"the trainer's steps began anew: an eval of step {newest.step} was read, and by its page it is far "
        f"before that; evals up to step {newest.step} count for nothing{what}; count steps through the "
        "whole run"
    )


def _fell_behind(context: PlanContext, newest: int) -> bool:
    """Return whether the trainer's step has fallen below the newest eval's by more than two evals lie apart.

    A step that never came so far counts something else, as the step of an epoch.
    """
    scrape, record = context.observed.scrape, context.record
    if scrape is None or scrape.step is None:
        return False
    apart = newest - record.evals[-2].step if len(record.evals) > 1 else newest // 2
    told = context.conditions.get(c.METRICS)
    went_on = told is not None and told.reason == STEPS_BEGAN_ANEW
    came_so_far = record.progress is None or record.progress.step >= newest - apart
    return scrape.step < newest - max(1, apart) and (went_on or came_so_far)


def _same(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _usual(record: JobRecord) -> float | None:
    """Median seconds between the evals of this admission; None: there are no two of them. Those that came
    with one page tell nothing of it."""
    begun = record.admission.at if record.admission is not None else 0.0
    times = sorted({at for at in record.eval_times if at >= int(begun)})
    return float(median(b - a for a, b in pairwise(times))) if len(times) > 1 else None  # as it is stored


def _first_took(context: PlanContext, known: EvalsDue | None) -> float | None:
    """Return the interval before two evals have told it: the one known, else how long the first eval took."""
    if known is not None and known.interval is not None:
        return known.interval
    admission = context.record.admission
    since = admission.running_since if admission is not None else None
    return max(QUIET_LEAST, context.now - since) if since is not None else None


def _began(record: JobRecord) -> float:
    """Return when (s) the process that speaks now was first seen."""
    admitted = record.admission.at if record.admission is not None else 0.0
    return max(admitted, record.lives[-1].at if record.lives else 0.0)


def _unusable(context: PlanContext) -> str:
    """Return what the page shows instead, as far as its points tell."""
    points = context.observed.scrape.points if context.observed.scrape is not None else ()
    life = context.record.lives[-1].attempt if context.record.lives else None
    empty = sum(1 for p in points if p.attempt == life and p.samples == 0)
    foreign = sum(1 for p in points if p.attempt != life)
    infinite = sum(1 for p in points if p.attempt == life and p.samples != 0 and not isfinite(p.score))
    counts = ((empty, "of no samples"), (infinite, "not a number"), (foreign, "of another process"))
    shown = ", ".join(f"{count} {what}" for count, what in counts if count)
    return f"; on the page: {shown}" if shown else ""
