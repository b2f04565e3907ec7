"""The process: settings, logs, credentials, signals, exit code."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence

import uvloop

from controller import file_descriptors, log
from controller.environ import help_text
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.connection import Connection, NoCredentials
from controller.operator.engine import Engine
from controller.operator.process.clock import ServerClock
from controller.operator.process.leader_election import Leadership, LeadershipLost, Term, Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.process.settings import Settings, SettingsError, describe

USAGE = "usage: python -m controller.operator\n\nSettings are read from the environment:\n"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the operator. Exit code 0: asked to end; 1: a part ended, or the Lease was lost; 2: settings or
    credentials wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given:
        print(USAGE + help_text(describe()))
        return 0 if given in (["-h"], ["--help"]) else 2
    try:
        settings = Settings.from_environ(environ)
    except SettingsError as error:
        print(f"evalstop operator: {error}", file=sys.stderr)
        return 2
    log.configure(settings.log_level, settings.log_format)
    try:
        return uvloop.run(run(settings, environ))  # a third off what a scrape costs in asyncio's own loop
    except NoCredentials as error:
        print(f"evalstop operator: {error}", file=sys.stderr)
        return 2
    except LeadershipLost as error:
        log.get("evalstop.main").error(
            "the operator ends: another life of it starts as a standby", why=str(error)
        )
        return 1
    except Exception:
        log.get("evalstop.main").exception("the operator ends")
        return 1


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the operator until SIGTERM or SIGINT and return its exit code."""
    file_descriptors.raise_limit()
    connection = await connect(environ)
    clock = ServerClock()
    metrics = Metrics(clock)
    term = candidate(settings, connection, metrics, clock, environ)
    engine = Engine(settings, connection, clock=clock, term=term, metrics=metrics)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await engine.run(stop)


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
    api.on_headers = clock.heard  # a standby learns so whether its clock is right
    owner = environ.get("POD_UID") or secrets.token_hex(4)
    identity = f"{settings.instance}_{owner}"
    return Leadership(api, settings.lease_namespace, settings.lease_name, identity, timing, clock=clock)
