"""Operators as processes, started again whenever they end, as a Deployment does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from deploy.local.ports import free_port
from tests.bench.faults.stage import REPOSITORY

# The operator's own entry, with a scrape loop in a hurry: a run of a few seconds has no time for the five
# seconds between two reads that the API allows.
HURRIED = """
import sys
from controller.metrics.schedule import Schedule
put, factor = Schedule.put, float(sys.argv[1])
Schedule.put = lambda self, key, interval, now: put(self, key, interval * factor, now)
from controller.operator.main import main
sys.exit(main([]))
"""
HURRY = 0.2  # of the interval: a second between two scrapes
LEASE = {
    "EVALSTOP_LEASE_SECONDS": "5",
    "EVALSTOP_LEASE_RENEW_SECONDS": "4",
    "EVALSTOP_LEASE_RETRY_SECONDS": "0.5",
}


class Operator:
    """One replica. ``ends``: (when, exit code) of each of its processes that ended.

    Args:
        hurry: of each interval between two scrapes, as it is taken.
        settings: environment variables in the place of those of `start`.
    """

    def __init__(
        self,
        name: str,
        kubeconfig: Path,
        folder: Path,
        hurry: float = HURRY,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._hurry, self._settings = hurry, dict(settings or {})
        self.ends: list[tuple[float, int]] = []
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._port = int(self._settings.get("EVALSTOP_PORT", 0)) or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("EVALSTOP_", "POD_"))}
        environ |= {
            "KUBECONFIG": str(self._kubeconfig),
            "EVALSTOP_HOST": "127.0.0.1",
            "EVALSTOP_PORT": str(self._port),
            "EVALSTOP_METRICS_PORT": "0",
            "EVALSTOP_QUEUE_PORT": "0",
            "EVALSTOP_INSTANCE": self.name,
            "EVALSTOP_SCRAPE_ADDRESSES": "Loopback",
            "EVALSTOP_LOG_FORMAT": "console",
            "EVALSTOP_API_TIMEOUT": "10",
            "EVALSTOP_FOREIGN_SECONDS": "5",
            "EVALSTOP_DECISION_LOG": str(self._folder / f"{self.name}.decisions.jsonl"),
            "POD_UID": self.name,  # a container that starts again in its pod
            **LEASE,
            **self._settings,
        }
        with self.log.open("a") as log:
            log.write(f"--- {time.time():.3f} starts\n")
            log.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-c", HURRIED, str(self._hurry)], cwd=REPOSITORY, env=environ, stderr=log
            )

    async def keep(self, ended: Callable[[Operator], None]) -> None:
        """Start it, and again whenever it ends, until cancelled."""
        pause = 0.5
        while True:
            began = time.monotonic()
            await asyncio.to_thread(self.start)
            assert self._process is not None
            code = await self._ended(self._process)
            self.ends.append((time.time(), code))
            ended(self)
            pause = 0.5 if time.monotonic() - began > 20 else min(5.0, pause * 2)
            await asyncio.sleep(pause)

    async def _ended(self, process: subprocess.Popen[bytes]) -> int:
        return await asyncio.to_thread(process.wait)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def wake(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def exit_code(self) -> int | None:
        """Of the process that was started last; None: it runs."""
        return None if self._process is None else self._process.poll()

    def ready(self) -> bool:
        """Whether it leads, asked without an event loop. Raises `ChildProcessError` where it has ended."""
        if self.exit_code is not None:
            raise ChildProcessError(f"{self.name} ended with {self.exit_code}; see {self.log}")
        with contextlib.suppress(OSError), urllib.request.urlopen(self._ready_url, timeout=2.0) as answer:
            return "\nleader: " in answer.read().decode()
        return False

    @property
    def _ready_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/readyz"

    async def leads(self, session: aiohttp.ClientSession) -> bool:
        """Whether it is ready and says that it leads."""
        url = self._ready_url
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as answer:
                return answer.status == 200 and "\nleader: " in await answer.text()
        return False

    def end(self, seconds: float = 15.0) -> None:
        """Ask its process to end, so that it gives its Lease back; end it if it does not."""
        self._send(signal.SIGTERM)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.close()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
