"""Operators as processes of their own, a wire to the API server that can be cut, trainers' metrics over HTTP,
and a witness that sees every version of every object."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from controller.kube.cache import key_of
from controller.kube.client import Api
from controller.kube.resources import GPUPOOLS, JOBS, RLHFJOBS, Resource

REPOSITORY = Path(__file__).resolve().parents[2]
# The operator's own entry, with a wall clock that is wrong from the first import on.
SKEWED = """
import sys, time
real, off = time.time, float(sys.argv[1])
time.time = lambda: real() + off
from controller.operator.main import main
sys.exit(main([]))
"""


class Wire:
    """A way to the API server. ``hold``: what is sent through it is kept and not delivered, until ``heal``;
    what comes back comes through, so that its user hears everything and is heard by nobody."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._delivering = threading.Event()
        self._delivering.set()
        self.kept = 0  # bytes kept back at least once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._delivering.clear()

    def heal(self) -> None:
        self._delivering.set()

    def close(self) -> None:
        self.heal()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket, outwards: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := near.recv(65536):
                if outwards and not self._delivering.is_set():
                    self.kept += len(data)
                    self._delivering.wait()
                far.sendall(data)
        with contextlib.suppress(OSError):
            # A sender that is gone is no news to the server as long as the wire holds.
            if outwards:
                self._delivering.wait()
            far.shutdown(socket.SHUT_WR)


def through(wire: Wire, kubeconfig: Path, folder: Path) -> Path:
    """The same identity by way of the wire."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster["server"] = f"https://127.0.0.1:{wire.port}"
    path = folder / "through-the-wire.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def api_address(kubeconfig: Path) -> tuple[str, int]:
    parts = urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


class Operator:
    """One operator process, its log in a file."""

    def __init__(
        self, name: str, kubeconfig: Path, folder: Path, settings: Mapping[str, str], skew: float
    ) -> None:
        self.log = folder / f"{name}.log"
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("EVALSTOP_", "POD_"))}
        environ |= {
            "KUBECONFIG": str(kubeconfig),
            "EVALSTOP_HOST": "127.0.0.1",
            "EVALSTOP_PORT": "0",
            "EVALSTOP_METRICS_PORT": "0",
            "EVALSTOP_QUEUE_PORT": "0",
            "EVALSTOP_INSTANCE": name,
            "EVALSTOP_SCRAPE_ADDRESSES": "Loopback",
            "EVALSTOP_LOG_FORMAT": "console",
            **settings,
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SKEWED, str(skew)], cwd=REPOSITORY, env=environ, stderr=log
            )

    @property
    def port(self) -> int:
        """Its own choice, which nobody else can have taken; 0: it has not told it yet."""
        return self._told("port")

    @property
    def metrics_port(self) -> int:
        """Like `port`: of its metrics."""
        return self._told("metrics_port")

    def _told(self, name: str) -> int:
        told = re.search(rf"\bstarted\b.*\b{name}=(\d+).*\n", self.log.read_text())
        return int(told[1]) if told is not None else 0

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    async def says(self, word: str) -> bool:
        """Whether it is ready and says so of its standing: ``leader`` or ``standby``."""
        code, text = await asyncio.to_thread(self.ask, "/readyz")
        return code == 200 and f"\n{word}: " in text

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Trainers:
    """What trainers export, on the ports that the rig gives its jobs; `scores` may change at any time.

    `uids`: of the RLHFJobs, once they are made; until then a page does not say whose it is.
    """

    def __init__(self, scores: Mapping[str, list[float]], ports: Mapping[str, int]) -> None:
        self._servers = []
        self.uids: dict[str, str] = {}
        for job, port in ports.items():
            handler = type(
                "Handler",
                (_Exposition,),
                {
                    "scores": staticmethod(lambda j=job: scores.get(j, [])),
                    "uid": staticmethod(lambda j=job: self.uids.get(j, "")),
                },
            )
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self._servers.append(server)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Exposition(http.server.BaseHTTPRequestHandler):
    scores: Any
    uid: Any

    def do_GET(self) -> None:
        found, attempt = self.scores(), "1-9f2c41d0"
        lines = [
            f'rlhf_eval_score{{metric="gold",step="{10 * (i + 1)}",attempt="{attempt}"}} {score}'
            for i, score in enumerate(found)
        ]
        lines += [
            f'rlhf_evals_total{{metric="gold",attempt="{attempt}"}} {len(found)}',
            f"rlhf_step {10 * len(found)}",
        ]
        if uid := self.uid():
            lines.append(f'rlhf_run_info{{uid="{uid}",attempt="{attempt}"}} 1')
        body = "\n".join([*lines, ""]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@dataclass(frozen=True)
class Seen:
    """One version of an object, and when (monotonic s) the witness saw it."""

    at: float
    kind: str
    name: str
    obj: Mapping[str, Any]

    @property
    def status(self) -> Mapping[str, Any]:
        return self.obj.get("status") or {}


class Witness:
    """Watches as administrator, from before the story to its end."""

    def __init__(self, api: Api, namespace: str, pool: str) -> None:
        self._api, self._namespace, self._pool = api, namespace, pool
        self.seen: list[Seen] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Witness:
        for resource in (RLHFJOBS, JOBS, GPUPOOLS):
            _, version = await self._api.list(resource)
            self._tasks.append(asyncio.create_task(self._follow(resource, version)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, resource: Resource, version: str) -> None:
        async for event in self._api.watch(resource, version):
            metadata = event["object"]["metadata"]
            if metadata.get("namespace") == self._namespace or metadata.get("name") == self._pool:
                self.seen.append(
                    Seen(time.monotonic(), resource.kind, key_of(event["object"]), event["object"])
                )

    def of(self, kind: str, name: str = "") -> Iterator[Seen]:
        """Versions of objects of a kind, of one name if it is given, in their order."""
        return (s for s in self.seen if s.kind == kind and (not name or s.name.rpartition("/")[2] == name))
