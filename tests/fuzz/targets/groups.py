"""What jobs and members say to a worker group's coordinator, and what a group reports to the operator."""

from __future__ import annotations

import json
from contextlib import suppress

from controller.group import wire
from controller.operator.reconcile.group_client import NoAnswer, report_of
from controller.policy.sharing import Token, messages
from tests.fuzz.target import Target

_TOKEN = Token(3, 2, "9f2c41d0", 7)
_MOST = 1 << 20
_LOAD = messages.Load(_TOKEN, "a", 4, (("a", 4), ("b", 2)))


def _call(data: bytes) -> None:
    size = wire.call_of(data, _MOST)
    assert 0 < len(size) <= 100


def _spoken(data: bytes) -> None:
    given = wire.document(data)
    with suppress(wire.Refused):
        wire.token_of(given.get("token"))
    wire.unpacked(given)


def _calls() -> tuple[bytes, ...]:
    header = {"function": "forward_backward", "arguments": {"lr": 0.1}}
    return tuple(b"".join(wire.envelope(header, body)) for body in (None, b"12345678"))


def _messages() -> tuple[bytes, ...]:
    return json.dumps(wire.packed(_LOAD)).encode(), b'{"wait": 3.5, "step": null}'


def _reported(data: bytes) -> None:
    with suppress(NoAnswer):
        report_of(503, data)
    report_of(200, data)


def _reports() -> tuple[bytes, ...]:
    from tests.support.group_scene import report

    return json.dumps(report()).encode(), json.dumps(report(turn=None, waiting=[], residents=[])).encode()


TARGETS = (
    Target("group-report", _reported, _reports, own=(NoAnswer,), most=1 << 16),
    Target("group-call", _call, _calls, own=(wire.Refused,), most=1 << 12),
    Target("group-message", _spoken, _messages, own=(wire.Refused,), most=wire.MOST_JSON + 100),
)
