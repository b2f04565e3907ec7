"""Service of a job: how much it has had (GPU-seconds), and how much it is expected to need."""

from __future__ import annotations

from controller.policy.job.estimates import Correction, by_word
from controller.policy.job.record import JobRecord
from controller.policy.job.residency import charged
from controller.policy.job.types import Desired


def attained(desired: Desired, record: JobRecord, now: float) -> float:
    """Return GPU-seconds of service up to ``now`` (s): of its own GPUs, and what it was charged of worker
    groups."""
    return own(desired, record, now) + charged(record)


def own(desired: Desired, record: JobRecord, now: float) -> float:
    """Return GPU-seconds that its own GPUs have served it up to ``now`` (s), the present attempt's included:
    what the record's ``attained`` is when that attempt ends.

    An attempt counts from the moment all its members were ready: its gang, and its base actors, which are its
    own also while they are lent. Spare ones lower no rank.
    """
    admission = record.admission
    if admission is None or admission.running_since is None:
        return record.attained
    return record.attained + (now - admission.running_since) * desired.gpus


def remaining_seconds(desired: Desired, record: JobRecord, now: float) -> float | None:
    """Return seconds of running time left of what the user expects of the whole run; None: nothing is
    expected, or it is overdue (`estimates`).

    Work that was lost is to be done again. How far the namespace's word is to be trusted only its pool knows.
    """
    worked_for = seconds(desired, record, now)
    found = by_word(record, desired.expected_seconds, worked_for, desired.gpus, Correction())
    return None if found is None else found.left


def seconds(desired: Desired, record: JobRecord, now: float) -> float:
    """Return the running time (s) up to ``now`` whose work was not lost to a preemption; of a job without
    GPUs of its own that of its present attempt."""
    if desired.gpus:
        return max(0.0, own(desired, record, now) - record.lost) / desired.gpus
    admission = record.admission
    if desired.sharing is None or admission is None or admission.running_since is None:
        return 0.0
    return max(0.0, now - admission.running_since)
