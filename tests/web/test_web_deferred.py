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


HANDSHAKE = """
import ssl, sys
from controller.web.tls import self_signed

ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
ends = [self_signed(["localhost"]).wrap_bio(ours, theirs, server_side=True), client.wrap_bio(theirs, ours)]
done = set()
for _ in range(8):
    for end in ends:
        try:
            end.do_handshake()
            done.add(end)
        except ssl.SSLWantReadError:
            pass
print(len(done), "localhost" in str(ends[1].getpeercert(True)), "cryptography" in sys.modules)
"""


def test_a_certificate_made_at_the_start_leaves_nothing_loaded() -> None:
    """What makes it takes 12 MB: another process has them, and ends."""
    said = subprocess.run([sys.executable, "-c", HANDSHAKE], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "2 True False"
