"""The way each of our processes begins and ends: usage, settings, log, signals, exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from controller import file_descriptors, log
from controller.environ import SettingsError, help_text
from controller.frozen import dataclass


class LogSettings(Protocol):
    """Settings that say how the process logs."""

    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> str: ...


S = TypeVar("S", bound=LogSettings)


@dataclass(frozen=True, slots=True)
class Program(Generic[S]):
    """A process that is configured by its environment alone.

    Args:
        module: what is run, for ``--help``; its last part is the process's name in errors and in the log.
        read: reads the settings. Raises SettingsError, or one of ``refused``.
        describe: returns (variable, default, meaning) of each setting, for ``--help``.
        run: the process, until it ends; returns its exit code.
        refused: errors that are mended by whoever starts it: each is a line on stderr, without a traceback.
        loop: runs a coroutine in an event loop of its own.
    """

    module: str
    read: Callable[[Mapping[str, str]], S]
    describe: Callable[[], list[tuple[str, str, str]]]
    run: Callable[[S, Mapping[str, str]], Coroutine[Any, Any, int]]
    refused: tuple[type[Exception], ...] = ()
    loop: Callable[[Coroutine[Any, Any, int]], int] = asyncio.run

    def main(self, arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
        """Run the process and return its exit code.

        0: asked to end, or for its usage; 1: a part of it ended; 2: settings, arguments or credentials are
        wrong.
        """
        name = self.module.rpartition(".")[2]
        given = sys.argv[1:] if arguments is None else list(arguments)
        if given:
            print(f"usage: python -m {self.module}\n\nSettings are read from the environment:")
            print(help_text(self.describe()))
            return 0 if given in (["-h"], ["--help"]) else 2
        reported: tuple[type[Exception], ...] = (SettingsError, *self.refused)
        try:
            settings = self.read(environ)
            log.configure(settings.log_level, settings.log_format)
            file_descriptors.raise_limit()
            return self.loop(self.run(settings, environ))
        except reported as error:
            print(f"evalstop {name}: {error}", file=sys.stderr)
            return 2
        except Exception:
            log.get(f"evalstop.{name}").exception(f"the {name} ends")
            return 1


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, in the running event loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
