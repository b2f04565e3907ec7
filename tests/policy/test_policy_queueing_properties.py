"""What holds for every queue policy, over any history."""

from __future__ import annotations

import copy
from math import isfinite

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES, HiddenSlots, Op, QueuePolicyWorld, make, name, ops

from controller.policy.pool.placement import NodeRoom, SlotRoom
from controller.policy.queueing import POLICIES as REGISTERED
from controller.policy.queueing import make_policy
from controller.policy.queueing.explain import ranked_by
from controller.policy.types import JobState, JobView, PolicySpec

ROOMS = {
    "slots": lambda: SlotRoom(16),
    "nodes": lambda: NodeRoom({"a": 8, "b": 8, "c": 4}),
}
DECIDE, FREE = Op("decide", 0, 0), Op("free", 0, 0)
every_policy = pytest.mark.parametrize("spec", POLICIES, ids=name)
every_room = pytest.mark.parametrize("room", ROOMS)


def test_every_registered_policy_is_tested_here() -> None:
    assert {spec.name for spec in POLICIES} == set(REGISTERED)


@every_policy
@every_room
@settings(max_examples=100, deadline=None)
@given(ops)
def test_told_by_events_equals_rebuilt_from_views(spec: PolicySpec, room: str, history: list[Op]) -> None:
    world = QueuePolicyWorld(make(spec), ROOMS[room]())
    for op in history:
        if op.kind != "decide":
            world.happen(op)
            continue
        world.now += 1
        world.end_due()
        rebuilt = make(spec)
        rebuilt.rebuild(world.views(), world.now)
        if "max_wait" not in spec.params:  # who is overdue is known when a decision is asked for
            assert [j.key for j in rebuilt.queue()] == [j.key for j in world.policy.queue()]
        same_room = copy.deepcopy(world.room)
        told = world.decide(op)
        fresh = rebuilt.decide(world.now, same_room)
        assert [j.key for j in fresh.admit] == [j.key for j in told.admit]
        assert [(j.key, why) for j, why in fresh.preempt] == [(j.key, why) for j, why in told.preempt]
        assert [j.key for j in fresh.release] == [j.key for j in told.release]
        assert fresh.wake_at == told.wake_at


@every_policy
@settings(max_examples=100, deadline=None)
@given(ops)
def test_without_proposals_evalstop_is_its_base(spec: PolicySpec, history: list[Op]) -> None:
    base, wrapped = (
        QueuePolicyWorld(make_policy(spec), SlotRoom(16)),
        QueuePolicyWorld(make(spec), SlotRoom(16)),
    )
    for op in history:
        if op.kind != "propose":
            base.happen(op)
            wrapped.happen(op)
    assert base.decisions == wrapped.decisions
    assert base.jobs == wrapped.jobs


@every_policy
@settings(max_examples=100, deadline=None)
@given(ops)
def test_counting_slots_is_only_a_faster_way(spec: PolicySpec, history: list[Op]) -> None:
    """The way over numbers of GPUs decides as the general way over a `Trial` does."""
    fast, general = QueuePolicyWorld(make(spec), SlotRoom(16)), QueuePolicyWorld(make(spec), HiddenSlots(16))
    for op in history:
        fast.happen(op)
        general.happen(op)
    assert fast.decisions == general.decisions


@every_policy
@every_room
@settings(max_examples=100, deadline=None)
@given(ops)
def test_decisions_can_be_carried_out(spec: PolicySpec, room: str, history: list[Op]) -> None:
    """Nobody gets GPUs that are in use, starts twice, or is preempted without running."""
    world = QueuePolicyWorld(make(spec), ROOMS[room]())
    for op in history:
        before = {key: job.state for key, job in world.jobs.items()}
        decided = len(world.decisions)
        world.happen(op)
        free = world.room.free.values() if isinstance(world.room, NodeRoom) else [world.room.slots]
        assert min(free) >= 0
        holding = [j for j in world.jobs.values() if j.state is not JobState.QUEUED]
        assert sum(free) + sum(j.gpus for j in holding) == (20 if room == "nodes" else 16)
        for admit, preempt, release, _ in world.decisions[decided:]:
            assert all(before[key] is JobState.QUEUED for key in admit)
            assert all(before[key] is JobState.ADMITTED for key, _ in preempt)
            assert all(before[key] is JobState.ADMITTED for key in release)
            assert len({*admit, *(key for key, _ in preempt), *release}) == len(admit) + len(preempt) + len(
                release
            )


@every_policy
@settings(max_examples=40, deadline=None)
@given(ops, st.integers(0, 100))
# At the end somebody runs who is demoted when the policy is asked: once, and not at the second time again.
@example([*[Op("submit", a, 0) for a in (0, 0, 0, 0, 1, 1, 3)], DECIDE, Op("submit", 0, 0), DECIDE, FREE], 5)
def test_asked_twice_a_policy_says_the_same(spec: PolicySpec, history: list[Op], later: int) -> None:
    world = QueuePolicyWorld(make(spec), SlotRoom(16))
    for op in history:
        world.happen(op)
    now = world.now + later
    first = world.policy.decide(now, copy.deepcopy(world.room))
    assert world.policy.decide(now, copy.deepcopy(world.room)) == first


@every_policy
@settings(max_examples=40, deadline=None)
@given(ops)
def test_no_gpu_is_idle_while_the_next_in_line_fits(spec: PolicySpec, history: list[Op]) -> None:
    """Work is conserved: with nobody on the way out, nobody who may start is left waiting."""
    world = QueuePolicyWorld(make(spec), SlotRoom(16))
    for op in history:
        world.happen(op)
        on_their_way_out = (JobState.PREEMPTING, JobState.STOPPING)
        if op.kind != "decide" or any(j.state in on_their_way_out for j in world.jobs.values()):
            continue
        waiting = world.policy.queue()
        free = world.room.slots
        assert isinstance(free, int)
        in_order = spec == PolicySpec("fifo") or "max_wait" in spec.params  # nobody passes an overdue job
        may_start = waiting[:1] if in_order else waiting
        assert all(job.gpus > free for job in may_start)


@every_policy
def test_every_policy_says_what_it_ranks_a_job_by(spec: PolicySpec) -> None:
    job = JobView("team/a", 1.0, 0, 2, 4)
    key = ranked_by(make_policy(spec), job, [job])
    assert set(key) >= {"priority", "submitted"}
    assert list(key)[-1] == "submitted", "ties are broken by it"
    assert all(value is None or isinstance(value, str) or isfinite(value) for value in key.values())
