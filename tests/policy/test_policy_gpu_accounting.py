"""Accounts of a pool's GPUs when pods are not where they were planned: nobody is admitted into a shortage."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.policy.node.filter import PodRequest, judge
from controller.policy.node.ledger import Bound, Gang, GpuLedger
from controller.policy.pool.gpu_accounting import LEAVING, free_gpus, gpu_accounts
from controller.policy.pool.placement import held
from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot, Reservation


def admitted(key: str, size: int, *nodes: str, bound: tuple[str, ...] = (), **more) -> JobView:
    """A gang planned on these nodes; ``bound``: where pods of it are."""
    state = more.pop("state", JobState.ADMITTED)
    return JobView(
        key,
        0.0,
        0,
        len(nodes),
        size,
        state=state,
        nodes=nodes,
        bound=tuple((node, size) for node in bound),
        unbound=len(nodes) - len(bound) if state is JobState.ADMITTED else 0,
        **more,
    )


def waits(key: str, replicas: int, size: int, at: float = 1.0) -> JobView:
    return JobView(key, at, 0, replicas, size)


def snapshot(*jobs: JobView, nodes: dict[str, int], foreign: dict[str, int] | None = None, **more):
    views = tuple(NodeView(n, g, foreign=(foreign or {}).get(n, 0)) for n, g in nodes.items())
    return PoolSnapshot("p", PolicySpec("fifo", {"backfill": True}), views, jobs, **more)


def test_a_member_whose_planned_node_others_took_is_charged_where_it_fits() -> None:
    shot = snapshot(admitted("ns/a", 2, "n0"), waits("ns/b", 1, 2), nodes={"n0": 2, "n1": 2})
    assert free_gpus(shot) == {"n0": 0, "n1": 2}
    taken = replace(shot, nodes=(NodeView("n0", 2, foreign=1), NodeView("n1", 2)))
    assert gpu_accounts(taken).account(taken.jobs[0]) == [("n1", 2)]
    assert free_gpus(taken) == {"n0": 1, "n1": 0}
    assert plan_pool(taken, 10.0).admissions == ()


def test_a_pod_of_another_gang_where_it_was_not_planned_counts_as_well() -> None:
    moved = admitted("ns/b", 2, "n1", bound=("n0",))
    shot = snapshot(admitted("ns/a", 2, "n0"), moved, waits("ns/c", 1, 2), nodes={"n0": 2, "n1": 2})
    assert free_gpus(shot) == {"n0": 0, "n1": 0}
    assert plan_pool(shot, 10.0).admissions == ()


def test_what_is_left_of_a_member_that_fits_nowhere_is_given_to_nobody() -> None:
    b = admitted("ns/b", 2, "n1", "n1", bound=("n0", "n1"))
    shot = snapshot(admitted("ns/a", 4, "n0"), b, waits("ns/c", 1, 1), nodes={"n0": 4, "n1": 4})
    assert gpu_accounts(shot).account(shot.jobs[0]) == [("n0", 2), ("n1", 2)]
    assert plan_pool(shot, 10.0).admissions == ()


def test_a_node_that_could_never_hold_the_member_is_not_charged_for_it() -> None:
    shot = snapshot(
        admitted("ns/a", 4, "gone"), waits("ns/c", 1, 2), nodes={"n0": 2, "n1": 4}, foreign={"n1": 1}
    )
    assert free_gpus(shot) == {"n0": 2, "n1": 0}
    assert [a.key for a in plan_pool(shot, 10.0).admissions] == ["ns/c"]


def test_planned_nodes_that_hold_come_before_members_that_are_displaced() -> None:
    a, b = admitted("ns/a", 2, "n0"), admitted("ns/b", 2, "n1")
    shot = snapshot(a, b, nodes={"n0": 2, "n1": 2, "n2": 2}, foreign={"n0": 1})
    found = gpu_accounts(shot)
    assert (found.account(a), found.account(b)) == ([("n2", 2)], [("n1", 2)])


def test_of_several_members_only_those_are_moved_that_have_no_room() -> None:
    a = admitted("ns/a", 2, "n0", "n0", "n1", bound=("n1",))
    shot = snapshot(a, nodes={"n0": 4, "n1": 2, "n2": 4}, foreign={"n0": 2})
    assert gpu_accounts(shot).account(a) == [("n1", 2), ("n0", 2), ("n2", 2)]
    assert free_gpus(shot) == {"n0": 0, "n1": 0, "n2": 2}


def test_a_leaving_gang_is_charged_nothing_elsewhere() -> None:
    a = admitted("ns/a", 2, "n0", "n1", bound=("n1",), state=JobState.STOPPING)
    hold = (Reservation("ns/a", "ns/b", ("n0", "n1"), 300.0),)
    shot = snapshot(
        a, waits("ns/b", 2, 2), nodes={"n0": 2, "n1": 2, "n2": 2}, foreign={"n0": 1}, reservations=hold
    )
    assert gpu_accounts(shot).account(a) == [("n1", 2), ("n0", 1)]
    assert free_gpus(shot) == {"n0": 0, "n1": 0, "n2": 2}


def test_gpus_that_others_took_from_a_gang_do_not_come_free_with_it() -> None:
    """Of a member that has no node, and whose planned node is taken, a stop or a preemption frees nothing."""
    a = admitted("ns/a", 4, "n0")
    shot = snapshot(a, nodes={"n0": 4, "n1": 2}, foreign={"n0": 4})
    (seen,) = gpu_accounts(shot).as_charged(shot).jobs
    assert held(seen) == []
    (seen,) = (
        gpu_accounts(roomy := replace(shot, nodes=(*shot.nodes, NodeView("n2", 4)))).as_charged(roomy).jobs
    )
    assert held(seen) == [("n2", 4)]


NODES = {"n0": 4, "n1": 4, "n2": 4}
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (1, 4), (2, 4)]
ACTS = st.tuples(
    st.sampled_from(["submit", "bind", "bind", "foreign", "foreign goes", "leave", "end", "fail"]),
    st.integers(0, 7),
    st.integers(0, 2),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTS, max_size=30))
@example([("submit", 5, 0), ("submit", 3, 0), ("bind", 1, 0), ("bind", 1, 1), ("submit", 0, 0)])
def test_admitted_gangs_never_exceed_the_pool_wherever_pods_land(acts: list[tuple[str, int, int]]) -> None:
    jobs: dict[str, JobView] = {}
    foreign: Counter[str] = Counter()
    for number, (act, which, where) in enumerate(acts):
        node = f"n{where}"
        used = Counter(foreign)
        for job in jobs.values():
            for name, gpus in job.bound:
                used[name] += gpus
        mine = sorted(jobs)
        job = jobs[mine[which % len(mine)]] if mine else None
        if act == "submit":
            jobs[f"ns/{number:02}"] = waits(f"ns/{number:02}", *SHAPES[which % len(SHAPES)], at=number)
        elif act == "foreign" and used[node] < NODES[node]:
            foreign[node] += 1
        elif act == "foreign goes" and foreign[node]:
            foreign[node] -= 1
        elif job is None or job.state is JobState.QUEUED:
            pass
        elif act == "bind" and job.unbound and used[node] + job.gpus_per_replica <= NODES[node]:
            bound = (*job.bound, (node, job.gpus_per_replica))
            jobs[job.key] = replace(job, bound=bound, unbound=job.unbound - 1)
        elif act == "fail" and job.bound and job.state is JobState.ADMITTED:
            jobs[job.key] = replace(job, bound=job.bound[1:], unbound=job.unbound + 1)
        elif act == "leave":
            jobs[job.key] = replace(job, state=JobState.STOPPING, unbound=0, may_return=True)
        elif act == "end":
            del jobs[job.key]
        shot = snapshot(*jobs.values(), nodes=NODES, foreign=foreign)
        found = gpu_accounts(shot)
        account: Counter[str] = Counter(foreign)
        for job in shot.jobs:
            charged = found.account(job)
            assert sum(gpus for _, gpus in charged) <= job.gpus
            for name, gpus in charged:
                account[name] += gpus
        assert {name: account[name] + found.free[name] for name in NODES} == NODES
        for admission in plan_pool(shot, float(number)).admissions:
            job = jobs[admission.key]
            jobs[admission.key] = replace(
                job, state=JobState.ADMITTED, nodes=admission.nodes, unbound=job.replicas, since=float(number)
            )
            for name in admission.nodes:
                account[name] += job.gpus_per_replica
                assert account[name] <= NODES[name]
            # A gang that leaves is not looked for elsewhere: its GPUs are on their way to be free.
            runs = [j for j in jobs.values() if j.state is not JobState.QUEUED and j.state not in LEAVING]
            assert sum(j.gpus for j in runs) + sum(foreign.values()) <= sum(NODES.values())


def test_the_extender_gives_the_gpus_that_are_charged_elsewhere_to_no_gang() -> None:
    """It keeps the member its planned node, and lets it go nowhere else; no gang is admitted to what the
    operator charges for it, so both leave room for it."""
    a = admitted("ns/a", 2, "n0")
    shot = snapshot(a, waits("ns/b", 1, 2), nodes={"n0": 2, "n1": 2}, foreign={"n0": 1})
    ledger = GpuLedger()
    for node in ("n0", "n1"):
        ledger.put_node(node, 2)
    ledger.put_job("ns/a", 2, Gang("ns/a", 1, a.nodes, 2))
    assert ledger.keeping(10.0) == {"n0": 2}
    assert judge(ledger, PodRequest("ns/a-0", 2, "ns/a", 1, 0), ["n0", "n1"], 10.0).passed == ["n0"]
    assert judge(ledger, PodRequest("ns/x", 1), ["n0"], 10.0).passed == [], (
        "what comes free there is the gang's"
    )
    assert plan_pool(shot, 10.0).admissions == ()
    back = replace(shot, nodes=(NodeView("n0", 2), NodeView("n1", 2)))
    assert gpu_accounts(back).account(a) == [("n0", 2)], "and its own as soon as it is free again"
    ledger.put_bound("uid", Bound("ns/a", 1, "n0", 2))
    assert ledger.keeping(10.0) == {}
