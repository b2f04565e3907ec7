"""Engines and sidecars as processes, and a step API over HTTPS whose pods are stubbed: their tokens name
them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.policy.rollout import ActorLaw, RolloutSettings
from controller.steps.app import StepApi, create
from controller.steps.directory import ActorPod, Directory, RolloutJob
from controller.steps.planner import PlannerProcess
from controller.steps.sessions import Sessions
from controller.web.certificates import issue_server, make_authority
from controller.web.connections import Connections, Limits
from controller.web.reviews import Unauthenticated
from controller.web.server import WebServer
from controller.web.tls import Tls

ROOT = Path(__file__).resolve().parents[2]
JOB = RolloutJob(
    "job-1",
    "team/run",
    3,
    "trainer-1",
    RolloutSettings(min=1, max=4, static=2),
    ActorLaw(0.01, 0.0, slots=4),
    5.0,
    1.0,
)


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Return the condition's value once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def counted(step: dict[str, Any]) -> int | None:
    """Return a recorded step's tokens by its actors' own counters; None: one of them was not in time.

    A step waits 2 s for the counters of those that have ended, no longer: on a slow machine one is missing.
    """
    asked = [actor for actor in step["actors"] if actor["asked"]]
    return sum(a["tokens"] for a in asked) if all("tokens" in a for a in asked) else None


class TokensNamePods:
    """Identity: the token ``pod:UID`` is the pod UID's."""

    def __init__(self) -> None:
        self.asked = 0

    async def pod(self, token: str, peer: str) -> str:
        self.asked += 1
        if not token.startswith("pod:"):
            raise Unauthenticated
        return token.removeprefix("pod:")


class StepServer:
    """The step API in a thread with a loop of its own; `do` runs something there."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority(datetime.now(UTC))
        pair = issue_server(authority, ["127.0.0.1", "localhost"], datetime.now(UTC))
        for name, text in (
            ("tls.crt", pair.certificate),
            ("tls.key", pair.key),
            ("ca.crt", authority.certificate),
        ):
            (folder / name).write_text(text)
        self.folder, self.ca = folder, authority.certificate
        self.directory, self.identity = Directory(), TokensNamePods()
        self.leads = True
        self.directory.leads = lambda: self.leads
        self.port = 0
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.planner = PlannerProcess()
        self.sessions = Sessions(self.directory, self.planner)
        app = create(StepApi(self.directory, self.sessions, self.identity))
        limits = Limits(connections=512, per_peer=512)
        server = WebServer(
            app,
            "127.0.0.1",
            self.port,
            tls=Tls(str(self.folder / "tls.crt"), str(self.folder / "tls.key")),
            limits=limits,
            connections=Connections(1024),
            name="steps",
        )
        await server.start()
        self.port = server.port
        self._ready.set()
        await self._stop.wait()
        await self.sessions.close()
        await server.stop()
        await self.planner.close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def do(self, work: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(30)

    def restart(self) -> None:
        """End the process and begin another one at the same address, which knows nothing."""
        self.close()
        self._thread.join(30)
        self._ready.clear()
        self.directory = Directory()
        self.directory.leads = lambda: self.leads
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)

    def token(self, pod: str) -> str:
        path = self.folder / f"token-{pod}"
        path.write_text(f"pod:{pod}\n")
        return str(path)

    def ask(
        self, method: str, path: str, body: Any = None, pod: str = "trainer-1"
    ) -> tuple[int, dict[str, Any]]:
        """Return status and answer."""
        context = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=40, context=context)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, content, {"Authorization": f"Bearer pod:{pod}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()


@contextmanager
def step_server(folder: Path) -> Iterator[StepServer]:
    server = StepServer(folder)
    try:
        yield server
    finally:
        server.close()


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))
    return {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", **more}


@dataclass
class ActorProcesses:
    """An engine and its sidecar, as one pod has them."""

    number: int
    pod: str
    engine: subprocess.Popen[bytes]
    sidecar: subprocess.Popen[bytes]

    def kill(self) -> None:
        for process in (self.sidecar, self.engine):
            process.kill()
            process.wait()

    def stop(self) -> tuple[int, int]:
        """Return the exit codes of engine and sidecar after SIGTERM."""
        for process in (self.sidecar, self.engine):
            process.send_signal(signal.SIGTERM)
        return self.engine.wait(20), self.sidecar.wait(20)


@dataclass
class Pods:
    """Starts and ends actors of a job, and tells the directory, as the operator's passes do."""

    server: StepServer
    folder: Path
    job: RolloutJob = JOB
    engine: tuple[str, ...] = ("--iteration", "0.01", "--sequence", "0", "--prefill", "0", "--slots", "4")
    running: dict[int, ActorProcesses] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    _born: int = 0

    def tell(self) -> None:
        """Put what runs into the directory."""
        actors = [ActorPod(a.pod, n, "127.0.0.1", n in self.leaving) for n, a in sorted(self.running.items())]

        def put() -> None:
            self.server.directory.put_job(self.job)
            self.server.directory.put_actors(self.job.uid, actors)

        self.server.do(put)

    def start(self, number: int) -> ActorProcesses:
        self._born += 1
        pod, socket = f"actor-{number}-{self._born}", self.folder / f"engine-{self._born}.sock"
        engine = subprocess.Popen(
            [sys.executable, "-m", "examples.engine", "--socket", str(socket), *self.engine],
            env=environment(),
            cwd=self.folder,
        )
        sidecar = subprocess.Popen(
            [sys.executable, "-m", "controller.actor"],
            cwd=self.folder,
            env=environment(
                EVALSTOP_ACTOR_SOCKET=str(socket),
                EVALSTOP_ACTOR_HOST="127.0.0.1",
                EVALSTOP_ACTOR_PORT="0",
                EVALSTOP_ACTOR_STEPS=self.server.url,
                EVALSTOP_ACTOR_STEPS_CA=str(self.server.folder / "ca.crt"),
                EVALSTOP_ACTOR_TOKEN=self.server.token(pod),
                EVALSTOP_ACTOR_REGISTER_SECONDS="1",
                EVALSTOP_ACTOR_LOG_LEVEL="ERROR",
            ),
        )
        self.running[number] = ActorProcesses(number, pod, engine, sidecar)
        self.leaving.discard(number)
        self.tell()
        return self.running[number]

    def ready(self) -> frozenset[int]:
        return self.server.do(lambda: self.server.directory.demand(self.job.uid).ready)

    def await_ready(self, *numbers: int) -> None:
        until(lambda: self.ready() >= set(numbers), f"actors {numbers} have registered")

    def kill(self, number: int) -> None:
        self.running.pop(number).kill()
        self.tell()

    def recall(self, number: int) -> None:
        self.leaving.add(number)
        self.tell()

    def released(self) -> frozenset[int]:
        return self.server.do(lambda: self.server.directory.demand(self.job.uid).released)

    def attempt(self, number: int) -> None:
        self.job = replace(self.job, attempt=number)
        self.tell()

    def close(self) -> None:
        for actor in self.running.values():
            actor.kill()


@contextmanager
def pods(server: StepServer, folder: Path, **more: Any) -> Iterator[Pods]:
    found = Pods(server, folder, **more)
    found.tell()
    try:
        yield found
    finally:
        found.close()
