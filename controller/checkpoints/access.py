"""The program of an access Job: ``python -m controller.checkpoints.access``.

It reads one request from the environment, does it, and writes one line of JSON as its termination message.
It exits 0 whether the answer is yes or no: both are results. Anything else is a crash of the program itself.
SIGTERM ends it between two chunks; what was half-done was never visible, and a copy is gone on with.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace

from controller import names
from controller.checkpoints import fence
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished, interrupt
from controller.checkpoints.file_owner import as_owner, is_own
from controller.checkpoints.inventory import note_empty
from controller.checkpoints.layouts import LAYOUTS, Layout
from controller.checkpoints.ownership import check_owner, claim, claim_again, is_gone
from controller.checkpoints.progress import served
from controller.checkpoints.recognition import EVERY, Recognised, by_content, misnamed, recognised, several
from controller.checkpoints.request import REQUEST_ENV, Request, Result, failure
from controller.checkpoints.retaining import restore, retain
from controller.checkpoints.saves import SHARED
from controller.checkpoints.securing import changed_pins, check, detach, pins_by_step, release, secure
from controller.checkpoints.staging import Writer
from controller.checkpoints.store import Store, away, relative
from controller.checkpoints.stores import open_store
from controller.policy.wording import FOLDER_GONE, NO_CHECKPOINT

MESSAGE_PATH_ENV = "EVALSTOP_TERMINATION_MESSAGE"
MESSAGE_PATH = "/dev/termination-log"
LOOKS = ("claim", "secure", "detach")  # what looks at all pins besides
AT_LOCATION = (*LOOKS, "restore")  # what writes there, and may take away what an earlier request left


def carry_out(request: Request) -> Result:
    """Do one piece of store work.

    Raises:
        AccessError: with the reason and a message for people.
    """
    writer = Writer.of(request.id)
    location = open_store(request.location, writer, request.location_within)
    retention = None
    if request.destination:
        retention = open_store(request.destination, writer, request.destination_within)
    gone = False
    try:
        gone = is_gone(location, request)
        owner = as_owner(location, retention, request)
        layout, found = _layout(location, retention, request)
        # A folder of this very user is one that the trainer's access Jobs will be able to write to.
        deferred = request.find_owner and owner is None and not is_own(location)
        result = _work(location, retention, layout, request, deferred, gone)
        result = replace(result, changed=_changed(location, request), gone=gone)
        if owner is not None:
            result = replace(result, file_owner=(owner.user, owner.group, owner.by))
        if found is not None:
            result = replace(result, layout=(layout.name, found.by))
        # Only now: what is let go is let go for something that has just been verified.
        release(location, request, result.path)
        return result
    except Vanished as error:
        failed = AccessError(Reason.MISSING, str(error))
    except Damaged as error:
        failed = AccessError(Reason.INCOMPLETE, str(error))
    except AccessError as error:
        failed = error
    if failed.reason in (Reason.MISSING, Reason.INCOMPLETE):
        # Where a whole folder is away, what should lie in it is not missing.
        for store in (location, retention if request.operation == "restore" else None):
            if store is not None and not store.exists():
                failed = away(store)
    if gone and failed.reason in (Reason.MISSING, Reason.INCOMPLETE):
        own = location.path(names.PINS_FOLDER)
        failed.message = f"{own} {FOLDER_GONE}: owner.json is not there; {failed.message}"
    failed.gone = gone
    failed.changed = _changed(location, request)
    raise failed


def _changed(location: Store, request: Request) -> tuple[str, ...]:
    """Return the pins that were changed, as far as a Job that is at the location anyway sees it."""
    return changed_pins(location, request.owner) if request.operation in LOOKS else ()


def _layout(location: Store, retention: Store | None, request: Request) -> tuple[Layout, Recognised | None]:
    """Return the layout that the request names; where it names none, the one that what it is about has.

    Raises:
        AccessError: BAD_REQUEST, MISSING: none is found, LAYOUT_AMBIGUOUS: several are.
    """
    if request.layout in LAYOUTS:
        return LAYOUTS[request.layout], None
    if request.layout != names.AUTO_LAYOUT:
        known = ", ".join((names.AUTO_LAYOUT, *LAYOUTS))
        raise AccessError(Reason.BAD_REQUEST, f"layout: {request.layout!r}, expected one of {known}")
    if request.operation in ("claim", "check", "detach"):
        return EVERY, None
    found = _recognised(location, retention, request)
    if len(found) == 1:
        return found[0].layout, found[0]
    if not found:
        other = misnamed(location)
        text = f"no checkpoint in {location.root}{other}" if other else f"{NO_CHECKPOINT} in {location.root}"
        raise AccessError(Reason.MISSING, text)
    raise AccessError(
        Reason.LAYOUT_AMBIGUOUS,
        f"{location.root}: {several(found)} fit; name one of them in spec.checkpoints.layout, or move away "
        "what is not this run's",
    )


def _recognised(location: Store, retention: Store | None, request: Request) -> list[Recognised]:
    if request.source is not None:
        store = retention if request.operation == "restore" and retention is not None else location
        return by_content(store, relative(store.root, request.source.path))
    pins = [folder for of_step in pins_by_step(location, request).values() for folder in of_step]
    return recognised(location) or (by_content(location, pins[-1]) if pins else [])


def _work(
    location: Store, retention: Store | None, layout: Layout, request: Request, deferred: bool, gone: bool
) -> Result:
    if request.operation in ("secure", "detach"):
        check_owner(location, request)
    if request.operation in AT_LOCATION and not deferred:
        fence.enter(location, request)
    if gone and request.operation in LOOKS and not deferred:
        claim_again(location, layout, request)
    if request.operation == "claim":
        return claim(location, layout, request, deferred)
    if request.operation == "secure":
        note_empty(location, request)
        result = secure(location, layout, request)
        location.share(*SHARED)
        return result
    if request.operation == "check":
        return check(location, request)
    if request.operation == "detach":
        return detach(location, request)
    if request.operation == "retain":
        assert retention is not None  # Request.parse saw to it
        return retain(location, retention, layout, request)
    if request.operation == "restore":
        return restore(location, retention, layout, request)
    raise AccessError(Reason.BAD_REQUEST, f"operation: {request.operation!r} is not known")


def answer(environment: Mapping[str, str]) -> str:
    """Return the termination message for the request in an environment."""
    try:
        text = environment.get(REQUEST_ENV)
        if text is None:
            raise AccessError(Reason.BAD_REQUEST, f"{REQUEST_ENV} is not set; expected a request as JSON")
        return carry_out(Request.parse(text)).to_json()
    except AccessError as error:
        return failure(error)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: interrupt())
    with served(os.environ):
        message = answer(os.environ)
    print(message, flush=True)
    path = os.environ.get(MESSAGE_PATH_ENV, MESSAGE_PATH)
    with open(path, "w", encoding="utf-8") as file:
        file.write(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
