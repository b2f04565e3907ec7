"""Tenants against each other in the simulator: the same answers as on a cluster, by the operator's code."""

from __future__ import annotations

import pytest

from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import FleetScope, PolicySpec, StopLimits
from sim.cluster import Cluster
from sim.engine import simulate
from sim.foresight import RuleSpec
from sim.rules import fleets
from sim.rules.evaluate import exact_interval
from sim.workload import Evals, Workload

BOTH = pytest.mark.parametrize("scope", list(FleetScope))


def peers(keys: list[str], limits: StopLimits | None = None) -> set[int]:
    """Who is stopped as the worst of four by `medianOfPeers`: the last row alone is below the others."""
    at = [n / 10 for n in range(1, 11)]
    good, poor = Evals(at, [0.9] * 10), Evals(at, [0.5] * 10)
    workload = Workload([0, 0, 0, 1], [1] * 4, [60] * 4, keys=keys, evals=[good, good, good, poor])
    result = simulate(
        workload,
        Cluster.slots(4),
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=RuleSpec(PolicySpec("medianOfPeers", {"min_peers": 3, "grace": 2})),
        limits=limits,
    )
    return set(result.stopped)


@BOTH
def test_attack_three_fake_peers(scope: FleetScope) -> None:
    honest = "alice/run"
    limits = StopLimits(scope=scope)
    assert peers(["alice/a", "alice/b", "alice/c", honest], limits) == {3}
    for mallory in (["m/a", "m/b", "m/c"], ["m1/a", "m2/b", "m3/c"]):
        assert peers([*mallory, honest], limits) == set()
        assert peers([*mallory, honest]) == set()


@BOTH
@pytest.mark.parametrize(("liars", "spaces"), [(10, 1), (30, 1), (30, 10)])
def test_attack_runs_that_report_too_little_noise(scope: FleetScope, liars: int, spaces: int) -> None:
    """False stops of honest flat runs beside liars lie within the 95 % interval of those without."""
    pools, limits = 8, StopLimits(scope=scope)
    without, beside = (
        sum(fleets.misled("scan", str(n), limits, count, spaces) for n in range(pools))
        for count in (0, liars)
    )
    low, high = exact_interval(without, pools * fleets.HONEST)
    assert low <= beside / (pools * fleets.HONEST) <= high
    assert beside == without  # which intervals as wide as these would not tell


def test_in_its_own_namespace_the_runs_of_all_are_believed() -> None:
    """The test above could fail: where liars are among one's own, they are taken at their word."""
    pools = 8
    without, beside = (
        sum(fleets.misled("scan", str(n), StopLimits(), count, namespace="alice") for n in range(pools))
        for count in (0, 30)
    )
    _, high = exact_interval(without, pools * fleets.HONEST)
    assert beside / (pools * fleets.HONEST) > high


def test_a_shared_fall_is_known_within_a_namespace_and_waited_for_across_them() -> None:
    one = fleets.fallen("scan", 5, "0", StopLimits(), 20, 1)
    assert one[0] < 0.3
    assert one[1] == 1.0
    apart, pool = (fleets.fallen("scan", 5, "0", StopLimits(scope=s), 20, 20) for s in FleetScope)
    assert apart[0] > 0.8  # nobody's own namespace can tell
    assert pool[0] > 0.8  # it is a wait, and no more


def test_the_tables_are_printed_for_both_scopes() -> None:
    said: list[str] = []
    falls = list(fleets.shared_falls(1, 0, said.append, [("scan", 3, 1)]))
    liars = [
        fleets.LiarRow("scan", str(scope), *liars, 100, 0.05, (0.02, 0.11))
        for scope in FleetScope
        for liars in fleets.LIARS
    ]
    lines = list(fleets.tables(falls, liars))
    assert len(said) == 4 * 3
    assert [line.split("|")[2].strip() for line in lines if "`scan`, 3 runs" in line] == ["Namespace", "Pool"]
    assert lines[-1] == "| `scan` | Pool | 5.0 % (2.0 to 11.0) | 5.0 % | 5.0 % | 5.0 % |"
