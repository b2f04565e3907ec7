"""The extender's process: cache, ledger and servers in one event loop, which ends as a whole.

Crash-only, like the operator: there is no state worth saving, a part that ends unasked ends the process, and
its next life reads the cluster anew before it says that it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from controller import log
from controller.extender.callers import Callers, noting
from controller.extender.certificates import expiry
from controller.extender.feed import WATCHED, Feed
from controller.extender.lookout import Lookout
from controller.extender.metrics import Metrics
from controller.extender.parked import Parking
from controller.extender.scheduler_config import ConfigError, ignorable
from controller.extender.service import Service
from controller.extender.settings import Settings
from controller.extender.waking import Waking
from controller.extender.web import status_app, verbs_app
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import Connection
from controller.kube.listwatch import ListWatch
from controller.kube.resources import Resource
from controller.policy.nodeclaims import Ledger

_logger = log.get("evalstop.extender")

STALL = 60.0  # s without a beat of the loop after which /healthz fails
BEAT = 1.0  # s between beats
DEAF = 300.0  # s without a word from the API server after which others should be asked instead
# kube-scheduler's Go client keeps idle connections for 90 s: the server must not be the one to close them, or
# a request that is on its way is lost.
KEEP_ALIVE = 180


class Extender:
    """Everything of one extender process.

    Args:
        settings: see Settings. connection: to the API server.
        clock: seconds since the epoch.
        sink: tests stand between the watch and the cache with it.
    """

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        clock: Callable[[], float] = time.time,
        sink: Callable[[Resource, Mapping[str, Any], bool], None] | None = None,
    ) -> None:
        self._settings, self._connection = settings, connection
        self.metrics = Metrics()
        self.api = Api(connection, settings.api_timeout, self.metrics.call)
        self.cache = Cache(WATCHED)
        self.ledger = Ledger(_written)
        self.parking = Parking()
        self.waking = Waking(self.api, self.ledger, self.parking, self.metrics, clock)
        self.service = Service(self.ledger, self.parking, self.metrics, clock)
        self.lookout = Lookout(
            self.api, self.ledger, self.waking, settings.scheduler_name, clock, settings.look_seconds
        )
        Feed(self.cache, self.ledger, settings.rack_label, self.waking.changed, self.parking.forget)
        self._watches = [
            ListWatch(
                self.api,
                resource,
                sink or self.take,
                self.cache.replace,
                settings.relist_seconds,
                keep=self.cache.stored,
            )
            for resource in WATCHED
        ]
        self._beat = time.monotonic()
        self._serving = _stamp(settings)
        self.callers = Callers()
        verbs = verbs_app(self.service, self.metrics)
        self.verbs = server(verbs, settings.host, settings.port, settings, self.callers)
        status = status_app(self.metrics, self.unready, self.stalled)
        self.status = server(status, settings.status_host, settings.status_port)
        self._measure(clock)

    @property
    def port(self) -> int:
        """The real port of the verbs, once ready."""
        return self.verbs.bound_port

    @property
    def status_port(self) -> int:
        return self.status.bound_port

    def unready(self) -> list[str]:
        """Why no requests should come yet, in sentences."""
        problems = [f"{r}: not listed yet" for r, store in self.cache.stores.items() if not store.listed]
        if not problems and not self.service.ready:
            problems.append("ledger: about to be used")
        now = time.monotonic()
        problems += [
            f"{watch}: nothing heard for {now - watch.heard:.0f} s, at most {DEAF:.0f} s are expected"
            for watch in self._watches
            if now - watch.heard > DEAF
        ]
        return problems + self.stalled()

    def stalled(self) -> list[str]:
        quiet = time.monotonic() - self._beat
        if quiet <= STALL:
            return []
        return [f"loop: no sign of life for {quiet:.0f} s, at most {STALL:.0f} s are expected"]

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until ``stop`` is set. Returns the exit code: 0 asked to end, 1 a part ended by itself."""
        servers = self.status.serve(), self.verbs.serve()
        follow = (watch.run() for watch in self._watches)
        tasks = _spawn(*servers, *follow, self._warm_up(), self.waking.run(), self.lookout.run())
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            code = 0 if stop.is_set() else 1
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    _logger.error("a part of the extender ended", part=task.get_name(), exc_info=error)
        finally:
            self.verbs.should_exit = self.status.should_exit = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await asyncio.gather(*tasks[:2], return_exceptions=True)
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            await self.api.close()
        _logger.info("ended", code=code)
        return code

    def take(self, resource: Resource, obj: Mapping[str, Any], gone: bool) -> None:
        """An event of the watch."""
        if gone:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    # -- inside ----------------------------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        """Beat; and begin to judge once every kind has been listed."""
        while True:
            self._beat = time.monotonic()
            if not self.service.ready and self.cache.complete:
                self.service.ready = True
                self.waking.changed()
                # What the cache holds by now lives as long as the process: the collector need not look at it
                # again and again, in the middle of a request.
                gc.collect()
                gc.freeze()
                _logger.info("the ledger holds the cluster", port=self.port, api=self._connection.origin)
            self._renew()
            await asyncio.sleep(BEAT if self.service.ready else 0.05)

    def _renew(self) -> None:
        """Serve with the certificate that lies in the files now: it is renewed long before it ends."""
        found = _stamp(self._settings)
        if found == self._serving or self.verbs.config.ssl is None:
            return
        self._serving = found
        pair = (self._settings.certificate, self._settings.key)
        try:
            # First aside: of a pair that does not match, the context that serves would keep the half.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
            self.verbs.config.ssl.load_cert_chain(*pair)
        except (OSError, ssl.SSLError) as error:  # half of the pair is new: the other half comes, too
            _logger.warning("cannot read the renewed certificate", error=str(error))
        else:
            _logger.info("the serving certificate was renewed")

    def _measure(self, clock: Callable[[], float]) -> None:
        gauge = self.metrics.gauge
        gauge("evalstop_extender_parked", "Pods refused everywhere", lambda: [((), float(len(self.parking)))])
        gauge(
            "evalstop_extender_kept_gpus",
            "GPUs kept for gangs, beyond what their pods hold",
            lambda: [((), float(sum(self.ledger.keeping(clock()).values())))],
        )
        gauge(
            "evalstop_extender_objects",
            "Objects in the cache",
            lambda: [((r.plural,), float(len(s))) for r, s in self.cache.stores.items()],
            "resource",
        )
        gauge("evalstop_extender_ready", "1: answers; 0: refuses", lambda: [((), float(self.service.ready))])
        gauge(
            "evalstop_extender_ignorable",
            "1: kube-scheduler places pods without this extender when it fails (open); 0: pods wait (closed)",
            self._ignorable,
        )
        gauge(
            "evalstop_extender_certificate_expiry_timestamp_seconds",
            "When a certificate ends: that it serves with, its clients' authority, or that of who last asked",
            self._expiry,
            "certificate",
        )

    def _expiry(self) -> list[tuple[tuple[str, ...], float]]:
        """Read when asked: the files are renewed. Of an unreadable one nothing is said, nor of clients when
        nobody has asked."""
        files = {"serving": self._settings.certificate, "client-ca": self._settings.client_ca}
        ends = {name: expiry(Path(path)) for name, path in files.items()} | {"client": self.callers.ends}
        return [((name,), at) for name, at in ends.items() if at is not None]

    def _ignorable(self) -> list[tuple[tuple[str, ...], float]]:
        """Read when asked: the file is the scheduler's, and may change. Unreadable: nothing is said."""
        path = self._settings.scheduler_config
        try:
            return [((), float(ignorable(path)))] if path else []
        except ConfigError:
            return []


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def bound_port(self) -> int:
        """The real port; 0 before the server listens."""
        if not self.started:
            return 0
        listener: socket.socket = self.servers[0].sockets[0]
        return int(listener.getsockname()[1])


def server(
    app: FastAPI, host: str, port: int, tls: Settings | None = None, callers: Callers | None = None
) -> Server:
    """A server; with ``tls`` for clients with a certificate only, whose ends ``callers`` is told."""
    secured: dict[str, Any] = {}
    if tls is not None:
        secured = {
            "ssl_certfile": tls.certificate,
            "ssl_keyfile": tls.key,
            "ssl_ca_certs": tls.client_ca,
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
    config = uvicorn.Config(
        app,
        http="h11" if callers is None else noting(callers),  # unlike httptools', h11's heads have a limit
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=3,
        server_header=False,
        **secured,
    )
    config.load()
    return Server(config)


def _stamp(settings: Settings) -> tuple[float, ...]:
    """When the files of the serving certificate last changed; a file that is away counts as changed."""
    files = (Path(settings.certificate), Path(settings.key))
    return tuple(file.stat().st_mtime if file.exists() else 0.0 for file in files)


def _spawn(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(c, name=getattr(c, "__qualname__", None)) for c in coroutines]


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
