"""`python -m tests.bench.extender_server FOLDER NODES KEPT GANGS`: the extender beside two that do less.

Four servers on the product's own HTTPS stack: the extender with so many nodes kept for gangs of whole nodes,
the extender with so many admitted gangs of single GPUs, one that lets every node pass without looking, and an
echo. Prints their ports as JSON; ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.extender.metrics import Metrics
from controller.extender.process import KEEP_ALIVE
from controller.extender.requeueing import RefusedPods
from controller.extender.service import Service
from controller.extender.settings import Settings
from controller.extender.web import verbs_app
from controller.policy.node.ledger import Gang, GpuLedger
from controller.web.connections import Connections, Limits
from controller.web.server import WebServer
from deploy.local.scheduler import Certificates

HOST = "127.0.0.1"
MEMBERS = 5
Message = MutableMapping[str, Any]


def node(index: int) -> str:
    return f"gpu-node-{index:05d}"


def job(index: int) -> str:
    return f"bench/gang-{index:04d}"


def filled(nodes: int, kept: int) -> GpuLedger:
    """So many nodes of eight GPUs; the first ``kept`` of them each for some gang of five."""
    ledger = GpuLedger()
    for index in range(nodes):
        ledger.put_node(node(index), 8, f"rack-{index // 32}")
    for number in range(kept // MEMBERS):
        planned = tuple(node(number * MEMBERS + member) for member in range(MEMBERS))
        ledger.put_job(job(number), 8, Gang(job(number), 1, planned, 8, 4e9))
    return ledger


def planned(gang: int, member: int, nodes: int) -> str:
    """The node of a member of a gang, as `admitted` plans it."""
    return node((gang * MEMBERS + member) % nodes)


def admitted(nodes: int, gangs: int) -> GpuLedger:
    """So many nodes of 64 GPUs, and gangs of five members of one GPU each, spread over them."""
    ledger = GpuLedger()
    for index in range(nodes):
        ledger.put_node(node(index), 64, f"rack-{index // 32}")
    for number in range(gangs):
        places = tuple(planned(number, member, nodes) for member in range(MEMBERS))
        ledger.put_job(job(number), 1, Gang(job(number), 1, places, 1, 4e9))
    return ledger


def idle_app() -> Starlette:
    """An extender with nothing to say: every node passes, all score the same."""

    async def filter_(request: Request) -> Response:
        names = from_json(await request.body())["NodeNames"]
        return Response(to_json({"NodeNames": names, "Error": ""}), media_type="application/json")

    async def prioritize(request: Request) -> Response:
        await request.body()
        return Response(b"[]", media_type="application/json")

    async def preempt(request: Request) -> Response:
        await request.body()
        return Response(b'{"NodeNameToMetaVictims":{}}', media_type="application/json")

    handlers = (("/filter", filter_), ("/prioritize", prioritize), ("/preempt", preempt))
    return Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in handlers])


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """A bare ASGI application that sends back what it got: what the stack itself costs."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _extender(ledger: GpuLedger) -> Starlette:
    metrics = Metrics()
    service = Service(ledger, RefusedPods(), metrics, lambda: 0.0)
    service.ready = True
    return verbs_app(service, metrics)


async def main(folder: Path, nodes: int, kept: int, gangs: int) -> None:
    certificates = Certificates(folder)
    pair = certificates.server
    tls = Settings(certificate=str(pair.certificate), key=str(pair.key), client_ca=str(certificates.ca))
    apps: dict[str, Any] = {
        "extender": _extender(filled(nodes, kept)),
        "gangs": _extender(admitted(nodes, gangs)),
        "idle": idle_app(),
        "echo": echo,
    }
    crowd = Connections()
    servers = {
        name: WebServer(
            app, HOST, 0, tls=tls.tls(), limits=Limits(keep_alive=KEEP_ALIVE), connections=crowd, name=name
        )
        for name, app in apps.items()
    }
    gc.collect()
    gc.freeze()
    for found in servers.values():
        await found.start()
    print(json.dumps({name: found.port for name, found in servers.items()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for found in servers.values():
        await found.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
