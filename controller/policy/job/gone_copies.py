"""Retained copies that a resume found gone or changed: what it takes instead, and what is a fact no more.

The record remembers them (`JobRecord.retained_gone`) until one is put back after all. The pin of the same
eval has the same digest and lies where the run will read it, so every other try of a resume takes that.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.record import InFlight, JobRecord, Operation, ProtectedCheckpoint
from controller.policy.job.types import AccessView

GONE = frozenset({"CheckpointMissing", "CheckpointIncomplete", "DigestMismatch"})
NOT_PUT_BACK = "cannot be put back"  # in the message of such a condition: what keeps a best safe is no cure


def named(waited: InFlight, answered: AccessView) -> AccessView:
    """Return the answer to a request; if it is one to put a checkpoint back that is not there, it says so."""
    if waited.operation is not Operation.RESTORE or answered.reason not in GONE:
        return answered
    return replace(
        answered, message=f"the checkpoint of step {waited.step} {NOT_PUT_BACK}: {answered.message}"
    )


def found_gone(record: JobRecord) -> tuple[ProtectedCheckpoint, ...]:
    """Return the retained copies that a resume could not put back: they are not as recorded."""
    return tuple(one for one in record.retained if one.path in record.retained_gone)


def with_answer(record: JobRecord, waited: InFlight, answered: AccessView) -> JobRecord:
    """Return the record with what the answer to a request says of a retained copy: that it is there, gone, or
    made anew."""
    gone = record.retained_gone
    if answered.ok and waited.operation is Operation.RETAIN:
        there = {one.path for one in record.retained} - {answered.path}
        return replace(record, retained_gone=tuple(path for path in gone if path in there))
    copy = next((one for one in record.retained if _is_of(waited, one)), None)
    if waited.operation is not Operation.RESTORE or copy is None or takes_the_pin(record, copy):
        return record
    others = tuple(path for path in gone if path != copy.path)
    if answered.ok:
        return replace(record, retained_gone=others)
    return replace(record, retained_gone=(*others, copy.path)) if answered.reason in GONE else record


def takes_the_pin(record: JobRecord, copy: ProtectedCheckpoint) -> bool:
    """Return whether the next try of a resume looks for the step where the run saved it, and not at the copy:
    every other one does once the copy was found gone."""
    waited = _refused(record)
    return waited is not None and _is_of(waited, copy) and waited.tries % 2 == 1


def _is_of(waited: InFlight, copy: ProtectedCheckpoint) -> bool:
    return (copy.step, copy.attempt) == (waited.step, waited.attempt)


def _refused(record: JobRecord) -> InFlight | None:
    """Return the request to put a checkpoint back that has failed since it is not there, or another."""
    said, waited = record.condition(c.RESUMED), record.access
    if said is None or said.status or said.reason not in GONE or NOT_PUT_BACK not in said.message:
        return None
    return waited if waited is not None and waited.operation is Operation.RESTORE else None
