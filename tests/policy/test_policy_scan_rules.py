"""The rules that judge in units of noise, as tables: scores in, step of the first STOP out."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.codec import dumps, encode
from controller.policy.stopping import ParamError, cusum, drawdown, glr, make_rule, noise, scan, windows
from controller.policy.types import EvalPoint, PolicySpec, Verb

FLAT_THEN_FALL = [0.0] * 8 + [-0.1, -0.2, -0.3, -0.4, -0.5]
RULES_IN_NOISE = ["scan", "glr", "cusum"]


def first_stop(name: str, params: dict, scores: list[float], stderr: float | None = 0.05) -> int | None:
    rule = make_rule(PolicySpec(name, params))
    state = rule.initial()
    for step, score in enumerate(scores):
        state, verdict = rule.observe(state, EvalPoint(step, score, stderr=stderr))
        if verdict.verb is Verb.STOP:
            return step
    return None


@pytest.mark.parametrize(
    ("name", "params", "scores", "stop"),
    [
        ("scan", {"window": 4}, [], None),
        ("scan", {"window": 4}, [0.0] * 20, None),
        ("scan", {"window": 4}, FLAT_THEN_FALL, 9),  # newest two: -.167, z = 2.4; not yet at step 8: z = 1.8
        ("scan", {"window": 4, "threshold": 6.0}, FLAT_THEN_FALL, 11),
        ("scan", {"window": 4, "min_drop": 0.45}, FLAT_THEN_FALL, 12),
        ("scan", {"window": 4}, [-s for s in FLAT_THEN_FALL], None),  # rising is fine
        ("scan", {"window": 4}, [i / 10 for i in range(20)], None),
        ("scan", {"window": 12}, FLAT_THEN_FALL, None),  # 13 evals cannot be compared with 12 yet
        ("scan", {"window": 1, "threshold": 1.9}, [0.0, -0.2, 0.0], 1),
        ("glr", {"window": 4}, [0.0] * 60, None),
        ("glr", {"window": 4}, FLAT_THEN_FALL, 10),
        ("glr", {"window": 4, "alpha": 1e-9}, FLAT_THEN_FALL, 11),
        ("glr", {"window": 4}, [i / 10 for i in range(60)], None),
        ("cusum", {"window": 4}, [0.0] * 60, None),
        ("cusum", {"window": 4}, FLAT_THEN_FALL, 10),  # 1 + 3 + 5 > 5
        ("cusum", {"window": 4, "allowance": 5.0}, FLAT_THEN_FALL, 12),  # only the evals past .25 count
        ("cusum", {"window": 4, "threshold": 1.5}, FLAT_THEN_FALL, 9),
        ("kDeclines", {"k": 2, "min_delta_sigmas": 1.0}, FLAT_THEN_FALL, 9),
        ("kDeclines", {"k": 2, "min_delta_sigmas": 2.0}, FLAT_THEN_FALL, None),  # falls of .1, noise .14
        ("drawdown", {"window": 1, "max_drop": 0.0, "sigmas": 4.0}, FLAT_THEN_FALL, 10),  # .3 > .283
        ("drawdown", {"window": 1, "max_drop": 0.05, "sigmas": 4.0}, FLAT_THEN_FALL, 11),
    ],
)
def test_tables(name: str, params: dict, scores: list[float], stop: int | None) -> None:
    assert first_stop(name, params, scores) == stop


@pytest.mark.parametrize("name", RULES_IN_NOISE)
def test_without_noise_known_nothing_stops(name: str) -> None:
    assert first_stop(name, {"window": 1}, [0.0, -1.0, -2.0], stderr=None) is None


@pytest.mark.parametrize("name", RULES_IN_NOISE)
def test_the_fleets_noise_stands_in_for_the_runs_own(name: str) -> None:
    assert first_stop(name, {"window": 1, "usual_noise": 0.05}, [0.0, -1.0, -2.0], stderr=None) is not None


@pytest.mark.parametrize("name", [*RULES_IN_NOISE, "drawdown", "kDeclines"])
@given(st.lists(st.floats(0.0, 1.0), max_size=60))
def test_a_run_that_never_falls_is_never_stopped(name: str, rises: list[float]) -> None:
    scores, level = [], 0.0
    for rise in rises:
        level += rise
        scores.append(level)
    assert first_stop(name, {}, scores) is None


@pytest.mark.parametrize("name", RULES_IN_NOISE)
@given(st.lists(st.floats(-1, 1), max_size=50), st.floats(0.1, 100.0), st.floats(-5, 5))
def test_scale_and_origin_of_the_score_do_not_matter(
    name: str, scores: list[float], scale: float, origin: float
) -> None:
    rule = make_rule(PolicySpec(name, {"window": 3}))
    a, b = rule.initial(), rule.initial()
    for step, score in enumerate(scores):
        a, one = rule.observe(a, EvalPoint(step, score, stderr=0.05))
        b, two = rule.observe(b, EvalPoint(step, origin + scale * score, stderr=0.05 * scale))
        assert one.statistic == pytest.approx(two.statistic, rel=1e-3, abs=1e-2)


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=60),
    st.integers(1, 16),
    st.integers(1, 8),
)
@settings(max_examples=40)
def test_the_scan_is_the_maximum_over_all_pairs(scores: list[float], window: int, stride: int) -> None:
    state = windows.initial()
    x = [windows.single(s - scores[0]) for s in scores]
    for t in range(1, len(x) + 1):
        state, fall = windows.observe(state, scores[t - 1], window, stride)
        pairs = [
            (
                sum(x[a - window : a]) / window
                - sum(v * y for v, y in zip(k.weights, x[t - k.length : t], strict=True))
            )
            / k.spread
            for k in windows.recents(window)
            for a in range(window, t - k.length + 1)
            if a % stride == 0
        ]
        assert len(pairs) == windows.comparisons(t, window, stride)
        assert fall == pytest.approx(max(pairs, default=-math.inf), abs=1e-12)


def test_alpha_is_spent_once() -> None:
    from statistics import NormalDist

    for horizon in (10, 50):
        spent = 0.0
        for t in range(1, 5000):
            pairs = windows.comparisons(t, 8, glr.stride_of(8))
            spent += pairs * (1 - NormalDist().cdf(glr.threshold(t, 0.025, 8, horizon))) if pairs else 0.0
        assert 0.024 < spent <= 0.025 * (1 + 1e-6)


def test_glr_keeps_its_bound_on_flat_runs_with_room() -> None:
    """Known noise, 50 evals, alpha .2: the bound is an upper one, and not an empty one."""
    draw = random.Random(5)
    stops = sum(
        first_stop("glr", {"alpha": 0.2}, [draw.gauss(0, 0.05) for _ in range(50)]) is not None
        for _ in range(300)
    )
    assert 5 <= stops <= 60


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_noise_is_estimated_over_a_trend(offset: float) -> None:
    draw = random.Random(3)
    state = noise.initial()
    for i in range(400):
        state = noise.observe(state, EvalPoint(i, offset + 0.01 * i + draw.gauss(0, 0.05)))
    known = noise.estimate(state, 0.0, 1.0)
    assert known is not None
    assert known.sigma == pytest.approx(0.05, rel=0.1)
    assert known.freedom == pytest.approx(398 * noise.FREEDOM_PER_DIFFERENCE)


def test_the_estimate_is_shrunk_to_the_usual() -> None:
    state = noise.initial()
    for i, score in enumerate([0.0, 0.1] * 5):
        state = noise.observe(state, EvalPoint(i, score))
    alone = noise.estimate(state, 0.0, 1.0)
    light = noise.estimate(state, 0.01, 1.0)
    heavy = noise.estimate(state, 0.01, 10_000.0)
    assert alone is not None
    assert light is not None
    assert heavy is not None
    assert alone.sigma > light.sigma > heavy.sigma
    assert heavy.sigma == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(("z", "freedom", "t"), [(2.0, 10, 2.284), (3.0, 20, 3.422), (4.0, 30, 4.58)])
def test_widened_thresholds_follow_students_t(z: float, freedom: float, t: float) -> None:
    """t: quantile of Student's t at the normal distribution's level, from tables."""
    assert noise.widen(z, freedom) == pytest.approx(t, rel=0.02)
    assert noise.widen(z, math.inf) == z


@pytest.mark.parametrize(
    "rule",
    [
        scan.Scan(scan.ScanParams(window=16)),
        glr.Glr(glr.GlrParams(window=16)),
        cusum.Cusum(cusum.CusumParams(window=16)),
        drawdown.Drawdown(drawdown.DrawdownParams(window=16, sigmas=2.0)),
    ],
    ids=lambda rule: rule.name,
)
def test_states_stay_small_at_the_largest_window(rule) -> None:
    draw = random.Random(1)
    state = rule.initial()
    for step in range(120):
        state, _ = rule.observe(state, EvalPoint(step, draw.gauss(0, 1) / 3e5, stderr=draw.random() / 7e5))
        assert len(dumps(encode(state))) <= 400


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("scan", {"threshold": 0.0}, r"scan\.threshold: 0\.0 .*> 0"),
        ("scan", {"window": 17}, r"scan\.window: 17 .*<= 16"),
        ("scan", {"usual_noise_weight": 0.5}, r"scan\.usual_noise_weight: 0\.5 .*>= 1"),
        ("glr", {"alpha": 0.6}, r"glr\.alpha: 0\.6 .*<= 0\.5"),
        ("glr", {"horizon": 0}, r"glr\.horizon: 0 .*>= 1"),
        ("cusum", {"allowance": -1.0}, r"cusum\.allowance: -1\.0 .*>= 0"),
        ("drawdown", {"max_drop": 0.0, "sigmas": 0.0}, r"drawdown\.max_drop: 0\.0 .*sigmas > 0"),
        ("kDeclines", {"min_delta_sigmas": -1.0}, r"kDeclines\.min_delta_sigmas: -1\.0 .*>= 0"),
    ],
)
def test_bounds(name: str, params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec(name, params))
