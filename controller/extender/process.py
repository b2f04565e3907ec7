"""The extender's process: cache, ledger and servers in one event loop, which ends as a whole.

Crash-only, like the operator: there is no state worth saving, a part that ends unasked ends the process, and
its next life reads the cluster anew before it says that it is ready.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from controller import log
from controller.api.values import timestamp
from controller.extender.client_certificates import LastCertificate
from controller.extender.ledger_sync import WATCHED, LedgerSync
from controller.extender.metrics import Metrics
from controller.extender.requeueing import RefusedPods, Requeuer
from controller.extender.scheduler_config import ConfigError, ignorable
from controller.extender.service import Service
from controller.extender.settings import Settings
from controller.extender.web import verbs_app
from controller.kube.cache import Cache, Store
from controller.kube.client import Api
from controller.kube.connection import Connection
from controller.kube.listwatch import ListWatch
from controller.kube.resources import Resource
from controller.policy.node import GpuLedger
from controller.web.certificates import expiry
from controller.web.connections import Connections, Limits
from controller.web.health import Health
from controller.web.reviews import Reviews
from controller.web.server import WebServer
from controller.web.status import health_server, metrics_server

_logger = log.get("evalstop.extender")

BEAT = 1.0  # s between beats
DEAF = 300.0  # s without a word from the API server after which others should be asked instead
# kube-scheduler's Go client keeps idle connections for 90 s: the server must not be the one to close them, or
# a request that is on its way is lost.
KEEP_ALIVE = 180.0
RESERVED = 128  # descriptors that no connection to us may take: those of the API client


class Extender:
    """Everything of one extender process.

    Args:
        settings: see Settings.
        connection: to the API server.
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
        self.ledger = GpuLedger(lambda at: timestamp(int(at)))
        self.refused = RefusedPods()
        self.requeuer = Requeuer(self.api, self.ledger, self.refused, self.metrics, clock, settings)
        self.service = Service(self.ledger, self.refused, self.metrics, clock)
        LedgerSync(self.cache, self.ledger, settings.rack_label, self.requeuer.changed, self.refused.forget)
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
        self.client_certificate = LastCertificate()
        self.connections = Connections.of_process(RESERVED)
        self.verbs = WebServer(
            verbs_app(self.service, self.metrics),
            settings.host,
            settings.port,
            tls=settings.tls(),
            limits=Limits(keep_alive=KEEP_ALIVE),
            connections=self.connections,
            name="verbs",
            on_certificate=self.client_certificate.observe,
        )
        self.health = self._health()
        self.status = health_server(self.health, settings.status_host, settings.status_port, self.connections)
        self._metrics_server = metrics_server(
            settings, settings.status_host, self.metrics.text, Reviews(self.api), self.connections
        )
        self._measure(clock)

    @property
    def port(self) -> int:
        """The real port of the verbs, once ready."""
        return self.verbs.port

    @property
    def status_port(self) -> int:
        return self.status.port

    @property
    def metrics_port(self) -> int:
        return self._metrics_server.port

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until ``stop`` is set. Returns the exit code: 0 asked to end, 1 a part ended by itself."""
        servers = self.status, self.verbs, self._metrics_server
        try:
            for server in servers:
                await server.start()
        except OSError:
            await self._stop(servers)
            raise
        follow = (watch.run() for watch in self._watches)
        tasks = _spawn(*follow, self._warm_up(), self.requeuer.run())
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            code = 0 if stop.is_set() else 1
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    _logger.error("a part of the extender ended", part=task.get_name(), exc_info=error)
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            await self._stop(servers)
        _logger.info("ended", code=code)
        return code

    def take(self, resource: Resource, obj: Mapping[str, Any], deleted: bool) -> None:
        """Put an object from a watch event into the cache, or drop it when it is gone."""
        if deleted:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    # -- inside ----------------------------------------------------------------------------------------------

    def _health(self) -> Health:
        health = Health()
        health.beat("loop")
        for watch, store in zip(self._watches, self.cache.stores.values(), strict=True):
            health.require(str(watch), partial(_behind, watch, store))
        health.require("ledger", lambda: None if self.service.ready else "about to be used")
        return health

    async def _stop(self, servers: Iterable[WebServer]) -> None:
        await asyncio.gather(*(server.stop() for server in servers))
        await self.api.close()

    async def _warm_up(self) -> None:
        """Beat; and begin to judge once every kind has been listed."""
        while True:
            self.health.beat("loop")
            if not self.service.ready and self.cache.complete:
                self.service.ready = True
                self.requeuer.changed()
                # What the cache holds by now lives as long as the process: the collector need not look at it
                # again and again, in the middle of a request.
                gc.collect()
                gc.freeze()
                _logger.info("the ledger holds the cluster", port=self.port, api=self._connection.origin)
            await asyncio.sleep(BEAT if self.service.ready else 0.05)

    def _measure(self, clock: Callable[[], float]) -> None:
        gauge = self.metrics.gauge
        self.metrics.counter(
            "evalstop_extender_connections_turned_away",
            "Connections to this process's servers that found no room (NoRoom), made room for others "
            "(MadeRoom), or took too long (TooSlow)",
            self.connections.turned_away,
            "server",
            "why",
        )
        self.metrics.counter(
            "evalstop_extender_strangers",
            "Connections with a certificate of the clients' authority and none of the names that may ask",
            lambda: [((), float(self.verbs.strangers))],
        )
        gauge(
            "evalstop_extender_unschedulable_pods",
            "Pods refused everywhere",
            lambda: [((), float(len(self.refused)))],
        )
        gauge(
            "evalstop_extender_reserved_gpus",
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
        ends = {name: expiry(Path(path)) for name, path in files.items()} | {
            "client": self.client_certificate.ends
        }
        return [((name,), at) for name, at in ends.items() if at is not None]

    def _ignorable(self) -> list[tuple[tuple[str, ...], float]]:
        """Read when asked: the file is the scheduler's, and may change. Unreadable: nothing is said."""
        path = self._settings.scheduler_config
        try:
            return [((), float(ignorable(path)))] if path else []
        except ConfigError:
            return []


def _behind(watch: ListWatch, store: Store) -> str | None:
    """Return why what is held of a kind may not be what there is; None: it is."""
    if not store.listed:
        return "not listed yet"
    quiet = time.monotonic() - watch.last_answer
    return f"nothing heard for {quiet:.0f} s, at most {DEAF:.0f} s are expected" if quiet > DEAF else None


def _spawn(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(c, name=getattr(c, "__qualname__", None)) for c in coroutines]
