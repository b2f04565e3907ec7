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

from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished, interrupt
from controller.checkpoints.layouts import LAYOUTS, Layout
from controller.checkpoints.ownership import check_owner, claim
from controller.checkpoints.progress import served
from controller.checkpoints.request import REQUEST_ENV, Request, Result, failure
from controller.checkpoints.retaining import restore, retain
from controller.checkpoints.saves import SHARED
from controller.checkpoints.securing import check, release, secure
from controller.checkpoints.staging import Writer
from controller.checkpoints.store import Store, away
from controller.checkpoints.stores import open_store

MESSAGE_PATH_ENV = "EVALSTOP_TERMINATION_MESSAGE"
MESSAGE_PATH = "/dev/termination-log"


def carry_out(request: Request) -> Result:
    """Do one piece of store work.

    Raises:
        AccessError: with the reason and a message for people.
    """
    layout = LAYOUTS.get(request.layout)
    if layout is None:
        known = ", ".join(LAYOUTS)
        raise AccessError(Reason.BAD_REQUEST, f"layout: {request.layout!r}, expected one of {known}")
    writer = Writer.of(request.id)
    location = open_store(request.location, writer, request.location_within)
    retention = None
    if request.destination:
        retention = open_store(request.destination, writer, request.destination_within)
    try:
        result = _work(location, retention, layout, request)
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
    raise failed


def _work(location: Store, retention: Store | None, layout: Layout, request: Request) -> Result:
    if request.operation == "claim":
        return claim(location, layout, request)
    if request.operation == "secure":
        check_owner(location, request)
        result = secure(location, layout, request)
        location.share(*SHARED)
        return result
    if request.operation == "check":
        return check(location, request)
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
