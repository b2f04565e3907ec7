"""The process: its right to act, and the engine that it runs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import uvloop

from controller import log
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.connection import Connection, NoCredentials
from controller.operator.engine import Engine
from controller.operator.process.clock import ServerClock
from controller.operator.process.leader_election import Leadership, LeadershipLost, Term, Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.process.settings import Settings, describe
from controller.program import Program, stop_signal


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the operator until SIGTERM or SIGINT and return its exit code; 1 also where the Lease is lost."""
    connection = await connect(environ)
    clock = ServerClock()
    metrics = Metrics(clock)
    term = candidate(settings, connection, metrics, clock, environ)
    engine = Engine(settings, connection, clock=clock, term=term, metrics=metrics)
    try:
        return await engine.run(stop_signal())
    except LeadershipLost as error:
        log.get("evalstop.operator").error(
            "leadership lost; exiting so that the pod restarts as a standby", why=str(error)
        )
        return 1


def candidate(
    settings: Settings,
    connection: Connection,
    metrics: Metrics,
    clock: ServerClock,
    environ: Mapping[str, str],
) -> Term:
    """Return this process as one that wants to lead, or that need not ask.

    Its name in the Lease is nobody else's: the pod's, whose containers run one after another, so that the
    next one goes on at once; outside a pod that of this very process.
    """
    if not settings.leader_elect:
        return Unopposed()
    timing = settings.timing()
    # Calls of their own: no queue of status writes delays a renewal, and one that hangs leaves time for
    # another.
    api = Api(connection, max(0.5, timing.deadline / 2), metrics.call)
    api.on_headers = clock.observe  # a standby learns so whether its clock is right
    owner = environ.get("POD_UID") or secrets.token_hex(4)
    identity = f"{settings.instance}_{owner}"
    return Leadership(
        api,
        settings.lease_namespace,
        settings.lease_name,
        identity,
        timing,
        clock=clock,
        serves=settings.namespaces,
    )


# uvloop: a third off what a scrape costs in asyncio's own loop.
main = Program(
    "controller.operator", Settings.from_environ, describe, run, (NoCredentials,), loop=uvloop.run
).main
