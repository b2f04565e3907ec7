"""A run that is started again: from where it was to go on, and that its new process begins lower.

A trainer that does not look for its checkpoint begins at step 0, whatever it is asked for. Its page tells: it
trains, or has evals, well below that step, and names no start, or the one that was asked for. A process that
names an earlier one is believed: its best may be gone. Work that a preemption did not lose, and that is to be
done again all the same, is counted as lost once the new process tells.

So of a process that begins within its attempt, as after the loss of its pod: it is to go on from the newest
checkpoint that the one before is known to have had, by its page, or by what is pinned or retained of it. That
is certain of a process whose first evals, or whose steps before them, are those of a run's very beginning:
one that goes on from a former checkpoint, and says nothing of it, begins later.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median_low

from controller.policy.job import conditions as c
from controller.policy.job import lives, step_counts
from controller.policy.job.context import PlanContext
from controller.policy.job.evals import apart, is_eval
from controller.policy.job.record import GoesOn, JobRecord, LifeRecord
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


def note_checkpoint(context: PlanContext, before: JobRecord) -> None:
    """Note which checkpoint the newest process has, by its page, with what is written anyway: a checkpoint
    alone is no reason to write. ``before``: the record without what the page brought."""
    record, scrape = context.record, context.observed.scrape
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK or not record.lives:
        return
    newest = record.lives[-1]
    if scrape.page is None or scrape.page.attempt != newest.attempt:
        return  # it may be anybody's
    if all(getattr(record, one) is getattr(before, one) for one in ("evals", "progress", "lives")):
        return
    saved = scrape.checkpoint_step or (scrape.resumed_step if newest.checkpoint is None else None)
    _noted(context, newest, saved, scrape.step or 0)


def _note_pins(context: PlanContext, former: Attempt) -> None:
    """Note what is pinned or retained of a process that another one has followed; it may be let go soon."""
    record = context.record
    kept = (record.secured, record.beside, *record.retained, *record.pinned)
    steps = [one.step for one in kept if one is not None and one.attempt == former]
    for life in record.lives:
        if life.attempt == former and steps:
            _noted(context, life, max(life.checkpoint or 0, *steps), 0)


def _noted(context: PlanContext, life: LifeRecord, checkpoint: int | None, reached: int) -> None:
    after = replace(
        life,
        checkpoint=life.checkpoint if checkpoint is None else checkpoint,
        reached=max(life.reached, reached),
    )
    if after != life:
        known = context.record.lives
        context.update(lives=tuple(after if one.attempt == life.attempt else one for one in known))


def look(context: PlanContext, scrape: ScrapeView, before: Attempt | None) -> None:
    """Say in condition Resumed, while it is so, that the newest process trains below where it was to go on.

    Args:
        context: of the pass; its record knows the page's process.
        scrape: a page that may be read (`lives.refusal`).
        before: the newest process until this page.
    """
    known = context.conditions.get(c.RESUMED)
    if not context.record.lives or lives.speaking(scrape) != context.record.lives[-1].attempt:
        return
    life = context.record.lives[-1].attempt
    told = known is not None and known.reason == c.BEGAN_AT_THE_START
    if before is not None and life != before:
        _note_pins(context, before)
        if told:
            context.conditions.drop(c.RESUMED)  # it was of another process
            told = False
    record = context.record
    if record.admission is None or life.number != record.admission.number:
        return
    asked, former = begins_at(record), _former(record)
    step = asked if former is None else former.checkpoint or None
    evals = [p.step for p in scrape.points if p.attempt == life and is_eval(p) and p.step]
    steps = [scrape.step] if scrape.step else []  # 0: it has not begun to train
    shown = [*steps, *evals]
    if told:
        if step is None or max(shown, default=0) >= step:
            context.conditions.drop(c.RESUMED)  # it has come to where it was to begin
        return
    said = scrape.resumed_step
    if asked is not None and said is not None and said < asked:
        _began_earlier(context, life, said, asked, said < asked - apart(record, asked))
    elif step is not None and (said is None or said >= step) and (low := _low(record, step, steps, evals)):
        lost = _count(context, 0)
        again = "" if former is None else " was started again,"
        message = f"attempt {life.number}{again} was to go on from step {step} and trains at step {low[0]}"
        message += f": its trainer began at the start, as if it had not looked for its checkpoint{lost}"
        if max(shown) < step:
            context.conditions.set(c.RESUMED, False, c.BEGAN_AT_THE_START, message, warning=True)
        elif lost:  # it is read late, and has come to where it was to begin
            context.event(WORK_LOST, message, warning=True)
    elif asked is not None and max((said or 0, *shown)) >= asked and record.goes_on is not None:
        context.update(goes_on=replace(record.goes_on, preempted=False))  # nothing more is lost


def began_afresh(record: JobRecord) -> tuple[str, float] | None:
    """Return that a run which its user resumed from its latest checkpoint says that it began at step 0, in
    words and since when (s), while it is below that checkpoint; None: it is not so.

    It is believed, for the checkpoints may be gone; but who asked for it expects it to go on.
    """
    resumed = next((one for one in record.conditions if one.type == c.RESUMED), None)
    if resumed is None or not resumed.status or not record.lives or record.run.resume_step:
        return None
    newest, goes = record.lives[-1], record.goes_on
    if goes is None or goes.attempt >= newest.attempt.number or newest.resumed != 0:
        return None
    if any(one.at > resumed.since for one in record.lives if one.attempt.number < newest.attempt.number):
        return None  # that resume was of an earlier attempt, and a preemption came after it
    own = [p.step for p in record.evals if p.attempt == newest.attempt]
    if goes.step <= apart(record, goes.step) or max(own, default=0) >= goes.step:
        return None
    message = (
        f"attempt {newest.attempt.number} was to go on from step {goes.step}, and its trainer says that it "
        "began at step 0: it found no checkpoint there"
    )
    return message, newest.at


def _former(record: JobRecord) -> LifeRecord | None:
    """Return the process before the newest one, within its attempt, of whose checkpoint something is known;
    None: there is none. One without a word of its own left what it found.

    Members of a gang stand side by side: the page of another one is no new beginning.
    """
    newest = record.lives[-1]
    if step_counts.disagree(record):
        return None
    for one in reversed(record.lives[:-1]):
        elsewhere = None not in (one.member, newest.member) and one.member != newest.member
        if one.attempt.number == newest.attempt.number and not elsewhere and one.checkpoint is not None:
            return one
    return None


def _low(record: JobRecord, step: int, steps: list[int], evals: list[int]) -> list[int]:
    """Return those of a page's steps that tell of a start at the start, where ``step`` was to be gone on
    from; none: it is not certain.

    Args:
        record: it knows the page's process, and none of the evals that the page shows first.
        step: of the checkpoint.
        steps: the trainer's own.
        evals: those of its process that the page shows.
    """
    least, former = step - apart(record, step), _former(record)
    reached = max(_reached(record), former.reached if former is not None else 0)
    low = [*_below(steps, least, reached), *_below(evals, least, _evaluated(record))]
    if former is None:
        return low
    asked = begins_at(record)
    if asked is not None and asked <= step and (sure := _below(low, asked - apart(record, asked), asked)):
        return sure  # the attempt itself was to go on from there
    if record.evals and record.evals[-1].attempt == record.lives[-1].attempt:
        return []  # its first evals are known, and were not those of a beginning
    return [n for n in low if n <= _first(record, step)]


def _first(record: JobRecord, step: int) -> int:
    """Return how far a run has come by its first eval at most, where they are as far apart as those known."""
    gaps = [b.step - a.step for a, b in pairwise(record.evals) if b.step > a.step]
    return median_low(gaps) if gaps else max(1, step // 10)


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
