"""`python -m tests.bench.dashboard_server`: a dashboard of 1,000 jobs, one of 1,000 evals; an empty page.

Prints its port, then serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
import time

from fastapi.responses import HTMLResponse

from controller.web.dashboard.access import KeyGate
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.feed import Feed
from controller.web.dashboard.queues import FixedAddress, Queues
from controller.web.hosts import Hosts
from controller.web.server import WebServer
from tests.support.dashboard_world import EVERYONE, KEY, MemoryApi
from tests.sweep.hostile import crowd

EMPTY = "<!doctype html><html lang=en><title>empty</title><body><main><h1>.</h1></main></body></html>"


async def serve() -> None:
    feed = Feed(MemoryApi(crowd(time.time())))  # type: ignore[arg-type]
    queues = Queues(FixedAddress())
    async with feed.following():
        made = Dashboard(feed, queues, KeyGate(KEY, EVERYONE))

        async def empty() -> HTMLResponse:
            return HTMLResponse(EMPTY)

        made.app.add_api_route("/empty", empty, methods=["GET"])
        server = WebServer(made.app, "127.0.0.1", 0)
        await server.start()
        made.hosts = Hosts([f"127.0.0.1:{server.port}"], addresses=False)
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop()


if __name__ == "__main__":
    asyncio.run(serve())
