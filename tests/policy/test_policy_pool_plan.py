"""Queue policies and the pool's plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES
from queue_policy_world import name as policy_name

from controller.policy.params import ParamError
from controller.policy.pool.gpu_accounting import free_gpus
from controller.policy.pool.placement import NodeRoom, fit
from controller.policy.pool.plan import plan_pool
from controller.policy.queueing import EvalStop, EventKind, QueueEvent, make_policy
from controller.policy.types import (
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    Reservation,
)

STOP = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)


def job(key: str, replicas: int = 1, gpus: int = 1, at: float = 0.0, **more) -> JobView:
    return JobView(key, at, 0, replicas, gpus, **more)


def running(key: str, *nodes: str, gpus: int = 1, **more) -> JobView:
    state = more.pop("state", JobState.ADMITTED)
    return job(key, len(nodes), gpus, state=state, bound=tuple((n, gpus) for n in nodes), nodes=nodes, **more)


def snapshot(*jobs: JobView, nodes: dict[str, int] | None = None, **more) -> PoolSnapshot:
    views = tuple(NodeView(n, g) for n, g in (nodes or {"n1": 2, "n2": 2}).items())
    policy = more.pop("policy", PolicySpec("fifo"))
    return PoolSnapshot("p", policy, views, jobs, **more)


def names(items) -> list[str]:
    return [i.key for i in items]


@pytest.mark.parametrize(
    ("free", "replicas", "gpus", "nodes"),
    [
        ({"a": 4}, 2, 2, ("a", "a")),
        ({"a": 4, "b": 1}, 1, 1, ("b",)),  # best fit leaves the large gap whole
        ({"a": 3, "b": 2}, 2, 2, ("b", "a")),
        ({"a": 1, "b": 1}, 1, 2, None),
        ({}, 1, 1, None),
        ({"a": 0}, 3, 0, ()),
    ],
)
def test_fit(free, replicas, gpus, nodes) -> None:
    assert fit(free, replicas, gpus) == nodes


def test_fifo_starts_in_order_and_its_head_blocks() -> None:
    queue = [job("ns/a", 2, at=1), job("ns/b", 2, 2, at=2), job("ns/c", at=3)]
    plan = plan_pool(snapshot(*queue), 10)
    assert names(plan.admissions) == ["ns/a"]
    assert [(w.key, w.position, w.reason) for w in plan.waiting] == [
        ("ns/b", 1, "WaitingForGPUs"),
        ("ns/c", 2, "BehindHead"),
    ]
    filled = plan_pool(snapshot(*queue, policy=PolicySpec("fifo", {"backfill": True})), 10)
    assert names(filled.admissions) == ["ns/a", "ns/c"]


def test_higher_priority_first() -> None:
    plan = plan_pool(snapshot(job("ns/a", 4, at=1), job("ns/b", 4, at=2, priority=5)), 10)
    assert names(plan.admissions) == ["ns/b"]


def test_what_can_never_fit_is_told_so_and_blocks_nobody() -> None:
    plan = plan_pool(snapshot(job("ns/wide", 1, 16, at=1), job("ns/long", 5, at=2), job("ns/ok", at=3)), 10)
    assert names(plan.admissions) == ["ns/ok"]
    reasons = {w.key: w.message for w in plan.waiting}
    assert "spec.gang.gpusPerReplica: 16 is more than the 2 GPUs of the largest" in reasons["ns/wide"]
    assert "spec.gang.replicas: 5 replicas" in reasons["ns/long"]
    assert "at most 4 is right" in reasons["ns/long"]


def test_everybody_s_gpus_are_counted() -> None:
    nodes = (NodeView("n1", 4, foreign=1), NodeView("n2", 4))
    jobs = (
        running("ns/a", "n1"),
        job("ns/b", 2, 1, state=JobState.ADMITTED, bound=(("n1", 1),), unbound=1, nodes=("n1", "n2")),
        running("ns/c", "n2", state=JobState.STOPPING),
        job("ns/d", 1, 1, state=JobState.STOPPING, nodes=("n2",)),  # pods gone, release not recorded yet
    )
    assert free_gpus(PoolSnapshot("p", PolicySpec("fifo"), nodes, jobs)) == {"n1": 1, "n2": 1}


def test_a_verdict_becomes_a_release_and_a_promise_before_the_node_is_free() -> None:
    plan = plan_pool(snapshot(running("ns/a", "n1", "n2", gpus=2, proposal=STOP), job("ns/b", 2, 2)), 10)
    assert names(plan.grants) == ["ns/a"]
    assert plan.admissions == ()
    assert plan.reservations == (Reservation("ns/a", "ns/b", ("n1", "n2"), 310.0, admission=1),)
    assert plan.wake_at == 160.0  # half-time: while the job still has all its pods, its hold is renewed


def test_the_winner_is_chosen_again_when_the_gpus_are_free() -> None:
    held = (Reservation("ns/a", "ns/b", ("n1", "n2"), 310.0),)
    late = job("ns/urgent", 2, 2, at=99, priority=9)
    plan = plan_pool(snapshot(job("ns/b", 2, 2), late, reservations=held), 20)
    assert [(a.key, a.source) for a in plan.admissions] == [("ns/urgent", "ns/a")]
    assert [(h.source, h.target) for h in plan.reservations] == [("ns/a", "ns/urgent")]


def test_a_hold_ends_by_binding_by_expiry_and_with_its_job() -> None:
    held = (Reservation("ns/a", "ns/b", ("n1",), 310.0),)
    starting = job("ns/b", state=JobState.ADMITTED, unbound=1, nodes=("n1",))
    assert plan_pool(snapshot(starting, reservations=held), 20).reservations == held
    assert plan_pool(snapshot(running("ns/b", "n1"), reservations=held), 20).reservations == ()
    assert plan_pool(snapshot(starting, reservations=held), 310).reservations == ()
    assert plan_pool(snapshot(reservations=held), 20).reservations == ()


def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ParamError, match=r"queuePolicy: 'lifo' .*fifo"):
        plan_pool(snapshot(policy=PolicySpec("lifo")), 0)


def test_same_snapshot_in_another_order_same_plan() -> None:
    jobs = [job(f"ns/{i}", 1 + i % 2, at=i // 3) for i in range(8)]
    assert plan_pool(snapshot(*jobs), 5) == plan_pool(snapshot(*reversed(jobs)), 5)


events = st.lists(
    st.tuples(st.sampled_from(EventKind), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=40
)


@settings(max_examples=200)
@given(events, st.booleans(), st.integers(0, 6))
def test_incremental_equals_rebuilt(history, backfill: bool, free: int) -> None:
    """After any sequence of events the object decides as one rebuilt from the jobs' present state."""
    spec = PolicySpec("fifo", {"backfill": backfill})
    incremental = EvalStop(make_policy(spec))
    jobs: dict[str, JobView] = {}
    states = {
        EventKind.SUBMITTED: JobState.QUEUED,
        EventKind.ADMITTED: JobState.ADMITTED,
        EventKind.LEAVING: JobState.STOPPING,
    }
    for kind, number, priority, proposes in history:
        key = f"ns/{number}"
        known = jobs.get(key, job(key, 1 + number % 3, at=number // 2))
        if kind is EventKind.UPDATED and key not in jobs:
            continue
        view = replace(known, priority=priority, proposal=STOP if proposes else None)
        view = replace(view, state=states.get(kind, view.state))
        incremental.apply(QueueEvent(kind, view))
        jobs[key] = view
        if kind is EventKind.REMOVED:
            del jobs[key]
    rebuilt = EvalStop(make_policy(spec))
    rebuilt.rebuild(jobs.values())
    assert incremental.queue() == rebuilt.queue()
    assert incremental.decide(9, NodeRoom({"n": free})) == rebuilt.decide(9, NodeRoom({"n": free}))


@given(events)
def test_without_proposals_evalstop_is_its_base(history) -> None:
    base, wrapped = make_policy(PolicySpec("fifo")), EvalStop(make_policy(PolicySpec("fifo")))
    for kind, number, priority, _ in history:
        event = QueueEvent(kind, job(f"ns/{number}", priority=priority))
        base.apply(event)
        wrapped.apply(event)
        assert base.decide(0, NodeRoom({"n": 3})) == wrapped.decide(0, NodeRoom({"n": 3}))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from(JobState)), max_size=8),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_gpus_are_never_given_twice(gangs, sizes) -> None:
    nodes = {f"n{i}": g for i, g in enumerate(sizes)}
    free = dict(nodes)
    jobs = []
    for i, (replicas, gpus, state) in enumerate(gangs):
        placed = None if state is JobState.QUEUED else fit(free, replicas, gpus)
        if placed is None:
            jobs.append(job(f"ns/{i}", replicas, gpus, at=i))
            continue
        for n in placed:
            free[n] -= gpus
        jobs.append(running(f"ns/{i}", *placed, gpus=gpus, state=state))
    plan = plan_pool(snapshot(*jobs, nodes=nodes), 0)
    views = {j.key: j for j in jobs}
    for admission in plan.admissions:
        for n in admission.nodes:
            free[n] -= views[admission.key].gpus_per_replica
        assert len(admission.nodes) == views[admission.key].replicas
    assert all(gpus >= 0 for gpus in free.values())


def test_a_gang_and_the_promise_made_to_it_stay_in_one_rack() -> None:
    nodes = tuple(NodeView(n, 2, rack=r) for n, r in (("n1", "a"), ("n2", "b"), ("n3", "a"), ("n4", "b")))
    plan = plan_pool(PoolSnapshot("p", PolicySpec("fifo"), nodes, (job("ns/x", 2, 2),)), 10)
    assert plan.admissions[0].nodes == ("n1", "n3")
    there = running("ns/x", "n1", "n3", gpus=2, proposal=STOP)
    more = (running("ns/y", "n2", gpus=2), there, job("ns/z", 2, 2, at=5.0))
    plan = plan_pool(PoolSnapshot("p", PolicySpec("fifo"), nodes, more), 10)
    assert [h.nodes for h in plan.reservations] == [("n1", "n3")]


@pytest.mark.parametrize("spec", POLICIES, ids=policy_name)
@pytest.mark.parametrize("overdue", [False, True])
def test_a_job_that_only_others_pods_keep_from_fitting_holds_nobody_up(
    spec: PolicySpec, overdue: bool
) -> None:
    nodes = (NodeView("a", 8, foreign=1), NodeView("b", 8))
    now = 1e9 if overdue else 10.0
    wide = job("ns/wide", 2, 8, at=0.0, priority=5, remaining=1.0)
    small = [job(f"ns/s{i}", at=5.0 + i, remaining=100.0) for i in range(5)]
    plan = plan_pool(PoolSnapshot("p", spec, nodes, (wide, *small)), now)
    assert sorted(names(plan.admissions)) == names(small)
    told = next(w for w in plan.waiting if w.key == "ns/wide")
    assert (told.reason, told.position) == ("GPUsUsedByOthers", 0)
    assert "needs 2 x 8 GPUs; pods of no RLHFJob of pool 'p' use 1 of its 16" in told.message
    # A pod that is on its way out keeps nobody's place in the queue from him.
    nodes = (NodeView("a", 8, foreign=1, leaving=1), NodeView("b", 8))
    plan = plan_pool(PoolSnapshot("p", spec, nodes, (wide, *small)), now)
    assert next(w for w in plan.waiting if w.key == "ns/wide").reason == "WaitingForGPUs"


@pytest.mark.parametrize("spec", POLICIES, ids=policy_name)
def test_a_gang_that_fits_the_pool_but_not_its_open_nodes_is_not_called_too_large(spec: PolicySpec) -> None:
    """A node that is cordoned for an hour must not have gangs given up; nor do they hold up others."""
    wide, huge, big, small = (
        job("ns/wide", 3, 8, remaining=1.0),
        job("ns/huge", 5, 8, remaining=1.0),
        job("ns/big", 1, 16, remaining=1.0),
        job("ns/small", at=5.0, remaining=100.0),
    )
    shut = tuple(NodeView(name, 8) for name in "bcd")
    plan = plan_pool(PoolSnapshot("p", spec, (NodeView("a", 8),), (wide, huge, big, small), closed=shut), 10)
    assert names(plan.admissions) == ["ns/small"]
    why = {w.key: w for w in plan.waiting}
    assert {key: w.reason for key, w in why.items()} == {
        "ns/wide": "NodesClosed",
        "ns/huge": "TooLarge",
        "ns/big": "TooLarge",
    }
    assert "needs 3 x 8 GPUs; nodes b, c, d of pool 'p' are not ready" in why["ns/wide"].message
    assert "can hold (32 GPUs on 4 nodes); at most 4 is right" in why["ns/huge"].message
    shut = tuple(NodeView(name, 8) for name in "abcd")
    plan = plan_pool(PoolSnapshot("p", spec, (), (wide, huge), closed=shut), 10)
    assert {w.key: w.reason for w in plan.waiting} == {"ns/wide": "NoUsableNodes", "ns/huge": "TooLarge"}
    booting = (NodeView("new", 0),)
    plan = plan_pool(PoolSnapshot("p", spec, (), (wide,), closed=booting), 10)
    assert [w.reason for w in plan.waiting] == ["NoUsableNodes"]
    # With all of them open it starts.
    plan = plan_pool(PoolSnapshot("p", spec, shut, (wide,)), 10)
    assert names(plan.admissions) == ["ns/wide"]


def test_who_waits_is_not_told_the_name_of_a_job_of_another_namespace() -> None:
    """Its message goes into the job's status, which its whole team reads."""
    runs = job("else/runs", 2, at=0, state=JobState.ADMITTED, bound=(("n1", 2),), nodes=("n1",))
    queue = [job("rich/secret-model", 2, 2, at=1), job("mine/small", 2, at=2), job("rich/small", 2, at=3)]
    told = {w.key: w.message for w in plan_pool(snapshot(runs, *queue), 10).waiting}
    assert told["mine/small"] == "it would fit, but a job of another namespace comes first"
    assert told["rich/small"] == "it would fit, but rich/secret-model comes first"
