"""``python -m controller.actor``: exit code 0: asked to end; 1: a part ended; 2: settings wrong."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from controller import log
from controller.actor import certificate
from controller.actor.app import ActorIdentity, Sidecar, create
from controller.actor.engines import Engine
from controller.actor.frames import Frames
from controller.actor.registration import Registration
from controller.actor.settings import Settings, describe
from controller.environ import listed
from controller.program import Program, stop_signal
from controller.web.connections import Limits
from controller.web.server import WebServer

LIMITS = Limits(connections=32, per_peer=16, request=600.0, keep_alive=60.0)  # weights take a while to come


def engine_of(kind: str, socket: str, model: str = "") -> Engine:
    """Return the adapter for an engine."""
    if kind == "vLLM":
        from controller.actor.vllm import VllmEngine

        return VllmEngine(socket, model)
    from controller.actor.plain import PlainEngine

    return PlainEngine(socket)


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the sidecar until SIGTERM or SIGINT and return its exit code."""
    host = settings.address or environ.get("POD_IP") or settings.host
    context, fingerprint = certificate.make([host])
    stop = stop_signal()
    with tempfile.TemporaryDirectory(dir=settings.scratch or None) as scratch:
        engine = engine_of(settings.engine, settings.socket, settings.model)
        shared = Path(settings.weights) if settings.weights else None
        sidecar = Sidecar(
            engine, Frames(engine), ActorIdentity(), Path(scratch), shared, settings.weights_bytes
        )
        server = WebServer(
            create(sidecar), settings.host, settings.port, tls=context, limits=LIMITS, name="actor"
        )
        await server.start()
        address = f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"
        registration = Registration(
            sidecar, listed(settings.steps), settings.steps_ca, settings.token, address, fingerprint
        )
        log.get("evalstop.actor").info("started", address=address, engine=settings.engine)
        parts = [
            asyncio.create_task(sidecar.frames.run(), name="frames"),
            asyncio.create_task(registration.run(settings.register_seconds), name="registration"),
        ]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
        ended = [part for part in parts if part.done()]
        for part in (stopping, *parts):
            part.cancel()
        await asyncio.gather(stopping, *parts, return_exceptions=True)
        await sidecar.frames.close()
        await server.stop()
        await engine.close()
        for part in ended:
            part.result()
        return 1 if ended else 0


main = Program("controller.actor", Settings.from_environ, describe, run, (OSError,)).main

if __name__ == "__main__":
    sys.exit(main())
