"""One guarded HTTP GET of a page, over a connection of its own.

aiohttp would do it at more than twice the CPU, and at thousands of jobs that is most of the operator's. Only
what a metrics page needs is here: no redirects, no decompression, no cookies, no proxies, no name resolution;
a cap on the head and on the body while they stream, and on time from the first SYN to the last byte.
"""

from __future__ import annotations

import asyncio
import os
import socket
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

from controller.metrics.samples import MetricsError
from controller.policy.job import ScrapeOutcome
from controller.untrusted_text import printable

HEAD_BYTES = 16 << 10  # of status line and headers, those of interim (1xx) answers counted in
_READ = frozenset(
    {b"location", b"content-encoding", b"content-type", b"content-length", b"transfer-encoding"}
)
_EXPECTED = "expected status 200 and Prometheus text"
_FIXED = (
    "Accept: text/plain;version=0.0.4;q=1,*/*;q=0.1\r\n"
    "Accept-Encoding: identity\r\n"
    "User-Agent: evalstop\r\n"
    "Connection: close\r\n"
    "\r\n"
)


class Caps(NamedTuple):
    """Time in s: for the whole GET, and for its connection alone. Size: of the body."""

    timeout: float
    connect_timeout: float
    body_bytes: int


async def fetch(ip: str, port: int, target: str, caps: Caps) -> bytes:
    """Return the body that ``ip`` answers with, if it answers 200 with plain text.

    Args:
        ip: an address in its plain form, already checked.
        port: the port.
        target: path and query, encoded as a request line may hold them.
        caps: limits of time and size.

    Raises:
        MetricsError: whatever else comes back, or nothing.
        ValueError: ``target`` is not ASCII.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    answer = _Answer(_request(ip, port, target), caps.body_bytes, loop.create_future())
    try:
        async with asyncio.timeout_at(begin + caps.connect_timeout) as clock:
            await loop.create_connection(lambda: answer, ip, port, flags=socket.AI_NUMERICHOST)
            clock.reschedule(begin + caps.timeout)
            await answer.ended
    except OSError as error:  # TimeoutError is one: ours, or the kernel's for a connection
        raise _late(caps, answer.connected) if clock.expired() else _unreachable(error) from None
    finally:
        answer.close()
    return answer.body()


def _request(ip: str, port: int, target: str) -> bytes:
    host = f"[{ip}]" if ":" in ip else ip
    if port != 80:
        host = f"{host}:{port}"
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{_FIXED}".encode("ascii")


_FRAMES = "chunks' frames included"


class _Answer(asyncio.Protocol):
    """Sends the request, takes in the answer; ``ended`` is done when all is here or nothing more is wanted.

    Methods named ``on_…`` are the parser's callbacks; what they raise ends the parsing.
    """

    __slots__ = (
        "_accepted", "_barren", "_body", "_complete", "_headers", "_most", "_parser", "_problem",
        "_request", "_taken", "_transport", "ended",
    )  # fmt: skip

    def __init__(self, request: bytes, most: int, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._request = request
        self._most = most
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Pages are written by hand, too; and nobody reads this answer after us who might read it otherwise.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._taken = 0  # bytes, all that came
        self._barren = 0  # bytes since the last of the body
        self._accepted = False  # the head is complete, and the body wanted
        self._complete = False
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()  # not a list of pieces: a piece may be one byte
        self._problem: MetricsError | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def body(self) -> bytes:
        if self._problem is not None:
            raise self._problem
        return bytes(self._body)

    def close(self) -> None:
        """Let go of the connection, whatever its state: nothing is read after this."""
        self.ended.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._parser = None  # it refers back: a circle would keep the page until the next collection

    def _end(self, problem: MetricsError | None = None) -> None:
        if not self.ended.done():
            self._problem = problem
            if problem is not None:
                self._body.clear()  # the problem's traceback would keep it
            self.ended.set_result(None)
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a TCP connection
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.ended.done() or self._parser is None:
            return
        room, before = HEAD_BYTES - self._taken, len(self._body)
        self._taken += len(data)
        if self._taken > HEAD_BYTES + 2 * self._most:  # chunks may have endless extensions and trailers
            self._end(_too_large(f"reading stopped after {self._taken} bytes, {_FRAMES}", self._most))
            return
        try:
            if not self._accepted:
                self._parser.feed_data(data[:room])
                if not self._accepted and len(data) >= room:
                    self._end(_invalid(f"status line and headers of more than {HEAD_BYTES} bytes"))
                    return
                data = data[room:]
            if data:
                self._parser.feed_data(data)
            if self._complete:
                self._end()
            # Chunks' extensions and trailers are joined anew with every read, however short.
            self._barren = 0 if len(self._body) > before else self._barren + len(data)
            if self._accepted and self._barren > HEAD_BYTES:
                self._end(_too_large(f"reading stopped after {self._taken} bytes, {_FRAMES}", self._most))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(_invalid(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._accepted:
            self._end(_unreachable(exc))
        elif exc is None and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self._end()  # a body that ends with the connection
        else:
            self._end(_invalid(f"it broke off after {len(self._body)} bytes of its body"))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _READ:
            self._headers.setdefault(name, value.strip())

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._complete:
            raise ValueError("an answer after the answer")
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:  # an interim answer: the one that counts is still to come
            self._headers.clear()
            return
        problem = _refusal(status, self._headers, self._most)
        if problem is not None:
            self._end(problem)
            raise problem
        self._accepted = True

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._most:
            problem = _too_large(f"reading stopped after {len(self._body)} bytes", self._most)
            self._end(problem)
            raise problem

    def on_message_complete(self) -> None:
        # What follows in the same breath is still to be refused: the length was wrong, and the page is cut.
        self._complete = self._accepted


def _refusal(status: int, headers: dict[bytes, bytes], most: int) -> MetricsError | None:
    """Return why an answer is not wanted, by status and headers, before the body is read."""
    if 300 <= status < 400:
        return _unusable(f"answered with a redirect ({status}), never followed; {_EXPECTED}")
    if status != 200:
        return _unusable(f"answered {status}{_phrase(status)}; {_EXPECTED}")
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding != b"identity":
        known = f" ({encoding.decode()})" if encoding in (b"gzip", b"deflate", b"br", b"zstd") else ""
        return _unusable(f"answered compressed{known} though only plain text was asked for; {_EXPECTED}")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in (b"text/html", b"application/xhtml+xml"):
        return _unusable(f"answered {kind.decode()}, a page for people; {_EXPECTED}: is the path right?")
    length = int(headers.get(b"content-length", b"0"))
    return _too_large(f"{length} bytes announced", most) if length > most else None


def _phrase(status: int) -> str:
    """Return what a status is called: by us, for the answer may call it anything."""
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _unusable(message: str) -> MetricsError:
    return MetricsError(ScrapeOutcome.NOT_PROMETHEUS, message)


def _invalid(reason: str) -> MetricsError:
    return _unusable(f"the answer is not whole, valid HTTP ({printable(reason, 160)}); {_EXPECTED}")


def _too_large(what: str, most: int) -> MetricsError:
    return MetricsError(
        ScrapeOutcome.TOO_LARGE, f"metrics page too large: {what}, at most {most} bytes are read"
    )


def _late(caps: Caps, connected: bool) -> MetricsError:
    if connected:
        message = (
            f"no complete answer within {caps.timeout:g} s; expected a page that is ready when asked for"
        )
    else:
        message = (
            f"no connection within {caps.connect_timeout:g} s; expected a trainer that listens on its "
            "pod IP, and no NetworkPolicy between the operator and it"
        )
    return MetricsError(ScrapeOutcome.TIMEOUT, message)


def _unreachable(error: Exception | None) -> MetricsError:
    if error is None:
        message = "connection closed without an answer; expected an HTTP server on that port"
    else:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        message = (
            f"not reachable ({printable(reason)}); expected the trainer to listen on its pod IP at that port"
        )
    return MetricsError(ScrapeOutcome.UNREACHABLE, message)
