"""What rules are shown of an eval's size: prompts, range, and differences on the same prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction, Guardrail
from controller.policy.stopping import MODIFIERS, make_rule
from controller.policy.stopping.base import State
from controller.policy.stopping.gate import Gate, GateParams, Memory
from controller.policy.types import EvalPoint, EvalScale, Paired, PolicySpec, PromptPair, Verb, Verdict

LUCKY = PromptPair(1, 400, -0.1, 0.2)


class Shown:
    """A rule that remembers what it was shown last."""

    def __init__(self) -> None:
        self.seen = EvalPoint(0, 0.0)

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        self.seen = point
        return state, Verdict(Verb.CONTINUE, "Shown", 0.0, 0.0)


def shown(use: RuleInUse, point: EvalPoint) -> EvalPoint:
    recorder: Any = Shown()
    replace(use, rule=recorder).observe((), point)
    seen: EvalPoint = recorder.seen
    return seen


def in_use(direction: Direction = Direction.MAXIMIZE, **scale: Any) -> RuleInUse:
    desired = Desired(
        "ns/a",
        "u",
        1,
        "m",
        1,
        1,
        PolicySpec("scan"),
        direction=direction,
        scale=EvalScale(**scale),
        guardrails=(Guardrail("g", PolicySpec("scan"), scale=EvalScale(prompts=7)),),
    )
    return RuleInUse.of(desired)


def test_what_the_page_says_of_the_prompts_goes_before_what_is_declared() -> None:
    use = in_use(prompts=200)
    assert shown(use, EvalPoint(1, 0.5)).prompts == 200
    assert shown(use, EvalPoint(1, 0.5, prompts=100)).prompts == 100
    assert shown(use.guards["g"], EvalPoint(1, 0.5)).prompts == 7


@pytest.mark.parametrize(
    ("direction", "score", "mean", "score_range"),
    [(Direction.MAXIMIZE, 1.0, -0.1, (0.0, 4.0)), (Direction.MINIMIZE, -1.0, 0.1, (-4.0, 0.0))],
)
def test_score_range_and_differences_are_oriented_alike(
    direction: Direction, score: float, mean: float, score_range: tuple[float, float]
) -> None:
    seen = shown(in_use(direction, range=(0.0, 4.0)), EvalPoint(1, 1.0, prompt_pairs=(LUCKY,)))
    assert (seen.score, seen.prompt_pairs[0].mean, seen.range) == (score, mean, score_range)


@pytest.mark.parametrize("modifiers", [(), *((name,) for name in sorted(MODIFIERS)), ("gate", "confirm")])
def test_eprocess_is_blind_to_differences_from_a_best_that_was_lucky_on_these_prompts(
    modifiers: tuple[str, ...],
) -> None:
    rule = make_rule(PolicySpec("eProcess"), tuple(map(PolicySpec, modifiers)))
    state = rule.initial()
    for step in range(50):
        # They jump now and then, so that a gate holds some and shows them later.
        lucky = EvalPoint(step, 0.5 - 0.4 * (step % 7 > 4), stderr=0.01, proxy=step, prompt_pairs=(LUCKY,))
        state, verdict = rule.observe(state, lucky)
        assert (verdict.verb, verdict.e_value) == (Verb.CONTINUE, 1.0)
    for step in range(50, 100):  # while what was scored anew does stop it
        fresh = Paired(1, 400, -0.1, 0.2)
        anew = EvalPoint(step, 0.5, stderr=0.01, proxy=step, paired=fresh, prompt_pairs=(LUCKY,))
        state, verdict = rule.observe(state, anew)
    assert verdict.verb is Verb.STOP


def test_an_eval_that_waited_is_shown_with_all_of_its_size() -> None:
    rule = Gate(GateParams(), make_rule(PolicySpec("scan")))
    first = EvalPoint(1, 0.5, stderr=0.01, prompts=400, prompt_pairs=(LUCKY,))
    state, _ = rule.observe(rule.initial(), first)
    _, counts = rule.decide(Memory(*json.loads(json.dumps(state))[0]), EvalPoint(2, 0.5, stderr=0.01))
    assert counts[0] == first
