"""Graded action: the modifier as a table, and what each grade does to a job and its conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job.view import job_view
from controller.policy.stopping import ParamError, make_rule
from controller.policy.stopping.graded import share
from controller.policy.types import EvalPoint, Grade, Mode, PolicySpec, Verb, Verdict
from tests.support.policy_world import PolicyWorld

WARNED, DEMOTED = Grade.WARNED, Grade.DEMOTED
K4 = PolicySpec("kDeclines", {"k": 4})
GRADED = PolicySpec("graded", {"warn_at": 0.5, "demote_at": 0.75})


def grades(scores: list[float], *modifiers: PolicySpec, rule: PolicySpec = K4) -> list[Grade | None]:
    made = make_rule(rule, modifiers)
    state, found = made.initial(), []
    for i, score in enumerate(scores):
        state, verdict = made.observe(state, EvalPoint(10 * i, score))
        found.append(verdict.grade)
    return found


@pytest.mark.parametrize(
    ("scores", "params", "expected"),
    [
        # 1, 2, 3 and 4 of 4 declines; then a rise.
        ([9, 8, 7, 6, 5, 9], {}, [None, None, WARNED, DEMOTED, DEMOTED, None]),
        ([9, 8, 7, 6, 5], {"warn_at": 0.0}, [None, None, None, DEMOTED, DEMOTED]),
        ([9, 8, 7, 6, 5], {"demote_at": 0.0}, [None, None, WARNED, WARNED, WARNED]),
        ([9, 8, 7, 6, 5], {"demote_at": 1.0}, [None, None, WARNED, WARNED, DEMOTED]),
        ([9, 8, 7, 6, 5], {"warn_at": 0.0, "demote_at": 0.0}, [None] * 5),
    ],
)
def test_grades_by_share(scores: list[float], params: dict, expected: list) -> None:
    spec = PolicySpec("graded", {**GRADED.params, **params})
    assert grades(scores, spec) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_no_grade_in_a_warm_up_or_cooldown_whichever_is_the_inner_one(order: int) -> None:
    warm = PolicySpec("warmUp", {"min_evals": 5})
    assert grades([9, 8, 7, 6, 5, 4], *(GRADED, warm)[::order]) == [None] * 4 + [DEMOTED] * 2
    cool = PolicySpec("cooldown", {"at_step": 20, "evals": 2})
    assert grades([9, 8, 7, 6, 5, 4], *(GRADED, cool)[::order]) == [None] * 4 + [DEMOTED] * 2


def test_a_stop_that_waits_for_a_fresh_eval_is_demoted_already() -> None:
    rule = PolicySpec("kDeclines", {"k": 2})
    assert grades([9, 8, 7, 6], PolicySpec("confirm"), GRADED, rule=rule) == [None, WARNED, DEMOTED, DEMOTED]


@pytest.mark.parametrize(
    ("statistic", "threshold", "expected"),
    [(1.0, 2.0, 0.5), (3.0, 2.0, 1.5), (-1.0, 2.0, 0.0), (1.0, 0.0, 0.0), (float("nan"), 1.0, 0.0)],
)
def test_share(statistic: float, threshold: float, expected: float) -> None:
    assert share(Verdict(Verb.CONTINUE, "R", statistic, threshold)) == expected


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        (K4, {"warn_at": -0.1}, r"graded\.warn_at: -0\.1 .*>= 0"),
        (K4, {"demote_at": 1.1}, r"graded\.demote_at: 1\.1 .*<= 1"),
        (K4, {"warn_at": 0.9, "demote_at": 0.5}, r"graded\.demote_at: 0\.5 .*warn_at = 0\.9"),
        (PolicySpec("lossPlateau"), {}, r"graded: 'lossPlateau' .*rises towards its threshold"),
        (PolicySpec("medianOfPeers"), {}, r"graded: 'medianOfPeers' .*rises towards"),
    ],
)
def test_bounds(rule: PolicySpec, params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(rule, [PolicySpec("warmUp", {"min_evals": 9}), PolicySpec("graded", params)])


@given(st.lists(st.floats(-5, 5), max_size=30), st.sampled_from(["kDeclines", "scan", "drawdown", "cusum"]))
def test_grades_leave_the_verdict_alone_and_grow_with_the_evidence(scores: list[float], rule: str) -> None:
    plain, graded = make_rule(PolicySpec(rule)), make_rule(PolicySpec(rule), [GRADED])
    a, b = plain.initial(), graded.initial()
    for step, score in enumerate(scores):
        a, one = plain.observe(a, EvalPoint(step, score, stderr=0.1))
        b, two = graded.observe(b, EvalPoint(step, score, stderr=0.1))
        assert two._replace(grade=None) == one
        if one.verb is Verb.STOP or share(one) >= 0.75:
            assert two.grade is DEMOTED
        else:
            assert two.grade is (WARNED if share(one) >= 0.5 else None)


# --- what they do to a job -------------------------------------------------------------------------------


def running(mode: Mode = Mode.ENFORCE) -> PolicyWorld:
    world = PolicyWorld({"n1": 2})
    world.submit("ns/a", gpus=2, rule=K4, modifiers=(GRADED,), mode=mode)
    world.settle()
    return world


def evals(world: PolicyWorld, *scores: float, apart: float = 0.0) -> None:
    for score in scores:
        world.now += apart
        world.scores("ns/a", score)
        world.step("ns/a", seconds=0.0)


def demoted(world: PolicyWorld) -> bool:
    job = world.jobs["ns/a"]
    assert job.plan is not None
    view = job_view(job.desired, job.observed, job.record, job.plan, submitted=0.0, priority=0, now=world.now)
    assert view is not None
    return view.demoted


def told(world: PolicyWorld, type_: str) -> tuple[bool, str] | None:
    found = world.jobs["ns/a"].record.condition(type_)
    return None if found is None else (found.status, found.reason)


def test_a_run_is_warned_of_then_demoted_then_stopped_each_with_its_evidence() -> None:
    world = running()
    evals(world, 9, 8)
    assert told(world, c.DECLINING) == (False, "Declining")
    assert told(world, c.DEMOTED) == (False, "NotDemoted")
    evals(world, 7)
    assert told(world, c.DECLINING) == (True, "Warned")
    assert "kDeclines: 2 of 4 at step 30, best at step 10: 50% of the way" in (
        world.jobs["ns/a"].record.condition(c.DECLINING).message
    )
    assert not demoted(world)
    evals(world, 6)
    assert told(world, c.DEMOTED) == (True, "Declining")
    assert "3 of 4" in world.jobs["ns/a"].record.condition(c.DEMOTED).message
    assert c.summary(world.jobs["ns/a"].record.conditions) == "Demoted"
    assert demoted(world)
    evals(world, 5)
    assert told(world, c.DECLINING) == (True, "ConsecutiveDeclines")
    world.settle()
    assert world.jobs["ns/a"].record.decision is not None
    assert told(world, c.TERMINATION) == (True, "ConsecutiveDeclines")


def test_a_run_that_recovers_is_let_off() -> None:
    world = running()
    evals(world, 9, 8, 7, 6)
    assert demoted(world)
    evals(world, 10)
    assert not demoted(world)
    assert told(world, c.DEMOTED) == (False, "Recovered")
    assert told(world, c.DECLINING) == (False, "NotDeclining")
    assert c.summary(world.jobs["ns/a"].record.conditions) == "Running"


def test_another_evaluator_lets_a_demoted_run_off() -> None:
    world = running()
    evals(world, 9, 8, 7, 6)
    assert demoted(world)
    job = world.jobs["ns/a"]
    for version in ("v1", "v2"):
        assert job.observed.scrape is not None
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, evaluator=version))
        world.step("ns/a")
    assert not demoted(world)
    assert told(world, c.DEMOTED) == (False, "BeganAnew")


def test_the_demotion_is_in_the_record_and_gone_with_the_modifier() -> None:
    """A demoted run that waits is not judged, yet known to be demoted; the spec may change while it runs."""
    world = running()
    evals(world, 9, 8, 7, 6)
    job = world.jobs["ns/a"]
    job.observed = replace(job.observed, scrape=None)
    assert demoted(world)
    job.wish(modifiers=())
    world.scores("ns/a", 6.5)
    world.step("ns/a")
    assert not demoted(world)
    assert told(world, c.DEMOTED) is None


def test_shadow_demotes_nobody_and_counts_what_it_would_have_saved() -> None:
    world = running(Mode.SHADOW)
    evals(world, 9, 8, 7, apart=10.0)  # warned from the third eval on
    assert not demoted(world)
    evals(world, 6, apart=10.0)  # demoted from the fourth
    assert told(world, c.DEMOTED) == (False, "Shadow")
    assert not demoted(world)
    evals(world, 5, apart=10.0)  # stopped from the fifth
    evals(world, 4, 9, 9, apart=10.0)  # a rise: no longer demoted, but stopped it would have been
    record = world.jobs["ns/a"].record
    assert record.decision is not None
    assert record.decision.mode is Mode.SHADOW
    assert told(world, c.TERMINATION) == (False, "Shadow")
    past = record.past_grades
    assert past is not None
    assert (past.warned, past.demoted, past.stopped) == (20.0, 60.0, 60.0)  # 2 GPUs, 10 s between evals
    world.now += 10.0
    world.finish("ns/a")
    world.step("ns/a", seconds=0.0)
    world.step("ns/a", seconds=5.0)
    ended = world.jobs["ns/a"].record.past_grades
    assert ended is not None
    assert (ended.warned, ended.demoted, ended.stopped) == (20.0, 60.0, 80.0)


def test_nothing_is_counted_where_nothing_is_asked_for() -> None:
    world = PolicyWorld({"n1": 2})
    world.submit("ns/a", gpus=2, rule=K4)
    world.settle()
    evals(world, 9, 8, 7, 8, 9, apart=10.0)
    assert world.jobs["ns/a"].record.past_grades is None
