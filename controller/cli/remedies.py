"""Faults of a job that need a hand, and their remedies, as commands print them."""

from __future__ import annotations

from typing import Any

from controller.cli import formatting
from controller.cli.job_view import Reading
from controller.policy.job import TERMINATION, Cure, Finding, Mark, cure_of, health

# States say the same as these marks.
_STATES = (Mark.REFUSED, Mark.FAILED)
_WAITS = (Mark.UNFIT, Mark.HELD_UP)
_POOL_GONE = Cure(
    "make its GPUPool again: until then the run goes on, and no rule stops it; or stop it by evalstop stop, "
    "and name another pool then"
)
_FAMILY_GONE = Cure(
    "whoever runs the pool gives it that family back; or stop the run by evalstop stop (spec.sharing cannot "
    "change while it holds GPUs), name another family, and have it go on by evalstop resume",
    "kubectl edit gpupool {pool}",
)
_WENT_ON = Cure(
    "its folder held checkpoints of an earlier run: if its trainer went on from the last one and ended, name "
    "an empty folder in spec.checkpoints.location of a new RLHFJob; else have the trainer stay up until its "
    "last eval was read (docs/use/trainer-contract.md)"
)
_CAPPED = Cure(
    "its pool's modeCap allows Shadow only: whoever runs the pool may raise it", "kubectl edit gpupool {pool}"
)


def marks(job: Reading, now: float) -> tuple[Finding, ...]:
    """Return the marks of a job, the most urgent first. ``now``: s since the epoch."""
    return health(job.record, now)


def cure(job: Reading, reason: str, message: str = "", *, examining: bool = False) -> Cure:
    """Return what to do about a reason.

    Args:
        job: the job.
        reason: of a mark or a condition.
        message: with it, which may tell values; "": none.
        examining: it is `evalstop doctor JOB` that says so: the command does not name itself.
    """
    lost = job.record.lost_bests
    if reason == "BestCheckpointLost" and lost and lost[-1] in job.record.changed_bests:
        reason = "DigestMismatch"  # it was not removed, but written into
    found = cure_of(reason, examining=examining)
    target = job.condition(TERMINATION)
    if reason == "WouldStop" and job.mode != "Shadow" and target is not None and target.reason == "Shadow":
        found = _CAPPED
    claim = job.record.claim
    if reason == "NeverRead" and claim is not None and claim.newest_step:
        found = _WENT_ON
    if reason == "PoolNotFound" and job.record.admission is not None:
        found = _POOL_GONE
    if reason == "FamilyNotFound" and job.record.admission is not None:
        found = _FAMILY_GONE
    layout = job.record.layout_of(str((job.spec.get("checkpoints") or {}).get("layout") or ""))
    return found.filled(job.name, job.namespace, str(job.spec.get("pool", "")), layout, message)


def sentence(one: Finding, now: float) -> str:
    """Return a mark as a line: what, why, since when."""
    what = "" if one.mark in _STATES else f"{one.mark}, "
    # Of a job that waits it is since when it does: the reason may have come later.
    since = "it waits for" if one.mark in _WAITS else "for"
    return f"{what}{one.reason}: {one.message} ({since} {formatting.span(max(0.0, now - one.since))})"


def document(job: Reading, one: Finding) -> dict[str, Any]:
    """Return a mark as JSON."""
    return {
        "mark": str(one.mark),
        "reason": one.reason,
        "message": one.message,
        "since": formatting.moment(one.since),
        "warning": one.warning,
        "cure": cure_document(cure(job, one.code, one.message)),
    }


def cure_document(found: Cure) -> dict[str, str | None]:
    """Return a cure as JSON."""
    fields = {"text": found.text, "command": found.command, "patch": found.patch, "apply": found.apply}
    return {name: text or None for name, text in fields.items()} | {"text": found.text}


def as_steps(found: Cure) -> list[tuple[str, str]]:
    """Return a cure as lines that can be pasted, each with what it does; without a command its words."""
    if found.apply:
        look = [(found.command, "tells more")] if found.command else []
        return [*look, (found.apply, found.text)]
    return [(found.command, found.text) if found.command else (found.text, "")]
