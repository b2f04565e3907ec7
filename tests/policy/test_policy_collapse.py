"""A collapse is named, seen in exact ties without any noise, and no budget is refilled to see it again."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from controller.policy.job import guardrails
from controller.policy.job.comparability import begin_anew
from controller.policy.job.evals import ingest, judged_from_now_on, restart, rewind
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Guardrail, MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.stopping import carry_spent, make_rule, noise, ties, windows
from controller.policy.types import (
    Attempt,
    EvalInContext,
    EvalPoint,
    EvalScale,
    FleetView,
    PolicySpec,
    Verb,
    Verdict,
)

SCAN = PolicySpec("scan", {"alpha": 0.04})


def judged(scores: list[float], *modifiers: PolicySpec, **known: Any) -> list[Verdict]:
    rule = make_rule(SCAN, modifiers)
    state, found = rule.initial(), []
    for step, score in enumerate(scores, start=1):
        point = EvalPoint(step, score, **known)
        scale = (0.0, 1.0) if "prompts" in known else None
        context = EvalInContext.of(point, progress=step / len(scores), range=scale)
        state, verdict = rule.observe(state, context)
        found.append(verdict)
    return found


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([0.2, 0.4, 0.5, 0.1, 0.1], "Collapsed"),  # all that was gained and more
        ([0.2, 0.4, 0.5, 0.34, 0.34], "Collapsed"),  # more than half of it
        ([0.2, 0.4, 0.5, 0.41, 0.41], "FellBelowBestStretch"),  # less
        ([0.5, 0.4, 0.4, 0.4, 0.4], "FellBelowBestStretch"),  # nothing was gained
    ],
)
def test_half_of_what_was_gained_lost_at_two_evals_is_a_collapse(scores: list[float], reason: str) -> None:
    *_, last = judged(scores, prompts=1000)
    assert (last.verb, last.reason) == (Verb.STOP, reason)


def test_one_eval_alone_is_not_borne_out_yet() -> None:
    assert judged([0.2, 0.4, 0.5, 0.1], prompts=1000)[-1].reason == "FellBelowBestStretch"


def test_behind_the_gate_a_collapse_is_told_when_it_is_borne_out() -> None:
    found = judged([0.2, 0.4, 0.5, 0.1, 0.1], PolicySpec("gate"), prompts=1000)
    assert [v.verb for v in found].index(Verb.STOP) == 4
    assert found[-1].reason == "Collapsed"


@pytest.mark.parametrize(
    ("scores", "stops"),
    [
        ([0.2, 0.3, 0.29, 0.0, 0.0, 0.0], True),
        ([0.2, 0.3, 0.29, 0.0, 0.0, 0.01], False),  # no tie
        ([0.2, 0.3, 0.29, 0.25, 0.25, 0.25], False),  # not below everything
        ([0.2, 0.2, 0.3, 0.0, 0.0, 0.0], False),  # ties are nothing special in this run
        ([0.3, 0.2, 0.29, 0.15, 0.15, 0.15], False),  # a fall as there was one before
        ([0.2, 0.3, 0.0, 0.0, 0.0], False),  # too few before
    ],
)
def test_an_exact_tie_below_everything_is_evidence_without_noise(scores: list[float], stops: bool) -> None:
    assert (judged(scores)[-1].reason == "Collapsed") is stops


def test_flat_runs_of_few_prompts_tie_by_themselves_and_are_not_stopped_for_it() -> None:
    draw = random.Random(1)
    for prompts in (20, 200):
        for chance in (0.02, 0.1, 0.5):
            hits = 0
            for _ in range(400):
                state, last, seen = ties.initial(), None, False
                for _ in range(12):
                    score = sum(draw.random() < chance for _ in range(prompts)) / prompts
                    state, last = ties.observe(state, last, score), score
                    seen = seen or ties.fall(state, score) is not None
                hits += seen
            assert hits <= 8, f"{prompts} prompts, {chance}: {hits} of 400"


def test_the_runs_own_fall_is_no_noise() -> None:
    state = noise.initial()
    for step, score in enumerate([0.5, 0.51, 0.49, 0.5, 0.51, 0.49, 0.1, 0.11]):
        state = noise.observe(state, EvalPoint(step, score))
    whole, before = noise.estimate(state, 0.0, 1.0), noise.estimate(state, 0.0, 1.0, before_fall=True)
    assert before is not None
    assert before.sigma < 0.03
    assert whole is not None
    assert whole.sigma > 3 * before.sigma


MODIFIERS = [
    (),
    (PolicySpec("patience"), PolicySpec("gate")),
    (PolicySpec("warmUp"), PolicySpec("confirm"), PolicySpec("graded")),
    (PolicySpec("divergence"), PolicySpec("onlyWhenContended"), PolicySpec("cooldown")),
]


@pytest.mark.parametrize("modifiers", MODIFIERS, ids=range(len(MODIFIERS)))
def test_a_rule_that_begins_anew_has_no_more_to_spend_than_was_left(
    modifiers: tuple[PolicySpec, ...],
) -> None:
    rule = make_rule(SCAN, modifiers)
    state = rule.initial()
    for step in range(1, 20):
        state, _ = rule.observe(state, EvalInContext.of(EvalPoint(step, 0.5, stderr=0.1), progress=step / 20))
    spent = spent_of(state)
    assert spent > 0.5
    anew = carry_spent(rule, rule.initial(), state)
    assert spent_of(anew) == spent
    assert carry_spent(rule, state, rule.initial()) == state  # nothing is given back
    for step in range(20, 60):
        anew, _ = rule.observe(anew, EvalInContext.of(EvalPoint(step, 0.5, stderr=0.1), progress=1.0))
    assert spent_of(anew) <= 1.0


def spent_of(state: Any) -> float:
    """The budget is the one tuple of five that ends in a share, a text before."""
    if not isinstance(state, tuple):
        return 0.0
    if len(state) == 5 and [type(x) for x in state] == [str, int, int, tuple, float]:
        return float(state[-1])
    return max((spent_of(part) for part in state), default=0.0)


def test_forgetting_at_a_declared_step_refills_nothing() -> None:
    rule = make_rule(SCAN, (PolicySpec("cooldown", {"at_step": 10, "evals": 1, "forget": True}),))
    state = rule.initial()
    for step in range(1, 11):
        before = spent_of(state)
        state, _ = rule.observe(state, EvalInContext.of(EvalPoint(step, 0.5, stderr=0.1), progress=step / 12))
    assert spent_of(state) == before > 0.3


def test_nothing_refills_a_runs_budget_but_another_evaluator() -> None:
    scale, gate = EvalScale(1000, (0.0, 1.0)), (PolicySpec("gate"),)
    guard = Guardrail("safety", SCAN, scale=scale)
    wanted = Desired("ns/a", "u", 1, "m", 1, 1, SCAN, gate, scale=scale, guardrails=(guard,))
    rules = RuleInUse.of(wanted, FleetView(), 50)
    points = tuple(EvalPoint(step, 0.5 + 0.001 * (step % 3), Attempt(1, "1")) for step in range(1, 41))
    newest = points[-32:]
    page = ScrapeView(
        ScrapeOutcome.OK, points=newest, evaluator="1", others=(MetricPoints("safety", newest),)
    )
    record = guardrails.watch(ingest(JobRecord(evaluator="1"), rules, page), rules.guards, page)
    assert record.rule is not None
    spent = spent_of(record.rule.state)
    assert spent > 0.2
    assert [spent_of(g.state) for g in record.guards] == [spent]
    percents = rules.without_ranges(("m", "safety"), "m")
    for after in (
        rewind(record, rules, 25),
        rewind(record, rules, 0),
        restart(record, rules),
        judged_from_now_on(record, rules),
        ingest(record, percents, page),
    ):
        assert after.rule is not None
        assert spent_of(after.rule.state) >= spent
    for guards in (
        guardrails.rewind(record.guards, 25, rules.guards),
        guardrails.begun_anew(record.guards, rules.guards),
        guardrails.watch(record, percents.guards, page).guards,
    ):
        assert [spent_of(g.state) for g in guards] == [spent]
    other = begin_anew(record, rules, replace(page, evaluator="2"), None)
    assert other.rule is not None
    assert spent_of(other.rule.state) == 0.0
    assert [spent_of(g.state) for g in guardrails.begun_anew(record.guards)] == [0.0]


def test_stretches_of_shared_prompts_are_taken_to_err_together_in_long_runs_only() -> None:
    for seen in (7, 10, 11):
        assert all(pair.shared == pair.spread for pair in windows.pairs(seen, 3, 0.25))
    for seen in (14, 41, 200, 3000):
        assert all(pair.spread < pair.shared < 2.0**0.5 for pair in windows.pairs(seen, 3, 0.25))


def test_glr_compares_single_evals_of_shared_prompts() -> None:
    rule = make_rule(PolicySpec("glr"))
    state = rule.initial()
    for step, score in enumerate((0.5, 0.1), start=1):
        point = EvalInContext.of(EvalPoint(step, score, prompts=1000), range=(0.0, 1.0))
        state, verdict = rule.observe(state, point)
    assert (verdict.verb, verdict.reason) == (Verb.STOP, "FellBeyondChance")
