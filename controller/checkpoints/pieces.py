"""The pieces of a checkpoint, recorded beside it: ``<folder>.pieces.json`` beside a pin or a retained copy.

They are written by who reads it whole for its digest. A copy compares each piece with them and need not read
its source twice; where they are not there, or do not fit, it does.
"""

from __future__ import annotations

from contextlib import suppress

from controller.checkpoints import digest as digests
from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished
from controller.checkpoints.plan import LIMIT, SUFFIX, Plan
from controller.checkpoints.store import Store


def record(store: Store, folder: str, manifest: Manifest) -> None:
    """Write the pieces beside a published folder; not for a small one, which is soon read again.

    Without them a copy only reads its source once more, so what goes wrong here is nobody's failure.
    """
    plan = Plan(manifest, digests.PIECE)
    if plan.size <= digests.PIECE:
        return
    with suppress(AccessError, Vanished, Damaged):
        store.write(folder + SUFFIX, plan.to_json().encode())


def recorded(store: Store, folder: str, digest: str) -> Plan | None:
    """Return the pieces that lie beside a folder, if they are those of the tree with that digest."""
    try:
        plan = Plan.parse(store.read(folder + SUFFIX, LIMIT))
    except AccessError as error:
        if error.reason is Reason.INTERRUPTED:
            raise
        return None
    except (Vanished, Damaged, ValueError):
        return None
    return plan if plan.digest == digest else None
