"""What a running trainer is told through `<name>-run`: requests, and which step to score beside each eval.

The record says what is to be told before anything is written; the file is written while it says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.draft import Draft
from controller.policy.jobs import WriteRun
from controller.policy.types import Mode


def can_be_asked(draft: Draft) -> bool:
    """Whether the trainer says which requests it has served, and may be asked for anything."""
    scrape = draft.observed.scrape
    return draft.desired.mode is Mode.ENFORCE and scrape is not None and scrape.request_served is not None


def ask_for_eval(draft: Draft) -> int:
    """Ask for a fresh eval; the request's id. What was asked for before and is not served stays asked for."""
    run, scrape = draft.record.run, draft.observed.scrape
    served = scrape.request_served if scrape is not None else None
    if served is not None and served >= run.request_id:
        run = replace(run, checkpoint=False, stop=False)
    run = replace(run, request_id=run.request_id + 1, evaluate=True)
    draft.update(run=run)
    return run.request_id


def name_reference(draft: Draft, *, wanted: bool) -> None:
    """Name the step whose policy is to be scored on each eval's prompts: that of the checkpoint to be kept.

    ``wanted``: somebody looks at the differences. It changes when a new best is in safety (Shadow keeps none
    in safety: when there is a new best), and is named before the evals that it is compared in.
    """
    record = draft.record
    if not wanted or record.best is None:
        return
    step: int | None = record.best.step
    if draft.desired.mode is Mode.ENFORCE:
        kept = record.secured
        step = kept.step if kept is not None and kept.best_step == record.best.step else None
    if step is not None and step != record.run.reference_step:
        draft.update(run=replace(record.run, reference_step=step))


def tell(draft: Draft) -> None:
    """Write the run file if it does not say what the record says. Writing it twice does no harm."""
    if draft.observed.run_written != draft.record.run:
        draft.act(WriteRun(draft.record.run))
        draft.wake_in(1.0)
