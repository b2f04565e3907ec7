"""An API server that fails: a proxy for the operator's connection alone.

It forwards to the real API server under the operator's own certificate, and on the way answers with errors,
drops answers after the request went through, delays, is gone, or is a replica that lags: GET and LIST then
show the cluster at an etcd revision of some seconds ago (`resourceVersionMatch=Exact`), and watch events
come that much later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import ssl
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import yaml
from aiohttp import web

from deploy.local.plane import Plane

_REASONS = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_quiet = logging.getLogger("evalstop.faulty-proxy")  # it breaks connections on purpose
_quiet.setLevel(logging.CRITICAL)
_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length", "host", "date"})


@dataclass(frozen=True, slots=True)
class Upstream:
    """The real API server and the identity under which the proxy asks it."""

    url: str
    context: ssl.SSLContext

    @staticmethod
    def of(plane: Plane, user: str, groups: Iterable[str]) -> Upstream:
        context = ssl.create_default_context(cafile=str(plane.ca))
        pair = plane.client_cert(user, groups)
        context.load_cert_chain(pair.certificate, pair.key)
        return Upstream(plane.url, context)


class FaultyProxy:
    """Serves on a port of 127.0.0.1 while the block runs. ``felt``: how often each fault met a request, or a
    line of a watch."""

    def __init__(self, upstream: Upstream, rng: random.Random) -> None:
        self._upstream, self._rng = upstream, rng
        self.felt: Counter[str] = Counter()
        self.port = 0
        self._now: dict[str, int] = Counter()  # kind -> how many runs have it on at present
        self._lag = 5.0  # s
        self._revisions: deque[tuple[float, str]] = deque(maxlen=60)
        self._watches: set[asyncio.Task[Any]] = set()
        self._session: aiohttp.ClientSession
        self._runner: web.AppRunner

    async def __aenter__(self) -> FaultyProxy:
        connector = aiohttp.TCPConnector(ssl=self._upstream.context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=False)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, logger=_quiet, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._sampling = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sampling.cancel()
        for task in tuple(self._watches):
            task.cancel()
        await self._runner.cleanup()
        await self._session.close()

    def kubeconfig(self, folder: Path) -> Path:
        """By way of the proxy, which has the certificate: none is needed here."""
        path = folder / "proxy.kubeconfig"
        named = {"name": "proxy"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{**named, "user": {"token": "none"}}],
            "contexts": [{**named, "context": {"cluster": "proxy", "user": "proxy"}}],
            "current-context": "proxy",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def on(self, kind: str, lasts: float = 0.0) -> None:
        self._now[kind] += 1
        if kind == "lag":
            self._lag = max(2.0, min(10.0, lasts))
        if kind == "away":
            for task in tuple(self._watches):  # streams break, as they do with the server
                task.cancel()

    def off(self, kind: str) -> None:
        self._now[kind] -= 1

    def _is(self, kind: str) -> bool:
        return self._now[kind] > 0

    # -- requests ----------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            return await self._answer(request)
        except (aiohttp.ClientError, ConnectionError, asyncio.CancelledError):
            _hang_up(request)
            raise
        finally:
            self._watches.discard(task)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("1", "true")
        if self._is("away"):
            self.felt["away"] += 1
            _hang_up(request)
            raise ConnectionResetError
        if self._is("delay"):
            self.felt["delay"] += 1
            await asyncio.sleep(self._rng.uniform(0.2, 3.0))
        if (status := self._refusal(request.method, watch)) is not None:
            return _failure(status)
        if watch:
            return await self._watch(request)
        lagging = self._is("lag") and request.method == "GET"
        if lagging and (old := self._old()) and (answer := await self._as_of(request, old)) is not None:
            self.felt["lag"] += 1
            return answer
        status, data, headers = await self._forward(request)
        if self._is("lost") and self._rng.random() < (0.4 if request.method != "GET" else 0.15):
            self.felt["lost"] += 1
            _hang_up(request)
            raise ConnectionResetError
        return web.Response(status=status, body=data, headers=headers)

    def _refusal(self, method: str, watch: bool) -> int | None:
        for code in (409, 410, 429, 500, 503):
            fits = {409: method != "GET", 410: method == "GET"}.get(code, True)
            if fits and self._is(str(code)) and self._rng.random() < 0.5:
                self.felt[str(code)] += 1
                return code
        return None

    async def _forward(self, request: web.Request) -> tuple[int, bytes, Mapping[str, str]]:
        body = await request.read()
        # Shielded: a client that hangs up does not take its request back.
        return await asyncio.shield(asyncio.ensure_future(self._send(request, body)))

    async def _send(self, request: web.Request, body: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        url = self._upstream.url + request.raw_path
        async with self._session.request(
            request.method, _raw(url), data=body or None, headers=_onward(request.headers)
        ) as answer:
            return answer.status, await answer.read(), _back(answer.headers)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        url = _raw(self._upstream.url + request.raw_path)
        endless = aiohttp.ClientTimeout(total=None)
        headers = _onward(request.headers) | {"Accept-Encoding": "identity"}
        async with self._session.get(url, headers=headers, timeout=endless) as answer:
            response = web.StreamResponse(status=answer.status, headers=_back(answer.headers))
            await response.prepare(request)
            events: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
            reading = asyncio.create_task(_read_lines(answer, events))
            try:
                while (item := await events.get()) is not None:
                    at, line = item
                    await self._lagging(at)
                    if self._is("410") and self._rng.random() < 0.3:
                        self.felt["410"] += 1
                        gone = {"type": "ERROR", "object": _status(410)}
                        await response.write(json.dumps(gone).encode() + b"\n")
                        break
                    await response.write(line)
            finally:
                reading.cancel()
            with contextlib.suppress(ConnectionError):
                await response.write_eof()
            return response

    async def _lagging(self, at: float) -> None:
        """Until what happened at this moment (monotonic s) may be told."""
        late = False
        while (left := at + self._lag - time.monotonic()) > 0 and self._is("lag"):
            late = True
            await asyncio.sleep(min(0.1, left))
        self.felt["lag"] += late

    # -- the past ----------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        """Remember which revision etcd was at when."""
        path = "/apis/evalstop.dev/v1alpha1/gpupools?limit=1"
        while True:
            with contextlib.suppress(aiohttp.ClientError, KeyError, ValueError):
                async with self._session.get(self._upstream.url + path) as answer:
                    found = json.loads(await answer.read())
                    self._revisions.append((time.monotonic(), found["metadata"]["resourceVersion"]))
            await asyncio.sleep(0.5)

    def _old(self) -> str | None:
        limit = time.monotonic() - self._lag
        return next((version for at, version in reversed(self._revisions) if at <= limit), None)

    async def _as_of(self, request: web.Request, version: str) -> web.Response | None:
        """The answer to a GET or LIST as it was at that revision; None: this one has no past."""
        parts = request.path.strip("/").split("/")
        root = 3 if parts[0] == "apis" else 2
        rest = parts[root:]
        namespaced = rest[:1] == ["namespaces"] and len(rest) > 2
        tail = rest[2:] if namespaced else rest
        if len(tail) not in (1, 2) or "continue" in request.query:
            return None
        query = dict(request.query) | {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        collection = "/".join(parts[:root] + (rest[:2] if namespaced else []) + tail[:1])
        if len(tail) == 2:
            query["fieldSelector"] = f"metadata.name={tail[1]}"
        url = f"{self._upstream.url}/{collection}?{urlencode(query)}"
        async with self._session.get(_raw(url), headers={"Accept": "application/json"}) as answer:
            data = await answer.read()
            if answer.status != 200:
                return None
        if len(tail) == 1:
            return web.Response(body=data, content_type="application/json")
        found = json.loads(data)
        if not found["items"]:
            return _failure(404)
        kind = found["kind"].removesuffix("List")
        item = {"apiVersion": found["apiVersion"], "kind": kind, **found["items"][0]}
        return web.json_response(item)


async def _read_lines(
    answer: aiohttp.ClientResponse, events: asyncio.Queue[tuple[float, bytes] | None]
) -> None:
    rest = b""
    try:
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                events.put_nowait((time.monotonic(), line + b"\n"))
    except (aiohttp.ClientError, TimeoutError):
        pass
    finally:
        events.put_nowait(None)


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _raw(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)


def _onward(headers: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in _HOP | {"authorization"}}


def _back(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in headers.items() if k.lower() not in _HOP}
    return kept | {k: v for k, v in headers.items() if k.lower() == "date"}


def _status(code: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "made to fail",
        "reason": _REASONS.get(code, "NotFound"),
        "code": code,
    }


def _failure(code: int) -> web.Response:
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(_status(code), status=code, headers=headers)
