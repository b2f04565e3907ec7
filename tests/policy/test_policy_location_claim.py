"""The claim of the checkpoint folder: what waits for it, how long, and what follows where another has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.record import Condition, Operation
from controller.policy.job.types import AccessView, Page, RunState, StartAccess
from controller.policy.pool import job_outcomes
from controller.policy.types import Attempt, EvalPoint, Preemption
from tests.support.policy_world import Job, PolicyWorld

KEY, OTHER = "ns/a", "ns/b"
FAILS = ["OutOfSpace", "AccessFailed", None]  # None: its Job hangs


class Claims(PolicyWorld):
    """Claims fail, hang or are refused as the test says; all else of the store works."""

    def __init__(self, problem: str | None = None, *, fails: bool = True, nodes: int = 8) -> None:
        super().__init__({"n1": nodes})
        self.slow = frozenset({Operation.CLAIM}) if fails else frozenset()
        self.failing = problem
        self.log: list[StartAccess] = []

    def _carry_out(self, job: Job, action: object) -> None:
        if isinstance(action, StartAccess) and action.request_id not in self.asked:
            self.log.append(action)
        super()._carry_out(job, action)

    def mended(self) -> None:
        self.slow, self.failing = frozenset(), None

    def operations(self) -> list[Operation]:
        return [ask.operation for ask in self.log]


def running(problem: str | None, **spec: object) -> tuple[Claims, Job]:
    world = Claims(problem)
    job = world.submit(KEY, **spec)
    world.go_on(80.0)
    assert job.started == [1]
    return world, job


def told(job: Job, kind: str) -> Condition:
    found = job.record.condition(kind)
    assert found is not None
    return found


@pytest.mark.parametrize("problem", FAILS)
def test_bests_are_pinned_though_the_claim_fails_or_hangs(problem: str | None) -> None:
    # D1
    world, job = running(problem)
    for number in range(1, 31):
        world.scores(KEY, number / 100)
        world.go_on(60.0)
        assert job.record.secured is not None
        assert job.record.secured.best_step == 10 * number
    claims = world.operations().count(Operation.CLAIM)
    assert 3 <= claims <= 20, "it is tried again, ever more rarely"


@pytest.mark.parametrize("problem", FAILS)
def test_what_a_user_pins_is_pinned_though_the_claim_fails_or_hangs(problem: str | None) -> None:
    # D1
    world, job = running(problem)
    world.scores(KEY, 0.5, 0.4)
    world.go_on(60.0)
    job.wish(pins=(20,))
    world.go_on(120.0)
    assert [kept.step for kept in job.record.pinned] == [20]
    job.wish(pins=(20, 70))  # 70 is never saved
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=None))
    world.mended()
    world.go_on(1300.0)
    assert job.record.claim.problem == "", "a pin that fails does not keep the folder from being claimed"


@pytest.mark.parametrize("problem", [*FAILS, "Interrupted"])
@pytest.mark.parametrize("seen", [True, False])
def test_a_user_stops_a_run_whose_claim_fails_or_hangs(problem: str | None, seen: bool) -> None:
    """The best eval's checkpoint is there, or not to be seen."""
    # D1
    world, job = running(problem)
    world.scores(KEY, 0.5)
    if not seen:
        job.checkpoints.clear()
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=0))
    world.step(KEY)
    job.wish(run_state=RunState.STOPPED)
    world.go_on(240.0)
    assert job.observed.workload.suspended
    assert bool(job.kept) == seen


def test_a_claim_that_failed_says_why_how_often_and_what_helps() -> None:
    # D1
    world, job = running("OutOfSpace")
    world.scores(KEY, 0.5)
    world.go_on(120.0)
    said = told(job, c.CLAIMED)
    assert (said.status, said.reason) == (False, "OutOfSpace")
    assert "(try 4 failed; the next in 40 s)" in said.message
    assert "What helps: make room on the volume" in said.message
    assert job.record.access is None, "between tries nothing waits for it"
    world.mended()
    world.go_on(200.0)
    assert told(job, c.CLAIMED).status
    assert job.record.claim.problem == ""


def test_a_best_waits_for_no_claim_that_is_tried_again() -> None:
    world, job = running("OutOfSpace")
    world.scores(KEY, 0.5)
    world.go_on(30.0)
    world.failing = None  # from now on it hangs
    for _ in range(200):
        world.go_on(5.0, every=5.0)
        waited = job.record.access
        if waited is not None and waited.operation is Operation.CLAIM and waited.tries and waited.started:
            break
    assert job.record.access.operation is Operation.CLAIM
    world.scores(KEY, 0.6)
    world.step(KEY)
    assert (job.record.access.operation, job.record.access.step) == (Operation.SECURE, 20)


def test_a_first_claim_that_takes_its_time_is_waited_for_a_little() -> None:
    """What the new process saves is told from what lay there: its pin comes after the claim."""
    world = Claims(fails=False)
    job = world.submit(KEY)
    world.go_on(60.0)
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    world.slow = frozenset({Operation.CLAIM})
    begin_process(world, job)
    before = len(world.log)
    world.go_on(20.0, every=5.0)
    assert world.operations()[before:] == [Operation.CLAIM]
    end_claim(job, AccessView("", Operation.CLAIM, True, True))
    world.go_on(10.0, every=5.0)
    assert world.operations()[before:] == [Operation.CLAIM, Operation.SECURE]


def begin_process(world: PolicyWorld, job: Job, score: float = 0.9) -> None:
    """The trainer was started anew in its pod, went on from nothing, and has an eval."""
    life = Attempt(1, "9")
    points = (EvalPoint(10, score, life),)
    job.checkpoints.add(10)
    page = Page(job.desired.uid, life)
    world.scrape(job.desired.key, points=points, checkpoint_step=10, page=page, resumed_step=0)


@pytest.mark.parametrize(
    ("lay_there", "resumed", "judged"),
    [
        pytest.param(40, 40, [50], id="the other branch's"),
        pytest.param(40, 30, [10, 20, 30, 50], id="its own"),
        pytest.param(40, 45, [10, 20, 30, 50], id="beyond what lay there: its own"),
        pytest.param(20, 40, [10, 20, 30, 50], id="nothing of another branch lay there"),
    ],
)
def test_a_checkpoint_that_lay_there_beyond_where_a_process_began_is_of_another_branch(
    lay_there: int, resumed: int, judged: list[int]
) -> None:
    """The first process saved step 40 and died before anybody read of it; the second went on from 20, and
    the third took the highest step that lies there: what the rule has seen since 20 is not on the way."""
    world, job = running(None)
    uid = job.desired.uid

    def show(life: str, evals: tuple[int, ...], **fields: object) -> None:
        points = tuple(EvalPoint(step, 0.5, Attempt(1, life)) for step in evals)
        job.checkpoints.update(evals)
        world.scrape(KEY, points=points, page=Page(uid, Attempt(1, life)), **fields)
        world.go_on(10.0, every=5.0)
        end_claim(job, AccessView("", Operation.CLAIM, True, True, step=lay_there if life == "b" else 0))
        world.go_on(10.0, every=5.0)

    show("a", (10, 20), resumed_step=0)
    show("b", (30,), resumed_step=20)
    show("c", (50,), resumed_step=resumed)
    rule = job.record.rule
    assert [p.step for p in job.record.evals[rule.unjudged :]] == judged


@pytest.mark.parametrize("told", [True, False])
def test_a_claim_that_finds_the_start_on_another_branch_begins_the_rule_anew(told: bool) -> None:
    """The second process came to step 30 as well, and evaluated it, but the 30 that lies there, from which
    the third started, is the first one's: its save record says so. What the third has evaluated counts."""
    world, job = running(None)
    uid = job.desired.uid
    for life, evals, resumed in (("a", (10, 20), 0), ("b", (30, 40), 20), ("c", (40, 50), 30)):
        points = tuple(EvalPoint(step, 0.5, Attempt(1, life)) for step in evals)
        job.checkpoints.update(evals)
        page = Page(uid, Attempt(1, life))
        world.scrape(KEY, points=points, checkpoint_step=40, page=page, resumed_step=resumed)
        world.go_on(10.0, every=5.0)
        end_claim(job, AccessView("", Operation.CLAIM, True, True, other_branch=told and life == "c"))
        world.go_on(10.0, every=5.0)
    rule = job.record.rule
    assert [p.step for p in job.record.evals] == [10, 20, 30, 40, 50]
    assert [p.step for p in job.record.evals[rule.unjudged :]] == ([40, 50] if told else [10, 20, 30, 40, 50])
    assert job.record.best.step in job.checkpoints


def end_claim(job: Job, answer: AccessView) -> None:
    """The claims under way end so."""
    views = tuple(
        replace(answer, request_id=view.request_id)
        if view.operation is Operation.CLAIM and not view.finished
        else view
        for view in job.observed.access
    )
    job.observed = replace(job.observed, access=views)


# -- another RLHFJob has the folder --------------------------------------------------------------------

REFUSED = AccessView("", Operation.CLAIM, True, False, "LocationTaken", "taken by x/y", holder=("u", "x/y"))


def refuse(world: Claims, seconds: float, every: float = 10.0) -> None:
    until = world.now + seconds
    while world.now < until:
        end_claim(world.jobs[KEY], REFUSED)
        world.go_on(every, every)


def test_a_job_whose_folder_is_taken_stays_refused_and_is_told_once() -> None:
    # D2
    world = Claims()
    job = world.submit(KEY, gpus=16)  # it waits in any case
    world.go_on(20.0)
    for _ in range(40):
        refuse(world, 10.0)
        if job.record.claim is not None:
            said = told(job, c.ACCEPTED)
            assert (said.status, said.reason, said.message) == (False, "LocationTaken", "taken by x/y")
            assert job.plan.queue is None
            # Other failures do not say that the folder is free.
            world.failing = "OutOfSpace" if world.now > 1200.0 else None
    assert [e.reason for e in world.events].count("Valid") == 1
    assert len([e for e in world.events if e.reason == "LocationTaken"]) <= 3  # of two conditions
    world.mended()
    world.go_on(120.0)
    assert told(job, c.ACCEPTED).status
    assert told(job, c.CLAIMED).status


@pytest.mark.parametrize("late", [False, True])
def test_gpus_are_held_for_nobody_whose_folder_is_taken(late: bool) -> None:
    """The refusal comes after the admission, at the first claim or at one after another had failed."""
    # D2
    world = Claims(None)
    job, waits = world.submit(KEY, gpus=8), world.submit(OTHER, gpus=8)
    for _ in range(3):
        world.step(KEY, seconds=1.0)
        world.pool_pass()
    assert job.record.admission is not None
    if late:
        end_claim(job, replace(REFUSED, reason="Interrupted"))
        world.step(KEY, seconds=5.0)
        world.step(KEY, seconds=5.0)
    end_claim(job, REFUSED)
    for _ in range(30):
        world.step(KEY, seconds=2.0)
        world._cluster(job)
        world.step(OTHER, seconds=0.0)
        end_claim(waits, AccessView("", Operation.CLAIM, True, True))
        world._cluster(waits)
        world.pool_pass()
    assert job.record.admission is None
    assert job.record.gang_backoff is None
    assert told(job, c.ACCEPTED).reason == "LocationTaken"
    assert not job.started
    assert waits.started == [1]


def test_it_is_queued_and_started_once_the_folder_is_free() -> None:
    # D2
    world = Claims(None)
    job = world.submit(KEY, gpus=8)
    world.go_on(20.0)
    refuse(world, 200.0)
    assert not job.started
    world.mended()
    world.go_on(120.0)
    assert told(job, c.ACCEPTED).status
    assert job.started


def test_a_stopped_run_whose_folder_was_taken_goes_on_once_it_is_free() -> None:
    # D2
    world = Claims(None)
    job = world.submit(KEY)
    world.mended()
    world.go_on(60.0)
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    world.slow = frozenset({Operation.CLAIM})
    begin_process(world, job)
    world.go_on(10.0)
    refuse(world, 30.0)
    assert told(job, c.ACCEPTED).reason == "LocationTaken"
    assert job.observed.workload.suspended is False, "what runs is left to run"
    job.wish(run_state=RunState.STOPPED)
    refuse(world, 200.0)
    assert job.record.decision.pods_gone_at is not None
    world.mended()
    job.wish(run_state=RunState.RUN)
    world.go_on(200.0)
    assert job.started == [1, 2]


def test_a_pin_in_the_folder_of_a_deleted_predecessor_waits_for_the_claim_that_follows_it() -> None:
    """The claims before failed; only a claim can follow the deleted one, so it goes before the pin."""
    # D1
    world, job = running("AccessFailed")
    world.slow = frozenset({Operation.CLAIM, Operation.SECURE})
    world.failing = "LocationTaken"
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    world.slow = frozenset({Operation.CLAIM})
    before = len(world.log)
    world.go_on(60.0)
    assert world.operations()[before:].count(Operation.SECURE) == 0
    assert world.operations()[before:].count(Operation.CLAIM) >= 2
    world.mended()
    world.go_on(90.0)
    assert job.record.secured is not None
    assert told(job, c.ACCEPTED).status


@pytest.mark.parametrize("pinning", [False, True])
def test_what_is_pinned_waits_for_the_claim_that_follows_a_deleted_predecessor(pinning: bool) -> None:
    """The claims before failed. Pins of a user took the turn of the one that follows, again and again."""
    world, job = running("AccessFailed")
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    if pinning:
        job.wish(pins=(10, 20))
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=None))
    world.failing = None
    for _ in range(200):
        world.go_on(5.0, every=5.0)
        if any(view.operation is Operation.CLAIM and not view.finished for view in job.observed.access):
            break
    predecessor = replace(REFUSED, holder=("uid-before", job.desired.key))
    end_claim(job, predecessor)
    before = len(world.log)
    world.go_on(5.0, every=5.0)
    assert [(ask.operation, ask.former) for ask in world.log[before:]] == [(Operation.CLAIM, "uid-before")]
    end_claim(job, AccessView("", Operation.CLAIM, True, True))
    world.go_on(5.0, every=5.0)
    assert job.record.claim.problem == ""


def test_nothing_is_pinned_where_another_has_the_folder_and_the_condition_says_so() -> None:
    world, job = running("AccessFailed")
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    world.failing = None
    job.wish(pins=(20,))
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, checkpoint_step=None))
    refuse(world, 600.0, every=5.0)
    assert job.record.claim.problem == "LocationTaken"
    before = len(world.log)
    refuse(world, 300.0, every=5.0)
    assert {ask.operation for ask in world.log[before:]} == {Operation.CLAIM}
    said = told(job, c.PINNED)
    assert (said.status, said.reason) == (False, "LocationTaken")
    assert said.message.startswith("step 20: taken by x/y. What helps: delete the other RLHFJob")


# -- a process that begins while the run is on its way off its GPUs --------------------------------------


@pytest.mark.parametrize("by", ["a user's stop", "a preemption"])
def test_a_process_that_begins_during_a_stop_is_claimed(by: str) -> None:
    # D7
    world = Claims(fails=False)
    job = world.submit(KEY, preempt_grace=300.0)
    world.go_on(60.0)
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    world.slow = frozenset({Operation.RETAIN})
    if by == "a preemption":
        job.record = job_outcomes.preempted(job.record, Preemption(KEY, "Preempted"), world.now)
    else:
        job.wish(run_state=RunState.STOPPED)
    world.go_on(20.0)
    before = len(world.log)
    begin_process(world, job, 0.9 if by == "a preemption" else 0.4)
    world.go_on(20.0, every=5.0)
    new = [ask for ask in world.log[before:] if ask.operation is Operation.CLAIM]
    if by == "a preemption":
        assert [ask.attempt for ask in new] == [Attempt(1, "9")]
        assert world.log[before].operation is Operation.CLAIM, "before its checkpoints are pinned"
    else:
        assert not new, "never before the copy under way"
        finish_copy(world, job)
        world.go_on(5.0, every=5.0)
        new = [ask for ask in world.log[before:] if ask.operation is Operation.CLAIM]
        assert [ask.attempt for ask in new] == [Attempt(1, "9")]


def test_a_claim_under_way_at_the_suspend_keeps_nothing_else_from_the_store() -> None:
    world = Claims(fails=False)
    job = world.submit(KEY)
    world.go_on(60.0)
    world.scores(KEY, 0.5)
    world.go_on(20.0)
    job.wish(run_state=RunState.STOPPED)
    for _ in range(60):
        decision = job.record.decision
        if decision is not None and decision.retained_at is not None:
            break
        world.go_on(1.0, every=1.0)
    assert decision is not None
    assert decision.suspended_at is None
    world.slow = frozenset({Operation.CLAIM})  # its Job was made, and nobody lets it run
    begin_process(world, job, 0.4)
    world.go_on(120.0, every=5.0)
    assert Operation.CLAIM in {ask.operation for ask in world.log[-2:]}
    assert job.record.decision is not None
    assert job.record.decision.pods_gone_at is not None
    assert job.record.access is None
    job.wish(pins=(10,))
    world.go_on(30.0, every=5.0)
    assert [kept.step for kept in job.record.pinned] == [10]


def finish_copy(world: Claims, job: Job) -> None:
    world.slow = frozenset()
    views = tuple(
        world._access(job, world.asked[view.request_id]) if not view.finished else view
        for view in job.observed.access
    )
    job.observed = replace(job.observed, access=views)


@pytest.mark.parametrize("step", [0, 90])
def test_checkpoints_that_lay_in_the_folder_before_the_job_are_told_once(step: int) -> None:
    class Old(Claims):
        def _access(self, job: Job, ask: StartAccess) -> AccessView:
            found = super()._access(job, ask)
            return replace(found, step=step) if ask.operation is Operation.CLAIM else found

    world = Old(fails=False)
    job = world.submit("ns/a")
    world.go_on(300.0)
    world.scores("ns/a", 0.1, 0.2)
    world.go_on(300.0)
    said = [event.message for event in world.events if event.reason == "EarlierCheckpoints"]
    assert len(said) == (step > 0)
    assert all("checkpoints up to step 90 from before this RLHFJob" in one for one in said)
    assert job.record.claim.newest_step == step
