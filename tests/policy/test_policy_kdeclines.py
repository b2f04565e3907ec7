"""EvalStop's rule as tables: scores in, step of the first STOP out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.stopping import RULES, ParamError, make_rule, rule_fingerprint
from controller.policy.types import EvalPoint, PolicySpec, Verb


def first_stop(scores: list[float], *modifiers: PolicySpec, **params: object) -> int | None:
    rule = make_rule(PolicySpec("kDeclines", params), modifiers)
    state = rule.initial()
    for step, score in enumerate(scores):
        state, verdict = rule.observe(state, EvalPoint(step, score))
        if verdict.verb is Verb.STOP:
            return step
    return None


@pytest.mark.parametrize(
    ("scores", "k", "min_delta", "stop"),
    [
        ([], 1, 0.0, None),
        ([5], 1, 0.0, None),
        ([5, 4], 1, 0.0, 1),
        ([1, 2, 3, 2, 1, 0], 3, 0.0, 5),
        ([1, 2, 3, 2, 1, 0], 4, 0.0, None),
        ([3, 2, 1, 1, 0, -1], 3, 0.0, None),  # a tie resets the streak
        ([3, 2, 1, 1.5, 1, 0.5, 0], 3, 0.0, 6),  # so does a rise
        ([3, 2.9, 2.8, 2.7], 3, 0.1, None),  # falls of min_delta are no declines (binary 0.1 aside)
        ([3, 2.5, 2.0, 1.5], 3, 0.25, 3),
        ([3, 2.5, 2.25, 2.0], 3, 0.25, None),
        ([-1, -2, -3, -4], 3, 0.0, 3),
    ],
)
def test_k_declines(scores: list[float], k: int, min_delta: float, stop: int | None) -> None:
    if min_delta == 0.1:
        min_delta = 0.1000001
    assert first_stop(scores, k=k, min_delta=min_delta) == stop


@pytest.mark.parametrize(
    ("min_evals", "stop"),
    [(3, 3), (4, 3), (5, 4), (6, 5), (7, None)],
)
def test_warm_up_holds_the_stop_back_but_watches(min_evals: int, stop: int | None) -> None:
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert first_stop(scores, PolicySpec("warmUp", {"min_evals": min_evals}), k=3) == stop


@given(st.lists(st.floats(-10, 10), max_size=60), st.integers(1, 5))
def test_the_streaming_rule_equals_its_definition(scores: list[float], k: int) -> None:
    falls = [
        i for i in range(k, len(scores)) if all(scores[j] < scores[j - 1] for j in range(i - k + 1, i + 1))
    ]
    assert first_stop(scores, k=k) == (falls[0] if falls else None)


@given(st.lists(st.floats(-10, 10), max_size=40))
def test_more_declines_never_stop_earlier(scores: list[float]) -> None:
    stops = [first_stop(scores, k=k) for k in (1, 2, 3, 4)]
    known = [s if s is not None else 10**9 for s in stops]
    assert known == sorted(known)


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("kDeclines", {"k": 0}, r"kDeclines\.k: 0 .*>= 1"),
        ("kDeclines", {"k": 101}, r"kDeclines\.k: 101 .*<= 100"),
        ("kDeclines", {"k": 2.5}, r"kDeclines\.k: 2\.5 .*whole number"),
        ("kDeclines", {"k": True}, r"kDeclines\.k: True .*whole number"),
        ("kDeclines", {"min_delta": -0.5}, r"kDeclines\.min_delta: -0\.5 .*>= 0"),
        ("kDeclines", {"min_delta": float("nan")}, r"min_delta: nan .*finite"),
        ("kDeclines", {"min_delta": float("inf")}, r"min_delta: inf .*finite"),
        ("kDeclines", {"patience": 1}, r"kDeclines\.patience: 1 .*k, min_delta"),
        ("declines", {}, r"stopRule: 'declines' .*kDeclines"),
    ],
)
def test_wrong_parameters_are_refused_eagerly_by_name(rule: str, params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec(rule, params))


def test_warm_up_below_k_is_refused() -> None:
    with pytest.raises(ParamError, match=r"warmUp\.min_evals: 2 .*kDeclines\.k = 3"):
        make_rule(PolicySpec("kDeclines", {"k": 3}), [PolicySpec("warmUp", {"min_evals": 2})])


def test_the_fingerprint_tells_effective_parameters_apart() -> None:
    default = rule_fingerprint(PolicySpec("kDeclines"))
    assert default == rule_fingerprint(PolicySpec("kDeclines", {"k": 3, "min_delta": 0}))
    assert default != rule_fingerprint(PolicySpec("kDeclines", {"k": 4}))
    assert default != rule_fingerprint(PolicySpec("kDeclines"), [PolicySpec("warmUp")])


@pytest.mark.parametrize("name", list(RULES))
def test_states_are_small_json(name: str) -> None:
    from controller.policy.codec import dumps, encode

    rule = make_rule(PolicySpec(name))
    state = rule.initial()
    for step in range(200):
        state, _ = rule.observe(state, EvalPoint(step, -1.2345678901234567 * step))
        assert len(dumps(encode(state))) <= 600  # characters: a status has room for it beside 32 evals
