"""Access Jobs as they are asked for: recorded first, under a number of their own, then started."""

from __future__ import annotations

from controller.policy.draft import Draft
from controller.policy.jobs import InFlight, Operation, StartAccess

UNPINNED_MOST = 64  # steps that are remembered as to be let go; what is beyond stays where it lies


def begin(
    draft: Draft, operation: Operation, best_step: int, tries: int = 0, not_before: float = 0.0
) -> InFlight:
    """Record the next access Job to wait for, under a serial number of its own."""
    give_up_pin(draft)
    serial = draft.record.access_serial + 1
    release = _no_longer_kept(draft) if operation in (Operation.SECURE, Operation.PIN) else ()
    waited = InFlight(operation, best_step, serial, tries, not_before, release)
    draft.update(access=waited, access_serial=serial)
    return waited


def start(draft: Draft, waited: InFlight, request: StartAccess) -> None:
    """Start the Job unless it is there already or its time has not come. Starting twice does no harm."""
    if any(a.request_id == waited.request_id for a in draft.observed.access):
        return
    if waited.not_before > draft.now:
        draft.wake_in(waited.not_before - draft.now)
        return
    draft.act(request)


def running(draft: Draft, waited: InFlight) -> bool:
    """Whether the Job that the record waits for is there and has not ended."""
    return any(a.request_id == waited.request_id and not a.finished for a in draft.observed.access)


def give_up_pin(draft: Draft) -> None:
    """The pin that is asked for now, if it is one, is asked for no longer: its Job may have made it all the
    same, so it counts as one to be let go, unless it is asked for again."""
    waited = draft.record.access
    if waited is not None and waited.operation is Operation.PIN:
        others = tuple(s for s in draft.record.unpinned if s != waited.best_step)
        draft.update(access=None, unpinned=(*others, waited.best_step)[-UNPINNED_MOST:])


def let_go(draft: Draft, waited: InFlight) -> None:
    """A Job has ended well: the pins that it was to let go are gone."""
    draft.update(unpinned=tuple(s for s in draft.record.unpinned if s not in waited.release))


def _no_longer_kept(draft: Draft) -> tuple[int, ...]:
    """Steps whose pins may go: the user has taken them back, and they are not kept for another reason."""
    record = draft.record
    older = record.scale.kept if record.scale is not None else None
    needed = {kept.step for kept in (record.secured, older, record.restored) if kept is not None}
    return tuple(s for s in record.unpinned if s not in needed and s not in draft.desired.pins)
