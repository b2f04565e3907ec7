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
        ("scan", {}, [], None),
        ("scan", {}, [0.0] * 20, None),
        # At step 9 the newest two lie at -.167: z = .167 / (.05 * sqrt(1 / 3 + 5 / 9)) = 3.5, and
        # c^2 = 3.2^2 + 2 log(50 / 10) = 13.5. At step 10: .267, z = 5.7.
        ("scan", {}, FLAT_THEN_FALL, 10),
        ("scan", {"threshold": 2.9}, FLAT_THEN_FALL, 9),  # c = 3.41
        ("scan", {"horizon": 10}, FLAT_THEN_FALL, 9),  # c = 3.2
        ("scan", {"horizon": 1}, FLAT_THEN_FALL, 10),  # c = 4.4, at step 9 as at step 10
        ("scan", {"threshold": 8.0}, FLAT_THEN_FALL, 12),
        ("scan", {"min_drop": 0.45}, FLAT_THEN_FALL, 12),
        ("scan", {}, [-s for s in FLAT_THEN_FALL], None),  # rising is fine
        ("scan", {}, [i / 10 for i in range(20)], None),
        ("scan", {"window": 12}, FLAT_THEN_FALL, None),  # 13 evals cannot be compared with 12 yet
        ("scan", {"window": 1, "threshold": 1.0, "horizon": 2}, [0.0, -0.2, 0.0], 1),
        ("glr", {}, [0.0] * 200, None),
        ("glr", {}, FLAT_THEN_FALL, 10),
        ("glr", {"alpha": 1e-9}, FLAT_THEN_FALL, 11),
        ("glr", {}, [i / 10 for i in range(200)], None),
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


def blocks_of(x: list[float]) -> tuple[list[float], list[float]]:
    """The means of complete blocks, and that of what is left, from the whole run."""
    size, blocks, rest = windows.layout(len(x))
    means = [sum(x[i * size : (i + 1) * size]) / size for i in range(blocks)]
    return means, [sum(x[-rest:]) / rest] if rest else []


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=130),
    st.integers(1, 16),
    st.floats(windows.LEAST_SHARE, windows.MOST_SHARE),
    st.booleans(),
)
@settings(max_examples=40)
def test_the_scan_is_the_maximum_over_all_pairs(
    scores: list[float], window: int, share: float, sparse: bool
) -> None:
    state = windows.initial()
    x = [windows.single(s - scores[0]) for s in scores]
    for t in range(1, len(x) + 1):
        state, fall = windows.observe(state, scores[t - 1], window, share, sparse=sparse)
        means, rest = blocks_of(x[:t])
        found = [
            (sum(means[end - k.reference : end]) / k.reference - newest) / k.spread
            for k in windows.pairs(t, window, share)
            for newest in [
                sum(w * y for w, y in zip(k.weights, (means + rest)[-len(k.weights) :], strict=True))
            ]
            for end in range(k.reference, len(means) - k.newest + 1, windows.stride(k.reference, sparse))
        ]
        assert len(found) == windows.comparisons(t, window, share, sparse)
        assert fall == pytest.approx(max(found, default=-math.inf), abs=1e-4)


def test_a_block_far_from_the_others_costs_none_of_them_digits() -> None:
    """A perplexity of 50,000 before training, of 10 with noise of .01 after it: falls are seen as ever."""
    state, far = windows.initial(), windows.initial()
    draw = random.Random(3)
    for number in range(200):
        score = 10.0 + draw.gauss(0.0, 0.01) - 0.05 * max(0, number - 150)
        state, fall = windows.observe(state, score, 3, 0.25)
        far, seen = windows.observe(far, score if number else -50_000.0, 3, 0.25)
        assert seen <= fall + 0.02
    assert fall > 1.0
    assert seen == pytest.approx(fall, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.14159, 1e-38, 1e-45, 3.4028235e38, -1e300, 1e300])
def test_a_distance_is_kept_to_sixteen_bits(value: float) -> None:
    kept = windows.coarse(value)
    assert kept == windows.coarse(kept)
    clipped = max(-3.4e38, min(3.4e38, value))
    assert kept == pytest.approx(clipped, rel=2.0**-15 if abs(value) < 1e38 else 0.01, abs=1e-40)
    assert abs(kept) <= abs(clipped) * (1.0 + 1e-7) or abs(value) > 1e38


@given(st.integers(1, 5000), st.integers(1, 16), st.floats(windows.LEAST_SHARE, windows.MOST_SHARE))
def test_each_comparison_has_variance_one(seen: int, window: int, share: float) -> None:
    """And its weights sum to one, so that a level cancels and a mean that does not fall cannot raise it."""
    size, blocks, rest = windows.layout(seen)
    assert blocks < windows.BLOCKS
    assert blocks * size + rest == seen
    for pair in windows.pairs(seen, window, share):
        sizes = [size] * pair.newest + ([rest] if rest else [])
        assert sum(pair.weights) == pytest.approx(1.0)
        assert min(pair.weights) > 0.0
        variance = 1 / (pair.reference * size) + sum(
            w * w / n for w, n in zip(pair.weights, sizes, strict=True)
        )
        assert pair.spread == pytest.approx(math.sqrt(variance))
        assert pair.reference + pair.newest <= blocks


@pytest.mark.parametrize(
    ("seen", "references", "newest"),
    [
        (4, (), ()),
        (5, (3,), (2,)),
        (12, (3,), (2,)),
        (20, (5,), (2, 4)),
        (32, (8,), (3, 5, 8)),
        (45, (11,), (5, 8)),
        (200, (48,), (16, 32, 48)),  # blocks of 8, hence not 50
    ],
)
def test_the_windows_grow_with_the_run(
    seen: int, references: tuple[int, ...], newest: tuple[int, ...]
) -> None:
    """Lengths in evals at window 3, share 1/4."""
    size, _, rest = windows.layout(seen)
    found = windows.pairs(seen, 3, 0.25)
    assert tuple(sorted({p.reference * size for p in found})) == references
    assert tuple(p.newest * size + rest for p in found) == newest


@pytest.mark.parametrize("params", [{"threshold": 1.0, "horizon": 1000}, {"alpha": 0.5}])
@pytest.mark.parametrize("stderr", [None, 0.002])
def test_a_fall_that_is_to_be_let_pass_is_let_pass_over_stretches_of_any_length(
    params: dict, stderr: float | None
) -> None:
    """The means of two long stretches differ clearly, and yet by less: what is clear is not what is large."""
    scores = [0.5 - 0.002 * max(0, n - 40) + 0.002 * (-1) ** n for n in range(80)]  # by .08 in all
    assert first_stop("scan", {**params, "min_drop": 0.085}, scores, stderr) is None
    stopped = first_stop("scan", {**params, "min_drop": 0.03}, scores, stderr)
    assert stopped is not None
    assert scores[0] - scores[stopped] > 0.03


def test_alpha_is_spent_once() -> None:
    from statistics import NormalDist

    for horizon in (10, 50):
        params = glr.GlrParams(horizon=horizon)
        spent = 0.0
        for t in range(1, 5000):
            pairs = windows.comparisons(t, params.window, params.share, True)
            spent += pairs * (1 - NormalDist().cdf(glr.threshold(t, params))) if pairs else 0.0
        assert 0.024 < spent <= 0.025 * (1 + 1e-6)


def test_the_scans_threshold_is_lowest_at_its_horizon() -> None:
    added = [scan.looks(t, 50) for t in range(1, 400)]
    assert min(added) == added[49] == 0.0
    assert added == sorted(added[:49], reverse=True) + sorted(added[49:])


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


def test_outliers_count_in_the_noise() -> None:
    """Rare deep dips make the variance, .09: a rule whose estimate left them out would stop in one."""
    draw = random.Random(4)
    state = noise.initial()
    for i in range(500):
        state = noise.observe(
            state, EvalPoint(i, draw.gauss(0, 0.01) - (1.0 if draw.random() < 0.1 else 0.0))
        )
    known = noise.estimate(state, 0.0, 1.0)
    assert known is not None
    assert known.sigma == pytest.approx(0.3, rel=0.15)


def test_degrees_of_freedom_are_those_of_the_estimate() -> None:
    """A chi-square variable over its degrees of freedom f has variance 2 / f."""
    draw = random.Random(9)
    found = []
    for _ in range(2000):
        state = noise.initial()
        for i in range(40):
            state = noise.observe(state, EvalPoint(i, draw.gauss(0, 1)))
        found.append(noise.estimate(state, 0.0, 1.0))
    variances = [k.sigma**2 for k in found if k is not None]
    mean = sum(variances) / len(variances)
    spread = sum((v - mean) ** 2 for v in variances) / len(variances)
    assert mean == pytest.approx(1.0, abs=0.03)
    assert 2 / spread == pytest.approx(found[0].freedom, rel=0.15)


@pytest.mark.parametrize("score", [1.7e308, -1.7e308])
def test_the_largest_scores_break_nothing(score: float) -> None:
    for name in RULES_IN_NOISE:
        rule = make_rule(PolicySpec(name))
        state = rule.initial()
        for step in range(30):
            state, verdict = rule.observe(state, EvalPoint(step, score if step % 3 else -score))
            assert not math.isnan(verdict.statistic)
            assert "NaN" not in dumps(encode(state))


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
        scan.Scan(scan.ScanParams()),
        scan.Scan(scan.ScanParams(alpha=0.04)),
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
        assert len(dumps(encode(state))) <= 600


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("scan", {"threshold": 0.0}, r"scan\.threshold: 0\.0 .*> 0"),
        ("scan", {"window": 17}, r"scan\.window: 17 .*<= 16"),
        ("scan", {"share": 0.6}, r"scan\.share: 0\.6 .*<= 0\.5"),
        ("scan", {"horizon": 0}, r"scan\.horizon: 0 .*>= 1"),
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
