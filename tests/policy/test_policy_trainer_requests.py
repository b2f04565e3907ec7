"""Fresh evals asked of the trainer: intent in the record, the file, the answer, and every way it may fail.

The confirm modifier's own arithmetic is in test_policy_confirm.py; here a job waits for what it asked for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job.record import JobRecord, RunFile
from controller.policy.job.types import Guardrail, MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.pool import job_outcomes
from controller.policy.types import Attempt, EvalPoint, Mode, Paired, PolicySpec, Preemption
from tests.support.policy_world import PolicyWorld

K2 = PolicySpec("kDeclines", {"k": 2})
FALL = (0.1, 0.9, 0.8, 0.7)  # asks at the fourth; best at step 20


def confirm(**params: object) -> PolicySpec:
    return PolicySpec("confirm", {"wait_seconds": 600, **params})  # type: ignore[dict-item]


def running(mode: Mode = Mode.ENFORCE, rule: PolicySpec = K2, **params: object) -> PolicyWorld:
    world = PolicyWorld({"n1": 1})
    world.submit("ns/a", rule=rule, modifiers=(confirm(**params),), mode=mode)
    world.settle()
    return world


def evals(
    world: PolicyWorld,
    *scores: float,
    served: int | None = 0,
    paired: Paired | None = None,
    passes: int = 5,
    safety: tuple[float, ...] = (),
) -> None:
    """The trainer's whole window; ``paired`` is of the newest eval, ``safety``: scores of that guardrail."""
    job = world.jobs["ns/a"]
    life = Attempt(1, "1")
    points = [EvalPoint(10 * (i + 1), s, life, 0.01) for i, s in enumerate(scores)]
    points[-1] = points[-1]._replace(paired=paired)
    job.checkpoints |= {p.step for p in points}
    others = tuple(p._replace(score=s, paired=None) for p, s in zip(points, safety, strict=False))
    world.scrape(
        "ns/a",
        points=tuple(points),
        others=(MetricPoints("safety", others),) if others else (),
        checkpoint_step=points[-1].step,
        request_served=served,
    )
    look(world, passes)


def look(world: PolicyWorld, passes: int = 5) -> None:
    for _ in range(passes):
        world.step("ns/a", seconds=0.0)
        world._cluster(world.jobs["ns/a"])
        world.pool_pass()


def record(world: PolicyWorld) -> JobRecord:
    return world.jobs["ns/a"].record


def written(world: PolicyWorld) -> RunFile:
    found = world.jobs["ns/a"].observed.run_written
    assert found is not None
    return found


def target(world: PolicyWorld) -> str | None:
    found = record(world).condition(c.TERMINATION)
    return None if found is None else found.reason


def test_the_trainer_is_asked_once_for_an_eval_with_the_best_scored_beside_it() -> None:
    world = running()
    evals(world, *FALL)
    assert record(world).decision is None
    assert target(world) == "AwaitingFreshEval"
    assert (written(world).request_id, written(world).evaluate) == (1, True)
    assert written(world).reference_step == 20  # the kept checkpoint of the best eval
    before, writes = record(world), world.writes
    look(world)
    assert (record(world), world.writes) == (before, writes)  # nothing more until it answers
    evals(world, *FALL, 0.6, served=1)
    world.settle()
    assert record(world).decision is not None
    assert record(world).decision.proposal.reason == "ConfirmedByFreshEvals"


def test_the_trainer_is_told_how_often_it_is_read() -> None:
    """It stays for its last eval to be read when it has ended, and must know how long that takes."""
    world = running()
    job = world.jobs["ns/a"]
    assert written(world).scrape_interval == job.desired.scrape_interval == 15.0
    evals(world, 0.5)
    job.desired = replace(job.desired, scrape_interval=60.0)
    evals(world, 0.5, 0.6)
    assert written(world).scrape_interval == 60.0
    writes = world.writes
    look(world)
    assert world.writes == writes


@pytest.mark.parametrize(("mean", "stopped"), [(-0.3, True), (-0.1, False), (0.2, False)])
def test_pairs_on_the_fresh_prompts_decide(mean: float, stopped: bool) -> None:
    world = running()
    evals(world, *FALL)
    evals(world, *FALL, 0.75, served=1, paired=Paired(20, 100, mean, 1.0))
    assert (record(world).decision is not None) is stopped
    assert record(world).confirming is None
    if not stopped:
        assert target(world) is None
        assert record(world).condition(c.DECLINING).reason == "NotConfirmed"


def test_the_intent_is_in_the_record_before_the_file_is_written() -> None:
    """Killed between the two, the next operator writes what the record says, under the same id."""
    world = running()
    evals(world, *FALL[:-1])  # the best is in safety
    evals(world, *FALL, passes=0)
    world.step("ns/a", acts=0)
    assert (record(world).run.evaluate, record(world).confirming.request_id) == (True, 1)
    assert not written(world).evaluate
    look(world)
    assert record(world).confirming.request_id == written(world).request_id == 1


@pytest.mark.parametrize(
    ("unanswered", "reason", "stopped"),
    [("NextEval", "AwaitingNextEval", False), ("Stop", "Unconfirmed", True)],
)
def test_a_trainer_that_does_not_answer_in_time(unanswered: str, reason: str, stopped: bool) -> None:
    world = running(unanswered=unanswered)
    for count in range(1, len(FALL) + 1):
        world.now += 300.0  # evals come seldom: a verdict that is ten minutes old is of now
        evals(world, *FALL[:count])
    asked = record(world).confirming
    assert asked is not None
    assert world.jobs["ns/a"].plan.requeue_after is not None  # it wakes by itself
    world.now = asked.at + 599.0
    look(world)
    assert target(world) == "AwaitingFreshEval"
    world.now = asked.at + 600.0
    look(world)
    assert (record(world).decision is not None) is stopped
    if stopped:
        assert record(world).decision.proposal.reason == reason
    else:
        assert target(world) == reason
        assert "not answered within 600 s" in record(world).condition(c.TERMINATION).message
        evals(world, *FALL, 0.6)  # its own next eval settles it
        assert record(world).decision is not None


@pytest.mark.parametrize(("unanswered", "stopped"), [("NextEval", False), ("Stop", True)])
def test_a_trainer_that_cannot_be_asked(unanswered: str, stopped: bool) -> None:
    world = running(unanswered=unanswered)
    evals(world, *FALL, served=None)
    assert not written(world).evaluate
    assert (record(world).decision is not None) is stopped
    if not stopped:
        assert target(world) == "AwaitingNextEval"
        assert "cannot be asked" in record(world).condition(c.TERMINATION).message
        evals(world, *FALL, 0.6, served=None)
        assert record(world).decision is not None


def test_served_without_a_new_eval_does_not_stop_before_its_time() -> None:
    """The step had been evaluated already: nothing new to look at yet."""
    world = running()
    evals(world, *FALL)
    evals(world, *FALL, served=1)
    assert record(world).decision is None
    assert target(world) == "AwaitingFreshEval"
    evals(world, *FALL, 0.6, served=1)
    assert record(world).decision is not None


def test_a_preemption_in_between_does_not_lose_the_question() -> None:
    world = running(unanswered="Stop")
    evals(world, *FALL)
    job = world.jobs["ns/a"]
    long_ago = replace(job.record.confirming, at=world.now - 10_000.0)  # longer than it waits for an answer
    waited = replace(job.record, confirming=long_ago)
    job.record = job_outcomes.preempted(waited, Preemption("ns/a", "ByPriority"), world.now)
    for _ in range(80):  # on to a checkpoint for as long as its pool allows, then back to its GPUs
        world.step("ns/a", seconds=10.0)
        world._cluster(job)
        if record(world).preempting is None:  # before, its pool would call it off: nobody waits
            world.pool_pass()
        if record(world).attempt == 2 and written(world).evaluate:
            break
    assert record(world).attempt == 2
    assert record(world).decision is None
    assert (written(world).evaluate, target(world)) == (True, "AwaitingFreshEval")
    assert written(world).request_id == record(world).confirming.request_id


def test_two_fresh_evals_are_two_requests() -> None:
    world = running(evals=2)
    evals(world, *FALL)
    evals(world, *FALL, 0.6, served=1)
    assert record(world).decision is None
    assert written(world).request_id == 2
    evals(world, *FALL, 0.6, 0.5, served=2)
    assert record(world).decision is not None


def test_in_shadow_nobody_is_asked_and_the_next_eval_settles_it() -> None:
    world = running(Mode.SHADOW, unanswered="Stop")
    evals(world, *FALL)
    assert not written(world).evaluate
    assert target(world) == "AwaitingNextEval"
    assert record(world).decision is None
    evals(world, *FALL, 0.6)
    assert record(world).decision is not None
    assert record(world).decision.mode is Mode.SHADOW


def test_nothing_is_asked_before_the_best_can_be_scored_beside_it() -> None:
    """Request and reference stand in the same file; a best that is not in safety is waited for."""
    world = running()
    job = world.jobs["ns/a"]
    evals(world, *FALL, passes=0)
    job.checkpoints.clear()
    look(world)
    assert not written(world).evaluate
    assert target(world) == "AwaitingFreshEval"
    world.now += 600.0
    look(world)
    assert target(world) == "AwaitingNextEval"
    evals(world, *FALL, passes=0)
    world.now += 100.0
    look(world)
    assert (written(world).evaluate, written(world).reference_step) == (True, 20)


def test_the_reference_is_taken_back_once_nobody_looks_at_it() -> None:
    world = running()
    evals(world, *FALL)
    assert written(world).reference_step == 20
    evals(world, *FALL, 0.75, served=1)
    assert record(world).decision is None
    assert written(world).reference_step is None


def test_a_gap_in_the_scrapes_keeps_the_request() -> None:
    world = running()
    evals(world, *FALL)
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.TIMEOUT, "slow"))
    look(world)
    assert record(world).confirming is not None
    assert written(world).request_id == 1


@settings(max_examples=60, deadline=None)
@given(deaths=st.lists(st.integers(0, 2), max_size=40), slow=st.integers(0, 3))
def test_killed_at_any_point_it_asks_once_and_comes_to_the_same_end(deaths: list[int], slow: int) -> None:
    """The operator dies after 0, 1 or 2 actions of a pass; the trainer serves what the file says."""
    world = running()
    scores, served, asked = list(FALL), 0, []
    job = world.jobs["ns/a"]
    evals(world, *scores, served=0, passes=0)
    for n in range(80):
        world.step("ns/a", acts=deaths[n] if n < len(deaths) else None, seconds=5.0)
        world._cluster(job)
        world.pool_pass()
        run = written(world)
        if run.evaluate and run.request_id > served and n % (slow + 1) == 0:
            asked.append(run.request_id)
            served = run.request_id
            scores.append(scores[-1] - 0.1)
            evals(world, *scores, served=served, passes=0)
    assert asked == [1]
    decision = record(world).decision
    assert decision is not None
    assert decision.proposal.reason == "ConfirmedByFreshEvals"
    assert decision.pods_gone_at is not None
    assert job.kept == {20}


# --- the reference step, for rules that live on paired differences -----------------------------------------


def paired_rule(mode: Mode = Mode.ENFORCE, **more) -> PolicyWorld:
    world = PolicyWorld({"n1": 1})
    world.submit("ns/a", rule=PolicySpec("eProcess"), mode=mode, **more)
    world.settle()
    return world


def test_the_reference_is_the_kept_checkpoint_and_follows_the_best() -> None:
    world = paired_rule()
    evals(world, 0.1, 0.2, served=None)
    assert written(world).reference_step == 20
    evals(world, 0.1, 0.2, 0.15, served=None)
    assert written(world).reference_step == 20
    evals(world, 0.1, 0.2, 0.15, 0.4, served=None)
    assert written(world).reference_step == 40


def test_a_guardrail_s_rule_may_be_the_one_that_compares() -> None:
    world = PolicyWorld({"n1": 1})
    world.submit("ns/a", rule=K2, guardrails=(Guardrail("safety", PolicySpec("eProcess")),))
    world.settle()
    evals(world, 0.1, 0.2, 0.15, served=None)
    assert written(world).reference_step == 20


def test_step_0_is_a_step() -> None:
    world = paired_rule()
    life = Attempt(1, "1")
    points = (EvalPoint(0, 0.9, life, 0.01), EvalPoint(10, 0.8, life, 0.01))
    world.jobs["ns/a"].checkpoints |= {0, 10}
    world.scrape("ns/a", points=points, checkpoint_step=10)
    look(world)
    assert written(world).reference_step == 0


def test_it_is_a_step_that_has_a_checkpoint() -> None:
    world = paired_rule(max_step_lag=10)
    job = world.jobs["ns/a"]
    evals(world, 0.1, served=None, passes=0)
    job.checkpoints -= {10}
    job.checkpoints |= {5}
    look(world, 8)
    assert record(world).secured.step == 5
    assert written(world).reference_step == 5


def test_in_shadow_nothing_is_in_safety_and_the_best_step_is_named() -> None:
    world = paired_rule(Mode.SHADOW)
    evals(world, 0.1, 0.2, 0.15, served=None)
    assert written(world).reference_step == 20


def test_rules_that_do_not_look_at_pairs_cost_the_trainer_nothing() -> None:
    world = PolicyWorld({"n1": 1})
    world.submit("ns/a", rule=K2)
    world.settle()
    evals(world, 0.1, 0.2, 0.15, served=None)
    assert written(world).reference_step is None


def test_the_next_attempt_knows_the_reference_from_its_start() -> None:
    world = paired_rule()
    evals(world, 0.1, 0.2, served=None)
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, run_written=None)  # somebody deleted the ConfigMap
    look(world, 2)
    assert written(world).reference_step == 20


# --- what the gate holds back ----------------------------------------------------------------------------

CALM = (0.5, 0.52, 0.51, 0.53)
GATE = PolicySpec("gate")


def gated(mode: Mode = Mode.ENFORCE, **wishes: object) -> PolicyWorld:
    world = PolicyWorld({"n1": 1})
    rule = PolicySpec("drawdown", {"max_drop": 0.1})
    world.submit("ns/a", rule=rule, modifiers=(GATE,), mode=mode, **wishes)
    world.settle()
    evals(world, *CALM)
    return world


def asked(world: PolicyWorld) -> int:
    return record(world).run.request_id


def test_an_eval_that_the_gate_holds_back_is_borne_out_by_ones_asked_for_at_once() -> None:
    world = gated()
    assert asked(world) == 0
    evals(world, *CALM, 0.1)
    assert (written(world).request_id, written(world).evaluate) == (1, True)
    assert "request 1 asks for an eval at once" in record(world).condition(c.DECLINING).message
    before, writes = record(world), world.writes
    look(world)
    assert (record(world), world.writes) == (before, writes), "once for each eval"
    evals(world, *CALM, 0.1, 0.12, served=1)
    assert written(world).request_id == 2, "the gate wants two"
    evals(world, *CALM, 0.1, 0.12, 0.09, served=2)
    world.settle()
    assert record(world).decision is not None
    assert record(world).decision.proposal.step == 70
    assert asked(world) == 2


def test_one_that_is_not_borne_out_is_dropped_and_nobody_is_asked_again() -> None:
    world = gated()
    evals(world, *CALM, 0.1)
    evals(world, *CALM, 0.1, 0.52, served=1)
    assert (asked(world), record(world).confirming, record(world).decision) == (1, None, None)
    evals(world, *CALM, 0.1, 0.52, 0.53, served=1)
    assert asked(world) == 1


def test_one_that_lies_above_is_asked_about_before_a_collapse_makes_it_an_outlier() -> None:
    world = gated()
    evals(world, *CALM, 0.9)
    assert asked(world) == 1
    evals(world, *CALM, 0.9, 0.88, served=1)
    evals(world, *CALM, 0.9, 0.88, 0.91, served=2)
    assert record(world).best.score == 0.91
    assert asked(world) == 2


@pytest.mark.parametrize("why", ["Shadow", "cannot be asked"])
def test_nobody_is_asked_where_it_would_tell_nothing(why: str) -> None:
    world = gated(Mode.SHADOW if why == "Shadow" else Mode.ENFORCE)
    served = None if why == "cannot be asked" else 0
    evals(world, *CALM, 0.1, served=served)
    assert (asked(world), record(world).confirming) == (0, None)
    assert "not counted until borne out: step 50" in record(world).condition(c.DECLINING).message


def test_a_guardrail_s_eval_is_borne_out_by_one_asked_for_too() -> None:
    rule = PolicySpec("drawdown", {"max_drop": 0.1})
    world = gated(guardrails=(Guardrail("safety", rule),))
    evals(world, *CALM, 0.54, safety=(0.8, 0.81, 0.8, 0.82, 0.81))
    assert asked(world) == 0
    evals(world, *CALM, 0.54, 0.55, safety=(0.8, 0.81, 0.8, 0.82, 0.81, 0.3))
    assert asked(world) == 1
