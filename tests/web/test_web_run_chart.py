"""A run's chart: limits, what is cut, words that do not overprint, and any numbers there are."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job import CurveMark, JobRecord, course
from controller.policy.job.curve import with_eval
from controller.policy.types import Attempt, EvalPoint, Verb, Verdict
from controller.web.dashboard.axes import Axis, padded, robust_limits, tick_texts, ticks
from controller.web.dashboard.run_chart import RunChart, View, curve_svg
from controller.web.dashboard.small_charts import compare_svg, shortened, sparkline
from controller.web.dashboard.svg_elements import LETTER, NARROW, WIDE

finite = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = re.compile(r'(?<![\w#-])(?:x|y|x1|cx|cy|width|height)="([^"]*)"')


def record_of(scores: list[float], attempt: int = 1, apart: int = 10, proxy: bool = True) -> JobRecord:
    """A run whose last 32 evals are kept one by one."""
    record = JobRecord()
    for n, score in enumerate(scores, 1):
        point = EvalPoint(apart * n, score, Attempt(attempt, "1"), proxy=score if proxy else None)
        verdict = Verdict(Verb.CONTINUE, "R", n % 3, 3.0)
        drawn = with_eval(record, point, verdict, n / 50 if proxy else None)
        record = replace(record, curve=drawn, evals=(*record.evals, point)[-32:])
    return record


def texts(drawn: str) -> list[tuple[float, float, str]]:
    """(where it begins, its height, text) of each text."""
    found = []
    for one in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"):
        words = "".join(one.itertext())
        x, long = float(one.get("x", "0")), LETTER * len(words)
        x -= {"end": long, "middle": long / 2}.get(one.get("text-anchor", "start"), 0.0)
        found.append((x, float(one.get("y", "0")), words))
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(finite, min_size=1, max_size=120), st.booleans())
def test_any_scores_are_drawn_within_the_picture(scores: list[float], narrow: bool) -> None:
    record = record_of(scores)
    chart = RunChart("m", course(record), best=(10, max(scores)), total=2000, stopped=10 * len(scores))
    drawn = curve_svg(chart, "p", narrow)
    root = ET.fromstring(drawn)
    assert not re.search(r"\b(nan|inf)\b", drawn)
    width, height = (float(one) for one in root.attrib["viewBox"].split()[2:])
    assert width == (NARROW if narrow else WIDE)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("id") is None and path.get("fill") == "none":
            for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
                assert -0.1 <= float(x) <= width + 0.1
                assert -0.1 <= float(y) <= height + 0.1
    drawn_points = root.findall(".//{*}g[@id='p-pts-score']/{*}use")
    assert len(drawn_points) == len(chart.points)


@settings(max_examples=200, deadline=None)
@given(finite, finite, st.integers(2, 8))
def test_ticks_lie_within_and_their_texts_differ(one: float, other: float, about: int) -> None:
    low, high = padded(min(one, other), max(one, other))
    marks = ticks(low, high, about)
    assert 1 <= len(marks) <= 3 * about
    assert all(a < b for a, b in itertools.pairwise(marks))
    assert all(map(math.isfinite, marks))
    assert len(set(tick_texts(marks))) == len(marks)
    axis = Axis(low, high, 200.0, 10.0)
    assert all(10.0 <= axis.place(mark) <= 200.0 for mark in marks)


@pytest.mark.parametrize("wild", [1e308, -1e6, -1e308])
def test_an_outlier_flattens_nothing_and_is_told(wild: float) -> None:
    scores = [0.5 + 0.3 * math.sin(n / 9) for n in range(60)]
    scores[30] = wild
    chart = RunChart("m", course(record_of(scores)))
    low, high = robust_limits(scores)
    assert low > -0.2
    assert high < 1.2
    (cut,) = chart.cut()
    assert cut.score == float(f"{wild:.5g}")
    drawn = curve_svg(chart, "p", False)
    assert f"1 {'above' if wild > 0 else 'below'}, to {wild:.4g}" in drawn
    assert drawn.count(f'<use href="#p-{"up" if wild > 0 else "down"}"') == 1
    assert "best" not in drawn


def test_a_run_that_rises_steeply_at_first_loses_nothing() -> None:
    scores = [0.9 * (1 - math.exp(-n / 4)) for n in range(100)]
    assert RunChart("m", course(record_of(scores))).cut() == ()


def test_a_thousand_evals_fill_the_axis() -> None:
    """The fault of the page before: 32 points in the last 5 % of the steps."""
    record = record_of([math.sin(n / 100) for n in range(1000)])
    chart = RunChart("m", course(record), total=10000)
    assert chart.points[0].step < 500
    assert chart.course.first == 9690
    assert all(a.step < b.step for a, b in itertools.pairwise(chart.points))
    assert 64 <= len(chart.points) <= 96
    assert f"Up to step {chart.points[-33].step} each point stands for up to 256 steps." in chart.sentence()
    assert len(curve_svg(chart, "p", False)) < 30_000


def test_kl_is_drawn_on_the_same_axis_told_and_in_the_table() -> None:
    chart = RunChart("m", course(record_of([0.1 * n for n in range(1, 9)])))
    drawn = ET.fromstring(curve_svg(chart, "p", False))
    (path,) = drawn.findall(".//{*}g[@id='p-pts-kl']/{*}path")
    (score,) = drawn.findall(".//{*}g[@id='p-pts-score']/{*}path")
    across = [[x for x, _ in re.findall(r"([\d.]+) ([\d.]+)", one.attrib["d"])] for one in (path, score)]
    assert across[0] == across[1]
    assert chart.sentence().endswith("The KL divergence went from 0.02 to 0.16.")
    assert [chart.kl_at(p.step) for p in chart.points] == [n / 50 for n in range(1, 9)]
    zoomed = replace(chart, view=View(20, 40))
    assert [step for step, _ in zoomed.kls] == [20, 30, 40]
    without = RunChart("m", course(record_of([0.1, 0.2], proxy=False)))
    assert "KL" not in curve_svg(without, "p", False) + without.sentence()


def test_what_was_left_attempts_stops_and_the_planned_rest_are_drawn() -> None:
    record = record_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3])
    for n, score in enumerate((0.5, 0.6), 5):
        point = EvalPoint(10 * n, score, Attempt(2, "1"))
        kept = tuple(p for p in record.evals if p.step < point.step)
        record = replace(record, curve=with_eval(record, point, None), evals=(*kept, point))
    marks = (CurveMark("Stopped", 70), CurveMark("Resumed", 40, 2))
    chart = RunChart("m", course(record), total=200, marks=marks)
    assert [p.step for p in chart.points] == [10, 20, 30, 40, 50, 60]
    assert [[p.step for p in part] for part in chart.course.left] == [[50, 60, 70]]
    drawn = curve_svg(chart, "p", False)
    for said in ("stopped 70", "attempt 2 from 40", "planned to 200", 'class="left"', 'class="planned"'):
        assert said in drawn
    assert "planned" not in curve_svg(replace(chart, total=None), "p", False)


@pytest.mark.parametrize("narrow", [False, True])
def test_words_never_overprint_nor_leave_the_picture(narrow: bool) -> None:
    record = record_of([math.sin(n / 5) for n in range(60)])
    marks = tuple(CurveMark("Resumed", 300 + 20 * n, n + 2) for n in range(6))
    chart = RunChart(
        "a" * 80,
        course(record),
        (300, 1.0),
        300,
        warned=590,
        stopped=600,
        other_stop=595,
        total=600,
        marks=marks,
    )
    width = NARROW if narrow else WIDE
    drawn = curve_svg(chart, "p", narrow)
    events = [t for t in texts(drawn) if re.match(r"(attempt|warned|stop|other)", t[2])]
    assert len(events) + len(re.findall("<title>attempt", drawn)) == 9
    for x, _, words in events:
        assert x >= 0.0
        assert x + LETTER * len(words) <= width + 1, words
    title = next(t for t in texts(drawn) if t[2].startswith("aaa"))
    assert title[1] - max(y for _, y, _ in events) >= 11
    for (x, y, words), (other, level, more) in itertools.combinations(events, 2):
        if abs(y - level) < 11:
            assert x + LETTER * len(words) <= other or other + LETTER * len(more) <= x, (words, more)


@pytest.mark.parametrize("narrow", [False, True])
def test_sixty_resumes_push_no_curve_down_and_the_newest_has_words(narrow: bool) -> None:
    record = record_of([math.sin(n / 5) for n in range(60)])
    marks = tuple(CurveMark("Resumed", 10 * n, n + 1) for n in range(1, 61))
    chart = RunChart("gold", course(record), stopped=600, total=600, marks=marks)
    drawn = curve_svg(chart, "p", narrow)
    events = [t for t in texts(drawn) if re.match(r"(attempt|stop)", t[2])]
    assert {"stop 600", "attempt 61 from 600"} <= {words for _, _, words in events}
    assert len({y for _, y, _ in events}) <= 5
    assert len(events) + len(re.findall("<title>attempt", drawn)) == 61  # none is lost
    assert "Went on from a checkpoint 60 times." in drawn


def test_a_view_shows_its_steps_alone() -> None:
    record = record_of([math.sin(n / 5) for n in range(60)])
    whole = RunChart("m", course(record), best=(80, 1.0), total=600)
    part = replace(whole, view=View(200, 300))
    assert [p.step for p in part.points] == list(range(200, 301, 10))
    drawn = curve_svg(part, "p", False)
    assert ('data-first="200"' in drawn, 'data-last="300"' in drawn) == (True, True)
    assert "best" not in ET.fromstring(drawn).findtext("{*}text", "")
    empty = replace(whole, view=View(5000, 6000))
    assert empty.sentence() == "No eval lies within these steps."
    ET.fromstring(curve_svg(empty, "p", False))


def test_six_runs_are_told_apart_without_colour() -> None:
    runs = tuple(RunChart("m", course(record_of([n + math.sin(k / 3) for k in range(30)]))) for n in range(6))
    names = tuple(f"{'n' * 63}/{'r' * 39}{n}" for n in range(6))
    root = ET.fromstring(compare_svg(runs, names, "v", True))
    told = []
    for group in root.findall("{*}g"):
        path, mark = group.find("{*}path"), group.find("{*}use")
        assert path is not None
        assert mark is not None
        told.append((path.get("stroke-dasharray"), mark.attrib["href"]))
        assert "…" in group.findtext("{*}text", "")
    assert len(set(told)) == 6


def test_the_axis_of_runs_of_several_metrics_is_named_after_none_of_them() -> None:
    one, other = (RunChart(name, course(record_of([0.1, 0.2]))) for name in ("wer", "accuracy"))
    for runs, title in (((one, one), "wer"), ((one, other), "scores, each of its own metric")):
        texts = [
            element.text for element in ET.fromstring(compare_svg(runs, ("a/a", "a/b"), "v", True)).iter()
        ]
        assert (title in texts, "wer" in texts) == (True, title == "wer")


def test_a_name_keeps_both_its_ends() -> None:
    assert shortened("team-a/llama-ppo-17", 40) == "team-a/llama-ppo-17"
    cut = shortened("team-a/" + "x" * 60 + "-17", 20)
    assert (len(cut), cut[:7], cut[-3:]) == (20, "team-a/", "-17")


def test_a_small_line_says_how_the_run_went() -> None:
    rising = course(record_of([0.1 * n for n in range(50)]))
    assert 'aria-label="50 points, now better than at first"' in sparkline(rising, (490, 4.9), True)
    assert "now worse than at first" in sparkline(rising, None, False)
    assert sparkline(course(record_of([0.5])), None, True) == ""
    assert len(sparkline(course(record_of([math.sin(n) for n in range(1000)])), (10, 0.8), True)) < 700
