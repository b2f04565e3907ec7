"""A sidecar's life: what its readiness is told by, how soon it registers, how soon it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from controller.actor import app
from controller.actor.engines import Engine
from controller.actor.frames import Frames
from controller.web.registration import NotReady, Registrar


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


def test_who_reads_frames_goes_when_the_process_ends() -> None:
    """Else an actor would hold its GPUs for as long as a server waits for answers under way."""

    async def play() -> list[bytes]:
        frames = Frames(cast("Engine", None))
        lines = frames.read(None, 600.0)
        reading = asyncio.ensure_future(anext(lines, b"end"))
        await asyncio.sleep(0)  # it waits for a frame
        await frames.close()
        late = [line async for line in frames.read(None, 600.0)]
        return [await reading, *late]

    assert asyncio.run(asyncio.wait_for(play(), 30)) == [b"end"]


def test_a_reader_that_is_cut_off_twice_leaves_the_frames_to_the_next() -> None:
    """A server cancels the answer to a client that went, and again until it has ended."""

    async def play() -> list[bytes]:
        frames = Frames(cast("Engine", None))
        reading = asyncio.ensure_future(anext(frames.read(None, 600.0), b"end"))
        await asyncio.sleep(0.01)  # it waits for a frame
        async with frames._changed:  # somebody writes one meanwhile
            for _ in range(2):
                reading.cancel()
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await reading
        await frames.close()
        return [line async for line in frames.read(None, 600.0)]

    assert asyncio.run(asyncio.wait_for(play(), 30)) == []


class Answers(Registrar):
    """Registers what is there: what each asking gives, None for nothing yet."""

    def __init__(self, folder: Path, given: list[bool]) -> None:
        (folder / "token").write_text("t")
        super().__init__(["https://127.0.0.1:1"], "/v1/actors", "", str(folder / "token"), "test")
        self.given = given

    async def body(self) -> dict[str, Any]:
        if not self.given.pop(0):
            raise NotReady("its engine does not answer")
        return {}

    def take(self, answer: Any) -> None:
        raise AssertionError("nobody answers there")


@pytest.mark.parametrize(("given", "seconds", "pause"), [
    ([False], 10.0, 0.2),  # the engine starts: only it is asked again
    ([False], 0.1, 0.1),
    ([True], 10.0, 1.0),  # the operator does not answer: it is spared
    ([False, True], 10.0, 1.0),
])  # fmt: skip
def test_an_engine_that_starts_is_asked_again_soon(
    tmp_path: Path, given: list[bool], seconds: float, pause: float
) -> None:
    made = Answers(tmp_path, list(given))

    async def play() -> None:
        async with made.session() as session:
            for _ in given:
                made.problem = await made._once(session)

    asyncio.run(play())
    assert made.pause(seconds) == pause
