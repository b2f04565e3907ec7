"""The process: settings, logs, credentials, signals, exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from controller import file_descriptors, log
from controller.environ import help_text
from controller.extender.process import Extender
from controller.extender.scheduler_config import ConfigError, ignorable
from controller.extender.settings import Settings, SettingsError, describe
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials

USAGE = "usage: python -m controller.extender\n\nSettings are read from the environment:\n"


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the extender. Exit code 0: asked to end; 1: a part ended; 2: settings or credentials wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given:
        print(USAGE + help_text(describe()))
        return 0 if given in (["-h"], ["--help"]) else 2
    try:
        settings = Settings.from_environ(environ)
        if settings.scheduler_config:
            ignorable(settings.scheduler_config)  # better now than when the metric is first read
    except (SettingsError, ConfigError) as error:
        print(f"evalstop extender: {error}", file=sys.stderr)
        return 2
    log.configure(settings.log_level, settings.log_format)
    try:
        return asyncio.run(run(settings, environ))
    except (NoCredentials, OSError) as error:
        print(f"evalstop extender: {error}", file=sys.stderr)
        return 2
    except Exception:
        log.get("evalstop.extender").exception("the extender ends")
        return 1


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the extender until SIGTERM or SIGINT and return its exit code."""
    file_descriptors.raise_limit()
    extender = Extender(settings, await connect(environ))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await extender.run(stop)
