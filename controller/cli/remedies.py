"""Faults of a job that need a hand, and their remedies, as commands print them."""

from __future__ import annotations

from typing import Any

from controller.cli import formatting
from controller.cli.job_view import Reading
from controller.policy.job import Cure, Finding, Mark, cure_of, health

# States say the same as these marks.
_STATES = (Mark.REFUSED, Mark.FAILED)


def marks(job: Reading, now: float) -> tuple[Finding, ...]:
    """Return the marks of a job, the most urgent first. ``now``: s since the epoch."""
    return health(job.record, now)


def cure(job: Reading, reason: str, *, examining: bool = False) -> Cure:
    """Return what to do about a reason.

    Args:
        job: the job.
        reason: of a mark or a condition.
        examining: it is `evalstop doctor JOB` that says so: the command does not name itself.
    """
    lost = job.record.lost_bests
    if reason == "BestCheckpointLost" and lost and lost[-1] in job.record.changed_bests:
        reason = "DigestMismatch"  # it was not removed, but written into
    layout = job.record.layout_of(str((job.spec.get("checkpoints") or {}).get("layout") or ""))
    found = cure_of(reason, examining=examining)
    return found.filled(job.name, job.namespace, str(job.spec.get("pool", "")), layout)


def sentence(one: Finding, now: float) -> str:
    """Return a mark as a line: what, why, since when."""
    what = "" if one.mark in _STATES else f"{one.mark}, "
    return f"{what}{one.reason}: {one.message} (for {formatting.span(max(0.0, now - one.since))})"


def document(job: Reading, one: Finding) -> dict[str, Any]:
    """Return a mark as JSON."""
    return {
        "mark": str(one.mark),
        "reason": one.reason,
        "message": one.message,
        "since": formatting.moment(one.since),
        "warning": one.warning,
        "cure": cure_document(cure(job, one.code)),
    }


def cure_document(found: Cure) -> dict[str, str | None]:
    """Return a cure as JSON."""
    return {"text": found.text, "command": found.command or None, "patch": found.patch or None}


def as_step(found: Cure) -> tuple[str, str]:
    """Return a cure as a line that can be pasted, and what it does; without a command the words alone."""
    if found.command:
        return found.command, found.text
    return (f"{found.text}: {found.patch}" if found.patch else found.text), ""
