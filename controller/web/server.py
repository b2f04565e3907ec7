"""The HTTP server of every process of ours, in the event loop of the process that has it.

uvicorn's protocol, and around it what a server needs whose peers are not all friends: connections are counted
before anything is read (`Connections`), a request's head has a time limit, and so has a request, and
certificates are taken up as they are renewed (`Tls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from controller import log
from controller.web.connections import Connection, Connections, Limits
from controller.web.tls import Tls, names_of

_logger = log.get("evalstop.web")

LOOK = 1.0  # s between looks for connections that take too long, and for renewed certificates
MOST_HEAD = 16384  # bytes
_ACCEPTS = 32  # at a time: the loop has other work
_PAUSE = 0.5  # s in which nobody is accepted where the machine has no descriptor left
_GRACE = 3.0  # s for answers under way when the server ends
_LISTEN = 128  # connections that wait to be accepted


class WebServer:
    """Serves an app over plain HTTP, or with TLS. ``port`` is the real one once started.

    Args:
        tls: files of the certificate, looked at again and again; an SSLContext: as it is; None: plain HTTP.
        connections: shared with the other servers of the process.
        name: of the server, in metrics and logs.
        on_certificate: called with the certificate of each client that asks.
    """

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        tls: Tls | ssl.SSLContext | None = None,
        limits: Limits | None = None,
        connections: Connections | None = None,
        name: str = "web",
        on_certificate: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._limits, self.name = limits or Limits(), name
        self._connections = connections or Connections()
        self._config = uvicorn.Config(
            app,
            http=H11Protocol,  # unlike httptools', its heads have a limit
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=self._limits.keep_alive,  # type: ignore[arg-type]  # s, whole or not
            h11_max_incomplete_event_size=MOST_HEAD,
        )
        self._state = ServerState()
        self._tls = tls if isinstance(tls, Tls) else None
        self._context = tls if isinstance(tls, ssl.SSLContext) else None
        self._generation = 0  # of the clients' authority
        self._stamps: tuple[Any, Any] = ((), ())  # of the files as last looked at
        self._authority: Any = ()  # stamp of the one that clients are held to
        self._on_certificate = on_certificate
        self._address = (host, port)
        self._listener: socket.socket | None = None
        self._open: set[_Protocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending, self._drained = False, asyncio.Event()
        self.port = port
        self.strangers = 0  # clients whose certificate has none of the names

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be had, or the certificate not be used; the message says which.
        """
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Of TCP by name: else asyncio leaves its delay on, and a short answer waits 40 ms for an ACK.
        listener = socket.socket(family, proto=socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(self._address)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
        try:
            if self._tls is not None:
                self._stamps = self._tls.serving_stamp(), self._tls.authority_stamp()
                self._authority = self._stamps[1]
                self._context = self._tls.context()
            self._config.load()
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"the certificate cannot be used: {error}") from None
        self.port = listener.getsockname()[1]
        listener.setblocking(False)
        listener.listen(_LISTEN)
        self._listener = listener
        self._date()
        self._resume()
        self._spawn(self._look())

    async def stop(self) -> None:
        """Listen no more, let answers under way end, close."""
        if self._listener is None:
            return
        self._pause()
        self._listener.close()
        self._listener = None
        self._ending = True
        for protocol in list(self._open):
            protocol.shutdown()
        self._note_drained()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await self._drained.wait()
        for protocol in list(self._open):
            protocol.transport.abort()
        ending = [*self._tasks, *self._state.tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # -- connections ---------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if self._listener is None or self._connections.closing:
                return  # called again at once while somebody waits, and what is about to close closes before
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left in the process or on the machine
                _logger.warning("cannot accept a connection", server=self.name, error=str(error))
                self._pause()
                asyncio.get_running_loop().call_later(_PAUSE, self._resume)
                return
            self._admit(accepted, str(address[0]))

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        protocol: list[_Protocol] = []

        def close() -> None:
            if protocol and protocol[0].transport is not None:
                protocol[0].transport.abort()
            else:  # in the middle of its handshake, which so fails
                with contextlib.suppress(OSError):
                    accepted.shutdown(socket.SHUT_RDWR)

        entry = self._connections.enter(self.name, peer, self._limits, close)
        if entry is None:
            accepted.close()
            return
        accepted.setblocking(False)

        def make() -> _Protocol:
            protocol.append(_Protocol(self, entry, self._generation))
            return protocol[0]

        self._spawn(self._connect(accepted, entry, make))

    async def _connect(
        self, accepted: socket.socket, entry: Connection, make: Callable[[], _Protocol]
    ) -> None:
        context = self._context
        secured = (
            {} if context is None else {"ssl": context, "ssl_handshake_timeout": self._limits.head,
                                        "ssl_shutdown_timeout": 1.0}
        )  # fmt: skip
        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, accepted, **secured)  # type: ignore[arg-type]
        except (OSError, EOFError):  # no TLS, no certificate, or gone before its handshake was over
            self._connections.leave(entry)
        except BaseException:
            self._connections.leave(entry)
            raise

    def protocol_arguments(self) -> dict[str, Any]:
        """Return what uvicorn's protocol is made with."""
        return {"config": self._config, "server_state": self._state, "app_state": {}}

    # -- what a connection tells -----------------------------------------------------------------------------

    def opened(self, protocol: _Protocol) -> None:
        self._open.add(protocol)

    def closed(self, protocol: _Protocol) -> None:
        self._open.discard(protocol)
        self._connections.leave(protocol.entry)
        self._note_drained()

    def _note_drained(self) -> None:
        if self._ending and not self._open:
            self._drained.set()

    def knows(self, shown: dict[str, Any] | None) -> bool:
        """Return whether a client with this certificate may ask."""
        if self._tls is None or self._tls.knows(shown):
            return True
        self.strangers += 1
        names = ", ".join(names_of(shown)[:5]) or "no name"
        _logger.warning("refused: a client's certificate has none of the names that may ask", names=names)
        return False

    def note_certificate(self, shown: dict[str, Any]) -> None:
        if self._on_certificate is not None:
            self._on_certificate(shown)

    # -- each second -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self._date()
            self._renew()
            now = self._connections.monotonic()
            for protocol in list(self._open):
                if protocol.late(now, self._limits):
                    self._connections.slow[self.name] += 1
                    protocol.transport.abort()
                elif protocol.generation != self._generation:
                    protocol.shutdown()

    def _date(self) -> None:
        date = (b"date", formatdate(time.time(), usegmt=True).encode())
        self._state.default_headers = [date, *self._config.encoded_headers]

    def _renew(self) -> None:
        """Serve with what lies in the files now: it is renewed long before it ends."""
        if self._tls is None:
            return
        found = self._tls.serving_stamp(), self._tls.authority_stamp()
        if found == self._stamps:
            return
        self._stamps = found
        try:
            self._context = self._tls.context()
        except OSError as error:  # half of the pair is new: the other half comes, too
            _logger.warning("cannot read the renewed certificate", server=self.name, error=str(error))
            return
        if found[1] == self._authority:
            _logger.info("the serving certificate was renewed", server=self.name)
            return
        self._authority = found[1]
        self._generation += 1
        _logger.info("the clients' authority was renewed", server=self.name)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name} server")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Protocol(H11Protocol):
    """One connection, which tells its server how it fares."""

    def __init__(self, server: WebServer, entry: Connection, generation: int) -> None:
        super().__init__(**server.protocol_arguments())
        self._server, self.entry, self.generation = server, entry, generation
        self._now = server._connections.monotonic
        self._head_since: float | None = entry.waits_since
        self._busy_since = 0.0
        self._of: object = None  # the request that is under way
        self._shown: dict[str, Any] | None = None
        self._stranger = False

    # uvicorn names these as asyncio does
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._server.opened(self)
        self._shown = transport.get_extra_info("peercert")  # verified: the context asks for one
        self._stranger = not self._server.knows(self._shown)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._stranger:
            self._refuse()
            return
        if self._shown:
            self._server.note_certificate(self._shown)
        if self._head_since is None and not self._busy:
            self._head_since = self._now()
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        self._head_since = None
        super().on_response_complete()
        self._note()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _note(self) -> None:
        now = self._now()
        if not self._busy:
            if self.entry.waits_since is None:
                self.entry.waits_since = now
            return
        self.entry.waits_since = self._head_since = None
        if self._of is not self.cycle:
            self._of, self._busy_since = self.cycle, now

    def late(self, now: float, limits: Limits) -> bool:
        """Return whether the peer drags out its head, or a request has been under way for too long."""
        if self._busy:
            return now - self._busy_since > limits.request
        return self._head_since is not None and now - self._head_since > limits.head

    def shutdown(self) -> None:
        if self._busy:
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            if self.conn.our_state is h11.IDLE:
                self.conn.send(h11.ConnectionClosed())
            self.transport.close()

    def _refuse(self) -> None:
        if self.transport.is_closing():
            return
        body = (
            b'{"Error":"your certificate is of the right authority, but has none of the names that may ask: '
            b'see the setting of client names"}'
        )
        head = (
            f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
