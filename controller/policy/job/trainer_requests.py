"""Requests to a running trainer through ConfigMap `<name>-run`, and which step to score beside each eval.

The record says what is to be told before anything is written; the file is written while it says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job.context import PlanContext
from controller.policy.job.rule_in_use import best_of
from controller.policy.job.types import WriteRun
from controller.policy.types import Mode


def can_be_asked(context: PlanContext) -> bool:
    """Return whether the trainer says which requests it has served, and may be asked for anything."""
    scrape = context.observed.scrape
    return context.desired.mode is Mode.ENFORCE and scrape is not None and scrape.request_served is not None


def ask_for_eval(context: PlanContext) -> int:
    """Ask for a fresh eval, and for the checkpoint of its step: it may be the best, and nothing else would
    save that. What was asked for before and is not served stays asked for. Return the request's id.
    """
    run, scrape = context.record.run, context.observed.scrape
    served = scrape.request_served if scrape is not None else None
    if served is not None and served >= run.request_id:
        run = replace(run, stop=False)
    run = replace(run, request_id=run.request_id + 1, evaluate=True, checkpoint=True)
    context.update(run=run)
    return run.request_id


def name_reference(context: PlanContext, *, wanted: bool) -> None:
    """Name the step whose policy is to be scored on each eval's prompts: that of the checkpoint to be kept.

    ``wanted``: somebody looks at the differences; else none is named, for scoring it costs the trainer an
    eval. It changes when a new best is secured (Shadow keeps none secured: when there is a new best).
    """
    run = context.record.run
    best = best_to_compare(context)
    step = None if not wanted else run.reference_step if best is None else best
    if step != run.reference_step:
        context.update(run=replace(run, reference_step=step))


def name_best(context: PlanContext) -> None:
    """Name the step of the best eval for the trainer to keep what each prompt scored in it.

    Only to trainers that compare their evals prompt by prompt, and only where it is not the eval with the
    best score, which they keep by themselves (`EvalPoint.prompt_pairs`).
    """
    record, run = context.record, context.record.run
    newest, best = record.evals[-1:], record.best
    top = best_of(context.desired.direction, record.evals)
    named = newest and newest[0].prompt_pairs and best is not None and top is not None
    step = best.step if named and best is not None and top is not None and top.step != best.step else None
    if step != run.best_step:
        metric = context.desired.metric if step is not None else ""
        context.update(run=replace(run, best_metric=metric, best_step=step))


def best_to_compare(context: PlanContext) -> int | None:
    """Return the step whose policy stands for the best eval and can be scored again; None: not in
    safety yet."""
    best, kept = context.record.best, context.record.secured
    if best is None or context.desired.mode is not Mode.ENFORCE:
        return None if best is None else best.step
    return kept.step if kept is not None and kept.stands_for(best) else None


def write_run_file(context: PlanContext) -> None:
    """Write the run file if it does not say what the record says. Writing it twice does no harm.

    A run file that asks for nothing, and says nothing that changed, is left as it is: where there is none,
    none is needed.
    """
    run, written = context.record.run, context.observed.run_written
    interval, minimize = context.desired.scrape_interval, context.desired.minimize
    if (run.scrape_interval, run.minimize) != (interval, minimize):
        run = replace(run, scrape_interval=interval, minimize=minimize)
        context.update(run=run)
    names_step = run.reference_step is not None or run.best_step is not None
    asks = names_step or context.record.confirming is not None
    outdated = written is not None and (
        written.reference_step is not None
        or written.best_step is not None
        or (written.scrape_interval, written.minimize) != (interval, minimize)
    )
    if written != run and (asks or outdated):
        context.act(WriteRun(run))
        context.wake_in(1.0)
