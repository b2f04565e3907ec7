"""A queue outside: offers are answered by nodes, and who put a run out is told apart, whatever is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from external_queue_world import ExternalQueueWorld
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job import external_queue
from controller.policy.job.external_queue import waits_outside
from controller.policy.job.record import Decision
from controller.policy.job.types import Answer, RunState, SuspendWorkload
from controller.policy.pool import job_outcomes
from controller.policy.types import Mode, PolicySpec, Preemption, Problem, Proposal

NODES = {"n1": 4, "n2": 4}


def world(quota: int = 8, nodes: dict[str, int] | None = None, *, close: bool = False) -> ExternalQueueWorld:
    return ExternalQueueWorld(nodes or NODES, quota, close=close)


def preempt(of: ExternalQueueWorld, key: str) -> None:
    """Its pool wants its GPUs for another."""
    job = of.jobs[key]
    job.record = job_outcomes.preempted(job.record, Preemption(key, "Demoted"), of.now)


def reason(of: ExternalQueueWorld, key: str, type_: str) -> str:
    found = of.jobs[key].record.condition(type_)
    return found.reason if found is not None else ""


def runs(of: ExternalQueueWorld, key: str) -> bool:
    found = of.jobs[key].record.condition(c.RUNNING)
    return found is not None and found.status


def test_quota_of_eight_three_gangs_of_four() -> None:
    at = world()
    for key in ("ns/a", "ns/b", "ns/c"):
        at.submit(key, 2, 2)
    at.settle()
    assert [runs(at, key) for key in at.jobs] == [True, True, False]
    assert at.told.waiting[0].reason == "WaitingForQuota"
    assert at.told.waiting[0].message == "insufficient quota"
    at.scores("ns/a", 1, 2, 3, 4)
    at.settle()
    at.scores("ns/a", 3.5, 3, 2.5)
    at.settle()
    assert [runs(at, key) for key in at.jobs] == [False, True, True]
    assert reason(at, "ns/a", c.ADMITTED) == "Stopped"
    decision = at.jobs["ns/a"].record.decision
    assert decision is not None
    assert decision.handed_to == "ns/c"  # promised before the suspend, to whom the queue then chose
    assert not at.tickets["ns/a"].active
    assert at.tickets["ns/a"].ours


EVICTIONS = {
    "Preempted": "PreemptedByQueue",
    "PodsReadyTimeout": "Evicted",
    "NodeFailures": "Evicted",
    "ClusterQueueStopped": "Evicted",
    "AdmissionCheck": "Evicted",
}


@pytest.mark.parametrize("code", EVICTIONS)
def test_a_run_that_its_queue_put_out_goes_on_under_its_next_number(code: str) -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.scores("ns/a", 1, 2, 3)
    at.settle()
    at.evict("ns/a", code)
    at.step("ns/a")
    assert reason(at, "ns/a", c.ADMITTED) == EVICTIONS[code]
    assert at.jobs["ns/a"].plan is not None
    assert not any(isinstance(a, SuspendWorkload) for a in at.jobs["ns/a"].plan.actions)
    at.settle()
    record = at.jobs["ns/a"].record
    assert (record.attempt, record.evictions, record.preemptions) == (2, 1, 0)
    assert record.decision is None
    assert record.run.attempt == 2
    assert at.answered["ns/a"] == [1, 2]
    assert runs(at, "ns/a")


@pytest.mark.parametrize("close", [True, False])
def test_one_that_gives_way_is_told_so_once_and_runs_again(close: bool) -> None:
    """Between any two of its queue's writes: that it is out, that its Job is suspended, that its quota is
    gone. An answer in between would stay, for nothing resets it any more, and keep it out for ever."""
    at = world(close=close)
    for key in ("ns/a", "ns/b", "ns/c"):
        at.submit(key, 2, 2)
    at.settle()
    assert runs(at, "ns/a")
    preempt(at, "ns/a")
    at.now += at.jobs["ns/a"].desired.preempt_grace
    at.settle()
    assert at.tickets["ns/a"].answer is Answer.PENDING
    assert [runs(at, key) for key in at.jobs] == [False, True, True]
    at.finish("ns/c")
    at.settle()
    record = at.jobs["ns/a"].record
    assert runs(at, "ns/a")
    assert (record.attempt, record.preemptions, record.evictions) == (2, 1, 0)


def test_one_put_out_by_its_queue_while_it_is_to_give_way_is_its_queue_s_and_is_charged() -> None:
    """It trained on to its next checkpoint, and never came to it."""
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    admission = at.jobs["ns/a"].record.admission
    assert admission is not None
    assert admission.running_since is not None
    at.now = admission.running_since + 100.0
    at.scrape("ns/a", step=50, total_steps=100, checkpoint_step=40, resumed_step=0)
    preempt(at, "ns/a")
    at.step("ns/a", seconds=0.0)
    assert runs(at, "ns/a")
    at.evict("ns/a", "Preempted")
    at.step("ns/a", seconds=0.0)
    assert reason(at, "ns/a", c.ADMITTED) == "PreemptedByQueue"
    at.settle()
    record = at.jobs["ns/a"].record
    assert (record.attempt, record.preemptions, record.evictions) == (2, 0, 1)
    assert record.lost == pytest.approx(10 / 50 * 100 * 4)
    assert runs(at, "ns/a")


def test_the_words_of_a_run_put_out_last_until_it_is_started_again() -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.evict("ns/a", "Preempted")
    at.problem = Problem("ClusterQueueStopped", "ClusterQueue q: spec.stopPolicy is 'Hold'")
    at.settle()
    assert reason(at, "ns/a", c.RUNNING) == "PreemptedByQueue"
    assert reason(at, "ns/a", c.ADMITTED) == "ClusterQueueStopped"


def test_a_job_to_which_its_queue_can_give_nothing_waits_all_the_same() -> None:
    """Its pool's plan is not shown it, and the pool said that nobody waits."""
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    a = at.jobs["ns/a"]
    assert not waits_outside(a.desired, a.record), "it runs"
    at.problem = Problem("ClusterQueueStopped", "ClusterQueue q: spec.stopPolicy is 'Hold'")
    at.submit("ns/c", 2, 2)
    at.settle()
    c_ = at.jobs["ns/c"]
    assert c_.plan.queue is None, "its pool is not shown it"
    assert waits_outside(c_.desired, c_.record)
    assert not waits_outside(replace(c_.desired, queue=""), c_.record)
    assert not waits_outside(replace(c_.desired, problem=at.problem), c_.record), "it is refused"
    assert not waits_outside(c_.desired, replace(c_.record, finished="Failed"))
    stop = Decision("User", Mode.ENFORCE, Proposal(0, 0, "UserRequest", 0.0, 0.0), "", 1.0)
    assert not waits_outside(c_.desired, replace(c_.record, decision=stop))


def test_one_put_out_before_it_ran_keeps_its_place_and_loses_nothing() -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.step("ns/a")
    at._cluster(at.jobs["ns/a"])
    at.step("ns/a")
    at.pool_pass()
    assert at.jobs["ns/a"].record.admission is not None
    at.evict("ns/a")
    at.settle()
    record = at.jobs["ns/a"].record
    assert record.queued_at is None
    assert record.lost == 0.0
    assert at.answered["ns/a"] == [2]  # the first number was never let start


def test_an_eviction_that_nobody_saw_is_found_by_the_offer() -> None:
    """Put out, and given quota again, while no operator looked."""
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.evict("ns/a")
    for _ in range(4):
        at.now += 1.0
        at._cluster(at.jobs["ns/a"])
    assert at.tickets["ns/a"].quota
    assert not at.tickets["ns/a"].evicted
    at.settle()
    record = at.jobs["ns/a"].record
    assert (record.attempt, record.evictions) == (2, 1)
    assert runs(at, "ns/a")


def test_one_switched_off_by_a_hand_waits_for_that_hand() -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.switch("ns/a", False)
    at.step("ns/a")  # before the queue itself has seen it
    assert at.tickets["ns/a"].evicted == ""
    assert reason(at, "ns/a", c.ADMITTED) == "Deactivated"
    at.settle()
    assert reason(at, "ns/a", c.ADMITTED) == reason(at, "ns/a", c.RUNNING) == "Deactivated"
    assert "it was not this operator that wrote it" in at.jobs["ns/a"].record.condition(c.ADMITTED).message
    assert not at.tickets["ns/a"].active
    at.switch("ns/a", True)
    at.settle()
    assert runs(at, "ns/a")


def test_a_user_s_stop_of_one_that_waits_keeps_it_out_of_its_queue() -> None:
    at = world(quota=4)
    at.submit("ns/a", 2, 2)
    at.submit("ns/b", 2, 2)
    at.settle()
    job = at.jobs["ns/b"]
    job.wish(run_state=RunState.STOPPED)
    at.settle()
    assert not at.tickets["ns/b"].active
    at.switch("ns/b", True)  # somebody lines it up again
    at.settle()
    assert not at.tickets["ns/b"].active
    job.wish(run_state=RunState.RUN)
    at.finish("ns/a")
    at.settle()
    assert runs(at, "ns/b")


def test_a_stop_that_the_queue_does_not_carry_out_is_told_and_ends_when_it_does() -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.down = True
    job = at.jobs["ns/a"]
    job.wish(run_state=RunState.STOPPED)
    for _ in range(60):
        at.step("ns/a")
        at._cluster(job)
        at.pool_pass()
    assert reason(at, "ns/a", c.RELEASED) == "WaitingForQueue"
    assert "kueue-controller-manager" in job.record.condition(c.RELEASED).message
    at.down = False
    at.settle()
    assert reason(at, "ns/a", c.RELEASED) == "PodsGone"


def test_a_gang_too_large_is_switched_off_until_the_pool_grows() -> None:
    at = world(quota=16)
    at.submit("ns/a", 4, 3)
    at.settle()
    assert reason(at, "ns/a", c.ADMITTED) == "TooLarge"
    assert (at.tickets["ns/a"].active, at.tickets["ns/a"].quota) == (False, False)
    at.submit("ns/b", 2, 4)
    at.settle()
    assert runs(at, "ns/b")
    at.nodes = {**NODES, "n3": 4, "n4": 4}
    at.finish("ns/b")
    at.settle()
    assert runs(at, "ns/a")
    assert at.jobs["ns/a"].record.refusal is None


def test_quota_is_not_kept_while_something_is_wrong_with_the_queue() -> None:
    at = world(quota=4)
    at.problem = PROBLEMS["problem"]
    at.submit("ns/a", 2, 2)
    at.settle()
    assert reason(at, "ns/a", c.ADMITTED) == "FlavorMismatch"
    at.now += external_queue.SLOW
    at.settle()
    ticket = at.tickets["ns/a"]
    assert (ticket.active, ticket.ours, ticket.quota) == (False, True, False)
    at.problem = None
    at.settle()
    assert runs(at, "ns/a")


def test_quota_that_finds_no_nodes_goes_back_and_others_have_it() -> None:
    """Quota of eight over nodes of which one is taken: the gang of eight gives way to one that fits."""
    at = world(quota=8, nodes={"n1": 4, "n2": 4})
    at.submit("ns/wide", 2, 4)
    at.settle()
    at.submit("ns/small", 1, 4)
    at.evict("ns/wide")
    at.nodes = {"n1": 4, "n2": 0}  # a machine is gone: no gang of two fours fits on its GPUs now
    for key in ("ns/wide", "ns/small"):
        at.jobs[key].wish(gang_timeout=300.0)
    at.settle(200)
    assert runs(at, "ns/small")
    assert not runs(at, "ns/wide")


def test_a_child_of_another_queue_is_made_anew() -> None:
    at = world()
    at.submit("ns/a", 2, 2)
    at.settle()
    at.jobs["ns/a"].wish(queue="other")
    at.settle()
    assert runs(at, "ns/a")  # not while it runs
    at.evict("ns/a")
    at.settle()
    workload = at.jobs["ns/a"].observed.workload
    assert workload is not None
    assert workload.queue == "other"
    assert runs(at, "ns/a")


def test_a_gang_that_is_not_bound_in_time_gives_its_quota_back_for_its_back_off() -> None:
    at = world()
    at.submit("ns/a", 2, 2, gang_timeout=30.0)
    at.step("ns/a")
    at._cluster(at.jobs["ns/a"])
    at.step("ns/a")
    at.pool_pass()
    at.step("ns/a")
    at.step("ns/a")
    at._kueue()
    job = at.jobs["ns/a"]
    assert job.observed.workload is not None
    assert not job.observed.workload.suspended
    at.step("ns/a", seconds=40.0)
    assert job.record.admission is not None
    assert job.record.admission.withdrawn is not None
    for _ in range(3):  # it is out, its Job is suspended, its quota is gone
        at._kueue()
    assert (at.tickets["ns/a"].active, at.tickets["ns/a"].quota) == (False, False)
    at.settle()
    assert runs(at, "ns/a")
    assert job.record.attempt == 2


def test_only_when_contended_counts_those_who_wait_for_quota() -> None:
    at = world(quota=4)
    modifiers = (PolicySpec("onlyWhenContended", {}),)
    at.submit("ns/a", 2, 2, modifiers=modifiers)
    at.settle()
    at.scores("ns/a", 1, 2, 3, 4)
    at.settle()
    at.scores("ns/a", 3.5, 3, 2.5)
    at.settle()
    assert runs(at, "ns/a")
    assert [h.reason for h in at.told.held_back] == ["NobodyWaits"]
    at.submit("ns/b", 2, 2)
    at.settle()
    assert runs(at, "ns/b")
    assert at.jobs["ns/a"].record.decision is not None


PROBLEMS = {
    "stopped": Problem("QueueStopped", "LocalQueue q: held"),
    "problem": Problem("FlavorMismatch", "ResourceFlavor other: another label"),
    "mended": None,
}
EVENTS = st.sampled_from(
    [
        *("evict", "preempt", "off", "on", "stop", "run"),
        *("down", "up", "finish", "falls", "stopped", "problem", "mended"),
    ]
)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(EVENTS, st.sampled_from(["ns/a", "ns/b", "ns/c"]), st.integers(0, 3), st.integers(0, 4)),
        max_size=25,
    ),
    st.booleans(),
)
# Switched off and on again before its queue had looked: nothing was put out, and it runs on.
@example([("evict", "ns/a", 2, 4), ("down", "ns/a", 0, 0), ("off", "ns/a", 0, 1)], False)
# Put out by its queue before the Job that was to pin its best was made: its folder is claimed all the same.
@example(
    [("evict", "ns/c", 1, 1), ("evict", "ns/a", 2, 4), ("falls", "ns/b", 0, 1), ("evict", "ns/b", 0, 0)],
    False,
)
def test_whatever_happens_and_whenever_the_operator_dies_the_wish_is_carried_out_in_the_end(
    story: list[tuple[str, str, int, int]],
    close: bool,
) -> None:
    """Events and passes in any order, each pass cut off after some of its acts.

    `ExternalQueueWorld` checks each act.
    """
    at = world(close=close)
    for key in ("ns/a", "ns/b", "ns/c"):
        at.submit(key, 2, 2)
    for event, key, acts, passes in story:
        job = at.jobs[key]
        if event in ("evict", "off", "on") and key in at.tickets:
            if event == "evict":
                at.evict(key)
            elif not at.tickets[key].ours:
                at.switch(key, event == "on")
        elif event == "preempt" and job.record.admission is not None and job.record.preempting is None:
            preempt(at, key)
        elif event in ("stop", "run"):
            state = RunState.STOPPED if event == "stop" else RunState.RUN
            job.wish(run_state=state)
        elif event in ("down", "up"):
            at.down = event == "down"
        elif event == "finish" and runs(at, key) and job.observed.pods:
            at.finish(key)
        elif event == "falls" and runs(at, key):
            at.scores(key, 4, 3, 2, 1)
        elif event in PROBLEMS:
            at.problem = PROBLEMS[event]
        for _ in range(passes):
            for other in at.jobs:
                at.step(other, acts=acts)
                at._cluster(at.jobs[other])
            at.pool_pass()
    at.down, at.problem = False, None
    for key, job in at.jobs.items():
        if key in at.tickets and not at.tickets[key].active and not at.tickets[key].ours:
            at.switch(key, True)
        job.wish(run_state=RunState.RUN)
        at.now += job.desired.preempt_grace
    at.settle(200)
    for key, job in at.jobs.items():
        numbers = at.answered.get(key, [])
        assert numbers == sorted(set(numbers)), "a number was used twice"
        decision = job.record.decision
        over = job.record.finished is not None or (decision is not None and decision.by != "User")
        if over:
            assert not any(not p.terminal for p in job.observed.pods)
    busy = [key for key, job in at.jobs.items() if runs(at, key)]
    waiting = [
        key
        for key, job in at.jobs.items()
        if job.record.finished is None and job.record.decision is None and key not in busy
    ]
    assert len(busy) == 2 or not waiting, (busy, waiting)
    for key in waiting:
        assert at.tickets[key].answer is Answer.PENDING, f"{key} is never looked at again"


def test_codes_of_evictions_and_the_words_for_them() -> None:
    assert external_queue.shown("Preempted") == "PreemptedByQueue"
    assert external_queue.shown("Deactivated") == external_queue.shown("DeactivatedDueToMaximumExecutionTime")
    assert {external_queue.shown(code) for code in EVICTIONS} <= external_queue.LEFT
