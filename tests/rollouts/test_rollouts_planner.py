"""The planner's process serves all jobs: none of them may hold up the others."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

from controller.policy.rollout import ActorLaw, Forecast, RolloutSettings, StepQuestion, Supply
from controller.steps.planner import PlannerProcess


class Noted(PlannerProcess):
    """Answers no question before it is told to, and notes their order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.go, self.first = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def _ask(self, question: bytes) -> None:
        key = pickle.loads(question).key
        self.asked.append(key)
        self.first.set()
        await self.go.wait()
        if key == "bad":
            raise AttributeError("no such thing")

    async def _end(self) -> None:
        self.ended += 1


def question(key: str) -> StepQuestion:
    return StepQuestion(key, 1, Forecast(((9.0, 4),), 2, 0.1, 99), ActorLaw(), RolloutSettings(), Supply())


def played(play: Callable[[Noted], Coroutine[Any, Any, None]]) -> Noted:
    async def all_of_it() -> Noted:
        planner = Noted()
        async with asyncio.timeout(30.0):
            await play(planner)
        return planner

    return asyncio.run(all_of_it())


def asked(planner: Noted, key: str, begins_at: float) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(planner.plan(question(key), begins_at))


def test_the_step_that_begins_first_is_planned_first() -> None:
    async def play(planner: Noted) -> None:
        tasks = [asked(planner, "under way", 50.0)]
        await planner.first.wait()
        times = (("late", 40.0), ("shadow", float("inf")), ("soon", 1.0), ("also late", 40.0))
        tasks += [asked(planner, key, at) for key, at in times]
        await asyncio.sleep(0)
        planner.go.set()
        await asyncio.gather(*tasks)

    assert played(play).asked == ["under way", "soon", "late", "also late", "shadow"]


def test_who_announces_again_and_again_has_nothing_else_planned_and_ends_no_process() -> None:
    """A question that nobody waits for is not asked; one under way is answered, or it would cost a start."""

    async def play(planner: Noted) -> None:
        first = asked(planner, "first", 1.0)
        await planner.first.wait()
        others = [asked(planner, "again", 2.0) for _ in range(9)]
        last = asked(planner, "last", 3.0)
        await asyncio.sleep(0)
        for task in (first, *others):
            task.cancel()
        await asyncio.sleep(0)
        planner.go.set()
        await last

    planner = played(play)
    assert planner.asked == ["first", "last"]
    assert planner.ended == 0


def test_a_question_that_fails_holds_up_nobody() -> None:
    async def play(planner: Noted) -> None:
        planner.go.set()
        assert await asyncio.gather(asked(planner, "bad", 1.0), asked(planner, "good", 2.0)) == [None, None]

    planner = played(play)
    assert planner.asked == ["bad", "good"]
    assert (planner.failures, planner.ended) == (1, 1)


def test_at_the_end_whoever_waits_has_no_plan() -> None:
    async def play(planner: Noted) -> None:
        waiting = asked(planner, "first", 1.0), asked(planner, "second", 2.0)
        await planner.first.wait()
        await planner.close()
        (first, second) = await asyncio.gather(*waiting, return_exceptions=True)
        assert (first, second) == (None, None)

    assert played(play).ended == 1
