"""What a GPUPool's status says: accounts that add up, whose the nodes are, who else sits on them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller import names
from controller.cli import pools
from controller.cli.doctor.installation import _pool_cure
from controller.cli.terminal import Terminal
from controller.operator.reconcile import pool_status
from controller.operator.reconcile.pool_status import Surroundings
from controller.policy.group_types import FamilyTerms, GroupView, PoolSharing
from controller.policy.pool.handovers import Handover
from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolSnapshot,
    Problem,
    Quota,
    Reservation,
)

NOW = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
ALONE = Surroundings({}, [])


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def gpu_pod(name: str, node: str, gpus: int = 1, deleting: float | None = None) -> dict[str, Any]:
    limits = {"limits": {names.GPU_RESOURCE: str(gpus)}}
    gone = (
        {} if deleting is None else {"deletionTimestamp": at(deleting + 30), "deletionGracePeriodSeconds": 30}
    )
    return {
        "metadata": {"name": name, "namespace": "other", "uid": name, **gone},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": limits}]},
        "status": {"phase": "Running"},
    }


def snapshot(*jobs: JobView, **more: Any) -> PoolSnapshot:
    nodes = more.pop("nodes", (NodeView("n1", 8, foreign=1), NodeView("n2", 8)))
    return PoolSnapshot("p", PolicySpec("fifo"), nodes, jobs, **more)


def status(
    found: PoolSnapshot, around: Surroundings = ALONE, known: Any = None, stops: Any = (), after: float = 0.0
) -> dict[str, Any]:
    obj = {"metadata": {"name": "p", "generation": 3}, "status": known or {}}
    now = NOW.timestamp() + after
    return pool_status.planned(obj, found, plan_pool(found, now), around, stops, now)


def condition(told: dict[str, Any], type_: str) -> dict[str, Any]:
    return next(c for c in told["conditions"] if c["type"] == type_)


def test_every_gpu_is_in_one_account() -> None:
    runs = JobView(
        "ns/a", 0, 0, 2, 2, state=JobState.ADMITTED, bound=(("n1", 2), ("n2", 2)), nodes=("n1", "n2")
    )
    starts = JobView("ns/b", 1, 0, 3, 1, state=JobState.ADMITTED, unbound=3, nodes=("n1", "n1", "n2"))
    told = status(snapshot(runs, starts, JobView("ns/c", 2, 0, 1, 8)))
    accounts = {key: told[key] for key in ("capacity", "free", "held", "foreign", "running", "queued")}
    assert accounts == {"capacity": 16, "free": 8, "held": 3, "foreign": 1, "running": 2, "queued": 1}
    assert told["nodeSizes"] == [{"gpus": 8, "nodes": 2}]
    assert told["capacity"] - told["free"] - told["held"] - told["foreign"] == 4  # what pods of a use


def test_who_waits_in_an_external_queue_that_gives_it_nothing_counts_as_queued() -> None:
    """Of three whose ClusterQueue was stopped the pool said that nobody waits."""
    found = snapshot(JobView("ns/c", 2, 0, 1, 8))
    assert status(found, Surroundings({}, [], outside=3))["queued"] == 4
    assert status(found, Surroundings({}, [], outside=3))["running"] == 0


def test_a_pool_without_nodes_says_so_and_so_do_its_jobs() -> None:
    found = snapshot(JobView("ns/a", 0, 0, 1, 1), nodes=())
    ready = condition(status(found), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoUsableNodes")
    (waits,) = plan_pool(found, 0.0).waiting
    assert (waits.reason, waits.position) == ("NoUsableNodes", 0)
    assert "GPUPool 'p' has no ready and schedulable node" in waits.message


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        (("n1",), "the node that matches is not ready, cordoned or tainted: n1; jobs wait until"),
        (("n1", "n2"), "all 2 nodes that match are not ready, cordoned or tainted: n1, n2; jobs wait until"),
    ],
)
def test_a_pool_whose_nodes_are_all_closed_names_them(closed: tuple[str, ...], said: str) -> None:
    """It said that no node matches its selector, and doctor had it labelled or the pool edited."""
    found = replace(snapshot(nodes=()), closed=tuple(NodeView(name, 8) for name in closed))
    ready = condition(status(found), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoUsableNodes")
    assert ready["message"].startswith(said)
    cure = _pool_cure("p", ready["reason"], ready["message"])
    assert "kubectl uncordon NODE" in cure
    assert "label" not in cure


def test_quotas_are_told_in_gpus_and_guarantees_beyond_the_pool_by_a_condition() -> None:
    quotas = (Quota(("a", "b"), 8, 12), Quota(("c",), 4))
    runs = JobView("a/1", 0, 0, 1, 6, state=JobState.ADMITTED, bound=(("n1", 6),), nodes=("n1",))
    ends = JobView("b/1", 0, 0, 1, 4, state=JobState.STOPPING, bound=(("n2", 4),), nodes=("n2",))
    jobs = (runs, ends, JobView("b/2", 1, 0, 1, 4), JobView("c/1", 2, 0, 1, 4))
    told = status(snapshot(*jobs, quotas=quotas))
    assert told["quotas"] == [
        {"namespaces": ["a", "b"], "guaranteed": 8, "limit": 12, "used": 10, "borrowed": 2, "waiting": 4},
        {"namespaces": ["c"], "guaranteed": 4, "used": 4, "borrowed": 0, "waiting": 0},
    ]
    assert condition(told, "GuaranteesFit")["status"] == "True"
    told = status(snapshot(quotas=(*quotas, Quota(("d",), 5))))
    assert condition(told, "GuaranteesFit")["reason"] == "MoreThanThePoolHas"
    assert "spec.quotas: 17 GPUs are guaranteed, of 16 that the pool has" in str(told)
    assert "quotas" not in status(snapshot())


def test_pools_that_select_the_same_nodes_both_say_so() -> None:
    contested = {"n1": ("p", "younger"), "n2": ("older", "p"), "n3": ("older", "p")}
    only_shared = {"n1": contested["n1"]}
    yields = condition(status(snapshot(), Surroundings(contested, [])), "NodesExclusive")
    assert (yields["status"], yields["reason"]) == ("False", "YieldedToOlderPool")
    assert "n2, n3 are selected by GPUPool older too, which is older and has them" in yields["message"]
    owner = condition(status(snapshot(), Surroundings(only_shared, [])), "NodesExclusive")
    assert owner["reason"] == "SharedWithYoungerPool"
    assert "n1 is selected by GPUPool younger too; this pool is older" in owner["message"]
    assert condition(status(snapshot()), "NodesExclusive")["status"] == "True"


def test_pods_of_others_are_named_and_stuck_ones_with_their_age() -> None:
    unmanaged = [gpu_pod("a", "n1", 3), gpu_pod("b", "n2", deleting=-300)]
    told = condition(status(snapshot(), Surroundings({}, unmanaged)), "GPUsExclusive")
    assert (told["status"], told["reason"]) == ("False", "ForeignPodsStuck")
    assert f"still terminating after 120 s: other/b (since {at(-300)})" in told["message"]
    assert "4 GPUs are used by 2 pods" in told["message"]
    assert "other/a on n1 (3), other/b on n2 (1)" in told["message"]
    fresh = condition(status(snapshot(), Surroundings({}, unmanaged), after=-200), "GPUsExclusive")
    assert fresh["reason"] == "ForeignPods"


def test_the_pool_is_looked_at_again_when_a_pod_becomes_stuck() -> None:
    now = NOW.timestamp()
    unmanaged = [gpu_pod("a", "n1"), gpu_pod("b", "n1", deleting=-20), gpu_pod("c", "n1", deleting=-300)]
    assert pool_status.stuck_at(unmanaged, now) == now + 100
    assert pool_status.stuck_at(unmanaged[2:], now) is None
    assert pool_status.stuck_at([], now) is None


def test_many_names_make_no_long_message() -> None:
    unmanaged = [gpu_pod(f"pod-with-a-rather-long-name-{i}", "n1") for i in range(400)]
    message = condition(status(snapshot(), Surroundings({}, unmanaged)), "GPUsExclusive")["message"]
    assert "and 395 more" in message
    assert len(message) <= 512


def test_nothing_new_makes_the_same_status() -> None:
    unmanaged = [gpu_pod("a", "n1", deleting=-300)]
    stop = Handover("ns/a", "scan", 4, NOW.timestamp() - 9, None, None, None, None, None)
    around = Surroundings({"n1": ("p", "q")}, unmanaged)
    first = status(snapshot(), around, stops=[stop])
    assert status(snapshot(), around, known=first, stops=[stop], after=45.5) == first


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = status(snapshot())
    later = status(snapshot(nodes=()), known=first, after=60)
    assert condition(later, "Ready")["lastTransitionTime"] == at(60)
    assert condition(later, "GPUsExclusive")["lastTransitionTime"] == at(0)


def test_an_unusable_pool_forgets_what_it_found_and_keeps_what_it_remembers() -> None:
    stop = Handover("ns/a", "scan", 4, NOW.timestamp())
    hold = Reservation("ns/a", "ns/b", ("n1",), NOW.timestamp() + 9)
    known = status(snapshot(JobView("ns/b", 0, 0, 1, 8), reservations=(hold,)), stops=[stop])
    obj = {"metadata": {"name": "p", "generation": 4}, "status": known}
    told = pool_status.unusable(obj, Problem("InvalidSpec", "spec.x: no"), NOW.timestamp())
    assert told["lastHandovers"] == known["lastHandovers"]
    assert "capacity" not in told
    assert "reservations" not in told
    assert [c["type"] for c in told["conditions"]] == ["Ready"]


def test_a_bad_policy_blanks_no_number() -> None:
    """Nodes and jobs are counted whether or not anybody can be admitted to them."""
    found = snapshot(JobView("ns/b", 0, 0, 1, 8))
    known = status(found)
    obj = {"metadata": {"name": "p", "generation": 4}, "status": known}
    problem = Problem("InvalidSpec", "spec.queuePolicy: no")
    told = pool_status.unusable(obj, problem, NOW.timestamp(), found)
    numbers = ("capacity", "free", "held", "foreign", "running", "queued", "nodeSizes")
    assert {name: told.get(name) for name in numbers} == {name: known.get(name) for name in numbers}
    assert told["capacity"] == 16
    assert "reservations" not in told
    assert condition(told, "Ready")["status"] == "False"


@pytest.mark.parametrize("count", [0, 1])
def test_holds_are_stored_with_the_admission_they_are_for(count: int) -> None:
    hold = Reservation("ns/a", "ns/b", ("n1",), NOW.timestamp() + 9, 0)
    waits = JobView("ns/b", 0, 0, 1, 8, attempt=4)
    blocked = JobView(
        "ns/x", 0, 0, 1, 8, priority=9, state=JobState.ADMITTED, bound=(("n2", 8),), nodes=("n2",)
    )
    found = snapshot(waits, blocked, reservations=(hold,) * count)
    stored = status(found).get("reservations", [])
    assert [h["admission"] for h in stored] == [5] * count


def test_a_quota_for_a_namespace_that_may_not_use_the_pool_is_told() -> None:
    """It was taken silently, and what it guaranteed was nobody's."""
    found = snapshot(quotas=(Quota(("team-a", "team-b"), 4, None),))
    assert condition(status(found), "QuotasAllowed")["status"] == "True"
    wrong = condition(status(found, Surroundings({}, [], None, ["team-b"])), "QuotasAllowed")
    assert (wrong["status"], wrong["reason"]) == ("False", "NamespaceNotAllowed")
    assert "spec.quotas: team-b is not in spec.allowedNamespaces" in wrong["message"]
    assert not [c for c in status(snapshot())["conditions"] if c["type"] == "QuotasAllowed"]


def test_a_pool_says_that_nobody_schedules_its_pods_while_it_is_so() -> None:
    def told(unserved: int) -> list[dict]:
        found = status(snapshot(), Surroundings({}, [], unserved=unserved))["conditions"]
        return [one for one in found if one["type"] == "PodsScheduled"]

    assert told(0) == []
    (found,) = told(2)
    assert (found["status"], found["reason"]) == ("False", "NoScheduler")
    assert "2 jobs" in found["message"]


RUNS = JobView("ns/a", 0, 0, 2, 1, state=JobState.ADMITTED, bound=(("n1", 2),), nodes=("n1", "n1"))


@pytest.mark.parametrize(
    ("nodes", "closed", "said"),
    [
        ((NodeView("n1", 2),), (), ""),
        ((NodeView("n1", 3, foreign=1),), (), ""),
        ((NodeView("n1", 1),), (), "n1 has 1 GPU, and 2 are held there"),
        ((NodeView("n1", 0),), (), "n1 has 0 GPUs, and 2 are held there"),
        ((NodeView("n1", 2, foreign=1),), (), "n1 has 2 GPUs, and 3 are held there"),
        ((NodeView("n2", 8),), (NodeView("n1", 1),), "n1 has 1 GPU, and 2 are held there"),  # it is cordoned
        ((NodeView("n1", 2), NodeView("n2", 1, foreign=2)), (), ""),  # of `GPUsExclusive`
    ],
)
def test_a_node_with_fewer_gpus_than_its_pods_hold_is_told_by_its_pool(
    nodes: tuple[NodeView, ...], closed: tuple[NodeView, ...], said: str
) -> None:
    """A pool of one GPU, two runs and none free was said to be ready, and nothing told why."""
    told = status(snapshot(RUNS, nodes=nodes, closed=closed))
    found = [one for one in told["conditions"] if one["type"] == "GPUsThere"]
    pool = {"spec": {}, "status": told}
    if not said:
        assert not found
        assert pools.ready(pool) == "Yes" or nodes[-1].foreign
        return
    (one,) = found
    assert (one["status"], one["reason"]) == ("False", "FewerThanHeld")
    assert said in one["message"]
    assert "kubectl describe node n1" in one["message"]
    assert nodes[0].foreign or pools.ready(pool) == "FewerThanHeld"
    assert said in "".join(pools.page(pool, 0.0, Terminal())).replace("\n", " ")


@pytest.mark.parametrize(
    ("replicas", "closing", "told"),
    [(1, False, False), (2, False, True), (2, True, False), (None, False, True)],
)
def test_a_pool_tells_its_groups_of_a_size_that_their_family_has_no_more(
    replicas: int | None, closing: bool, told: bool
) -> None:
    families = () if replicas is None else (FamilyTerms("dense", replicas, 4, 100, 0, 100),)
    group = GroupView("wg-3", "dense", 1, 4, ("n1",), closing=closing, opened=NOW.timestamp())
    ready = condition(status(snapshot(sharing=PoolSharing(families, groups=(group,)))), "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Planned")
    assert ("no longer of the size of group wg-3 ('dense', 1 x 4 GPUs)" in ready["message"]) is told
    page = pools.page({"spec": {}, "status": {"conditions": [ready]}}, 0.0, Terminal())
    text = " ".join(" ".join(page).split())
    assert ("groups spec.sharing.families: no longer of the size" in text) is told
