"""Was a stop right? By the evals since, as what-if judges: on runs whose whole curve is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controller.policy.job import JobRecord, Outcome, PastGrades, StopOutcome
from controller.policy.job.marks import Mark, health
from controller.policy.job.outcome import WINDOW, shadow_record, tally, was_right, were_right
from controller.policy.job.record import Best, Sparing
from controller.policy.job.types import ResumeFrom, ResumeRequest, RunState
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec
from sim.what_if.figures import lost_quality
from sim.workload import Evals
from tests.support.policy_world import Job, PolicyWorld

RUNS, EVALS = 200, 26
RULE = PolicySpec("kDeclines", {"k": 2})
KEY = "ns/a"


def curve(drawn: random.Random) -> list[float]:
    """A run that rises, falls for a while, and then falls on, stays there, or rises again, more or less."""
    peak, trough = drawn.randint(4, 9), drawn.randint(2, 6)
    after = drawn.choice((-0.01, 0.0, 0.01, 0.03, 0.06))
    mean, scores = 0.4, []
    for n in range(EVALS):
        mean += 0.03 if n < peak else -0.04 if n < peak + trough else after
        scores.append(mean + drawn.gauss(0.0, 0.015))
    return scores


def shadow(mode: Mode = Mode.SHADOW, **spec) -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n1": 1})
    job = world.submit(KEY, rule=RULE, mode=mode, **spec)
    world.settle()
    return world, job


def show(world: PolicyWorld, job: Job, scores: list[float], stderr: float | None) -> None:
    """The trainer's page has these evals, at steps 10, 20, …"""
    points = tuple(EvalPoint(10 * n, s, Attempt(1, "1"), stderr=stderr) for n, s in enumerate(scores, 1))
    job.checkpoints.update(p.step for p in points)
    world.scrape(KEY, points=points, checkpoint_step=points[-1].step)
    world.step(KEY)


def completes(world: PolicyWorld, job: Job) -> None:
    assert job.observed.workload is not None
    job.observed = replace(job.observed, workload=replace(job.observed.workload, finished="Complete"))
    world.step(KEY)


@pytest.mark.parametrize("stderr", [None, 0.015])
def test_outcomes_are_what_if_s_on_runs_whose_truth_is_known(stderr: float | None) -> None:
    """200 of 200: the operator sees the evals one by one, what-if the whole curve at once."""
    seen: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
    seed = 0
    while sum(seen.values()) < RUNS // 2:
        scores = curve(random.Random(seed))
        seed += 1
        world, job = shadow()
        stopped = None
        for n in range(1, EVALS + 1):
            show(world, job, scores[:n], stderr)
            if stopped is None and job.record.decision is not None:
                stopped = n - 1
                assert job.record.outcome is not None
                assert job.record.outcome.verdict is Outcome.OPEN
        if stopped is None:
            continue
        completes(world, job)
        found = job.record.outcome
        assert found is not None
        given = Evals(
            at=[n / EVALS for n in range(1, EVALS + 1)],
            scores=scores,
            stderrs=[stderr] * EVALS if stderr is not None else (),
        )
        lost = lost_quality(given, stopped, whole=True)
        expected = {True: Outcome.REFUTED, False: Outcome.BORNE_OUT, None: Outcome.OPEN}[lost]
        assert found.verdict is expected, (seed, was_right(found))
        assert found.evals == EVALS - 1 - stopped
        seen[found.verdict] += 1
    assert min(seen[Outcome.REFUTED], seen[Outcome.BORNE_OUT]) >= 20, seen


RISE_FALL = [0.4, 0.5, 0.6, 0.58, 0.56]


def test_a_window_of_evals_bears_a_stop_out_and_a_later_one_may_refute_it() -> None:
    world, job = shadow()
    scores = list(RISE_FALL)
    show(world, job, scores, 0.01)
    assert job.record.outcome is not None
    for n in range(WINDOW):
        assert job.record.outcome is not None
        assert (job.record.outcome.verdict, job.record.outcome.evals) == (Outcome.OPEN, n)
        scores.append(0.55)
        show(world, job, scores, 0.01)
    found = job.record.outcome
    assert found is not None
    assert (found.verdict, found.evals) == (Outcome.BORNE_OUT, WINDOW)
    assert was_right(found) == (
        "borne out: 8 evals since step 50, where it would have been stopped, and none beats the best, 0.6 at "
        "step 30 by more than noise explains"
    )
    show(world, job, [*scores, 0.62], 0.01)
    assert job.record.outcome is not None
    assert job.record.outcome.verdict is Outcome.BORNE_OUT, "0.02 is what noise explains"
    show(world, job, [*scores, 0.62, 0.65], 0.01)
    assert job.record.outcome is not None
    assert job.record.outcome.verdict is Outcome.REFUTED
    assert "step 150 scored 0.65, 0.05 better than the best, 0.6 at step 30" in was_right(job.record.outcome)


def test_a_would_be_stop_that_the_run_refutes_is_no_trouble_any_more_and_the_next_one_is() -> None:
    """Its mark, state and words stayed, though the newest eval was the best."""
    world, job = shadow()
    show(world, job, RISE_FALL, 0.01)
    assert [one.mark for one in health(job.record, world.now)] == [Mark.WOULD_STOP]
    scores = [*RISE_FALL, 0.64, 0.68, 0.72]
    show(world, job, scores, 0.01)
    world.settle()
    assert health(job.record, world.now) == ()
    assert job.record.decision is None
    assert job.record.condition("TerminationTarget") is None
    refuted = job.record.outcome
    assert refuted is not None
    assert (refuted.verdict, refuted.step) == (Outcome.REFUTED, 50)
    scores += [0.6, 0.5]
    show(world, job, scores, 0.01)
    (again,) = health(job.record, world.now)
    assert again.mark is Mark.WOULD_STOP
    assert job.record.decision is not None
    assert job.record.decision.proposal.step == 100
    assert job.record.outcome is not None
    assert job.record.outcome.step == 50, "Enforce would have stopped it there, and come to no other"
    show(world, job, [*scores, 0.78, 0.82], 0.01)
    world.settle()
    assert health(job.record, world.now) == (), "the second one is refuted, too"
    assert job.record.decision is None


def test_in_enforce_a_would_be_stop_of_before_is_none_once_the_rule_says_no_more() -> None:
    world, job = shadow()
    show(world, job, RISE_FALL, 0.01)
    assert job.record.decision is not None
    scores = [*RISE_FALL, 0.605]
    show(world, job, scores, 0.01)
    assert job.record.outcome is not None
    assert job.record.outcome.verdict is Outcome.OPEN
    assert job.record.decision is not None, "in Shadow it stays, for nothing says that it was wrong"
    job.wish(mode=Mode.ENFORCE)
    plan = world.step(KEY)
    (told,) = [e for e in plan.events if e.reason == "NoLongerDeclining"]
    assert told.message.endswith(
        "would have stopped it at step 50, and says so no more: mode is Enforce by now"
    )
    world.settle()
    assert health(job.record, world.now) == ()
    assert job.record.decision is None


def test_a_resume_alone_proves_nothing_and_the_resumed_run_s_evals_do() -> None:
    world, job = shadow(Mode.ENFORCE)
    show(world, job, RISE_FALL, 0.01)
    world.settle()
    assert job.record.decision is not None
    assert job.record.decision.pods_gone_at is not None
    found = job.record.outcome
    assert found is not None
    assert (found.mode, found.verdict, found.evals) == (Mode.ENFORCE, Outcome.OPEN, 0)
    assert was_right(found) == "open: no eval has been seen since the stop at step 50"
    job.wish(run_state=RunState.RUN, resume=ResumeRequest("again", ResumeFrom.BEST, for_evals=2))
    world.settle()
    assert job.record.attempt == 2
    assert job.record.outcome == found, "it runs again, and that is all"
    assert job.record.sparing == Sparing(2, 1)
    again = Attempt(2, "2")
    for n, score in enumerate((0.58, 0.56, 0.54), 1):
        points = tuple(
            EvalPoint(30 + 10 * m, s, again, 0.01) for m, s in enumerate((0.58, 0.56, 0.54)[:n], 1)
        )
        job.checkpoints.update(p.step for p in points)
        world.scrape(KEY, points=points, checkpoint_step=points[-1].step, resumed_step=30)
        plan = world.step(KEY)
        told = job.record.condition("TerminationTarget")
        assert job.record.outcome is not None
        if n <= 2:
            assert plan.proposal is None, "for two evals its rule stops nothing"
            assert job.record.outcome.evals == n
        if n == 2:
            assert told is not None
            assert (told.reason, "of which 0 are left" in told.message) == ("Spared", True)
        if n == 3:
            assert plan.proposal is not None, score
    resumed = job.record.condition("Resumed")
    assert resumed is not None
    assert resumed.message.endswith("from the checkpoint of step 30; for 2 evals no rule stops it")
    world.settle()
    found = job.record.outcome
    assert found is not None
    assert (found.step, found.evals) == (60, 0), "the second stop"
    assert were_right(found).endswith(f"; the stop before it: {found.former}")
    assert found.former == "open: 3 evals since the stop at step 50; 8 or the run's end are to show it"


def test_the_user_s_own_stop_is_not_judged() -> None:
    world, job = shadow(Mode.ENFORCE)
    show(world, job, RISE_FALL[:3], 0.01)
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert job.record.decision is not None
    assert job.record.outcome is None


def told(verdict: Outcome, mode: Mode = Mode.SHADOW, later: float = 0.5, hours: float = 0.0) -> JobRecord:
    found = StopOutcome(1.0, mode, 50, Best(30, 0.6), verdict=verdict, later=Best(90, later), evals=9)
    return JobRecord(outcome=found, past_grades=PastGrades(stopped=3600.0 * hours))


def test_what_a_pool_s_shadow_has_to_show() -> None:
    borne, open_ = told(Outcome.BORNE_OUT, hours=3.0), told(Outcome.OPEN, hours=2.0)
    refuted, enforced = told(Outcome.REFUTED, later=0.62), told(Outcome.REFUTED, Mode.ENFORCE, later=0.9)
    records = [*[borne] * 12, refuted, open_, enforced, JobRecord()]
    assert shadow_record(records) == (
        "14 would-be stops: 12 borne out, 1 refuted by 0.02, 1 open; 38 GPU-hours"
    )
    assert shadow_record([enforced]) == ""
    assert shadow_record([told(Outcome.OPEN, hours=1.0)]) == "1 would-be stop: 1 open; 1 GPU-hour"
    assert tally(records, Mode.ENFORCE).refuted == 1
