"""Intervals, tests and corrections against what is known of them."""

from __future__ import annotations

import math
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.experiments import statistics
from sim.experiments.statistics import holm, paired_p, ratio


def test_a_ratio_is_of_sums_and_its_interval_holds_it() -> None:
    found = ratio([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 4.0, 12.0])
    assert found.value == pytest.approx(10 / 20)
    assert found.low < found.value < found.high
    gain = ratio([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 4.0, 12.0], gain=True)
    assert gain.value == pytest.approx(0.5)
    assert (gain.low, gain.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_what_does_not_vary_has_no_width_and_what_is_not_defined_is_nan() -> None:
    assert ratio([1.0] * 9, [4.0] * 9) == pytest.approx((0.25, 0.25, 0.25))
    assert all(map(math.isnan, ratio([0.0, 0.0], [0.0, 0.0])))
    one = ratio([1.0], [2.0])
    assert one.value == 0.5
    assert math.isnan(one.low)


def test_drawn_in_blocks_the_interval_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Random(3)
    below = [draw.uniform(5.0, 15.0) for _ in range(50)]
    above = [0.3 * b + draw.gauss(0.0, 1.0) for b in below]
    whole = ratio(above, below)
    monkeypatch.setattr(statistics, "_CELLS", 50 * 777)
    monkeypatch.setattr(statistics, "_PICKS", {})
    assert ratio(above, below) == pytest.approx(whole, rel=1e-12)


def test_an_interval_over_many_jobs_needs_no_memory_of_jobs_times_resamples() -> None:
    jobs = 2000  # all at once: 160 MB of picks, and as much again while they are drawn
    tracemalloc.start()
    try:
        found = ratio([1.0 + n % 3 for n in range(jobs)], [4.0] * jobs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.low < found.value < found.high
    assert peak < 100e6


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    draw, covered = Random(1), 0
    for _ in range(200):
        below = [draw.uniform(5.0, 15.0) for _ in range(40)]
        above = [0.3 * b + draw.gauss(0.0, 1.0) for b in below]
        found = ratio(above, below)
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_a_difference_in_every_seed_is_significant_and_none_is_not() -> None:
    draw = Random(2)
    theirs = [draw.uniform(50.0, 150.0) for _ in range(30)]
    assert paired_p([0.9 * x for x in theirs], theirs) < 1e-5
    assert paired_p(theirs, theirs) == 1.0
    accused = sum(
        paired_p([x * math.exp(draw.gauss(0.0, 0.1)) for x in theirs], theirs) < 0.05 for _ in range(400)
    )
    assert 4 <= accused <= 32  # 5 % of them or somewhat fewer


def test_one_extreme_seed_does_not_make_a_difference() -> None:
    """The larger p of a mean test and a rank test: neither outliers nor ranks alone can carry it."""
    theirs = [100.0] * 20
    ours = [100.0 + (0.1 if i % 2 else -0.1) for i in range(19)] + [5.0]
    assert paired_p(ours, theirs) > 0.05


@pytest.mark.parametrize(
    ("given_", "corrected"),
    [
        ({"a": 0.01, "b": 0.04, "c": 0.03}, {"a": 0.03, "b": 0.06, "c": 0.06}),
        ({"a": 0.6, "b": 0.7}, {"a": 1.0, "b": 1.0}),
        ({"a": 0.02}, {"a": 0.02}),
    ],
)
def test_holms_correction(given_: dict[str, float], corrected: dict[str, float]) -> None:
    assert holm(given_) == pytest.approx(corrected)


@given(st.dictionaries(st.text(max_size=3), st.floats(0.0, 1.0), max_size=8))
def test_corrected_values_are_never_smaller_and_keep_their_order(p_values: dict[str, float]) -> None:
    corrected = holm(p_values)
    assert list(corrected) == list(p_values)
    assert all(corrected[name] >= p for name, p in p_values.items())
    ranked = sorted(p_values, key=p_values.__getitem__)
    assert [corrected[name] for name in ranked] == sorted(corrected.values())
