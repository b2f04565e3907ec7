"""A preempted run: on to its next checkpoint, suspended, charged, and back where it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job import state_reason
from controller.policy.job.record import ProtectedCheckpoint, RunFile
from controller.policy.job.types import RunState, ScrapeOutcome, ScrapeView, SuspendWorkload, WriteRun
from controller.policy.pool import job_outcomes
from controller.policy.types import JobState, Mode, PolicySpec, Preemption
from tests.support.policy_world import Job, PolicyWorld


def running(world: PolicyWorld | None = None, **spec: object) -> tuple[PolicyWorld, Job]:
    """One job of four GPUs that has run for 100 s since all its pods were ready at 1000 s."""
    world = world or PolicyWorld({"n1": 2, "n2": 2})
    job = world.submit("ns/a", 2, 2, **spec)
    world.settle()
    world.now = job.record.admission.running_since + 100.0  # type: ignore[union-attr, operator]
    return world, job


def preempt(world: PolicyWorld, job: Job) -> None:
    job.record = job_outcomes.preempted(job.record, Preemption("ns/a", "ShorterJobWaits"), world.now)


def suspends(world: PolicyWorld, seconds: float = 0.0) -> bool:
    planned = world.step("ns/a", acts=0, seconds=seconds)
    return any(isinstance(a, SuspendWorkload) for a in planned.actions)


def finish(world: PolicyWorld, job: Job) -> list[str]:
    """Until its pods are gone and that is recorded; the messages of the Events on the way."""
    told = [e.message for e in world.step("ns/a", seconds=0.0).events]
    for _ in range(3):
        world._cluster(job)
        told += [e.message for e in world.step("ns/a", seconds=0.0).events]
    return told


def test_it_is_not_called_running_until_its_pods_are_gone() -> None:
    """`list` showed Running, with evals that stood still, for the 20 s of its grace and its pods' end."""
    world, job = running()
    preempt(world, job)
    said = []
    for _ in range(8):
        suspends(world, 100.0)
        said.append(c.summary(job.record.conditions))
        assert (said[-1] == "Preempting") == (job.record.preempting is not None), said
    finish(world, job)
    assert (said[0], said[-1]) == ("Preempting", "Preempting")
    assert c.summary(job.record.conditions) == "Queued"


def test_one_that_its_user_stops_while_it_waits_is_stopped() -> None:
    """It stayed Queued, with reason UserRequest, though it does not queue."""
    world, job = running()
    preempt(world, job)
    suspends(world, 1000.0)
    finish(world, job)
    assert c.summary(job.record.conditions) == "Queued"
    job.wish(run_state=RunState.STOPPED)
    world.step("ns/a")
    assert job.record.decision is not None
    assert (c.summary(job.record.conditions), state_reason(job.record)) == ("Stopped", "UserRequest")
    job.wish(run_state=RunState.RUN)
    world.step("ns/a")
    assert (c.summary(job.record.conditions), job.record.decision) == ("Queued", None)


def test_it_goes_on_to_its_next_checkpoint_and_loses_nothing() -> None:
    world, job = running()
    world.scrape("ns/a", step=50, total_steps=100, checkpoint_step=40, resumed_step=0)
    preempt(world, job)
    assert not suspends(world)
    assert job.plan is not None
    assert job.plan.queue is JobState.PREEMPTING
    assert job.plan.requeue_after == 300.0
    world.scrape("ns/a", step=59, total_steps=100, checkpoint_step=40, resumed_step=0)
    assert not suspends(world, 10.0)
    world.scrape("ns/a", step=60, total_steps=100, checkpoint_step=60, resumed_step=0)
    assert suspends(world, 10.0)
    finish(world, job)
    record = job.record
    assert (record.preempting, record.admission, record.lost, record.preemptions) == (None, None, 0.0, 1)
    assert record.queued_at == world.now
    assert record.attained == pytest.approx(120.0 * 4)
    assert record.progress is not None
    assert (record.progress.step, record.progress.worked) == (60, pytest.approx(120.0 * 4))


def test_after_its_grace_it_is_suspended_and_charged_what_it_did_since_its_last_checkpoint() -> None:
    world, job = running()
    world.scrape("ns/a", step=50, total_steps=100, checkpoint_step=40, resumed_step=0)
    preempt(world, job)
    assert not suspends(world, 299.0)
    assert suspends(world, 1.0)
    # 50 steps in 400 s of 4 GPUs; ten of them are not in a checkpoint.
    assert job.record.preempting is not None
    assert job.record.preempting.lost == pytest.approx(10 / 50 * 400 * 4)
    told = finish(world, job)
    assert job.record.lost == pytest.approx(320.0)
    assert job.record.attained == pytest.approx(1600.0)
    assert any("320 GPU-seconds of work were lost" in message for message in told)
    assert job.record.progress is not None
    assert (job.record.progress.step, job.record.progress.worked) == (40, pytest.approx(1280.0))


def test_a_second_preemption_adds_to_the_first_and_goes_by_its_own_attempt() -> None:
    world, job = running()
    world.scrape("ns/a", step=50, total_steps=100, checkpoint_step=40, resumed_step=0)
    preempt(world, job)
    suspends(world, 300.0)
    finish(world, job)
    world.settle()  # admitted again
    assert job.record.attempt == 2
    since = job.record.admission.running_since  # type: ignore[union-attr]
    assert since is not None
    world.now = since + 100.0
    world.scrape("ns/a", step=50, total_steps=100, checkpoint_step=45, resumed_step=40)
    preempt(world, job)
    suspends(world, 300.0)
    finish(world, job)
    # In this attempt 10 steps took 400 s; five are not in a checkpoint.
    assert job.record.lost == pytest.approx(320.0 + 5 / 10 * 400 * 4)
    assert (job.record.preemptions, job.record.attempt) == (2, 2)


def test_a_trainer_that_can_be_asked_is_asked_once_and_believed() -> None:
    world, job = running()
    world.scrape("ns/a", step=50, checkpoint_step=40, resumed_step=0, request_served=0)
    preempt(world, job)
    planned = world.step("ns/a", seconds=0.0)
    asked = [a.run for a in planned.actions if isinstance(a, WriteRun)]
    assert asked == [RunFile(attempt=1, request_id=1, checkpoint=True, uid="uid-ns/a")]
    assert world.step("ns/a", seconds=1.0).actions == ()
    world.scrape("ns/a", step=51, checkpoint_step=51, resumed_step=0, request_served=1)
    assert suspends(world)
    finish(world, job)
    assert job.record.lost == 0.0
    world.settle()
    assert job.record.run == RunFile(
        attempt=2, request_id=1, uid="uid-ns/a"
    )  # the next attempt is asked for nothing


@pytest.mark.parametrize(
    ("view", "mode"),
    [
        ({"step": 40, "checkpoint_step": 40}, Mode.ENFORCE),  # just written
        ({"step": 40}, Mode.ENFORCE),  # a trainer that tells of no checkpoints
        ({}, Mode.ENFORCE),
        ({"step": 50, "checkpoint_step": 40}, Mode.OFF),  # nobody reads its metrics
    ],
)
def test_nobody_waits_for_what_cannot_come(view: dict[str, int], mode: Mode) -> None:
    world, job = running(mode=mode)
    world.scrape("ns/a", **view)
    preempt(world, job)
    assert suspends(world)
    finish(world, job)
    assert job.record.lost == 0.0


def test_a_trainer_that_does_not_answer_just_now_is_waited_for() -> None:
    world, job = running()
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.TIMEOUT))
    preempt(world, job)
    assert not suspends(world)
    assert suspends(world, 300.0)


def test_a_gang_that_never_ran_has_nothing_to_save() -> None:
    world = PolicyWorld({"n1": 4})
    job = world.submit("ns/a", 1, 4)
    while not job.started:
        world.step("ns/a")
        if job.record.admission is None:
            world._cluster(job)
            world.pool_pass()
    assert job.record.admission is not None
    assert job.record.admission.running_since is None
    preempt(world, job)
    assert suspends(world)
    finish(world, job)
    assert (job.record.admission, job.record.attained) == (None, 0.0)


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [(None, True), (70, True), (40, True), (50, False)],  # 70: of the branch that was given up
)
def test_where_it_was_put_back_stays_until_it_has_saved_more(checkpoint: int | None, kept: bool) -> None:
    """Resumed from step 40 after a stop at 70: without a newer checkpoint it goes on from 40 again."""
    world, job = running()
    back = ProtectedCheckpoint(40, 40, "/resume/40", "sha256:1", 1.0)
    job.record = replace(job.record, restored=back)
    world.scrape("ns/a", step=55, total_steps=100, checkpoint_step=checkpoint, resumed_step=40)
    preempt(world, job)
    suspends(world)
    suspends(world, 300.0)
    finish(world, job)
    assert job.record.restored == (back if kept else None)
    lost_steps = 5 if checkpoint == 50 else 15
    assert job.record.lost == pytest.approx(lost_steps / 15 * 400 * 4)


def test_a_short_job_passes_a_long_one_and_the_long_one_comes_back() -> None:
    """The whole way, with an operator that may die after any write: las on one node."""
    world = PolicyWorld({"n1": 2}, PolicySpec("las", {"first_threshold": 100.0, "second_threshold": 1e6}))
    long_ = world.submit("ns/long", 1, 2)
    world.settle()
    world.now += 100.0
    world.scrape("ns/long", step=50, total_steps=100, checkpoint_step=50, resumed_step=0)
    world.submit("ns/short", 1, 2)
    world.settle()
    assert world.jobs["ns/short"].record.admission is not None
    assert (long_.record.attempt, long_.record.preemptions, long_.record.admission) == (1, 1, None)
    world.finish("ns/short")
    world.settle()
    assert long_.record.attempt == 2
    assert long_.started == [1, 2]


def preempted_for_a_short_one() -> tuple[PolicyWorld, Job]:
    """A long run that goes on to its next checkpoint, because a short one waits for its GPUs."""
    world = PolicyWorld(
        {"n1": 2, "n2": 2}, PolicySpec("las", {"first_threshold": 100.0, "second_threshold": 1e6})
    )
    long_, other = world.submit("ns/long", 1, 2), world.submit("ns/other", 1, 2)
    world.settle()
    world.now += 100.0
    for key in ("ns/long", "ns/other"):
        world.scrape(key, step=60, total_steps=100, checkpoint_step=50, resumed_step=0)
    world.settle()
    world.submit("ns/short", 1, 2)
    for _ in range(5):
        world.pool_pass()
        going = [job for job in (long_, other) if job.record.preempting is not None]
        if going:
            world.step(going[0].desired.key)
            return world, going[0]
        world.step("ns/short")
    raise AssertionError("nobody is preempted")


@pytest.mark.parametrize("how", ["its job is deleted", "its job gets others' GPUs"])
def test_a_preemption_that_nobody_waits_for_any_more_is_called_off(how: str) -> None:
    """It was carried out for nobody: the run lost what it had done since its last checkpoint."""
    world, job = preempted_for_a_short_one()
    assert c.summary(job.record.conditions) == "Preempting"
    if how == "its job is deleted":
        del world.jobs["ns/short"]
    else:
        (stays,) = (one for one in world.jobs if one not in {job.desired.key, "ns/short"})
        world.finish(stays)
    world.settle()
    assert (job.record.preempting, job.record.preemptions, job.record.attempt) == (None, 0, 1)
    assert job.started == [1]
    assert c.summary(job.record.conditions) == "Running"
    admitted = job.record.condition(c.ADMITTED)
    assert admitted is not None
    assert admitted.status
    short = world.jobs.get("ns/short")
    assert short is None or short.record.admission is not None


def test_a_preemption_goes_on_while_anybody_waits_or_once_its_cost_is_settled() -> None:
    world, job = preempted_for_a_short_one()
    world.pool_pass()
    assert job.record.preempting is not None, "the short one waits"
    world.now += 300.0
    world.step(job.desired.key)
    assert job.record.preempting.lost is not None
    del world.jobs["ns/short"]
    world.settle()
    assert job.record.preemptions == 1
    assert job.started == [1, 2], "it is admitted again at once"


@pytest.mark.parametrize(
    ("why", "may"),
    [
        ({}, True),
        ({"lost": 0.0}, False),
        ({"evicted": "Evicted"}, False),
        ({"reason": c.ROLLOUT_STARVED}, False),
        ({"reason": c.GROUP_LOST}, False),
    ],
)
def test_only_what_leaves_for_another_and_has_not_begun_may_stay(why: dict[str, object], may: bool) -> None:
    world, job = running()
    preempt(world, job)
    assert job.record.preempting is not None
    job.record = replace(job.record, preempting=replace(job.record.preempting, **why))  # type: ignore[arg-type]
    assert (job_outcomes.called_off(job.record) is not job.record) is may
    withdrawn = replace(job.record, admission=replace(job.record.admission, withdrawn=1.0))  # type: ignore[type-var]
    assert job_outcomes.called_off(withdrawn) is withdrawn
