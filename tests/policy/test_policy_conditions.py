"""What a run's conditions say while something goes on, or comes no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.cures import cure_of
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.plan import plan_job
from controller.policy.job.preemption import begin
from controller.policy.job.record import Operation
from controller.policy.job.types import (
    Direction,
    Guardrail,
    Page,
    ProxyMetric,
    ResumeFrom,
    ResumeRequest,
    RunState,
    ScrapeOutcome,
    ScrapeView,
)
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Preemption
from tests.support.policy_world import Job, PolicyWorld

GB = 10**9
OWN, OTHER = Attempt(1, "1"), Attempt(9, "zz")
UNUSABLE = {
    "of no samples": lambda step: EvalPoint(step, 0.0, OWN, samples=0),
    "of another process": lambda step: EvalPoint(step, 0.5, OTHER),
    "not a number": lambda step: EvalPoint(step, float("nan"), OWN),
}


def told(job: Job, kind: str) -> tuple[bool, str, str]:
    found = job.record.condition(kind)
    assert found is not None, kind
    return found.status, found.reason, found.message


def running(**spec: object) -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n1": 8})
    job = world.submit("a", **spec)
    world.settle()
    return world, job


# -- pages that bring nothing usable ------------------------------------------------------------------------


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_page_that_never_brings_a_usable_eval_shows(what: str) -> None:
    """Told from the first page on: there are no evals whose times would tell their interval."""
    world, job = running()
    for k in range(1, 21):
        world.now += 600
        points = tuple(UNUSABLE[what](10 * (i + 1)) for i in range(k))
        world.scrape("a", points=points, checkpoint_step=0, page=Page("uid-a", OWN))
        world.step("a")
        if k == 1:
            assert told(job, c.METRICS)[:2] == (False, "NoEvalsYet"), "it is not watched, and none is overdue"
    status, reason, message = told(job, c.METRICS)
    assert (status, reason) == (False, "NoNewEvals")
    assert f"20 {what}" in message


def test_a_process_that_begins_anew_with_a_dead_scorer_is_missed() -> None:
    """Its restart from step 0 empties `eval_times`; since when an eval is due stands apart from them."""
    world, job = running()
    for score in (0.1, 0.2, 0.3, 0.4, 0.5):
        world.now += 600
        world.scores("a", score)
        world.settle()
    later = Attempt(1, "2")
    said = []
    for k in range(1, 9):
        world.now += 600
        points = tuple(EvalPoint(10 * (i + 1), 0.0, later, samples=0) for i in range(k))
        world.scrape("a", points=points, checkpoint_step=0, resumed_step=0)
        world.step("a")
        said.append(told(job, c.METRICS)[:2])
    assert job.record.eval_times == ()
    assert said[:4] == [(False, "NoEvalsYet")] * 4, "four of the intervals it had, from the new process on"
    assert said[-1] == (False, "NoNewEvals")
    assert "though one takes 10" in told(job, c.METRICS)[2]
    assert type(job.record.evals_due.interval) is float, "a whole number is refused by the status' schema"
    world.scrape("a", points=(EvalPoint(90, 0.4, later),), checkpoint_step=0, resumed_step=0)
    world.step("a")
    assert told(job, c.METRICS)[:2] == (True, "Scraped")


def test_hours_in_the_queue_are_no_silence() -> None:
    """A run that waits and is started again has its interval to make the first eval of the new attempt."""
    world, job = running()
    for score in (0.1, 0.2, 0.3, 0.4, 0.5):
        world.now += 600
        world.scores("a", score)
        world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    world.now += 20_000
    job.wish(run_state=RunState.RUN)
    world.settle()
    points = job.observed.scrape.points
    world.scrape("a", points=points, page=Page("uid-a", Attempt(2, "1")), resumed_step=50)
    world.step("a")
    assert told(job, c.METRICS)[0]
    world.now += 3000
    world.scrape("a", points=points, page=Page("uid-a", Attempt(2, "1")), resumed_step=50)
    world.step("a")
    assert told(job, c.METRICS)[:2] == (False, "NoNewEvals")


@pytest.mark.parametrize("guardrail", [False, True])
@pytest.mark.parametrize(
    ("metric", "direction", "doubted"),
    [
        ("eval_loss", "Maximize", True),
        ("toxicity_score", "Maximize", True),
        ("toxicity", "Minimize", False),
        ("win_rate", "Minimize", True),
        ("win_rate", "Maximize", False),
        ("gold", "Minimize", False),
    ],
)
def test_a_direction_that_its_name_contradicts_is_told_once_before_it_stops_a_good_run(
    metric: str, direction: str, doubted: bool, guardrail: bool
) -> None:
    world = PolicyWorld({"n1": 8})
    job = world.submit("a")
    if guardrail:
        guard = Guardrail(metric, PolicySpec("scan"), Direction(direction))
        job.wish(guardrails=(guard,))
    else:
        job.wish(metric=metric, direction=Direction(direction))
    told_first, *later = [world.step("a").events for _ in range(3)]
    warned = [event.warning for event in told_first if event.reason == "DirectionDoubtful"]
    assert warned == [True] * doubted
    assert not [event for events in later for event in events if event.reason == "DirectionDoubtful"]
    assert ("counts as better" in told(job, c.ACCEPTED)[2]) == doubted
    notes = [one for one in health(job.record, world.now + 1e9) if one.reason == "DirectionDoubtful"]
    assert [one.warning for one in notes] == [False] * doubted, "a name is no proof"
    for one in notes:
        cure = cure_of(one.code).filled("a", "ns", "p", "", one.message)
        other = "Minimize" if direction == "Maximize" else "Maximize"
        assert f'"path":"/spec/metrics/0/direction","value":"{other}"' in cure.patch
        assert "replace" in cure.apply


NO_POD = ScrapeView(ScrapeOutcome.NO_PODS, "no pod of completion index 0 has an address yet")


def ended(world: PolicyWorld, job: Job, seen: ScrapeView | None = None) -> None:
    """The run's pods complete; what is read of them then is ``seen``."""
    done = replace(job.observed.workload, finished="Complete", active=0, settled=True)
    pods = tuple(replace(pod, terminal=True, succeeded=True) for pod in job.observed.pods)
    job.observed = replace(job.observed, workload=done, pods=pods, scrape=seen or job.observed.scrape)
    for _ in range(3):
        world.step("a")


def test_nothing_is_said_of_the_page_of_a_run_that_has_ended() -> None:
    """`NoPods: no pod has an address yet` stayed for ever, with an Event of its own."""
    world, job = running()
    world.scores("a", 0.1, 0.2)
    world.settle()
    assert told(job, c.METRICS)[0]
    ended(world, job, NO_POD)
    assert job.record.finished == "Complete"
    assert job.record.condition(c.METRICS) is None
    assert "NoPods" not in {event.reason for event in job.plan.events}
    assert health(job.record, world.now + 1e6) == ()


@pytest.mark.parametrize("how", ["stopped", "preempted"])
def test_nor_of_one_without_gpus(how: str) -> None:
    """It said that evals are being read."""
    world, job = running()
    world.scores("a", 0.1, 0.2)
    world.settle()
    if how == "stopped":
        job.wish(run_state=RunState.STOPPED)
    else:
        job.record = begin(job.record, Preemption("a", "HigherPriority"), world.now)
    for _ in range(30):
        if job.record.admission is None:
            break
        world.step("a", seconds=60)
        world._cluster(job)
    assert job.record.admission is None
    assert job.record.condition(c.METRICS) is None


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (None, "NeverRead"),
        (NO_POD, "NeverRead"),
        (ScrapeView(ScrapeOutcome.UNREACHABLE, "refused"), "Unreachable"),
        (ScrapeView(ScrapeOutcome.OK, metrics_seen=("acc",)), "MetricMissing"),
    ],
)
def test_a_run_that_completed_without_an_eval_keeps_why(seen: ScrapeView | None, reason: str) -> None:
    world, job = running()
    job.observed = replace(job.observed, scrape=seen)
    world.step("a")
    ended(world, job, NO_POD)
    assert told(job, c.METRICS)[:2] == (False, reason)
    (mark,) = health(job.record, world.now)
    assert (mark.mark, mark.reason, mark.warning) == (Mark.UNWATCHED, reason, True)
    assert "yet" not in mark.message
    again = job.record
    world.step("a")
    assert job.record == again, "written once"


NOTHING = ScrapeView(ScrapeOutcome.OK)
OTHERS = ScrapeView(ScrapeOutcome.OK, metrics_seen=("acc",))
REFUSED = ScrapeView(ScrapeOutcome.UNREACHABLE, "refused")


@pytest.mark.parametrize(
    ("seen", "reason", "said"),
    [
        ((NOTHING,), "NoEvalsYet", "no eval of 'gold' is exported; names seen: none"),
        ((OTHERS,), "MetricMissing", "no eval of 'gold' is exported; names seen: acc"),
        ((REFUSED, OTHERS, REFUSED), "MetricMissing", "names seen: acc"),  # its server had ended first
        ((REFUSED,), "Unreachable", "refused"),
        ((), "NeverRead", "the run ended before its metrics page was read once"),
    ],
)
def test_what_was_known_of_its_page_stays_after_its_pods_are_gone(
    seen: tuple[ScrapeView, ...], reason: str, said: str
) -> None:
    """The pods end, and nothing is there to read, before the workload's status says that it is complete: of
    a run whose page was read for its whole length it was told that it never was."""
    world, job = running()
    for view in seen:
        job.observed = replace(job.observed, scrape=view)
        world.step("a")
    pods = tuple(replace(pod, terminal=True, succeeded=True) for pod in job.observed.pods)
    job.observed = replace(job.observed, pods=pods, scrape=NO_POD)
    world.step("a")
    assert told(job, c.METRICS)[1] == "NoPods", "while it is not known to have ended"
    ended(world, job, NO_POD)
    assert told(job, c.METRICS)[:2] == (False, reason)
    (mark,) = health(job.record, world.now)
    assert (mark.mark, mark.reason) == (Mark.UNWATCHED, reason)
    assert said in mark.message
    assert not mark.message.endswith("yet")
    if reason == "NoEvalsYet":
        assert mark.code == "NoEvals", "there is no first eval to wait for"
    assert job.record.unread is None, "it stands in the condition"


def test_why_no_eval_was_read_is_kept_until_one_is() -> None:
    world, job = running()
    job.observed = replace(job.observed, scrape=OTHERS)
    world.step("a")
    assert job.record.unread is not None
    world.scores("a", 0.1)
    world.step("a")
    assert job.record.unread is None


@pytest.mark.parametrize(
    ("evals", "total", "away", "told_of"),
    [
        (15, 450, 300.0, True),  # no operator was there for the last two thirds
        (15, 450, 20.0, False),  # read until it ended, early, by itself
        (15, 155, 300.0, False),  # it was at its end: nothing but a save came after
        (1, 450, 95.0, True),  # one was read, and nothing tells how often they come
        (2, 450, 95.0, True),
        (1, 450, 20.0, False),
        (1, 18, 95.0, False),
    ],
)
def test_a_run_whose_last_part_nobody_read_is_unwatched(
    evals: int, total: int, away: float, told_of: bool
) -> None:
    """Its best, of step 190, was neither known nor kept, and all was called well."""
    world, job = running()
    for k in range(1, evals + 1):
        world.now += 6.0
        world.scores("a", 0.5 + 0.01 * k)
        job.observed = replace(
            job.observed, scrape=replace(job.observed.scrape, step=10 * k, total_steps=total, at=world.now)
        )
        world.step("a")
    assert job.record.progress is not None
    world.now += away
    ended(world, job, NO_POD)
    found = [mark for mark in health(job.record, world.now) if mark.reason == "EndUnseen"]
    assert bool(found) is told_of
    for mark in found:
        assert (mark.mark, mark.warning) == (Mark.UNWATCHED, True)
        assert f"after step {10 * evals} of 450" in mark.message


def test_a_stop_that_the_pool_s_budget_holds_back_is_told_on_the_job() -> None:
    """Its run used its GPUs for 28 evals, and only the pool's page said why."""
    world, job = running()
    message = "to be stopped, but held back by the pool: 1 stop in the last hour, 0 more are allowed"
    held = c.Conditions(job.record.conditions, 1, world.now)
    held.set(c.TERMINATION, False, "StopBudgetSpent", message)
    record = replace(job.record, conditions=held.result())
    for later, warning in ((1.0, False), (1000.0, True)):
        (mark,) = [one for one in health(record, world.now + later) if one.reason == "StopBudgetSpent"]
        assert (mark.mark, mark.warning, mark.whose) == (Mark.WOULD_STOP, warning, "the pool's owner")
        assert mark.cure().command == "kubectl edit gpupool {pool}", "its mode is Enforce already"
        assert "stop it yourself with evalstop stop" in mark.cure().text


def test_a_run_whose_pool_has_nobody_s_evals_read_is_unwatched_at_once() -> None:
    """It was Running, in mode Enforce, and nothing wrong; the pool's owner had set modeCap Off."""
    world, job = running()
    world.scores("a", 0.5)
    world.settle()
    job.wish(mode=Mode.OFF)
    world.step("a")
    assert health(job.record, world.now) == (), "as its own user asks"
    job.wish(mode=Mode.OFF, capped_off=True)
    world.step("a")
    (mark,) = health(job.record, world.now)
    assert (mark.mark, mark.reason, mark.warning) == (Mark.UNWATCHED, "CappedOff", True)
    assert mark.whose == "the pool's owner"
    job.wish(mode=Mode.ENFORCE, capped_off=False)
    world.settle()
    assert "CappedOff" not in {one.reason for one in health(job.record, world.now)}


def test_a_verdict_of_a_run_with_two_evals_grows_old_too() -> None:  # row 10
    world, job = running(rule=PolicySpec("kDeclines", {"k": 1}))
    world.now += 600
    world.scores("a", 0.5)
    world.settle()
    world.now += 600
    world.scores("a", 0.4)
    for _ in range(3):
        world.step("a")
    assert job.plan.proposal is not None
    world.now += 24 * 3600
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, at=world.now))
    assert world.step("a").proposal is None
    assert told(job, c.TERMINATION)[:2] == (False, "VerdictOutdated")


# -- what is under way --------------------------------------------------------------------------------------


def stopped_once() -> tuple[PolicyWorld, Job]:
    world, job = running(rule=PolicySpec("kDeclines", {"k": 1}))
    world.scores("a", 0.5)
    world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert told(job, c.RETAINED)[0]
    return world, job


def test_a_restore_tells_how_far_it_is_and_what_ails_it() -> None:
    """It said "resume 'r1': from Best" in every pass, with two Events each."""
    world, job = stopped_once()
    request = ResumeRequest("r1", ResumeFrom.BEST)
    job.wish(run_state=RunState.RUN, resume=request)
    world.slow = frozenset({Operation.RESTORE})
    events = [e.reason for e in world.step("a").events]
    assert events == ["Restoring"]
    world.step("a")
    for k in (1, 2, 3):
        world.move_copy("a", 100 * GB * k, 1000 * GB)
        assert world.step("a", seconds=60).events == ()
        assert told(job, c.RESUMED)[:2] == (False, "Restoring")
        assert f"{k}00 GB of 1 TB" in told(job, c.RESUMED)[2]
    (view,) = job.observed.access
    failed = replace(view, finished=True, reason="OutOfSpace", message="no room", progress=None)
    job.observed = replace(job.observed, access=(failed,))
    assert [e.reason for e in world.step("a").events] == ["OutOfSpace"]
    for _ in range(3):
        assert world.step("a").events == ()
        status, reason, message = told(job, c.RESUMED)
        assert (status, reason) == (False, "OutOfSpace")
        assert "try 1 failed" in message
        assert "What helps: make room" in message


def test_the_copy_of_a_second_stop_is_not_that_of_the_first() -> None:
    world, job = stopped_once()
    job.wish(run_state=RunState.RUN)
    world.settle()
    job.checkpoints.add(20)
    point = EvalPoint(20, 0.9, Attempt(2, "x"))
    world.scrape("a", points=(point,), checkpoint_step=20, resumed_step=10)
    world.settle()
    world.slow = frozenset({Operation.RETAIN})
    job.wish(run_state=RunState.STOPPED)
    for k in (1, 2, 3, 4):
        world.step("a", seconds=30)
        world.move_copy("a", 100 * GB * k, 1000 * GB)
        found = job.record.condition(c.RETAINED)
        assert found is None or not found.status, "what is on its way is not retained"
    assert told(job, c.RETAINED)[1] == "InProgress"
    assert "step 20: 300 GB of 1 TB" in told(job, c.RETAINED)[2]


def test_a_new_best_that_takes_long_to_pin_is_told_with_the_pin_that_stands() -> None:
    world, job = running()
    world.scores("a", 0.5)
    world.settle()
    world.slow = frozenset({Operation.SECURE})
    world.scores("a", 0.6)
    world.step("a")
    events = []
    for k in range(1, 8):
        world.move_copy("a", 10 * GB * k, 1000 * GB)
        events += world.step("a", seconds=15).events
        assert told(job, c.SECURED)[0] == (k <= 4), "a minute is short"
    status, reason, message = told(job, c.SECURED)
    assert (status, reason) == (False, "InProgress")
    assert "step 20: 70 GB of 1 TB" in message
    assert "the pin of step 10, the best before, stands" in message
    assert [e.reason for e in events] == ["InProgress"], "once"
    world.slow = frozenset()
    (view,) = job.observed.access
    job.observed = replace(job.observed, access=(world._access(job, world.asked[view.request_id]),))
    world.step("a")
    assert told(job, c.SECURED)[:2] == (True, "Secured")


@pytest.mark.parametrize("failing", [False, True])
def test_a_new_best_that_is_no_more_leaves_the_former_in_safety(failing: bool) -> None:
    """The run went back to before it: the Job is given up, and the condition says what is pinned."""
    world, job = running()
    world.scores("a", 0.5)
    world.settle()
    world.slow = frozenset() if failing else frozenset({Operation.SECURE})
    world.scores("a", 0.6)
    if failing:
        job.checkpoints.discard(20)
    for _ in range(8):
        world.step("a", seconds=15)
        world.move_copy("a", 10 * GB, 1000 * GB)
    assert told(job, c.SECURED)[1] == ("CheckpointMissing" if failing else "InProgress")
    later = Attempt(1, "2")
    world.slow = frozenset()
    job.observed = replace(job.observed, access=())
    world.scrape("a", points=(), page=Page("uid-a", later), resumed_step=10, checkpoint_step=10)
    for _ in range(4):
        world.step("a", seconds=15)
    world.scrape("a", points=(EvalPoint(20, 0.4, later),), resumed_step=10, checkpoint_step=20)
    for _ in range(20):
        world.step("a", seconds=15)
    assert job.record.best is not None
    assert job.record.best.step == 10
    assert told(job, c.SECURED)[:2] == (True, "Secured")


def test_a_lost_best_is_told_until_another_is_in_safety() -> None:
    """New bests come all the time; the job must not look healthy while each waits for its checkpoint."""
    world, job = running()
    for k in range(1, 8):
        world.scrape("a", points=(EvalPoint(10 * k, 0.1 * k, OWN),), checkpoint_step=10 * k)
        job.checkpoints.clear()
        for _ in range(2):
            world.step("a", seconds=15)
            if found := job.record.condition(c.SECURED):
                marks = [m.mark for m in health(job.record, world.now)]
                assert (found.reason == "WaitingForCheckpoint" and k == 1) or Mark.UNSAFE in marks, found
    world.scrape("a", points=(EvalPoint(80, 0.8, OWN),), checkpoint_step=70)
    world.step("a", seconds=15)
    assert told(job, c.SECURED)[1] in ("BestCheckpointLost", "CheckpointMissing")
    assert told(job, c.SECURED)[2].endswith("; under way: the best eval's step 80 has no checkpoint yet")
    world.scores("a", 0.9)
    world.settle()
    assert told(job, c.SECURED)[:2] == (True, "Secured")
    assert not health(job.record, world.now)


def test_a_lost_best_is_warned_of_while_the_next_ones_are_looked_for() -> None:
    """STATE was Unsafe, and no metric said so: the quiet note of each next try hid the warning."""
    world, job = running()
    said: list[tuple[str, bool]] = []
    for k in range(1, 8):
        world.scrape("a", points=(EvalPoint(10 * k, 0.9 - 0.01 * k, OWN),), checkpoint_step=10 * k)
        job.checkpoints.clear()
        for _ in range(6):
            world.step("a", seconds=15)
            warned = Mark.UNSAFE in [m.mark for m in health(job.record, world.now) if m.warning]
            said.append((c.summary(job.record.conditions), warned))
            if job.record.best_is_lost:
                reason, message = told(job, c.SECURED)[1:]
                assert reason == "BestCheckpointLost"
                assert message.startswith("the checkpoint of the best eval, step ")
    assert ("Unsafe", True) in said
    assert set(said) <= {("Running", False), ("Unsafe", True)}
    assert said[-1] == ("Unsafe", True), "and so it stays, whatever is looked for in its place"
    # A better one comes, whose tries would be a quiet note of a job that was not warned of.
    world.scrape("a", points=(EvalPoint(130, 1.5, OWN), EvalPoint(140, 1.6, OWN)), checkpoint_step=140)
    job.checkpoints.clear()
    reasons = set()
    for _ in range(4):
        world.step("a", seconds=15)
        reasons.add(told(job, c.SECURED)[1])
        assert [m.warning for m in health(job.record, world.now)] == [True]
    assert "CheckpointMissing" in reasons
    world.scores("a", 1.7)
    world.settle()
    assert c.summary(job.record.conditions) == "Running"
    assert not health(job.record, world.now)


def test_a_users_pin_tells_how_far_it_is() -> None:
    world, job = running()
    world.scores("a", 0.5, 0.4)
    world.settle()
    world.slow = frozenset({Operation.PIN})
    job.wish(pins=(20,))
    events = list(world.step("a").events)
    for k in (1, 2):
        world.move_copy("a", 100 * GB * k, 1000 * GB)
        events += world.step("a", seconds=60).events
    assert told(job, c.PINNED)[:2] == (False, "Pinning")
    assert "step 20: 200 GB of 1 TB" in told(job, c.PINNED)[2]
    assert [e.reason for e in events] == ["Pinning"]


def test_by_what_a_pin_is_known_to_be_whole_is_told() -> None:
    world, job = running()
    answer = world._access
    world._access = lambda job, ask: replace(answer(job, ask), evidence="Siblings")  # type: ignore[method-assign]
    world.scores("a", 0.5)
    world.settle()
    assert job.record.secured is not None
    assert job.record.secured.evidence == "Siblings"
    assert told(job, c.SECURED)[2].endswith("for it has no save record")


# -- steps that begin anew ----------------------------------------------------------------------------------


def counted_anew(*steps: int, other_scores: bool = False, progress: bool = True) -> list[tuple[bool, str]]:
    """What is told of a run with evals up to step 50, whose page then is at these steps."""
    world, job = running()
    for n in range(1, 6):
        world.now += 60
        world.scores("a", 0.1 * n)
        seen = job.observed.scrape
        more = {"step": 10 * n, "total_steps": 200} if progress else {}
        world.scrape("a", points=seen.points, checkpoint_step=10 * n, **more)
        world.settle()
    known, said = job.observed.scrape.points, []
    for step in steps:
        world.now += 10
        points = tuple(p._replace(score=0.7) if other_scores and p.step <= step else p for p in known)
        if step > 50:
            points = (*known, EvalPoint(step, 0.6, OWN))
        world.scrape("a", points=points, checkpoint_step=50, step=step, total_steps=200 if progress else None)
        world.step("a")
        said.append(told(job, c.METRICS)[:2])
    if other_scores:
        assert "on its page with another score: step 10, 20" in told(job, c.METRICS)[2]
    return said


ANEW, READ = (False, "StepsBeganAnew"), (True, "Scraped")


def read_three() -> tuple[PolicyWorld, Job]:
    """A run of which three evals were read, up to step 30."""
    world, job = running()
    for n in (1, 2, 3):
        world.now += 60
        world.scores("a", 0.1 * n)
        world.settle()
    return world, job


@pytest.mark.parametrize("progress", [True, False])
def test_a_step_counter_that_starts_anew_is_told_at_once(progress: bool) -> None:
    assert counted_anew(1, 20, progress=progress) == [ANEW, ANEW]
    assert counted_anew(1, 60, progress=progress) == [ANEW, READ], "it has come beyond"
    assert counted_anew(45, 41, progress=progress) == [READ, READ], "a page a little behind its eval"


def test_evals_of_known_steps_with_other_scores_are_named() -> None:
    assert counted_anew(20, other_scores=True) == [ANEW]


def test_steps_that_begin_anew_are_a_mark_with_a_cure() -> None:
    world, job = read_three()
    world.scrape("a", points=job.observed.scrape.points, checkpoint_step=30, step=1)
    world.step("a")
    (found,) = [one for one in health(job.record, world.now) if one.reason == "StepsBeganAnew"]
    assert (found.mark, found.warning) == (Mark.UNWATCHED, True)
    assert "evals up to step 30 count for nothing" in found.message
    assert "count its steps through the whole run" in found.cure().text


def after_the_baseline(
    first: float = 20.0, steps: tuple[int | None, ...] = (0,), **spec: object
) -> Iterator[tuple[float, Job]]:
    """A run whose eval of step 0 came ``first`` s after it began to run; then what its page says each 10 s:
    how long that eval is ago (s), and the job."""
    world, job = running(**spec)
    world.now = job.record.admission.running_since + first
    job.checkpoints.add(0)
    points, began = (EvalPoint(0, 0.5, OWN),), world.now
    for n in range(1000):
        step = steps[min(n // 30, len(steps) - 1)]
        world.scrape("a", points=points, checkpoint_step=0, step=step, total_steps=2000)
        world.step("a", seconds=0.0)
        yield world.now - began, job
        world.now += 10.0


def silence(**about: Any) -> float:
    """For how many s after its baseline eval a run looks watched; the end of the look, if it always does."""
    return next((quiet for quiet, job in after_the_baseline(**about) if not told(job, c.METRICS)[0]), 1e9)


@pytest.mark.parametrize(
    ("about", "first_told"),
    [
        ({"first_eval": 120.0}, 310.0),  # it was 20 min, whatever its owner said that an eval may take
        ({"first_eval": 600.0}, 610.0),
        ({}, 1810.0),  # a first step of half an hour is none that hangs
        ({"first_eval": 120.0, "first": 1500.0}, 1510.0),  # nor one that takes as long as a model that loads
        ({"first_eval": 120.0, "steps": (0, 1)}, 1210.0),  # it goes on, and evaluates seldom
        ({"first_eval": 120.0, "steps": (None,)}, 1210.0),  # its page does not say
        ({"steps": (0, 1)}, 1810.0),  # it was 20 min, though an eval may be away longer by default
        ({"first_eval": 120.0, "steps": (2000,)}, 1210.0),
    ],
)
def test_a_run_that_hangs_after_its_first_eval_is_told_and_a_slow_one_is_not(
    about: dict[str, Any], first_told: float
) -> None:
    assert silence(**about) == first_told


def test_a_run_that_makes_no_step_is_a_mark_with_a_cure_of_its_own() -> None:
    job = next(job for quiet, job in after_the_baseline(first_eval=120.0) if quiet >= 320.0)
    status, reason, message = told(job, c.METRICS)
    assert (status, reason) == (False, "NoNewEvals")
    assert message.startswith(
        "no eval of 'gold' since that of step 0, for 5 min, and the trainer has made no"
    )
    (found,) = [one for one in health(job.record, 0.0) if one.mark is Mark.UNWATCHED]
    assert found.code == "StandsStill"
    assert "see whether the trainer hangs" in found.cure().text
    assert c.summary(job.record.conditions) == "Unwatched"


def test_a_new_process_may_begin_at_any_step() -> None:
    world, job = read_three()
    world.scrape("a", points=(), checkpoint_step=0, step=1, page=Page("uid-a", Attempt(1, "2")))
    world.step("a")
    assert told(job, c.METRICS)[1] != "StepsBeganAnew"


# -- what the try-out of issue 21 found ---------------------------------------------------------------------


def test_scores_that_are_no_numbers_are_a_quiet_note_at_once() -> None:
    """It was Running without a word for five minutes, though the page said nan."""
    world, job = read_three()
    points = (*job.observed.scrape.points, EvalPoint(40, float("nan"), OWN))
    world.now += 6
    world.scrape(
        "a", points=points, checkpoint_step=30, message="gold at step 40 is nan: this eval is ignored"
    )
    world.step("a")
    (found,) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.UNWATCHED, "ScoresNotFinite", False)
    assert found.message == "gold at step 40 is nan: this eval is ignored"
    assert told(job, c.METRICS)[0], "the evals before it may go on being judged"
    assert state_reason(job.record) == "ScoresNotFinite"
    world.scrape("a", points=(*points, EvalPoint(50, 0.5, OWN)), checkpoint_step=30)
    world.step("a")
    assert health(job.record, world.now) == ()


def test_how_long_an_eval_takes_is_told_in_its_own_unit() -> None:
    world, job = running()
    for n in (1, 2, 3):
        world.now += 6
        world.scores("a", 0.1 * n)
        world.step("a")
    world.now += 400
    world.scrape("a", points=job.observed.scrape.points, checkpoint_step=0)
    world.step("a")
    _, reason, message = told(job, c.METRICS)
    assert reason == "NoNewEvals"
    assert "though one takes 7 s" in message or "though one takes 6 s" in message


def test_a_run_that_ends_while_it_is_suspended_holds_no_gpus() -> None:
    """It was Completed, and Stuck for good: PodsStuck, with a Completed pod alone."""
    world, job = read_three()
    job.wish(run_state=RunState.STOPPED)
    for _ in range(30):
        world.step("a")
        if job.record.decision is not None and job.record.decision.suspended_at is not None:
            break
    else:
        raise AssertionError("it is not suspended")
    workload = job.observed.workload
    done = tuple(replace(pod, ready=False, terminal=True, succeeded=True) for pod in job.observed.pods)
    job.observed = replace(job.observed, workload=replace(workload, finished="Complete", active=0), pods=done)
    job.record = replace(job.record, decision=replace(job.record.decision, pods_gone_at=None))
    world.step("a")
    assert job.record.finished == "Complete"
    assert job.record.decision.pods_gone_at is not None
    assert [one for one in health(job.record, world.now + 3600.0) if one.mark is Mark.STUCK] == []


def test_a_run_that_somebody_suspends_is_told_when_it_is_started_again() -> None:
    world, job = read_three()
    job.observed = replace(job.observed, workload=replace(job.observed.workload, suspended=True))
    (event,) = [e for e in world.step("a").events if e.reason == "SuspendedByOthers"]
    assert event.warning
    assert "it is started again" in event.message
    assert "evalstop stop" in event.message
    assert not [e for e in world.step("a").events if e.reason == "SuspendedByOthers"], "once"


SCALED = (("spec.completions", 1), ("spec.parallelism", 0))


@pytest.mark.parametrize("ref", ["", "batch/v1 Job own"])
def test_a_run_that_somebody_scales_down_is_told(ref: str) -> None:
    """It was Running with no pod at all, for as long as anybody looked, and no text named the field."""
    world, job = read_three()
    job.wish(workload_ref=ref)
    small = replace(job.observed.workload, sizes=SCALED)
    job.observed = replace(job.observed, workload=small, pods=())
    plan = plan_job(job.desired, job.observed, job.record, world.now)
    assert [e.warning for e in plan.events if e.reason == "ScaledByOthers"] == [True]
    condition = plan.record.condition(c.RUNNING)
    assert (condition.status, condition.reason) == (False, "ScaledByOthers")
    name = "own" if ref else "a"
    assert f"Job {name}: spec.parallelism is 0, expected 1 as in spec.gang.replicas" in condition.message
    (found,) = [one for one in health(plan.record, world.now + 31.0) if one.reason == "ScaledByOthers"]
    assert (found.mark, found.warning) == (Mark.NOT_STARTING, True)
    sizes = '{"spec":{"completions":1,"parallelism":1}}'
    cure = found.cure().filled("a", "team", "a100", "", found.message)
    assert cure.command == f"kubectl patch job {name} -n team --type merge -p '{sizes}'"
    whole = replace(job.observed, workload=replace(small, sizes=tuple((f, 1) for f, _ in SCALED)))
    later = plan_job(job.desired, whole, plan.record, world.now + 1.0)
    assert later.record.condition(c.RUNNING).reason == "Starting"


def test_a_run_whose_pods_are_gone_is_not_called_running_and_is_told_as_evals_are() -> None:
    """Its evals, 80 s apart, were to be missed after four of that, and it waited for half an hour."""
    world, job = read_three()
    away = ScrapeView(ScrapeOutcome.NO_PODS, "no pod has an address yet", at=world.now)
    gone = replace(job.observed, pods=(), scrape=away)
    plan = plan_job(job.desired, gone, job.record, world.now)
    condition = plan.record.condition(c.RUNNING)
    assert (condition.status, condition.message) == (False, "0 of 1 members are ready")
    for seconds, warns in ((310.0, False), (330.0, True)):
        (found,) = [one for one in health(plan.record, world.now + seconds) if one.reason == "NoPods"]
        assert found.warning is warns
    ended = tuple(replace(pod, ready=False, terminal=True, succeeded=True) for pod in job.observed.pods)
    plan = plan_job(job.desired, replace(job.observed, pods=ended), job.record, world.now)
    assert plan.record.condition(c.RUNNING).status, "it ended well"


@pytest.mark.parametrize("seen", [False, True])
def test_a_proxy_that_never_appears_is_told(seen: bool) -> None:
    world, job = running(proxy=ProxyMetric("gold_proxy", Direction.MAXIMIZE))
    point = EvalPoint(10, 0.5, OWN)
    metrics = ("gold", "gold_proxy") if seen else ("gold", "gold_prox")
    world.scrape("a", points=(point,), checkpoint_step=0)
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, metrics_seen=metrics))
    world.step("a")
    message = told(job, c.METRICS)[2]
    missing = "no eval of 'gold_proxy', of role Proxy, is exported, did you mean 'gold_prox'?"
    assert (missing in message) is not seen


def test_in_mode_off_it_is_told_that_nobody_reads_it() -> None:
    world, job = read_three()
    job.wish(mode=Mode.OFF)
    world.step("a")
    assert told(job, c.METRICS) == (
        False, "ModeOff", "its mode is Off: its evals are not read, and nothing stops it",
    )  # fmt: skip
    assert state_reason(job.record) == "ModeOff"
    assert health(job.record, world.now) == (), "its own user wants it so"
    before = job.record
    world.step("a")
    assert job.record == before, "nothing is written again and again"
    job.wish(mode=Mode.SHADOW)
    world.settle()
    assert told(job, c.METRICS)[:2] == (True, "Scraped")


@pytest.mark.parametrize(("others", "told"), [(31, False), (32, True)])
def test_a_metric_that_comes_after_as_many_as_a_page_has_is_told_why(others: int, told: bool) -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    world.scores("ns/a", 0.1)
    assert job.observed.scrape is not None
    names = tuple(f"other{number}" for number in range(others))
    seen = replace(job.observed.scrape, points=(), metrics_seen=names)
    job.observed = replace(job.observed, scrape=seen)
    world.step("ns/a")
    found = job.record.condition(c.METRICS)
    assert found is not None
    assert found.reason == "MetricMissing"
    assert ("a page has 32 at most" in found.message) is told
