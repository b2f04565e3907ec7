"""Modifiers as tables: scores in, step of the first STOP out; and that they compose."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.names import STEP_MAX
from controller.policy.codec import dumps, encode
from controller.policy.stopping import MODIFIERS, RULES, ParamError, make_rule
from controller.policy.types import EvalPoint, PolicySpec, Verb

FALL = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def stops(scores: list[float], *modifiers: PolicySpec, k: int = 1) -> list[int]:
    """Steps (10 per eval) at which the whole says STOP."""
    rule = make_rule(PolicySpec("kDeclines", {"k": k}), modifiers)
    state, found = rule.initial(), []
    for i, score in enumerate(scores):
        state, verdict = rule.observe(state, EvalPoint(10 * i, score))
        if verdict.verb is Verb.STOP:
            found.append(10 * i)
    return found


def spec(name: str, **params: object) -> PolicySpec:
    return PolicySpec(name, params)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scores", "evals", "expected"),
    [
        (FALL, 1, [10, 20, 30, 40, 50]),
        (FALL, 3, [30, 40, 50]),
        ([5, 4, 3, 3, 2, 1, 0], 3, [60]),  # a tie takes the STOP back
        (FALL, 6, []),
    ],
)
def test_patience(scores: list[float], evals: int, expected: list[int]) -> None:
    assert stops(scores, spec("patience", evals=evals)) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"at_step": 1000}, [10, 20, 30, 40, 50]),  # not there yet
        ({"at_step": 20, "evals": 2}, [10, 40, 50]),
        ({"at_step": 15, "evals": 1}, [10, 30, 40, 50]),  # between two evals: the next one is the first after
        ({"at_step": 0, "evals": 5}, [50]),
    ],
)
def test_cooldown(params: dict, expected: list[int]) -> None:
    assert stops(FALL, spec("cooldown", **params)) == expected


def test_the_event_of_a_cooldown_is_at_a_step_that_there_can_be() -> None:
    assert stops(FALL, spec("cooldown", at_step=STEP_MAX)) == [10, 20, 30, 40, 50]
    with pytest.raises(ParamError, match=rf"cooldown\.at_step: {STEP_MAX + 1} .* <= {STEP_MAX} \(step\)"):
        stops(FALL, spec("cooldown", at_step=STEP_MAX + 1))


def test_cooldown_forgets_scores_that_cannot_be_compared() -> None:
    scores = [9.0, 8.0, 7.0, 1.0, 0.5, 0.2]  # another evaluator from the fourth on
    event = {"at_step": 30, "evals": 1}
    assert stops(scores, spec("cooldown", **event), k=3) == [40, 50]
    assert stops(scores, spec("cooldown", **event, forget=True), k=3) == []
    assert stops(scores, spec("cooldown", **event, forget=True), k=2) == [20, 50]


def test_several_events_and_modifiers_compose() -> None:
    modifiers = (
        spec("cooldown", at_step=10, evals=1),
        spec("cooldown", at_step=40, evals=1),
        spec("patience", evals=2),
        spec("warmUp", min_evals=2),
    )
    assert stops(FALL, *modifiers) == [30]  # 10 and 40 are held back, so 20 and 50 are first in their rows


def goes_with(modifier: str, rule: str) -> bool:
    """A grade is a share of the way up to the threshold: rules that stop below theirs have none."""
    return modifier != "graded" or RULES[rule].rises


@given(
    st.lists(st.floats(-5, 5), max_size=30),
    st.sampled_from(sorted(RULES)),
    st.sampled_from(sorted(MODIFIERS.keys() - {"gate"})),  # it shows the rule other evals
)
def test_a_modifier_never_stops_what_its_rule_does_not(scores: list[float], rule: str, modifier: str) -> None:
    """At its defaults, none of which forgets."""
    assume(goes_with(modifier, rule))
    plain, wrapped = make_rule(spec(rule)), make_rule(spec(rule), (spec(modifier),))
    a, b = plain.initial(), wrapped.initial()
    for step, score in enumerate(scores):
        point = EvalPoint(step, score, stderr=0.1)
        a, one = plain.observe(a, point)
        b, two = wrapped.observe(b, point)
        assert not (two.verb is Verb.STOP and one.verb is not Verb.STOP)


@pytest.mark.parametrize("error", [1.1e-7 / 3, None])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_states_of_every_rule_fit_the_status_under_eight_modifiers(rule: str, error: float | None) -> None:
    """Twice (before the oldest eval kept, after the newest) under what a status holds."""
    modifiers = [spec(name) for name in sorted(MODIFIERS) if goes_with(name, rule)] * 4
    made = make_rule(spec(rule), modifiers[:8])
    state = made.initial()
    for step in range(100):
        state, _ = made.observe(state, EvalPoint(step, -1.2345678901234567e-7 * step**1.7, stderr=error))
        assert len(dumps(encode({"base": state, "state": state}))) <= 2400


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("patience", {"evals": 0}, r"patience\.evals: 0 .*>= 1"),
        ("cooldown", {"at_step": -1}, r"cooldown\.at_step: -1 .*>= 0"),
        ("cooldown", {"evals": 0}, r"cooldown\.evals: 0 .*>= 1"),
        ("cooldown", {"forget": 1}, r"cooldown\.forget: 1 .*true or false"),
        ("cool", {}, r"modifiers: 'cool' .*warmUp, patience, cooldown, confirm"),
    ],
)
def test_bounds(name: str, params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec("kDeclines"), (PolicySpec(name, params),))
