"""A stop stays open until the suspend: read, judged, secured; taken back; and no crash leaves half of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.record import Operation
from controller.policy.job.types import (
    Page,
    ResumeFrom,
    ResumeRequest,
    Retain,
    RunState,
    ScrapeOutcome,
    ScrapeView,
    StartAccess,
    SuspendWorkload,
)
from controller.policy.types import Attempt, EvalPoint, JobState, Mode, PolicySpec, StopLimits
from tests.support.policy_world import PolicyWorld

RISE = (0.1, 0.3, 0.5)
FALL = (0.45, 0.4, 0.35)


def copying(**spec) -> PolicyWorld:
    """A declining run whose stop is granted; the copy of its best, step 30, is under way and does not end."""
    world = PolicyWorld({"n1": 2, "n2": 2})
    world.limits = StopLimits(per_hour=1)
    for key in ("ns/a", "ns/b"):
        world.submit(key, replicas=2, gpus=2, **spec)
    world.settle()
    for score in (*RISE, *FALL[:2]):
        world.scores("ns/a", score)
        world.settle()
    world.slow = frozenset({Operation.RETAIN, Operation.CHECK})
    world.scores("ns/a", FALL[2])
    passes(world, 4)
    job = world.jobs["ns/a"]
    assert job.record.decision is not None
    assert job.record.access is not None
    assert [h.target for h in world.reservations] == ["ns/b"]
    assert spent(world) == 1
    return world


def passes(world: PolicyWorld, count: int, seconds: float = 1.0, *, acts: int | None = None) -> list[object]:
    """Passes over both jobs and the pool; the actions of the first job's."""
    done: list[object] = []
    for _ in range(count):
        done += world.step("ns/a", acts=acts, seconds=seconds).actions
        world.step("ns/b", seconds=0.0)
        for job in world.jobs.values():
            world._cluster(job)
        world.pool_pass()
    return done


def spent(world: PolicyWorld) -> int:
    """Stops of the last hour that count against the pool's budget."""
    world._count_stops()
    return len(world.stopped)


def end_copy(world: PolicyWorld, *, ok: bool = True, reason: str = "") -> None:
    """The access Jobs under way end."""
    job = world.jobs["ns/a"]
    world.slow = frozenset()
    views = []
    for view in job.observed.access:
        if not view.finished:
            asked = world.asked[view.request_id]
            view = world._access(job, asked) if ok else replace(view, finished=True, reason=reason)
        views.append(view)
    job.observed = replace(job.observed, access=tuple(views))


def condition(world: PolicyWorld, type_: str, key: str = "ns/a"):
    return world.jobs[key].record.condition(type_)


def went_on(world: PolicyWorld, reason: str) -> None:
    """The stop is taken back whole: the run trains on, and nothing of grant, hold and budget is left."""
    job = world.jobs["ns/a"]
    assert job.record.decision is None
    assert job.record.taken_back.reason == reason
    assert job.observed.workload is not None
    assert not job.observed.workload.suspended
    assert job.started == [1]
    assert job.plan.queue is JobState.ADMITTED
    assert world.jobs["ns/b"].started == []
    assert world.reservations == ()
    assert spent(world) == 0
    assert not job.observed.finalizer
    target = condition(world, c.TERMINATION)
    assert (target.status, target.reason) == (False, reason)


def test_a_run_that_rises_to_a_new_best_while_its_copy_is_made_is_not_stopped() -> None:
    # row 5
    world = copying()
    world.scores("ns/a", 0.9)
    passes(world, 4)
    went_on(world, "NoLongerDeclining")
    assert world.jobs["ns/a"].record.secured.best_step == 70, "the new best is pinned"
    end_copy(world)
    passes(world, 6)
    went_on(world, "NoLongerDeclining")


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_mode_and_cap_are_obeyed_until_the_suspend(mode: Mode) -> None:
    # row 5
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(mode=mode)
    events = world.step("ns/a").events
    assert "StopTakenBack" in {e.reason for e in events}
    passes(world, 3)
    assert not job.observed.workload.suspended
    assert (job.record.taken_back.reason, world.reservations, spent(world)) == (
        "ModeForbids",
        (),
        mode is Mode.SHADOW,
    )
    end_copy(world)
    passes(world, 6)
    assert not job.observed.workload.suspended


def test_its_user_calls_a_rule_s_stop_off_by_resuming_it_where_it_is() -> None:
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("on", ResumeFrom.LATEST))
    passes(world, 5)
    went_on(world, "Resumed")
    assert job.record.resume_id == "on"
    assert condition(world, c.RESUMED).status
    passes(world, 5)
    assert job.record.decision is None, "what led to the stop does not stop it again"
    world.scores("ns/a", 0.34, 0.3, 0.2, 0.1)
    passes(world, 3)
    assert job.plan.proposal is not None or job.record.decision is not None, "what comes after it may"


@pytest.mark.parametrize("again", ["restart", "parameter", "further"])
def test_a_stop_that_was_called_off_does_not_come_back_by_the_same_evals(again: str) -> None:
    """A restart of the pod, or another parameter, has the evals folded once more: not those of before."""
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("on", ResumeFrom.LATEST))
    passes(world, 5)
    end_copy(world)
    newest = job.record.evals[-1].step
    if again == "parameter":
        job.wish(rule=PolicySpec("kDeclines", {"k": 2}))
    else:
        world.scores("ns/a", 0.42)
        passes(world, 3)
        back = newest if again == "restart" else newest - 10
        life = Attempt(job.record.attempt, "2")
        page = Page(job.desired.uid, life)
        world.scrape("ns/a", points=(), checkpoint_step=back, resumed_step=back, page=page)
    passes(world, 4)
    assert job.record.decision is None
    assert job.record.best.score == 0.5, "they still tell which checkpoint is the best"
    life, known = job.record.lives[-1].attempt, [p.step for p in job.record.evals]
    points = tuple(EvalPoint(known[-1] + 10 * n, 0.42 - n / 100, life) for n in range(1, 5))
    for n in range(1, 5):
        job.checkpoints |= {p.step for p in points[:n]}
        world.scrape("ns/a", points=points[:n], checkpoint_step=points[n - 1].step)
        passes(world, 3)
    assert job.record.decision is not None, "a decline since then stops it"


def test_a_resume_from_the_best_is_carried_out_once_the_run_is_suspended() -> None:
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("back", ResumeFrom.BEST))
    passes(world, 3)
    assert job.record.decision is not None
    end_copy(world)
    passes(world, 30, 5.0)
    assert job.record.resume_id == "back"
    assert job.record.run.resume_step is None or job.record.run.resume_step == 30
    assert job.record.restored is None or job.record.restored.step == 30


def test_just_before_the_suspend_it_is_read_once_more() -> None:
    """What the newest page says counts, not what was known when the copy was done."""
    world = copying()
    end_copy(world)
    job = world.jobs["ns/a"]
    job.readable = False
    done = passes(world, 3)
    assert job.record.decision.retained_at is not None
    assert not any(isinstance(a, SuspendWorkload) for a in done), "suspended on a page from before the copy"
    world.scores("ns/a", 0.9)
    passes(world, 4)
    went_on(world, "NoLongerDeclining")


@pytest.mark.parametrize("unread", [None, ScrapeView(ScrapeOutcome.TIMEOUT, "10 s")])
def test_without_a_fresh_page_the_stop_is_taken_back_after_a_while(unread: ScrapeView | None) -> None:
    world = copying()
    job = world.jobs["ns/a"]
    job.readable = False
    end_copy(world)
    job.observed = replace(job.observed, scrape=unread)
    began = world.now
    while job.record.decision is not None:
        passes(world, 1, 5.0)
        assert world.now - began < 300, "bounded"
    assert world.now - began >= 55
    went_on(world, "NoFreshScrape")


def test_one_failed_scrape_during_the_copy_takes_nothing_back() -> None:
    world = copying()
    job = world.jobs["ns/a"]
    page = job.observed.scrape
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.TIMEOUT, "10 s"))
    passes(world, 15, 10.0)
    assert job.record.decision is not None
    job.observed = replace(job.observed, scrape=page)
    end_copy(world)
    passes(world, 8)
    assert job.observed.workload.suspended


@pytest.mark.parametrize("faster", [False, True])
def test_a_new_best_under_a_verdict_that_stands_is_pinned_and_copied_too(monkeypatch, faster) -> None:
    # row 5
    world = copying()
    job = world.jobs["ns/a"]
    stop = job.record.rule.verdict  # as a guardrail's would be, whatever the Primary metric does

    def stands(record, desired):
        return "", stop

    monkeypatch.setattr("controller.policy.job.guardrails.joint_verdict", stands)
    world.scores("ns/a", 0.9)
    done = passes(world, 4)
    asked = [(a.operation, a.step) for a in done if isinstance(a, StartAccess)]
    assert asked == [(Operation.SECURE, 70), (Operation.RETAIN, 70)]
    if faster:  # than copies are made: the next one would begin a copy anew, and so would each after it
        world.scores("ns/a", 0.95)
        passes(world, 3)
        world.scores("ns/a", 0.96)
        passes(world, 3)
        assert job.observed.workload.suspended
        assert (copied := condition(world, c.RETAINED)) is not None
        assert not copied.status
    *_, retain = (a for a in done if isinstance(a, StartAccess))
    assert [one.attempt for one in retain.branch] == [job.record.lives[-1].attempt], "whose the latest one is"
    end_copy(world)
    passes(world, 8)
    assert job.observed.workload.suspended
    assert job.record.retained[-1].best_step == (90 if faster else 70)
    assert not job.observed.finalizer
    assert world.jobs["ns/b"].started == [1]


def test_a_pin_that_is_damaged_takes_the_stop_back() -> None:
    world = copying()
    world.jobs["ns/a"].checkpoints.clear()
    world.jobs["ns/a"].pins.clear()
    end_copy(world)
    passes(world, 3)
    went_on(world, "NoVerifiableCheckpoint")


def test_killed_between_any_two_writes_the_stop_is_taken_back_whole() -> None:
    """The job's record first, then the pool's status: whoever dies where, the next finds what is left."""
    for died_after in range(8):
        for lost in (0, 1, None):
            world = copying()
            job = world.jobs["ns/a"]
            job.wish(mode=Mode.SHADOW)
            for i in range(8):
                if i == died_after:
                    # Nothing of this pass but the record is carried out; the pool's pass is lost, too.
                    world.step("ns/a", acts=lost)
                    continue
                world.step("ns/a")
                world._cluster(job)
                if i > died_after or i % 2:
                    world.pool_pass()
                assert world.jobs["ns/b"].record.admission is None, "nobody is admitted by a hold"
                assert not job.observed.workload.suspended
            passes(world, 3)
            assert (job.record.taken_back.reason, world.reservations) == ("ModeForbids", ())
            assert not job.observed.finalizer
            assert not [a for a in job.observed.access if a.operation is Operation.RETAIN]


def test_the_budget_that_comes_back_lets_the_next_stop_through() -> None:
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(mode=Mode.OFF)
    passes(world, 3)
    assert spent(world) == 0
    job.wish(mode=Mode.ENFORCE)
    world.slow = frozenset()
    passes(world, 12)
    assert job.observed.workload.suspended, "the one stop of this hour is not spent"
    assert world.jobs["ns/b"].started == [1]


def test_a_pin_that_is_unchanged_is_enough_where_the_copy_may_follow() -> None:
    # row 5
    world = copying(retain=Retain.AFTER_SUSPEND)
    job = world.jobs["ns/a"]
    assert [a.operation for a in job.observed.access] == [Operation.CHECK]
    world.slow = frozenset({Operation.RETAIN})
    end = frozenset({Operation.RETAIN})
    end_copy(world)
    world.slow = end
    passes(world, 10)
    assert job.observed.workload.suspended
    assert world.jobs["ns/b"].started == [1], "the GPUs work for others"
    assert job.kept == set()
    assert job.observed.finalizer, "until it is copied"
    assert job.record.decision.retained_at is None
    passes(world, 20, 60.0)
    end_copy(world)
    passes(world, 4)
    assert job.kept == {30}
    assert job.record.decision.retained_at is not None
    assert not job.observed.finalizer


def suspended_before_its_copy() -> PolicyWorld:
    world = copying(retain=Retain.AFTER_SUSPEND)
    end_copy(world)
    world.slow = frozenset({Operation.RETAIN})
    passes(world, 10)
    assert world.jobs["ns/a"].record.decision.pods_gone_at is not None
    return world


def test_deleted_before_the_copy_that_follows_is_made() -> None:
    world = suspended_before_its_copy()
    job = world.jobs["ns/a"]
    job.wish(deleting=True)
    passes(world, 3)
    assert job.observed.finalizer
    end_copy(world)
    passes(world, 3)
    assert job.kept == {30}
    assert not job.observed.finalizer


@pytest.mark.parametrize("source", [ResumeFrom.BEST, ResumeFrom.LATEST])
def test_resumed_before_the_copy_that_follows_is_made(source: ResumeFrom) -> None:
    world = suspended_before_its_copy()
    job = world.jobs["ns/a"]
    job.wish(resume=ResumeRequest("on", source))
    passes(world, 5)
    assert job.record.resume_id == "on"
    assert job.record.decision is None
    assert condition(world, c.RETAINED).reason == "ResumedFirst"
    assert job.record.secured.best_step == 30, "still pinned"
    if source is ResumeFrom.BEST:
        assert job.record.restored.step == 30
    assert not job.observed.finalizer


def test_a_pin_that_was_changed_before_the_suspend_is_found_out() -> None:
    world = copying(retain=Retain.AFTER_SUSPEND)
    world.jobs["ns/a"].pins.clear()
    world.jobs["ns/a"].checkpoints.clear()
    end_copy(world)
    passes(world, 3)
    assert not world.jobs["ns/a"].observed.workload.suspended
    went_on(world, "NoVerifiableCheckpoint")


def user_stopped(world: PolicyWorld) -> None:
    job = world.jobs["ns/a"]
    job.wish(run_state=RunState.STOPPED)


def running() -> PolicyWorld:
    world = PolicyWorld({"n1": 2, "n2": 2})
    for key in ("ns/a", "ns/b"):
        world.submit(key, replicas=2, gpus=2, rule=PolicySpec("kDeclines", {"k": 9}))
    world.settle()
    for score in RISE:
        world.scores("ns/a", score)
        world.settle()
    return world


@pytest.mark.parametrize(
    "reason", ["OutOfSpace", "StoreUnreachable", "AccessFailed", "AccessRefused", "ClaimMissing", "hangs"]
)
def test_a_user_s_stop_suspends_though_no_copy_can_be_made_and_copies_on(reason: str) -> None:
    # row 6
    world = running()
    job = world.jobs["ns/a"]
    world.slow = frozenset({Operation.RETAIN})
    world.failing = None if reason == "hangs" else reason
    user_stopped(world)
    began = world.now
    while not job.observed.workload.suspended:
        passes(world, 1, 5.0)
        assert world.now - began < 600, "still running after its user stopped it"
    passes(world, 4)
    assert world.jobs["ns/b"].started == [1]
    copied = condition(world, c.RETAINED)
    assert not copied.status
    assert copied.reason == ("AccessStalled" if reason == "hangs" else reason)
    if reason != "hangs":
        assert "try " in copied.message
        assert "What helps: " in copied.message
    assert job.observed.finalizer, "the copy is still to be made"
    world.failing, world.slow = None, frozenset()
    passes(world, 30, 30.0)
    assert job.kept == {30}
    assert condition(world, c.RETAINED).status
    assert not job.observed.finalizer


@pytest.mark.parametrize("reason", ["StoreUnreachable", "hangs"])
def test_a_user_stops_a_run_that_its_rule_stops_already_and_that_cannot_be_copied(reason: str) -> None:
    # row 6
    world = copying()
    job = world.jobs["ns/a"]
    assert job.record.decision.by != "User"
    world.failing = None if reason == "hangs" else reason
    passes(world, 200, 5.0)
    assert not job.observed.workload.suspended, "its rule's stop waits for the copy"
    user_stopped(world)
    began = world.now
    while not job.observed.workload.suspended:
        passes(world, 1, 5.0)
        assert world.now - began < 600, "still running after its user stopped it"
    world.failing, world.slow = None, frozenset()
    passes(world, 30, 30.0)
    assert job.kept == {30}


@pytest.mark.parametrize("failing", [None, "OutOfSpace"])
def test_run_takes_a_user_s_stop_back_until_the_suspend_and_resumes_after_it(failing: str | None) -> None:
    # row 6
    world = running()
    job = world.jobs["ns/a"]
    world.slow, world.failing = frozenset({Operation.RETAIN}), failing
    user_stopped(world)
    passes(world, 3)
    assert job.record.decision is not None
    job.wish(run_state=RunState.RUN)
    passes(world, 3)
    went_on(world, "CalledOff")
    user_stopped(world)
    passes(world, 300, 5.0)
    assert job.observed.workload.suspended
    job.wish(run_state=RunState.RUN)
    passes(world, 3)
    assert job.record.decision is None
    assert job.record.queued_at is not None


@pytest.mark.parametrize(("source", "step"), [(ResumeFrom.BEST, None), (ResumeFrom.STEP, 10)])
def test_a_resume_from_elsewhere_lets_a_user_s_stop_through_and_follows_it(
    source: ResumeFrom, step: int | None
) -> None:
    """It was answered "is to go on from its best", and the run went on, or anew, from its newest."""
    world = running()
    job = world.jobs["ns/a"]
    world.slow = frozenset({Operation.RETAIN})
    user_stopped(world)
    passes(world, 3)
    assert not job.observed.workload.suspended
    job.wish(run_state=RunState.RUN, resume=ResumeRequest("x", source, step))
    passes(world, 3)
    assert job.record.decision is not None
    assert job.record.resume_id != "x", "it is not answered yet"
    end_copy(world)
    passes(world, 40, 5.0)
    assert job.record.resume_id == "x"
    assert job.record.decision is None
    assert job.record.restored.step == (step or 30), "where it goes on once it has GPUs: ns/b has them now"
    assert world.jobs["ns/b"].started == [1]


def test_a_resume_from_the_latest_takes_a_user_s_stop_back_and_says_so() -> None:
    world = running()
    job = world.jobs["ns/a"]
    world.slow = frozenset({Operation.RETAIN})
    user_stopped(world)
    passes(world, 3)
    job.wish(run_state=RunState.RUN, resume=ResumeRequest("x", ResumeFrom.LATEST))
    passes(world, 3)
    went_on(world, "CalledOff")
    assert job.record.resume_id == "x"
    assert condition(world, c.RESUMED).reason == "StopTakenBack"


def test_called_off_after_the_trainer_was_asked_to_stop_it_is_started_anew() -> None:
    world = running()
    job = world.jobs["ns/a"]
    seen = replace(job.observed.scrape, request_served=0)
    job.observed = replace(job.observed, scrape=seen)
    user_stopped(world)
    passes(world, 4)
    assert job.record.run.stop
    assert not job.observed.workload.suspended
    job.wish(run_state=RunState.RUN)
    passes(world, 8)
    assert job.started == [1, 1], "the same admission, on the same nodes"
    assert not job.record.run.stop
    assert world.jobs["ns/b"].started == []


def test_a_new_leader_has_the_trainer_save_within_a_user_s_stop() -> None:
    # row 17
    world = running()
    job = world.jobs["ns/a"]
    page = replace(job.observed.scrape, request_served=0)
    job.observed = replace(job.observed, scrape=None)  # the leader that decided is gone; nothing is read yet
    user_stopped(world)
    passes(world, 5)
    assert not job.observed.workload.suspended, "suspended without a save"
    job.observed = replace(job.observed, scrape=page)
    passes(world, 3)
    assert job.observed.run_written.stop
    assert not job.observed.workload.suspended
    job.observed = replace(job.observed, scrape=None)  # and fails over again
    passes(world, 5)
    assert not job.observed.workload.suspended
    job.observed = replace(job.observed, scrape=replace(page, request_served=job.record.run.request_id))
    passes(world, 2)
    assert job.observed.workload.suspended
    silent = running()
    other = silent.jobs["ns/a"]
    other.observed = replace(other.observed, scrape=None)
    other.readable = False
    user_stopped(silent)
    passes(silent, 60)
    assert other.observed.workload.suspended, "bounded"


def test_deleted_in_the_foreground_the_copy_is_still_made() -> None:
    # row 17: what the RLHFJob owns goes first, its workload with it
    world = copying()
    job = world.jobs["ns/a"]
    assert job.observed.finalizer, (
        "on before the deletion: none can be put on an object that is being deleted"
    )
    job.wish(deleting=True)
    job.observed = replace(job.observed, workload=None, pods=())
    passes(world, 3)
    assert job.observed.finalizer
    end_copy(world)
    passes(world, 3)
    assert job.kept == {30}
    assert not job.observed.finalizer


def test_a_deletion_does_not_wait_for_ever_and_says_what_it_gave_up() -> None:
    # row 17
    world = copying()
    job = world.jobs["ns/a"]
    job.wish(deleting=True)
    events = []
    for _ in range(400):
        events += world.step("ns/a", seconds=10.0).events
    assert not job.observed.finalizer
    (told,) = [e for e in events if e.reason == "RetentionGivenUp"]
    assert told.warning
    assert "/pins/30" in told.message


def test_pins_are_made_though_a_resume_was_withdrawn() -> None:
    # row 17
    world = running()
    job = world.jobs["ns/a"]
    user_stopped(world)
    passes(world, 8)
    world.slow = frozenset({Operation.RESTORE})
    job.wish(run_state=RunState.RUN, resume=ResumeRequest("x", ResumeFrom.STEP, 10), pins=(20,))
    passes(world, 3)
    assert job.record.access.operation is Operation.RESTORE
    job.wish(run_state=RunState.STOPPED, resume=None)
    passes(world, 4)
    assert [k.step for k in job.record.pinned] == [20]
    assert condition(world, c.RESUMED).reason == "Withdrawn"


def test_resumed_from_the_best_of_what_was_retained_not_from_the_newest() -> None:
    # row 17
    world = running()
    job = world.jobs["ns/a"]
    user_stopped(world)
    passes(world, 12)
    (first,) = job.record.retained
    worse = replace(first, best_step=90, step=90, score=0.2, path="/kept/90", at=first.at + 1)
    unknown = replace(first, best_step=95, step=95, score=None, path="/kept/95", at=first.at + 2)
    job.record = replace(job.record, retained=(worse, first, unknown))
    job.wish(run_state=RunState.RUN, resume=ResumeRequest("x", ResumeFrom.BEST))
    passes(world, 3)
    assert job.record.restored.step == 30


def test_a_resume_from_the_best_is_not_answered_with_another_process_s_checkpoint_of_its_step() -> None:
    """The best is one process's step 30, pinned and not copied yet; the newest process has a step 30 too. Its
    user asks for "step 30", which is the newest one's, and then for the best instead."""
    world = running()
    job = world.jobs["ns/a"]
    user_stopped(world)
    passes(world, 12)
    record = job.record
    best, later = record.secured, replace(record.lives[-1], attempt=Attempt(1, "later"), resumed=20)
    decision = replace(record.decision, retained_at=None, deferred_at=world.now)
    job.record = replace(record, retained=(), decision=decision, lives=(*record.lives, later))
    world.slow = frozenset({Operation.RESTORE})
    asked = []
    for name, source, step in (("x", ResumeFrom.STEP, 30), ("y", ResumeFrom.BEST, None)):
        job.wish(run_state=RunState.RUN, resume=ResumeRequest(name, source, step))
        asked += [a for a in passes(world, 3) if isinstance(a, StartAccess)]
    assert [(a.operation, a.step, a.attempt) for a in asked] == [
        (Operation.RESTORE, 30, later.attempt),
        (Operation.RESTORE, 30, best.attempt),
    ]
    end_copy(world)
    passes(world, 3)
    assert (job.record.restored.step, job.record.restored.attempt) == (30, best.attempt)


def test_the_best_goes_before_a_user_s_pin_job_that_hangs() -> None:
    # row 16
    world = running()
    job = world.jobs["ns/a"]
    world.slow = frozenset({Operation.PIN})
    job.wish(pins=(20,))
    passes(world, 3)
    assert job.record.access.operation is Operation.PIN
    world.scores("ns/a", 0.9)
    passes(world, 3)
    assert job.record.secured.best_step == 40
    end_copy(world)
    passes(world, 4)
    assert [k.step for k in job.record.pinned] == [20], "asked for again"


def test_a_copy_that_moves_is_never_given_up_and_one_that_stands_still_is() -> None:
    # row 5: a copy of more than an hour was killed by its deadline, and began from zero
    world = copying()
    job = world.jobs["ns/a"]
    first = job.record.access
    for minute in range(300):
        world.move_copy("ns/a", 1000 * (minute + 1), 1_000_000)
        world.scrape_again("ns/a")
        passes(world, 1, 60.0)
    assert job.record.access == first, "five hours"
    copied = condition(world, c.RETAINED)
    assert (copied.status, copied.reason) == (False, "InProgress")
    assert copied.message.startswith("step 30: 300 kB of 1 MB")
    passes(world, 13, 60.0)
    assert job.record.access.serial > first.serial
    assert job.record.access.tries == 1
    assert condition(world, c.RETAINED).reason == "AccessStalled"


def test_a_verdict_of_yesterday_stops_nobody_though_somebody_waits_now() -> None:
    # row 10
    world = PolicyWorld({"n1": 2, "n2": 2})
    world.submit("ns/a", replicas=2, gpus=2, modifiers=(PolicySpec("onlyWhenContended"),))
    world.settle()
    job = world.jobs["ns/a"]
    for score in (*RISE, *FALL):
        world.scores("ns/a", score)
        for _ in range(4):
            world.step("ns/a", seconds=60.0)
            world._cluster(job)
            world.pool_pass()
    assert job.plan.proposal is not None
    world.now += 24 * 3600
    world.submit("ns/b", replicas=2, gpus=2)
    world.step("ns/b")
    passes(world, 5)
    assert job.record.decision is None
    assert condition(world, c.TERMINATION).reason == "VerdictOutdated"
    assert not job.observed.workload.suspended


@pytest.mark.parametrize("told", [True, False])
def test_a_verdict_of_the_process_before_stops_nobody_though_somebody_waits_now(told: bool) -> None:
    """A new process has begun: until it tells where it went on, or has an eval, its branch is not known."""
    # row 10
    world = PolicyWorld({"n1": 2, "n2": 2})
    world.submit("ns/a", replicas=2, gpus=2, modifiers=(PolicySpec("onlyWhenContended"),))
    world.settle()
    job = world.jobs["ns/a"]
    for score in (*RISE, *FALL):
        world.scores("ns/a", score)
        world.settle()
    assert job.plan.proposal is not None
    newest = job.record.evals[-1].step
    page = Page(job.desired.uid, Attempt(job.record.attempt, "after"))
    world.scrape("ns/a", points=(), page=page, resumed_step=newest if told else None)
    world.submit("ns/b", replicas=2, gpus=2)
    world.step("ns/b")
    passes(world, 5)
    assert job.record.lives[-1].attempt == page.attempt
    assert (job.record.decision is None) is not told
    if not told:
        assert condition(world, c.TERMINATION).reason == "NewLife"


def test_a_verdict_is_silent_while_its_run_cannot_be_read() -> None:
    # row 10
    world = PolicyWorld({"n1": 2, "n2": 2})
    for key in ("ns/a", "ns/b"):
        world.submit(key, replicas=2, gpus=2)
    world.settle()
    job = world.jobs["ns/a"]
    for score in (*RISE, *FALL[:2]):
        world.scores("ns/a", score)
        world.settle()
    world.scores("ns/a", FALL[2])
    world.step("ns/a")  # read, judged; nobody has granted it yet
    assert job.plan.proposal is not None
    for unread in (ScrapeView(ScrapeOutcome.UNREACHABLE, "refused"), None):
        job.observed = replace(job.observed, scrape=unread)
        passes(world, 4)
        assert job.record.decision is None
        assert job.plan.proposal is None
        assert condition(world, c.TERMINATION).reason == "MetricsNotRead"
