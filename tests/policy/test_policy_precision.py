"""Evals of few samples among precise ones: they count for nothing, and hide no fall."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.stopping import gate, make_rule
from controller.policy.stopping.precision import Precision, usual
from controller.policy.types import EvalPoint, PolicySpec, Verb

ERROR = 0.005
DEFAULT = (PolicySpec("scan", {"alpha": 0.04}), (PolicySpec("gate"),))


def curve(count: int = 40, seed: int = 16) -> list[EvalPoint]:
    """A run that rises to its 13th eval, then falls by .008 an eval."""
    draw = random.Random(seed)
    scores = [0.5 + 0.012 * min(i, 12) - 0.008 * max(0, i - 12) for i in range(count)]
    return [
        EvalPoint(10 * (i + 1), score + draw.gauss(0.0, ERROR), stderr=ERROR, samples=8000)
        for i, score in enumerate(scores)
    ]


def imprecise(step: int, score: float, error: float = 0.2, samples: int | None = 6) -> EvalPoint:
    return EvalPoint(step, score, stderr=error, samples=samples)


def fold(points: Sequence[EvalPoint]):
    """State after all, and at which step the rule said stop first; None: never."""
    rule = make_rule(*DEFAULT)
    state, stopped = rule.initial(), None
    for point in points:
        state, verdict = rule.observe(state, point)
        if stopped is None and verdict.verb is Verb.STOP:
            stopped = point.step
    return state, stopped


@pytest.mark.parametrize("at", [0, 1, 4, 12, 14])
@pytest.mark.parametrize("samples", [6, None])
def test_one_eval_of_few_samples_hides_no_fall(at: int, samples: int | None) -> None:
    points = curve()
    _, alone = fold([one for i, one in enumerate(points) if i != at])
    points[at] = imprecise(points[at].step, points[at].score, samples=samples)
    _, stopped = fold(points)
    assert alone is not None
    assert stopped == alone


@given(
    at=st.integers(0, 19),
    score=st.floats(0.0, 1.0),
    error=st.floats(3.1 * ERROR, 1.0),
    samples=st.sampled_from([None, 1, 6, 800]),
)
def test_what_it_says_changes_nothing(at: int, score: float, error: float, samples: int | None) -> None:
    points = curve(20)
    other = [*points[:at], imprecise(points[at].step - 1, score, error, samples), *points[at:]]
    one, another = fold(points), fold([*other, *curve(26)[20:]])
    assert fold([*points, *curve(26)[20:]])[0][2][0] == another[0][2][0], "the windows of scan"
    assert one[1] is None or one[1] == another[1]


def test_evals_that_stay_imprecise_count_from_the_fourth_on() -> None:
    points = curve(10) + [imprecise(100 + 10 * i, 0.6) for i in range(1, 6)]
    rule = make_rule(*DEFAULT)
    state, dropped = rule.initial(), []
    for point in points:
        state, _ = rule.observe(state, point)
        dropped += gate.dropped(state)
    assert dropped == [110, 120, 130]
    assert gate.coarsest(state) == Precision(0.2, 6)


def test_as_many_samples_are_as_precise_where_the_score_is_near_0() -> None:
    """The standard error of a share is smaller there: a run that starts at .001 loses no eval."""
    shares = [(0.001, 0.001), (0.5, 0.0158), (0.52, 0.0158), (0.55, 0.0157)]
    points = [EvalPoint(10 * i, score, stderr=e, samples=1000) for i, (score, e) in enumerate(shares, 1)]
    state = make_rule(*DEFAULT).initial()
    for point in points:
        state, _ = make_rule(*DEFAULT).observe(state, point)
        assert not gate.dropped(state)


def test_an_eval_that_waits_goes_on_waiting_when_an_imprecise_one_comes() -> None:
    rule = make_rule(*DEFAULT)
    state = rule.initial()
    high = EvalPoint(50, 0.9, stderr=ERROR, samples=8000)
    for point in [*curve(4), high]:
        state, _ = rule.observe(state, point)
    assert gate.waiting(state) == (50,)
    state, _ = rule.observe(state, imprecise(60, 0.2))
    assert (gate.waiting(state), gate.dropped(state)) == ((50,), (60,))


@pytest.mark.parametrize(
    ("errors", "left_out"),
    [
        ([0.2, ERROR, ERROR], 10),
        ([ERROR, 0.2, ERROR], 20),
        ([ERROR, ERROR, 0.2], 30),
        ([0.2, 0.2, ERROR, ERROR, ERROR], None),  # the third may be the odd one: nobody knows
        ([0.2, 0.05, ERROR, ERROR], 10),
    ],
)
def test_of_the_first_evals_the_third_tells_which_is_imprecise(
    errors: list[float], left_out: int | None
) -> None:
    rule = make_rule(*DEFAULT)
    state, dropped = rule.initial(), []
    for i, error in enumerate(errors, 1):
        state, _ = rule.observe(state, EvalPoint(10 * i, 0.5 + 0.001 * i, stderr=error))
        dropped += gate.dropped(state)
    assert dropped[:1] == ([] if left_out is None else [left_out])


def test_the_usual_precision_is_that_of_most() -> None:
    assert usual(curve(3)) == Precision()
    assert usual([imprecise(5, 0.5), *curve(9)]) == Precision(ERROR, 8000)
