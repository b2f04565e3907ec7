"""A run that is started again: from where it was to go on, and that its new process begins lower.

A trainer that does not look for its checkpoint begins at step 0, whatever it is asked for. Its page tells: it
trains, or has evals, well below that step, and names no start, or the one that was asked for. A process that
names an earlier one is believed: its best may be gone. Work that a preemption did not lose, and that is to be
done again all the same, is counted as lost once the new process tells.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job import lives
from controller.policy.job.context import PlanContext
from controller.policy.job.evals import apart, is_eval
from controller.policy.job.record import GoesOn, JobRecord
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt

WORK_LOST = "WorkLost"  # an Event


def note_stop(context: PlanContext) -> None:
    """Note the newest checkpoint of a run that is suspended for a stop, as its page says it."""
    scrape, workload = context.observed.scrape, context.observed.workload
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK or not scrape.checkpoint_step:
        return
    if workload is not None and not workload.suspended:
        context.update(goes_on=GoesOn(scrape.checkpoint_step, context.record.attempt, scrape.step or 0))


def note_preempted(context: PlanContext, kept: int) -> None:
    """Note the newest checkpoint of a run that is suspended for another. ``kept``: its step; 0: none is
    known."""
    record, scrape = context.record, context.observed.scrape
    if record.admission is None or record.admission.running_since is None:
        return  # it has not run: the one before still holds
    reached = scrape.step if scrape is not None and scrape.step else 0
    context.update(goes_on=GoesOn(kept, record.attempt, reached, preempted=True) if kept else None)


def from_named(record: JobRecord, step: int) -> JobRecord:
    """Return the record once its next process is to go on from a checkpoint that was put back for it."""
    goes = record.goes_on
    return record if goes is None else replace(record, goes_on=replace(goes, step=step, preempted=False))


def begins_at(record: JobRecord) -> int | None:
    """Return the step that the present attempt was to go on from; None: it is not known, or is the start."""
    if record.admission is None:
        return None
    number, goes = record.admission.number, record.goes_on
    if record.run.attempt == number and record.run.resume_step:
        return record.run.resume_step
    return goes.step if goes is not None and goes.attempt < number else None


def look(context: PlanContext, scrape: ScrapeView, before: Attempt | None) -> None:
    """Say in condition Resumed, while it is so, that the newest process trains below where it was to go on.

    Args:
        context: of the pass; its record knows the page's process.
        scrape: a page that may be read (`lives.refusal`).
        before: the newest process until this page.
    """
    record, known = context.record, context.conditions.get(c.RESUMED)
    if not record.lives or lives.speaking(scrape) != record.lives[-1].attempt:
        return
    life = record.lives[-1].attempt
    told = known is not None and known.reason == c.BEGAN_AT_THE_START
    if told and life != before:
        context.conditions.drop(c.RESUMED)  # it was of another process
        told = False
    step = begins_at(record)
    if step is None or record.admission is None or life.number != record.admission.number:
        return
    evals = [p.step for p in scrape.points if p.attempt == life and is_eval(p) and p.step]
    steps = [scrape.step] if scrape.step else []  # 0: it has not begun to train
    shown = [*steps, *evals]
    if told:
        if max(shown, default=0) >= step:
            context.conditions.drop(c.RESUMED)  # it has come to where it was to begin
        return
    said, least = scrape.resumed_step, step - apart(record, step)
    if said is not None and said < step:
        _began_earlier(context, life, said, step, said < least)
    elif low := [*_below(steps, least, _reached(record)), *_below(evals, least, _evaluated(record))]:
        lost = _count(context, 0)
        message = f"attempt {life.number} was to go on from step {step} and trains at step {low[0]}"
        message += f": its trainer began at the start, as if it had not looked for its checkpoint{lost}"
        if max(shown) < step:
            context.conditions.set(c.RESUMED, False, c.BEGAN_AT_THE_START, message, warning=True)
        elif lost:  # it is read late, and has come to where it was to begin
            context.event(WORK_LOST, message, warning=True)
    elif max((said or 0, *shown)) >= step and record.goes_on is not None:
        context.update(goes_on=replace(record.goes_on, preempted=False))  # nothing more is lost


def _began_earlier(context: PlanContext, life: Attempt, said: int, step: int, well: bool) -> None:
    """Take in that a process says that it began at an earlier step. ``well``: by more than a count from 0."""
    known = context.conditions.get(c.RESUMED)
    message = f"attempt {life.number} was to go on from step {step}, and began at step {said}"
    if lost := _count(context, said):
        context.event(WORK_LOST, message + lost, warning=True)
    if well and known is not None and known.status and context.record.run.resume_step == step:
        context.conditions.set(c.RESUMED, True, known.reason, message)


def _count(context: PlanContext, began: int) -> str:
    """Count what a preempted run has to do again, once; return it in words, "": of no preemption.

    It is the share of its steps up to the checkpoint, of all the work that was not lost yet. ``began``: the
    step of the new process's start.
    """
    record, goes = context.record, context.record.goes_on
    if goes is None or not goes.preempted:
        return ""
    share = max(0.0, 1.0 - began / goes.step)
    more = share * max(0.0, record.attained - record.lost)
    context.update(lost=record.lost + more, goes_on=replace(goes, preempted=False))
    return f"; {more:.0f} GPU-seconds more of work were lost" if more >= 0.5 else ""


def _below(steps: list[int], least: int, known: int) -> list[int]:
    """Return those of the steps that tell of a start below ``least``: none, if steps of their kind have never
    come so far, since those of an epoch, or of checkpoints, count something else. ``known``: the highest."""
    return [step for step in steps if step < least <= known]


def _reached(record: JobRecord) -> int:
    """Return the highest step that its trainer is known to have been at."""
    known = [record.progress.step] if record.progress is not None else []
    known += [record.goes_on.reached] if record.goes_on is not None else []
    return max(known, default=0)


def _evaluated(record: JobRecord) -> int:
    """Return the highest step that it is known to have evaluated."""
    return max((record.abandoned_step, *(p.step for p in record.evals)))
