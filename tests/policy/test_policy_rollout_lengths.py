"""Lengths: averages over epochs, the spread between copies, drift, and the histogram that is sent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.params import ParamError
from controller.policy.rollout import Forecast, LengthHistory, forecast


def test_window_one_is_the_last_epoch() -> None:
    history = LengthHistory().seen([("p", 100.0, (90, 110))]).seen([("p", 100.0, (300, 300))])
    assert history.means["p"] == 300.0


def test_a_longer_window_averages() -> None:
    history = LengthHistory(window=3).seen([("p", 1.0, (100,))]).seen([("p", 100.0, (300,))])
    assert history.means["p"] == pytest.approx(200.0)  # weight 2 / (3 + 1)


def test_an_unknown_prompt_has_the_trainers_guess_or_the_usual_length() -> None:
    history = LengthHistory().seen([("a", 100.0, (100,)), ("b", 300.0, (300,))])
    assert history.predict([("new", 50.0), ("newer", None), ("odd", math.nan)]) == [50.0, 200.0, 200.0]
    assert LengthHistory().predict([("new", None)]) == [1.0]


def test_lengths_that_grow_together_are_followed() -> None:
    history = LengthHistory().seen([(p, 100.0, (100,)) for p in range(20)])
    for length in (130, 169, 220):
        predicted = history.predict([(p, None) for p in range(20)])
        history = history.seen([(p, predicted[p], (length,)) for p in range(20)])
    assert history.predict([(0, None)])[0] == pytest.approx(220 * 1.3, rel=0.02)


def test_responses_that_end_at_the_cap_do_not_hide_that_others_grow() -> None:
    """Two of five prompts have most of the tokens, and stay where they are."""
    history = LengthHistory().seen([(p, 100.0, (2048 if p < 4 else 100,)) for p in range(10)])
    for length in (130, 169):
        predicted = history.predict([(p, None) for p in range(10)])
        history = history.seen([(p, predicted[p], (2048 if p < 4 else length,)) for p in range(10)])
    assert history.predict([(9, None)])[0] == pytest.approx(169 * 1.3, rel=0.02)


def test_wrong_guesses_are_scaled_for_the_prompts_to_come() -> None:
    history = LengthHistory()
    for step in range(4):
        prompts = [(f"{step}-{p}", 100.0) for p in range(10)]
        predicted = history.predict(prompts)
        history = history.seen([(key, predicted[i], (250,)) for i, (key, _) in enumerate(prompts)])
    assert history.predict([("next", 100.0)])[0] == pytest.approx(250.0, rel=0.02)


def test_the_spread_is_learned_from_copies() -> None:
    spread = 0.4
    copies = [round(1000 * math.exp(spread * z)) for z in (-1.3, -0.4, 0.4, 1.3)]
    history = LengthHistory()
    for _ in range(3):
        history = history.seen([(p, 1000.0, copies) for p in range(100)])
    logs = [math.log(c) for c in copies]
    mean = sum(logs) / 4
    assert history.spread == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in logs) / 3), rel=0.02)
    assert LengthHistory().spread == pytest.approx(0.2)


@pytest.mark.parametrize("lengths", [(), (0, 5), (-3,)])
def test_a_prompt_without_usable_lengths_teaches_nothing(lengths: tuple[int, ...]) -> None:
    assert LengthHistory().seen([("p", 10.0, lengths)]) == LengthHistory()


@given(
    st.lists(st.floats(0.5, 5000.0), min_size=1, max_size=700),
    st.integers(1, 8),
)
def test_a_forecast_keeps_prompts_and_tokens_in_few_bins(predicted: list[float], copies: int) -> None:
    found = forecast(predicted, copies, 0.1, 2048)
    assert found.prompts == len(predicted)
    assert len(found.bins) <= 256
    assert list(found.bins) == sorted(found.bins, key=lambda b: -b[0])
    kept = sum(min(2048.0, max(1.0, p)) for p in predicted)
    assert sum(tokens * prompts for tokens, prompts in found.bins) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("bins", "copies", "spread", "cap", "field"),
    [
        (((math.nan, 1),), 1, 0.1, 10, "forecast.bins"),
        (((-1.0, 1),), 1, 0.1, 10, "forecast.bins"),
        (((math.inf, 1),), 1, 0.1, 10, "forecast.bins"),
        (((5.0, 0),), 1, 0.1, 10, "forecast.bins"),
        (((5.0, 1),) * 257, 1, 0.1, 10, "forecast.bins"),
        (((5.0, 1),), 0, 0.1, 10, "forecast.copies"),
        (((5.0, 1),), 1, math.nan, 10, "forecast.spread"),
        (((5.0, 1),), 1, 0.1, 0, "forecast.cap"),
    ],
)
def test_a_forecast_that_cannot_be_is_refused(
    bins: tuple[tuple[float, int], ...], copies: int, spread: float, cap: int, field: str
) -> None:
    with pytest.raises(ParamError, match=field):
        Forecast(bins, copies, spread, cap)


@pytest.mark.parametrize("window", [0, 101])
def test_a_window_out_of_bounds_is_refused(window: int) -> None:
    with pytest.raises(ParamError, match="window"):
        LengthHistory(window=window)
