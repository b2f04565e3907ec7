"""The schedule and the shared loop, on virtual time."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.metrics import ScrapeLoop, Target
from controller.metrics.schedule import COST, MAX_BACKOFF, Schedule, Turn, jitter, stretched
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.support import virtual_loop

OK, DOWN = ScrapeView(ScrapeOutcome.OK), ScrapeView(ScrapeOutcome.UNREACHABLE)


def target(ip: str = "10.0.0.1", interval: float = 10.0, metric: str = "gold") -> Target:
    return Target(ip, 9400, metric, interval=interval)


class ScrapeWorld:
    """A scrape loop whose trainers answer after ``seconds`` of virtual time with ``view``."""

    def __init__(
        self,
        *,
        concurrency: int = 64,
        per_host: int = 64,
        per_namespace: int = 64,
        grain: float = 0.002,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = clock or asyncio.get_running_loop().time
        self.begin = self.clock()
        self.seconds: Callable[[Target], float] = lambda t: 0.0
        self.view: Callable[[Target], ScrapeView] = lambda t: OK
        self.scrapes: list[tuple[float, Target]] = []
        self.delivered: list[tuple[float, str, ScrapeView]] = []
        self.running = 0
        self.peak = 0
        self.loop = ScrapeLoop(
            self._scrape,
            self._deliver,
            concurrency=concurrency,
            per_host=per_host,
            per_namespace=per_namespace,
            grain=grain,
            monotonic=self.clock,
        )
        self.task = asyncio.create_task(self.loop.run())

    async def _scrape(self, t: Target) -> ScrapeView:
        self.scrapes.append((self.clock() - self.begin, t))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(self.seconds(t))
        finally:
            self.running -= 1
        return self.view(t)

    def _deliver(self, key: str, view: ScrapeView) -> None:
        self.delivered.append((self.clock() - self.begin, key, view))

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def gaps(times: list[float]) -> list[float]:
    return [round(b - a, 6) for a, b in itertools.pairwise(times)]


def test_a_target_is_scraped_at_a_fixed_rate_whatever_a_scrape_takes() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.seconds = lambda t: 0.4 if len(world.scrapes) % 2 else 0.99
        world.loop.put("ns/a", target())
        await world.pass_time(1000)
        await world.end()
        return [at for at, _ in world.scrapes]

    times = virtual_loop.run(main())
    assert len(times) == 100
    assert set(gaps(times)) == {10.0}
    assert times[0] == pytest.approx(10 * jitter("ns/a"), abs=1e-6)


@pytest.mark.parametrize(("grain", "most"), [(0.002, 12), (0.3, 8)])
def test_timers_that_fire_early_do_not_send_the_loop_round_and_round(grain: float, most: int) -> None:
    async def main() -> tuple[list[float], int]:
        running = asyncio.get_running_loop()
        exact, looks = running.call_at, 0

        def rounded(when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            now = running.time()  # to whole ms, as uvloop does
            return exact(now + round(when - now, 3), *args, **kwargs)

        def clock() -> float:
            nonlocal looks
            looks += 1
            return running.time() + looks * 1e-6  # else a loop that only goes round would do so for ever

        running.call_at = rounded  # type: ignore[method-assign]
        world = ScrapeWorld(clock=clock, grain=grain)
        world.loop.sync({f"ns/{i}": target(ip=f"10.0.0.{i}") for i in range(100)})
        await world.pass_time(10)
        world.scrapes.clear()
        looks = 0
        await world.pass_time(100)
        await world.end()
        return [at for at, _ in world.scrapes], looks

    times, looks = virtual_loop.run(main())
    assert 995 <= len(times) <= 1005  # at the ends of the time, some come early
    assert looks < most * len(times)


def test_a_scrape_that_ends_before_it_was_due_is_not_done_again() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.loop.put("ns/a", target())
        await world.pass_time(10 * jitter("ns/a") - 0.001)
        world.loop.hasten("ns/unknown")  # wakes the loop
        await world.pass_time(25)
        await world.end()
        return [at for at, _ in world.scrapes]

    times = virtual_loop.run(main())
    assert times[0] == pytest.approx(10 * jitter("ns/a") - 0.001, abs=1e-6)
    assert gaps(times) == [10.0, 10.0]  # the loop wakes every second after


def test_slots_missed_by_a_long_scrape_are_skipped_not_made_up_for() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.seconds = lambda t: 34.0 if len(world.scrapes) == 1 else 0.0
        world.loop.put("ns/a", target())
        await world.pass_time(100)
        await world.end()
        return [at for at, _ in world.scrapes]

    assert gaps(virtual_loop.run(main()))[:3] == [40.0, 10.0, 10.0]


def test_jobs_met_together_are_spread_over_the_interval() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.loop.sync({f"ns/{i}": target(ip=f"10.0.{i // 250}.{i % 250}") for i in range(1000)})
        await world.pass_time(9.999999)
        await world.end()
        return [at for at, _ in world.scrapes]

    times = virtual_loop.run(main())
    assert len(times) == 1000
    per_second = [sum(1 for t in times if int(t) == s) for s in range(10)]
    assert min(per_second) > 60
    assert max(per_second) < 140


def test_a_target_that_fails_is_asked_ever_more_rarely_and_at_once_again_when_it_answers() -> None:
    async def main() -> tuple[list[float], list[float]]:
        world = ScrapeWorld()
        world.view = lambda t: DOWN
        world.loop.put("ns/a", target())
        await world.pass_time(1000)
        failing = [at for at, _ in world.scrapes]
        world.view = lambda t: OK
        await world.pass_time(MAX_BACKOFF + 10)
        world.scrapes.clear()
        await world.pass_time(100)
        await world.end()
        return failing, [at for at, _ in world.scrapes]

    failing, healthy = virtual_loop.run(main())
    assert gaps(failing)[:6] == [10.0, 20.0, 40.0, 80.0, 120.0, 120.0]
    assert set(gaps(healthy)) == {10.0}


def test_back_off_of_one_target_does_not_slow_the_others() -> None:
    async def main() -> list[Target]:
        world = ScrapeWorld(concurrency=2)
        world.view = lambda t: DOWN if t.ip == "10.0.0.1" else OK
        world.seconds = lambda t: 5.0 if t.ip == "10.0.0.1" else 0.0
        world.loop.sync({"ns/down": target(), "ns/up": target(ip="10.0.0.2")})
        await world.pass_time(500)
        await world.end()
        return [t for _, t in world.scrapes]

    seen = virtual_loop.run(main())
    assert sum(t.ip == "10.0.0.2" for t in seen) == 50
    assert sum(t.ip == "10.0.0.1" for t in seen) < 10


@pytest.mark.parametrize(("concurrency", "per_host", "peak"), [(3, 64, 3), (64, 2, 2), (64, 64, 20)])
def test_concurrency_is_capped_and_everybody_gets_a_turn(concurrency: int, per_host: int, peak: int) -> None:
    async def main() -> tuple[int, set[str], float]:
        world = ScrapeWorld(concurrency=concurrency, per_host=per_host)
        world.seconds = lambda t: 10.0
        world.loop.sync({f"ns/{i}": target(metric=f"m{i}") for i in range(20)})
        await world.pass_time(300)
        lag = world.loop.stats.max_lag
        await world.end()
        return world.peak, {t.metric for _, t in world.scrapes}, lag

    measured, seen, lag = virtual_loop.run(main())
    assert measured == peak
    assert len(seen) == 20
    assert (lag > 5) == (peak < 20)  # a starved loop shows in its lag, an idle one has none


def quick_scrapes(slow: str, takes: float, key: str, quick: Target, **limits: int) -> int:
    """Return how often one quick page is read in 300 s beside 50 slow ones of another namespace or host.

    ``slow``: how their keys begin; ``takes``: s, each of them; ``limits``: of the loop.
    """

    async def main() -> int:
        world = ScrapeWorld(**limits)  # type: ignore[arg-type]
        world.seconds = lambda t: 0.0 if t == quick else takes
        targets = {f"{slow}{i}": target(metric=str(i)) for i in range(50)}
        world.loop.sync(targets | {key: quick})
        await world.pass_time(300)
        await world.end()
        return sum(t == quick for _, t in world.scrapes)

    return virtual_loop.run(main())


def test_a_slow_host_does_not_hold_up_the_others() -> None:
    quick = target(ip="10.0.0.2")
    assert quick_scrapes("ns/slow", 60.0, "ns/quick", quick, concurrency=8, per_host=1) == 30


def test_slow_trainers_of_another_namespace_on_the_same_node_hold_nobody_up() -> None:
    """Pods on the host network have one address; a tenant's slow pages there are that tenant's affair."""
    assert quick_scrapes("bad/", 4.9, "good/run", target(metric="good"), per_host=2) == 30


def test_a_discarded_target_is_scraped_no_more_and_its_late_answer_is_dropped() -> None:
    async def main() -> tuple[int, int, int]:
        world = ScrapeWorld()
        world.seconds = lambda t: 5.0
        world.loop.put("ns/a", target())
        await world.pass_time(10 * jitter("ns/a") + 1)
        world.loop.discard("ns/a")
        await world.pass_time(100)
        await world.end()
        return len(world.scrapes), len(world.delivered), world.loop.stats.targets

    assert virtual_loop.run(main()) == (1, 0, 0)


def test_a_pod_in_anothers_place_is_scraped_at_once_and_the_old_answer_is_dropped() -> None:
    async def main() -> tuple[list[str], list[ScrapeView]]:
        world = ScrapeWorld()
        world.seconds = lambda t: 5.0
        world.view = lambda t: DOWN if t.ip == "10.0.0.1" else OK
        world.loop.put("ns/a", target(ip="10.0.0.1"))
        await world.pass_time(10 * jitter("ns/a") + 1)
        world.loop.put("ns/a", target(ip="10.0.0.2"))
        await world.pass_time(9.5)
        await world.end()
        return [t.ip for _, t in world.scrapes][:2], [view for _, _, view in world.delivered]

    assert virtual_loop.run(main()) == (["10.0.0.1", "10.0.0.2"], [OK])


def test_a_key_forgotten_and_added_again_has_one_rhythm_not_two() -> None:
    async def main() -> tuple[int, int]:
        world = ScrapeWorld()
        world.seconds = lambda t: 9.0 if len(world.scrapes) == 1 else 0.9
        world.loop.put("ns/a", target())
        await world.pass_time(10 * jitter("ns/a") + 1)
        for _ in range(3):
            world.loop.discard("ns/a")
            world.loop.put("ns/a", target())
        await world.pass_time(200)
        await world.end()
        return len(world.scrapes), world.peak

    scrapes, peak = virtual_loop.run(main())
    assert scrapes in (21, 22)
    assert peak <= 2  # the first one's scrape was still under way


def test_hasten_scrapes_next_also_while_one_is_under_way() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.seconds = lambda t: 5.0
        world.loop.put("ns/a", target(interval=100.0))
        world.loop.hasten("ns/a")
        world.loop.hasten("ns/unknown")
        await world.pass_time(1)
        world.loop.hasten("ns/a")
        await world.pass_time(8)
        await world.end()
        return [at for at, _ in world.scrapes]

    assert virtual_loop.run(main()) == pytest.approx([0.0, 5.0], abs=1e-3)


def test_an_error_in_a_scrape_or_in_its_delivery_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        calls = 0

        async def scrape(t: Target) -> ScrapeView:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RuntimeError("scraper broken")
            return OK

        def deliver(key: str, view: ScrapeView) -> None:
            raise RuntimeError("listener broken")

        clock = asyncio.get_running_loop().time
        loop = ScrapeLoop(scrape, deliver, monotonic=clock)
        loop.put("ns/a", target())
        task = asyncio.create_task(loop.run())
        await asyncio.sleep(100)
        assert not task.done()
        task.cancel()
        return calls

    with caplog.at_level(logging.ERROR):
        assert virtual_loop.run(main()) == 10
    assert {"scraper broken", "listener broken"} <= {str(r.exc_info[1]) for r in caplog.records if r.exc_info}


def test_the_loop_shows_that_it_goes_round_and_ends_its_scrapes_with_itself() -> None:
    async def main() -> None:
        world = ScrapeWorld()
        await world.pass_time(30)
        assert world.clock() - world.loop.stats.beat <= 1.0  # idle, too
        world.seconds = lambda t: 1e6
        world.loop.put("ns/a", target())
        await world.pass_time(30)
        stats = world.loop.stats
        assert (stats.targets, stats.in_flight, stats.started) == (1, 1, 1)
        await world.end()
        assert (world.running, world.loop.stats.in_flight) == (0, 0)

    virtual_loop.run(main())


@pytest.mark.parametrize("interval", [0.0, -1.0, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        Schedule().put("a", interval, 0.0)


def test_caps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        virtual_loop.run(_with_caps(0, 1))
    with pytest.raises(ValueError, match="at least 1"):
        virtual_loop.run(_with_caps(1, 0))


async def _with_caps(concurrency: int, per_host: int) -> None:
    await ScrapeWorld(concurrency=concurrency, per_host=per_host).end()


_step = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from([1.0, 5.0])),
    st.tuples(st.just("discard"), st.sampled_from("abc"), st.none()),
    st.tuples(st.just("hasten"), st.sampled_from("abc"), st.none()),
    st.tuples(st.just("wait"), st.none(), st.floats(0, 30)),
    st.tuples(st.just("pop"), st.none(), st.none()),
    st.tuples(st.just("done"), st.booleans(), st.integers(0, 5)),
)


@settings(max_examples=300)
@given(st.lists(_step, max_size=60))
def test_any_use_of_the_schedule_keeps_every_key_in_it_once(steps: list[tuple[str, object, object]]) -> None:
    """Whatever happens: an idle key is due some time, a busy one is not handed out again, none is lost."""
    schedule, now = Schedule(), 0.0
    known: set[str] = set()
    out: list[Turn] = []
    for name, a, b in steps:
        if name == "put":
            schedule.put(str(a), float(b), now)  # type: ignore[arg-type]
            known.add(str(a))
        elif name == "discard":
            schedule.discard(str(a))
            known.discard(str(a))
        elif name == "hasten":
            schedule.hasten(str(a), now)
        elif name == "wait":
            now += float(b)  # type: ignore[arg-type]
        elif name == "pop" and (turn := schedule.pop(now)):
            assert turn.due <= now
            assert not any(t is turn for t in out)
            out.append(turn)
        elif name == "done" and out:
            turn = out.pop(int(b) % len(out))  # type: ignore[call-overload]
            schedule.done(turn, bool(a), now)
            assert not schedule.holds(turn) or turn.due >= now
    assert len(schedule) == len(known)
    for turn in out:
        schedule.done(turn, True, now)
    drained = set()
    while (turn := schedule.pop(math.inf)) is not None:
        assert turn.key not in drained
        drained.add(turn.key)
    assert drained == known


# -- slow trainers of one tenant -------------------------------------------------------------------------


def many(namespace: str, count: int, net: int, interval: float) -> dict[str, Target]:
    return {f"{namespace}/{i}": target(f"10.{net}.{i // 250}.{i % 250 + 1}", interval) for i in range(count)}


def late_by(at: float, key: str, interval: float = 5.0) -> float:
    """s after its slot; what is due in a moment is begun at once."""
    return (at - interval * jitter(key) + 0.01) % interval - 0.01


@pytest.mark.parametrize("slow", [128, 256, 1000])
def test_slow_trainers_make_nobody_elses_scrapes_late(slow: int) -> None:
    """128 trainers that take 4.9 s every 5 s fill 64 slots twice over: half of all scrapes were missed."""
    honest = many("honest", 50, 1, 5.0)

    async def main() -> tuple[list[float], int, float]:
        world = ScrapeWorld(per_namespace=16)
        world.seconds = lambda t: 4.9 if t.ip.startswith("10.2.") else 0.02
        world.loop.sync(honest | many("alice", slow, 2, 5.0))
        await world.pass_time(300)
        begun = [at for at, t in world.scrapes if t in honest.values()]
        late = sorted(late_by(at, key) for key in honest for at, t in world.scrapes if t == honest[key])
        lag = world.loop.stats.max_lag
        await world.end()
        return late, len(begun), lag

    late, count, lag = virtual_loop.run(main())
    assert count >= 50 * 59
    assert late[int(0.99 * len(late))] < 1.0
    assert lag < 1.0  # who waits for his own neighbours does not make the metric say that scrapes are late


def test_many_namespaces_with_slow_trainers_cannot_take_all_slots_either() -> None:
    honest = many("honest", 20, 1, 5.0)

    async def main() -> list[float]:
        world = ScrapeWorld(per_namespace=16)
        world.seconds = lambda t: 0.02 if t.ip.startswith("10.1.") else 4.9
        crowd = [many(f"alice-{i}", 64, 2 + i, 5.0) for i in range(8)]
        world.loop.sync({key: t for found in (honest, *crowd) for key, t in found.items()})
        await world.pass_time(300)
        keys = {t.ip: key for key, t in honest.items()}
        late = sorted(late_by(at, keys[t.ip]) for at, t in world.scrapes if t.ip in keys)
        await world.end()
        return late

    late = virtual_loop.run(main())
    assert len(late) >= 20 * 59
    assert late[int(0.99 * len(late))] < 1.0


def test_a_slow_trainer_is_asked_less_often_and_told_so_and_recovers() -> None:
    async def main() -> tuple[list[float], list[str], list[float]]:
        world = ScrapeWorld()
        world.seconds = lambda t: 4.9
        world.loop.put("ns/a", target(interval=5.0))
        await world.pass_time(600)
        slow, world.scrapes = [at for at, _ in world.scrapes], []
        told = [view.message for _, _, view in world.delivered]
        world.seconds = lambda t: 0.01
        await world.pass_time(600)
        await world.end()
        return slow, told, [at for at, _ in world.scrapes]

    slow, told, after = virtual_loop.run(main())
    assert gaps(slow)[:1] == [5.0]  # once is chance
    assert set(gaps(slow)[2:]) == {80.0}
    assert told[0] == ""
    assert told[-1] == "its page takes long to answer, so it is read every 80 s instead of every 5 s"
    assert gaps(after)[-1] == 5.0


@given(st.floats(1, 3600), st.floats(0, 60), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_a_stretched_interval_is_long_enough_or_the_longest(
    interval: float, took: float, before: int
) -> None:
    stretch = stretched(interval, took, before)
    assert stretch * interval >= COST * took or 2 * stretch * interval > MAX_BACKOFF
    assert stretch == stretched(interval, took, stretch) or stretch < before


def test_failures_are_no_cost() -> None:
    async def main() -> list[float]:
        world = ScrapeWorld()
        world.seconds = lambda t: 4.9 if len(world.scrapes) == 2 else 0.1
        world.view = lambda t: DOWN if len(world.scrapes) == 2 else OK
        world.loop.put("ns/a", target(interval=5.0))
        await world.pass_time(60)
        await world.end()
        return [at for at, _ in world.scrapes]

    assert set(gaps(virtual_loop.run(main()))) == {5.0}
