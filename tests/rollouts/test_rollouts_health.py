"""What the readiness of an actor's pod is told by: its sidecar, and whether it takes prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request

from controller.actor import app
from controller.actor.engines import Engine
from controller.actor.frames import Frames


def test_it_is_ready_once_it_takes_prompts(tmp_path: Path) -> None:
    engine = cast("Engine", None)  # it is not asked for this
    sidecar = app.Sidecar(engine, Frames(engine), app.ActorIdentity(), tmp_path)

    def said() -> tuple[int, Any]:
        try:
            return 200, asyncio.run(app._health(sidecar, cast("Request", None)))
        except app.Refused as error:
            return error.status, error.reason

    assert said() == (503, "NotRegistered")
    sidecar.identity = app.ActorIdentity("job-1", 3, 7, ("key",))
    assert said() == (200, {"actor": 7})
    sidecar.frames.engine_error = "the engine does not answer"
    assert said() == (503, "EngineSilent")
