"""The process: settings, logs, credentials, signals, exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from controller import log
from controller.environ import help_text
from controller.kube.connect import NoCredentials, connect
from controller.operator.engine import Engine
from controller.operator.settings import Settings, SettingsError, describe

USAGE = "usage: python -m controller.operator\n\nSettings are read from the environment:\n"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the operator. Exit code 0: asked to end; 1: a part ended; 2: settings or credentials wrong."""
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
        return asyncio.run(run(settings, environ))
    except NoCredentials as error:
        print(f"evalstop operator: {error}", file=sys.stderr)
        return 2
    except Exception:
        log.get("evalstop.main").exception("the operator ends")
        return 1


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """The operator's life in an event loop that already runs."""
    connection = await connect(environ)
    engine = Engine(settings, connection)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await engine.run(stop)
