"""A run that is started again, and whose trainer does not look for its checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.types import Page, ResumeFrom, ResumeRequest, RunState
from controller.policy.pool import job_outcomes
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Preemption
from tests.support.policy_world import Job, PolicyWorld

KEY, R = "ns/a", 110
STEPS = tuple(range(10, R + 40, 10))
TOTAL = 600


def page(
    world: PolicyWorld,
    life: Attempt,
    steps: tuple[int, ...] = (),
    step: int | None = None,
    saved: int | None = None,
    resumed: int | None = None,
) -> None:
    """What the trainer shows: ``steps`` of its evals, each worse after `R` than the one before."""
    points = tuple(EvalPoint(n, 0.5 + 0.01 * min(n, R) - 0.2 * max(0, n - R), life) for n in steps)
    job = world.jobs[KEY]
    job.checkpoints |= set(steps)
    seen = {"step": step, "total_steps": TOTAL, "checkpoint_step": saved, "resumed_step": resumed}
    world.scrape(KEY, points=points, page=Page(f"uid-{KEY}", life), **seen)
    if not points:
        assert job.observed.scrape is not None
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, metrics_seen=()))


def started_again(source: ResumeFrom | None, epoch: int = TOTAL) -> tuple[PolicyWorld, Job]:
    """A run in its second attempt: resumed after its rule's stop, or (None) preempted at step `R`.

    ``epoch``: after so many the trainer's own step begins again.
    """
    world = PolicyWorld({"n1": 4})
    job = world.submit(KEY, 1, 4, mode=Mode.ENFORCE)
    world.settle()
    life = Attempt(1, "1")
    page(world, life, STEPS[:1], STEPS[0], STEPS[0], 0)
    world.settle()
    if source is None:
        page(world, life, STEPS[: R // 10], R, R, 0)
        world.settle()
        world.now = job.record.admission.running_since + 100.0  # type: ignore[union-attr, operator]
        job.record = job_outcomes.preempted(job.record, Preemption(KEY, "ShorterJobWaits"), world.now)
    else:
        page(world, life, STEPS, STEPS[-1] % epoch, STEPS[-1], 0)
        world.settle()
        assert job.record.decision is not None, "its rule has stopped it"
        step = R if source is ResumeFrom.STEP else None
        job.wish(resume=ResumeRequest("r", source, step), run_state=RunState.RUN)
    world.settle()
    assert job.record.attempt == 2
    assert job.record.admission is not None
    return world, job


def marked(world: PolicyWorld, job: Job) -> list[str]:
    return [f.message for f in health(job.record, world.now) if f.reason == c.BEGAN_AT_THE_START]


def said(job: Job) -> tuple[bool, str, str]:
    found = job.record.condition(c.RESUMED)
    assert found is not None
    return found.status, found.reason, found.message


SECOND = Attempt(2, "2")


@pytest.mark.parametrize(
    ("source", "claims"),
    [(ResumeFrom.BEST, None), (ResumeFrom.BEST, R), (ResumeFrom.LATEST, None), (None, None)],
)
def test_a_trainer_that_does_not_go_on_is_told_at_once(source: ResumeFrom | None, claims: int | None) -> None:
    """``claims``: what older clients say by themselves, though nobody looked for the checkpoint."""
    world, job = started_again(source)
    begins = STEPS[-1] if source is ResumeFrom.LATEST else R
    page(world, SECOND, (), 0, None, claims)
    world.step(KEY)
    assert marked(world, job) == [], "it has not begun to train"
    page(world, SECOND, (), 30, None, claims)
    planned = world.step(KEY)
    (message,) = marked(world, job)
    assert f"attempt 2 was to go on from step {begins} and trains at step 30" in message
    (finding,) = [f for f in health(job.record, world.now) if f.reason == c.BEGAN_AT_THE_START]
    assert (finding.mark, finding.warning) == (Mark.UNSAFE, True)
    assert state_reason(job.record) == c.BEGAN_AT_THE_START
    assert "client.resume_path" in finding.cure().text
    assert [e.warning for e in planned.events if e.reason == c.BEGAN_AT_THE_START] == [True]
    assert said(job)[:2] == (False, c.BEGAN_AT_THE_START), "and not: goes on from the checkpoint"
    page(world, SECOND, (), 40, None, claims)
    before = job.record
    assert world.step(KEY).events == ()
    assert job.record.conditions == before.conditions, "a step alone writes no status"


@pytest.mark.parametrize("claims", [None, R])
def test_its_evals_are_those_of_a_run_that_began_anew(claims: int | None) -> None:
    world, job = started_again(ResumeFrom.BEST)
    page(world, SECOND, (10, 20, 30), 30, 30, claims)
    world.step(KEY)
    assert [(p.step, p.attempt) for p in job.record.evals] == [(n, SECOND) for n in (10, 20, 30)]
    assert marked(world, job)
    assert job.record.best is not None
    assert job.record.best.step == R, "the pinned one stays the best"
    page(world, SECOND, tuple(range(10, 130, 10)), 120, 120, claims)
    world.step(KEY)
    assert job.record.evals[-1].step == 120
    for _ in range(2):
        assert marked(world, job) == [], "it has come to where it was to begin"
        assert world.step(KEY).events == (), "and is not told again"


@pytest.mark.parametrize(
    ("course", "source"),
    [
        ("says where it started, evaluates that step again", ResumeFrom.BEST),
        ("counts from 0, and says one step less", ResumeFrom.BEST),
        ("went on from an earlier checkpoint, and says so", ResumeFrom.BEST),
        ("says that it began afresh: nothing lay there", None),
        ("loads for long: no step yet", ResumeFrom.BEST),
        ("loads for long: step 0, a baseline eval of step 0", None),
        ("goes on by its framework, and says nothing", ResumeFrom.LATEST),
        ("goes on by its framework, and says nothing", None),
        ("counts the steps of an epoch in rlhf_step", ResumeFrom.BEST),
        ("is read for the first time beyond that step", ResumeFrom.STEP),
        ("restarts within the attempt, from a later checkpoint", None),
    ],
)
def test_healthy_courses_bear_no_mark(course: str, source: ResumeFrom | None) -> None:
    world, job = started_again(source, epoch=25 if "epoch" in course else TOTAL)
    begins = STEPS[-1] if source is ResumeFrom.LATEST else R
    third, after = Attempt(2, "3"), begins + 10
    pages = {
        "says where": [(SECOND, (), begins, None, R), (SECOND, (R, R + 10), R + 12, R + 10, R)],
        "counts from": [(SECOND, (), R - 1, None, R - 1), (SECOND, (R + 10,), R + 10, R + 10, R - 1)],
        "went on from": [(SECOND, (), 50, None, 50), (SECOND, (60, 70), 71, 70, 50)],
        "says that": [(SECOND, (), 1, None, 0), (SECOND, (10, 20), 25, 20, 0)],
        "loads for long: no": [(SECOND, (), None, None, None)] * 3,
        "loads for long: step": [(SECOND, (0,), 0, None, None), (SECOND, (0, after), after, after, None)],
        "goes on": [(SECOND, (), begins + 1, None, None), (SECOND, (after,), after + 1, after, None)],
        "counts the": [(SECOND, (), 10, None, R), (SECOND, (R + 10,), 21, R + 10, R)],
        "is read": [(SECOND, (200, 210), 215, 210, None)],
        "restarts": [(SECOND, (), R, None, R), (SECOND, (150,), 159, 150, R), (third, (), 151, None, None)],
    }
    (shown,) = [found for begin, found in pages.items() if course.startswith(begin)]
    for life, steps, step, saved, resumed in shown:
        page(world, life, steps, step, saved, resumed)
        world.step(KEY, seconds=30.0)
        assert marked(world, job) == []
    if "earlier" in course:
        assert said(job) == (True, "Resumed", f"attempt 2 was to go on from step {R}, and began at step 50")
    elif source is ResumeFrom.BEST:
        assert said(job)[:2] == (True, "Resumed")


@pytest.mark.parametrize(
    ("source", "claims", "told"),
    [
        (ResumeFrom.LATEST, 0, True),
        (ResumeFrom.LATEST, 50, False),  # it went on from an earlier one
        (ResumeFrom.BEST, 0, False),  # the operator named it: a client that cannot use it ends with an error
        (None, 0, False),  # a preemption: what is lost is counted
    ],
)
def test_a_resumed_run_that_found_no_checkpoint_is_noted(
    source: ResumeFrom | None, claims: int, told: bool
) -> None:
    """It began at step 0, and nothing said so but the trainer's own log."""
    world, job = started_again(source)
    page(world, SECOND, (), 5, None, claims)
    world.step(KEY)
    page(world, SECOND, (claims + 10,), claims + 12, None, claims)
    world.step(KEY)
    found = [f for f in health(job.record, world.now + 4000.0) if f.reason == c.BEGAN_AFRESH]
    assert bool(found) is told
    if told:
        assert not found[0].warning
        assert state_reason(job.record) == c.BEGAN_AFRESH
        assert (
            f"attempt 2 was to go on from step {STEPS[-1]}, and its trainer says that it began at step 0"
            in (found[0].message)
        )
        assert "evalstop resume --from best" in found[0].cure().text
        page(world, SECOND, tuple(range(10, STEPS[-1] + 10, 10)), STEPS[-1], None, claims)
        world.step(KEY)
        assert c.BEGAN_AFRESH not in [f.reason for f in health(job.record, world.now)], "it has come there"


@pytest.mark.parametrize(
    ("resumed", "step", "steps", "share", "reason"),
    [
        (None, 30, (), 1.0, c.BEGAN_AT_THE_START),
        (None, 130, (10, 60, 120), 1.0, "WorkLost"),  # read late
        (0, 30, (), 1.0, "WorkLost"),
        (55, 60, (), 0.5, "WorkLost"),
    ],
)
def test_lost_work_is_counted_by_where_the_next_process_begins(
    resumed: int | None, step: int, steps: tuple[int, ...], share: float, reason: str
) -> None:
    world, job = started_again(None)
    worked = job.record.attained
    assert worked > 0
    assert job.record.lost == 0.0, "by its latest checkpoint nothing was"
    page(world, SECOND, steps, step, None, resumed)
    (event,) = [e for e in world.step(KEY).events if e.reason == reason]
    assert event.warning
    assert f"{worked * share:.0f} GPU-seconds more of work were lost" in event.message
    assert job.record.lost == pytest.approx(worked * share)
    page(world, SECOND, (), step + 10, None, resumed)
    world.step(KEY)
    assert job.record.lost == pytest.approx(worked * share), "once"


def test_a_process_that_goes_on_loses_nothing_and_a_later_one_is_not_charged_to_the_preemption() -> None:
    world, job = started_again(None)
    page(world, SECOND, (), R + 5, None, R)
    world.step(KEY)
    page(world, Attempt(2, "3"), (), 20, None, None)
    world.step(KEY)
    assert marked(world, job)
    assert job.record.lost == 0.0


def test_the_mark_is_of_one_process_and_of_a_run_that_trains() -> None:
    world, job = started_again(ResumeFrom.BEST)
    page(world, SECOND, (10, 20), 20, 20, None)
    world.step(KEY)
    assert marked(world, job)
    page(world, Attempt(2, "3"), (), R, None, R)
    world.step(KEY)
    assert marked(world, job) == []
    page(world, Attempt(2, "4"), (), 10, None, None)
    world.step(KEY)
    assert marked(world, job)
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert marked(world, job) == [], "nothing trains"


FIRST, AGAIN = Attempt(1, "1"), Attempt(1, "2")
EVALS = tuple(range(10, 210, 10))  # of the first process; R is the best, and pinned in Enforce


def first_attempt(
    mode: Mode = Mode.SHADOW, saved: int | None = 200, step: int | None = 205, resumed: int | None = None
) -> tuple[PolicyWorld, Job]:
    """A run whose first process has come to step 205. ``saved``: its newest checkpoint, as its page says."""
    world = PolicyWorld({"n1": 4})
    job = world.submit(KEY, 1, 4, mode=mode, rule=PolicySpec("kDeclines", {"k": 3, "min_delta": 99.0}))
    world.settle()
    for n in (1, 10, len(EVALS)):
        page(world, FIRST, EVALS[:n], step and EVALS[n - 1] + 5, saved and min(saved, EVALS[n - 1]), resumed)
        world.settle()
    assert job.record.attempt == 1
    assert (job.record.secured is not None) is (mode is Mode.ENFORCE)
    return world, job


BEGUN = {  # life, evals, the trainer's step, its checkpoint, the start that it names
    "its step": [(AGAIN, (), 5, None, None)],
    "its first evals": [(AGAIN, (10, 20), None, 20, None)],
    "both": [(AGAIN, (10, 20), 25, 20, None)],
    "it loads first": [(AGAIN, (), 0, None, None), (AGAIN, (), 3, None, None)],
    "it is read late": [(AGAIN, tuple(range(10, 160, 10)), 155, 150, None)],
    "one between them said nothing": [(Attempt(1, "3"), (), 0, None, None), (AGAIN, (), 5, None, None)],
}


KNOWN = [(Mode.SHADOW, 200, 200), (Mode.ENFORCE, 200, 200), (Mode.ENFORCE, None, R), (Mode.SHADOW, 100, 100)]


@pytest.mark.parametrize(
    ("course", "mode", "saved", "known"),
    [(course, *how) for course in BEGUN for how in KNOWN if how[2] > 155 or "late" not in course],
)
def test_a_process_that_begins_at_the_start_within_its_attempt_is_told(
    course: str, mode: Mode, saved: int | None, known: int
) -> None:
    """Its pod was replaced. ``known``: where it was to go on, by its page, or by what is pinned of it."""
    world, job = first_attempt(mode, saved)
    for shown in BEGUN[course]:
        assert marked(world, job) == []
        page(world, *shown)
        planned = world.step(KEY)
    (message,) = marked(world, job)
    assert f"attempt 1 was started again, was to go on from step {known} and trains at step " in message
    (finding,) = [f for f in health(job.record, world.now) if f.reason == c.BEGAN_AT_THE_START]
    assert (finding.mark, finding.warning) == (Mark.UNSAFE, True)
    assert "client.resume_path" in finding.cure().text
    assert [e.warning for e in planned.events if e.reason == c.BEGAN_AT_THE_START] == [True]
    assert job.record.lost == 0.0, "no preemption cost it"
    world.jobs[KEY].record = replace(job.record, secured=None, retained=())  # a later best's takes its place
    page(world, AGAIN, tuple(range(10, known, 10)), known - 1, known - 10)
    assert c.BEGAN_AT_THE_START not in [e.reason for e in world.step(KEY).events], "it is told once"
    assert len(marked(world, job)) == 1
    page(world, AGAIN, tuple(range(10, known + 10, 10)), known + 1, known)
    world.step(KEY)
    for _ in range(2):
        assert marked(world, job) == [], "it has come to where it was to begin"
        assert c.BEGAN_AT_THE_START not in [e.reason for e in world.step(KEY).events]


@pytest.mark.parametrize(
    ("course", "first"),
    [
        ("went on from its checkpoint, and says so", {}),
        ("went on from its checkpoint by its framework, and says nothing", {}),
        ("went on from a former checkpoint, and says so", {}),
        ("went on from a former checkpoint, and says nothing", {}),
        ("its former checkpoint is the second that was saved", {}),
        ("says that it began afresh: its volume was lost", {}),
        ("loads for long", {}),
        ("evaluates its start", {}),
        ("begins at the start, of a run that has saved nothing", {"saved": None}),
        ("begins at the start, though only its rule's evals are known", {"saved": None, "step": None}),
        ("began at the start, as one before it had said of itself", {}),
        ("begins at the start, where checkpoints count another thing", {"saved": 5, "step": None}),
        ("its evals come much later", {}),
    ],
)
def test_a_process_within_its_attempt_that_is_well_or_not_certain_bears_no_mark(
    course: str, first: dict[str, int | None]
) -> None:
    mode = Mode.SHADOW if first else Mode.ENFORCE  # which pins its best: a checkpoint is known
    world, job = first_attempt(mode, **first)
    third = Attempt(1, "3")
    pages = {
        "went on from its checkpoint, and": [(AGAIN, (), 200, None, 200), (AGAIN, (210,), 211, 210, 200)],
        "went on from its checkpoint by": [(AGAIN, (), 201, None, None), (AGAIN, (210,), 211, 210, None)],
        "went on from a former checkpoint, and says so": [(AGAIN, (60,), 61, 60, 50)],
        "went on from a former checkpoint, and says n": [
            (AGAIN, (), 51, None, None),
            (AGAIN, (60,), 61, 60, None),
            (AGAIN, (60, 70), 71, 70, None),
        ],
        "its former": [
            (AGAIN, (), 21, None, None),
            (AGAIN, (30,), 31, 30, None),
            (third, (), 31, None, None),
        ],
        "says that": [(AGAIN, (), 1, None, 0), (AGAIN, (10, 20), 25, 20, 0), (third, (), 21, None, None)],
        "loads for": [(AGAIN, (), None, None, None), (AGAIN, (), 0, None, None)],
        "evaluates": [(AGAIN, (0,), 0, None, None), (AGAIN, (0, 210), 211, 210, None)],
        "begins at": [(AGAIN, (), 5, None, None), (AGAIN, (10, 20), 25, None, None)],
        "began at": [(AGAIN, (), 5, None, 0), (third, (), 5, None, None), (third, (10,), 12, None, None)],
        "its evals": [(AGAIN, (), 90, None, None), (AGAIN, (100,), 101, 100, None)],
    }
    (shown,) = [found for begin, found in pages.items() if course.startswith(begin)]
    for life, steps, step, saved, resumed in shown:
        page(world, life, steps, step, saved, resumed)
        world.step(KEY, seconds=30.0)
        assert marked(world, job) == []


def test_the_page_of_another_member_is_no_new_beginning() -> None:
    world, job = first_attempt()
    for known, member, told in ((0, 1, False), (0, 0, True), (None, 1, True)):
        lives = tuple(replace(one, member=known) for one in job.record.lives)
        page(world, AGAIN, (), 5)
        assert job.observed.scrape is not None
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, member=member))
        before, job.record = job.record, replace(job.record, lives=lives)
        world.step(KEY)
        assert bool(marked(world, job)) is told
        job.record = before


def test_a_checkpoint_alone_writes_no_status_and_the_newest_that_is_told_counts() -> None:
    world, job = first_attempt()
    before = job.record
    page(world, FIRST, EVALS, 206, 205)
    world.step(KEY)
    assert job.record == before
    page(world, FIRST, (*EVALS, 210), 211, 210)
    world.step(KEY)
    assert job.record.lives[-1].checkpoint == 210
    page(world, AGAIN, (10,), 11, 10)
    world.step(KEY)
    assert "from step 210" in marked(world, job)[0]
    page(world, Attempt(1, "3"), (), 11)
    world.step(KEY)
    assert marked(world, job) == [], "it went on from step 10: the mark was of the one before"


def test_what_a_page_that_is_anybody_s_says_of_its_checkpoint_is_not_known() -> None:
    world, job = first_attempt()
    page(world, FIRST, (*EVALS, 210), 211, 210)
    assert job.observed.scrape is not None
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, page=None))
    world.step(KEY)
    assert job.record.evals[-1].step == 210
    assert job.record.lives[-1].checkpoint == 200
