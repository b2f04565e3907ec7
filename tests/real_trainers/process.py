"""A real trainer's process, as a pod would have it: its run.json, its page, its end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.metrics.parse import parse
from controller.policy.job import ScrapeView
from tests.real_trainers.warm import Warm

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PATIENCE = 240.0  # s for anything to happen


Start = Callable[..., "Trainer"]


def report(text: str) -> None:
    """Add a line to the report of `make test-trainers`."""
    print(text)
    with open(os.environ["EVALSTOP_TRAINERS_REPORT"], "a") as file:
        file.write(text + "\n")


def _port_of_its_own() -> int:
    """Return a port at which the ranks can meet, below those that the kernel gives to connections.

    One of those may be taken by any connection of the machine before the first rank listens: by that of
    another rank too, which tries to connect until it does, and so connects to itself. Then the first one ends
    with EADDRINUSE, and the others wait for it for half an hour.
    """
    while True:
        port = random.randint(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("0.0.0.0", port))
            return port


def environment(**variables: str) -> dict[str, str]:
    """Return what every trainer is started with."""
    return {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'clients' / 'python'}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        **variables,
    }


class Trainer:
    """One start after another of a script, over the same checkpoints.

    Args:
        folder: for what it reads and writes.
        script: of this folder.
        ranks: how many processes.
        warm: what they are forked from, all of them a pod's own process; default: torchrun starts them.
        variables: of their environment.
    """

    def __init__(
        self, folder: Path, script: str, ranks: int = 1, warm: Warm | None = None, **variables: str
    ) -> None:
        self.folder, self.out = folder, folder / "out"
        self._warm, self._forks = warm, dict[int, int | None]()  # exit codes by process
        self.script, self.ranks, self.variables = script, ranks, variables
        # A block of the loopback net for itself: the page's port is the contract's.
        self.ip = f"127.{random.randint(16, 250)}.{random.randint(1, 254)}.7"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0  # where in the log this start begins
        for rank in range(ranks):
            (folder / f"run-{rank}").mkdir(parents=True)
            self.ask(rank)

    def ask(self, *ranks: int, id: int = 0, **wanted: bool) -> None:
        """Write what the operator asks for, where these ranks read it; none: all."""
        run = {"uid": "u-1", "attempt": 1, "scrapeIntervalSeconds": 1, "request": {"id": id, **wanted}}
        for rank in ranks or range(self.ranks):
            draft = self.folder / f"run-{rank}" / ".new"
            draft.write_text(json.dumps(run))
            draft.rename(self.folder / f"run-{rank}" / "run.json")

    def start(self, steps: int) -> None:
        """Start it as a pod would."""
        variables = environment(POD_IP=self.ip, RUN_DIRS=str(self.folder / "run"), **self.variables)
        self._begins = self.log.stat().st_size if self.log.exists() else 0
        command = [str(HERE / self.script), str(self.out), str(steps)]
        if self._warm is not None:
            self._forks = dict.fromkeys(self._fork(self._warm, command, variables))
            return
        python = Path(os.environ["EVALSTOP_REAL_TRAINERS"])
        launch = [str(python)]
        if self.ranks > 1:
            launch = [str(python.with_name("torchrun")), "--standalone", f"--nproc-per-node={self.ranks}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*launch, *command],
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _fork(self, warm: Warm, command: list[str], variables: dict[str, str]) -> list[int]:
        if self.ranks > 1:  # as torchrun would set it
            world = str(self.ranks)
            variables |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port_of_its_own())}
        numbers = [
            {"RANK": str(n), "LOCAL_RANK": str(n)} if self.ranks > 1 else {} for n in range(self.ranks)
        ]
        return [warm.start(command, {**variables, **number}, self.log) for number in numbers]

    def _ended(self) -> int | None:
        """Return the exit code, that of the first process that failed if there are some; None: it runs."""
        if self._warm is None:
            assert self._process is not None
            return self._process.poll()
        for pid, code in self._forks.items():
            if code is None:
                self._forks[pid] = self._warm.poll(pid)
        codes = list(self._forks.values())
        return None if None in codes else next((code for code in codes if code), 0)

    def _failed(self) -> dict[int, int]:
        """Return the exit codes, by process, of ranks that have failed: others may wait for them for ever."""
        return {pid: code for pid, code in self._forks.items() if code}

    @property
    def said(self) -> str:
        """What this start has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._begins)
            return log.read().decode(errors="replace")

    def wait(self, what: str, ready: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """Return what ``ready`` returns once that is true; fails if the process ends before."""
        end = time.monotonic() + patience
        while True:
            if found := ready():
                return found
            if (code := self._ended()) is not None and not (found := ready()):
                pytest.fail(f"it ended with {code} before {what}\n{self.said[-4000:]}")
            if failed := self._failed():
                pytest.fail(f"of its ranks ended {failed} before {what}\n{self.said[-8000:]}")
            if time.monotonic() > end:
                self._tell_where()
                pytest.fail(f"not {what} within {patience:g} s\n{self.said[-8000:]}")
            time.sleep(0.01)

    def page(self, metric: str) -> ScrapeView | None:
        """Return the page as the operator reads it; None: it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.ip}:9400/metrics", timeout=2.0) as answer:
                return parse(answer.read(), metric)
        except OSError:
            return None

    def evals(self, metric: str) -> list[tuple[int, float]]:
        page = self.page(metric)
        return [] if page is None else [(point.step, point.score) for point in page.points]

    def records(self) -> dict[str, dict[str, Any]]:
        """Save records by the name of their checkpoint."""
        found = {}
        for path in (self.out / ".evalstop" / "saves").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # cleared just now
                record = json.loads(path.read_text())
                found[record["name"]] = record
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to what the container runs."""
        if self._process is not None:
            self._process.send_signal(number)
        for pid, code in self._forks.items():
            if code is None:
                os.kill(pid, number)

    def end(self) -> int:
        """Wait for its end and return the exit code."""
        end = time.monotonic() + PATIENCE
        while (code := self._ended()) is None:
            if time.monotonic() > end:
                self._tell_where()
                pytest.fail(f"it has not ended within {PATIENCE:g} s\n{self.said[-8000:]}")
            time.sleep(0.01)
        return code

    def _tell_where(self) -> None:
        """Have each process that hangs write to its log where its threads are (`warm`)."""
        for pid, code in self._forks.items():
            if code is None:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)

    def kill(self) -> None:
        """End whatever is left of it, as kubelet does after the grace period.

        torchrun's ranks are sessions of their own: they are known by their environment.
        """
        mark = f"RUN_DIRS={self.folder / 'run'}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    os.kill(int(entry.parent.name), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        elif self._forks:
            self.signal(signal.SIGKILL)
            self.end()
