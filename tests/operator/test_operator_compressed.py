"""What trainers said is kept packed and opens as it was."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from controller.kube.deflated import Deflater
from controller.operator.state.compressed import Compressed
from controller.policy.job.types import MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, Paired, PromptPair

SCORES = st.floats(allow_nan=False)
POINTS = st.builds(
    EvalPoint,
    st.integers(0, 10**15),
    SCORES,
    st.builds(Attempt, st.integers(0, 9), st.integers(0, 2**31)),
    st.none() | SCORES,
    st.none() | st.integers(0, 1000),
    st.none() | SCORES,
    st.none() | st.builds(Paired, st.integers(0, 99), st.integers(2, 99), SCORES, SCORES),
    st.none() | st.integers(0, 1000),
    st.lists(st.builds(PromptPair, st.integers(0, 99), st.integers(2, 99), SCORES, SCORES), max_size=3).map(
        tuple
    ),
)
VIEWS = st.builds(
    ScrapeView,
    st.sampled_from(ScrapeOutcome),
    st.text(max_size=30),
    points=st.lists(POINTS, max_size=6).map(tuple),
    step=st.none() | st.integers(0, 10**6),
    others=st.lists(st.builds(MetricPoints, st.text(max_size=5), st.just(())), max_size=2).map(tuple),
)


@given(VIEWS, VIEWS)
def test_it_opens_as_it_was_and_knows_its_equals(view: ScrapeView, other: ScrapeView) -> None:
    kept = Compressed(view, Deflater())
    assert kept.open() == view
    assert kept.open() is not view
    assert kept.holds(view)
    assert kept.holds(kept.open())  # other objects of the same value
    assert kept.holds(other) == (view == other)


def test_a_score_that_is_no_number_is_no_news_the_second_time() -> None:
    """Else each scrape of such a page would be a pass: not-a-number is unequal even to itself."""
    view = ScrapeView(ScrapeOutcome.OK, points=(EvalPoint(10, math.nan),))
    assert Compressed(view, Deflater()).holds(ScrapeView(ScrapeOutcome.OK, points=(EvalPoint(10, math.nan),)))


def test_a_window_of_evals_is_a_fraction_of_its_objects() -> None:
    points = tuple(EvalPoint(10 * i, 1.0 - 0.7**i, Attempt(1, "1_782_907_200"), 0.02) for i in range(32))
    assert len(Compressed(ScrapeView(ScrapeOutcome.OK, points=points), Deflater())._bytes) < 800
