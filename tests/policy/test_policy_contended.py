"""Only when contended: whose stop is let through when others wait, and whose is not; in plan and policy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES, name

from controller.policy.pool.placement import SlotRoom
from controller.policy.pool.plan import plan_pool
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.stopping import make_rule
from controller.policy.types import (
    EvalPoint,
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Proposal,
    Verb,
)

PATIENT = Proposal(60, 30, "ConsecutiveDeclines", 3, 3, when_contended=True)
NOW = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)


def waits(key: str, gpus: int, at: float = 5.0, **more) -> JobView:
    return JobView(key, at, 0, 1, gpus, **more)


def runs(
    key: str, node: str, gpus: int, proposal: Proposal | None = None, at: float = 0.0, **more
) -> JobView:
    more.setdefault("state", JobState.ADMITTED)
    return JobView(
        key, at, 0, 1, gpus, bound=((node, gpus),), nodes=(node,), proposal=proposal, attained=1.0, **more
    )


def plan(*jobs: JobView, policy: str = "fifo", nodes: tuple[int, ...] = (4, 4)) -> PoolPlan:
    views = tuple(NodeView(f"n{i}", g) for i, g in enumerate(nodes, 1))
    return plan_pool(PoolSnapshot("p", PolicySpec(policy), views, jobs), 100.0)


def stopped(found: PoolPlan) -> list[str]:
    return [g.key for g in found.grants]


def test_the_modifier_marks_the_stop_and_changes_nothing_else() -> None:
    plain = make_rule(PolicySpec("kDeclines", {"k": 1}))
    marked = make_rule(PolicySpec("kDeclines", {"k": 1}), [PolicySpec("onlyWhenContended")])
    ours, theirs = marked.initial(), plain.initial()
    for step, score in enumerate((3.0, 2.0, 4.0, 1.0)):
        ours, verdict = marked.observe(ours, EvalPoint(step, score))
        theirs, expected = plain.observe(theirs, EvalPoint(step, score))
        assert verdict == expected._replace(when_contended=verdict.verb is Verb.STOP)
        assert Proposal.of(verdict, step, 0).when_contended is (verdict.verb is Verb.STOP)


@pytest.mark.parametrize(
    ("jobs", "grants", "held"),
    [
        # Nobody waits.
        ([runs("a", "n1", 4, PATIENT)], [], ["a"]),
        # Who waits fits on what is free: it starts, and nobody is stopped for it.
        ([runs("a", "n1", 4, PATIENT), waits("w", 4)], [], ["a"]),
        # Somebody waits in vain.
        ([runs("a", "n1", 4, PATIENT), runs("b", "n2", 4), waits("w", 1)], ["a"], []),
        # One is enough: the last in the queue's order goes.
        ([runs("a", "n1", 4, PATIENT), runs("b", "n2", 4, PATIENT, at=1), waits("w", 1)], ["b"], ["a"]),
        # Two wait, each for a whole node.
        (
            [runs("a", "n1", 4, PATIENT), runs("b", "n2", 4, PATIENT), waits("v", 4), waits("w", 4)],
            ["a", "b"],
            [],
        ),
        # What an ordinary stop frees will do.
        ([runs("a", "n1", 4, PATIENT), runs("b", "n2", 4, NOW), waits("w", 2)], ["b"], ["a"]),
        # So will what is being freed already.
        (
            [runs("a", "n1", 4, PATIENT), runs("b", "n2", 4, state=JobState.STOPPING), waits("w", 2)],
            [],
            ["a"],
        ),
        # It does not suffice, but it is wanted.
        ([runs("a", "n1", 4, PATIENT), runs("b", "n2", 4), waits("w", 4), waits("v", 4)], ["a"], []),
        # What can never fit waits for nobody's GPUs.
        ([runs("a", "n1", 4, PATIENT), waits("huge", 64)], [], ["a"]),
    ],
)
def test_who_is_stopped(jobs: list[JobView], grants: list[str], held: list[str]) -> None:
    found = plan(*jobs)
    assert sorted(stopped(found)) == grants
    assert sorted((h.key, h.reason) for h in found.held_back) == [(key, "NobodyWaits") for key in held]


def test_one_that_would_be_preempted_is_stopped_instead() -> None:
    """LAS would put the long-running job back into the queue for the new one; a stop frees the same GPUs."""
    job = runs("a", "n1", 4, PATIENT)
    longer = JobView(**{f: getattr(job, f) for f in job.__slots__} | {"attained": 1e6})
    found = plan(longer, waits("w", 4), policy="las", nodes=(4,))
    assert stopped(found) == ["a"]
    assert found.preemptions == ()


@given(
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from(["plain", "patient", "waits"])), max_size=9
    ),
)
@settings(max_examples=200)
def test_without_anybody_left_waiting_nothing_patient_is_stopped(spec, given_jobs) -> None:
    """And no more are stopped than it takes: without the last one chosen, somebody would still wait."""
    jobs = []
    free = 8
    for i, (gpus, kind) in enumerate(given_jobs):
        if kind != "waits" and gpus <= free:
            free -= gpus
            state = JobState.ADMITTED
        else:
            state = JobState.QUEUED
        proposal = PATIENT if kind == "patient" and state is JobState.ADMITTED else None
        jobs.append(
            JobView(
                f"j{i}",
                float(i),
                i,
                1,
                gpus,
                state=state,
                proposal=proposal,
                remaining=50.0,
                estimate=60.0,
                since=float(i),
                progress=0.1,
            )
        )
    policy = EvalStop(make_policy(spec))
    policy.rebuild(jobs, 20.0)
    room = SlotRoom(free)
    decision = policy.decide(20.0, room)
    released = {j.key for j in decision.release}
    assert released <= {j.key for j in jobs if j.proposal}
    started = {j.key for j in decision.admit}
    left = [j for j in jobs if j.state is JobState.QUEUED and j.key not in started]
    if not left:
        assert not released
    else:
        leaving = {j.key for j, _ in decision.preempt}
        assert not released & leaving
        coming = room.slots + sum(j.gpus for j in jobs if j.key in leaving)
        wanted = sum(j.gpus for j in left)
        patient = sum(j.gpus for j in jobs if j.proposal and j.key not in leaving)
        if wanted > coming:  # on slots any GPUs will do, so that counting is enough
            freed = sum(j.gpus for j in jobs if j.key in released)
            assert freed >= min(patient, wanted - coming), name(spec)
