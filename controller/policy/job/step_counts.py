"""Evals and checkpoints that count their steps by different counters: iterations and optimizer updates.

A checkpoint is found by its eval's step. Where the two are counted differently, the checkpoint of an eval's
number is that of another moment of the run, mostly of its beginning, and lies there whole. So none is taken
for the best's then, and no rule stops the run.

Told by what a process' page showed whenever a new eval came: its step, the trainer's own, that of its newest
checkpoint. It is certain of checkpoints that run ahead of the trainer's own step, by which the evals go; of
evals that run ahead of the checkpoints though each brings another one; and of evals that stay behind in one
fixed ratio, and are of steps before the first save, or numbered one by one. An evaluator that is late stays
behind as well: it scores what was saved. Where an eval is of the newest checkpoint's very step, they agree.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from controller.policy.job import access_requests, lives
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.evals import restart
from controller.policy.job.record import JobRecord, Operation, StepCounts
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import ScrapeOutcome

STEPS_DISAGREE = "StepsDisagree"
LEAST = 3  # evals of checkpoints ahead of the trainer's step
ON_A_LINE = 4  # evals in one fixed ratio
KEPT = 5  # readings: the process' first, and its newest
AHEAD = 1.75  # steps of checkpoints to one of the trainer's: with a step told seldom it is 1.5 at most
APART = 2  # the fixed ratio of the two at least, or its inverse at most
UNKNOWN = -1

Reading = tuple[int, int, int]  # step of an eval, the trainer's own (UNKNOWN: not told), of the checkpoint


def note(context: PlanContext, use: RuleInUse, before: JobRecord) -> None:
    """Take into the record how the page's steps go together. ``before``: the record without the page."""
    record, scrape = context.record, context.observed.scrape
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK or scrape.checkpoint_step is None:
        return
    life = lives.newest(record)
    if not record.lives or lives.speaking(scrape) != life:
        return
    known, saved = record.step_counts, scrape.checkpoint_step
    counts = known if known is not None and known.attempt == life else None
    if counts is None:
        counts = StepCounts(life, disagree=known is not None and known.disagree)
        if all(p.attempt != life for p in before.evals):
            first = saved if _had_none(before, record) else None
            counts = replace(counts, first_saved=first)
            context.update(step_counts=counts)
    newest = record.evals[-1] if record.evals else None
    if newest is None or newest.attempt != life or newest in before.evals:
        return
    if newest.step == saved:
        _agree(context, use, counts)
        return
    step = scrape.step if scrape.step is not None else UNKNOWN
    counts = _with(counts, (newest.step, step, saved))
    disagree = _certain(record, counts) or (counts.disagree and not _go_together(readings(counts)))
    if counts.disagree and not disagree:
        _agree(context, use, counts)
        return
    context.update(step_counts=replace(counts, disagree=disagree))


def disagree(record: JobRecord) -> bool:
    """Return whether the run's checkpoints are certain to count by another counter than its evals."""
    return record.step_counts is not None and record.step_counts.disagree


def text(record: JobRecord) -> str:
    """Return that they do, with both numbers, for people."""
    told = readings(record.step_counts) if record.step_counts is not None else ()
    numbers = ""
    if told:
        step, own, saved = told[-1]
        of = f" of {record.progress.total_steps}" if record.progress is not None else ""
        progress = f"; progress {own}{of}" if own != UNKNOWN else ""
        numbers = f"evals count {step}, checkpoints {saved}{progress}: "
    return (
        f"{numbers}they are not counted alike, so a checkpoint with the number of the best eval is of "
        "another moment of the run; none is taken for the best's"
    )


def tell(context: PlanContext) -> None:
    """Say so in condition BestCheckpointSecured. What was pinned for an eval stands for it no longer."""
    record, waited = context.record, context.record.access
    pins = tuple(kept.path for kept in (record.secured, record.beside) if kept is not None)
    context.update(secured=None, beside=None)
    access_requests.release(context, *pins)
    if (
        waited is not None
        and waited.operation is Operation.SECURE
        and not access_requests.running(context, waited)
    ):
        access_requests.give_up(context)
    context.conditions.set(c.SECURED, False, STEPS_DISAGREE, text(record), warning=True)


def readings(counts: StepCounts) -> tuple[Reading, ...]:
    """Return what was read, the process' first and then its newest."""
    flat = counts.readings
    return tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


def _had_none(before: JobRecord, record: JobRecord) -> bool:
    """Return whether the newest process began afresh, and pages of it were read that named no checkpoint."""
    newest = record.lives[-1]
    if not before.lives or before.lives[-1].attempt != newest.attempt:
        return False
    return newest.resumed == 0 or (newest.resumed is None and len(record.lives) == 1)


def _with(counts: StepCounts, seen: Reading) -> StepCounts:
    told = (*readings(counts), seen)
    kept = told if len(told) <= KEPT else (told[0], *told[-KEPT + 1 :])
    return replace(counts, readings=tuple(number for reading in kept for number in reading))


def _agree(context: PlanContext, use: RuleInUse, counts: StepCounts) -> None:
    """They count alike: nothing is kept. What was read before it is of other steps, if they did not."""
    context.update(step_counts=None)
    if counts.disagree:
        context.record = restart(context.record, use)
        context.update(confirming=None)
        context.conditions.drop(c.SECURED)
        message = "evals and checkpoints count by the same counter now: the rule begins anew"
        context.event("BeganAnew", message, warning=True)


def _certain(record: JobRecord, counts: StepCounts) -> bool:
    told = readings(counts)
    return _runs_ahead(told) or _saves_stay_behind(told) or _evals_stay_behind(record, counts, told)


def _runs_ahead(told: tuple[Reading, ...]) -> bool:
    """Return whether checkpoints are ahead of the trainer's own step by more than evals lie apart, and ever
    further: a trainer saves at or before its step. Its step may be another counter's than both; then evals
    are ahead of it too."""
    if len(told) < LEAST or any(step > own for step, own, _ in told):
        return False
    if any(b[1] <= a[1] for a, b in pairwise(told)):
        return False
    (_, own, saved), (before, _, _), (step, own_now, saved_now) = told[0], told[-2], told[-1]
    further = saved_now - own_now > max(saved - own, step - before)
    return further and saved_now - saved >= AHEAD * (own_now - own)


def _saves_stay_behind(told: tuple[Reading, ...]) -> bool:
    """Return whether the evals go on in a fixed ratio, and are ahead of the checkpoints, though each brings
    another one: a save that is announced late does not fall behind ever further."""
    ratio = _ratio(told[-ON_A_LINE:])
    return ratio is not None and ratio[1] * APART <= ratio[0] and told[-1][0] > told[-1][2]


def _evals_stay_behind(record: JobRecord, counts: StepCounts, told: tuple[Reading, ...]) -> bool:
    """Return whether the checkpoints go on in a fixed ratio, and are ahead of the evals: of evals that are
    numbered one by one, or whose first is of no step that was saved."""
    if told[-1][0] > told[-1][2]:
        return False
    steps = [p.step for p in record.evals if p.attempt == counts.attempt]
    numbered = len(steps) >= ON_A_LINE and all(b - a == 1 for a, b in pairwise(steps))
    unsaved = counts.first_saved is not None and told[0][0] < counts.first_saved
    ratio = _ratio(told[-ON_A_LINE:] if numbered else told) if numbered or unsaved else None
    return ratio is not None and ratio[0] * APART <= ratio[1]


def _ratio(told: tuple[Reading, ...]) -> tuple[int, int] | None:
    """Return by how much evals and checkpoints go on, always in this very ratio; None: in none, or one of the
    two stands still."""
    between = [(b[0] - a[0], b[2] - a[2]) for a, b in pairwise(told)]
    if len(told) < ON_A_LINE or any(step <= 0 or saved <= 0 for step, saved in between):
        return None
    by, to = between[0]
    return (by, to) if all(saved * by == step * to for step, saved in between) else None


def _go_together(told: tuple[Reading, ...]) -> bool:
    """Return whether both went on by about as much, over as many readings as are kept."""
    steps, saved = told[-1][0] - told[0][0], told[-1][2] - told[0][2]
    return len(told) == KEPT and 2 * steps < 3 * saved < 4.5 * steps
