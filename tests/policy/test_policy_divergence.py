"""divergence: what it lets through, what it calls it, and that it never adds a stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.codec import dumps, encode
from controller.policy.params import ParamError
from controller.policy.stopping import make_rule
from controller.policy.types import EvalPoint, Paired, PolicySpec, Verb, Verdict

WIGGLE = (0.01, -0.02, 0.015, 0.0, -0.01, 0.02, -0.015, 0.01, 0.0, -0.01)  # noise, always the same
RISE = [0.1 * i + w for i, w in enumerate(WIGGLE)]
FALL = [0.9 - x for x in RISE]
FLAT = [0.4 + w for w in WIGGLE]
STEPS = [0.125 * i for i in range(10)]  # without noise


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
        (FALL, RISE, {"collapse": False, "strict": True}, Verb.STOP, "RewardHacking"),
        (FALL, STEPS, {"strict": True}, Verb.STOP, "RewardHacking"),
        (FALL, FLAT, {}, Verb.STOP, "Unclear"),
        (FALL, FLAT, {"strict": True}, Verb.CONTINUE, "Unclear"),
        (FALL, [0.5] * 10, {}, Verb.STOP, "Unclear"),
        (FALL, FLAT, {"level": 0.5}, Verb.STOP, "Collapse"),  # any move at all counts
        # The one eval that is low: the proxy rose before the best, and not since.
        ([*RISE[:-1], 0.5], [*RISE[:-1], RISE[-2]], {"strict": True}, Verb.CONTINUE, "Unclear"),
        (FALL, [None] * 10, {}, Verb.STOP, "Unclear"),
        (FALL, [None] * 10, {"strict": True}, Verb.CONTINUE, "Unclear"),
        (FALL, [*RISE[:9], None], {"strict": True}, Verb.CONTINUE, "Unclear"),  # of this eval it is unknown
        (FALL, [*RISE[:9], math.nan], {"strict": True}, Verb.CONTINUE, "Unclear"),
        (FALL, [*RISE[:2], None, *RISE[3:]], {"strict": True}, Verb.STOP, "RewardHacking"),
        (FALL[:7], RISE[:7], {"strict": True}, Verb.CONTINUE, "Unclear"),  # its noise is not known yet
        (FALL[:7], RISE[:7], {}, Verb.STOP, "Unclear"),
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
        ({"level": 0.0}, "level"),
        ({"collapse": 1}, "collapse"),
        ({"strict": "yes"}, "strict"),
    ],
)
def test_a_parameter_out_of_its_bounds_is_refused_by_name(params: dict[str, object], field: str) -> None:
    with pytest.raises(ParamError, match=rf"divergence\.{field}"):
        verdicts([], [], spec(**params))


SERIES = st.lists(st.tuples(st.floats(-1, 1), st.one_of(st.none(), st.floats(-1, 1))), max_size=30)


@given(SERIES, st.floats(0.001, 0.5), st.booleans(), st.booleans())
@settings(deadline=None)
def test_its_stops_are_some_of_the_rules(
    series: list[tuple[float, float | None]], level: float, collapse: bool, strict: bool
) -> None:
    """So the bound of a guaranteed rule stays true, whatever the proxy does."""
    scores, proxies = [s for s, _ in series], [p for _, p in series]
    wrapped = verdicts(scores, proxies)
    held = verdicts(scores, proxies, spec(level=level, collapse=collapse, strict=strict))
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


def test_a_proxy_that_stays_counts_as_moved_as_rarely_as_its_level_says() -> None:
    random = np.random.default_rng(0)
    moved = 0
    for row in random.standard_normal((4000, 20)).tolist():
        # The best eval is the first, so that its proxy is no chosen one.
        last = verdicts([1.0 - 0.01 * i for i in range(20)], row, spec(level=0.05))[-1]
        moved += last.reason == "RewardHacking"
    assert 0.03 < moved / 4000 < 0.065


def test_the_state_fits_a_status_beside_the_other_modifiers() -> None:
    judge = make_rule(PolicySpec("scan"), [spec(), PolicySpec("confirm"), PolicySpec("warmUp")])
    state = judge.initial()
    random = np.random.default_rng(0)
    for i, (score, proxy) in enumerate((1e-7 * random.normal(-1.0, 1.0, (100, 2))).tolist()):
        state, _ = judge.observe(state, EvalPoint(i, score, proxy=proxy))
        assert len(dumps(encode({"base": state, "state": state}))) <= 2400
