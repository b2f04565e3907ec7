"""The step API with 100 jobs, steps of 20 s, stubbed pods; and a sidecar that passes 10,000 tokens/s on.

`begin`: the API is a process of its own, over HTTPS; each job announces, begins, watches, ends, by the
trainers' own client calls. Its baseline is the bound, 50 ms. The sidecar is a process with a stub engine on
its Unix socket that gives 1,000 tokens of 100 responses each 100 ms; one client reads the frames. Counted is
the sidecar's own CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
from aiohttp import web

from controller.steps.directory import ActorPod
from evalstop_client import rollouts as client
from tests.bench.rows import Row, quantile
from tests.rollouts.rollouts_world import JOB, StepServer, environment, until
from tests.support.process_cpu import cpu_seconds

JOBS, STEP_SECONDS, SECONDS = 100, 20.0, 60.0
ALLOWED_MS, ALLOWED_CORE = 50.0, 0.5
RATE, LIVE, SIDECAR_SECONDS = 10_000, 100, 20.0
_BINS = [[float(900 - 3 * i), 4] for i in range(256)]


def run(say: Callable[[str], None]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _begins(Path(folder), say)
    with tempfile.TemporaryDirectory() as folder:
        yield _sidecar(Path(folder), say)


# -- begin -------------------------------------------------------------------------------------------------


def _begins(folder: Path, say: Callable[[str], None]) -> Iterator[Row]:
    api = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bench_steps", str(folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert api.stdout is not None
        said = json.loads(api.stdout.readline())
        before = cpu_seconds(api.pid)
        began = time.monotonic()
        times, planned = asyncio.run(_load(said["url"], said["ca"]))
        share = (cpu_seconds(api.pid) - before) / (time.monotonic() - began)
    finally:
        api.terminate()
        api.wait()
    times.sort()
    say(f"{len(times)} begins of {JOBS} jobs in {SECONDS:.0f} s, {planned} of them planned")
    yield Row("steps: begin, p50", 1000 * times[len(times) // 2], "ms")
    yield Row("steps: begin, p99 (baseline: its bound)", 1000 * quantile(times, 0.99), "ms", ALLOWED_MS)
    yield Row("steps: the API's process, without the planner's", share, "cores")
    yield Row("steps: steps that began with a plan", 100 * planned / len(times), "%")


async def _load(url: str, ca: str) -> tuple[list[float], int]:
    context = ssl.create_default_context(cadata=ca)
    times: list[float] = []
    planned = [0]
    over = time.monotonic() + SECONDS
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        await asyncio.gather(*(_job(session, i, over, times, planned) for i in range(JOBS)))
    return times, planned[0]


async def _job(
    session: aiohttp.ClientSession, number: int, over: float, times: list[float], planned: list[int]
) -> None:
    """One trainer: half of each step it generates, and watches; half it trains, with the next step
    announced."""
    headers = {"Authorization": f"Bearer pod:trainer-{number}"}
    shape = {"copies": 4, "cap": 2048, "spread": 0.2, "bins": _BINS}
    await asyncio.sleep(random.Random(number).uniform(0, STEP_SECONDS))
    step = 0

    async def post(path: str, body: dict[str, object]) -> dict[str, object]:
        given = {"attempt": JOB.attempt, "step": step, **body}
        async with session.post(path, json=given, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            found: dict[str, object] = await answer.json()
            return found

    while time.monotonic() < over:
        step += 1
        await post("/v1/announce", {"beginsIn": STEP_SECONDS / 2, **shape})
        await asyncio.sleep(STEP_SECONDS / 2)
        began = time.perf_counter()
        news = await post("/v1/begin", {})
        times.append(time.perf_counter() - began)
        plan = news["plan"]
        assert isinstance(plan, dict)
        planned[0] += plan["reason"] != "NoForecast"
        watch = f"/v1/watch?attempt={JOB.attempt}&step={step}&after={news['revision']}"
        watching = asyncio.create_task(_watch(session, watch, headers))
        await asyncio.sleep(STEP_SECONDS / 2)
        watching.cancel()
        await post(
            "/v1/end", {"seconds": STEP_SECONDS / 2, "tokens": 1000, "rank": 0.9, **shape, "phases": {}}
        )


async def _watch(session: aiohttp.ClientSession, path: str, headers: dict[str, str]) -> None:
    async with session.get(path, headers=headers) as answer:
        await answer.read()


def _serve(folder: Path) -> None:
    """Be the API's process: 100 jobs of one trainer and four actors each, whose pods are stubs."""
    server = StepServer(folder)
    for i in range(JOBS):
        job = replace(JOB, uid=f"job-{i}", key=f"team/run-{i}", speaker=f"trainer-{i}")
        actors = [ActorPod(f"actor-{i}-{n}", n) for n in range(4)]
        server.do(lambda job=job: server.directory.put_job(job))  # type: ignore[misc]
        server.do(lambda job=job, actors=actors: server.directory.put_actors(job.uid, actors))  # type: ignore[misc]
        for n in range(4):
            body = {"address": f"127.0.0.1:{9000 + n}", "fingerprint": "ab" * 32, "slots": 64}
            assert server.ask("POST", "/v1/actors", body, f"actor-{i}-{n}")[0] == 200
    print(json.dumps({"url": server.url, "ca": server.ca}), flush=True)
    threading.Event().wait()


# -- the sidecar -------------------------------------------------------------------------------------------


class _StubEngine:
    """Answers as `Plain` does, with as many tokens as the rate wants and no model."""

    def __init__(self, path: str) -> None:
        self.path, self.given = path, 0
        self._began: float | None = None
        self._ids: list[str] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/take", self._take),
                web.post("/abort", self._nothing),
                web.post("/weights", self._nothing),
                web.get("/report", self._report),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, self.path).start()
        await asyncio.Event().wait()

    async def _generate(self, request: web.Request) -> web.Response:
        document = await request.json()
        self._ids, self._began, self.given = [r["id"] for r in document["requests"]], time.monotonic(), 0
        return web.json_response({})

    async def _take(self, request: web.Request) -> web.Response:
        await request.read()
        if self._began is None:
            await asyncio.sleep(0.1)
            return web.json_response({"version": 1, "tokens": {}, "ended": {}})
        due = int(RATE * (time.monotonic() - self._began)) - self.given
        each = due // LIVE
        self.given += each * LIVE
        tokens = {name: [100_000 + i for i in range(each)] for name in self._ids} if each else {}
        return web.json_response({"version": 1, "tokens": tokens, "ended": {}})

    async def _nothing(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({})

    async def _report(self, _: web.Request) -> web.Response:
        return web.json_response({"slots": LIVE})


def _sidecar(folder: Path, say: Callable[[str], None]) -> Row:
    server = StepServer(folder)
    engine = _StubEngine(str(folder / "engine.sock"))
    server.do(lambda: server.directory.put_job(JOB))
    server.do(lambda: server.directory.put_actors(JOB.uid, [ActorPod("actor", 0)]))
    process = subprocess.Popen(
        [sys.executable, "-m", "controller.actor"],
        env=environment(
            EVALSTOP_ACTOR_SOCKET=engine.path,
            EVALSTOP_ACTOR_HOST="127.0.0.1",
            EVALSTOP_ACTOR_PORT="0",
            EVALSTOP_ACTOR_STEPS=server.url,
            EVALSTOP_ACTOR_STEPS_CA=str(folder / "ca.crt"),
            EVALSTOP_ACTOR_TOKEN=server.token("actor"),
            EVALSTOP_ACTOR_LOG_LEVEL="ERROR",
        ),
    )
    try:
        until(lambda: server.do(lambda: server.directory.demand(JOB.uid).ready), "the sidecar has registered")
        news = client.StepApi([server.url], server.ca, server.token("trainer-1"), JOB.attempt).begin(1)
        assert news is not None
        (actor,) = news.actors
        share, tokens = _read(actor, process.pid)
    finally:
        process.terminate()
        process.wait()
        server.close()
    say(f"sidecar: {tokens / SIDECAR_SECONDS:.0f} tokens/s passed on, asked for {RATE}")
    return Row(
        f"steps: sidecar's CPU at {tokens / SIDECAR_SECONDS:.0f} tokens/s (baseline: its bound)",
        share,
        "cores",
        ALLOWED_CORE,
    )


def _read(actor: client.Actor, pid: int) -> tuple[float, int]:
    """Read frames for a while; return the process's share of a core, and tokens."""
    headers = {"Authorization": f"Bearer {actor.ticket}", "Content-Type": "application/json"}
    weights = client.Weights.of(b"x")
    named = {
        **headers,
        "X-Weights-Version": "1",
        "X-Weights-Digest": weights.digest,
        "Content-Type": "application/octet-stream",
    }
    asking, reading = (client._Pinned(actor.address, actor.fingerprint, 30.0) for _ in range(2))
    asking.request("POST", "/v1/weights", b"x", named)
    assert asking.getresponse().read()
    reading.request("GET", "/v1/frames", None, headers)
    stream = reading.getresponse()
    requests = [
        {"id": f"1.{i}.0.1", "prompt": [1], "tokens": [], "most": 9_000_000, "draw": [1, 1, i, 0]}
        for i in range(LIVE)
    ]
    asking.request("POST", "/v1/generate", json.dumps({"version": 1, "requests": requests}).encode(), headers)
    assert asking.getresponse().status == 200
    tokens, began, before = 0, time.monotonic(), cpu_seconds(pid)
    while time.monotonic() - began < SIDECAR_SECONDS:
        tokens += sum(map(len, json.loads(stream.readline())["tokens"].values()))
    share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    asking.close()
    with contextlib.suppress(OSError):
        reading.close()
    return share, tokens


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
