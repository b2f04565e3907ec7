"""A guardrail's evals tell its rule as much as the Primary metric's: the same evals leave the same memory."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policy.job.types import Direction, Guardrail, MetricPoints
from controller.policy.stopping import make_rule, reference
from controller.policy.types import Attempt, EvalPoint, EvalScale, PolicySpec, PromptPair, Verb
from tests.support.policy_world import PolicyWorld

LIFE = Attempt(1, "1")
UNIT = EvalScale(None, (0.0, 1.0))
SCAN = PolicySpec("scan", {"alpha": 0.04})
GLR = PolicySpec("glr")
GATE = (PolicySpec("gate"),)
# Step, score, variance of the difference to an earlier step. Step 30 is dropped by the gate, and until the
# trainer reads the name of the best that counts, it pairs with that: 50 with 20 is known through it alone.
ROWS = (
    (10, 0.58, {}),
    (20, 0.60, {10: 0.02}),
    (30, 0.99, {20: 0.02}),
    (40, 0.59, {30: 0.02, 20: 0.02}),
    (50, 0.58, {30: 0.02, 40: 0.02}),
    (60, 0.57, {30: 0.02, 50: 0.02}),
    (70, 0.56, {30: 0.02, 60: 0.02}),
    (80, 0.55, {30: 0.02, 70: 0.02}),
)


def points(prompts: int | None, sign: float) -> list[EvalPoint]:
    scores = {step: sign * score for step, score, _ in ROWS}
    return [
        EvalPoint(
            step,
            scores[step],
            LIFE,
            prompts=prompts,
            prompt_pairs=tuple(PromptPair(s, 1000, scores[step] - scores[s], v) for s, v in against.items()),
        )
        for step, _, against in ROWS
    ]


def run(guard: Guardrail, rule: PolicySpec, modifiers: Any, shown: list[EvalPoint], at_once: bool) -> Any:
    """Both metrics with the same evals, of the guardrail's orientation; the record after the last page."""
    w = PolicyWorld({"n1": 1})
    w.submit(
        "ns/a",
        rule=rule,
        modifiers=modifiers,
        direction=guard.direction,
        scale=guard.scale,
        guardrails=(guard,),
    )
    w.settle()
    w.jobs["ns/a"].checkpoints |= {p.step for p in shown}
    for n in range(len(shown) if at_once else 1, len(shown) + 1):
        page = tuple(shown[:n])
        others = (MetricPoints(guard.metric, page),)
        w.scrape("ns/a", points=page, others=others, total_steps=600, checkpoint_step=page[-1].step)
        for _ in range(4):
            w.step("ns/a", seconds=0.0)
    return w.jobs["ns/a"].record


@pytest.mark.parametrize("at_once", [False, True], ids=["an eval a page", "all on one page"])
@pytest.mark.parametrize(
    ("rule", "modifiers", "scale", "prompts"),
    [
        (SCAN, GATE, UNIT, 1000),  # pairs
        (SCAN, GATE, EvalScale(1000, (0.0, 1.0)), None),  # of declared prompts
        (SCAN, (), UNIT, 1000),
        (GLR, GATE, UNIT, 1000),
        (GLR, (), UNIT, 1000),
        (SCAN, (), EvalScale(), None),  # scores alone
        (SCAN, (PolicySpec("patience", {"evals": 2}), *GATE), UNIT, 1000),
    ],
)
@pytest.mark.parametrize("direction", list(Direction))
def test_the_same_evals_leave_the_same_memory(
    direction: Direction,
    rule: PolicySpec,
    modifiers: Any,
    scale: EvalScale,
    prompts: int | None,
    at_once: bool,
) -> None:
    minimized = direction is Direction.MINIMIZE
    own = scale.reversed() if minimized else scale
    found = run(
        Guardrail("safety", rule, direction, own),
        rule,
        modifiers,
        points(prompts, -1.0 if minimized else 1.0),
        at_once,
    )
    (guard,) = found.guards
    assert found.rule is not None
    assert len(found.evals) == len(ROWS)
    assert guard.state == found.rule.state
    assert guard.verdict == found.rule.verdict


@pytest.mark.parametrize("direction", list(Direction))
def test_a_guardrail_is_stopped_by_a_pair_with_its_best_that_follows_from_two(direction: Direction) -> None:
    """A fall by .05 is 5.6 errors of the bound on such a pair, and 2.2 of evals on other prompts."""
    minimized = direction is Direction.MINIMIZE
    scale = UNIT.reversed() if minimized else UNIT
    shown = points(1000, -1.0 if minimized else 1.0)
    alone = [p._replace(prompt_pairs=()) for p in shown]
    verbs = []
    for page in (shown, alone):
        found = run(Guardrail("safety", SCAN, direction, scale), PolicySpec("kDeclines"), GATE, page, False)
        (guard,) = found.guards
        assert guard.verdict is not None
        verbs.append(guard.verdict.verb)
    assert verbs == [Verb.STOP, Verb.CONTINUE]


@pytest.mark.parametrize("rule", [SCAN, GLR], ids=str)
def test_a_best_at_step_0_is_compared_with_like_any_other(rule: PolicySpec) -> None:
    """A first eval before training is the best of a run that only declines."""
    made = make_rule(rule)
    assert reference(made, made.initial()) is None
    state, _ = made.observe(made.initial(), EvalPoint(0, 0.6, LIFE))
    assert reference(made, state) == 0
