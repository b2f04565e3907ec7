"""Actors that do what none may do: put aside, counted, and the step is whole all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rollouts_world import ActorProcesses, Pods, StepServer, environment, until
from test_rollouts_processes import WEIGHTS, api, expected, generate, prompts

from evalstop_client import rollouts as client
from examples.engine.model import END


class LyingEngine:
    """Speaks as `Plain` does, and answers as its mode says."""

    def __init__(self, path: Path) -> None:
        self.path, self.mode, self.lied = path, "", 0
        self._ids: list[str] = []
        self._up = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        assert self._up.wait(30)

    async def _run(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        routes = {
            "/generate": self._generate,
            "/take": self._take,
            "/abort": self._fine,
            "/weights": self._weights,
        }
        app.add_routes(
            [*(web.post(path, answer) for path, answer in routes.items()), web.get("/report", self._report)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(self.path)).start()
        self._up.set()
        await asyncio.Event().wait()

    async def _generate(self, request: web.Request) -> web.Response:
        self._ids = [r["id"] for r in (await request.json())["requests"]]
        return web.json_response({})

    async def _take(self, request: web.Request) -> web.Response:
        await request.read()
        tokens: dict[str, Any] = {}
        ended: dict[str, str] = {}
        version = 1
        if self._ids:
            name = self._ids[0]
            self.lied += 1
            if self.mode == "out of the vocabulary":
                tokens = {name: [1, END + 1]}
            elif self.mode == "no number":
                tokens = {name: [1.5]}
            elif self.mode == "after the end":
                tokens = {name: [END, 1]}
            elif self.mode == "too many":
                tokens = {name: [1] * 61}
            elif self.mode == "too few":
                tokens, ended = {name: [1]}, {name: "length"}
            elif self.mode == "no end token":
                tokens, ended = {name: [1]}, {name: "stop"}
            elif self.mode == "of nobody":
                tokens = {f"{name.partition('.')[0]}.9999.0.1": [1]}
            elif self.mode == "other weights":
                tokens, version = {name: [1]}, 99
        await asyncio.sleep(0.02)
        return web.json_response({"version": version, "tokens": tokens, "ended": ended})

    async def _weights(self, request: web.Request) -> web.Response:
        await request.read()
        self._ids = []
        if self.mode == "refuses the weights":
            return web.json_response({"message": "no"}, status=400)
        return web.json_response({})

    async def _fine(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({})

    async def _report(self, _: web.Request) -> web.Response:
        return web.json_response({"slots": 4})


MODES = {
    "out of the vocabulary": "faulty",
    "no number": "faulty",
    "after the end": "faulty",
    "too many": "faulty",
    "too few": "faulty",
    "no end token": "faulty",
    "of nobody": "faulty",
    "other weights": "faulty",
    "says nothing": "lost",
    "refuses the weights": "lost",
}


@pytest.fixture
def liar(world: Pods, server: StepServer, tmp_path: Path) -> LyingEngine:
    """An honest actor, number 1, and a liar, number 0, which gets prompts first."""
    engine = LyingEngine(tmp_path / "liar.sock")
    world.start(1)
    idle = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    sidecar = subprocess.Popen(
        [sys.executable, "-m", "controller.actor"],
        cwd=tmp_path,
        env=environment(
            EVALSTOP_ACTOR_SOCKET=str(engine.path),
            EVALSTOP_ACTOR_HOST="127.0.0.1",
            EVALSTOP_ACTOR_PORT="0",
            EVALSTOP_ACTOR_STEPS=server.url,
            EVALSTOP_ACTOR_STEPS_CA=str(server.folder / "ca.crt"),
            EVALSTOP_ACTOR_TOKEN=server.token("liar"),
            EVALSTOP_ACTOR_REGISTER_SECONDS="1",
            EVALSTOP_ACTOR_LOG_LEVEL="ERROR",
        ),
    )
    world.running[0] = ActorProcesses(0, "liar", idle, sidecar)
    world.tell()
    world.await_ready(0, 1)
    return engine


def test_what_an_actor_invents_is_noticed_and_the_step_is_whole(
    world: Pods, server: StepServer, liar: LyingEngine
) -> None:
    source = api(server)

    def told(said: str) -> bool:
        return server.do(lambda: server.directory.demand(world.job.uid)).aside == (said,)

    for step, (mode, counted) in enumerate(MODES.items(), 1):
        liar.mode = mode
        rollouts = client.Rollouts(source, stall=5.0)
        version = 2 if mode == "refuses the weights" else 1  # ones that it has are not loaded again
        found = rollouts.generate(
            step,
            prompts()[:5],
            copies=2,
            most=60,
            weights=WEIGHTS,
            version=version,
            end=END,
            vocabulary=END + 1,
            seed=5,
        )
        assert found == [row[:2] for row in expected(step)[:5]], mode
        # The honest one may have done all before the liar was ready.
        if liar.lied or counted == "lost":
            assert rollouts.counts[counted] == 1, mode
            (said,) = rollouts.record["failures"]
            assert said.startswith(f"actor 0 {counted}: "), said
            if mode == "other weights":  # and not for what such tokens add up to
                assert said.endswith("tokens by weights 99, expected 1"), said
            until(partial(told, said), "the operator knows it before the step ends")
            if counted == "faulty":
                until(lambda: 0 in world.released(), "it is to end, so that another one comes")
        liar.lied = 0


def test_each_dispatch_gives_the_same_tokens(
    world: Pods, server: StepServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says how responses reach actors; an actor more or less than planned does not matter."""
    monkeypatch.setattr(client, "PATIENCE", 60.0)  # of a slow machine: all counters are compared
    world.start(0)
    world.start(1)
    world.await_ready(0, 1)
    source = api(server)
    for step, dispatch in enumerate(("Ranked", "Even", "LongestFirst"), 1):
        rollouts = client.Rollouts(_Planned(source, dispatch))
        assert generate(rollouts, step) == expected(step), dispatch
        assert rollouts.plan.dispatch == dispatch
        given = [actor["tokens"] for actor in rollouts.record["actors"]]
        assert sum(given) == sum(len(r) for row in expected(step) for r in row)


class _Planned:
    """The step API, with another dispatch than it planned, for three actors of which two are there."""

    def __init__(self, api: client.StepApi, dispatch: str) -> None:
        self._api, self._dispatch = api, dispatch
        self.announce, self.watch, self.done, self.end = api.announce, api.watch, api.done, api.end

    def begin(self, step: int) -> client.News | None:
        news = self._api.begin(step)
        assert news is not None
        return news._replace(plan=client.Plan(3, self._dispatch, 0, 0.7, None, "Planned", ""))
