"""Demoted runs give way to everybody who waits, under every policy; what policies remember comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
)

LAS = {"first_threshold": 16.0, "second_threshold": 64.0}
EVERY = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("srtf"),
    PolicySpec("srtfEst"),
    PolicySpec("las", LAS),
    PolicySpec("slaq", {"epoch": 1e6}),
    PolicySpec("fairShare"),
    PolicySpec("fairShare", {"preempt": True, "epoch": 1e6}),
    PolicySpec("fifo", {"max_wait": 50.0}),
]
every_policy = pytest.mark.parametrize("policy", EVERY, ids=lambda p: p.name + str(len(p.params)))


def waits(key: str, replicas: int = 1, gpus: int = 1, at: float = 50.0, **more: Any) -> JobView:
    return JobView(key, at, 0, replicas, gpus, since=at, remaining=500.0, estimate=500.0, **more)


def runs(key: str, *nodes: str, gpus: int = 1, at: float = 0.0, **more: Any) -> JobView:
    bound = tuple((n, gpus) for n in nodes)
    more.setdefault("since", at)
    state = more.pop("state", JobState.ADMITTED)
    return JobView(
        key,
        at,
        0,
        len(nodes),
        gpus,
        state=state,
        bound=bound,
        nodes=nodes,
        remaining=1.0,
        estimate=1.0,
        **more,
    )


def plan(policy: PolicySpec, *jobs: JobView, now: float = 60.0, **nodes: int) -> PoolPlan:
    views = tuple(NodeView(n, g) for n, g in (nodes or {"n1": 2, "n2": 2}).items())
    return plan_pool(PoolSnapshot("p", policy, views, jobs), now)


def gone(planned: PoolPlan) -> list[tuple[str, str]]:
    return [(p.key, p.reason) for p in planned.preemptions]


@every_policy
def test_a_demoted_run_goes_for_anybody_who_waits(policy: PolicySpec) -> None:
    """Even one of low priority and long, which no policy would preempt another run for."""
    demoted = runs("x/demoted", "n1", gpus=2, priority=9, demoted=True)
    other = runs("x/other", "n2", gpus=2)
    low = waits("y/low", gpus=2, priority=-5)
    planned = plan(policy, demoted, other, low)
    assert [key for key, _ in gone(planned)] == ["x/demoted"]
    assert planned.admissions == ()
    assert [(h.source, h.target, h.nodes) for h in planned.reservations] == [("x/demoted", "y/low", ("n1",))]
    # On its way out it is not asked again, and its GPUs are not given out before it is gone.
    leaving = replace(demoted, state=JobState.PREEMPTING)
    again = plan(policy, leaving, other, low)
    assert (gone(again), again.admissions) == ([], ())
    back = replace(demoted, state=JobState.QUEUED, bound=(), nodes=(), since=60.0)
    last = plan(policy, back, other, low, now=61.0)
    assert [a.key for a in last.admissions] == ["y/low"]


@every_policy
def test_nobody_is_sent_away_for_nothing(policy: PolicySpec) -> None:
    demoted = runs("x/demoted", "n1", gpus=2, demoted=True)
    other = runs("x/other", "n2", gpus=2)
    assert gone(plan(policy, demoted, other)) == []
    too_large = waits("y/large", 2, 2, priority=0)
    # The whole pool is what it needs, and the other run stays (unless the policy itself prefers the waiting).
    assert ("x/demoted", "Demoted") not in gone(plan(policy, demoted, other, too_large))
    only_demoted = waits("y/too", gpus=2, demoted=True)
    assert gone(plan(PolicySpec("fifo"), demoted, other, only_demoted)) == []


@every_policy
def test_free_gpus_and_those_that_come_free_are_enough(policy: PolicySpec) -> None:
    demoted = runs("x/demoted", "n1", gpus=2, demoted=True)
    leaving = runs("x/leaving", "n2", gpus=2, state=JobState.STOPPING)
    assert gone(plan(policy, demoted, leaving, waits("y/w", gpus=2))) == []
    assert [a.key for a in plan(policy, demoted, waits("y/w", gpus=2)).admissions] == ["y/w"]


@every_policy
def test_what_must_not_be_touched_is_not_preempted(policy: PolicySpec) -> None:
    """Neither by its policy, nor for being demoted, nor for one that is overdue; its GPUs stay its own."""
    kept = runs("x/kept", "n1", gpus=2, attained=100.0, demoted=True, preemptible=False)
    long_ = replace(kept, key="x/long", remaining=9e9, estimate=9e9, demoted=False, nodes=("n2",))
    long_ = replace(long_, bound=(("n2", 2),))
    planned = plan(policy, kept, long_, waits("y/w", gpus=2, at=0.0), now=1e7)
    assert (gone(planned), planned.admissions) == ([], ())
    free = plan(policy, kept, waits("y/w", gpus=2, at=0.0), now=1e7)
    assert [(a.key, a.nodes) for a in free.admissions] == [("y/w", ("n2",))]


def test_only_as_many_go_as_it_takes_and_the_lowest_first() -> None:
    high = runs("x/high", "n1", gpus=2, priority=5, demoted=True)
    low = runs("x/low", "n2", gpus=2, demoted=True)
    fifo = PolicySpec("fifo")
    assert gone(plan(fifo, high, low, waits("y/w", gpus=2))) == [("x/low", "Demoted")]
    both = plan(fifo, high, low, waits("y/w", 2, 2))
    assert sorted(gone(both)) == [("x/high", "Demoted"), ("x/low", "Demoted")]
    small = runs("x/small", "n2", gpus=1, demoted=True, at=9.0)
    # The small one is asked first, and stays when it turns out that only the other's node will do.
    assert gone(plan(fifo, high, small, waits("y/w", gpus=2), n1=2, n2=1)) == [("x/high", "Demoted")]


@every_policy
def test_a_demoted_job_that_waits_comes_last(policy: PolicySpec) -> None:
    first = waits("x/demoted", gpus=2, at=1.0, priority=9, demoted=True)
    planned = plan(policy, first, waits("y/w", gpus=2, at=55.0), n1=2)
    assert [a.key for a in planned.admissions] == ["y/w"]
    alone = plan(policy, first, n1=2)
    assert [a.key for a in alone.admissions] == ["x/demoted"]


TIRESIAS = PolicySpec("las", {**LAS, "variant": "Tiresias"})


def remember(job: JobView, planned: PoolPlan) -> JobView:
    return replace(job, policy_state=dict(planned.policy_states).get(job.key, job.policy_state))


def test_places_in_line_are_remembered_through_admission_preemption_and_return() -> None:
    """Rebuilt from views at every pass, the order is the one that was: marks make the round trip."""
    a, b, c = (waits(f"x/{k}", gpus=2, at=float(i)) for i, k in enumerate("abc"))
    planned = plan(TIRESIAS, a, b, c, n1=2)
    assert [x.key for x in planned.admissions] == ["x/a"]
    a, b, c = (remember(j, planned) for j in (a, b, c))
    assert all(j.policy_state for j in (a, b, c))
    run = replace(a, state=JobState.ADMITTED, since=60.0, nodes=("n1",), bound=(("n1", 2),))
    quiet = plan(TIRESIAS, run, b, c, n1=2, now=61.0)
    assert (quiet.policy_states, gone(quiet)) == ((), [])  # nothing happened: nothing to write
    served = replace(run, attained=16.0)
    demoted = plan(TIRESIAS, served, b, c, n1=2, now=69.0)
    assert [key for key, _ in gone(demoted)] == ["x/a"]
    going = replace(remember(served, demoted), state=JobState.PREEMPTING)
    assert plan(TIRESIAS, going, b, c, n1=2, now=70.0).policy_states == ()  # kept while it leaves
    back = replace(going, state=JobState.QUEUED, since=71.0, nodes=(), bound=())
    last = plan(TIRESIAS, back, b, c, n1=2, now=71.0)
    assert [x.key for x in last.admissions] == ["x/b"]
    assert dict(last.policy_states)["x/a"][0] == 1  # in the second queue
    assert [w.key for w in last.waiting] == ["x/c", "x/a"]


def test_a_policy_that_remembers_nothing_clears_what_another_left() -> None:
    job = replace(waits("x/a", gpus=2), policy_state=(0, 1, 7))
    assert plan(PolicySpec("fifo"), job, runs("x/r", "n1", gpus=2), n1=2).policy_states == (("x/a", ()),)
