"""Changes that a key asks for: what follows from each, the command that does the same, the spec's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cli.change import Source, check_resumable, request_id, stopped_before
from controller.cli.failure import Failure
from controller.cli.job_view import Reading
from controller.frozen import dataclass
from controller.policy.job import SPARED_EVALS, stopped_soon

MODES = {
    "Enforce": "its rule may stop it: the best checkpoint is retained, the GPUs go to who waits",
    "Shadow": "what its rule would do is recorded, and nothing is touched",
    "Off": "it is not judged any more, and its best checkpoint is not secured",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """One change that is asked for.

    Attributes:
        title: what is asked, a question.
        follows: what comes of it, sentences.
        command: the command that does the same.
        spec: the fields to merge.
    """

    title: str
    follows: str
    command: str
    spec: Mapping[str, Any]


def stop(job: Reading) -> Wish | str:
    """Return the wish to stop a job, or why it cannot be."""
    if job.record.finished is not None:
        return f"{job.key} has ended ({job.record.finished})"
    if job.spec.get("runState") == "Stopped":
        return f"{job.key} {stopped_before(job)}"
    best = job.record.best
    kept = f"that of step {best.step}" if best is not None else "there is none yet"
    return Wish(
        f"Stop {job.key}?",
        f"Its best checkpoint is retained ({kept}), its pods end, its GPUs go to who waits. "
        "Resuming it later goes on from there.",
        f"evalstop stop {job.name}{job.flags()}",
        {"runState": "Stopped"},
    )


def resume(job: Reading) -> Wish | str:
    """Return the wish to have a stopped job go on from its best checkpoint, or why it cannot."""
    try:
        check_resumable(job, Source.BEST)
    except Failure as failure:
        return failure.message
    kept = job.record.retained[-1] if job.record.retained else job.record.secured
    step = f", step {kept.step}" if kept is not None else ""
    soon = (
        " Its rule stopped it soon after an earlier resume, and may again; `evalstop resume` with "
        f"--for-evals {SPARED_EVALS} keeps it from that."
        if stopped_soon(job.record)
        else ""
    )
    wish = {
        "id": request_id("top"),
        "from": "Best",
        "step": None,
        "forEvals": None,
    }
    return Wish(
        f"Resume {job.key}?",
        f"It goes on from its best kept checkpoint{step}. It waits in the queue for GPUs first.{soon}",
        f"evalstop resume {job.name}{job.flags()} --from best",
        {"runState": "Run", "resume": wish},
    )


def mode(job: Reading, to: str) -> Wish:
    """Return the wish to set how far the operator may go. ``to``: of `MODES`."""
    return Wish(
        f"Set {job.key} to {to}?",
        f"{to}: {MODES[to]}.",
        f"evalstop mode {job.name}{job.flags()} {to}",
        {"mode": to},
    )
