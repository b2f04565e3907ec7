"""An app that is made when it is first asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.web.deferred import Deferred


def test_it_is_made_once_for_all_who_ask_at_once_and_after() -> None:
    made, told = 0, []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told.append(scope["path"])

    def make() -> ASGIApp:
        nonlocal made
        made += 1
        return app

    deferred = Deferred(make)
    assert made == 0
    asyncio.run(_ask(deferred, *"abcdefgh"))
    asyncio.run(_ask(deferred, "i"))
    assert made == 1
    assert sorted(told) == list("abcdefghi")


def test_where_it_cannot_be_made_the_next_request_tries_again() -> None:
    tries, told = 0, []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told.append(scope["path"])

    def make() -> ASGIApp:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise MemoryError("no room")
        return app

    deferred = Deferred(make)
    with pytest.raises(MemoryError):
        asyncio.run(_ask(deferred, "a"))
    asyncio.run(_ask(deferred, "b"))
    assert (tries, told) == (2, ["b"])


async def _ask(app: ASGIApp, *paths: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None: ...

    await asyncio.gather(*(app({"type": "http", "path": path}, receive, send) for path in paths))


def test_the_operator_loads_no_fastapi_until_somebody_asks_for_a_queue() -> None:
    code = (
        "from controller.operator.process.lazy_imports import leave_out; leave_out();"
        "import sys, controller.operator.main;"
        "print([m for m in ('fastapi', 'cryptography', 'requests', 'rich') if sys.modules.get(m)])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
