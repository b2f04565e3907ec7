"""Tenants against each other in one pool: what one reports, asks for or names moves no other's stop.

Each attack succeeded where all runs of a pool counted, wherever they were.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.fleet.limits import ASKS_POOL, HOUR, STOPS_KEPT, TOO_LITTLE, kept_stops, limit_stops
from controller.policy.fleet.noise import METRICS_KEPT, NOISE_KEPT, VOTES, learn, usual
from controller.policy.fleet.shared_drops import ALL_KEPT, FALLS_KEPT, remember
from controller.policy.fleet.tables import fair
from controller.policy.stopping import RULES, make_rule, noise
from controller.policy.types import (
    Ended,
    EvalInContext,
    EvalPoint,
    FleetNoise,
    FleetScope,
    JobState,
    JobView,
    MetricNoise,
    PastStop,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    Reading,
    ScoredBy,
    SharedFall,
    StopLimits,
    Verb,
)

NOW = 864_000.0 + 50_000.0
T = NOW - 60.0
SIGMA = 0.02
ASKS = Proposal(10, 5, "Fell", 3.0, 2.0)
BOTH = pytest.mark.parametrize("scope", list(FleetScope))


def job(
    key: str,
    scores: Sequence[float] = (),
    *,
    asks: Proposal | None = None,
    metric: str = "gold",
    evaluator: str | None = None,
    shows: FleetNoise | None = None,
    number: int = 0,
) -> JobView:
    """A running job whose newest eval was read half a minute after `T`, others a minute apart before it."""
    times = [T + 30.0 - 60.0 * i for i in reversed(range(len(scores)))]
    return JobView(
        key,
        submitted=float(number),
        sequence=number,
        replicas=1,
        gpus_per_replica=1,
        state=JobState.ADMITTED,
        proposal=asks,
        metric=metric,
        evaluator=evaluator,
        noise=shows,
        readings=tuple(map(Reading, times, scores)),
    )


def noisy(seed: object, fall: float = 0.0, length: int = 12) -> list[float]:
    rng = random.Random(str(seed))
    return [0.7 - (fall if i == length - 1 else 0.0) + rng.gauss(0.0, SIGMA) for i in range(length)]


def pool(limits: StopLimits | None = None, stopped: Sequence[PastStop] = (), **more: object) -> PoolSnapshot:
    return PoolSnapshot(
        "p",
        PolicySpec("fifo"),
        (),
        (),
        limits=limits or StopLimits(),
        stopped=tuple(stopped),
        **more,  # type: ignore[arg-type]
    )


def scoped(scope: FleetScope, limits: StopLimits | None = None) -> StopLimits:
    return replace(limits or StopLimits(), scope=scope)


# -- a fall of half a pool -------------------------------------------------------------------------


def falling(namespaces: int, each: int, fall: float = 0.3) -> list[JobView]:
    return [
        job(f"mallory-{n}/j{i}", noisy(("fall", n, i), fall)) for n in range(namespaces) for i in range(each)
    ]


def test_attack_half_a_pool_that_falls_together_keeps_an_honest_decline_from_its_stop() -> None:
    """Ten of mallory's runs report a fall at the moment at which alice's run declines."""
    alice = [job("alice/run", noisy("own", 0.3), asks=ASKS)]
    alice += [job(f"alice/j{i}", noisy(("alice", i))) for i in range(4)]
    found = limit_stops([*alice, *falling(1, 10)], pool(), NOW)
    assert [j.key for j in found.grant] == ["alice/run"]
    assert found.falls == ()


def test_attack_a_fall_of_others_begins_nobodys_baseline_anew() -> None:
    """Mallory's runs ask to be stopped and share their fall: alice's decline is not forgotten behind it."""
    mallory = [replace(view, proposal=ASKS) for view in falling(1, 10)]
    alice = [job("alice/run", noisy("own", 0.3), asks=ASKS)]
    found = limit_stops([*mallory, *alice], pool(), NOW)
    assert {held.key.partition("/")[0] for held in found.held} == {"mallory-0"}
    assert [j.key for j in found.grant] == ["alice/run"]
    assert [fall.concerns(alice[0].scored_by) for fall in found.falls] == [False]


def test_in_the_scope_of_the_pool_others_delay_a_stop_once_and_for_no_longer_than_the_pool_says() -> None:
    limits = scoped(FleetScope.POOL)
    alice = job("alice/run", noisy("own", 0.3), asks=ASKS)
    others = falling(VOTES, 1)
    held = limit_stops([alice, *others], pool(limits), NOW)
    assert [(h.key, h.reason) for h in held.held] == [("alice/run", ASKS_POOL)]
    assert "so did the runs of 4 of 4 namespaces" in held.held[0].message
    assert "mallory" not in held.held[0].message
    assert held.falls == ()
    assert held.wake_at == NOW + limits.shared_fall_wait
    waited = replace(alice, delayed_at=NOW)
    last = NOW + limits.shared_fall_wait
    assert limit_stops([waited, *others], pool(limits), last - 1.0).grant == ()
    assert [j.key for j in limit_stops([waited, *others], pool(limits), last).grant] == ["alice/run"]
    # Two namespaces are no crowd, however many runs they have; nor do others count where one's own can tell.
    assert limit_stops([alice, *falling(VOTES - 1, 20)], pool(limits), NOW).grant == (alice,)
    own = [job(f"alice/j{i}", noisy(("alice", i))) for i in range(4)]
    assert limit_stops([alice, *own, *others], pool(limits), NOW).grant == (alice,)
    # Nor where the pool's owner has not said so, nor those that another evaluator scores.
    assert limit_stops([alice, *others], pool(), NOW).grant == (alice,)
    foreign = [replace(view, evaluator="v2") for view in others]
    assert limit_stops([alice, *foreign], pool(limits), NOW).grant == (alice,)


def test_in_the_scope_of_the_pool_namespaces_that_did_not_fall_delay_nobody() -> None:
    alice = job("alice/run", noisy("own", 0.3), asks=ASKS)
    still = [job(f"honest-{n}/j", noisy(("still", n))) for n in range(8)]
    assert limit_stops([alice, *still], pool(scoped(FleetScope.POOL)), NOW).grant == (alice,)


# -- the breaker, the hour's budget, the day's account ---------------------------------------------


def test_attack_many_of_one_namespace_that_ask_open_the_breaker_for_all() -> None:
    mallory = [job(f"mallory/j{i}", asks=ASKS, number=i) for i in range(10)]
    alice = [job("alice/run", asks=ASKS), job("alice/other")]
    found = limit_stops([*mallory, *alice], pool(StopLimits(breaker_percent=50)), NOW)
    assert [j.key for j in found.grant] == ["alice/run"]
    assert found.stops.breaker_since == NOW


def test_attack_many_short_jobs_spend_the_hours_budget() -> None:
    """They were there first, and have had all stops of the hour: the next one is alice's."""
    mallory = [job(f"mallory/j{i}", asks=ASKS, number=i) for i in range(20)]
    alice = [job("alice/run", asks=ASKS, number=99), job("alice/too", asks=ASKS, number=100)]
    had = [PastStop(NOW - 100.0 - i, None, f"mallory/old{i}") for i in range(4)]
    found = limit_stops([*mallory, *alice], pool(StopLimits(per_hour=5), had), NOW)
    assert [j.key for j in found.grant] == ["alice/run"]
    more = limit_stops([*mallory, *alice], pool(StopLimits(per_hour=7), had), NOW)
    assert sorted(j.key for j in more.grant) == ["alice/run", "alice/too", "mallory/j0"]
    # Nobody had any: in turns, by the queue's order.
    even = limit_stops([*mallory, *alice], pool(StopLimits(per_hour=3)), NOW)
    assert [j.key for j in even.grant] == ["mallory/j0", "mallory/j1", "alice/run"]


def evident(key: str, e_value: float, number: int = 0) -> JobView:
    return job(key, asks=replace(ASKS, e_value=e_value), number=number)


PROMISED = StopLimits(precision=0.95, precision_jobs=2)


def test_attack_many_short_jobs_fill_the_account_of_the_days_precision() -> None:
    """Two jobs are on alice's account, whatever mallory runs: evidence of 40 is enough."""
    alice = [evident("alice/run", 40.0), job("alice/other")]
    mallory = [job(f"mallory/j{i}") for i in range(50)]
    found = limit_stops([*alice, *mallory], pool(PROMISED, ended=(Ended("mallory", 500),)), NOW)
    assert [j.key for j in found.grant] == ["alice/run"]


def test_attack_stops_of_one_namespace_lower_what_another_ones_take() -> None:
    """Certain stops of mallory's would let wrong ones of alice's pass: her promise is hers."""
    past = [PastStop(NOW - 100.0 - i, 1e9, f"mallory/old{i}") for i in range(30)]
    alice = [evident("alice/flat", 30.0), job("alice/other")]
    found = limit_stops(alice, pool(PROMISED, past), NOW)
    assert [(h.key, h.reason) for h in found.held] == [("alice/flat", TOO_LITTLE)]


def test_evidence_that_is_not_enough_uses_up_nobodys_turn() -> None:
    """Mallory's claims to the hour's stops go to whoever has the evidence."""
    mallory = [evident(f"mallory/j{i}", 30.0, i) for i in range(8)]
    alice = [evident(f"alice/j{i}", 1e6, 50 + i) for i in range(3)]
    limits = replace(PROMISED, per_hour=3, precision_jobs=100)
    assert [j.key for j in limit_stops([*mallory, *alice], pool(limits), NOW).grant] == [j.key for j in alice]


# -- names -----------------------------------------------------------------------------------------


def test_attack_sixteen_metric_names_push_the_noise_of_others_out() -> None:
    known = FleetNoise(0.05, 10.0)
    alice = [job(f"alice/j{i}", metric="zz", shows=known) for i in range(3)]
    mallory = [
        job(f"mallory/j{m}-{i}", metric=f"a{m:02d}", shows=known)
        for m in range(METRICS_KEPT)
        for i in range(3)
    ]
    found = learn(learn((), mallory), [*mallory, *alice])
    assert "zz" in {entry.metric for entry in found}


@given(st.integers(2, 60), st.integers(1, 40), st.booleans())
def test_no_names_push_others_out(namespaces: int, names: int, by_evaluator: bool) -> None:
    """However many metrics and evaluators others name: the table's share is safe."""
    known = FleetNoise(0.05, 10.0)
    mallory = [
        MetricNoise(f"m{n}", "a" if by_evaluator else f"a{m:02d}", f"v{m}" if by_evaluator else "", known, 3)
        for n in range(namespaces - 1)
        for m in range(names)
    ]
    own = min(METRICS_KEPT, NOISE_KEPT // namespaces)
    alice = [MetricNoise("zoe", f"zz{m}", "", known, 3) for m in range(own)]
    found = learn([*mallory, *alice], ())
    assert set(alice) <= set(found)
    assert len(found) <= NOISE_KEPT
    falls: tuple[SharedFall, ...] = ()
    for m in range(min(FALLS_KEPT, ALL_KEPT // namespaces)):
        falls = remember(falls, SharedFall("zoe", f"z{m}", "", 1.0, 2.0, 3, 3))
    mine = set(falls)
    for entry in mallory[:200]:
        falls = remember(falls, SharedFall(*entry.scored_by, 10.0, 20.0, 3, 3))
    assert mine <= set(falls)
    assert len(falls) <= ALL_KEPT


def test_attack_many_stops_push_the_memory_of_others_out() -> None:
    own = [PastStop(NOW - 3000.0, 50.0, "alice/run")]
    flood = [PastStop(NOW - 2000.0 + i, None, f"mallory/j{i}") for i in range(STOPS_KEPT + 50)]
    kept = kept_stops([*own, *flood])
    assert own[0] in kept
    assert len(kept) == STOPS_KEPT
    assert kept[1:] == flood[-STOPS_KEPT + 1 :]


@given(st.lists(st.sampled_from("abcdefg"), max_size=60), st.integers(1, 30))
def test_a_full_table_is_shared_out(entries: list[str], most: int) -> None:
    found = fair(list(enumerate(entries)), lambda entry: entry[1], most)
    assert len(found) == min(most, len(entries))
    assert found == sorted(found)
    for name in set(entries):
        asked = [entry for entry in enumerate(entries) if entry[1] == name]
        got = [entry for entry in found if entry[1] == name]
        assert got == asked[: len(got)]  # its first ones
        assert len(got) >= min(len(asked), most // len(set(entries)))


# -- noise -----------------------------------------------------------------------------------------


def shown(namespace: str, sigma: float, count: int = 3) -> list[JobView]:
    return [job(f"{namespace}/j{i}", shows=FleetNoise(sigma, 40.0)) for i in range(count)]


GOLD = ScoredBy("alice", "gold", "")


@BOTH
def test_attack_runs_that_report_too_little_noise_teach_another_namespace(scope: FleetScope) -> None:
    honest = shown("alice", 0.05)
    liars = [view for n in range(10) for view in shown(f"mallory-{n}", 1e-6)]
    alone = usual(learn((), honest, scope), GOLD, scope)
    beside = usual(learn((), [*honest, *liars], scope), GOLD, scope)
    assert alone is not None
    assert beside is not None
    assert beside[:2] == alone[:2]
    assert beside.floor <= 1e-5


def test_in_the_scope_of_the_pool_what_three_namespaces_show_is_a_floor() -> None:
    votes = [*shown("a", 0.2, 9), *shown("b", 0.3, 1), *shown("c", 5.0, 2), *shown("d", 0.1, 4)]
    known = learn((), [*shown("alice", 0.05), *votes], FleetScope.POOL)
    told = usual(known, GOLD, FleetScope.POOL)
    assert told is not None
    assert told.floor == pytest.approx(0.2, rel=0.05)  # one vote each
    assert told.sigma == pytest.approx(0.05, rel=0.05)
    assert usual(known, GOLD, FleetScope.NAMESPACE) == told._replace(floor=0.0)
    nobody = usual(known, GOLD._replace(namespace="new"), FleetScope.POOL)
    assert nobody is not None
    assert nobody[:2] == (0.0, 0.0)  # nothing is known of its own
    assert usual(known, GOLD._replace(evaluator="v2"), FleetScope.POOL) is None
    two = learn((), [*shown("a", 0.1), *shown("b", 0.2)], FleetScope.POOL)
    assert usual(two, GOLD, FleetScope.POOL) is None
    assert learn(known, (), FleetScope.NAMESPACE) == tuple(n for n in known if n.noise.freedom > 0.0)


VOTING = st.lists(st.floats(1e-6, 1e3), max_size=12)


@given(VOTING, VOTING)
def test_attack_namespaces_that_report_no_noise_take_none_from_what_others_show(
    honest: list[float], liars: list[float]
) -> None:
    """However many of them vote, and whatever: the floor that the others make stays, or rises."""

    def floor(votes: list[float]) -> float:
        known = [MetricNoise(f"n{i}", "gold", "", FleetNoise(v, 9.0), 3) for i, v in enumerate(votes)]
        found = usual(known, GOLD, FleetScope.POOL)
        return 0.0 if found is None else found.floor

    assert floor([*honest, *liars]) >= floor(honest)


SCORES = st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=30)
FLOORS = st.floats(0.0, 1e6)
OWN = st.just((0.0, 0.0)) | st.tuples(st.floats(1e-6, 10.0), st.floats(1.0, 64.0))


@given(SCORES, OWN, FLOORS)
def test_others_raise_a_runs_noise_and_never_make_it_better_known(
    scores: list[float], own: tuple[float, float], floor: float
) -> None:
    state = noise.initial()
    for step, score in enumerate(scores):
        state = noise.observe(state, EvalPoint(step, score))
        without = noise.estimate(state, 0.0, 1.0, FleetNoise(*own))
        found = noise.estimate(state, 0.0, 1.0, FleetNoise(*own, floor))
        assert (found is None) == (without is None)
        if found is not None and without is not None:
            assert without.sigma <= found.sigma <= noise.RAISED_MOST * without.sigma
            assert found.freedom == without.freedom


ASKING = [
    ("scan", {"threshold": 1.0}),
    ("glr", {"alpha": 0.5}),
    ("cusum", {"threshold": 0.5, "allowance": 0.0, "window": 2}),
    ("drawdown", {"max_drop": 0.0, "sigmas": 0.5}),
    ("kDeclines", {"k": 1, "min_delta_sigmas": 0.2}),
]


def test_every_rule_that_looks_at_noise_is_asked_below() -> None:
    asking = {n for n, r in RULES.items() if "usual_noise" in r.params.__dataclass_fields__}
    assert asking == {name for name, _ in ASKING}


@pytest.mark.parametrize(("name", "params"), ASKING)
@given(scores=SCORES, own=OWN, floors=st.lists(FLOORS, min_size=30, max_size=30))
def test_whatever_others_show_no_rule_says_stop_for_it(
    name: str, params: dict[str, float], scores: list[float], own: tuple[float, float], floors: list[float]
) -> None:
    """The floor may change from eval to eval, as others like."""
    rule = make_rule(PolicySpec(name, params))
    alone, beside = rule.initial(), rule.initial()
    for step, (score, floor) in enumerate(zip(scores, floors, strict=False)):
        point = EvalPoint(step, score)
        alone, first = rule.observe(alone, EvalInContext.of(point, fleet_noise=FleetNoise(*own)))
        beside, second = rule.observe(beside, EvalInContext.of(point, fleet_noise=FleetNoise(*own, floor)))
        assert not (second.verb is Verb.STOP and first.verb is not Verb.STOP)


# -- all at once -----------------------------------------------------------------------------------

METRICS = st.sampled_from(["gold", "kl"])
PROPOSALS = st.none() | st.builds(
    Proposal,
    st.just(10),
    st.just(5),
    st.just("Fell"),
    st.just(3.0),
    st.just(2.0),
    e_value=st.none() | st.floats(0.0, 1e5),
    when_contended=st.booleans(),
)
CURVES = st.lists(st.sampled_from([0.2, 0.4, 0.68, 0.7, 0.72]), max_size=16)


@st.composite
def tenants(draw: st.DrawFn, names: Sequence[str], most: int) -> list[JobView]:
    return [
        replace(
            job(
                f"{draw(st.sampled_from(names))}/j{i}",
                draw(CURVES),
                asks=draw(PROPOSALS),
                metric=draw(METRICS),
                evaluator=draw(st.sampled_from([None, "v1"])),
                shows=draw(st.none() | st.builds(FleetNoise, st.floats(1e-9, 1e3), st.floats(3.0, 100.0))),
                number=i,
            ),
            state=draw(st.sampled_from([JobState.ADMITTED] * 3 + [JobState.QUEUED])),
            attempt=draw(st.integers(0, 1)),
        )
        for i in range(draw(st.integers(0, most)))
    ]


def past(names: Sequence[str]) -> st.SearchStrategy[list[PastStop]]:
    keys = st.sampled_from(names).map(lambda name: f"{name}/old")
    times = st.floats(NOW - 2 * HOUR, NOW)
    return st.lists(st.builds(PastStop, times, st.none() | st.floats(0.0, 1e6), keys), max_size=6)


LIMITS = st.builds(
    StopLimits,
    st.none(),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 100),
    st.just(1800.0),
    st.none() | st.floats(0.5, 0.99),
    st.integers(1, 10),
)
MALLORY = ("mallory", "mallory-2", "mallory-3", "mallory-4")


def learned(names: Sequence[str]) -> st.SearchStrategy[list[MetricNoise]]:
    entries = st.builds(
        MetricNoise,
        st.sampled_from(names),
        METRICS,
        st.sampled_from(["", "v1"]),
        st.builds(FleetNoise, st.floats(1e-6, 10.0), st.floats(1.0, 64.0), st.just(0.0)),
        st.just(3),
    )
    return st.lists(entries, max_size=6, unique_by=lambda entry: entry.scored_by)


def of_alice(found: Sequence[object]) -> list[object]:
    return [entry for entry in found if entry.namespace == "alice"]  # type: ignore[attr-defined]


@given(
    tenants(("alice",), 6),
    tenants(MALLORY, 14),
    past(("alice",)),
    past(MALLORY),
    learned(("alice",)),
    learned(MALLORY),
    LIMITS,
    st.integers(0, 40),
    st.data(),
)
def test_nothing_that_others_do_changes_what_becomes_of_alices_jobs(
    mine: list[JobView],
    others: list[JobView],
    my_past: list[PastStop],
    their_past: list[PastStop],
    my_noise: list[MetricNoise],
    their_noise: list[MetricNoise],
    limits: StopLimits,
    ended: int,
    data: st.DataObject,
) -> None:
    """Whether others are there or not: who is stopped, who is held back and why, what is learned and told."""
    alone = pool(limits, my_past, noise=tuple(my_noise))
    beside = pool(
        limits,
        [*my_past, *their_past],
        noise=(*my_noise, *their_noise),
        ended=(Ended("mallory", ended),),
    )
    jobs = data.draw(st.permutations([*mine, *others]))
    one, two = limit_stops(mine, alone, NOW), limit_stops(jobs, beside, NOW)
    assert [j for j in two.grant if j.namespace == "alice"] == list(one.grant)
    assert {h for h in two.held if h.key.startswith("alice/")} == set(one.held)
    assert of_alice(two.falls) == list(one.falls)
    assert of_alice(learn(beside.noise, jobs)) == list(learn(alone.noise, mine))


@given(tenants(("alice",), 6), tenants(MALLORY, 14), learned(("alice",)), learned(MALLORY), LIMITS)
def test_in_the_scope_of_the_pool_others_only_delay_once(
    mine: list[JobView],
    others: list[JobView],
    my_noise: list[MetricNoise],
    their_noise: list[MetricNoise],
    limits: StopLimits,
) -> None:
    """What alice's jobs are granted alone they are granted beside others, some after one wait."""
    limits = scoped(FleetScope.POOL, replace(limits, precision=None))
    one = limit_stops(mine, pool(limits, noise=tuple(my_noise)), NOW)
    both = pool(limits, noise=(*my_noise, *their_noise))
    two = limit_stops([*mine, *others], both, NOW)
    waits = {h.key for h in two.held if h.reason == ASKS_POOL and h.key.startswith("alice/")}
    granted = {j.key for j in two.grant if j.namespace == "alice"}
    assert granted <= {j.key for j in one.grant}
    assert {j.key for j in one.grant} - granted == waits & {j.key for j in one.grant}
    assert of_alice(two.falls) == list(one.falls)
    for entry in (usual(both.noise, j.scored_by, FleetScope.POOL) for j in mine):
        assert entry is None or entry.floor >= 0.0
    waited = [replace(j, delayed_at=NOW - limits.shared_fall_wait) for j in mine]
    after = limit_stops([*waited, *others], both, NOW)
    assert {j.key for j in after.grant if j.namespace == "alice"} == {j.key for j in one.grant}
