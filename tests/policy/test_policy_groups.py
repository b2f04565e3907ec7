"""Shared worker groups in a pool's plan: residencies, their account, whole groups, groups that close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from group_world import GroupWorld, ops, profile, wild_ops
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.policy.actor_types import Rollout
from controller.policy.codec import decode, dumps, encode
from controller.policy.group_types import Lingering, MeasuredSlowness
from controller.policy.pool.groups import Groups, shares
from controller.policy.pool.plan import plan_pool
from controller.policy.pool.residencies import Residency
from controller.policy.types import (
    Delegate,
    JobState,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Proposal,
    Quota,
)

POLICIES = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("fifo", {"backfill": True, "max_wait": 20.0}),
    PolicySpec("srtf"),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0}),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0, "max_wait": 30.0}),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0}),
]
LAS = PolicySpec("las", {"first_threshold": 1.0, "second_threshold": 100.0})
QUOTAS = [(), (Quota(("a",), 2, 6),), (Quota(("a",), 4, 8), Quota(("b",), 4, 9))]


def admitted(plan: PoolPlan) -> dict[str, str | None]:
    return {one.key: one.group for one in plan.admissions}


def waits(plan: PoolPlan, key: str) -> tuple[str, str]:
    return next((one.reason, one.message) for one in plan.waiting if one.key == key)


# -- residencies


def test_first_job_opens_a_group_and_the_second_joins_it() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    plan = w.plan()
    (opening,) = plan.sharing.openings
    assert (opening.name, opening.family, opening.nodes) == ("wg-1", "dense", ("n1", "n1"))
    assert admitted(plan) == {"a/1": "wg-1"}
    w.share("a/2")
    plan = w.plan()
    assert admitted(plan) == {"a/2": "wg-1"}
    assert not plan.sharing.openings
    assert w.used()["n1"] == 4


@pytest.mark.parametrize(
    ("placement", "groups"),
    [("Pack", ["wg-1", "wg-1"]), ("Spread", ["wg-1", "wg-2"]), ("Isolated", ["wg-1", "wg-2"])],
)
def test_placement_says_where_a_job_goes_while_gpus_are_free(placement, groups) -> None:
    w = GroupWorld(nodes={"n1": 8}, placement=placement)
    w.share("a/1")
    w.share("a/2")
    assert list(admitted(w.plan()).values()) == groups


def test_isolated_job_never_joins() -> None:
    w = GroupWorld(nodes={"n1": 4}, placement="Isolated")
    w.share("a/1")
    w.plan()
    w.share("a/2")
    assert not w.plan().admissions


OLDER = [
    ({}, {}, "wg-1"),
    ({"gpus": 1}, {}, "wg-1"),  # with GPUs of its own, which there are
    ({"gpus": 3}, {}, "NoGroupFits"),  # 2 are free, and 6 there
    ({"gpus": 7}, {}, "TooLarge"),
    ({"key": "b/2"}, {}, "TooLarge"),  # the group is of another namespace
    ({}, {"placement": "Isolated"}, "TooLarge"),
    ({}, {"max_residents": 1}, "TooLarge"),  # it is full, and blocks nobody
    ({"key": "a/lost"}, {}, "TooLarge"),  # one of its pods is lost, and none comes in its place
]


@pytest.mark.parametrize(("job", "terms", "found"), OLDER)
def test_a_group_from_when_its_family_was_smaller_takes_jobs_that_no_new_one_would(job, terms, found) -> None:
    w = GroupWorld(nodes={"n1": 6}, **terms)
    w.share("a/1")
    w.plan()
    dense, small = w.terms.families
    w.terms = replace(w.terms, families=(replace(dense, replicas=4), small))
    w.pass_time(1.0)
    w.share(**{"key": "a/2", **job})
    key = job.get("key", "a/2")
    if key == "a/lost":
        w.groups["wg-1"] = replace(w.groups["wg-1"], unbound=1, bound=(("n1", 2),))
    plan = w.plan()
    assert admitted(plan).get(key) or waits(plan, key)[0] == found
    assert admitted(plan) in ({}, {key: found})
    assert not plan.sharing.openings


def test_why_nobody_takes_it_is_said_with_the_numbers() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.terms = replace(w.terms, profiles=(profile("long", 0.6), profile("light", 0.1)))
    w.share("a/1", kind="long")
    w.plan()
    w.share("a/2", kind="long")
    w.share("b/3")
    plan = w.plan()
    reason, message = waits(plan, "a/2")
    assert reason == "NoGroupFits"
    assert "duty 0.60 + 0.60 > 0.80 in wg-1" in message
    assert "residents are of another namespace" in waits(plan, "b/3")[1]


def test_residency_and_private_gpus_come_together_or_not_at_all() -> None:
    w = GroupWorld(nodes={"n1": 6})
    w.share("a/1")
    w.add("b/9", 1, 1)
    w.plan()
    w.share("a/2", gpus=2)
    assert not w.plan().admissions
    assert waits(w.plans[-1], "a/2")[0] == "NoGroupFits"
    w._leaves("b/9", back=False)
    (one,) = w.plan().admissions
    assert (one.group, one.nodes) == ("wg-1", ("n1",))


def test_group_is_not_opened_without_room_for_private_gpus_and_actors() -> None:
    w = GroupWorld(nodes={"n1": 6})
    w.share("a/1", gpus=1, rollout=Rollout(2, 1))
    plan = w.plan()
    assert not plan.admissions
    assert not plan.sharing.openings
    w.nodes["n2"] = 1
    (one,) = w.plan().admissions
    assert (len(one.nodes), len(one.actors)) == (1, 2)


def test_unknown_kind_is_alone() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1", kind="")
    w.plan()
    w.share("a/2")
    plan = w.plan()
    assert not plan.admissions
    assert "a/1 is being measured alone in wg-1" in waits(plan, "a/2")[1]


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        ({"family": "other"}, "FamilyNotFound", "it has dense, small"),
        ({"gigabytes": 101}, "StateTooLarge", "host memory 101.0 + 101.0 > 200.0 GB"),
        ({"gpus": 8}, "TooLarge", "4 GPUs on 1 node"),
    ],
)
def test_what_could_never_have_a_residency_is_said_by_field(change, reason, says) -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1", **change)
    w.add("a/2", 1, 1)
    plan = w.plan()
    assert (waits(plan, "a/1")[0], says in waits(plan, "a/1")[1]) == (reason, True), waits(plan, "a/1")
    assert admitted(plan) == {"a/2": None}


@pytest.mark.parametrize("delegate", [Delegate.NONE, Delegate.KUEUE])
def test_sharing_is_not_offered_where_others_queue(delegate) -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    plan = plan_pool(replace(w.snapshot(), delegate=delegate), 0.0)
    assert waits(plan, "a/1")[0] == "SharingNotOffered"
    assert waits(plan_pool(replace(w.snapshot(), sharing=None), 0.0), "a/1")[0] == "SharingNotOffered"


# -- the account


def test_shares_of_a_group_sum_to_its_gpus_and_quotas_count_it_once() -> None:
    w = GroupWorld(nodes={"n1": 8}, quotas=[Quota(("a",), 0, 5)], placement="Pack")
    for number in range(1, 4):
        w.share(f"a/{number}")
        w.plan()
    assert {job.sharing.group for job in w.jobs.values()} == {"wg-1"}
    w.add("a/4", 1, 2)
    assert waits(w.plan(), "a/4")[0] == "AtQuotaLimit"
    w.add("a/5", 1, 1)
    assert admitted(w.plan()) == {"a/5": None}


def test_residents_stand_for_all_gpus_of_their_group_and_who_waits_for_none() -> None:
    w = GroupWorld(nodes={"n1": 5})
    w.share("a/1")
    w.plan()
    w.share("a/2", gpus=1)
    w.plan()
    w.share("a/3", kind="half", gigabytes=70)
    assert shares(w.snapshot()) == {"a/1": 2, "a/2": 2}
    assert shares(replace(w.snapshot(), sharing=None)) == {}


def test_at_its_limit_a_namespace_still_gets_residencies_and_no_group_more() -> None:
    w = GroupWorld(nodes={"n1": 8}, quotas=[Quota(("a",), 0, 4)], placement="Spread")
    w.share("a/1")
    w.share("a/2")
    assert admitted(w.plan()) == {"a/1": "wg-1"}
    assert admitted(w.plan()) == {"a/2": "wg-1"}


def test_gpus_of_a_group_are_lent_to_nobody() -> None:
    w = GroupWorld(nodes={"n1": 6})
    w.share("a/1")
    w.add("b/1", 1, 1, rollout=Rollout(1, 1))
    w.plan()
    w.wants(0, 4)
    w.plan()
    w.pass_time(5.0)
    assert not w.plan().lending.starts
    for job in list(w.jobs.values()):
        if job.sharing is not None:
            w._leaves(job.key, back=False)
    w.pass_time(4.0)
    assert not w.plan().lending.starts  # nobody is in it, and it is still the group's
    w.pass_time(60.0)
    assert [c.reason for c in w.plan().sharing.closings] == ["Empty"]
    w.pass_time(1.0)
    assert len(w.plan().lending.starts) == 3


# -- groups that close


def test_empty_group_goes_after_a_while_and_at_once_if_somebody_waits() -> None:
    for somebody in (False, True):
        w = GroupWorld(nodes={"n1": 4}, idle_seconds=50.0)
        w.share("a/1")
        w.plan()
        w._leaves("a/1", back=False)
        w.pass_time(4.0)
        if somebody:
            w.add("b/2", 1, 1)
        plan = w.plan()
        assert [c.reason for c in plan.sharing.closings] == (["GPUsWanted"] if somebody else [])
        if somebody:
            w.pass_time(1.0)
            assert admitted(w.plan()) == {"b/2": None}
        else:
            assert plan.wake_at == w.now + 50.0
            w.pass_time(50.0)
            assert [c.reason for c in w.plan().sharing.closings] == ["Empty"]


def test_empty_group_is_used_again_rather_than_a_new_one() -> None:
    w = GroupWorld(nodes={"n1": 8})
    w.share("a/1")
    w.plan()
    w._leaves("a/1", back=False)
    w.pass_time(4.0)
    w.share("b/2")  # of another namespace: nothing of the first is left there
    assert admitted(w.plan()) == {"b/2": "wg-1"}


def test_group_whose_pods_find_no_node_in_time_goes_and_its_residents_wait_again() -> None:
    w = GroupWorld(nodes={"n1": 4}, gang_seconds=30.0)
    w.binds = False
    w.share("a/1")
    assert w.plan().wake_at == 30.0
    w.pass_time(30.0)
    plan = w.plan()
    assert [(p.key, p.reason) for p in plan.preemptions] == [("a/1", "GroupFoundNoNodes")]
    assert [(c.name, c.reason) for c in plan.sharing.closings] == [("wg-1", "GroupFoundNoNodes")]


def test_a_group_that_was_ready_and_lost_a_pod_is_left_to_start_anew() -> None:
    """The pool's plan may come before the group's own pass: it closed the group at once, as one that had
    found no nodes, and its residents waited again."""
    w = GroupWorld(nodes={"n1": 4, "n2": 4}, gang_seconds=30.0)
    w.share("a/1")
    w.plan()
    w.pass_time(100.0)
    ready = w.groups["wg-1"]
    assert ready.ready
    w.groups["wg-1"] = replace(ready, bound=(), unbound=ready.replicas)
    plan = w.plan()
    assert (plan.preemptions, plan.sharing.closings) == ((), ())
    # Its own pass has started it anew: from then on it is to find its nodes in time.
    w.binds = False
    w.groups["wg-1"] = replace(w.groups["wg-1"], ready=False, opened=w.now)
    assert w.plan().wake_at == w.now + 30.0
    w.pass_time(30.0)
    assert [(c.name, c.reason) for c in w.plan().sharing.closings] == [("wg-1", "GroupFoundNoNodes")]


def test_worker_that_is_not_gone_keeps_its_residency_and_its_job_waits_for_that() -> None:
    w = GroupWorld(nodes={"n1": 4}, max_residents=1)
    w.share("a/1")
    w.plan()
    w.jobs["a/1"] = replace(w.jobs["a/1"], state=JobState.PREEMPTING)
    w._leaves("a/1", back=True)
    w.share("a/2")
    plan = w.plan()
    assert not plan.admissions
    assert waits(plan, "a/1")[0] == "LeavingGroup"
    w.pass_time(3.0)
    assert admitted(w.plan()) == {"a/1": "wg-1"}


@pytest.mark.parametrize(("silent", "joins"), [(None, True), (29.0, True), (30.0, False)])
def test_group_that_does_not_answer_takes_no_newcomers(silent: float | None, joins: bool) -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.pass_time(30.0)
    since = None if silent is None else w.now - silent
    w.groups["wg-1"] = replace(w.groups["wg-1"], unanswered=since)
    w.share("a/2")
    plan = w.plan()
    assert admitted(plan) == ({"a/2": "wg-1"} if joins else {})
    if not joins:
        reason, message = waits(plan, "a/2")
        assert reason == "NoGroupFits"
        assert "no newcomers (it has not answered since 00:00:00 UTC) in wg-1" in message
        w.nodes["n2"] = 4  # it may open another one
        assert admitted(w.plan()) == {"a/2": "wg-2"}


@pytest.mark.parametrize(
    ("outdated", "failing", "joins"),
    [(False, False, True), (False, True, True), (True, False, True), (True, True, False)],
)
def test_group_of_an_earlier_template_that_loses_its_turns_takes_nobody(
    outdated: bool, failing: bool, joins: bool
) -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.pass_time(30.0)
    w.groups["wg-1"] = replace(w.groups["wg-1"], outdated=outdated, failing=failing)
    w.share("a/2")
    plan = w.plan()
    assert admitted(plan) == ({"a/2": "wg-1"} if joins else {})
    if not joins:
        reason, message = waits(plan, "a/2")
        assert reason == "NoGroupFits"
        assert "it is of an earlier template of its family, and fails) in wg-1" in message
        w.nodes["n2"] = 4
        assert admitted(w.plan()) == {"a/2": "wg-2"}


def test_empty_group_of_an_earlier_template_gives_way_to_one_of_the_present_template() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w._leaves("a/1", back=False)
    w.pass_time(4.0)
    w.groups["wg-1"] = replace(w.groups["wg-1"], outdated=True)
    w.share("a/2")
    plan = w.plan()
    assert not plan.admissions
    assert [(one.name, one.reason) for one in plan.sharing.closings] == [("wg-1", "GPUsWanted")]
    w.pass_time(4.0)
    assert admitted(w.plan()) == {"a/2": "wg-2"}


def test_job_that_left_a_silent_group_behind_may_have_a_residency_elsewhere() -> None:
    w = GroupWorld(nodes={"n1": 4}, gang_seconds=60.0)
    w.share("a/1")
    w.plan()
    w.share("a/2")
    assert admitted(w.plan()) == {"a/2": "wg-1"}
    w.pass_time(60.0)
    w.nodes["n2"] = 4
    # It gave its residency up; the group still has it, for all that anybody knows.
    job = w.jobs["a/2"]
    w.jobs["a/2"] = replace(job, state=JobState.QUEUED, sharing=replace(job.sharing, group=""), nodes=())
    left = (Lingering("a/2", job.sharing.state_bytes),)
    w.groups["wg-1"] = replace(w.groups["wg-1"], unanswered=0.0, lingering=left)
    assert admitted(w.plan()) == {"a/2": "wg-2"}
    plan = w.plan()
    assert not plan.sharing.closings  # a/1 stays in it
    assert not plan.preemptions
    # Once nobody stays who was taken in, it goes.
    w._leaves("a/1", back=False)
    w.gone_at.clear()
    (closing,) = w.plan().sharing.closings
    assert (closing.name, closing.reason) == ("wg-1", "GroupDoesNotAnswer")


@pytest.mark.parametrize(("silent", "closes"), [(None, False), (59.0, False), (60.0, True)])
def test_silent_group_in_which_nobody_stays_closes_in_time(silent: float | None, closes: bool) -> None:
    w = GroupWorld(nodes={"n1": 4}, gang_seconds=60.0)
    w.share("a/1")
    w.plan()
    w.pass_time(60.0)
    w._leaves("a/1", back=True)
    w.gone_at.clear()
    since = None if silent is None else w.now - silent
    w.groups["wg-1"] = replace(w.groups["wg-1"], unanswered=since)
    plan = w.plan()
    assert [one.name for one in plan.sharing.closings] == (["wg-1"] if closes else [])
    assert waits(plan, "a/1")[0] == "LeavingGroup"
    if silent is not None and not closes:
        assert plan.wake_at == since + 60.0
        w.pass_time(1.0)
        assert w.plan().sharing.closings


def test_a_silence_is_looked_at_when_it_counts_and_not_over_and_over() -> None:
    w = GroupWorld(nodes={"n1": 4}, gang_seconds=60.0)
    w.share("a/1")
    w.plan()
    w.pass_time(100.0)
    for silent, wakes in ((10.0, 20.0), (29.0, 1.0), (30.0, 30.0), (60.0, None), (900.0, None)):
        w.groups["wg-1"] = replace(w.groups["wg-1"], unanswered=w.now - silent)
        wake = w.plan().wake_at
        assert (wake is None) is (wakes is None)
        assert wake is None or wake == w.now + wakes


# -- preemption


def running(w: GroupWorld, *keys: str, attained: float = 50.0) -> None:
    """Let these have had some service, so that a new job comes before them by LAS."""
    for key in keys:
        w.jobs[key] = replace(w.jobs[key], attained=attained)


def test_whole_group_gives_way_if_all_its_residents_come_after_the_asker() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.share("a/2")
    w.plan()
    w.pass_time(1.0)
    running(w, "a/1", "a/2")
    w.add("b/3", 1, 2)
    plan = w.plan()
    assert sorted(p.key for p in plan.preemptions) == ["a/1", "a/2"]
    assert {(r.source, r.target) for r in plan.reservations} == {("evalstop-workers/wg-1", "b/3")}
    w.pass_time(1.0)
    w.plan()
    w.pass_time(4.0)
    assert [c.reason for c in w.plan().sharing.closings] == ["GPUsWanted"]
    w.pass_time(1.0)
    assert "b/3" in admitted(w.plan())


def test_group_stays_whole_for_one_resident_that_comes_before_the_asker() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.share("a/2", priority=5)
    w.plan()
    w.pass_time(1.0)
    running(w, "a/1", "a/2")
    w.add("b/3", 1, 2, priority=2)
    assert not w.plan().preemptions


def test_group_stays_for_one_resident_that_nobody_may_preempt() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.share("a/2", preemptible=False)
    w.plan()
    w.pass_time(1.0)
    running(w, "a/1", "a/2")
    w.add("b/3", 1, 2)
    assert not w.plan().preemptions


def test_private_gpus_of_one_resident_cost_that_one_alone() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 4, "n2": 2})
    w.share("a/1")
    w.plan()
    w.share("a/2", gpus=2)
    w.plan()
    w.pass_time(1.0)
    running(w, "a/1", attained=10.0)
    running(w, "a/2", attained=1000.0)
    w.add("b/3", 1, 2, priority=0)
    plan = w.plan()
    assert [p.key for p in plan.preemptions] == ["a/2"]


def test_nobody_is_preempted_where_an_empty_group_would_do() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 8})
    w.share("a/1")
    w.add("c/9", 2, 2)
    w.plan()
    w.pass_time(1.0)
    w._leaves("a/1", back=False)
    w.pass_time(4.0)
    running(w, "c/9")
    w.add("b/3", 1, 4)
    plan = w.plan()
    assert not plan.preemptions
    assert [c.reason for c in plan.sharing.closings] == ["GPUsWanted"]


def test_residency_of_one_that_leaves_is_reserved_by_name() -> None:
    w = GroupWorld(nodes={"n1": 4}, max_residents=2)
    for number in (1, 2):
        w.share(f"a/{number}")
        w.plan()
    w.share("a/3")
    # Its pod, which has no GPUs, is there still.
    w.jobs["a/1"] = replace(w.jobs["a/1"], state=JobState.STOPPING, bound=(("n1", 0),))
    plan = w.plan()
    assert not plan.admissions
    assert [(r.source, r.target, r.group) for r in plan.reservations] == [("a/1", "a/3", "wg-1")]
    # Once it is gone, its stop has handed over the residency.
    del w.jobs["a/1"]
    later = plan_pool(replace(w.snapshot(), reservations=plan.reservations), w.now)
    assert [(a.key, a.group, a.source) for a in later.admissions] == [("a/3", "wg-1", "a/1")]


def test_last_that_came_leaves_when_somebody_stays_too_slow() -> None:
    w = GroupWorld(nodes={"n1": 4})
    for number in (1, 2):
        w.share(f"a/{number}")
        w.plan()
    w.pass_time(1.0)  # it is ready
    slow = replace(w.jobs["a/1"].sharing, slowness=MeasuredSlowness(1.3, 1.0, 20))
    w.jobs["a/1"] = replace(w.jobs["a/1"], sharing=slow)
    plan = w.plan()
    assert [(p.key, p.reason) for p in plan.preemptions] == [("a/2", "SlowsOthers")]
    w.pass_time(1.0)
    w.pass_time(4.0)
    assert "a resident was too slow beside it" in waits(w.plan(), "a/2")[1]


def test_nobody_leaves_a_group_that_starts_anew_for_what_was_measured_before() -> None:
    w = GroupWorld(nodes={"n1": 4})
    for number in (1, 2):
        w.share(f"a/{number}")
        w.plan()
    slow = replace(w.jobs["a/1"].sharing, slowness=MeasuredSlowness(1.3, 1.0, 20))
    w.jobs["a/1"] = replace(w.jobs["a/1"], sharing=slow)
    w.groups["wg-1"] = replace(w.groups["wg-1"], ready=False)
    assert not w.plan().preemptions


def test_who_came_last_is_told_by_time_not_by_attempts() -> None:
    """The number of its own job's attempts told it before: who had been preempted was the last for good."""
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/2", attempt=5)
    w.plan()
    w.pass_time(1.0)
    w.share("a/1")
    w.plan()
    assert [w.jobs[key].attempt for key in ("a/2", "a/1")] == [6, 1]
    slow = replace(w.jobs["a/2"].sharing, slowness=MeasuredSlowness(1.3, 1.0, 20))
    w.jobs["a/2"] = replace(w.jobs["a/2"], sharing=slow)
    assert [(p.key, p.reason) for p in w.plan().preemptions] == [("a/1", "SlowsOthers")]


@pytest.mark.parametrize("shares", [False, True])
def test_guaranteed_job_gets_a_borrowed_group_back_whole(shares) -> None:
    w = GroupWorld(nodes={"n1": 4}, quotas=[Quota(("b",), 4)])
    w.share("a/1")
    w.plan()
    w.share("a/2")
    w.plan()
    w.pass_time(1.0)
    if shares:
        w.share("b/3")
    else:
        w.add("b/3", 1, 2)
    found = [(p.key, p.reason) for p in w.plan().preemptions]
    assert sorted(found) == [("a/1", "GuaranteeReclaimed"), ("a/2", "GuaranteeReclaimed")]


def test_fair_share_counts_a_group_once_whatever_its_residents() -> None:
    w = GroupWorld(
        PolicySpec("fairShare", {"preempt": True, "epoch": 1.0}), {"n1": 4, "n2": 8}, placement="Pack"
    )
    for number in range(3):
        w.share(f"a/{number}")
        w.plan()
    w.add("b/1", 1, 4)
    w.plan()
    w.pass_time(5.0)
    w.add("b/2", 1, 4)
    plan = w.plan()
    assert (admitted(plan), plan.preemptions) == ({"b/2": None}, ())


@pytest.mark.parametrize("neighbour", [False, True])
def test_demoted_resident_gives_way_where_that_frees_its_group(neighbour) -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    if neighbour:
        w.share("a/2")
        w.plan()
    w.pass_time(1.0)
    w.jobs["a/1"] = replace(w.jobs["a/1"], demoted=True)
    w.add("b/3", 1, 2)
    assert [p.key for p in w.plan().preemptions] == ([] if neighbour else ["a/1"])


def test_stop_of_the_last_resident_is_due_when_somebody_waits_for_its_group() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.pass_time(1.0)
    proposal = Proposal(5, 3, "Fell", 1.0, 0.5, when_contended=True)
    w.jobs["a/1"] = replace(w.jobs["a/1"], proposal=proposal)
    assert not w.plan().grants
    w.add("b/2", 1, 4)
    plan = w.plan()
    assert [grant.key for grant in plan.grants] == ["a/1"]
    assert [(r.source, r.target, r.nodes) for r in plan.reservations] == [
        ("evalstop-workers/wg-1", "b/2", ("n1",))
    ]


# -- closing for an overdue job


@pytest.mark.parametrize("shares", [False, True])
def test_overdue_job_closes_the_group_whose_gpus_it_waits_for(shares) -> None:
    # A guaranteed namespace would join before the overdue job of another one is served.
    quotas = [Quota(("a",), 8)]
    w = GroupWorld(PolicySpec("fifo", {"backfill": True, "max_wait": 20.0}), {"n1": 4}, quotas)
    w.share("a/1")
    w.plan()
    if shares:
        w.share("b/2", kind="")
    else:
        w.add("b/2", 1, 2)
    w.share("a/3")
    assert admitted(w.plan()) == {"a/3": "wg-1"}
    w.pass_time(21.0)
    w.share("a/4")
    plan = w.plan()
    assert not plan.admissions
    assert [(c.name, c.overdue) for c in plan.sharing.closed] == [("wg-1", "b/2")]
    assert "no newcomers (an overdue job waits for its GPUs) in wg-1" in waits(plan, "a/4")[1]


def test_one_that_is_measured_gives_way_to_an_overdue_job_that_nobody_may_join() -> None:
    """The bound on waits holds while kinds are measured, too: a job that is overdue by then is not made to
    wait for the end of it."""
    w = GroupWorld(PolicySpec("las", {"max_wait": 20.0}), {"n1": 4})
    w.share("a/1", kind="")
    w.plan()
    w.share("a/2", kind="")
    assert not w.plan().preemptions
    assert "a kind that has to be measured alone first" in waits(w.plans[-1], "a/2")[1]
    w.pass_time(21.0)
    assert [p.key for p in w.plan().preemptions] == ["a/1"]


def test_backfill_leaves_a_reserved_residency_alone() -> None:
    for backfill, lasts, joins in ((True, 10.0, True), (True, 500.0, False), (False, 10.0, False)):
        w = GroupWorld(nodes={"n1": 4}, backfill=backfill, max_residents=3)
        w.share("a/1", kind="half", remaining=100.0)
        w.plan()
        w.share("a/2", kind="half")  # with a/1 their duties are too much: it waits for a/1's end
        w.share("a/3", remaining=lasts)
        assert ("a/3" in admitted(w.plan())) is joins, (backfill, lasts)


# -- the log


def test_plans_with_groups_replay_from_their_log() -> None:
    w = GroupWorld(policy=LAS, nodes={"n1": 4, "n2": 4})
    for number in range(4):
        w.shared(number, number)
        w.gang(number, number)
        snapshot = w.snapshot()
        again = decode(PoolSnapshot, encode(snapshot))
        assert dumps(encode(plan_pool(again, w.now))) == dumps(encode(w.plan()))
        w.pass_time(3.0)


def test_without_sharing_nothing_of_it_is_in_the_log() -> None:
    w = GroupWorld()
    w.add("a/1", 1, 4)
    w.add("a/2", 2, 4)
    snapshot = replace(w.snapshot(), sharing=None)
    text = dumps(encode(snapshot)) + dumps(encode(plan_pool(snapshot, 0.0)))
    assert "sharing" not in text
    assert "group" not in text


# -- properties


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    policy=st.sampled_from(POLICIES),
    quotas=st.sampled_from(QUOTAS),
    placement=st.sampled_from(["Pack", "Spread", "Isolated"]),
    backfill=st.booleans(),
    what=ops,
)
def test_ledger_holds_and_everybody_ends(policy, quotas, placement, backfill, what) -> None:
    w = GroupWorld(policy, quotas=quotas, placement=placement, backfill=backfill)
    for op in what:
        w.happen(op)
    assert w.settle() or only_hopeless(w), list(w.jobs)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(policy=st.sampled_from(POLICIES), quotas=st.sampled_from(QUOTAS[:1]), what=wild_ops)
def test_ledger_holds_whatever_happens_outside(policy, quotas, what) -> None:
    w = GroupWorld(policy, quotas=quotas, gang_seconds=20.0, idle_seconds=10.0)
    for op in what:
        w.happen(op)
    assert w.settle() or only_hopeless(w), list(w.jobs)


def only_hopeless(w: GroupWorld) -> bool:
    """Return whether all that wait could never run."""
    hopeless = {"TooLarge", "StateTooLarge", "FamilyNotFound"}
    return all(waits(w.plans[-1], key)[0] in hopeless for key in w.jobs)


def test_world_would_notice_a_group_of_two_namespaces() -> None:
    w = GroupWorld(nodes={"n1": 4})
    w.share("a/1")
    w.plan()
    w.jobs["b/2"] = replace(w.jobs["a/1"], key="b/2")
    with pytest.raises(AssertionError):
        w.look(w.plans[-1])


# Each taken away, a test above fails. The other four are the protocol's: `test_policy_sharing_search`.
MUTATIONS: dict[str, tuple[type, str, Callable[..., Any], Callable[[], None]]] = {
    "closing for the overdue": (
        Groups,
        "close_for_overdue",
        lambda self, competing: None,
        lambda: test_overdue_job_closes_the_group_whose_gpus_it_waits_for(False),
    ),
    "joint admission": (
        Residency,
        "asks",
        lambda self, job: replace(job, gpus_per_replica=0),
        test_residency_and_private_gpus_come_together_or_not_at_all,
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, mutation, test = MUTATIONS[name]
    test()
    monkeypatch.setattr(owner, method, mutation)
    with pytest.raises(AssertionError):
        test()
