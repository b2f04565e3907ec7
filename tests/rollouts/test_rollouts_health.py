"""What the readiness of an actor's pod is told by: its sidecar, and whether it takes prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from starlette.testclient import TestClient

from controller.actor.app import Sidecar, Whose, create
from controller.actor.engines import Engine
from controller.actor.frames import Frames


def test_it_is_ready_once_it_takes_prompts(tmp_path: Path) -> None:
    engine = cast("Engine", None)  # it is not asked for this
    sidecar = Sidecar(engine, Frames(engine), Whose(), tmp_path)
    with TestClient(create(sidecar)) as asked:

        def said() -> tuple[int, Any]:
            answer = asked.get("/healthz")
            return answer.status_code, answer.json().get("reason")

        assert said() == (503, "NotRegistered")
        sidecar.whose = Whose("job-1", 3, 7, ("key",))
        assert said() == (200, None)
        assert asked.get("/healthz").json() == {"actor": 7}
        sidecar.frames.engine_error = "the engine does not answer"
        assert said() == (503, "EngineSilent")
