"""The API client (`controller.kube`) for programs without an event loop: launchers, demos, tests.

They name paths instead of kinds, and wait for the answer. Requests of the whole process run in one thread of
their own, so that they may be made from any thread, one with a running event loop among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import threading
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from controller.kube.client import MERGE_PATCH
from controller.kube.connection import Connection, tls_context
from controller.kube.direct import DirectTransport
from controller.kube.errors import ApiError, Unavailable, from_response
from controller.kube.transport import Limits
from deploy.local.pki import Pair

T = TypeVar("T")

JSON = "application/json"
_CONNECT_S = 5.0


class LocalApi:
    """Requests to one server by their paths.

    All methods raise `controller.kube.errors.ApiError`; `Unavailable` with status 0 where nobody answers.

    Args:
        url: such as "https://127.0.0.1:6443".
        ca: certificate of the server's authority; None: any certificate will do (on loopback only).
        identity: certificate of who asks; None: nobody is named.
    """

    def __init__(self, url: str, ca: Path | None, identity: Pair | None) -> None:
        parts = urlsplit(url)
        self.url, self.host, self.port = url, parts.hostname or "", parts.port or 443
        self.context = _context(ca, identity)
        self._transport = DirectTransport(Connection(url, url, tls=self.context))
        weakref.finalize(self, _end, self._transport).atexit = False

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        """Return the answer to GET: parsed JSON, else text."""
        return self.request("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 10.0) -> Any:
        """Return the answer to a POST of JSON."""
        return self.request("POST", path, body, timeout_s)

    def patch(self, path: str, body: Any, timeout_s: float = 10.0) -> Any:
        """Return the answer to a JSON merge patch (RFC 7386)."""
        return self.request("PATCH", path, body, timeout_s, MERGE_PATCH)

    def delete(self, path: str, timeout_s: float = 10.0) -> Any:
        """Return the answer to DELETE."""
        return self.request("DELETE", path, None, timeout_s)

    def request(
        self, method: str, path: str, body: Any, timeout_s: float = 10.0, content_type: str = JSON
    ) -> Any:
        """Return the answer to any request: parsed JSON, else text."""
        sent = None if body is None else json.dumps(body).encode()
        kind, text = self.send(method, path, sent, timeout_s, content_type)
        return json.loads(text) if kind == JSON else text.decode()

    def send(
        self, method: str, path: str, body: bytes | None, timeout_s: float = 10.0, content_type: str = JSON
    ) -> tuple[str, bytes]:
        """Return the answer to these very bytes: its media type and its text."""
        what = f"{method} {self.url}{path}"
        try:
            return _finished(self._send(method, path, body, timeout_s, content_type))
        except TimeoutError as error:
            raise Unavailable(0, "Timeout", f"{what}: no answer within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            raise Unavailable(0, "ConnectionBroken", f"{what}: {type(error).__name__}: {error}") from error

    async def _send(
        self, method: str, path: str, body: bytes | None, timeout_s: float, content_type: str
    ) -> tuple[str, bytes]:
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "evalstop-local"}
        async with asyncio.timeout(timeout_s):
            limits = Limits(connect=min(_CONNECT_S, timeout_s))
            answer = await self._transport.send(method, path, headers, body, limits)
            async with answer:
                text = b"".join([part async for part in answer.chunks()])
        if answer.status >= 300:
            raise from_response(answer.status, text, answer.headers)
        return answer.headers.get("Content-Type", "").partition(";")[0].strip(), text

    def succeeds(self, path: str) -> bool:
        """Return whether GET works at this moment."""
        return self.contains(path, "")

    def contains(self, path: str, text: str) -> bool:
        """Return whether GET works at this moment, and its answer holds ``text``."""
        try:
            # A starting API server listens before it serves: ask anew rather than wait on one connection.
            return text in str(self.get(path, timeout_s=2.0))
        except ApiError:
            return False


def _context(ca: Path | None, identity: Pair | None) -> ssl.SSLContext:
    authority = b"" if ca is None else ca.read_bytes()
    certificate, key = (
        (b"", b"")
        if identity is None
        else (
            identity.certificate.read_bytes(),
            identity.key.read_bytes(),
        )
    )
    return tls_context(authority, certificate, key, verify=ca is not None)


class _Loop:
    """The thread that all requests run in; begun with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="local-api", daemon=True).start()
            return self._loop


_LOOP = _Loop()


def _forked() -> None:
    global _LOOP
    _LOOP = _Loop()  # threads stay with the parent


os.register_at_fork(after_in_child=_forked)


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, run in the thread of requests; interrupted, it is cancelled."""
    future = asyncio.run_coroutine_threadsafe(work, _LOOP.running())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _end(transport: DirectTransport) -> None:
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        asyncio.run_coroutine_threadsafe(transport.close(), _LOOP.running())
