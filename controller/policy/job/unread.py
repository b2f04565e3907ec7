"""Condition MetricsAvailable of a run without GPUs: nobody reads its page, so it says nothing of the page.

That evals are being read, or that no pod has an address yet, is true of a run that trains. One that waits,
was stopped or has ended has no such condition. Only a run that came to its end without a single eval keeps
it: its mark (`marks`) is told by why none was read. Before its end is seen its pods are gone, and then the
condition says so; so what was known while one was there is kept beside it, until the end.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.record import JobRecord, Unread
from controller.policy.job.types import Desired, Plan, ScrapeOutcome
from controller.policy.types import Mode

_FAILED = frozenset({*ScrapeOutcome} - {ScrapeOutcome.OK})
NEVER_READ = "NeverRead"
END_UNSEEN = "EndUnseen"
UNSEEN_INTERVALS, UNSEEN_LEAST = 3.0, 30.0  # eval intervals, and s, without an eval before the end
UNSEEN_SHARE = 0.05  # of the run's steps
FEW_UNSEEN_SHARE = 0.5  # the same, where so few evals were read that nothing tells how often they come


def settled(made: Plan, desired: Desired, now: float) -> Plan:
    """Return the plan whose record says of the trainer's page only what is true of a run without GPUs."""
    record = made.record
    if record.admission is not None:
        return made
    conditions = c.Conditions(record.conditions, desired.generation, now)
    known = conditions.get(c.METRICS)
    if record.finished != "Complete" or record.evals_seen or desired.mode is Mode.OFF:
        conditions.drop(c.METRICS)
    elif record.unread is not None:
        message = record.unread.message.removesuffix(" yet")
        conditions.set(c.METRICS, False, record.unread.reason, message)
    elif known is None or known.reason == ScrapeOutcome.NO_PODS:
        message = "the run ended before its metrics page was read once"
        conditions.set(c.METRICS, False, NEVER_READ, message)
    after = conditions.result()
    if after == record.conditions and record.unread is None:
        return made
    return replace(made, record=replace(record, conditions=after, unread=None))


def end_unseen(record: JobRecord, ended: float) -> str:
    """Return in words that nothing of a run's last part was read, such as while no operator was there.

    "": it was, or that cannot be told. Evals were due for a while before the end, and their steps were made:
    a run that ends early of itself is read until then.

    Args:
        record: of a run that completed.
        ended: when that was seen (s).
    """
    progress = record.progress
    if not record.evals or not record.eval_times or progress is None:
        return ""
    newest, due = record.evals[-1].step, record.evals_due
    if len(set(record.eval_times)) == 1 or due is None or due.interval is None:
        # All were read at once, so how often they come is not known: the first one took so long, its
        # process' start included, and one before the first step says nothing of the next. So most of the
        # run's steps must be unseen.
        since = float(record.eval_times[-1])
        interval = since - record.lives[0].at if record.lives else None
        least = FEW_UNSEEN_SHARE * progress.total_steps
    else:
        since, interval = due.since, due.interval
        usual = median(abs(b.step - a.step) for a, b in pairwise(record.evals))
        least = max(1.5 * usual, UNSEEN_SHARE * progress.total_steps)
    quiet = ended - since
    if interval is None or quiet <= max(UNSEEN_LEAST, UNSEEN_INTERVALS * interval):
        return ""
    if progress.total_steps - max(newest, progress.step) <= least:
        return ""
    return (
        f"it ran to its end, and none of its evals after step {newest} of {progress.total_steps} was read, "
        f"for the last {quiet / 60.0:.0f} min: its best may be among them, and is not kept"
    )


def note(context: PlanContext) -> None:
    """Keep why no eval was read, once a page was asked for; that a page was read says more than that a later
    read failed."""
    record, scrape = context.record, context.observed.scrape
    if record.evals_seen:
        context.update(unread=None)
        return
    told = context.conditions.get(c.METRICS)
    if scrape is None or told is None or told.status or scrape.outcome is ScrapeOutcome.NO_PODS:
        return
    if scrape.outcome in _FAILED:
        was_read = record.unread is not None and record.unread.reason not in _FAILED
        if was_read or told.reason != scrape.outcome:  # else the condition is of the pods, not of the page
            return
    context.update(unread=Unread(told.reason, told.message))
