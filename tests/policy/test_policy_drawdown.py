"""Drawdown as a table: scores in, step of the first STOP out."""

from __future__ import annotations

import pytest

from controller.policy.stopping import ParamError, make_rule
from controller.policy.types import EvalPoint, PolicySpec, Verb


@pytest.mark.parametrize(
    ("scores", "params", "stop"),
    [
        ([], {}, None),
        ([0.1, 0.5, 0.5, 0.5], {}, None),  # a plateau is no fall
        ([0.0, 1.0, 0.5], {"window": 1, "max_drop": 0.5}, None),  # exactly the drop that is let pass
        ([0.0, 1.0, 0.25], {"window": 1, "max_drop": 0.5}, 2),
        ([0.0, 1.0, 0.75, 0.875, 0.5, 0.375], {"window": 1, "max_drop": 0.5}, 5),  # a flick does not reset it
        ([0.0, 1.0, 0.0, 1.0, 0.0], {"window": 2, "max_drop": 0.25}, None),  # the mean does not move
        ([0.0, 1.0, 1.0, 0.5, 0.25], {"window": 2, "max_drop": 0.25}, 4),
        ([9.0], {"window": 1, "max_drop": 0.5}, None),
    ],
)
def test_drawdown(scores: list[float], params: dict, stop: int | None) -> None:
    rule = make_rule(PolicySpec("drawdown", params))
    state, stopped = rule.initial(), None
    for step, score in enumerate(scores):
        state, verdict = rule.observe(state, EvalPoint(step, score))
        if verdict.verb is Verb.STOP and stopped is None:
            stopped = step
    assert stopped == stop


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_drop": 0.0}, r"drawdown\.max_drop: 0\.0 .*> 0"),
        ({"window": 0}, r"drawdown\.window: 0 .*>= 1"),
        ({"window": 17}, r"drawdown\.window: 17 .*<= 16"),
    ],
)
def test_bounds(params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec("drawdown", params))
