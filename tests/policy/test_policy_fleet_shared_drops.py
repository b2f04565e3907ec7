"""Common mode: a fault that all share stops none; a run that declines by itself among them still stops."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.convert import record, status
from controller.api.fleet import noise as noise_in
from controller.api.fleet import shared_falls
from controller.policy.fleet.limits import ASKS_OTHERS, SHARED_FALL, limit_stops
from controller.policy.fleet.shared_drops import FALLS_KEPT, FEW, ask, mixes, remember
from controller.policy.job import conditions
from controller.policy.job import evals as job_evals
from controller.policy.job.comparability import begin_anew
from controller.policy.job.record import JobRecord, ProtectedCheckpoint
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, ScrapeOutcome, ScrapeView
from controller.policy.types import (
    Attempt,
    EvalPoint,
    FleetNoise,
    JobState,
    JobView,
    MetricNoise,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    Reading,
    SharedFall,
    StopLimits,
)
from tests.support.policy_world import PolicyWorld
from tests.support.pool_memory import stored

NOISE = 0.02
ASKS = Proposal(10, 5, "Fell", 3.0, 2.0)
T = 10_000.0  # s, when the evaluator changes


def run(
    number: int,
    scores: Sequence[float],
    *,
    every: float = 60.0,
    last: float = T + 30.0,
    asks: bool = False,
    metric: str = "gold",
    noise: FleetNoise | None = None,
) -> JobView:
    """A running job whose newest eval was read at ``last``, the others ``every`` s apart before it."""
    times = [last - every * i for i in reversed(range(len(scores)))]
    return JobView(
        f"ns/j{number:02d}",
        submitted=float(number),
        sequence=number,
        replicas=1,
        gpus_per_replica=1,
        state=JobState.ADMITTED,
        proposal=ASKS if asks else None,
        metric=metric,
        noise=noise,
        readings=tuple(map(Reading, times, scores)),
    )


def noisy(seed: object, length: int, fall: float = 0.0, after: int = 1, slope: float = 0.0) -> list[float]:
    """Scores about .7, ``fall`` lower in the last ``after`` evals."""
    rng = random.Random(str(seed))
    level = [0.7 + slope * i - (fall if i >= length - after else 0.0) for i in range(length)]
    return [x + rng.gauss(0.0, NOISE) for x in level]


def calm(length: int, fall: float = 0.0) -> list[float]:
    """Scores that go up and down by as much as noise does, and then fall."""
    return [0.7 + (NOISE if i % 2 else -NOISE) for i in range(length - 1)] + [0.7 - fall]


def asked(jobs: list[JobView], percent: int = 50, now: float = T + 60.0, noise: Sequence[MetricNoise] = ()):
    return ask(jobs[0], jobs, noise, percent, 1800.0, now)


@pytest.mark.parametrize(("jobs", "fall"), [(3, 0.2), (5, 0.15), (20, 0.1), (20, 0.3)])
def test_a_fall_that_all_share_is_known_at_the_first_eval(jobs: int, fall: float) -> None:
    views = [run(i, noisy(("all", i), 12, fall), asks=True) for i in range(jobs)]
    (found,) = limit_stops(views, pool(), T + 60.0).falls
    assert (found.metric, found.after, found.before) == ("gold", T - 30.0, T + 30.0)
    assert found.fell >= 0.6 * jobs
    assert found.of == jobs


def test_what_one_eval_leaves_open_three_decide() -> None:
    """In a small pool: as many may have fallen, so the stop waits until it can be told."""
    waited, found = 0, 0
    for fleet in range(40):
        first = [run(i, noisy(("open", fleet, i), 12, 0.07), asks=True) for i in range(4)]
        third = [run(i, noisy(("open", fleet, i), 14, 0.07, after=3), asks=True) for i in range(4)]
        seen = limit_stops(first, pool(), T + 60.0)
        waited += not seen.falls and len(seen.held) > 0
        found += bool(seen.falls or limit_stops(third, pool(), T + 200.0).falls)
    assert waited > 10
    assert found > 25


def test_each_run_may_have_a_pace_of_its_own() -> None:
    """The others' evals between the two that bracket the fall are of neither side."""
    quick, slow = run(0, noisy("q", 16, 0.2, after=2), every=20.0), [600.0, 900.0, 45.0, 130.0]
    others = [
        run(i, noisy(("slow", i), 12, 0.2), every=pace, last=T + 25.0 + 10 * i)
        for i, pace in enumerate(slow, 1)
    ]
    found = asked([quick, *others]).fall
    assert found is not None
    assert (found.after, found.before) == (T - 10.0, T + 10.0)
    assert found.fell >= 4


def test_a_decline_of_its_own_is_its_own() -> None:
    jobs = [run(0, noisy("own", 12, 0.3)), *(run(i, noisy(("still", i), 12)) for i in range(1, 20))]
    assert asked(jobs) == (None, None, "", 0)


@pytest.mark.parametrize("after", range(1, 8))
def test_seeds_that_turn_down_between_the_same_two_evals_do_not_share_a_sudden_fall(after: int) -> None:
    """They rise by .01 an eval, and fall by .02: taken for scored otherwise, they forgot their best."""
    for number in range(20):
        jobs = []
        for i in range(3):
            rng = random.Random(f"{number} {i}")
            level = [0.5 + 0.01 * k for k in range(16)] + [0.65 - 0.02 * (k + 1) for k in range(after)]
            jobs.append(run(i, [x + rng.gauss(0.0, 0.004) for x in level]))
        assert asked(jobs).fall is None


def test_runs_that_decline_side_by_side_do_not_share_a_sudden_fall() -> None:
    """A sweep of seeds over-optimises at the same time: steadily, however steep, and without noise, too."""
    noisy_sweep = [run(i, noisy(("sweep", i), 16, slope=-0.012)) for i in range(20)]
    steep = [run(i, [0.7 - 0.05 * k * (1 + i / 40) for k in range(16)]) for i in range(20)]
    hill = [run(i, [0.7 - 0.002 * (k - 8) ** 2 for k in range(16)]) for i in range(20)]
    for jobs in (noisy_sweep, steep, hill):
        assert asked(jobs).fall is None


def test_a_share_of_the_runs_decides() -> None:
    jobs = [run(i, calm(12, 0.3 if i < 8 else 0.0)) for i in range(20)]
    assert asked(jobs, percent=50).fall is None
    found = asked(jobs, percent=40).fall
    assert found is not None
    assert (found.fell, found.of) == (8, 20)


def test_an_evaluator_is_shared_by_the_runs_of_its_metric() -> None:
    jobs = [run(i, noisy(("m", i), 12, 0.3), metric="gold") for i in range(5)]
    jobs += [run(i, noisy(("m", i), 12), metric="other") for i in range(5, 30)]
    found = asked(jobs).fall
    assert found is not None
    assert (found.metric, found.of) == ("gold", 5)


def test_where_a_metric_has_too_few_runs_all_are_asked() -> None:
    jobs = [run(i, noisy(("few", i), 12, 0.3), metric=f"m{i}") for i in range(FEW)]
    found = asked(jobs).fall
    assert found is not None
    assert found.metric == ""
    assert asked(jobs[:-1]).fall is None  # two can say nothing


def test_the_first_run_to_be_evaluated_waits_for_the_others() -> None:
    late = [run(i, noisy(("late", i), 12), every=600.0, last=T - 5.0 - i) for i in range(1, 10)]
    jobs = [run(0, noisy("first", 12, 0.3)), *late]
    waits = asked(jobs)
    assert waits.fall is None
    assert waits.wait_until == T + 30.0 + 1800.0
    assert "only 1 have had an eval since, 1 of which fell" in waits.message
    assert asked(jobs, now=T + 30.0 + 1800.0) == (None, None, "", 0)  # not for ever
    low = [run(i, noisy(("late", i), 13, 0.3), every=600.0, last=T + 595.0 - i) for i in range(1, 5)]
    assert asked([jobs[0], *low, *late[4:]]).fall is not None  # half of them are enough
    high = [run(i, noisy(("late", i), 13), every=600.0, last=T + 595.0 - i) for i in range(1, 5)]
    assert asked([jobs[0], *high, *late[4:]]) == (None, None, "", 0)


@pytest.mark.parametrize("every", [60.0, 600.0, 7200.0, 86400.0])
def test_rare_evals_are_waited_for(every: float) -> None:
    """Whoever is evaluated first must not be stopped because the others' next evals are hours away."""
    late = [run(i, noisy(("rare", i), 12), every=every, last=T - 5.0 - i) for i in range(1, 10)]
    until = T + 30.0 + max(1800.0, 1.5 * every)
    waits = asked([run(0, noisy("first", 12, 0.3)), *late])
    assert (waits.fall, waits.wait_until) == (None, until)
    assert asked([run(0, noisy("first", 12, 0.3)), *late], now=until) == (None, None, "", 0)
    last = T - 5.0 + every  # whenever the others have had theirs, it is in time
    low = [run(i, noisy(("rare", i), 13, 0.3), every=every, last=last - i) for i in range(1, 10)]
    assert last < until
    assert asked([run(0, noisy("first", 12, 0.3)), *low], now=last).fall is not None


def test_where_one_eval_leaves_it_open_three_are_waited_for() -> None:
    every, waits = 7200.0, set[float | None]()
    for fleet in range(40):
        jobs = [run(i, noisy(("open", fleet, i), 12, 0.07), every=every) for i in range(4)]
        waits.add(asked(jobs).wait_until)
    assert T + 30.0 + 3.5 * every in waits
    assert waits <= {None, T + 30.0 + 3.5 * every, T + 30.0 + 2.5 * every}  # of the gap one eval before it


def test_short_runs_are_judged_by_the_noise_of_the_pool() -> None:
    jobs = [run(i, noisy(("short", i), 5, 0.3)) for i in range(6)]
    assert asked(jobs).fall is None  # nobody knows what is usual
    assert asked(jobs, noise=[MetricNoise("ns", "gold", "", FleetNoise(NOISE, 20.0), 4)]).fall is not None


@given(st.integers(0, 10**6), st.integers(3, 12))
@settings(max_examples=60)
def test_luck_alone_is_hardly_ever_shared(seed: int, jobs: int) -> None:
    """Without any fall; the most that three runs may show in a thousand such fleets is a handful."""
    rng = random.Random(seed)
    shared = 0
    for fleet in range(10):
        views = [run(i, noisy((rng.random(), fleet, i), 16)) for i in range(jobs)]
        shared += asked(views).fall is not None
    assert shared <= 3


def pool(limits: StopLimits | None = None, falls: Sequence[SharedFall] = ()) -> PoolSnapshot:
    return PoolSnapshot("p", PolicySpec("fifo"), (), (), limits=limits or StopLimits(), falls=tuple(falls))


def test_the_pool_holds_back_all_that_look_across_the_fall() -> None:
    jobs = [run(i, noisy(("hold", i), 12, 0.3), asks=i < 6) for i in range(20)]
    found = limit_stops(jobs, pool(), T + 60.0)
    assert found.grant == ()
    assert {h.reason for h in found.held} == {SHARED_FALL}
    assert found.held[0].message.startswith("20 of 20 jobs fell at the same moment")
    assert len(found.falls) == 1
    assert found.stops.reason == SHARED_FALL
    # At the next pass it is known, whoever asks then.
    again = limit_stops(jobs[3:9], pool(falls=found.falls), T + 61.0)
    assert (again.grant, again.falls) == ((), found.falls)
    # Whoever looks only at evals since then is not concerned.
    since = [replace(j, readings=j.readings[-1:]) for j in jobs]
    assert len(limit_stops(since, pool(falls=found.falls), T + 62.0).grant) == 6


def test_the_guard_can_be_turned_off() -> None:
    jobs = [run(i, noisy(("off", i), 12, 0.3), asks=True) for i in range(5)]
    assert len(limit_stops(jobs, pool(StopLimits(shared_fall_percent=None)), T + 60.0).grant) == 5


def test_waiting_for_the_others_wakes_the_pool() -> None:
    late = [run(i, noisy(("late", i), 12), every=600.0, last=T - 5.0) for i in range(1, 10)]
    found = limit_stops([run(0, noisy("first", 12, 0.3), asks=True), *late], pool(), T + 60.0)
    assert [h.reason for h in found.held] == [ASKS_OTHERS]
    assert found.wake_at == T + 30.0 + 1800.0


def test_falls_are_remembered_by_metric_and_bounded() -> None:
    falls: tuple[SharedFall, ...] = ()
    for i in range(FALLS_KEPT + 3):
        falls = remember(falls, SharedFall("ns", f"m{i}", "", 10.0 * i, 10.0 * i + 5.0, 3, 3))
    assert [f.metric for f in falls] == [f"m{i}" for i in range(3, FALLS_KEPT + 3)]
    newer = SharedFall("ns", "m5", "", 500.0, 505.0, 4, 5)
    assert remember(falls, newer)[-1] == newer
    assert len(remember(falls, newer)) == FALLS_KEPT
    assert mixes(run(0, noisy("x", 12), metric="m5", last=510.0), [newer]) == newer
    assert mixes(run(0, noisy("x", 12), metric="m6", last=510.0), [newer]) is None


# -- through the whole brain: jobs, pool, records ---------------------------------------------------------


def fleet(
    jobs: int = 20, rule: PolicySpec | None = None, kind: type[PolicyWorld] = PolicyWorld
) -> PolicyWorld:
    world = kind({"n0": jobs})
    rule = rule or PolicySpec("drawdown", {"max_drop": 0.08, "window": 2})
    for i in range(jobs):
        world.submit(f"ns/j{i:02d}", rule=rule)
    world.settle()
    return world


class Forgetful(PolicyWorld):
    """An operator that dies after every pass: all it knows is what the statuses say."""

    def step(self, key: str, **how):
        job = self.jobs[key]
        job.record = record(json.loads(json.dumps(status(job.record, job.desired, self.now))))
        return super().step(key, **how)

    def pool_pass(self):
        kept = json.loads(json.dumps(stored(self.told.stops, self.told.noise, self.told.falls)))
        self.told = replace(self.told, noise=noise_in(kept), falls=shared_falls(kept))
        return super().pool_pass()


def feed(world: PolicyWorld, scores: Iterable[tuple[str, float]]) -> None:
    for key, score in scores:
        world.scores(key, score)
    world.now += 60.0
    world.settle()


def train(
    world: PolicyWorld, evals: int, level: float, falling: str = "", slope: float = 0.04, seed: str = ""
) -> None:
    """Evals of all running jobs about ``level``; those of ``falling`` go down by ``slope`` at each."""
    rng = random.Random(f"{evals} {level} {seed}")
    for n in range(1, evals + 1):
        live = [key for key, job in world.jobs.items() if job.record.decision is None]
        feed(
            world,
            ((k, level + rng.gauss(0.0, 0.01) - (slope * n if k == falling else 0.0)) for k in live),
        )


def stopped(world: PolicyWorld) -> set[str]:
    return {key for key, job in world.jobs.items() if job.record.decision is not None}


@pytest.mark.parametrize("version", [True, False])
def test_another_evaluator_stops_none_of_twenty_jobs_and_a_decline_among_them_is_still_found(version) -> None:
    world = fleet()
    world.evaluator = "v1" if version else None
    train(world, 8, 0.7)
    world.evaluator = "v2" if version else None
    train(world, 8, 0.4)
    assert stopped(world) == set()
    assert len(world.told.falls) == (0 if version else 1)
    for job in world.jobs.values():
        assert job.record.best is not None
        assert job.record.best.score < 0.5  # the best under the present evaluator
        assert job.record.baseline is not None
        kept = job.record.baseline.kept
        assert kept is not None
        assert kept.score > 0.6
        assert kept.step in job.pins  # and the one before is still there
    train(world, 8, 0.4, falling="ns/j07", seed="later")
    assert stopped(world) == {"ns/j07"}
    decision = world.jobs["ns/j07"].record.decision
    assert decision is not None
    assert decision.proposal.best_step > 80


@pytest.mark.parametrize("version", [True, False])
def test_it_all_comes_out_the_same_for_an_operator_that_remembers_nothing(version: bool) -> None:
    ends = []
    for kind in (PolicyWorld, Forgetful):
        world = fleet(5, kind=kind)
        world.evaluator = "v1" if version else None
        train(world, 8, 0.7)
        world.evaluator = "v2" if version else None
        train(world, 6, 0.4)
        train(world, 6, 0.4, falling="ns/j02", seed="later")
        assert stopped(world) == {"ns/j02"}
        ends.append((world.told, [job.record for job in world.jobs.values()]))
    assert ends[0] == ends[1]


def test_without_the_guard_and_without_versions_they_would_all_be_stopped() -> None:
    """The tests above could fail."""
    world = fleet(6)
    world.limits = StopLimits(shared_fall_percent=None)
    train(world, 8, 0.7)
    train(world, 4, 0.4)
    assert len(stopped(world)) == 6


def test_a_decline_that_began_before_the_fall_is_found_after_it() -> None:
    world = fleet(8)
    train(world, 6, 0.7)
    train(world, 1, 0.7, falling="ns/j03", slope=0.02)
    train(world, 1, 0.4, falling="ns/j03", slope=0.04)
    train(world, 8, 0.4, falling="ns/j03", slope=0.03, seed="goes on")
    assert stopped(world) == {"ns/j03"}


# -- one job's memory ------------------------------------------------------------------------------------

ONE, TWO = Attempt(1, "100"), Attempt(2, "200")


def use() -> RuleInUse:
    return RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 3})))


def scrape(*points: EvalPoint, version: str | None = None, at: float = 0.0) -> ScrapeView:
    return ScrapeView(ScrapeOutcome.OK, at=at, metrics_seen=("gold",), points=points, evaluator=version)


def evals(*scores: float, start: int = 10, life: Attempt = ONE) -> list[EvalPoint]:
    return [EvalPoint(start + 10 * i, s, life) for i, s in enumerate(scores)]


def take(record: JobRecord, view: ScrapeView, fall: SharedFall | None = None) -> JobRecord:
    return job_evals.ingest(begin_anew(record, use(), view, fall), use(), view)


def test_evals_that_come_with_the_news_of_another_evaluator_are_doubtful() -> None:
    record = take(JobRecord(), scrape(*evals(1, 2, 3), version="v1"))
    changed = take(record, scrape(*evals(1, 2, 3, 0.5), version="v2", at=9.0))
    assert (changed.evals, changed.best, changed.evaluator) == ((), None, "v2")
    assert take(changed, scrape(*evals(1, 2, 3, 0.5), version="v2")) == changed
    later = take(changed, scrape(*evals(1, 2, 3, 0.5, 0.6), version="v2"))
    assert [(p.step, p.score) for p in later.evals] == [(50, 0.6)]
    assert later.evals_seen == 1


def test_a_new_process_was_started_with_the_new_evaluator() -> None:
    record = take(JobRecord(), scrape(*evals(1, 2, 3), version="v1"))
    resumed = take(record, scrape(*evals(0.5, 0.6, start=20, life=TWO), version="v2"))
    assert [(p.step, p.score) for p in resumed.evals] == [(20, 0.5), (30, 0.6)]
    assert resumed.best is not None
    assert resumed.best.step == 30


@pytest.mark.parametrize("versions", [("", "v1"), ("v1", "v1"), ("v1", ""), ("", "")])
def test_only_a_known_version_that_changes_counts(versions: tuple[str, str]) -> None:
    before, after = (v or None for v in versions)
    record = take(JobRecord(), scrape(*evals(1, 2), version=before))
    record = take(record, scrape(*evals(1, 2, 3), version=after))
    assert len(record.evals) == 3
    assert record.baseline is None


def test_a_shared_fall_leaves_the_evals_behind_it() -> None:
    record = JobRecord()
    for i in range(1, 7):
        record = take(record, scrape(*evals(*range(i)), at=100.0 * i))
    secured = ProtectedCheckpoint(60, 60, "/pins/60", "sha256:x", 601.0, score=5.0, attempt=ONE)
    record = replace(record, secured=secured)
    fall = SharedFall("ns", "gold", "", 350.0, 400.0, 4, 5)
    view = scrape(*evals(*range(6)), at=700.0)
    cut = take(record, view, fall)
    assert [p.step for p in cut.evals] == [40, 50, 60]
    assert cut.eval_times == (400, 500, 600)
    assert (cut.secured, cut.best) == (
        replace(secured, baseline=1),
        record.best,
    )  # still the best of those kept
    assert take(cut, view, fall) is cut
    assert take(record, view, SharedFall("ns", "gold", "", 10.0, 20.0, 4, 5)).evals == record.evals


def test_a_run_that_began_after_the_fall_is_never_cut() -> None:
    fall, record = SharedFall("ns", "gold", "", 10.0, 20.0, 4, 5), JobRecord()
    for i in range(1, 31):
        record = take(record, scrape(*evals(*range(i)), at=100.0 * i), fall)
    assert len(record.evals) == 30
    assert len(record.eval_times) < 30


def test_the_job_says_that_its_rule_began_anew_and_why() -> None:
    world = fleet(1, PolicySpec("kDeclines", {"k": 2}))
    world.evaluator = "v1"
    world.scores("ns/j00", 1.0, 2.0, 1.5)
    world.settle()
    world.evaluator = "v2"
    world.scores("ns/j00", 1.2)
    planned = world.step("ns/j00")
    said = planned.record.condition(conditions.DECLINING)
    assert said is not None
    assert (said.status, said.reason) == (False, "BeganAnew")
    assert "the evaluator changed from 'v1' to 'v2'" in said.message
    assert "the checkpoint of step 20, best until then, stays pinned" in said.message
    assert "BeganAnew" in [e.reason for e in planned.events]
