"""Ends that nobody saw, workloads that somebody starts again, members that ended early, and GPUs that are not
free before no pod may come any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api import convert
from controller.extender import views
from controller.policy.job import access_requests, endings, incomplete, preemption
from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.plan import plan_job
from controller.policy.job.record import AdmissionRecord, JobRecord, Operation
from controller.policy.job.types import (
    AccessView,
    CreateWorkload,
    Hindrance,
    Observed,
    OrphanedPod,
    Plan,
    PodView,
    ResumeFrom,
    ResumeRequest,
    RunState,
    StartAccess,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.job.view import job_view
from controller.policy.node.ledger import Bound, GpuLedger
from controller.policy.pool import gpu_accounting
from controller.policy.types import JobState, JobView, Mode, NodeView, PolicySpec, PoolSnapshot
from tests.support.policy_world import PolicyWorld

RISE = (0.1, 0.3, 0.5)
CAME_TO = {"start": "ClaimingLocation", "run": "Running"}  # reasons of Running


def running(*, members: int = 2, nodes: int = 2, **spec) -> PolicyWorld:
    world = PolicyWorld({f"n{i}": 2 for i in range(nodes)})
    world.submit("ns/a", replicas=members, gpus=2, **spec)
    world.settle()
    return world


def told(world: PolicyWorld, type_: str, key: str = "ns/a"):
    return world.jobs[key].record.condition(type_)


def until(world: PolicyWorld, true: Callable[[], bool], passes: int = 60) -> None:
    """Passes over all jobs and the pool, until it is so."""
    for _ in range(passes):
        if true():
            return
        world.go_on(1.0)
    raise AssertionError("it did not come to that")


def lose(world: PolicyWorld, key: str = "ns/a", *, pods: tuple[PodView, ...] = ()) -> None:
    job = world.jobs[key]
    job.observed = replace(job.observed, workload=None, pods=pods)


# -- row 14: the end of a child is always seen -----------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.SHADOW])
@pytest.mark.parametrize("ref", ["", "batch/v1 Job a"])
def test_a_run_whose_workload_went_unseen_is_told_and_not_trained_again(mode: Mode, ref: str) -> None:
    # row 14
    world = running()
    world.scores("ns/a", *RISE)
    world.settle()
    job = world.jobs["ns/a"]
    job.wish(mode=mode, workload_ref=ref)
    lose(world)
    for _ in range(5):
        planned = world.step("ns/a")
        assert not [a for a in planned.actions if isinstance(a, CreateWorkload | StartWorkload)]
        world.pool_pass()
    failed = told(world, c.FAILED)
    assert failed is not None
    assert (failed.status, failed.reason) == (True, c.END_UNKNOWN)
    assert job.record.finished == "Failed"
    assert job.record.admission is None
    assert job.started == [1]


def test_a_run_that_ended_while_the_operator_was_away_and_was_cleaned_up_is_not_trained_again() -> None:
    # row 14
    world = PolicyWorld({"n0": 2, "n1": 2})
    job = world.submit("ns/a", replicas=2, gpus=2)
    for _ in range(20):
        planned = world.step("ns/a")
        world.pool_pass()
        if any(isinstance(a, StartWorkload) for a in planned.actions):
            break
    assert job.started == [1]
    lose(world)  # it trained to its end, and went by its time to live, before the next pass
    world.settle()
    assert job.started == [1]
    assert told(world, c.FAILED).reason == c.END_UNKNOWN


@pytest.mark.parametrize("by", ["rule", "user"])
@pytest.mark.parametrize("succeeded", [False, True])
def test_a_run_that_went_unseen_before_its_stop_was_carried_out_is_not_told_as_stopped(
    by: str, succeeded: bool
) -> None:
    """While its stop waits for the copy, the run trains to its end and its Job is cleaned up."""
    # row 14
    world = running()
    job = world.jobs["ns/a"]
    for score in (*RISE, 0.4, 0.3):
        world.scores("ns/a", score)
        world.settle()
    world.slow = frozenset({Operation.RETAIN})
    if by == "user":
        job.wish(run_state=RunState.STOPPED)
    else:
        world.scores("ns/a", 0.2)
    for _ in range(8):
        world.step("ns/a")
        world.pool_pass()
    assert job.record.decision is not None
    assert not job.observed.workload.suspended
    gone = tuple(replace(p, terminal=True, succeeded=True, admission=1) for p in job.observed.pods)
    lose(world, pods=gone if succeeded else ())
    world.settle()
    told_as = (c.COMPLETED, "Complete") if succeeded else (c.FAILED, c.END_UNKNOWN)
    assert told(world, told_as[0]).reason == told_as[1]
    assert told(world, c.TERMINATION).reason == "FinishedFirst"
    assert job.record.finished == ("Complete" if succeeded else "Failed")
    assert job.record.decision is None
    assert job.record.admission is None
    assert job.observed.workload is None
    assert 30 in job.pins, "its best checkpoint stays pinned"
    assert job.started == [1]


def test_its_user_has_it_go_on_by_a_resume() -> None:
    # row 14
    world = running()
    job = world.jobs["ns/a"]
    lose(world)
    world.settle()
    assert job.record.finished == "Failed"
    job.wish(resume=ResumeRequest("again", ResumeFrom.LATEST), generation=2)
    world.settle()
    assert job.record.finished is None
    assert told(world, c.FAILED) is None
    assert job.started == [1, 2]
    assert told(world, c.RUNNING).status


@pytest.mark.parametrize("come_to", ["queue", "start", "run"])
def test_a_resumed_run_that_is_stopped_before_it_ran_still_goes_on_from_that_checkpoint(come_to: str) -> None:
    """Once it ran from there, it goes on from the trainer's latest one."""
    world = running()
    job = world.jobs["ns/a"]
    for score in (0.5, 0.4):
        world.scores("ns/a", score)
        world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    world.submit("ns/b", replicas=2, gpus=2)
    world.settle()
    back = job.record.evals[-2].step
    world.slow = frozenset({Operation.CLAIM}) if come_to == "start" else frozenset()
    resume = ResumeRequest("again", ResumeFrom.STEP, back)
    job.wish(run_state=RunState.RUN, resume=resume, generation=2)
    until(world, lambda: job.record.resume_id == resume.id)
    if come_to != "queue":
        world.finish("ns/b")
        until(world, lambda: told(world, c.RUNNING).reason == CAME_TO[come_to])
    job.wish(run_state=RunState.STOPPED)
    world.go_on(1.0)
    world.slow = frozenset()
    world.settle()
    job.wish(run_state=RunState.RUN)
    world.settle()
    if come_to == "queue":
        world.finish("ns/b")
        world.settle()
    assert told(world, c.RUNNING).status
    assert job.record.run.resume_path == ("" if come_to == "run" else f"/restored/{back}")


def test_a_resume_from_the_best_takes_the_pin_that_no_stop_has_copied() -> None:
    """Its workload went while the copy was made; an earlier stop had retained a worse one."""
    world = running()
    job = world.jobs["ns/a"]
    world.scores("ns/a", 0.5)
    world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    retained = job.record.retained[-1].best_step
    job.wish(run_state=RunState.RUN)
    world.settle()
    world.scores("ns/a", 0.7)
    world.settle()
    pinned = job.record.secured
    assert pinned.best_step > retained
    lose(world)
    world.settle()
    job.wish(resume=ResumeRequest("again", ResumeFrom.BEST), generation=2)
    world.settle()
    assert job.record.run.resume_path == f"/restored/{pinned.step}"


def test_pods_that_all_succeeded_tell_the_end_of_a_workload_that_is_gone() -> None:
    world = running()
    pods = tuple(
        replace(p, terminal=True, ready=False, succeeded=True) for p in world.jobs["ns/a"].observed.pods
    )
    lose(world, pods=pods)
    world.settle()
    assert world.jobs["ns/a"].record.finished == "Complete"
    assert told(world, c.COMPLETED).status


def test_a_workload_that_was_never_started_is_made_again() -> None:
    world = PolicyWorld({"n0": 2})
    world.submit("ns/b", replicas=1, gpus=2)
    world.settle()
    job = world.submit("ns/a", replicas=1, gpus=2)
    world.settle()
    assert job.record.admission is None
    lose(world)
    assert any(isinstance(a, CreateWorkload) for a in world.step("ns/a").actions)
    assert job.record.finished is None


def test_a_workload_that_removes_itself_is_named() -> None:
    world = running()
    job = world.jobs["ns/a"]
    job.wish(note="spec.workload.template.x is left out")
    assert "is left out" in world_accepted(world)
    job.observed = replace(job.observed, workload=replace(job.observed.workload, expires=True))
    job.wish(workload_ref="batch/v1 Job a", note="")
    assert "batch/v1 Job a has spec.ttlSecondsAfterFinished" in world_accepted(world)


def world_accepted(world: PolicyWorld) -> str:
    world.step("ns/a")
    accepted = told(world, c.ACCEPTED)
    assert accepted.status
    return accepted.message


# -- row 15: GPUs ----------------------------------------------------------------------------------------


def stopped_by_user(world: PolicyWorld) -> None:
    job = world.jobs["ns/a"]
    job.wish(run_state=RunState.STOPPED)


def test_a_stop_releases_nothing_while_a_pod_may_come_in_the_place_of_another() -> None:
    # row 15
    world = running()
    stopped_by_user(world)
    job = world.jobs["ns/a"]
    for _ in range(100):
        world.step("ns/a")
        if job.observed.workload.suspended:
            break
    assert job.observed.workload.suspended
    job.observed = replace(job.observed, pods=())  # all gone, but the controller has not said so
    for _ in range(3):
        assert world.step("ns/a").queue is JobState.STOPPING
    assert job.record.admission is not None
    assert told(world, c.RELEASED).reason == "WaitingForController"
    stuck = [found for found in health(job.record, world.now) if found.mark is Mark.STUCK]
    assert [found.warning for found in stuck] == [False], "each stop passes through it: nobody is called"
    later = health(job.record, world.now + 600.0)
    assert [found.warning for found in later if found.mark is Mark.STUCK] == [True]
    job.observed = replace(job.observed, workload=replace(job.observed.workload, settled=True))
    assert world.step("ns/a").queue is None
    assert told(world, c.RELEASED).status


def test_an_end_releases_nothing_while_its_workload_still_has_active_pods() -> None:
    # row 15
    world = running()
    job = world.jobs["ns/a"]
    job.observed = replace(
        job.observed, pods=(), workload=WorkloadView("w", False, finished="Failed", active=1)
    )
    assert world.step("ns/a").queue is JobState.STOPPING
    assert job.record.admission is not None
    job.observed = replace(job.observed, workload=WorkloadView("w", False, finished="Failed"))
    assert world.step("ns/a").queue is None


def test_gpus_of_a_gang_on_its_way_out_are_free_when_no_pod_may_return() -> None:
    # row 15
    view = JobView(
        "ns/a", 0.0, 0, 2, 2, state=JobState.STOPPING, bound=(("n0", 2),), nodes=("n0", "n1"), may_return=True
    )
    nodes = (NodeView("n0", 2), NodeView("n1", 2))
    shot = PoolSnapshot("p", PolicySpec("fifo"), nodes, (view,))
    assert gpu_accounting.free_gpus(shot) == {"n0": 0, "n1": 0}
    shot = replace(shot, jobs=(replace(view, may_return=False),))
    assert gpu_accounting.free_gpus(shot) == {"n0": 0, "n1": 2}


@pytest.mark.parametrize("ended", ["stop", "end"])
def test_a_run_that_is_over_and_that_somebody_starts_again_is_suspended_again(ended: str) -> None:
    # row 15
    world = running()
    job = world.jobs["ns/a"]
    if ended == "stop":
        stopped_by_user(world)
    else:
        job.wish(workload_ref="batch/v1 Job a")
        world.finish("ns/a")
    world.settle()
    assert told(world, c.RELEASED).status
    pod = PodView("pod-0", "n0", 2, terminal=False, ready=True)
    job.observed = replace(job.observed, workload=WorkloadView("w2", suspended=False), pods=(pod,))
    planned = world.step("ns/a")
    assert [type(a) for a in planned.actions] == [SuspendWorkload]
    assert told(world, c.RELEASED).reason == endings.STARTED_AGAIN
    view = view_of(world, planned)
    assert view is not None
    assert (view.state, view.bound) == (JobState.STOPPING, (("n0", 2),))
    world.settle()
    assert job.observed.workload.suspended
    assert told(world, c.RELEASED).status
    assert job.started == [1]


def test_a_stopped_run_that_somebody_starts_while_its_pods_are_going_is_suspended_again() -> None:
    # row 15
    world = running()
    stopped_by_user(world)
    job = world.jobs["ns/a"]
    pods = job.observed.pods
    for _ in range(100):
        world.step("ns/a")
        job.observed = replace(job.observed, pods=pods)  # they take long to go
        if job.record.decision is not None and job.record.decision.suspended_at is not None:
            break
    assert job.record.decision.pods_gone_at is None
    job.observed = replace(job.observed, workload=replace(job.observed.workload, suspended=False))
    planned = world.step("ns/a")
    assert [type(a) for a in planned.actions] == [SuspendWorkload]
    assert told(world, c.RELEASED).reason == endings.STARTED_AGAIN
    job.observed = replace(job.observed, pods=())
    world.settle()
    assert job.observed.workload.suspended
    assert told(world, c.RELEASED).status


def test_what_its_user_stopped_and_somebody_starts_is_suspended_in_every_mode_and_then_goes_on() -> None:
    # row 15, `driver.drawn(9201264)`: its user wants it to go on, and its pool caps modes at Shadow by now
    world = running()
    stopped_by_user(world)
    job = world.jobs["ns/a"]
    pods = job.observed.pods
    for _ in range(100):
        world.step("ns/a")
        job.observed = replace(job.observed, pods=pods)
        if job.record.decision is not None and job.record.decision.suspended_at is not None:
            break
    job.wish(mode=Mode.SHADOW, run_state=RunState.RUN)
    job.observed = replace(job.observed, workload=replace(job.observed.workload, suspended=False))
    planned = world.step("ns/a")
    assert [type(a) for a in planned.actions] == [SuspendWorkload]
    assert "it is suspended again" in told(world, c.RELEASED).message
    job.observed = replace(job.observed, pods=())
    world.settle()
    assert job.record.decision is None, "the stop is over"
    assert job.started == [1, 2], "the pool admitted it once more"


def test_in_shadow_a_stopped_run_that_somebody_starts_again_is_only_counted_and_told() -> None:
    world = running()
    world.scores("ns/a", 0.1, 0.3, 0.5, 0.45, 0.4, 0.35)
    world.settle()
    job = world.jobs["ns/a"]
    assert told(world, c.RELEASED).status
    job.wish(mode=Mode.SHADOW)
    pod = PodView("pod-0", "n0", 2, terminal=False, ready=True)
    job.observed = replace(job.observed, workload=WorkloadView("w", suspended=False), pods=(pod,))
    planned = world.step("ns/a")
    assert not planned.actions
    assert planned.queue is JobState.STOPPING


def view_of(world: PolicyWorld, planned: Plan):
    job = world.jobs["ns/a"]
    return job_view(job.desired, job.observed, job.record, planned, submitted=0.0, priority=0, now=world.now)


def test_a_gang_with_a_member_that_ended_well_is_admitted_rarely_and_told_what_helps() -> None:
    """Preempted with one member done: only the other one starts again, so the gang is never whole."""
    # row 15
    world = running()
    job = world.jobs["ns/a"]
    record = job.record
    job.observed = replace(
        job.observed,
        workload=WorkloadView("w", suspended=True, settled=True, completed=(0,)),
        pods=(),
    )
    job.record = replace(record, preempting=preemption.Preempting("Displaced", world.now))
    start, begun = world.now, len(job.started)
    while world.now < start + 6 * 3600.0:
        world.step("ns/a", seconds=0.0)
        workload = job.observed.workload
        if workload is not None and not workload.suspended and not job.observed.pods:
            pod = PodView("p1", "n1", 2, terminal=False, ready=True, admission=job.record.admission.number)
            job.observed = replace(job.observed, pods=(pod,), workload=replace(workload, completed=(0,)))
        elif workload is not None and workload.suspended:
            # The cluster stub forgets completed indexes at each suspension; a Job does not.
            job.observed = replace(
                job.observed,
                pods=(),
                workload=replace(workload, settled=True, completed=(0,), suspended=True),
            )
        world.pool_pass()
        world.now += 10.0
    assert 1 <= len(job.started) - begun <= 6
    assert told(world, c.RUNNING).reason == incomplete.MEMBERS_ENDED
    assert "Delete its Job" in told(world, c.RUNNING).message
    # Made anew by its user: all members start, and at once.
    job.observed = replace(job.observed, workload=WorkloadView("w3", suspended=True, settled=True))
    world.settle()
    assert told(world, c.RUNNING).status


states = st.sampled_from(["waits", "bound", "failed", "ended", "ended and removed"])


@settings(max_examples=300, deadline=None)
@given(members=st.lists(states, min_size=1, max_size=5), shared=st.booleans())
def test_operator_and_extender_agree_whose_nodes_are_kept(members: list[str], shared: bool) -> None:
    """What the operator charges to an admitted gang is what the extender keeps for it or sees bound."""
    # row 15
    nodes = tuple("n0" if shared else f"n{i}" for i in range(len(members)))
    desired = PolicyWorld({}).submit("ns/a", replicas=len(members), gpus=1).desired
    pods = tuple(
        PodView(
            f"p{i}",
            nodes[i] if state != "waits" else None,
            1,
            terminal=state in ("failed", "ended"),
            succeeded=state == "ended",
            admission=3,
        )
        for i, state in enumerate(members)
        if state != "ended and removed"
    )
    ended = tuple(i for i, state in enumerate(members) if state.startswith("ended"))
    observed = Observed(workload=WorkloadView("w", suspended=False, completed=ended), pods=pods)
    record = JobRecord(attempt=3, admission=AdmissionRecord(3, nodes, 0.0, running_since=1.0))
    planned = plan_job(desired, observed, record, 10.0)
    view = job_view(desired, observed, planned.record, planned, submitted=0.0, priority=0, now=10.0)
    assert view is not None
    room = tuple(NodeView(node, 8) for node in dict.fromkeys(nodes))
    shot = PoolSnapshot("p", PolicySpec("fifo"), room, (view,))
    taken = +_sum(gpu_accounting.gpu_accounts(shot).account(view))
    ledger = GpuLedger()
    for node in nodes:
        ledger.put_node(node, 8)
    kept = planned.record.admission
    assert kept is not None
    obj = {
        "metadata": {"namespace": "ns", "name": "a"},
        "spec": {"gang": {"gpusPerReplica": 1}},
        "status": convert.status(planned.record, desired, 10.0),
    }
    ledger.put_job("ns/a", 1, views.job(obj, 300.0)[1])
    for pod in pods:
        if not pod.terminal and pod.node is not None:
            ledger.put_bound(pod.name, Bound("ns/a", 3, pod.node, 1))
    theirs: Counter[str] = Counter(ledger.keeping(10.0))
    theirs.update(pod.node for pod in pods if not pod.terminal and pod.node is not None)
    assert taken == +theirs
    assert sum(taken.values()) == len(members) - len(ended)


def _sum(charged: list[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for node, gpus in charged:
        total[node] += gpus
    return total


def test_a_store_that_is_away_for_days_is_still_asked() -> None:
    """Tries are counted without an end; the delay must not grow out of what a number can be."""
    assert [access_requests.retry_delay(tries) for tries in (1, 2, 3, 5, 2000)] == [
        5.0,
        10.0,
        20.0,
        60.0,
        60.0,
    ]


# -- what is still asked for after the end ----------------------------------------------------------------


@pytest.mark.parametrize("end", ["by itself", "by its user's stop"])
@pytest.mark.parametrize("reason", ["CheckpointIncomplete", "CheckpointMissing"])
def test_after_the_end_a_best_without_a_whole_checkpoint_gives_way_after_two_tries(
    monkeypatch: pytest.MonkeyPatch, end: str, reason: str
) -> None:
    """Nothing can come any more, but for a save just through or a listing that lags: these have one try."""
    world = running()
    job, access, asked = world.jobs["ns/a"], PolicyWorld._access, []

    def answers(world: PolicyWorld, job, ask: StartAccess) -> AccessView:
        if ask.operation is not Operation.SECURE or ask.step != 30:
            return access(world, job, ask)
        asked.append(world.now)
        return AccessView(ask.request_id, ask.operation, True, False, reason, "torn")

    monkeypatch.setattr(PolicyWorld, "_access", answers)
    world.scores("ns/a", *RISE)
    world.step("ns/a", acts=0)
    if end == "by itself":
        world.finish("ns/a")
    else:
        job.wish(run_state=RunState.STOPPED)
    ended = None
    for _ in range(600):
        world.step("ns/a")
        world._cluster(job)
        over = job.observed.workload.suspended or job.observed.workload.finished is not None
        if ended is None and over and not any(not p.terminal for p in job.observed.pods):
            ended = world.now
    assert ended is not None
    assert 1 <= len([at for at in asked if at > ended]) <= 2
    assert job.record.secured.step == 20
    assert job.record.secured.at - ended <= 90.0
    assert [best.step for best in job.record.lost_bests] == [30]


def test_a_users_stop_does_not_wait_for_a_checkpoint_that_the_trainer_has_not_saved() -> None:
    """It was asked for while the metrics could not be read; now they say that its save is still to come."""
    world = running()
    job = world.jobs["ns/a"]
    world.scores("ns/a", 0.3)
    world.settle()
    world.scores("ns/a", 0.5)
    job.checkpoints.discard(20)
    world.step("ns/a")
    job.wish(run_state=RunState.STOPPED)
    for _ in range(3):
        world.step("ns/a")
    assert (job.record.access.operation, job.record.access.tries) == (Operation.SECURE, 1)
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=10))
    for _ in range(60):
        world.step("ns/a", seconds=5.0)
        world._cluster(job)
    assert job.observed.workload.suspended
    said = job.record.condition(c.RETAINED)
    assert (said.status, said.reason) == (True, "Retained")
    assert [kept.step for kept in job.record.retained] == [10]


def test_a_users_stop_does_not_go_through_all_evals_whose_checkpoints_are_gone() -> None:
    """Each of them is asked for three times, and there may be 32."""
    world = running()
    job = world.jobs["ns/a"]
    world.scores("ns/a", *(0.3 + 0.01 * i for i in range(20)))
    world.scores("ns/a", 0.2)
    job.checkpoints = {10, 210}
    job.wish(run_state=RunState.STOPPED)
    for _ in range(18):
        world.step("ns/a", seconds=5.0)
        world._cluster(job)
    assert job.observed.workload.suspended
    said = job.record.condition(c.RETAINED)
    assert (said.status, said.reason) == (False, "BestCheckpointLost")
    assert said.message.startswith("suspended without a copy, which is still tried: the checkpoint of")
    for _ in range(400):
        world.step("ns/a", seconds=5.0)
        world._cluster(job)
    assert [kept.step for kept in job.record.retained] == [10]


def test_a_best_that_was_lost_before_the_end_is_looked_for_once_more_after_it() -> None:
    world = running()
    job = world.jobs["ns/a"]
    world.scores("ns/a", *RISE)
    job.checkpoints.discard(30)
    for score in (0.4, 0.4, 0.4):
        for _ in range(4):
            world.step("ns/a", seconds=10.0)
        world.scores("ns/a", score)
    assert [best.step for best in job.record.lost_bests] == [30]
    job.checkpoints.add(30)  # the trainer's last save was slow
    world.finish("ns/a")
    for _ in range(3):
        world.step("ns/a")
    assert job.record.secured.step == 30


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_looking_again_for_a_lost_best_keeps_no_other_from_being_given_up(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """One that is not whole takes six tries, which may take longer than until the lost one's next turn."""
    world = running()
    job, access = world.jobs["ns/a"], PolicyWorld._access

    def answers(world: PolicyWorld, job, ask: StartAccess) -> AccessView:
        if ask.operation is not Operation.SECURE or ask.step != 40:
            return access(world, job, ask)
        return AccessView(ask.request_id, ask.operation, True, False, "CheckpointIncomplete", "torn")

    monkeypatch.setattr(PolicyWorld, "_access", answers)
    world.scores("ns/a", *RISE, 0.45, 0.44, 0.4)
    job.checkpoints = {40, 60}
    for _ in range(int(3600 / seconds)):
        world.step("ns/a", seconds=seconds)
    assert [best.step for best in job.record.lost_bests] == [30, 40, 50]
    assert job.record.secured is not None
    assert job.record.secured.step == 60


@pytest.mark.parametrize("reason", ["StoreUnreachable", "OutOfSpace", "AccessFailed"])
def test_a_store_that_comes_back_hours_after_the_end_gets_the_best_one(reason: str) -> None:
    world = running()
    job = world.jobs["ns/a"]
    world.slow, world.failing = frozenset({Operation.SECURE}), reason
    world.scores("ns/a", *RISE)
    world.finish("ns/a")
    for _ in range(200):
        world.step("ns/a", seconds=60.0)
    assert job.record.secured is None
    assert len(world.asked) < 40, "rarely, since each try is a Job"
    world.slow = frozenset()
    for _ in range(20):
        world.step("ns/a", seconds=60.0)
    assert job.record.secured.step == 30


def test_of_many_evals_without_a_checkpoint_the_best_that_has_one_is_found() -> None:
    """More evals are above it than there are tries that anybody would count."""
    world = running()
    job = world.jobs["ns/a"]
    world.scores("ns/a", *(0.9 - 0.01 * i for i in range(20)))
    world.scores("ns/a", 0.1)
    job.checkpoints = {170, 210}
    world.finish("ns/a")
    for _ in range(600):
        world.step("ns/a", seconds=5.0)
    assert job.record.secured is not None
    assert job.record.secured.step == 170
    assert [best.step for best in job.record.lost_bests] == [10 * i for i in range(1, 17)]


# -- row 19: no room on the trainer's node for the access pod ---------------------------------------------


def test_an_access_pod_that_finds_no_node_is_told_in_the_condition_at_once() -> None:
    # row 19
    world = running()
    world.scores("ns/a", *RISE)
    job = world.jobs["ns/a"]
    planned = world.step("ns/a", acts=0)
    (asked,) = [a for a in planned.actions if isinstance(a, StartAccess)]
    why = Hindrance.UNSCHEDULABLE
    waits = AccessView(asked.request_id, asked.operation, False, message="node n0: no cpu", hindered=why)
    job.observed = replace(job.observed, access=(waits,))
    told_first = world.step("ns/a", acts=0)
    assert told(world, c.SECURED).reason == "AccessPodUnschedulable"
    assert told(world, c.SECURED).message == "node n0: no cpu"
    assert [e.reason for e in told_first.events] == ["AccessPodUnschedulable"]
    again = world.step("ns/a", acts=0)
    assert again.events == ()


# -- pods that outlive their workload: nothing is started beside them -------------------------------------


def orphaned(*names: str, ending: bool = False) -> tuple[OrphanedPod, ...]:
    return tuple(OrphanedPod(name, ending) for name in names)


def test_a_run_whose_pods_were_orphaned_is_not_resumed_beside_them() -> None:
    world = running()
    job = world.jobs["ns/a"]
    lose(world)
    job.observed = replace(job.observed, orphans=orphaned("a-0-old", "a-1-old"))
    world.settle()
    job.wish(resume=ResumeRequest("again", ResumeFrom.LATEST), generation=2)
    world.settle()
    assert job.started == [1]
    assert job.record.finished == "Failed"
    failed, worst = health(job.record, world.now)[:2]
    assert failed.mark is Mark.FAILED, "as its state is; what keeps it from going on is told beside it"
    assert (worst.mark, worst.reason, worst.warning) == (Mark.REFUSED, "OrphanedPods", True)
    cure = worst.cure().filled("a", "ns", "pool", "", worst.message)
    assert cure.command == "kubectl delete pods -n ns a-0-old a-1-old"
    job.observed = replace(job.observed, orphans=())
    world.settle()
    assert job.started == [1, 2], "what was asked for goes on by itself"
    assert told(world, c.RUNNING).status


@pytest.mark.parametrize("ending", [False, True])
def test_a_job_that_waits_is_not_started_beside_orphaned_pods(ending: bool) -> None:
    """Of an RLHFJob of the same name, say. Those that go by themselves are no fault."""
    world = PolicyWorld({"n0": 2, "n1": 2})
    job = world.submit("ns/a", replicas=2, gpus=2)
    job.observed = replace(job.observed, orphans=orphaned("a-0-old", ending=ending))
    world.settle()
    assert job.started == []
    assert [one.warning for one in health(job.record, world.now)] == ([] if ending else [True])
    condition = told(world, c.ADMITTED if ending else c.ACCEPTED)
    assert (condition.status, condition.reason) == (False, "PodsTerminating" if ending else "OrphanedPods")
    assert "a-0-old" in condition.message
    job.observed = replace(job.observed, orphans=())
    world.settle()
    assert job.started == [1]


def test_pods_orphaned_after_the_admission_give_its_gpus_back() -> None:
    world = PolicyWorld({"n0": 2, "n1": 2})
    job = world.submit("ns/a", replicas=2, gpus=2)
    until(world, lambda: job.record.admission is not None)
    job.observed = replace(job.observed, orphans=orphaned("a-0-old"))
    until(world, lambda: job.record.admission is None)
    assert job.started == []
    assert told(world, c.ACCEPTED).reason == "OrphanedPods"


def test_orphaned_pods_take_nothing_from_a_run_that_runs() -> None:
    world = running()
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, orphans=orphaned("a-0-old"))
    world.settle()
    assert told(world, c.ACCEPTED).status
    assert told(world, c.RUNNING).status
