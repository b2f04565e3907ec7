"""Rollout actors in a pool's plan: parts, rights of return, spare actors, recalls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from actor_world import RECALL, ActorWorld, ops, wild_ops
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pool_world import Op

from controller.policy.actor_types import Actor, ActorState, Lending, Part, Reserved, Rollout
from controller.policy.codec import decode, dumps, encode
from controller.policy.pool.best_fit import FreeGpus
from controller.policy.pool.placement import Nodes, fit_job
from controller.policy.pool.plan import plan_pool
from controller.policy.pool.recalling import movable
from controller.policy.pool.rights import pack
from controller.policy.types import JobState, JobView, PolicySpec, PoolPlan, PoolSnapshot, Quota

POLICIES = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("fifo", {"max_wait": 20.0}),
    PolicySpec("srtf"),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0}),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0}),
]


def world(**more) -> ActorWorld:
    return ActorWorld(**more)


def states(w: ActorWorld, key: str) -> list[ActorState]:
    return [actor.state for actor in w.rollout(key).actors]


def wants(w: ActorWorld, key: str, count: int, gain: float | None = None) -> PoolPlan:
    w.put(key, replace(w.rollout(key), wants=count, gain=gain))
    return w.plan()


def let_go(w: ActorWorld, key: str) -> PoolPlan:
    w.put(key, replace(w.rollout(key), wants=0, actors=()))
    return w.plan()


# -- parts


@pytest.mark.parametrize(
    ("free", "gang", "actors", "found"),
    [
        ({"a": 4, "b": 2}, (1, 4), (2, 1), Nodes(("a",), ("b", "b"))),
        ({"a": 4, "b": 1}, (1, 4), (2, 1), None),  # all parts or none
        ({"a": 4, "b": 4}, (4, 1), (1, 4), Nodes(("b",) * 4, ("a",))),  # the larger pods first
        ({"a": 4}, (2, 1), (2, 1), Nodes(("a", "a"), ("a", "a"))),
        ({"a": 2}, (2, 1), (0, 1), Nodes(("a", "a"))),
        ({"a": 2}, (1, 0), (2, 1), Nodes((), ("a", "a"))),
    ],
)
def test_all_parts_find_room_at_once_or_none_does(free, gang, actors, found):
    room = FreeGpus(free)
    assert fit_job(room, (*gang, Part(*actors), None)) == found
    assert dict(room) == free


def test_gang_and_base_actors_are_admitted_together_or_not_at_all():
    w = world(nodes={"n1": 4, "n2": 1})
    w.add("a/1", 1, 4, base=2)
    assert not w.plan().admissions
    w.nodes["n2"] = 2
    (admission,) = w.plan().admissions
    assert (admission.nodes, admission.actors) == (("n1",), ("n2", "n2"))


@pytest.mark.parametrize(
    ("base", "each", "field"),
    [
        (1, 8, "spec.rollout.gpusPerActor: 8 is more than the 4"),
        (7, 1, "spec.rollout.actors.min: 1 x 4 GPUs and"),
    ],
)
def test_what_no_node_holds_is_said_by_field(base, each, field):
    w = world()
    w.add("a/1", 1, 4, base=base, each=each)
    (why,) = w.plan().waiting
    assert why.reason == "TooLarge"
    assert field in why.message
    assert "is right" in why.message


# -- rights of return


def test_no_gang_starts_on_gpus_that_must_go_back():
    w = world(nodes={"n1": 4})
    w.add("a/1", 1, 2, base=2)
    w.plan()
    let_go(w, "a/1")
    w.add("b/1", 1, 2)
    w.add("b/2", 2, 1)
    assert not w.plan().admissions
    assert len(wants(w, "a/1", 2).lending.starts) == 2


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name + "".join(p.params))
def test_rights_make_room_for_a_gang_that_fits_with_them_elsewhere(policy):
    # Best fit puts the right on n2, where alone the gang fits: it starts, and the right moves to n1.
    w = world(policy=policy, nodes={"n1": 4, "n2": 3, "n3": 1})
    w.add("a/1", base=1, remaining=1000.0)
    w.add("a/2", 1, 2, remaining=1000.0)
    w.plan()
    w.jobs["a/1"] = replace(w.jobs["a/1"], nodes=("n3",), bound=(("n3", 1),))
    w.jobs["a/2"] = replace(w.jobs["a/2"], nodes=("n1",), bound=(("n1", 2),))
    let_go(w, "a/1")
    w.add("b/1", 1, 3, remaining=10.0)
    plan = w.plan()
    assert [one.key for one in plan.admissions] == ["b/1"]
    assert not plan.preemptions


def test_right_is_bound_to_no_node():
    w = world(nodes={"n1": 2, "n2": 2, "n3": 1})
    w.add("a/1", 1, 1, base=1, each=2)
    w.plan()
    w.jobs["a/1"] = replace(w.jobs["a/1"], nodes=("n3",), bound=(("n3", 1),))
    let_go(w, "a/1")
    w.add("b/1", 1, 2)
    (admission,) = w.plan().admissions  # on one of the two that the right could have
    assert admission.key == "b/1"
    w.add("b/2", 1, 2)
    assert not w.plan().admissions


def test_lent_base_actor_comes_back_by_a_recall():
    w = world(nodes={"n1": 4})
    w.add("a/1", base=1)
    w.add("b/1", base=1)
    w.plan()
    let_go(w, "a/1")
    wants(w, "b/1", 2)
    assert states(w, "b/1") == [ActorState.RUNNING, ActorState.STARTING]
    plan = wants(w, "a/1", 1)
    (recall,) = plan.lending.recalls
    assert (recall.key, recall.for_whom, recall.until) == ("b/1", "a/1", w.now + RECALL)
    assert not plan.lending.starts
    assert not w.plan().lending.recalls  # once is enough
    w.tick(11, 0)
    (start,) = w.plan().lending.starts
    assert start.key == "a/1"
    assert not start.spare
    assert not w.lending.reserved


@pytest.mark.parametrize(
    ("rights", "free", "spare", "short"),
    [
        ([2], {"a": 2}, {}, 0),
        ([2], {"a": 1, "b": 1}, {}, 1),
        ([2], {"a": 1}, {"a": 1}, 0),
        ([2, 2, 1], {"a": 4}, {"b": 9}, 1),  # a node that is closed is no room
        ([4, 1, 1], {"a": 4, "b": 0}, {"b": 2}, 0),
    ],
)
def test_rights_fit_at_once(rights, free, spare, short):
    packed = pack(rights, free, spare)
    assert packed.short == short
    assert all(gpus <= free[node] for node, gpus in packed.on_free.items())
    assert all(gpus <= spare[node] for node, gpus in packed.on_spare.items())


def test_spare_actor_that_became_a_base_actor_moves_for_the_right_that_it_stands_on():
    w = world(nodes={"n1": 2, "n2": 4})
    w.add("a/1", base=1)
    w.add("b/1", 1, 2, base=1, each=2)
    w.plan()
    let_go(w, "b/1")
    wants(w, "a/1", 2)  # its spare actor is on GPUs of b/1's right
    (base, spare) = w.rollout("a/1").actors
    assert (base.node, spare.node) == ("n1", "n2")
    w.put("a/1", replace(w.rollout("a/1"), actors=(spare,), wants=1))
    w.add("c/1", 1, 1)
    assert not w.plan().admissions
    plan = wants(w, "b/1", 1)
    assert [(r.key, r.number, r.for_whom) for r in plan.lending.recalls] == [("a/1", spare.number, "b/1")]
    assert [(s.key, s.node) for s in w.plan().lending.starts] == [("a/1", "n1")]
    w.tick(11, 0)
    assert [(s.key, s.node) for s in w.plan().lending.starts] == [("b/1", "n2")]


@pytest.mark.parametrize(
    ("held", "rights", "free", "moves"),
    [
        ([("n1", 1, 0)], [2], {"n1": 1, "n2": 1}, [0]),
        ([("n1", 1, 0), ("n1", 1, 1), ("n2", 1, 2)], [2], {"n1": 1, "n2": 1}, [2]),  # the newest
        ([("n1", 1, 0), ("n1", 1, 1)], [2], {"n1": 0, "n2": 1, "n3": 1}, [0, 1]),
        ([("n1", 1, 0)], [2], {"n1": 1}, []),  # nowhere to go
        ([("n1", 2, 0)], [2], {"n1": 0, "n2": 1}, []),  # as large as the right
        ([("n1", 1, 0)], [1], {"n1": 1}, []),  # nobody has to
        ([("n3", 1, 0)], [2], {"n1": 1, "n2": 1}, []),  # its node is closed
    ],
)
def test_as_few_base_actors_move_as_do(held, rights, free, moves):
    actors = tuple(Actor(number, node, gpus) for node, gpus, number in held)
    job = JobView("a/1", 0.0, 1, 1, 0, rollout=Rollout(len(actors), 1, actors))
    assert sorted(one.actor.number for one in movable([job], rights, free, {})) == moves


# -- spare actors


def test_spare_actors_get_what_nobody_else_can_use():
    w = world(nodes={"n1": 8})
    w.add("a/1", base=1)
    w.plan()
    w.add("b/1", 2, 4)  # waits, and could not start even then
    plan = wants(w, "a/1", 4)
    assert [start.spare for start in plan.lending.starts] == [True] * 3
    assert not w.plan().lending.recalls


def test_gang_that_comes_has_them_recalled_and_preempts_nobody():
    w = world(nodes={"n1": 8}, policy=PolicySpec("srtf"))
    w.add("a/1", base=1, remaining=1000.0)
    w.plan()
    wants(w, "a/1", 7)
    assert w.used()["n1"] == 8
    w.add("b/1", 2, 2, remaining=10.0)
    plan = w.plan()
    assert not plan.preemptions
    assert not plan.admissions
    assert [recall.for_whom for recall in plan.lending.recalls] == ["b/1"] * 4
    (why,) = plan.waiting
    assert why.reason == "WaitingForRecall"
    assert "within 10 s" in why.message
    assert states(w, "a/1") == [ActorState.RUNNING] + [ActorState.STARTING] * 2 + [ActorState.RECALLED] * 4
    w.tick(8, 0)
    assert not w.plan().lending.starts
    w.tick(0, 0)
    assert [one.key for one in w.plan().admissions] == ["b/1"]


def test_no_recall_for_a_gang_that_would_not_fit_even_then():
    w = world(nodes={"n1": 8})
    w.add("a/1", base=1)
    w.plan()
    wants(w, "a/1", 7)
    w.add("b/1", 1, 7)
    assert not w.plan().lending.recalls
    w.add("b/2", 1, 6)  # passes it, by backfill
    assert len(w.plan().lending.recalls) == 6


def test_recalled_gpus_are_reserved_for_whom_they_were_recalled():
    w = world(nodes={"n1": 2, "n2": 2})
    w.add("a/1", base=1)
    w.plan()
    wants(w, "a/1", 3)
    w.add("b/1", 1, 2)
    w.plan()
    assert w.reserved() == {"n2": 2}
    # One of the two is gone before the other: nobody else gets its GPU, neither a gang nor a spare actor.
    gone = next(actor for actor in w.rollout("a/1").actors if not actor.stays)
    left = tuple(actor for actor in w.rollout("a/1").actors if actor is not gone)
    w.put("a/1", replace(w.rollout("a/1"), actors=left))
    w.add("c/1", 1, 1, priority=5)
    plan = w.plan()
    assert not plan.admissions
    assert not plan.lending.starts
    w.tick(11, 0)
    assert [one.key for one in w.plan().admissions] == ["b/1"]


def test_reservation_ends_with_its_target_and_with_its_time():
    w = world(nodes={"n1": 4})
    w.add("a/1", base=1)
    w.plan()
    wants(w, "a/1", 3)
    for end in (lambda: w.jobs.pop("b/1"), lambda: w.tick(11, 0) or setattr(w, "now", w.now + 1000.0)):
        w.add("b/1", 1, 2)
        w.plan()
        assert w.lending.reserved
        end()
        w.tick(11, 0)
        w.plan()
        assert not [one for one in w.lending.reserved if one.expires < w.now]
    assert "b/1" in {one.key for plan in w.plans for one in plan.admissions} or w.lending.reserved == ()


def test_namespaces_share_by_weight_and_then_by_what_was_measured():
    w = world(nodes={"n1": 12})
    for key, weight in (("a/1", 1.0), ("b/1", 2.0), ("b/2", 2.0)):
        w.add(key, base=1, weight=weight)
    w.plan()
    for key, gain in (("a/1", 9.0), ("b/1", 1.0), ("b/2", 2.0)):
        w.put(key, replace(w.rollout(key), wants=5, gain=gain))
    starts = [start.key for start in w.plan().lending.starts]
    assert sorted(starts) == ["a/1"] * 2 + ["b/2"] * 4


@pytest.mark.parametrize(
    ("gains", "who"),
    [
        ((1.0, 2.0), "b/1"),
        ((2.0, 1.0), "a/1"),
        ((None, 100.0), "a/1"),  # never measured: one, to be measured by
        ((0.0, 0.1), "b/1"),
        ((-1.0, 0.0), "b/1"),
    ],
)
def test_measured_gain_decides_between_equals(gains, who):
    w = world(nodes={"n1": 5})
    for key in ("a/1", "b/1"):
        w.add(key, base=1)
    w.plan()
    for key, gain in zip(("a/1", "b/1"), gains, strict=True):
        w.put(key, replace(w.rollout(key), wants=9, gain=gain))
    assert [start.key for start in w.plan().lending.starts] == [who]


def test_pool_that_does_not_lend_takes_spare_actors_back_and_keeps_rights():
    w = world(nodes={"n1": 6})
    w.add("a/1", base=1)
    w.add("b/1", base=1)
    w.plan()
    wants(w, "a/1", 3)
    w.lending = replace(w.lending, enabled=False)
    assert [(r.key, r.for_whom) for r in w.plan().lending.recalls] == [("a/1", "")] * 2
    w.tick(11, 0)
    let_go(w, "b/1")
    assert not w.plan().lending.starts
    w.add("c/1", 1, 3)
    assert not w.plan().admissions


# -- ranks and quotas


def test_lent_base_actor_counts_as_held_and_spare_ones_do_not():
    rollout = Rollout(2, 2)
    w = world()
    w.add("a/1", 2, 4, base=2, each=2)
    job = w.jobs["a/1"]
    assert job.gpus == 12
    entries = tuple(Actor(n, "n1", 2, ActorState.RUNNING) for n in range(5))
    many = replace(job, state=JobState.ADMITTED, rollout=replace(rollout, actors=entries))
    assert many.gpus == 12
    assert many.spare_gpus == 6
    assert replace(many, rollout=rollout).gpus == 12


def test_spare_actors_count_against_the_limit_and_give_way_within_it():
    quotas = [Quota(("a",), guaranteed=0, limit=5)]
    w = world(nodes={"n1": 8}, quotas=quotas)
    w.add("a/1", base=1)
    w.plan()
    assert len(wants(w, "a/1", 8).lending.starts) == 3
    w.add("a/2", 1, 2)
    plan = w.plan()
    assert not plan.admissions
    assert [r.for_whom for r in plan.lending.recalls] == ["a/2"] * 2
    w.tick(11, 0)
    assert [one.key for one in w.plan().admissions] == ["a/2"]
    assert not w.plan().lending.starts


def test_spare_actors_take_nothing_from_a_guarantee():
    quotas = [Quota(("a",), guaranteed=4)]
    w = world(nodes={"n1": 8}, quotas=quotas)
    w.add("a/1", base=1)
    w.plan()
    wants(w, "a/1", 5)
    w.add("b/1", 1, 2)
    w.plan()
    w.add("a/2", 1, 2)
    plan = w.plan()
    assert [one.key for one in plan.admissions] in ([], ["a/2"])
    assert not plan.preemptions
    w.tick(11, 0)
    w.plan()
    assert w.jobs["a/2"].state is JobState.ADMITTED


# -- records


def test_plan_without_rollouts_knows_nothing_of_them():
    w = world()
    w.add("a/1", 2, 2)
    w.lending = None  # type: ignore[assignment]
    snapshot = w.snapshot()
    plan = plan_pool(snapshot, 0.0)
    text = dumps(encode(plan)) + dumps(encode(snapshot))
    assert "lending" not in text
    assert "rollout" not in text
    assert "actors" not in text
    assert decode(PoolSnapshot, encode(snapshot)) == snapshot


def test_plan_with_rollouts_replays():
    w = world()
    w.add("a/1", base=1)
    w.plan()
    wants(w, "a/1", 4, gain=1.0)
    w.lending = Lending(True, 10.0, (Reserved("a/1", (("n1", 1),), 50.0, True),))
    snapshot = w.snapshot()
    plan = plan_pool(snapshot, 0.0)
    assert decode(PoolSnapshot, encode(snapshot)) == snapshot
    assert decode(PoolPlan, encode(plan)) == plan
    assert plan_pool(decode(PoolSnapshot, encode(snapshot)), 0.0) == plan


# -- properties


def exactly_fit(rights: list[int], free: dict[str, int]) -> bool:
    """Whether all rights fit at once, by trying every way."""
    if not rights:
        return True
    size, *rest = sorted(rights, reverse=True)
    return any(exactly_fit(rest, {**free, node: gpus - size}) for node, gpus in free.items() if gpus >= size)


def rights_fit(w: ActorWorld) -> bool:
    """Whether all rights fit at once; where spare actors became base actors, if need be when these move."""
    rights, room, held = w.rights(), w.for_rights(), w.held()
    if exactly_fit(rights, room) or not any((key, one.number) in w.were_spare for key, one in held):
        return exactly_fit(rights, room)
    for _, actor in held:
        if actor.node in room:
            rights.append(actor.gpus)
            room[actor.node] += actor.gpus
    return exactly_fit(rights, room)


def look(w: ActorWorld, plan: PoolPlan, tame: bool) -> None:
    used = w.used()
    if tame:
        assert all(used[node] <= gpus for node, gpus in w.nodes.items()), "a GPU is given out twice"
        staying, reserved = w.used(recalled=False), w.reserved()
        for node, gpus in w.nodes.items():
            assert staying[node] + reserved[node] <= gpus, "what is reserved was given to another"
        assert rights_fit(w), "a right has no room"
    lending = plan.lending
    if lending is None:
        return
    for recall in lending.recalls:
        assert any(one.target == recall.for_whom for one in lending.reserved)
    # What starts and what is recalled for it are never of one job.
    assert not {r.key for r in lending.recalls} & {s.key for s in lending.starts if s.spare}


# A spare actor on GPUs of another job's right becomes a base actor.
BECAME_BASE = [
    *[Op("submit", 0, 0)] * 4,
    Op("submit", 0, 14),
    Op("end", 0, 0),
    Op("submit", 0, 0),
    Op("submit", 1, 2),
    Op("begin", 0, 1),
    Op("end_step", 1, 0),
    Op("one_leaves", 0, 0),
    Op("begin", 1, 0),
    Op("tick", 11, 0),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name + "".join(p.params))
@settings(max_examples=40, deadline=None)
@example(BECAME_BASE)
@given(ops)
def test_no_gpu_twice_rights_fit_and_reserved_stays(policy: PolicySpec, happens: list[Op]):
    w = world(policy=policy)
    for op in happens:
        look(w, w.happen(op), tame=True)


@settings(max_examples=80, deadline=None)
@given(wild_ops)
def test_foreign_pods_and_closed_nodes_break_no_pass(happens: list[Op]):
    w = world()
    for op in happens:
        before = w.used()
        plan = w.happen(op)
        look(w, plan, tame=False)
        # Whatever others took, nobody is planned on it.
        after = w.used()
        for node, gpus in w.nodes.items():
            assert after[node] <= max(gpus, before[node] + (op.kind == "guests"))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name + "".join(p.params))
@settings(max_examples=25, deadline=None, derandomize=True)
@given(ops, st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_gang_that_needs_only_spare_actors_gone_starts_after_one_recall(
    policy: PolicySpec, happens: list[Op], replicas: int, each: int
):
    w = world(policy=policy)
    for op in happens:
        w.happen(op)
    for key in [key for key, job in w.jobs.items() if job.state is not JobState.ADMITTED]:
        del w.jobs[key]
    for _ in range(2):  # whatever is under way ends
        w.tick(11, 0)
        w.plan()
    if exactly_fit([*w.rights(), *[each] * replicas], w.for_rights()):
        w.add("z/1", replicas, each, remaining=1.0)
        plan = w.plan()
        assert not plan.preemptions
        w.tick(9, 0)
        w.plan()
        assert w.jobs["z/1"].state is JobState.ADMITTED
