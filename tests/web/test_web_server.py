"""The server of every process of ours, attacked: idle crowds, dragged-out heads, strangers' certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse

from controller.web.certificates import Pem, issue_client, issue_server, make_authority
from controller.web.connections import Connections, Limits
from controller.web.server import WebServer
from controller.web.tls import Tls

IDLE = 300

# A process that may have 256 descriptors, as the attack of 300 connections needs them: it serves health, and
# /work opens what an operator needs for its own work.
CHILD = """
import asyncio, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))
from starlette.responses import PlainTextResponse
from controller import file_descriptors
from controller.web.connections import Connections
from controller.web.server import WebServer
from controller.web.health import Health
from controller.web.status import health_app

async def main():
    assert file_descriptors.raise_limit() == 256
    app = health_app(Health())
    async def work(_):
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
        for one in opened:
            os.close(one)
        return PlainTextResponse(str(len(opened)))
    app.add_route("/work", work)
    server = WebServer(app, "127.0.0.1", 0, connections=Connections.of_process(128))
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def child(repository: Path) -> Iterator[int]:
    """The port of such a process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=repository, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def connect(port: int, peer: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(peer, 0))


def get(port: int, path: str = "/", peer: str = "127.0.0.1") -> str:
    """The whole answer to a request on a connection of its own."""
    with connect(port, peer) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: wire.recv(65536), b"")).decode()


def closed(wire: socket.socket, within: float = 0.0) -> bool:
    """Whether the other end has closed, or does so in time."""
    deadline = time.monotonic() + max(within, 0.01)
    try:
        while (left := deadline - time.monotonic()) > 0:
            wire.settimeout(left)
            if not wire.recv(65536):
                return True
    except TimeoutError:
        pass
    except OSError:
        return True
    return False


def until(wire: socket.socket, end: bytes) -> bytes:
    """What is said up to and with ``end``."""
    said = b""
    while not said.endswith(end):
        part = wire.recv(65536)
        assert part, f"closed after {said!r}"
        said += part
    return said


def test_three_hundred_idle_connections_leave_probes_and_own_work_their_descriptors(child: int) -> None:
    with contextlib.ExitStack() as stack:
        for n in range(IDLE):
            with contextlib.suppress(OSError):  # the crowd may be turned away
                stack.enter_context(connect(child, f"127.0.0.{1 + n % 50}"))
        for _ in range(3):
            assert get(child, "/healthz").endswith("ok\n")
            assert get(child, "/work").endswith("100")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """The extender and the dashboard run in the one, the operator in the other."""
    made = request.param()
    yield made
    made.close()


def app() -> FastAPI:
    """``/`` answers at once, ``/slow`` when `app.state.go` is set, ``/body`` with the size of a body."""
    made = FastAPI()
    made.state.go = asyncio.Event()

    async def at_once() -> PlainTextResponse:
        return PlainTextResponse("here")

    async def slow() -> PlainTextResponse:
        await made.state.go.wait()
        return PlainTextResponse("done")

    async def body(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    made.add_api_route("/", at_once)
    made.add_api_route("/slow", slow)
    made.add_api_route("/body", body, methods=["POST"])
    return made


@contextlib.asynccontextmanager
async def serving(limits: Limits | None = None, **more: Any) -> AsyncIterator[WebServer]:
    made = app()
    server = WebServer(made, "127.0.0.1", 0, limits=limits, **more)
    server.app = made  # type: ignore[attr-defined]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def aside(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


def test_the_peer_with_most_connections_loses_its_own(loop: asyncio.AbstractEventLoop) -> None:
    async def story() -> None:
        connections = Connections(most=40)
        async with serving(Limits(connections=40, per_peer=30), connections=connections) as server:
            patient = await aside(connect, server.port, "127.0.0.9")
            crowd = [await aside(connect, server.port, "127.0.0.2") for _ in range(60)]
            assert (await aside(get, server.port, "/", "127.0.0.3")).endswith("here")
            assert not closed(patient), "one connection of somebody else is in nobody's way"
            assert sum(closed(wire) for wire in crowd) >= 30
            assert connections.of("web") <= 31
            assert connections.dropped["web"] >= 30
            for wire in (patient, *crowd):
                wire.close()

    loop.run_until_complete(story())


def test_an_answer_in_two_parts_does_not_wait_for_its_first_to_be_acknowledged(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """With Nagle's algorithm on, each short answer took 40 ms longer."""

    async def story() -> None:
        async with serving() as server:
            wire = await aside(connect, server.port)
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await aside(wire.recv, 1)
            (protocol,) = server._open
            accepted = protocol.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            wire.close()

    loop.run_until_complete(story())


def test_what_has_a_request_under_way_is_not_dropped_and_the_new_one_refused(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def story() -> None:
        connections = Connections(most=100)
        async with serving(Limits(per_peer=3), connections=connections) as server:
            asked = [asyncio.create_task(aside(get, server.port, "/slow")) for _ in range(3)]
            await asyncio.sleep(0.5)
            assert connections.of("web") == 3
            late = await aside(connect, server.port)
            assert await aside(closed, late, 5.0)
            assert connections.refused["web"] == 1
            server.app.state.go.set()  # type: ignore[attr-defined]
            for one in asked:
                assert (await one).endswith("done")

    loop.run_until_complete(story())


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_is_dragged_out_ends_its_connection(loop: asyncio.AbstractEventLoop, said: bytes) -> None:
    async def story() -> None:
        async with serving(Limits(head=0.3, keep_alive=60.0)) as server:
            wire = await aside(connect, server.port)
            began = time.monotonic()
            wire.sendall(said)
            assert await aside(closed, wire, 10.0)
            assert 0.2 < time.monotonic() - began < 5.0
            # A second request's head has no longer, and one header at a time is no way around it.
            again = await aside(connect, server.port)
            again.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET ")
            await aside(until, again, b"here")
            began = time.monotonic()
            with contextlib.suppress(OSError):
                for _ in range(100):
                    again.sendall(b"X")
                    if await aside(closed, again, 0.1):
                        break
            assert time.monotonic() - began < 5.0

    loop.run_until_complete(story())


def test_a_request_has_an_end(loop: asyncio.AbstractEventLoop) -> None:
    async def story() -> None:
        async with serving(Limits(request=0.3)) as server:
            wire = await aside(connect, server.port)
            wire.sendall(b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
            assert await aside(closed, wire, 10.0)

    loop.run_until_complete(story())


def test_connections_are_kept_alive_and_bodies_read(loop: asyncio.AbstractEventLoop) -> None:
    async def story() -> None:
        async with serving(Limits(head=1.0, keep_alive=30.0)) as server:
            wire = await aside(connect, server.port)
            for size in (0, 10, 200_000):
                head = f"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
                wire.sendall(head.encode() + b"x" * size)
                answer = await aside(until, wire, b"\r\n\r\n" + str(size).encode())
                assert answer.startswith(b"HTTP/1.1 200 OK")
                assert b"date: " in answer
            await asyncio.sleep(2.5)  # beyond the time for a head: nobody has begun one
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await aside(until, wire, b"here")

    loop.run_until_complete(story())


def test_an_end_waits_for_answers_under_way_and_for_nobody_else(loop: asyncio.AbstractEventLoop) -> None:
    async def story() -> None:
        async with serving() as server:
            idle = await aside(connect, server.port)
            asked = asyncio.create_task(aside(get, server.port, "/slow"))
            await asyncio.sleep(0.3)
            loop.call_later(0.3, server.app.state.go.set)  # type: ignore[attr-defined]
            await server.stop()
            assert (await asked).endswith("done")
            assert closed(idle)
            with pytest.raises(ConnectionRefusedError):
                await aside(connect, server.port)

    loop.run_until_complete(story())


# -- certificates -------------------------------------------------------------------------------------------


class Pki:
    """An authority, and files of a server under it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, datetime.now(UTC)
        self.authority = make_authority(self.now)
        self.certificate = self.write("server", issue_server(self.authority, ["127.0.0.1"], self.now))
        self.ca = folder / "ca.crt"
        self.ca.write_text(self.authority.certificate)

    def write(self, name: str, pair: Pem) -> Path:
        path = self.folder / f"{name}.pem"
        path.write_text(pair.key + pair.certificate)
        return path

    def client(self, name: str, authority: Pem | None = None) -> ssl.SSLContext:
        """Of a client with a certificate of this common name."""
        context = ssl.create_default_context(cadata=self.authority.certificate)
        pair = issue_client(authority or self.authority, name, self.now)
        context.load_cert_chain(self.write(f"client-{name}", pair))
        return context

    def tls(self, *names: str) -> Tls:
        file = str(self.certificate)
        return Tls(file, file, str(self.ca), frozenset(names))


def ask(port: int, context: ssl.SSLContext) -> str:
    with connect(port) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: wire.recv(65536), b"")).decode()


def test_a_certificate_of_the_authority_is_not_enough(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)

    async def story() -> None:
        heard: list[Any] = []
        async with serving(tls=pki.tls("evalstop-scheduler"), on_certificate=heard.append) as server:
            assert (await aside(ask, server.port, pki.client("evalstop-scheduler"))).endswith("here")
            assert len(heard) == 1
            for name in ("evalstop-extender", "prometheus", "evalstop-scheduler.evil"):
                answer = await aside(ask, server.port, pki.client(name))
                assert answer.startswith("HTTP/1.1 403 ")
                assert "client names" in json.loads(answer.rpartition("\r\n\r\n")[2])["Error"]
                assert "here" not in answer.rpartition("\r\n\r\n")[2].replace("there", "")
            assert len(heard) == 1, "whoever is refused has not asked"
            assert server.strangers == 3

    loop.run_until_complete(story())


def test_an_authority_that_is_replaced_counts_no_more(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)

    async def story() -> None:
        async with serving(Limits(keep_alive=60.0), tls=pki.tls()) as server:
            old, new = pki.client("old"), make_authority(pki.now)

            def open_one() -> ssl.SSLSocket:
                wire = old.wrap_socket(connect(server.port), server_hostname="127.0.0.1")
                wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                until(wire, b"here")
                return wire

            wire = await aside(open_one)
            pki.ca.write_text(new.certificate)
            assert await aside(closed, wire, 10.0), "it was let in by the authority before"

            def refused() -> bool:
                try:
                    return not ask(server.port, old)
                except (ssl.SSLError, ConnectionError):
                    return True

            assert await aside(refused)
            assert (await aside(ask, server.port, pki.client("new", new))).endswith("here")

    loop.run_until_complete(story())


def test_whoever_begins_no_handshake_is_sent_away(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    pki = Pki(tmp_path)

    async def story() -> None:
        connections = Connections()
        async with serving(Limits(head=0.3), tls=pki.tls(), connections=connections) as server:
            wires = [await aside(connect, server.port) for _ in range(3)]
            wires[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
            wires[2].sendall(b"\x16\x03\x01")
            for wire in wires:
                wire.settimeout(10.0)
                with contextlib.suppress(OSError):
                    while await aside(wire.recv, 100):
                        pass
            await asyncio.sleep(0.1)
            assert connections.of("web") == 0

    loop.run_until_complete(story())
