"""What trainers and actors say to the step API, clients to a sidecar, and recorded steps."""

from __future__ import annotations

import json
from contextlib import suppress

from controller.actor import app
from controller.actor.engines import requests_of
from controller.steps import wire
from controller.web.tickets import Signer, Ticket, TicketError, check
from sim.rollout.replay import read
from tests.fuzz.target import Target
from tests.fuzz.targets.logs import in_a_file

_SHAPE = {"copies": 4, "cap": 2048, "spread": 0.2, "bins": [[900.0, 10], [300.5, 100]]}
_STEP = {"attempt": 3, "step": 1}
_REPORT = {
    "iterations": 9,
    "tokens": 30,
    "decodeSeconds": 0.5,
    "grown": 1,
    "prompts": 3,
    "prefillSeconds": 0.1,
}
BODIES = (
    {**_STEP, "beginsIn": 9.0, **_SHAPE},
    {**_STEP, "actor": 0, "release": True, "report": _REPORT},
    {
        **_STEP,
        "seconds": 3.0,
        "tokens": 1000,
        "rank": 0.8,
        **_SHAPE,
        "phases": {"train": 3.5},
        "counts": {"moved": 2},
    },
    {"address": "10.0.0.1:8700", "fingerprint": "ab" * 32, "slots": 8, "version": None},
)
_READERS = (wire.announcement, wire.done, wire.ended, wire.registered)
_REQUEST = {
    "id": "1.0.0.1",
    "prompt": [1, 2],
    "tokens": [3],
    "most": 9,
    "draw": [1, 2, 3, 4],
    "temperature": 1.0,
}
_SIGNER = Signer()
_TICKET = _SIGNER.sign(Ticket("8f1c0a52", 3, 2, 1000.0))
_ACTOR = {"number": 0, "slots": 2, "state": "done", "ready": 0.0, "left": 1.6, "iterations": 30, "tokens": 50,
          "decodeSeconds": 1.6, "prefillTokens": 4, "prefillSeconds": 0.1, "recalled": False}  # fmt: skip
RECORD = {"step": 1, "seconds": 1.6, "plan": {"dispatch": "Ranked", "cut": 0.7}, "predicted": [30.0, 20.0],
          "lengths": [[30], [20]], "promptTokens": [2, 2], "actors": [_ACTOR]}  # fmt: skip


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _step_call(data: bytes) -> None:
    given = wire.document(data)
    for reader in _READERS:
        with suppress(wire.BadRequest):
            reader(given)


def _ticket(data: bytes) -> None:
    text = data.decode("latin-1")  # as a header comes
    found = check(text, [_SIGNER.public], job="8f1c0a52", attempt=3, actor=2, now=0.0)
    assert found == Ticket("8f1c0a52", 3, 2, 1000.0)


TARGETS = (
    Target(
        "step-call",
        _step_call,
        lambda: map(_dumped, BODIES),
        own=(wire.BadRequest,),
        most=wire.MOST_BODY + 100,
        words=(b"-1", b"1e999", b"null", b"true", b"[[1,1]]"),
    ),
    Target(
        "generate-call",
        lambda data: requests_of(app.document(data)),
        lambda: (_dumped({"version": 7, "requests": [_REQUEST]}),),
        own=(ValueError,),
        most=1 << 16,
    ),
    Target("actor-ticket", _ticket, lambda: (_TICKET.encode(),), own=(TicketError,), most=2048),
    Target(
        "recorded-step",
        in_a_file("steps.jsonl", read),
        lambda: (_dumped(RECORD) + b"\n",),
        own=(ValueError,),
        most=1 << 16,
    ),
)
