"""An operator that has stood by for hours is as healthy when it takes over as one that was just started."""

from __future__ import annotations

import asyncio
from typing import Any

from controller.kube.connection import Connection
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings

HOURS = 7200.0


class NoApi:
    on_headers = None


def test_a_leader_that_stood_by_for_hours_is_not_taken_for_stalled() -> None:
    async def take_over() -> None:
        connection = Connection("http://nowhere", "nowhere")
        api: Any = NoApi()
        engine = Engine(Settings.from_environ({}), connection, api=api, scrape=lambda target: None)
        loop = engine._scrape_loop()
        loop._beat -= HOURS
        engine.signs.progress = {name: at - HOURS for name, at in engine.signs.progress.items()}
        assert engine.health.stalled() == []
        for kind in engine.cache.stores:
            engine._listed(kind, [], "1")
        engine.jobs.add("ns/a")
        engine.pools.add("p")
        assert engine.health.stalled() == [], "kopf goes through its first lists"
        engine.signs.begin_work(loop)
        assert engine.health.stalled() == []
        loop._beat -= HOURS
        engine.signs.progress["jobs"] -= HOURS
        assert sorted(part.split(":")[0] for part in engine.health.stalled()) == ["jobs", "scrapes"]

    asyncio.run(take_over())
