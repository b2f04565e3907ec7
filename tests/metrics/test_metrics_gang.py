"""A gang in the scrape loop: who is asked, how often, and what is delivered. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.metrics import GangScraper, GangTarget, ScrapeLoop, Target
from controller.policy.job import Gang, Member, Page, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from tests.support import virtual_loop

KEY, UID, INTERVAL = "ns/run", "job-uid", 10.0
OURS = ScrapeView(
    ScrapeOutcome.OK, points=(EvalPoint(10, 1.0, Attempt(1, "a")),), page=Page(UID, Attempt(1, "a"))
)


class World:
    """A gang of ``size``, of which the members in ``speak`` answer as the run and the others refuse.

    A member is asked at ``10.0.<index // 256>.<index % 256>``; ``seconds`` is how long each takes.
    """

    def __init__(self, size: int, speak: set[int], seconds: Callable[[int], float] = lambda i: 0.001) -> None:
        self.speak, self.seconds = speak, seconds
        running = asyncio.get_running_loop()
        self.now, self.begin = running.time, running.time()
        self.tries: list[tuple[float, int]] = []
        self.delivered: list[ScrapeView] = []
        self.running = self.peak = 0
        self.looked = 0  # times that the members were looked up
        self.gang = Gang(UID, 1, 0)
        self.size = size
        self.gangs = GangScraper(self.scrape, self.members, monotonic=running.time)
        self.loop = ScrapeLoop(
            self.gangs.scrape, lambda key, view: self.delivered.append(view), monotonic=running.time
        )
        self.task = asyncio.create_task(self.loop.run())

    def target(self, index: int) -> Target:
        return Target(
            f"10.0.{index // 256}.{index % 256}",
            9400,
            "gold",
            interval=INTERVAL,
            pod=f"uid-{index}",
            member=index,
            job=KEY,
            gang=self.gang,
        )

    def members(self, key: str) -> tuple[GangTarget, ...]:
        assert key == KEY
        self.looked += 1
        return tuple(GangTarget(Member(f"uid-{i}", f"run-{i}", i), self.target(i)) for i in range(self.size))

    async def scrape(self, target: Target) -> ScrapeView:
        self.tries.append((self.now() - self.begin, target.member))
        self.running += 1
        self.peak = max(self.peak, self.running)
        await asyncio.sleep(self.seconds(target.member))
        self.running -= 1
        life = Attempt(1, f"a{target.member}")  # a process of its own in each
        ours = replace(
            OURS, points=tuple(p._replace(attempt=life) for p in OURS.points), page=Page(UID, life)
        )
        view = ours if target.member in self.speak else ScrapeView(ScrapeOutcome.UNREACHABLE, "refused")
        return replace(view, pod=target.pod, member=target.member)

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def run(main: Callable[[], object]) -> World:
    found = virtual_loop.run(main())  # type: ignore[arg-type]
    assert isinstance(found, World)
    return found


def test_at_rest_a_gang_costs_one_read_an_interval_and_its_members_are_not_looked_up() -> None:
    async def main() -> World:
        world = World(64, {40})
        world.loop.put(KEY, world.target(40))
        await asyncio.sleep(1000)
        await world.end()
        return world

    world = run(main)
    count = Counter(index for _, index in world.tries)
    assert count.pop(40) == 100
    assert set(count.values()) == {1}, "each of the others once, at the first read"
    assert len(count) == 63
    assert (world.looked, world.peak) == (1, 4), "at most so many at once"
    assert {view.member for view in world.delivered} == {40}


def test_while_nobody_speaks_each_member_is_tried_at_most_once_an_interval_a_few_at_a_time() -> None:
    async def main() -> World:
        world = World(20, set())
        world.loop.put(KEY, world.target(0))
        for _ in range(30):  # out of turn, as when a request waits for its answer
            await asyncio.sleep(3)
            world.loop.hasten(KEY)
        await world.end()
        return world

    world = run(main)
    assert world.peak == 4
    for index in range(20):
        times = [at for at, i in world.tries if i == index]
        assert len(times) > 3
        assert min(b - a for a, b in itertools.pairwise(times)) >= 0.9 * INTERVAL
    assert {view.outcome for view in world.delivered} == {ScrapeOutcome.UNREACHABLE}


def test_members_that_time_out_are_gone_through_in_several_turns_until_the_one_that_speaks() -> None:
    async def main() -> World:
        world = World(40, {39}, lambda i: 0.001 if i == 39 else 2.0)
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(300)
        await world.end()
        return world

    world = run(main)
    turns = Counter(round(at // INTERVAL) for at, index in world.tries if index != 39)
    assert max(turns.values()) <= 12, "one turn takes no more than its 5 s and the tries under way"
    assert {index for _, index in world.tries} == set(range(40))
    found = min(at for at, index in world.tries if index == 39)
    assert found < 4.5 * INTERVAL, "12 in each turn, and no turn is put off while some were not asked"
    assert world.delivered[-1].member == 39
    assert all("not asked yet" in view.message for view in world.delivered[:2])


def test_a_gang_that_nobody_speaks_for_is_asked_ever_more_seldom_once_each_was_asked() -> None:
    async def main() -> World:
        world = World(40, set(), lambda i: 2.0)
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(1000)
        await world.end()
        return world

    begins = sorted({at // INTERVAL for at, _ in run(main).tries})
    assert len([turn for turn in begins if turn < 5]) >= 4
    assert len(begins) < 25, "of 100 intervals"


def test_the_speaker_moves_and_its_place_as_first_asked_costs_nothing() -> None:
    async def main() -> World:
        world = World(3, {0})
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(50)
        world.speak = {2}
        await asyncio.sleep(25)
        assert world.delivered[-1].member == 2
        before = len(world.tries)
        world.loop.put(KEY, world.target(2))  # the pass has written who speaks
        await asyncio.sleep(0.5)
        assert len(world.tries) - before <= 1
        world.tries.clear()
        await asyncio.sleep(50)
        await world.end()
        return world

    world = run(main)
    assert {index for _, index in world.tries} == {2}
    assert len(world.tries) == 5


def test_a_pod_that_comes_up_is_asked_at_once() -> None:
    async def main() -> World:
        world = World(2, {2})
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(300)  # failures put off the next turn
        world.size, world.gang = 3, Gang(UID, 1, 1)
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(0.5)
        await world.end()
        return world

    world = run(main)
    assert world.delivered[-1].member == 2


def test_two_that_speak_are_told_and_one_that_goes_on_is_believed() -> None:
    async def main() -> World:
        world = World(3, {1, 2})
        world.loop.put(KEY, world.target(0))
        await asyncio.sleep(30)
        assert world.delivered[-1].outcome is ScrapeOutcome.SEVERAL_SPEAKERS
        assert all(name in world.delivered[-1].message for name in ("run-1", "run-2"))
        assert not any(view.points for view in world.delivered)
        world.speak = {1}
        await asyncio.sleep(130)
        await world.end()
        return world

    assert [point.step for point in run(main).delivered[-1].points] == [10]


def test_a_job_that_is_dropped_is_forgotten_and_a_single_pod_is_no_gang() -> None:
    async def main() -> World:
        world = World(3, {1})
        await world.gangs.scrape(world.target(0))
        assert (await world.gangs.scrape(world.target(1))).member == 1
        world.gangs.discard(KEY)
        assert world.gangs._searches == {}
        world.tries.clear()
        await world.gangs.scrape(replace(world.target(0), gang=None))
        await world.end()
        return world

    assert [index for _, index in run(main).tries] == [0]
