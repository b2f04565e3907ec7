"""Whatever is reported, the operator reads the page whole: any name, any value, any number of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.metrics.parse import DEFAULT_LIMITS, parse
from controller.policy.job import ScrapeOutcome
from evalstop_client.client import METRICS_KEPT, Differences, EvalStopClient

NUMBERS = st.floats() | st.integers(-(10**30), 10**30)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=220)


def client(**changes: str) -> EvalStopClient:
    return EvalStopClient(port=0, host="127.0.0.1", life="a1", speaks=True, **changes)


def is_name(text: str, most: int) -> bool:
    """Whether it may be in ``spec.metrics`` (controller/api/rlhfjob.py), and can be written as UTF-8."""
    wrong = any(sign < " " or sign == "\x7f" or "\ud800" <= sign <= "\udfff" for sign in text)
    return 0 < len(text) <= most and not wrong


@given(TEXTS, st.integers(0, 10**15 - 1), NUMBERS, NUMBERS, st.integers(0, 10**15 - 1), NUMBERS)
def test_any_metric_and_value_is_read_or_refused_by_name(
    metric: str, step: int, score: float, stderr: float, samples: int, proxy: float
) -> None:
    c = client()
    told = False
    if is_name(metric, 200):
        told = c.report_eval(metric, step, score, stderr, samples, proxy=proxy)
    else:
        with pytest.raises(ValueError, match=r"^metric: expected a name of 1 to 200 characters"):
            c.report_eval(metric, step, score, stderr, samples, proxy=proxy)
    c.set_progress(step, None, proxy=proxy, kl=stderr, loss=score)
    view = parse(c.exposition(), metric)
    assert view.outcome is ScrapeOutcome.OK
    if not told:
        assert view.points == ()
        return
    (point,) = view.points
    assert point.step == step
    assert point.score == float(score) or math.isnan(point.score)
    assert view.metrics_seen != ()


@given(TEXTS)
def test_any_evaluator_is_read_or_refused(version: str) -> None:
    if not is_name(version, 128):
        with pytest.raises(ValueError, match=r"^evaluator: expected a name of 1 to 128 characters"):
            client(evaluator=version)
        return
    c = client(evaluator=version)
    c.report_eval("gold", 1, 0.5)
    assert parse(c.exposition(), "gold").evals_labelled


@pytest.mark.parametrize(
    "name",
    ["m", "é" * 190, '"' * 190, "\U0001f600" * 190],
    ids=["short", "two bytes", "escaped", "four bytes"],
)
def test_a_page_that_is_full_to_the_brim_is_read(name: str) -> None:
    """32 metrics of the longest names with all that an eval may have, 32 evals of each, and more."""
    c = client(evaluator="\U0001f600" * 128)
    for step in range(1, names.EVALS_KEPT + 8):
        for number in range(METRICS_KEPT + 3):
            pairs = Differences(step - 1, 1000, -0.123456789012345, 1.23456789e-300)
            metric = f"{name}{number}"
            c.report_eval(metric, step, -1.23456789012345e-300, 0.1, 1024, proxy=1e300, differences=pairs)
    body = c.exposition()
    assert len(body) < DEFAULT_LIMITS.wanted_bytes
    view = parse(body, f"{name}0", others=[f"{name}31"])
    assert [p.step for p in view.points][-1] == names.EVALS_KEPT + 7
    assert view.points[-1].paired is not None
    assert len(view.others[0].points) == len(view.points) >= 1


def test_the_main_metric_has_its_place_among_many() -> None:
    c = client()
    for number in range(100):
        c.report_eval(f"other{number}", 1, 0.0)
    assert not c.report_eval("gold", 1, 0.5)
    assert len(parse(c.exposition(), "other0").metrics_seen) == METRICS_KEPT
