"""A GPUPool's stop limits, what its status remembers of its jobs, and whom its promised precision refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from api_examples import DESIRED
from hypothesis import given
from hypothesis import strategies as st

from controller.api import fleet
from controller.api.convert import StatusError, parse_pool
from controller.api.gpupool import GPUPool
from controller.api.status import Stops
from controller.policy.codec import decode, encode
from controller.policy.job.types import Guardrail, Observed
from controller.policy.types import (
    FleetNoise,
    FleetScope,
    FleetView,
    MetricNoise,
    PastStop,
    PolicySpec,
    ScoredBy,
    SharedFall,
    StopCount,
    StopLimits,
)
from tests.support import pool_memory


def pool(**limits: Any) -> Any:
    return parse_pool(
        {
            "apiVersion": "evalstop.dev/v1alpha1",
            "kind": "GPUPool",
            "metadata": {"name": "research"},
            "spec": {
                "nodeSelector": [{"key": "pool", "value": "a"}],
                "allowedNamespaces": [{"name": "*"}],
                "stopLimits": limits,
            },
        }
    )


def test_the_brains_defaults_are_those_of_the_api() -> None:
    assert fleet.stop_limits(pool()) == StopLimits()


def test_whose_runs_count_is_the_owners_to_say() -> None:
    def scoped(scope: Any) -> Any:
        spec = pool().spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        metadata = {"name": "research"}
        made = {"apiVersion": "evalstop.dev/v1alpha1", "kind": "GPUPool", "metadata": metadata}
        return parse_pool(made | {"spec": spec | {"fleet": {"scope": scope}}})

    assert fleet.stop_limits(pool()).scope is FleetScope.NAMESPACE
    assert fleet.stop_limits(scoped("Pool")).scope is FleetScope.POOL
    reason, message = scoped("Cluster")
    assert reason == "InvalidSpec"
    assert message.startswith("spec.fleet.scope: is 'Cluster':")


def test_what_changed_of_one_namespace_is_told_to_it_alone() -> None:
    known = MetricNoise("ns", "gold", "", FleetNoise(0.5, 9.0), 3)
    fall = SharedFall("other", "", "", 1.0, 2.0, 3, 4)
    told = fleet.taught(pool_memory.stored(StopCount(), (known,), (fall,)))
    assert {name: len(entries) for name, entries in told.items()} == {"ns": 1, "other": 1}
    assert fleet.taught({"noise": ["odd"]}) == {}


def test_limits_in_the_brains_words() -> None:
    given_ = pool(
        perHour=3,
        breakerPercent=60,
        sharedFallPercent=0,
        sharedFallWaitSeconds=60,
        precision="0.975",
        precisionJobs=7,
    )
    assert fleet.stop_limits(given_) == StopLimits(3, 60, None, 60.0, 0.975, 7, FleetScope.NAMESPACE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "0.49"),
        ("precision", "1.0"),
        ("precision", 0.95),
        ("precision", "0.95 "),
        ("precisionJobs", 0),
        ("sharedFallPercent", 101),
        ("sharedFallWaitSeconds", -1),
    ],
)
def test_wrong_limits_are_named(field: str, value: object) -> None:
    reason, message = pool(**{field: value})
    assert reason == "InvalidSpec"
    assert message.startswith(f"spec.stopLimits.{field}: is {value!r}:")


def test_a_pool_without_promises_takes_every_rule() -> None:
    assert fleet.precision_problem(DESIRED, pool()) is None


def test_a_pool_that_promises_precision_refuses_what_it_cannot_weigh() -> None:
    promising = pool(precision="0.95")
    assert isinstance(promising, GPUPool)
    fine = dataclasses.replace(DESIRED, rule=PolicySpec("eProcess"), guardrails=())
    assert fleet.precision_problem(fine, promising) is None
    plain = dataclasses.replace(fine, rule=PolicySpec("scan"))
    assert fleet.precision_problem(plain, promising) == (
        "RuleWithoutEValue",
        "spec.stopRule: 'scan' yields no e-values, by which GPUPool 'research' keeps its "
        "stopLimits.precision of 0.95; expected eProcess",
    )
    guarded = dataclasses.replace(fine, guardrails=(Guardrail("safety", PolicySpec("glr")),))
    problem = fleet.precision_problem(guarded, promising)
    assert problem is not None
    assert problem.message.startswith("spec.metrics: stopRule of 'safety': 'glr' yields no e-values")


GOLD = ScoredBy("ns", "gold", "")
SIZES = st.floats(1e-9, 1e9)
NAMES = st.text("abc-", min_size=1, max_size=9)
METRICS = st.text(min_size=1, max_size=20)
NOISE = st.builds(
    MetricNoise,
    NAMES,
    METRICS,
    NAMES | st.just(""),
    st.builds(FleetNoise, SIZES, st.floats(0.0, 1000.0), st.just(0.0)),
    st.integers(0, 9999),
)
FALLS = st.builds(
    SharedFall,
    NAMES,
    METRICS | st.just(""),
    NAMES | st.just(""),
    st.floats(1, 4e9),
    st.floats(1, 4e9),
    st.integers(0, 99),
    st.integers(0, 99),
)


@given(
    st.lists(NOISE, max_size=16).map(tuple),
    st.lists(FALLS, max_size=8).map(tuple),
    st.none() | st.floats(1, 4e9),
    st.integers(0, 99),
    st.none() | st.floats(0, 1e9),
)
def test_what_is_remembered_reads_back_exactly(noise, falls, since, today, e_value) -> None:
    past = PastStop(5.0, e_value, "ns/a")
    stored = pool_memory.stored(StopCount(today, today, since), noise, falls, [past])
    assert fleet.stops(stored).granted == (past,)
    assert fleet.noise(stored) == noise
    assert fleet.shared_falls(stored) == falls
    assert fleet.stops(stored).breaker_since == since


def test_an_empty_memory_leaves_no_trace() -> None:
    assert pool_memory.stored(StopCount(), (), ()) == {}
    assert (fleet.noise(None), fleet.shared_falls({}), fleet.stops(None)) == ((), (), Stops())


def test_a_job_is_told_of_its_own_metric_and_the_newest_fall() -> None:
    falls = (
        SharedFall("ns", "gold", "", 1.0, 2.0, 3, 4),
        SharedFall("ns", "", "", 5.0, 6.0, 3, 3),
        SharedFall("ns", "kl", "", 7.0, 8.0, 3, 3),
    )
    known = (MetricNoise("ns", "gold", "", FleetNoise(0.5, 9.0), 3),)
    status = pool_memory.stored(StopCount(), known, falls)
    assert fleet.view_for(status, GOLD) == FleetView(FleetNoise(0.5, 9.0), falls[1])
    assert fleet.view_for(status, GOLD._replace(metric="kl")) == FleetView(None, falls[2])
    assert fleet.view_for(None, GOLD) == FleetView()
    seen = Observed(fleet=fleet.view_for(status, GOLD))
    assert decode(Observed, encode(seen)) == seen


@pytest.mark.parametrize(
    ("status", "read", "said"),
    [
        ({"noise": [{"namespace": "ns", "metric": "m"}]}, fleet.noise, r"noise\[0\]\.sigma is missing"),
        ({"noise": 5}, fleet.noise, "noise: 5 is not a list"),
        (
            {"sharedFalls": [{"namespace": "ns", "after": "soon", "before": "later", "fell": 1, "of": 2}]},
            fleet.shared_falls,
            r"sharedFalls\[0\]\.after: time 'soon': expected the form .*",
        ),
        ({"stops": {"breakerSince": "yesterday"}}, fleet.stops, "stops.breakerSince: time 'yesterday': .*"),
    ],
)
def test_what_does_not_read_back_is_refused_by_name(status, read, said) -> None:
    with pytest.raises(StatusError, match=rf"^status\.{said}$"):
        read(status)
    assert fleet.view_for(status, GOLD) == FleetView()
