"""EvalStop's competitors as tables: what a rule sees in, eval of the first STOP out."""

from __future__ import annotations

import math

import pytest

from controller.policy.stopping import RULES, ParamError, make_rule
from controller.policy.types import EvalInContext, EvalPoint, Peers, PolicySpec, Verb


def first_stop(spec: PolicySpec, points: list[EvalPoint]) -> int | None:
    rule = make_rule(spec)
    state = rule.initial()
    for number, point in enumerate(points):
        state, verdict = rule.observe(state, point)
        if verdict.verb is Verb.STOP:
            return number
    return None


@pytest.mark.parametrize(
    ("progress", "share", "stop"),
    [
        ([], 0.65, None),
        ([0.1, 0.6, 0.65, 0.7], 0.65, 2),  # at, not after
        ([0.1, 0.64], 0.65, None),
        ([None, 0.9], 0.65, 1),  # unknown progress stops nobody
        ([None, None], 0.65, None),
        ([0.5, 1.0], 1.0, 1),
    ],
)
def test_fixed_progress(progress: list[float | None], share: float, stop: int | None) -> None:
    points: list[EvalPoint] = [
        EvalInContext.of(EvalPoint(n, float(n)), progress=p) for n, p in enumerate(progress)
    ]
    assert first_stop(PolicySpec("fixedProgress", {"share": share}), points) == stop


@pytest.mark.parametrize(
    ("losses", "window", "limit", "stop"),
    [
        ([], 2, 0.1, None),
        ([4.0, 2.0, 1.0, 0.5], 2, 0.1, None),
        ([4.0, 2.0, 2.0, 2.0], 2, 0.1, 3),  # 2 -> 2 over two evals
        ([4.0, 4.0], 2, 0.1, None),  # too few
        ([4.0, 3.0, 5.0], 2, 0.1, 2),  # a rise is no fall
        ([4.0, 3.0, 3.5], 2, 0.125, None),  # exactly the least that is let pass
        ([-1.0, -1.5, -2.0], 2, 0.1, None),  # log-likelihoods fall too
        ([1.0, 0.0, 0.0, 0.0], 2, 0.1, 3),  # nowhere to fall from
        ([4.0, None, math.nan, 4.0, 4.0], 2, 0.1, 4),  # unknown ones do not count
    ],
)
def test_loss_plateau(losses: list[float | None], window: int, limit: float, stop: int | None) -> None:
    points: list[EvalPoint] = [EvalInContext.of(EvalPoint(n, 0.0), loss=x) for n, x in enumerate(losses)]
    spec = PolicySpec("lossPlateau", {"window": window, "min_improvement": limit})
    assert first_stop(spec, points) == stop


@pytest.mark.parametrize(
    ("evals", "stop"),
    [
        ([], None),
        ([(0.1, 3, 0.5), (0.2, 3, 0.5)], 1),  # the first falls into the grace
        ([(0.1, 2, 0.5), (0.2, 2, 0.5), (0.2, 3, 0.5)], 2),  # not before three peers
        ([(0.6, 3, 0.5), (0.0, 3, 0.6), (0.0, 3, 0.7)], 2),  # its best counts, not its latest; equal is among
        ([(0.6, 3, 0.5), (0.7, 3, 0.6), (0.9, 9, 0.8)], None),
        ([(0.1, None, 0.0), (0.1, None, 0.0)], None),  # nobody else
    ],
)
def test_median_of_peers(evals: list[tuple[float, int | None, float]], stop: int | None) -> None:
    points: list[EvalPoint] = [
        EvalInContext.of(EvalPoint(n, score), peers=None if runs is None else Peers(runs, median))
        for n, (score, runs, median) in enumerate(evals)
    ]
    assert first_stop(PolicySpec("medianOfPeers", {"min_peers": 3, "grace": 2}), points) == stop


@pytest.mark.parametrize("name", ["fixedProgress", "lossPlateau", "medianOfPeers"])
def test_without_their_context_they_stop_nobody_and_say_what_they_need(name: str) -> None:
    assert RULES[name].needs
    assert first_stop(PolicySpec(name), [EvalPoint(n, -float(n)) for n in range(50)]) is None


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("fixedProgress", {"share": 0.0}, r"fixedProgress\.share: 0\.0 .*> 0"),
        ("fixedProgress", {"share": 1.01}, r"fixedProgress\.share: 1\.01 .*<= 1"),
        ("lossPlateau", {"window": 0}, r"lossPlateau\.window: 0 .*>= 1"),
        ("lossPlateau", {"min_improvement": 1.0}, r"lossPlateau\.min_improvement: 1\.0 .*< 1"),
        ("medianOfPeers", {"min_peers": 0}, r"medianOfPeers\.min_peers: 0 .*>= 1"),
        ("medianOfPeers", {"grace": 0}, r"medianOfPeers\.grace: 0 .*>= 1"),
    ],
)
def test_bounds(rule: str, params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec(rule, params))


def test_context_is_no_part_of_an_eval_s_identity() -> None:
    plain = EvalPoint(3, 0.5)
    assert EvalInContext.of(plain, progress=0.3, loss=2.0) == plain
    assert (plain.progress, plain.loss, plain.peers) == (None, None, None)
