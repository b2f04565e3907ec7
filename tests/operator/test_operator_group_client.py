"""Questions to a group's member 0 over TLS: on one connection, to the certificate that was told alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from controller.group import certificate
from controller.operator.reconcile.group_client import GroupClient, NoAnswer
from controller.steps.groups import Server
from tests.support import group_scene as scene

Ask = Callable[[Server], Awaitable[str]]


def asked(folder: Path, play: Callable[[Ask, Server], Awaitable[None]]) -> list[int]:
    """Have a server answer questions; return from which of its peers' ports each came."""
    context, fingerprint = certificate.kept(folder, ["127.0.0.1"])
    ports = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        return web.json_response(scene.report(lost=["x" * 128] * 256))  # more than one read brings

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/report", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        client = GroupClient()

        async def ask(server: Server) -> str:
            return (await client.ask(server, "ticket", "GET", "/v1/report")).group

        try:
            await play(ask, Server("pod", f"127.0.0.1:{port}", fingerprint))
        finally:
            await client.close()
            await runner.cleanup()

    asyncio.run(serve())
    return ports


def test_the_connection_is_kept_from_one_question_to_the_next(tmp_path: Path) -> None:
    async def play(ask: Ask, server: Server) -> None:
        for _ in range(3):
            assert await ask(Server(server.pod, server.address, str(server.fingerprint))) == "wg-3"

    assert len(set(asked(tmp_path, play))) == 1


def test_another_certificate_is_not_asked_even_where_a_connection_is_open(tmp_path: Path) -> None:
    async def play(ask: Ask, server: Server) -> None:
        await ask(server)
        with pytest.raises(NoAnswer, match="ServerFingerprintMismatch"):
            await ask(Server(server.pod, server.address, "00" * 32))

    assert len(asked(tmp_path, play)) == 1


def test_what_is_said_of_one_that_cannot_be_reached_names_no_object(tmp_path: Path) -> None:
    async def play(ask: Ask, server: Server) -> None:
        with pytest.raises(NoAnswer) as told:
            await ask(Server(server.pod, "127.0.0.1:1", str(server.fingerprint)))
        assert str(told.value).startswith("ClientConnectorError: Cannot connect to host 127.0.0.1:1 [")

    asked(tmp_path, play)
