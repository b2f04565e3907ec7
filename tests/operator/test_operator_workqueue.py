"""The work queue: each key once, one worker at a time, timers and back-off, nothing lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.operator.process.workqueue import Closed, Locks, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def ready(queue: WorkQueue) -> list[str]:
    """Keys that can be had at once."""
    got = []
    while True:
        try:
            async with asyncio.timeout(0.005):
                got.append(await queue.get())
        except TimeoutError:
            return got


def test_a_key_waits_once_and_is_worked_on_once_more_if_added_meanwhile() -> None:
    async def run() -> None:
        queue = WorkQueue(Clock())
        for _ in range(3):
            queue.add("a")
        assert await ready(queue) == ["a"]
        queue.add("a")
        queue.add("a")
        assert await ready(queue) == [], "another worker must not get it meanwhile"
        queue.done("a")
        assert await ready(queue) == ["a"]
        queue.done("a")
        assert queue.idle

    asyncio.run(run())


def test_attack_a_thousand_changed_objects_delay_another_namespaces_by_one_pass() -> None:
    async def run() -> None:
        queue = WorkQueue(Clock())
        for i in range(1000):
            queue.add(f"mallory/job-{i}")
        queue.add("alice/run")
        assert await queue.get() == "mallory/job-0"
        assert await queue.get() == "alice/run"
        for key in ("alice/a", "bob/a", "alice/b", "pool"):
            queue.add(key)
        got = [await queue.get() for _ in range(7)]
        assert [key for key in got if not key.startswith("mallory/")] == [
            "alice/a",
            "bob/a",
            "pool",
            "alice/b",
        ]
        assert [key for key in got if key.startswith("mallory/")] == [f"mallory/job-{i}" for i in (1, 2, 3)]
        assert len(queue) == 996

    asyncio.run(run())


def test_timers() -> None:
    async def run() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        queue.later("a", 10)
        queue.later("a", 5)  # the newer one counts
        queue.later("b", 1)
        queue.later("b", None)
        clock.now = 4.9
        assert await ready(queue) == []
        clock.now = 5.0
        assert await ready(queue) == ["a"]
        queue.done("a")
        clock.now = 100
        assert await ready(queue) == []

    asyncio.run(run())


def test_an_event_during_the_work_outlives_the_timer_the_work_ends_with() -> None:
    """A pool pass ends by setting its wake-up time; what happened during it must not wait for that."""

    async def run() -> None:
        queue = WorkQueue(Clock())
        queue.add("pool")
        assert await ready(queue) == ["pool"]
        queue.sooner("pool", 0.05)
        queue.later("pool", 300)
        queue.done("pool")
        assert await ready(queue) == ["pool"]

    asyncio.run(run())


def test_sooner_keeps_the_earlier_timer() -> None:
    async def run() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        queue.sooner("a", 1)
        queue.sooner("a", 9)
        clock.now = 1
        assert await ready(queue) == ["a"]

    asyncio.run(run())


def test_back_off_doubles_up_to_its_cap_and_begins_anew_after_a_success() -> None:
    clock = Clock()
    queue = WorkQueue(clock, first=1, most=10)
    assert [queue.retry("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    queue.forget("a")
    assert queue.retry("a") == 1


def test_closing_gives_no_more_keys_and_lets_the_work_end() -> None:
    async def run() -> None:
        queue = WorkQueue(Clock())
        queue.add("a")
        queue.add("b")
        key = await queue.get()
        queue.close()
        with pytest.raises(Closed):
            await queue.get()
        drained = asyncio.create_task(queue.drained())
        await asyncio.sleep(0)
        assert not drained.done()
        queue.done(key)
        await asyncio.wait_for(drained, 1)

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 4))
def test_with_many_workers_no_key_is_worked_on_twice_at_once_and_none_is_lost(
    adds: list[str], workers: int
) -> None:
    async def run() -> None:
        queue = WorkQueue(asyncio.get_running_loop().time)
        at_work: Counter[str] = Counter()
        last_start: dict[str, int] = {}
        last_add: dict[str, int] = {}
        clock = 0

        async def work() -> None:
            nonlocal clock
            while True:
                key = await queue.get()
                at_work[key] += 1
                clock += 1
                last_start[key] = clock
                assert at_work[key] == 1
                await asyncio.sleep(0)
                at_work[key] -= 1
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for key in adds:
            queue.add(key)
            clock += 1
            last_add[key] = clock
            await asyncio.sleep(0)
        while not queue.idle:  # noqa: ASYNC110 - the queue has no such event
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(last_start[key] > last_add[key] - 1 for key in last_add)

    asyncio.run(run())


def test_locks_serialise_by_key_and_leave_nothing_behind() -> None:
    async def run() -> None:
        locks, order = Locks(), []

        async def hold(key: str, mark: int) -> None:
            async with locks.hold(key):
                order.append(mark)
                await asyncio.sleep(0)
                order.append(mark)

        await asyncio.gather(hold("a", 1), hold("a", 2), hold("b", 3))
        assert [m for m in order if m != 3] == [1, 1, 2, 2]
        assert order.index(3) < order.index(2)
        assert locks._locks == {}

    asyncio.run(run())


def test_a_key_that_rests_is_left_alone_by_all_but_a_timer_and_add() -> None:
    async def run() -> None:
        clock = Clock()
        queue = WorkQueue(clock)

        async def worked_on(rest: float, *, meanwhile: bool) -> None:
            queue.add("a")
            assert await queue.get() == "a"
            if meanwhile:
                queue.sooner("a", 0.1)
            queue.done("a", rest)

        await worked_on(1.0, meanwhile=True)
        clock.now = 0.9
        assert await ready(queue) == []
        clock.now = 1.0
        assert await ready(queue) == ["a"]
        queue.done("a")

        await worked_on(1.0, meanwhile=False)
        queue.sooner("a", 0.1)
        clock.now = 1.9
        assert await ready(queue) == []
        clock.now = 2.0
        assert await ready(queue) == ["a"]
        queue.sooner("a", 0.1)
        queue.later("a", 0.2)  # what the work ends with
        queue.done("a", 1.0)
        clock.now = 2.2
        assert await ready(queue) == ["a"]
        queue.done("a", 1.0)

        await worked_on(1.0, meanwhile=False)
        assert await ready(queue) == []
        queue.add("a")
        assert await ready(queue) == ["a"]
        queue.done("a")
        queue.sooner("a", 0.1)
        clock.now += 0.1
        assert await ready(queue) == ["a"], "no rest is left from before"

    asyncio.run(run())
