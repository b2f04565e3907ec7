"""The dashboard in a cluster: follows RLHFJobs and GPUPools as itself, shows viewers what they may list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller import log
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials
from controller.program import Program, stop_signal
from controller.web.connections import Connections, Limits
from controller.web.dashboard.access import ReviewGate
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.queues import FixedAddress, Queues
from controller.web.dashboard.settings import PREFIX, Settings, describe
from controller.web.hosts import Hosts
from controller.web.reviews import Reviews
from controller.web.server import WebServer
from controller.web.status import health_server
from controller.web.tls import Tls

_logger = log.get("evalstop.dashboard")

RESERVED = 64  # descriptors that no connection to us may take: those of the API client and the queue API's
MOST_OF_A_PEER = 192  # a proxy in front of many people is one peer


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT; or until nothing can be followed any more, code 1."""
    stop = stop_signal()
    connection = await connect(environ)
    connections = Connections.of_process(RESERVED)
    queues = Queues(FixedAddress(settings.queue_url))
    # Served from the first moment: /healthz answers while the first LIST is under way, /readyz says so.
    async with Api(connection, user_agent="evalstop-dashboard") as api:
        feed = Feed(api, operator_namespace=settings.operator_namespace)
        gate = ReviewGate(Reviews(api, settings.audience), settings.audience)
        # Without a certificate elsewhere than on loopback there is a proxy in front, which has one.
        secure = bool(settings.tls_cert) or settings.plain_http == "allow"
        made = Dashboard(feed, queues, gate, Hosts(settings.hosts), secure=secure)
        tls = Tls(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        server = WebServer(
            made.app,
            settings.host,
            settings.port,
            tls=tls,
            limits=Limits(per_peer=MOST_OF_A_PEER),
            connections=connections,
            name="pages",
        )
        servers = [server]
        if settings.status_host:  # the kubelet brings no token and reaches no loopback address
            at = settings.status_host, settings.status_port
            servers.append(health_server(made.health, *at, connections))
        try:
            for one, of in zip(servers, ("", "STATUS_"), strict=False):
                where = f"{PREFIX}{of}HOST, {PREFIX}{of}PORT"
                await one.start()
        except OSError as error:
            _logger.error("cannot listen", settings=where, error=str(error))
            return 2
        try:
            async with feed.following(patience=0.0):
                _logger.info("serving", host=settings.host, port=server.port, source=connection.origin)
                ends = [asyncio.create_task(event.wait()) for event in (stop, feed.broken)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
                return 0 if stop.is_set() else 1
        finally:
            for one in servers:
                await one.stop()


main = Program("controller.web.dashboard", Settings.from_environ, describe, run, (NoCredentials,)).main
