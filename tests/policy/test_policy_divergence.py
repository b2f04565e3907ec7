"""divergence: what it lets through, what it calls it, and that it never adds a stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import linregress  # type: ignore[import-untyped, unused-ignore]

from controller.policy.codec import dumps, encode
from controller.policy.job.record import RULE_STATE_MAX
from controller.policy.params import ParamError
from controller.policy.stopping import make_rule
from controller.policy.stopping.divergence import pack, slope, unpack
from controller.policy.types import EvalPoint, Paired, PolicySpec, Verb, Verdict

WIGGLE = (0.01, -0.02, 0.015, 0.0, -0.01, 0.02, -0.015, 0.01)  # a little noise, always the same
RISE = [0.1 * i + w for i, w in enumerate(WIGGLE)]
FALL = [0.8 - x for x in RISE]
FLAT = [0.4 + w for w in WIGGLE]


def spec(**params: object) -> PolicySpec:
    return PolicySpec("divergence", params)  # type: ignore[arg-type]


def verdicts(
    scores: list[float],
    proxies: list[float | None],
    *modifiers: PolicySpec,
    rule: PolicySpec = PolicySpec("kDeclines", {"k": 1}),  # noqa: B008
) -> list[Verdict]:
    judge = make_rule(rule, modifiers)
    state, out = judge.initial(), []
    for i, (score, proxy) in enumerate(zip(scores, proxies, strict=True)):
        state, verdict = judge.observe(state, EvalPoint(10 * i, score, proxy=proxy))
        out.append(verdict)
    return out


@pytest.mark.parametrize(
    ("scores", "proxies", "params", "verb", "reason"),
    [
        (FALL, RISE, {}, Verb.STOP, "RewardHacking"),
        (FALL, FALL, {}, Verb.STOP, "Collapse"),
        (FALL, FALL, {"collapse": False}, Verb.CONTINUE, "Collapse"),
        (FALL, RISE, {"collapse": False}, Verb.STOP, "RewardHacking"),
        (FALL, FLAT, {}, Verb.CONTINUE, "NotDiverging"),
        (FALL, FLAT, {"level": 0.5}, Verb.STOP, "Collapse"),  # any slope at all counts
        ([*FLAT[:-1], 0.3], RISE, {}, Verb.CONTINUE, "NotDiverging"),  # one low eval is no slope
        ([*RISE[:-1], 0.5], RISE, {}, Verb.CONTINUE, "NotDiverging"),
        (FALL, [None] * 8, {}, Verb.CONTINUE, "NoProxy"),
        (FALL, [*RISE[:7], None], {}, Verb.CONTINUE, "NoProxy"),  # of this eval it is unknown
        (FALL, [*RISE[:7], math.nan], {}, Verb.CONTINUE, "NoProxy"),
        (FALL, [*RISE[:2], None, None, None, *RISE[5:]], {}, Verb.CONTINUE, "TooFewProxies"),
        (FALL, [*RISE[:2], None, None, None, *RISE[5:]], {"window": 5}, Verb.STOP, "RewardHacking"),
        (FALL[:5], RISE[:5], {}, Verb.CONTINUE, "TooFewProxies"),
        (RISE, RISE, {}, Verb.CONTINUE, "Declining"),  # where the rule does not ask, nothing is changed
    ],
)
def test_table(
    scores: list[float], proxies: list[float | None], params: dict[str, object], verb: Verb, reason: str
) -> None:
    last = verdicts(scores, proxies, spec(**params))[-1]
    assert last.verb is verb
    if reason != "Declining":
        assert last.reason == reason
    else:
        assert last == verdicts(scores, proxies)[-1]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"window": 3}, "window"),
        ({"window": 9}, "window"),
        ({"level": 0.0}, "level"),
        ({"collapse": 1}, "collapse"),
    ],
)
def test_a_parameter_out_of_its_bounds_is_refused_by_name(params: dict[str, object], field: str) -> None:
    with pytest.raises(ParamError, match=rf"divergence\.{field}"):
        verdicts([], [], spec(**params))


SERIES = st.lists(st.tuples(st.floats(-1, 1), st.one_of(st.none(), st.floats(-1, 1))), max_size=30)


@given(SERIES, st.integers(4, 8), st.floats(0.001, 0.5), st.booleans())
@settings(deadline=None)
def test_its_stops_are_some_of_the_rules(
    series: list[tuple[float, float | None]], window: int, level: float, collapse: bool
) -> None:
    """So the bound of a guaranteed rule stays true, whatever the proxy does."""
    scores, proxies = [s for s, _ in series], [p for _, p in series]
    wrapped = verdicts(scores, proxies)
    held = verdicts(scores, proxies, spec(window=window, level=level, collapse=collapse))
    for one, other in zip(wrapped, held, strict=True):
        assert other == one or (one.verb is Verb.STOP and other.reason != one.reason)
        assert (other.statistic, other.threshold, other.e_value) == (
            one.statistic,
            one.threshold,
            one.e_value,
        )


def test_a_rules_evidence_passes_through() -> None:
    judge = make_rule(PolicySpec("eProcess"), [spec()])
    state, verdict = judge.initial(), None
    for i, (score, proxy) in enumerate(zip(FALL, RISE, strict=True)):
        point = EvalPoint(i, score, proxy=proxy, paired=Paired(0, 400, -0.2, 0.2))
        state, verdict = judge.observe(state, point)
    assert verdict is not None
    assert (verdict.verb, verdict.reason) == (Verb.STOP, "RewardHacking")
    assert verdict.e_value is not None
    assert verdict.e_value > 40


@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=12))
def test_the_slope_is_that_of_least_squares(values: list[float]) -> None:
    if np.ptp(values) < 1e-6:
        return
    wanted = linregress(range(len(values)), values)
    if wanted.stderr > 1e-9 * abs(wanted.slope):
        assert slope(values) == pytest.approx(wanted.slope / wanted.stderr, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0] * 5, 0.0), ([0.0, 1.0, 2.0, 3.0], math.inf), ([3.0, 2.0, 1.0, 0.0], -math.inf)],
)
def test_a_line_without_noise_has_an_end(values: list[float], expected: float) -> None:
    assert slope(values) == expected


def test_a_slope_of_nothing_counts_as_one_at_its_level() -> None:
    """Noise alone passes the limit of a window as often as ``level`` says."""
    random = np.random.default_rng(0)
    for window in (4, 6, 8):
        judge = make_rule(PolicySpec("kDeclines", {"k": 1}), [spec(window=window, level=0.05)])
        limit = judge._limit  # type: ignore[attr-defined]
        share = np.mean([slope(row) > limit for row in random.standard_normal((8000, window)).tolist()])
        assert 0.04 < share < 0.06


def test_the_state_fits_a_status_beside_the_other_modifiers() -> None:
    judge = make_rule(PolicySpec("scan"), [spec(window=8), PolicySpec("confirm"), PolicySpec("warmUp")])
    state = judge.initial()
    random = np.random.default_rng(0)
    for i, (score, proxy) in enumerate((1e-7 * random.normal(-1.0, 1.0, (100, 2))).tolist()):
        state, _ = judge.observe(state, EvalPoint(i, score, proxy=proxy))
        assert len(dumps(encode({"base": state, "state": state}))) <= RULE_STATE_MAX


@given(
    st.lists(
        st.tuples(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False)), max_size=8
    )
)
def test_what_is_packed_comes_back(pairs: list[tuple[float, float]]) -> None:
    bounded = [(max(-3e38, min(3e38, a)), max(-3e38, min(3e38, b))) for a, b in pairs]
    assert unpack(pack(pairs)) == [(float(np.float32(a)), float(np.float32(b))) for a, b in bounded]
