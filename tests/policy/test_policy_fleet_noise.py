"""The fleet's noise: learned from running jobs, and given to rules that know too little of their own."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import polygamma

from controller.policy.codec import decode, encode
from controller.policy.fleet import noise as fleet_noise
from controller.policy.fleet.noise import LEAST, METRICS_KEPT, MOST, _trigamma, learn, pooled
from controller.policy.job import guardrails
from controller.policy.job.record import Guard, JobRecord
from controller.policy.job.types import Direction, Guardrail, MetricPoints, Observed
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, RULES, make_rule, noise
from controller.policy.types import (
    Attempt,
    EvalInContext,
    EvalPoint,
    FleetNoise,
    FleetView,
    GuardrailNoise,
    JobState,
    JobView,
    MetricNoise,
    PolicySpec,
    Verb,
)
from tests.support.policy_world import PolicyWorld


@pytest.mark.parametrize("step", [0.00125, 0.1, 1 / 3])
@pytest.mark.parametrize("single", [False, True])
def test_scores_on_a_straight_line_teach_the_pool_nothing(step: float, single: bool) -> None:
    """Three smoke tests of a ramp made noisy runs beside them stop: 1e14 standard deviations below."""
    scores = [0.5 + step * i for i in range(40)]
    if single:
        scores = [float(np.float32(score)) for score in scores]
    points = [EvalPoint(i, score) for i, score in enumerate(scores)]
    assert noise.own(points) is None
    assert noise.own([*points, EvalPoint(40, scores[-1] - 0.01)]) is not None, "a real difference counts"
    state = noise.initial()
    for point in points:
        state = noise.observe(state, point)
    assert noise.is_without(state) is not single


def job(number: int, found: FleetNoise | None, metric: str = "gold") -> JobView:
    return JobView(f"ns/j{number}", 0.0, number, 1, 1, state=JobState.ADMITTED, metric=metric, noise=found)


def estimates(rng: random.Random, jobs: int, freedom: float, scatter: float | None) -> list[FleetNoise]:
    """Of true noises about .05 that scatter as ``scatter`` degrees of freedom do; None: not at all."""

    def chi(d: float) -> float:
        return rng.gammavariate(d / 2.0, 2.0) / d

    true = [0.05**2 / (chi(scatter) if scatter else 1.0) for _ in range(jobs)]
    return [FleetNoise(math.sqrt(v * chi(freedom)), freedom) for v in true]


@pytest.mark.parametrize("x", [0.1, 0.5, 1.0, 3.0, 9.9, 32.0, 500.0])
def test_trigamma(x: float) -> None:
    assert _trigamma(x) == pytest.approx(float(polygamma(1, x)), rel=1e-9)


def test_it_is_the_same_to_every_digit_as_by_the_exact_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    groups = [
        estimates(rng, rng.randint(3, 40), 10.0 ** rng.uniform(0.0, 2.0), scatter)
        for scatter in [None, 2, 30] * 80
    ]
    found = [pooled(group) for group in groups]
    monkeypatch.setattr(fleet_noise, "_variance", statistics.variance)
    assert found == [pooled(group) for group in groups]


def test_few_jobs_teach_nothing() -> None:
    known = FleetNoise(0.05, 10.0)
    assert learn((), [job(0, known), job(1, known)]) == ()
    assert learn((), [job(0, known), job(1, known), job(2, None), job(3, known, "other")]) == ()
    (entry,) = learn((), [job(i, known) for i in range(3)])
    assert (entry.metric, entry.jobs, entry.noise.freedom) == ("gold", 3, MOST)
    assert entry.noise.sigma == pytest.approx(0.05, rel=0.05)


def test_how_far_it_is_trusted_is_seen_in_how_much_the_runs_differ() -> None:
    rng = random.Random(7)
    found = {}
    for scatter in (3.0, 12.0, None):
        many = [pooled(estimates(rng, 40, 12.0, scatter)) for _ in range(60)]
        found[scatter] = sorted(n.freedom for n in many)[30]
        assert sorted(n.sigma for n in many)[30] == pytest.approx(0.05, rel=0.15)
    assert found[3.0] == pytest.approx(3.0, rel=0.35)
    assert found[12.0] == pytest.approx(12.0, rel=0.35)
    assert found[None] > 40.0


@given(st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=20), st.floats(3.0, 1000.0))
def test_it_lies_among_what_the_runs_show(sigmas: list[float], freedom: float) -> None:
    found = pooled([FleetNoise(s, freedom) for s in sigmas])
    assert 0.99 * min(sigmas) <= found.sigma <= 1.2 * max(sigmas)
    assert LEAST <= found.freedom <= MOST


def test_what_is_known_stays_until_it_is_clearly_otherwise() -> None:
    """Each change is a write of the pool's status and a new plan of every job."""
    known = learn((), [job(i, FleetNoise(0.05, 10.0)) for i in range(4)])
    assert learn(known, [job(i, FleetNoise(0.052, 11.0)) for i in range(6)]) == known
    assert learn(known, [job(0, FleetNoise(9.0, 10.0))]) == known  # too few; and after their end
    assert learn(known, []) == known
    (other,) = learn(known, [job(i, FleetNoise(0.08, 10.0)) for i in range(4)])
    assert other.noise.sigma == pytest.approx(0.08, rel=0.05)


def test_metrics_are_bounded_and_those_with_jobs_stay() -> None:
    known = tuple(MetricNoise("ns", f"m{i:02d}", "", FleetNoise(0.1, 5.0), 3) for i in range(METRICS_KEPT))
    found = learn(known, [job(i, FleetNoise(0.05, 10.0), "zz") for i in range(3)])
    assert len(found) == METRICS_KEPT
    assert found[-1].metric == "zz"
    assert [n.metric for n in found] == sorted(n.metric for n in found)


def scores(seed: str, length: int, sigma: float, slope: float = 0.0) -> list[float]:
    rng = random.Random(seed)
    return [0.7 + slope * i + rng.gauss(0.0, sigma) for i in range(length)]


def shown(points: Iterable[EvalPoint], fleet: FleetNoise | None) -> Iterable[EvalPoint]:
    return (EvalInContext.of(p, fleet_noise=fleet) for p in points)


NOISE_AWARE = {
    "scan": {},
    "glr": {},
    "cusum": {},
    "drawdown": {"max_drop": 0.0, "sigmas": 3.0},
}


@pytest.mark.parametrize("name", sorted(NOISE_AWARE))
def test_a_rule_that_the_user_told_nothing_uses_what_the_pool_learned(name: str) -> None:
    """With the pool's knowledge it says the same as if the user had given it; the user's own goes first."""
    points = [EvalPoint(10 * i, s) for i, s in enumerate(scores("rule", 24, 0.01, -0.004), 1)]
    fleet = FleetNoise(0.02, 12.0)
    by_pool = make_rule(PolicySpec(name, NOISE_AWARE[name]))
    told = {**NOISE_AWARE[name], "usual_noise": fleet.sigma, "usual_noise_weight": fleet.freedom}
    by_user = make_rule(PolicySpec(name, told))
    a, b, c = by_pool.initial(), by_user.initial(), by_user.initial()
    d, differs = by_pool.initial(), False
    for point, seen, other in zip(
        points, shown(points, fleet), shown(points, FleetNoise(9.0, 64.0)), strict=True
    ):
        a, from_pool = by_pool.observe(a, seen)
        b, from_user = by_user.observe(b, point)
        c, users_first = by_user.observe(c, other)
        d, alone = by_pool.observe(d, point)
        assert from_pool == from_user == users_first
        differs |= alone != from_pool
    assert differs


def test_every_rule_with_a_parameter_for_it_is_tested_above() -> None:
    asking = {n for n, r in RULES.items() if "usual_noise" in r.params.__dataclass_fields__}
    assert asking - {"kDeclines"} == set(NOISE_AWARE)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_shrinking_makes_a_short_runs_noise_more_precise(seed: int) -> None:
    rng = random.Random(seed)
    alone, shrunk = 0.0, 0.0
    for i in range(40):
        state = noise.initial()
        for n, score in enumerate(scores(f"{rng.random()} {i}", 10, 0.05)):
            state = noise.observe(state, EvalPoint(n, score))
        own, with_fleet = (noise.estimate(state, 0.0, 1.0, f) for f in (None, FleetNoise(0.05, 16.0)))
        assert own is not None
        assert with_fleet is not None
        alone += math.log(own.sigma / 0.05) ** 2
        shrunk += math.log(with_fleet.sigma / 0.05) ** 2
    assert shrunk < 0.5 * alone


def test_a_run_of_a_known_fleet_is_judged_sooner_than_one_that_stands_alone() -> None:
    """Through the whole brain: jobs teach the pool, the pool's plan keeps it, the next job's plan uses it."""
    sharp = PolicySpec("scan", {"window": 3, "threshold": 3.0})
    world = PolicyWorld({"n0": 8})
    for i in range(5):
        world.submit(f"ns/old{i}", rule=sharp)
    world.settle()
    for i in range(5):
        world.scores(f"ns/old{i}", *scores(f"old {i}", 20, 0.01))
    world.settle()
    (entry,) = world.told.noise
    assert entry.noise.sigma == pytest.approx(0.01, rel=0.4)
    assert entry.jobs == 5
    fall = [0.7, 0.705, 0.7, 0.695, 0.6, 0.58, 0.55]
    lonely = PolicyWorld({"n0": 8})
    for other in (world, lonely):
        other.submit("ns/new", rule=sharp)
        other.settle()
        other.scores("ns/new", *fall)
        other.settle()
    assert world.jobs["ns/new"].record.decision is not None
    verdict = lonely.jobs["ns/new"].record.rule.verdict
    assert (verdict.verb, verdict.reason) == (Verb.CONTINUE, "NoiseUnknown")


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("at_once", [False, True], ids=["an eval a page", "all on one page"])
def test_guardrails_teach_the_pool_and_are_told_what_it_knows(direction: Direction, at_once: bool) -> None:
    """As the Primary metric's: earlier runs show the noise, and a fall of a new one stands out by it."""
    sharp = PolicySpec("scan", {"window": 3, "threshold": 3.0})
    minimized = direction is Direction.MINIMIZE
    guard = Guardrail("safety", sharp, direction)

    def show(world: PolicyWorld, key: str, *values: float) -> None:
        job = world.submit(key, rule=PolicySpec("kDeclines", {"k": 50}), guardrails=(guard,))
        world.settle()
        for n in range(len(values) if at_once else 1, len(values) + 1):
            page = [EvalPoint(10 * k, v, Attempt(1, "1")) for k, v in enumerate(values[:n], 1)]
            safety = tuple(p._replace(score=-p.score if minimized else p.score) for p in page)
            gold = tuple(p._replace(score=0.1 + 0.01 * p.step) for p in page)
            job.checkpoints |= {p.step for p in page}
            last = page[-1].step
            others = (MetricPoints("safety", safety),)
            world.scrape(key, points=gold, others=others, checkpoint_step=last)
            for _ in range(3):
                world.step(key)
        world.settle()

    world = PolicyWorld({"n0": 8})
    for i in range(5):
        show(world, f"ns/old{i}", *scores(f"old {i}", 20, 0.01))
    entry = next(n for n in world.told.noise if n.metric == "safety")
    assert entry.noise.sigma == pytest.approx(0.01, rel=0.4)
    assert entry.jobs == 5
    lonely = PolicyWorld({"n0": 8})
    for other in (world, lonely):
        show(other, "ns/new", 0.7, 0.705, 0.7, 0.695, 0.6, 0.58, 0.55)
    found = world.jobs["ns/new"].record
    assert found.decision is not None
    assert found.decision.proposal.metric == "safety"
    (alone,) = lonely.jobs["ns/new"].record.guards
    assert (alone.verdict.verb, alone.verdict.reason) == (Verb.CONTINUE, "NoiseUnknown")


def test_what_a_guardrail_has_shown_ends_where_its_past_is_rewritten() -> None:
    shown_so_far = noise.NOTHING_SHOWN
    for k in range(8):
        shown_so_far = noise.show(shown_so_far, EvalPoint(10 * k, 0.5 + 0.01 * (k % 3)))
    guard = Guard("safety", 70, Attempt(1, "1"), 0.5, "x", (), None, shown_so_far)
    assert guardrails.noise_shown(JobRecord(guards=(guard,))) is not None
    assert guardrails.noise_shown(JobRecord(guards=guardrails.rewind((guard,), 80, {}))) is not None
    assert guardrails.noise_shown(JobRecord(guards=guardrails.rewind((guard,), 40, {}))) is None
    assert guardrails.noise_shown(JobRecord()) is None


def test_a_guardrails_noise_fits_into_the_status() -> None:
    found = noise.NOTHING_SHOWN
    for k in range(200):
        found = noise.show(found, EvalPoint(k, (-1.0) ** k * 1e150 / 3.0, stderr=1e150 / 7.0))
    assert len(json.dumps(found, separators=(",", ":"))) <= 150, "of the 4,000 characters of its state"


@pytest.mark.parametrize(
    ("learned", "own", "freedom", "expected"),
    [
        (0.72, 0.0072, 3.0, False),  # too few evals to say
        (0.72, 0.0072, 6.0, True),  # percent beside shares
        (0.72, 0.0, 3.0, True),
        (0.05, 0.02, 6.0, False),
        (0.05, 0.02, 1000.0, False),
        (0.05, 0.005, 1000.0, True),
        (0.05, 0.1, 1000.0, False),  # noisier: its own counts more and more
    ],
)
def test_what_a_run_cannot_have_is_not_told_it(
    learned: float, own: float, freedom: float, expected: bool
) -> None:
    assert noise.contradicts(FleetNoise(learned, 64.0), FleetNoise(own, freedom)) is expected
    assert not noise.contradicts(FleetNoise(learned, 64.0), None)


def test_runs_that_have_the_learned_noise_hardly_ever_contradict_it() -> None:
    """Of flat runs, each asked at every eval."""
    rng = random.Random(5)
    for _ in range(1000):
        state, told = noise.NOTHING_SHOWN, FleetNoise(1.0, 64.0)
        for step in range(20):
            state = noise.show(state, EvalPoint(step, rng.gauss(0.0, 1.0)))
            assert not noise.contradicts(told, noise.shown(state))


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_a_run_in_another_unit_than_those_that_taught_the_pool_is_judged_by_its_own(unit: float) -> None:
    """Three runs report percent under the same name."""
    at = PolicyWorld({"n1": 4})
    rng = random.Random(3)
    keys = ("ns/a", "ns/b", "ns/c")
    for key in (*keys, "ns/d"):
        at.submit(key, 1, 1, rule=DEFAULT_RULE, modifiers=DEFAULT_MODIFIERS)
    at.settle()
    for _ in range(12):
        for key in keys:
            at.scores(key, 50.0 + rng.gauss(0.0, 0.8))
        at.go_on(10.0)
    assert at.told.noise
    for number in range(45):
        level = 0.5 + 0.02 * min(number, 12) - 0.015 * max(0, number - 12)
        at.scores("ns/d", unit * (level + rng.gauss(0.0, 0.008)))
        at.go_on(10.0)
        if at.jobs["ns/d"].record.decision is not None:
            break
    decision = at.jobs["ns/d"].record.decision
    assert decision is not None
    assert number < 25


def test_what_the_pool_tells_is_in_the_decision_log() -> None:
    told = (GuardrailNoise("safety", FleetNoise(0.1, 9.0)),)
    seen = Observed(fleet=FleetView(FleetNoise(0.05, 12.0), guardrails=told))
    assert decode(Observed, encode(seen)) == seen


def test_a_job_does_not_learn_from_itself() -> None:
    """Its own estimate is what its evals show, whatever the pool believes."""
    points = [EvalPoint(i, s) for i, s in enumerate(scores("own", 20, 0.05))]
    assert noise.own(points) == noise.own(shown(points, FleetNoise(5.0, 60.0)))
    assert noise.own(points[:4]) is None
    reported = [EvalPoint(i, 0.5, stderr=0.03) for i in range(3)]
    assert noise.own(reported) == FleetNoise(pytest.approx(0.03), noise.MOST_FREEDOM)
