"""EvalStop's own folder ``.evalstop`` in the checkpoint folder, removed by others: by rotation, mostly.

The claim of the checkpoint folder wrote there whose it is. Where a later access Job finds nobody's name, all
else is gone as well: the pins, the inventories and the save records. That Job writes name and inventory anew,
and what it pins is good until the folder is removed again. So the run goes on being kept safe as far as that
is possible, and its owner is told who has to be stopped.

Decided here: which pins on record are held to be there no more, and when that is told. The first time is not,
where the pin was made all the same: a trainer that clears its folder at its start does so once.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import access_requests, remedies
from controller.policy.job import conditions as c
from controller.policy.job.access_requests import RETRY_RARELY, retry_delay
from controller.policy.job.context import PlanContext
from controller.policy.job.record import InFlight, Operation
from controller.policy.job.types import AccessView
from controller.policy.types import Problem
from controller.policy.wording import FOLDER_GONE, counted

REASON = "EvalStopFolderGone"


def take_answer(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    """Note that an access Job found the folder gone, or there."""
    known = access_requests.claim_made(context.record)
    if known is None:
        return
    if not answered.folder_gone:
        told = context.conditions.get(c.CLAIMED)
        if answered.ok and told is not None and told.reason == REASON:
            context.conditions.set(c.CLAIMED, True, "Claimed", "the checkpoint folder is this RLHFJob's")
        return
    intact = waited.operation in (Operation.CHECK, Operation.RETAIN) and answered.ok
    # Not at once again: a folder that is removed all the time would be pinned to all the time.
    again = not known.gone or known.at + retry_delay(known.gone, RETRY_RARELY) <= context.now
    if again and not intact:
        _forget_pins(context, answered.path)
    if waited.operation is Operation.CLAIM:
        return
    times = known.gone + 1
    context.update(claim=replace(known, gone=times, at=context.now if again else known.at))
    if times > 1 or not answered.ok:
        often = f", {counted(times, 'time')} so far" if times > 1 else ""
        message = (
            f"the folder .evalstop in the checkpoint folder {FOLDER_GONE}{often}: what was pinned there is "
            "lost, and what is pinned now will be"
        )
        context.conditions.set(c.CLAIMED, False, REASON, remedies.of(Problem(REASON, message)), warning=True)


def _forget_pins(context: PlanContext, but: str) -> None:
    """Remove the pins from the record, except the one at ``but``, so that they are made again: one that is
    there after all is found and answered."""
    record = context.record
    secured, beside = record.secured, record.beside
    context.update(
        secured=secured if secured is not None and secured.path == but else None,
        beside=beside if beside is not None and beside.path == but else None,
        pinned=tuple(kept for kept in record.pinned if kept.path == but),
    )
    context.wake_in(0.0)
