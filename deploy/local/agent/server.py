"""The part of kubelet's own API that `kubectl logs` and `kubectl exec` need, on each node's address."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from deploy.local.agent import terminal
from deploy.local.agent.agent import NodeAgent
from deploy.local.agent.container import Container
from deploy.local.agent.logs import Options, read

log = logging.getLogger(__name__)


class KubeletServer:
    """Serves one node's logs and exec over TLS to client certificates with one of `client_names`."""

    def __init__(self, agent: NodeAgent, client_names: tuple[str, ...]) -> None:
        self._agent = agent
        self._client_names = client_names
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, certificate: Path, key: Path, client_ca: Path) -> None:
        """Listen. Raises OSError when the address is taken, ssl.SSLError for certificates that do not fit."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client_ca))
        tls.load_cert_chain(certificate, key)
        tls.verify_mode = ssl.CERT_REQUIRED
        application = web.Application(middlewares=[self._authorize])
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for way in ("/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"):
            application.router.add_get(way, self._exec)
        application.router.add_route("*", "/{rest:.*}", self._unsupported)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, ssl_context=tls).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        subject = dict(pair for group in (certificate or {}).get("subject", ()) for pair in group)
        if subject.get("commonName") not in self._client_names:
            return web.Response(
                status=403, text=f"{subject.get('commonName')!r} may not use this node's API\n"
            )
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _unsupported(self, request: web.Request) -> web.Response:
        what = request.path.split("/")[1]
        return web.Response(status=501, text=f"{what}: not offered by the development node agent\n")

    def _container(self, request: web.Request) -> Container | None:
        names = request.match_info
        worker = self._agent.find(names["namespace"], names["pod"])
        return worker.container(names["container"]) if worker is not None else None

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        if container is None:
            return _unknown(request)
        process = container.process
        if process is None:
            return web.Response(status=400, text=f"container {container.spec['name']!r} is not running\n")
        argv = request.query.getall("command", [])
        if not argv:
            return web.Response(status=400, text="exec: no command was given\n")
        wanted = terminal.ExecRequest(argv, _true(request, "input"), _true(request, "tty"))
        return await terminal.serve(request, process, wanted)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        if container is None:
            return _unknown(request)
        try:
            options = _options(request)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        previous = _true(request, "previous")
        path, problem = _log_of(container, previous)
        if problem:
            return web.Response(status=400, text=problem)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            writer = container.writer if container.writer and container.writer.path == path else None
            async for chunk in read(path, options, writer):
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass  # the reader has gone
        return response


def _unknown(request: web.Request) -> web.Response:
    names = request.match_info
    text = f"no container {names['container']!r} in pod {names['pod']!r} here\n"
    return web.Response(status=404, text=text)


def _true(request: web.Request, name: str) -> bool:
    return request.query.get(name) in ("true", "1")


def _log_of(container: Container, previous: bool) -> tuple[Path, str]:
    """Return the log's path, or why there is none."""
    number = container.record.restarts - (1 if previous else 0)
    path = container.log_path(number)
    name = container.spec["name"]
    if path.exists():
        return path, ""
    if previous:
        return path, f"previous terminated container {name!r} not found"
    earlier = container.log_path(number - 1)
    if earlier.exists():  # between two runs: the last one's
        return earlier, ""
    waiting = container.record.state.get("waiting") or {}
    return path, f"container {name!r} is waiting to start: {waiting.get('reason', 'unknown')}"


def _options(request: web.Request) -> Options:
    query = request.query
    since = None
    if text := query.get("sinceTime"):
        since = datetime.fromisoformat(text)
    elif text := query.get("sinceSeconds"):
        since = datetime.now(UTC) - timedelta(seconds=int(text))
    return Options(
        follow=_true(request, "follow"),
        timestamps=_true(request, "timestamps"),
        tail=int(query["tailLines"]) if "tailLines" in query else None,
        since=since,
        limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
    )
