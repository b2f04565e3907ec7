"""Guarantees and limits of namespaces, through time, over the pool's own plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES as EVERY_POLICY
from quota_world import ADMITTED, QUEUED, Arrival, QuotaWorld, arrivals

from controller.policy.pool.gpu_accounting import gpu_accounts
from controller.policy.pool.placement import fit
from controller.policy.pool.plan import plan_pool
from controller.policy.queueing.quota_ledger import AT_LIMIT, charged, inside
from controller.policy.queueing.quotas import REASON
from controller.policy.types import (
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Quota,
)

BACKFILL = PolicySpec("fifo", {"backfill": True})
FIFO = PolicySpec("fifo")


# -- tables -------------------------------------------------------------------------------------------------


def waits(key: str, replicas: int = 1, size: int = 1, at: float = 0.0, **more) -> JobView:
    return JobView(key, at, 0, replicas, size, since=at, **more)


def runs(key: str, *nodes: str, size: int = 1, since: float = 0.0, **more) -> JobView:
    return JobView(
        key,
        0.0,
        0,
        len(nodes),
        size,
        state=ADMITTED,
        nodes=nodes,
        bound=tuple((node, size) for node in nodes),
        since=since,
        **more,
    )


def planned(
    jobs: list[JobView],
    nodes: dict[str, int],
    quotas: list[Quota],
    policy: PolicySpec = FIFO,
    now: float = 100.0,
) -> PoolPlan:
    views = tuple(NodeView(name, gpus) for name, gpus in nodes.items())
    return plan_pool(PoolSnapshot("p", policy, views, tuple(jobs), quotas=tuple(quotas)), now)


def starts(plan: PoolPlan) -> list[str]:
    return [a.key for a in plan.admissions]


def give_way(plan: PoolPlan) -> list[str]:
    return [p.key for p in plan.preemptions if p.reason == REASON]


A8, B8 = Quota(("a",), 8), Quota(("b",), 8)


def test_who_is_guaranteed_goes_before_who_borrows_whatever_the_policy() -> None:
    jobs = [waits("x/first", 1, 8, at=1.0, priority=5), waits("a/late", 1, 8, at=9.0)]
    assert starts(planned(jobs, {"n": 8}, [])) == ["x/first"]
    assert starts(planned(jobs, {"n": 8}, [A8])) == ["a/late"]


def test_what_is_idle_is_lent() -> None:
    assert starts(planned([waits("x/j", 1, 8)], {"n": 8}, [A8])) == ["x/j"]
    assert starts(planned([waits("a/j", 2, 8)], {"n": 8, "m": 8}, [A8])) == ["a/j"]  # beyond its own


def test_borrowers_give_way_last_started_first_and_no_more_of_them_than_it_takes() -> None:
    borrowed = [runs(f"x/{n}", "n", size=2, since=float(n)) for n in range(4)]
    plan = planned([*borrowed, waits("a/j", 1, 4)], {"n": 8}, [A8])
    assert starts(plan) == []
    assert give_way(plan) == ["x/2", "x/3"]
    assert [(h.source, h.target) for h in plan.reservations] == [("x/3", "a/j")]  # all are there with it


def test_nobody_gives_way_where_that_makes_no_room() -> None:
    """A gang of two whole nodes; only one of them can be freed."""
    jobs = [runs("b/own", "n", size=1), runs("x/lent", "m", size=8), waits("a/j", 2, 8)]
    plan = planned(jobs, {"n": 8, "m": 8}, [Quota(("a",), 16), Quota(("b",), 1)])
    assert give_way(plan) == []
    # Nor are the free GPUs kept for it: others may have them.
    plan = planned([*jobs, waits("x/small")], {"n": 8, "m": 8}, [Quota(("a",), 16)], BACKFILL)
    assert "x/small" in starts(plan) or give_way(plan)


def test_nobody_is_brought_below_his_own_guarantee() -> None:
    jobs = [runs("b/1", "n", size=8, since=5.0), runs("x/1", "m", size=8, since=1.0), waits("a/j", 1, 8)]
    assert give_way(planned(jobs, {"n": 8, "m": 8}, [A8, B8])) == ["x/1"]
    assert give_way(planned([jobs[0], jobs[2]], {"n": 8}, [A8, B8])) == []


def test_a_gang_that_is_larger_than_its_guarantee_is_borrowed_whole() -> None:
    """Or one gang a little too large would be out of everybody's reach."""
    jobs = [runs("b/1", "n", "m", size=8), waits("a/j", 1, 8)]
    assert give_way(planned(jobs, {"n": 8, "m": 8}, [A8, B8])) == ["b/1"]


def test_a_second_gang_of_its_own_is_borrowed_although_it_started_first_of_all() -> None:
    jobs = [
        runs("a/1", "n", size=8, since=1.0),
        runs("a/2", "m", size=8, since=2.0),
        runs("b/1", "o", size=4, since=3.0),
        waits("b/j", 1, 4),
    ]
    assert give_way(planned(jobs, {"n": 8, "m": 8, "o": 4}, [A8, B8])) == ["a/2"]


def test_what_it_waits_for_is_lent_to_nobody_meanwhile() -> None:
    jobs = [runs("x/1", "n", size=4), waits("x/small", 1, 4, at=1.0), waits("a/j", 1, 8, at=2.0)]
    plan = planned(jobs, {"n": 8}, [A8], BACKFILL)
    assert (starts(plan), give_way(plan)) == ([], ["x/1"])
    leaving = replace(jobs[0], state=JobState.PREEMPTING)
    plan = planned([leaving, *jobs[1:]], {"n": 8}, [A8], BACKFILL)
    assert (starts(plan), give_way(plan)) == ([], [])
    plan = planned(jobs[1:], {"n": 8}, [A8], BACKFILL)
    assert starts(plan) == ["a/j"]


def test_one_that_leaves_pod_by_pod_is_waited_for_and_nobody_else_goes_for_it() -> None:
    """GPUs of pods that are gone stay the leaving gang's while they are promised."""
    lent = runs("x/2", "m", "m", size=4, since=1.0)
    jobs = [lent, runs("x/1", "n", "n", size=4, since=2.0), waits("a/j", 2, 4)]
    plan = planned(jobs, {"n": 8, "m": 8}, [A8])
    assert give_way(plan) == ["x/1"]
    halfway = replace(jobs[1], state=JobState.PREEMPTING, bound=(("n", 4),))
    nodes = (NodeView("n", 8), NodeView("m", 8))
    snapshot = PoolSnapshot("p", FIFO, nodes, (lent, halfway, jobs[2]), plan.reservations, quotas=(A8,))
    assert plan_pool(snapshot, 101.0).preemptions == ()


@pytest.mark.parametrize("policy", [FIFO, BACKFILL, PolicySpec("las", {"max_wait": 50.0})])
def test_nobody_gets_above_the_limit_and_who_would_blocks_nobody(policy: PolicySpec) -> None:
    limited = Quota(("x", "y"), 0, 6)
    jobs = [runs("x/1", "n", size=4), waits("y/2", 1, 4, at=1.0), waits("z/3", 1, 4, at=2.0)]
    plan = planned(jobs, {"n": 8}, [limited], policy)
    assert starts(plan) == ["z/3"]
    why = next(w for w in plan.waiting if w.key == "y/2")
    assert (why.reason, why.position) == (AT_LIMIT, 0)
    assert why.message == (
        "needs 1 x 4 GPUs; the pool's quota allows 6 at most to namespace y and 1 more, of which 4 are in use"
    )


def test_who_is_promised_gpus_counts_against_the_limit() -> None:
    """Two leave at once; the limit allows one of the two who wait."""
    jobs = [
        replace(runs("z/1", "n", size=4), state=JobState.STOPPING),
        replace(runs("z/2", "n", size=4), state=JobState.STOPPING),
        waits("x/1", 1, 4),
        waits("x/2", 1, 4, at=1.0),
    ]
    assert [h.target for h in planned(jobs, {"n": 8}, []).reservations] == ["x/1", "x/2"]
    assert [h.target for h in planned(jobs, {"n": 8}, [Quota(("x",), 0, 4)]).reservations] == ["x/1"]


def test_a_gang_larger_than_its_limit_is_told_so() -> None:
    plan = planned([waits("x/1", 2, 4)], {"n": 8}, [Quota(("x",), 0, 4)])
    (why,) = plan.waiting
    assert why.reason == "TooLarge"
    assert why.message == (
        "spec.gang: 2 x 4 GPUs are more than the limit of 4 that the pool's quota sets for namespace x; "
        "at most 4 is right"
    )


def test_nothing_that_may_not_be_touched_gives_way() -> None:
    jobs = [runs("x/1", "n", size=8, preemptible=False), waits("a/j", 1, 8)]
    assert planned(jobs, {"n": 8}, [A8]).preemptions == ()


def test_a_demoted_run_is_the_first_to_give_way_and_not_guaranteed_again() -> None:
    jobs = [
        runs("a/bad", "n", size=8, since=1.0, demoted=True),
        runs("x/1", "m", size=8, since=2.0),
        waits("b/j", 1, 8),
    ]
    assert give_way(planned(jobs, {"n": 8, "m": 8}, [A8, B8])) == ["a/bad"]
    again = [runs("b/j", "n", size=8), runs("x/1", "m", size=8), waits("a/bad", 1, 8, demoted=True)]
    assert planned(again, {"n": 8, "m": 8}, [A8, B8]).preemptions == ()


def test_a_demoted_run_of_a_namespace_at_its_limit_gives_way_to_its_own() -> None:
    jobs = [runs("x/bad", "n", size=8, demoted=True), waits("x/j", 1, 8)]
    for nodes in ({"n": 8}, {"n": 8, "m": 8}):  # what it waits for are not GPUs, in the second
        plan = planned(jobs, nodes, [Quota(("x",), 0, 8)])
        assert [(p.key, p.reason) for p in plan.preemptions] == [("x/bad", "Demoted")]
        assert [(h.source, h.target) for h in plan.reservations] == [("x/bad", "x/j")][: 2 - len(nodes)]


def test_the_policy_preempts_borrowed_runs_alone() -> None:
    policy = PolicySpec("srtf")
    jobs = [
        runs("a/long", "n", size=8, remaining=900.0),
        runs("x/long", "m", size=8, remaining=800.0),
        waits("x/short", 1, 8, remaining=1.0),
    ]
    plan = planned(jobs, {"n": 8, "m": 8}, [A8], policy)
    assert [(p.key, p.reason) for p in plan.preemptions] == [("x/long", "ShorterJobWaits")]
    assert planned([jobs[0], jobs[2]], {"n": 8}, [A8], policy).preemptions == ()


def test_an_overdue_borrower_stays_behind_who_is_guaranteed_and_lets_nobody_else_pass() -> None:
    policy = PolicySpec("las", {"max_wait": 50.0})
    jobs = [
        waits("x/old", 1, 8, at=0.0),
        waits("a/j", 1, 4, at=99.0),
        waits("x/new", 1, 1, at=99.0),
    ]
    assert starts(planned(jobs, {"n": 8}, [A8], policy)) == ["a/j"]


# -- properties ---------------------------------------------------------------------------------------------

NODES = {"n1": 8, "n2": 8, "n3": 8, "n4": 4}
POLICIES = [
    FIFO,
    BACKFILL,
    PolicySpec("fifo", {"max_wait": 60.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0, "max_wait": 60.0}),
    PolicySpec("srtf", {"max_wait": 60.0}),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0}),
]
gpus = st.sampled_from([0, 2, 4, 8, 12, 16])
quota_lists = st.builds(
    lambda a, b, c, together: [
        Quota(("a", "b") if together else ("a",), a[0], a[1]),
        *([] if together else [Quota(("b",), *b)]),
        Quota(("c",), *c),
    ],
    *[
        st.tuples(gpus, st.none() | gpus).map(lambda q: (q[0], None if q[1] is None else max(q[0], q[1])))
        for _ in range(3)
    ],
    st.booleans(),
)


def staying(snapshot: PoolSnapshot, plan: PoolPlan) -> list[JobView]:
    going = {p.key for p in plan.preemptions} | {g.key for g in plan.grants}
    return [j for j in snapshot.jobs if j.state is ADMITTED and j.key not in going]


def room_once_left(snapshot: PoolSnapshot, plan: PoolPlan, without: set[str] = frozenset()) -> dict[str, int]:
    """GPUs per node when all who leave are gone, and ``without``, too."""
    accounts = gpu_accounts(snapshot)
    room = dict.fromkeys(NODES, 0) | {n.name: n.gpus for n in snapshot.nodes}
    for job in staying(snapshot, plan):
        if job.key not in without:
            for node, amount in accounts.account(job):
                room[node] -= amount
    sizes = {j.key: j.gpus_per_replica for j in snapshot.jobs}
    for admission in plan.admissions:
        for node in admission.nodes:
            room[node] -= sizes[admission.key]
    return room


def borrowed(snapshot: PoolSnapshot, runs: list[JobView]) -> set[str]:
    ordered = sorted(runs, key=lambda j: (j.since, j.submitted, j.sequence, j.key))
    within = inside(charged(snapshot.quotas, ()), ((j.key, j.gpus, j.demoted) for j in ordered))
    return {j.key for j in runs} - within


def hold_to(snapshot: PoolSnapshot, plan: PoolPlan) -> None:
    """What must be so after every single pass."""
    views = {j.key: j for j in snapshot.jobs}
    quotas = snapshot.quotas
    started = {a.key for a in plan.admissions}
    ledger = charged(quotas, snapshot.jobs, started)
    # Never above a limit, also not by what is promised once those who leave are gone.
    kept = charged(quotas, staying(snapshot, plan))
    leaving = {j.key for j in snapshot.jobs if j.state is not QUEUED} - {
        j.key for j in staying(snapshot, plan)
    }
    for key in started | {
        h.target for h in plan.reservations if h.source in leaving and h.target not in started
    }:
        kept.charge(key, views[key].gpus)
    for quota, used, promised in zip(quotas, ledger.used, kept.used, strict=True):
        assert quota.limit is None or max(used, promised) <= quota.limit
    # Who gives way was borrowed, and makes room for somebody who is guaranteed GPUs.
    before = [j for j in snapshot.jobs if j.state is ADMITTED and j.proposal is None]
    victims = {p.key for p in plan.preemptions if p.reason == REASON}
    lent = borrowed(snapshot, before)
    assert {p.key for p in plan.preemptions} <= lent
    first = [
        j
        for j in snapshot.jobs
        if j.state is QUEUED and j.key not in started and not j.demoted and ledger.guaranteed(j.key, j.gpus)
    ]
    if victims:
        room = room_once_left(snapshot, plan)
        assert any(fit(room, j.replicas, j.gpus_per_replica) is not None for j in first)
        if len(first) == 1:  # nobody goes where there was room without him
            accounts = gpu_accounts(snapshot)
            for key in (p.key for p in plan.preemptions):
                for node, amount in accounts.account(views[key]):
                    room[node] += -amount
            assert fit(room, first[0].replicas, first[0].gpus_per_replica) is None
    # Nobody who is guaranteed GPUs waits while borrowers, who stay, have enough.
    runs = staying(snapshot, plan)
    if len(first) == 1 and not any(j.demoted for j in runs):
        (one,) = first
        shape = one.replicas, one.gpus_per_replica
        if fit(room_once_left(snapshot, plan, borrowed(snapshot, runs)), *shape) is not None:
            assert fit(room_once_left(snapshot, plan), *shape) is not None
    # No GPU is idle that somebody may have.
    if snapshot.policy == BACKFILL and not first:
        free = {n.name: n.gpus for n in snapshot.nodes}
        after = gpu_accounts(snapshot).free
        for admission in plan.admissions:
            for node in admission.nodes:
                after[node] -= views[admission.key].gpus_per_replica
        assert all(0 <= after[node] <= free[node] for node in free)
        for job in snapshot.jobs:
            if job.state is QUEUED and job.key not in started and not ledger.bars(job.key, job.gpus):
                assert fit(after, job.replicas, job.gpus_per_replica) is None, job.key


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), quota_lists)
def test_every_pass_keeps_the_quotas(seed: int, policy: PolicySpec, quotas: list[Quota]) -> None:
    world = QuotaWorld(NODES, policy, arrivals(seed, 40, 50, "abcd"), seed, quotas=tuple(quotas))
    for _ in range(90):
        hold_to(*world.tick())


@pytest.mark.parametrize(("seed", "policy"), [*enumerate(EVERY_POLICY)], ids=str)
def test_a_guaranteed_gang_waits_for_grace_and_termination_at_most(seed: int, policy: PolicySpec) -> None:
    """Of two namespaces with whole nodes of their own each, in a pool that others fill."""
    quotas = (Quota(("a",), 8), Quota(("b",), 8))
    flood = [
        replace(one, takes=80, stops=None, demoted=None, priority=1) for one in arrivals(seed, 40, 60, "xyz")
    ]
    own = [
        Arrival(at, f"{namespace}/{at}", replicas, 8 // replicas, 6)
        for namespace, times in (("a", (20, 50, 80)), ("b", (23, 55, 81)))
        for replicas, at in zip((1, 2, 4), times, strict=True)
    ]
    world = QuotaWorld(NODES, policy, [*flood, *own], seed, quotas=quotas)
    world.run(130)
    late = world.grace + world.ending + 2  # the pass that sees it come, and the one that sees them gone
    for one in own:
        assert world.started[one.key] - one.at <= late, one.key
    assert {one.key for one in own} <= set(world.ended)
    assert not [key for _, key, why in world.preempted if key.startswith(("a/", "b/"))]
    assert world.preempted, "nobody had to give way"


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), quota_lists)
def test_all_come_through(seed: int, policy: PolicySpec, quotas: list[Quota]) -> None:
    """Whatever the quotas: who fits into the pool and its limit runs to its end, and nothing thrashes."""
    found = [replace(one, takes=min(one.takes, 30)) for one in arrivals(seed, 25, 30, "abcd")]
    world = QuotaWorld(NODES, policy, found, seed, quotas=tuple(quotas))
    limits = {name: quota.limit for quota in quotas for name in quota.namespaces}
    never = {
        one.key
        for one in found
        if (limit := limits.get(one.key[0])) is not None and one.replicas * one.size > limit
    }
    for _ in range(1500):
        world.tick()
        if not world.coming and set(world.jobs) <= never:
            break
    assert set(world.jobs) <= never
