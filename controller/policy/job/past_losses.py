"""Losses of a run that is over: no fault any more, once nothing of it can be brought into safety.

Decided here: whether anything still can. As long as a copy is owed for its stop, or the pin of its best is
asked for, somebody may act, and it is mark Unsafe (`marks`). After that nothing deletes it, nobody waits for
it, and no cure ends it: it is told as a fact. Marks that stay for good hide the next one.
"""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job.record import Condition, JobRecord, Operation
from controller.policy.types import Mode

NOTHING_RETAINED = "NothingRetained"  # of BestCheckpointRetained: there is nothing to be copied
_SAVES = frozenset({Operation.SECURE, Operation.RETAIN, Operation.CHECK})
# What its user pins is not among them: it is tried for as long as the spec names it.
_OF_THE_RUN = frozenset({c.SECURED, c.RETAINED, c.CLAIMED})


def unsaved(record: JobRecord) -> tuple[Condition, ...]:
    """Return the conditions that say what a run did not bring into safety that is over; (): nothing, or it
    may still be."""
    if not _nothing_to_save(record):
        return ()
    return tuple(one for one in record.conditions if one.type in _OF_THE_RUN and not one.status)


def _nothing_to_save(record: JobRecord) -> bool:
    """Return whether a run is off its GPUs for good, and all that could be saved of it is."""
    decision, waited, retained = record.decision, record.access, record.condition(c.RETAINED)
    if record.admission is not None:
        return False
    stop = decision if decision is not None and decision.mode is Mode.ENFORCE else None
    if stop is not None and stop.deferred_at is not None and stop.retained_at is None:
        # Its copy was put off until it is suspended (`retention.follows`).
        none = retained is not None and not retained.status and retained.reason == NOTHING_RETAINED
        if not none or (waited is not None and waited.operation in _SAVES):
            return False
    if record.finished is not None:  # the best of a run that ended by itself is pinned still
        return waited is None or waited.operation is not Operation.SECURE
    return stop is not None and stop.pods_gone_at is not None


def losses(record: JobRecord) -> tuple[str, ...]:
    """Return what a run that is over did not bring into safety, a sentence each, beside its lost best
    (`lost_best`)."""
    from controller.policy.job.cures import CURES  # a command that is to be quick does without them

    told = {c.SECURED} if record.best_is_lost else set()
    found = (one for one in unsaved(record) if one.type not in told and one.reason in CURES)
    return tuple(f"{one.reason}: {one.message}" for one in found)
