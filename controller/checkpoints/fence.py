"""Fence among the workers of one RLHFJob: what a newer request answers, no older one takes away.

One request is under way at a time, but a worker may outlive its request: its Job was deleted while it did the
last of its work, or its node was thought dead. What it publishes does no harm, for that is never overwritten.
But it may still let a pin go that was pinned again since, clear the checkpoint that the run was resumed from,
or note today's files as what lay there yesterday.

So each worker notes the serial number of its request (``<location>/.evalstop/<uid>/newest.json``) before it
works, and looks at that note right before it removes or notes anything: a higher number ends it. Serial
numbers are recorded by the policy before a request is made; no clock is asked.
"""

from __future__ import annotations

import json
from contextlib import suppress

from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished, check_interrupted
from controller.checkpoints.pins import pins_folder
from controller.checkpoints.request import Request
from controller.checkpoints.staging import Writer
from controller.checkpoints.store import Store, read_json

NOTE = "newest.json"


def enter(store: Store, request: Request) -> None:
    """Note this request as the newest one at the location.

    Where that cannot be written the work itself will say why, or needs to write nothing.

    Raises:
        AccessError: INTERRUPTED, a newer one has been there.
    """
    check(store, request)
    serial = Writer.of(request.id).serial
    if serial > _newest(store, request.owner):
        with suppress(AccessError, Damaged, Vanished):
            if store.exists():
                store.write(_name(request.owner), json.dumps({"serial": serial}).encode() + b"\n")


def check(store: Store, request: Request) -> None:
    """Check, right before something is removed, that no newer request has been there.

    Raises:
        AccessError: INTERRUPTED, one has, or this worker was told to end.
    """
    check_interrupted()
    serial = Writer.of(request.id).serial
    if serial and (newest := _newest(store, request.owner)) > serial:
        raise AccessError(
            Reason.INTERRUPTED,
            f"request {request.id} was given up: number {newest} has been there since, and nothing of it is "
            "taken away",
        )


def _newest(store: Store, owner: str) -> int:
    """Return the highest serial number noted; 0: none is, or the note makes no sense."""
    with suppress(AccessError, Damaged, Vanished, ValueError, KeyError, TypeError):
        serial = read_json(store, _name(owner), 1 << 10)["serial"]
        if type(serial) is int and serial >= 0:
            return serial
    return 0


def _name(owner: str) -> str:
    return f"{pins_folder(owner)}/{NOTE}"
