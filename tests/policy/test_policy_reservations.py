"""Holds, and the accounts they rest on: who is promised what, for how long, and what others may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job.record import AdmissionRecord, Decision, JobRecord, ProtectedCheckpoint
from controller.policy.pool import reservations
from controller.policy.pool.gpu_accounting import free_gpus
from controller.policy.pool.handovers import HANDOVERS_KEPT, Handover, newest_handovers
from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    Delegate,
    JobState,
    JobView,
    Mode,
    NodeView,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    Reservation,
)

STOP = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)


def job(key: str, replicas: int = 1, gpus: int = 1, at: float = 0.0, **more) -> JobView:
    return JobView(key, at, 0, replicas, gpus, **more)


def placed(key: str, *nodes: str, gpus: int = 2, state: JobState = JobState.ADMITTED, **more) -> JobView:
    bound = more.pop("bound", tuple((n, gpus) for n in nodes))
    return job(key, len(nodes), gpus, state=state, bound=bound, nodes=nodes, **more)


def snapshot(*jobs: JobView, nodes: dict[str, int] | None = None, **more) -> PoolSnapshot:
    views = tuple(NodeView(n, g) for n, g in (nodes or {"n1": 2, "n2": 2}).items())
    return PoolSnapshot("p", more.pop("policy", PolicySpec("fifo")), views, jobs, **more)


def held(plan) -> list[tuple[str, str, float, int]]:
    return [(h.source, h.target, h.expires, h.admission) for h in plan.reservations]


def test_a_hold_is_for_the_targets_next_admission_and_stays_so_once_it_is_admitted() -> None:
    leaves = placed("ns/a", "n1", "n2", proposal=STOP)
    first = plan_pool(snapshot(leaves, job("ns/b", 2, 2, attempt=4)), 10)
    assert held(first) == [("ns/a", "ns/b", 310.0, 5)]
    gone = plan_pool(snapshot(job("ns/b", 2, 2, attempt=4), reservations=first.reservations), 60)
    assert [(a.key, a.source) for a in gone.admissions] == [("ns/b", "ns/a")]
    assert held(gone) == [("ns/a", "ns/b", 310.0, 5)]
    starts = job("ns/b", 2, 2, state=JobState.ADMITTED, unbound=2, nodes=("n1", "n2"), attempt=5)
    assert held(plan_pool(snapshot(starts, reservations=gone.reservations), 61)) == [
        ("ns/a", "ns/b", 310.0, 5)
    ]
    runs = placed("ns/b", "n1", "n2", attempt=5)
    assert plan_pool(snapshot(runs, reservations=gone.reservations), 62).reservations == ()


def test_while_its_source_has_all_its_pods_a_hold_is_renewed_at_half_time() -> None:
    """The copy of a large checkpoint takes longer than a hold lasts."""
    leaves, waits = placed("ns/a", "n1", "n2", state=JobState.STOPPING), job("ns/b", 2, 2)
    known: tuple[Reservation, ...] = ()
    seen = []
    for now in range(10, 2000, 50):
        plan = plan_pool(snapshot(leaves, waits, reservations=known), now)
        known = plan.reservations
        seen.append(known[0].expires - now)
        assert plan.wake_at is not None
        assert now < plan.wake_at <= known[0].expires - 150 + 1e-9 or plan.wake_at == known[0].expires
    assert min(seen) > 150
    assert len(set(seen)) < len(seen), "not renewed at each pass, or each would be a write"


def test_from_the_first_pod_gone_a_hold_has_only_what_is_left_of_its_time() -> None:
    stuck = placed("ns/a", "n1", "n2", state=JobState.STOPPING, bound=(("n2", 2),))
    waits, small = job("ns/b", 2, 2), job("ns/small", 1, 1, at=5)
    policy = PolicySpec("fifo", {"backfill": True})
    known = (Reservation("ns/a", "ns/b", ("n1", "n2"), 310.0, 1),)
    during = plan_pool(snapshot(stuck, waits, small, policy=policy, reservations=known), 300)
    assert held(during) == [("ns/a", "ns/b", 310.0, 1)]
    assert during.admissions == (), "what is free of it is not given away piecemeal to one who came later"
    after = plan_pool(snapshot(stuck, waits, small, policy=policy, reservations=during.reservations), 310)
    assert after.reservations == ()
    assert [a.key for a in after.admissions] == ["ns/small"], "a pod that never goes keeps no others' GPUs"


def test_gpus_of_a_leaving_gang_come_free_together() -> None:
    stuck = placed("ns/a", "n1", "n2", state=JobState.STOPPING, bound=(("n2", 2),))
    assert free_gpus(snapshot(stuck)) == {"n1": 2, "n2": 0}
    hold = Reservation("ns/a", "ns/b", ("n1", "n2"), 310.0, 1)
    assert free_gpus(snapshot(stuck, reservations=(hold,))) == {"n1": 0, "n2": 0}
    assert free_gpus(snapshot(replace(stuck, bound=()), reservations=(hold,))) == {"n1": 0, "n2": 0}


def test_gpus_that_a_preempted_job_leaves_are_promised_too() -> None:
    for state in (JobState.PREEMPTING, JobState.STOPPING):
        plan = plan_pool(snapshot(placed("ns/a", "n1", "n2", state=state), job("ns/b", 2, 2)), 10)
        assert held(plan) == [("ns/a", "ns/b", 310.0, 1)]


def test_holds_are_bounded_and_the_plan_goes_on_without_the_rest() -> None:
    count = reservations.RESERVATIONS_MAX + 20
    nodes = {f"n{i:03d}": 1 for i in range(count)}
    leaving = [placed(f"ns/a{i:03d}", f"n{i:03d}", gpus=1, proposal=STOP) for i in range(count)]
    waiting = [job(f"ns/b{i:03d}", 1, 1, at=i) for i in range(count)]
    plan = plan_pool(snapshot(*leaving, *waiting, nodes=nodes), 10)
    assert len(plan.grants) == count
    assert len(plan.reservations) == reservations.RESERVATIONS_MAX
    again = plan_pool(snapshot(*leaving, *waiting, nodes=nodes, reservations=plan.reservations), 11)
    assert again.reservations == plan.reservations, "the same ones are kept"
    wide = [placed("ns/a", *[f"n{i:03d}" for i in range(200)], gpus=1, proposal=STOP), job("ns/b", 200, 1)]
    assert [len(h.nodes) for h in plan_pool(snapshot(*wide, nodes=nodes), 10).reservations] == [200]


def test_nodes_in_holds_are_bounded_too() -> None:
    size, count = 500, 10
    nodes = {f"g{g}n{i:03d}": 1 for g in range(count) for i in range(size)}
    leaving = [
        placed(f"ns/a{g}", *[f"g{g}n{i:03d}" for i in range(size)], gpus=1, proposal=STOP)
        for g in range(count)
    ]
    waiting = [job(f"ns/b{g}", size, 1, at=g) for g in range(count)]
    plan = plan_pool(snapshot(*leaving, *waiting, nodes=nodes), 10)
    assert sum(len(h.nodes) for h in plan.reservations) == 8 * size <= reservations.NODES_MAX


def test_a_gang_that_backs_off_lets_others_pass_and_says_why() -> None:
    out, other = job("ns/a", 2, 2, not_before=50.0), job("ns/b", 2, 2, at=5)
    plan = plan_pool(snapshot(out, other), 10)
    assert [a.key for a in plan.admissions] == ["ns/b"]
    assert [(w.key, w.position, w.reason) for w in plan.waiting] == [("ns/a", 0, "BackingOff")]
    assert plan.wake_at == 50.0
    assert [a.key for a in plan_pool(snapshot(out, other), 50).admissions] == ["ns/a"]


def test_with_no_delegate_everybody_starts_at_once_and_no_node_is_named() -> None:
    jobs = [job("ns/a", 2, 2), job("ns/b", 2, 2), job("ns/wide", 1, 16)]
    plan = plan_pool(snapshot(*jobs, delegate=Delegate.NONE), 10)
    assert [(a.key, a.nodes) for a in plan.admissions] == [("ns/a", ()), ("ns/b", ())]
    assert [(w.key, w.reason) for w in plan.waiting] == [("ns/wide", "TooLarge")]
    runs = placed("ns/a", "n1", "n2", proposal=STOP)
    assert [g.key for g in plan_pool(snapshot(runs, delegate=Delegate.NONE), 10).grants] == ["ns/a"]


def test_with_no_delegate_gangs_that_failed_are_tried_one_by_one() -> None:
    failed = [job(f"ns/{k}", 2, 2, at=i, not_before=5.0) for i, k in enumerate("ab")]
    plan = plan_pool(snapshot(*failed, delegate=Delegate.NONE), 10)
    assert [a.key for a in plan.admissions] == ["ns/a"]
    assert [(w.key, w.reason) for w in plan.waiting] == [("ns/b", "BackingOff")]
    looks = job("ns/c", 2, 2, state=JobState.ADMITTED, unbound=1, bound=(("n1", 2),))
    assert plan_pool(snapshot(*failed, looks, delegate=Delegate.NONE), 10).admissions == ()
    runs = placed("ns/c", "n1", "n2")
    assert [a.key for a in plan_pool(snapshot(*failed, runs, delegate=Delegate.NONE), 10).admissions] == [
        "ns/a"
    ]


STATES = st.sampled_from(JobState)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(1, 3), STATES, st.booleans(), st.integers(0, 3)), max_size=7),
    st.lists(st.integers(0, 6), max_size=4, unique=True),
)
def test_promises_fit_into_what_leaves_and_nobody_is_promised_twice(gangs, left) -> None:
    nodes = {f"n{i}": 2 for i in range(6)}
    free = [n for n in nodes for _ in range(2)]
    jobs = []
    for i, (replicas, state, proposes, gone) in enumerate(gangs):
        if state is JobState.QUEUED or len(free) < replicas:
            jobs.append(job(f"ns/{i}", replicas, 1, at=i))
            continue
        mine, free = free[:replicas], free[replicas:]
        leaves = state in (JobState.STOPPING, JobState.PREEMPTING)
        bound = tuple((n, 1) for n in mine[min(gone, replicas) if leaves else 0 :])
        proposal = STOP if proposes and not leaves else None
        jobs.append(placed(f"ns/{i}", *mine, gpus=1, state=state, bound=bound, proposal=proposal))
    known = tuple(Reservation(f"ns/{s}", f"ns/{(s + 1) % 7}", ("n0",), 100.0 + s) for s in left)
    found = snapshot(*jobs, nodes=nodes, reservations=known)
    plan = plan_pool(found, 50.0)
    views = {j.key: j for j in jobs}
    targets = [h.target for h in plan.reservations]
    assert len(targets) == len({(h.source, h.target) for h in plan.reservations})
    for hold in plan.reservations:
        assert hold.expires > 50.0
        assert views[hold.target].state is JobState.QUEUED or views[hold.target].unbound
    room = free_gpus(reservations.current(found, 50.0))
    assert all(0 <= gpus <= nodes[n] for n, gpus in room.items())
    for admission in plan.admissions:
        for n in admission.nodes:
            room[n] -= 1
    assert all(gpus >= 0 for gpus in room.values())


# -- handovers --------------------------------------------------------------------------------------


def stopped(at: float, by: str = "scan", **more) -> JobRecord:
    kept = ProtectedCheckpoint(40, 40, "/pin", "sha256:x", at - 5)
    return JobRecord(secured=kept, decision=Decision(by, Mode.ENFORCE, STOP, "", at, **more))


def test_a_handover_is_told_from_decision_to_the_next_jobs_run() -> None:
    times = {"retained_at": 104.0, "suspended_at": 110.0, "pods_gone_at": 120.0, "handed_at": 121.0}
    over = stopped(100.0, handed_to="ns/b", **times)
    starts = JobRecord(admission=AdmissionRecord(1, ("n1",), 121.0, "ns/a"))
    (first,) = newest_handovers((), [("ns/a", 8, over), ("ns/b", 8, starts)])
    assert first == Handover("ns/a", "scan", 8, 100.0, 104.0, 110.0, 120.0, "ns/b", None)
    runs = replace(starts, admission=AdmissionRecord(1, ("n1",), 121.0, "ns/a", 130.0))
    (second,) = newest_handovers((first,), [("ns/a", 8, over), ("ns/b", 8, runs)])
    assert second == replace(first, running=130.0)
    assert newest_handovers((second,), []) == (second,), "what is known of deleted jobs stays"
    assert newest_handovers((second,), [("ns/a", 8, JobRecord()), ("ns/b", 8, JobRecord())]) == (second,)


def test_a_stop_of_a_job_that_held_no_gpus_hands_none_over() -> None:
    """A queued job that its user stopped was a stop of one GPU, freed and suspended in no time."""
    queued = stopped(100.0, suspended_at=100.0, pods_gone_at=100.0)
    assert newest_handovers((), [("ns/a", 1, queued)]) == ()
    assert len(newest_handovers((), [("ns/a", 1, stopped(100.0, suspended_at=100.5))])) == 1


def test_a_resident_hands_back_its_share_of_the_group_though_it_has_left() -> None:
    (first,) = newest_handovers((), [("ns/a", 4, stopped(100.0))])
    (later,) = newest_handovers((first,), [("ns/a", 0, stopped(100.0, pods_gone_at=120.0))])
    assert (later.gpus, later.pods_gone) == (4, 120.0)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.ENFORCE])
def test_shadow_hands_nothing_back(mode: Mode) -> None:
    record = stopped(100.0)
    assert record.decision is not None
    record = replace(record, decision=replace(record.decision, mode=mode))
    assert len(newest_handovers((), [("ns/a", 8, record)])) == (mode is Mode.ENFORCE)


def test_the_newest_handovers_are_kept() -> None:
    known = newest_handovers((), [(f"ns/{i}", 1, stopped(float(i + 10))) for i in range(HANDOVERS_KEPT + 5)])
    assert [h.decided for h in known] == [float(i + 10) for i in range(5, HANDOVERS_KEPT + 5)]
    assert len(newest_handovers(known, [("ns/new", 1, stopped(1e6))])) == HANDOVERS_KEPT
