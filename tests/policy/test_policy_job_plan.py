"""A job's life under the brain: admission, securing, the stop, its faults, resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job.record import Operation, RunProgress
from controller.policy.job.types import (
    Observed,
    PodView,
    ResumeFrom,
    ResumeRequest,
    RunState,
    ScrapeOutcome,
    ScrapeView,
    SetFinalizer,
    StartAccess,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec
from tests.support.policy_world import PolicyWorld

RISE_AND_FALL = (0.1, 0.3, 0.5, 0.45, 0.4, 0.35)


def world_with(*keys: str, gpus: int = 4, **spec) -> PolicyWorld:
    world = PolicyWorld({"n1": 2, "n2": 2})
    for key in keys:
        world.submit(key, replicas=gpus // 2, gpus=2, **spec)
    world.settle()
    return world


def condition(world: PolicyWorld, key: str, type_: str):
    return world.jobs[key].record.condition(type_)


def test_a_declining_run_is_stopped_its_best_kept_and_its_gpus_handed_over() -> None:
    world = world_with("ns/a", "ns/b")
    a, b = world.jobs["ns/a"], world.jobs["ns/b"]
    assert (a.started, b.started) == ([1], [])
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        world.settle()
    assert a.record.best is not None
    assert (a.record.best.step, a.record.best.score) == (30, 0.5)
    assert a.record.decision is not None
    assert a.record.decision.proposal.step == 60
    assert a.kept == {30}
    assert a.record.retained[-1].path == "/kept/30"
    assert a.observed.workload is not None
    assert a.observed.workload.suspended
    assert a.record.decision.handed_to == "ns/b"
    assert b.started == [1]
    order = a.record.decision
    assert order.at <= order.retained_at <= order.suspended_at <= order.pods_gone_at <= order.handed_at
    assert not a.observed.finalizer
    assert {x.type for x in a.record.conditions if x.status} >= {c.TERMINATION, c.RELEASED, c.RETAINED}


def test_a_healthy_run_is_left_alone() -> None:
    world = world_with("ns/a")
    for score in (0.1, 0.3, 0.2, 0.1, 0.4, 0.3, 0.2, 0.5):
        world.scores("ns/a", score)
        world.settle()
    assert world.jobs["ns/a"].record.decision is None
    world.finish("ns/a")
    world.settle()
    record = world.jobs["ns/a"].record
    assert record.finished == "Complete"
    assert c.summary(record.conditions) == "Completed"


def test_no_stop_without_a_checkpoint_in_safety() -> None:
    world = world_with("ns/a")
    for score in RISE_AND_FALL:
        world.scores("ns/a", score, checkpoints=False)
        for _ in range(5):
            world.step("ns/a", seconds=10)
            world.pool_pass()
    assert world.jobs["ns/a"].record.decision is None
    target = condition(world, "ns/a", c.TERMINATION)
    assert (target.status, target.reason) == (False, "NoVerifiableCheckpoint")
    # It keeps looking, for other evals' first: once the checkpoint is there, the next eval stops the run.
    world.jobs["ns/a"].checkpoints.add(30)
    for _ in range(40):
        world.step("ns/a", seconds=10)
    secured = world.jobs["ns/a"].record.secured
    assert secured is not None
    assert secured.step == 30
    world.scores("ns/a", 0.3, checkpoints=False)
    world.settle()
    assert world.jobs["ns/a"].kept == {30}


@pytest.mark.parametrize(("lag", "kept"), [(0, {40}), (10, {20})])
def test_the_nearest_earlier_checkpoint_serves_within_the_lag(lag: int, kept: set[int]) -> None:
    world = world_with("ns/a", max_step_lag=lag)
    job, events = world.jobs["ns/a"], []
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        job.checkpoints.discard(30)  # rotated away, or never complete
        for _ in range(4):
            events += world.step("ns/a", seconds=10).events
            world.pool_pass()
    for _ in range(8):
        events += world.step("ns/a", seconds=10).events
    world.settle()
    assert job.kept == kept
    lost = [e.message for e in events if e.reason == "BestCheckpointLost"]
    assert len(lost) == (0 if lag else 1)
    told = "step 30 (0.5), is lost: the best eval that may still have one is at step 40 (0.45)"
    assert all(told in message for message in lost)


def test_damage_to_the_secured_checkpoint_takes_the_stop_back() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    for score in RISE_AND_FALL[:-1]:
        world.scores("ns/a", score)
        world.settle()
    world.scores("ns/a", RISE_AND_FALL[-1])
    world.step("ns/a")
    world.pool_pass()
    assert job.record.decision is not None
    job.pins.clear()
    job.checkpoints.discard(30)
    for _ in range(3):
        world.step("ns/a")
    assert job.record.decision is None
    assert not job.observed.workload.suspended
    assert condition(world, "ns/a", c.TERMINATION).reason == "NoVerifiableCheckpoint"
    assert job.plan is not None
    assert job.plan.queue == "Admitted"


def test_shadow_records_and_touches_nothing() -> None:
    world = world_with("ns/a", mode=Mode.SHADOW)
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        planned = world.step("ns/a")
        world.pool_pass()
        assert planned.actions == ()
    record = world.jobs["ns/a"].record
    assert record.decision is not None
    assert (record.decision.mode, record.decision.proposal.step) == (Mode.SHADOW, 60)
    assert condition(world, "ns/a", c.TERMINATION).reason == "Shadow"


def test_off_judges_nothing() -> None:
    world = world_with("ns/a", mode=Mode.OFF)
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        world.settle()
    assert world.jobs["ns/a"].record.evals == ()


def test_user_stop_and_run_again_from_the_latest() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    world.scores("ns/a", 0.1, 0.3)
    world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert job.observed.workload.suspended
    assert job.kept == {20}
    assert c.summary(job.record.conditions) == "Stopped"
    job.wish(run_state=RunState.RUN)
    world.settle()
    assert job.started == [1, 2]
    assert len(job.record.evals) == 2


def test_resume_from_best_restores_writes_the_run_file_then_starts() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        world.settle()
    job.wish(resume=ResumeRequest("again", ResumeFrom.BEST))
    job.observed = replace(job.observed, scrape=None)
    world.settle()
    assert job.started == [1, 2]
    assert job.record.run.resume_path == "/restored/30"
    assert job.record.run.attempt == 2
    assert [p.step for p in job.record.evals] == [10, 20, 30]
    assert job.record.resume_id == "again"
    # Falling again stops it again; the same request is not carried out twice.
    world.scrape(
        "ns/a",
        resumed_step=30,
        points=tuple(EvalPoint(30 + 10 * i, 0.5 - i / 10, Attempt(2, "9")) for i in range(1, 4)),
    )
    world.settle()
    assert job.record.decision is not None
    assert job.started == [1, 2]


@pytest.mark.parametrize(
    ("first", "at", "worked", "pace"),
    [
        (0, 30, 700.0, 10.0),
        (20, 30, 700.0, 10.0),
        (40, 30, 700.0, None),
        (0, 60, 700.0, 10.0),
        (0, 30, -9.0, 10.0),  # the clock was set back
    ],
)
def test_a_run_put_back_has_come_as_far_as_its_checkpoint(
    first: int, at: int, worked: float, pace: float | None
) -> None:
    """The step of the attempt before stayed beside those of the newer one."""
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        world.settle()
    before = RunProgress(60, 200, worked, first, worked - 10.0 * (60 - first))
    job.record = replace(job.record, progress=before)
    source = ResumeRequest("again", ResumeFrom.STEP, at)
    job.checkpoints.add(at)
    job.wish(resume=source)
    job.observed = replace(job.observed, scrape=None)
    world.settle()
    assert job.record.resume_id == "again"
    after = job.record.progress
    assert after is not None
    assert (after.step, after.total_steps, after.worked) == (at, 200, worked)
    made = after.step - after.first_step
    assert ((after.worked - after.first_worked) / made if made else None) == pace


@pytest.mark.parametrize(
    ("scrape", "reason"),
    [
        (ScrapeView(ScrapeOutcome.UNREACHABLE, "connect refused"), "Unreachable"),
        (ScrapeView(ScrapeOutcome.TIMEOUT, "10 s"), "Timeout"),
        (ScrapeView(ScrapeOutcome.TOO_LARGE, "1 MiB"), "PageTooLarge"),
        (ScrapeView(ScrapeOutcome.NOT_PROMETHEUS, "html"), "NotPrometheus"),
        (ScrapeView(ScrapeOutcome.OK, metrics_seen=("acc", "len")), "MetricMissing"),
        (ScrapeView(ScrapeOutcome.OK, misplaced="a series gold is there, expected x"), "MetricMissing"),
    ],
)
def test_what_cannot_be_read_never_stops_a_run_and_is_said(scrape: ScrapeView, reason: str) -> None:
    world = world_with("ns/a")
    for score in RISE_AND_FALL[:5]:
        world.scores("ns/a", score)
        world.settle()
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, scrape=scrape)
    for _ in range(20):
        world.step("ns/a", seconds=60)
        world.pool_pass()
    assert job.record.decision is None
    assert condition(world, "ns/a", c.METRICS).reason == reason
    if reason == "MetricMissing" and not scrape.misplaced:
        assert "acc, len" in condition(world, "ns/a", c.METRICS).message


def test_deleted_in_the_middle_of_a_stop_the_retention_is_finished_first() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    for score in RISE_AND_FALL[:-1]:
        world.scores("ns/a", score)
        world.settle()
    world.scores("ns/a", RISE_AND_FALL[-1])
    world.step("ns/a")
    world.pool_pass()
    world.step("ns/a", acts=1)  # the finalizer is set, then the operator dies
    assert job.observed.finalizer
    job.wish(deleting=True)
    for _ in range(6):
        world.step("ns/a")
    assert job.kept == {30}
    assert not job.observed.finalizer
    assert not any(isinstance(a, SuspendWorkload) for a in job.plan.actions)


def test_an_invalid_rule_is_refused_by_name_and_a_running_job_goes_on() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    job.wish(rule=PolicySpec("kDeclines", {"k": 0}))
    world.step("ns/a")
    assert "kDeclines.k: 0" in condition(world, "ns/a", c.ACCEPTED).message
    assert not job.observed.workload.suspended
    refused = world.submit("ns/x", rule=PolicySpec("kDeclines", {"min_delta": -1.0}))
    planned = world.step("ns/x")
    assert planned.actions == ()
    assert planned.queue is None
    assert "min_delta" in refused.record.condition(c.ACCEPTED).message


def test_idle_passes_change_nothing() -> None:
    world = world_with("ns/a", "ns/b")
    world.scores("ns/a", 0.1, 0.2, 0.15)
    world.settle()
    world.writes = 0
    for _ in range(10):
        for key in world.jobs:
            assert world.step(key, seconds=15).actions == ()
        world.pool_pass()
    assert world.writes == 0


def test_at_most_one_irreversible_act_per_pass() -> None:
    world = world_with("ns/a")
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        for _ in range(8):
            planned = world.step("ns/a")
            acts = [a for a in planned.actions if isinstance(a, (SuspendWorkload, StartAccess))]
            assert len(acts) <= 1
            world._cluster(world.jobs["ns/a"])
            world.pool_pass()
    assert world.jobs["ns/a"].record.decision.pods_gone_at is not None


@settings(max_examples=150, deadline=None)
@example(deaths=[0, 0, 0, 0, 1, 1, 2, 1, 2, 0, 0], seed=0)
@given(deaths=st.lists(st.integers(0, 2), max_size=40), seed=st.integers(0, 3))
def test_killed_at_any_point_it_converges_to_the_same_end(deaths: list[int], seed: int) -> None:
    """The operator dies after 0, 1 or 2 actions of a pass, again and again; what remains is the record."""
    world = world_with("ns/a", "ns/b")
    job = world.jobs["ns/a"]
    scores = list(RISE_AND_FALL)
    for i, acts in enumerate(deaths):
        if scores and i % (seed + 1) == 0:
            world.scores("ns/a", scores.pop(0))
        world.step("ns/a", acts=acts, seconds=7)
        world._cluster(job)
        world.pool_pass()
    while scores:
        world.scores("ns/a", scores.pop(0))
        world.settle()
    world.settle()
    assert job.kept >= {30}
    assert job.record.retained[-1].best_step == 30
    assert job.record.decision.pods_gone_at is not None
    assert job.record.decision.handed_to == "ns/b"
    assert not job.observed.finalizer
    assert world.jobs["ns/b"].started == [1]


def test_stuck_pods_are_reported_by_name_and_hold_their_gpus() -> None:
    world = world_with("ns/a", "ns/b")
    job = world.jobs["ns/a"]
    job.slow_pods = True
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        for _ in range(8):
            world.step("ns/a")
            world._cluster(job)
            world.pool_pass()
    pods = tuple(replace(p, deleting_since=world.now) for p in job.observed.pods)
    job.observed = replace(job.observed, pods=pods)
    world.step("ns/a", seconds=500)
    released = condition(world, "ns/a", c.RELEASED)
    assert released.reason == "PodsStuck"
    assert "pod-0 (500 s)" in released.message
    assert world.jobs["ns/b"].started == []
    assert [h.target for h in world.reservations] == ["ns/b"]


def test_finalizer_only_while_retaining() -> None:
    world = world_with("ns/a")
    seen = []
    for score in RISE_AND_FALL:
        world.scores("ns/a", score)
        for _ in range(8):
            planned = world.step("ns/a")
            seen += [a.present for a in planned.actions if isinstance(a, SetFinalizer)]
            world._cluster(world.jobs["ns/a"])
            world.pool_pass()
    assert seen == [True, False]


def test_secure_requests_carry_what_may_be_let_go() -> None:
    world = world_with("ns/a")
    releases = []
    for score in (0.1, 0.2, 0.3):
        world.scores("ns/a", score)
        for _ in range(4):
            planned = world.step("ns/a")
            releases += [a.release for a in planned.actions if isinstance(a, StartAccess)]
    assert releases == [(), (), ("/pins/10",)]
    assert world.jobs["ns/a"].pins == {20, 30}, "the former one goes with the next request"
    assert all(a.operation is Operation.SECURE for a in world.jobs["ns/a"].observed.access)


def finished_world() -> PolicyWorld:
    world = world_with("ns/a")
    world.scores("ns/a", 0.1, 0.2)
    world.settle()
    world.finish("ns/a")
    world.settle()
    return world


def test_a_finished_run_is_not_trained_again_when_its_workload_is_cleaned_up() -> None:
    world = finished_world()
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, workload=None, pods=())
    world.settle()
    assert job.observed.workload is None
    assert job.started == [1]
    assert c.summary(job.record.conditions) == "Completed"


def stop_it(world: PolicyWorld, key: str = "ns/a") -> None:
    for score in RISE_AND_FALL:
        world.scores(key, score)
        world.settle()
    world.jobs[key].observed = replace(world.jobs[key].observed, scrape=None)


@pytest.mark.parametrize("source", [ResumeFrom.BEST, ResumeFrom.LATEST])
def test_a_resume_request_that_was_there_before_the_stop_does_not_undo_it(source: ResumeFrom) -> None:
    world = world_with("ns/a", resume=ResumeRequest("early", source))
    stop_it(world)
    job = world.jobs["ns/a"]
    assert job.started == [1]
    assert job.record.decision.pods_gone_at is not None
    assert condition(world, "ns/a", c.RESUMED).reason == "NothingToResume"


def test_resuming_a_finished_run_is_answered() -> None:
    world = finished_world()
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("r", ResumeFrom.BEST))
    world.settle()
    assert "only a stopped run" in condition(world, "ns/a", c.RESUMED).message
    assert job.started == [1]


def test_a_resume_asked_for_before_the_lost_workload_was_noticed_is_carried_out() -> None:
    """Request and loss came in one pass: "there is nothing to resume", and the request was spent."""
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    assert job.started == [1]
    job.observed = replace(job.observed, workload=None, pods=())
    job.wish(resume=ResumeRequest("r", ResumeFrom.LATEST))
    world.settle()
    assert job.record.resume_id == "r"
    assert job.started == [1, 2]


def test_a_changed_resume_request_gets_its_own_checkpoint() -> None:
    world = world_with("ns/a")
    stop_it(world)
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("one", ResumeFrom.STEP, 10))
    world.step("ns/a")  # the access Job for step 10 is made, and answers
    job.wish(resume=ResumeRequest("two", ResumeFrom.BEST))
    world.settle()
    assert job.record.resume_id == "two"
    assert job.record.run.resume_path == "/restored/30"


def test_a_workload_deleted_after_its_stop_is_made_again_for_a_resume() -> None:
    world = world_with("ns/a")
    stop_it(world)
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, workload=None)
    world.settle()
    assert job.observed.workload is None
    job.wish(resume=ResumeRequest("again", ResumeFrom.BEST))
    world.settle()
    assert job.started == [1, 2]
    assert job.record.run.resume_path == "/restored/30"


def test_a_user_s_stop_waits_for_the_best_that_is_being_secured_and_says_when_there_is_none() -> None:
    world = world_with("ns/a")
    job = world.jobs["ns/a"]
    world.scores("ns/a", 0.1, 0.3)
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert job.kept == {20}
    bare = world_with("ns/b")
    bare.scores("ns/b", 0.1, 0.3, checkpoints=False)
    bare.jobs["ns/b"].wish(run_state=RunState.STOPPED)
    bare.settle()
    assert bare.jobs["ns/b"].observed.workload.suspended
    assert condition(bare, "ns/b", c.RETAINED).reason == "NothingRetained"


RUNNING = WorkloadView("w", suspended=False)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF, Mode.ENFORCE])
def test_a_referred_workload_that_runs_already_is_adopted_not_suspended(mode: Mode) -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2, mode=mode, workload_ref="batch/v1 Job a")
    job.observed = Observed(workload=RUNNING, pods=(PodView("p", "n1", 2, terminal=False, ready=True),))
    world.submit("ns/b", gpus=2)
    world.settle()
    assert not job.observed.workload.suspended
    assert job.started == []
    assert job.record.admission.nodes == ("n1",)
    assert world.jobs["ns/b"].started == []


def test_in_enforce_a_workload_that_somebody_starts_is_suspended_again() -> None:
    world = world_with("ns/a", "ns/b")
    waiting = world.jobs["ns/b"]
    waiting.observed = replace(waiting.observed, workload=RUNNING)
    planned = world.step("ns/b")
    assert [a.reason for a in planned.actions if isinstance(a, SuspendWorkload)] == ["NotAdmitted"]


def test_what_is_ignored_in_a_scrape_is_said() -> None:
    world = world_with("ns/a")
    world.scores("ns/a", 0.1, 0.2, 0.3)
    world.settle()
    points = (*world.jobs["ns/a"].observed.scrape.points, EvalPoint(25, 0.9, Attempt(1, "1")))
    world.scrape("ns/a", points=points, message="score of step 40 is NaN")
    world.settle()
    message = condition(world, "ns/a", c.METRICS).message
    assert "score of step 40 is NaN" in message
    assert "steps must increase within an attempt: step 25" in message
    assert [p.step for p in world.jobs["ns/a"].record.evals] == [10, 20, 30]


def test_a_user_s_stop_lets_the_trainer_save_first_but_not_for_ever() -> None:
    for serves in (True, False):
        world = world_with("ns/a")
        job = world.jobs["ns/a"]
        world.scores("ns/a", 0.1, 0.3)
        world.settle()
        seen = job.observed.scrape
        job.observed = replace(job.observed, scrape=replace(seen, request_served=0))
        job.wish(run_state=RunState.STOPPED)
        for _ in range(10):
            world.step("ns/a")
        assert job.observed.run_written == job.record.run
        assert (job.record.run.request_id, job.record.run.checkpoint, job.record.run.stop) == (1, True, True)
        assert not job.observed.workload.suspended
        if serves:
            job.observed = replace(job.observed, scrape=replace(seen, request_served=1, checkpoint_step=25))
        began = world.now
        while not job.observed.workload.suspended:
            world.step("ns/a")
        assert (world.now - began < 10) is serves
        assert world.now - began < 40
        job.wish(run_state=RunState.RUN)
        world.settle()
        assert (job.record.run.request_id, job.record.run.stop) == (1, False)
