"""Requests of commands: what comes over the wire in pieces, what breaks, and what is kept open."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.kube.client import Api
from controller.kube.connection import Connection
from controller.kube.direct import DirectTransport
from controller.kube.errors import NotFound, Unavailable
from controller.kube.resources import RLHFJOBS

PAGE = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "é" * 50_000}}]}
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]


@asynccontextmanager
async def served(answer: Serve, patience: float = 30.0) -> AsyncIterator[tuple[Api, list[int]]]:
    """A server that answers each request as ``answer`` does (False: and ends the connection), and an API
    client for it; the list has the number of requests of each connection."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        place = len(connections) - 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next((int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length:")), 0)
                connections[place] += 1
                if not await answer(head + await reader.readexactly(size), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    way = Connection(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base", "a test", lambda: "Bearer t"
    )
    async with server, Api(way, patience, transport=DirectTransport(way)) as api:
        yield api, connections
        await api.close()


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def in_chunks(body: bytes, size: int) -> bytes:
    parts = [body[n : n + size] for n in range(0, len(body), size)]
    chunks = b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"


BODY = json.dumps(PAGE).encode()
ONCE = {
    "older": whole(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "close": whole(BODY, "Connection: close"),
}
FORMS = {
    "length": whole(BODY),
    "chunks": in_chunks(BODY, 7777),
    "gzip": whole(gzip.compress(BODY), "content-encoding: gzip"),
    "announced": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole(BODY),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_list_however_it_is_sent_over_one_connection(form: str) -> None:
    asked: list[bytes] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        asked.append(request)
        for place in range(0, len(FORMS[form]), 9000):  # in pieces that end anywhere
            writer.write(FORMS[form][place : place + 9000])
            await writer.drain()
        return True

    async def run() -> None:
        async with served(answer) as (api, connections):
            for _ in range(3):
                items, version = await api.list(RLHFJOBS, "ns")
                assert (items[0]["metadata"]["name"], version) == ("é" * 50_000, "7")
            assert connections == [3], "the connection is used again"

    asyncio.run(run())
    first, *headers = asked[0].decode().split("\r\n")
    assert first == "GET /base/apis/evalstop.dev/v1alpha1/namespaces/ns/rlhfjobs?limit=100 HTTP/1.1"
    assert "Authorization: Bearer t" in headers


@pytest.mark.parametrize(
    ("answered", "stays"),
    [*((answered, True) for answered in ONCE.values()), (b"HTTP/1.1 200 OK\r\n\r\n" + BODY, False)],
    ids=[*ONCE, "until the connection ends"],
)
def test_a_connection_that_the_server_is_to_end_is_not_used_again(answered: bytes, stays: bool) -> None:
    """Where ``stays``, the end that it announced comes late."""

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answered)
        return stays

    async def run() -> None:
        async with served(answer) as (api, connections):
            for _ in range(2):
                assert (await api.list(RLHFJOBS, "ns"))[1] == "7"
            assert connections == [1, 1]

    asyncio.run(run())


def test_an_idle_connection_that_the_server_has_ended_costs_no_read() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(whole(BODY))
        return False  # it says keep-alive, and then ends it

    async def run() -> None:
        async with served(answer) as (api, connections):
            for _ in range(3):
                assert (await api.list(RLHFJOBS, "ns"))[1] == "7"
            assert connections == [1, 1, 1]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", "within an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no HTTP answer"),
        (whole(b"no gzip", "Content-Encoding: gzip"), "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "head of more than"),
        (whole(b"<html>"), "GET /apis"),
    ],
)
def test_what_is_no_answer_is_unavailable(sent: bytes, said: str) -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(sent)
        await writer.drain()
        return False

    async def run() -> None:
        async with served(answer) as (api, _):
            with pytest.raises(Unavailable, match=said):
                await api.get(RLHFJOBS, "a", "ns")

    asyncio.run(run())


def test_a_refusal_and_a_write_with_its_body() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if request.startswith(b"POST"):
            writer.write(whole(request.partition(b"\r\n\r\n")[2], status="201 Created"))
        else:
            writer.write(whole(b'{"reason": "NotFound", "message": "none"}', status="404 Not Found"))
        return True

    body: dict[str, Any] = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"text": "ä"}}

    async def run() -> None:
        async with served(answer) as (api, connections):
            with pytest.raises(NotFound, match="none"):
                await api.get(RLHFJOBS, "a", "ns")
            assert await api.create(RLHFJOBS, body) == body
            assert connections == [2]

    asyncio.run(run())


def test_a_server_that_says_nothing_is_waited_for_as_long_as_was_asked() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(3600)
        return False

    async def run() -> None:
        async with served(answer, patience=0.2) as (api, _):
            with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
                await api.get(RLHFJOBS, "a", "ns")

    asyncio.run(run())


def test_a_watch_line_by_line() -> None:
    lines = [json.dumps({"type": "ADDED", "object": {"n": n}}).encode() + b"\n" for n in range(3)]

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        sent = in_chunks(b"".join(lines), 11)
        writer.write(sent)
        return True

    async def run() -> None:
        async with served(answer) as (api, _):
            found = [event["object"]["n"] async for event in api.watch(RLHFJOBS, "1", namespace="ns")]
            assert found == [0, 1, 2]

    asyncio.run(run())
