"""The client's law of lengths is the planner's: it cannot import it, so this holds them equal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.rollout import LengthHistory, forecast, rank_correlation
from evalstop_client import rollouts as client

KEYS = st.integers(0, 12)
STEP = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.floats(1.0, 500.0)), st.lists(st.integers(0, 900), max_size=4)),
    max_size=12,
)


@given(st.lists(STEP, max_size=5))
def test_the_client_learns_as_the_planner_does(steps: list) -> None:
    mine, theirs = client.Lengths(), LengthHistory()
    for step in steps:
        asked = [(key, guess) for key, guess, _ in step]
        predicted = mine.predict([client.Prompt(key, (), guess) for key, guess in asked])
        assert predicted == theirs.predict(asked)
        seen = [(key, p, lengths) for (key, _, lengths), p in zip(step, predicted, strict=True)]
        mine.seen(seen)
        theirs = theirs.seen(seen)
        assert mine.means == dict(theirs.means)
        assert (mine.spread, mine.bias, mine.guess_bias) == (theirs.spread, theirs.bias, theirs.guess_bias)
        again = client.Lengths()
        again.load(json.loads(json.dumps(mine.state())))
        assert again.state() == mine.state()


@given(st.lists(st.floats(0.5, 3000.0), max_size=600))
def test_the_histogram_is_the_planners(lengths: list[float]) -> None:
    bins = client.histogram(lengths, 2048)
    assert [tuple(pair) for pair in bins] == list(forecast(lengths, 1, 0.2, 2048).bins)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_correlation_is_the_planners(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    assert client.rank_correlation(a, b) == pytest.approx(rank_correlation(a, b))
