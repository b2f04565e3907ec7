"""Confirm as tables: verdicts eval by eval; and that it makes false stops rarer, never commoner."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.stopping import ParamError, make_rule
from controller.policy.types import EvalPoint, Paired, PolicySpec, Verb, Verdict

KD = PolicySpec("kDeclines", {"k": 2})


def verdicts(points: list[EvalPoint], rule: PolicySpec = KD, **params: object) -> list[Verdict]:
    made = make_rule(rule, [PolicySpec("confirm", params)])  # type: ignore[arg-type]
    state, found = made.initial(), []
    for point in points:
        state, verdict = made.observe(state, point)
        found.append(verdict)
    return found


def verbs(points: list[EvalPoint], rule: PolicySpec = KD, **params: object) -> str:
    """One letter per eval: c(ontinue), a(sk for a fresh eval), s(top)."""
    letter = {Verb.CONTINUE: "c", Verb.CONFIRM: "a", Verb.STOP: "s"}
    return "".join(letter[v.verb] for v in verdicts(points, rule, **params))


def evals(*scores: float, stderr: float | None = 0.1) -> list[EvalPoint]:
    return [EvalPoint(10 * i, s, stderr=stderr) for i, s in enumerate(scores)]


def pair(
    point: EvalPoint, mean: float, *, reference: int = 0, n: int = 100, variance: float = 1.0
) -> EvalPoint:
    return point._replace(paired=Paired(reference, n, mean, variance))


@pytest.mark.parametrize(
    ("scores", "params", "expected"),
    [
        # The rule asks at the third eval, the fourth bears it out, and it stands while the rule says so.
        ((9, 8, 7, 6, 5), {}, "ccass"),
        # The fresh eval is no decline: the rule itself takes its STOP back, and all begins anew.
        ((9, 8, 7, 7.5, 7, 6, 5), {}, "ccaccas"),
        # A decline, but not two standard errors below the best.
        ((9, 8.95, 8.9, 8.85, 8.8), {}, "ccaca"),
        ((9, 8.95, 8.9, 8.85, 8.8), {"margin": 0.5}, "ccass"),
        # Two fresh evals are asked for, one after the other.
        ((9, 8, 7, 6, 5, 4), {"evals": 2}, "ccaass"),
        # A new best while waiting.
        ((9, 8, 7, 10, 9, 8, 7), {}, "ccaccas"),
        # The fresh evals are all above what was the best; that they fall again says nothing yet.
        ((0, -0.5, -1, 2, 1, 0), {"evals": 3, "margin": 0.0}, "ccaaac"),
        # Confirmed once, the STOP stands; taken back, it must be confirmed again.
        ((9, 8, 7, 6, 6, 5, 4, 3), {}, "ccasccas"),
    ],
)
def test_by_scores(scores: tuple[float, ...], params: dict, expected: str) -> None:
    assert verbs(evals(*scores), **params) == expected


def test_standard_errors_are_those_of_best_and_fresh_mean() -> None:
    """Best 9 +- .3; fresh 8 and 7.6 with .4 and .4: mean 7.8, z = 1.2 / sqrt(.09 + (.16 + .16) / 4)."""
    points = [
        EvalPoint(1, 9.0, stderr=0.3),
        *(EvalPoint(s, v, stderr=0.4) for s, v in ((2, 8.6), (3, 8.2), (4, 8.0), (5, 7.6))),
    ]
    last = verdicts(points, evals=2, margin=2.9)[-1]
    assert last.reason == "ConfirmedByFreshEvals"
    assert last.statistic == pytest.approx(1.2 / (0.09 + 0.08) ** 0.5)
    assert verdicts(points, evals=2, margin=2.92)[-1][:2] == (Verb.CONTINUE, "NotConfirmed")


def test_without_standard_errors_the_run_s_own_noise_counts() -> None:
    rng = random.Random(4)
    noisy = [5 + rng.gauss(0, 1) for _ in range(30)]
    high = max(noisy)
    barely = evals(*noisy, high, high - 0.1, high - 0.2, high - 0.3, stderr=None)
    clearly = evals(*noisy, high, high - 2, high - 4, high - 6, stderr=None)
    assert verbs(barely)[-2:] == "ac"
    assert verbs(clearly)[-2:] == "as"


def test_too_few_evals_to_know_the_noise_a_lower_score_is_enough() -> None:
    assert verbs(evals(9, 8.9, 8.8, 8.7, stderr=None)) == "ccas"


@pytest.mark.parametrize(
    ("mean", "reference", "expected"),
    [
        (-0.3, 0, ("s", "ConfirmedOnSamePrompts")),  # z = 3
        (-0.1, 0, ("c", "NotConfirmed")),  # z = 1
        (+0.3, 0, ("c", "NotConfirmed")),
    ],
)
def test_paired_differences_decide_whatever_the_scores_say(
    mean: float, reference: int, expected: tuple
) -> None:
    """The fresh eval's score is no decline: on other prompts it says little. The pairs say it all."""
    points = evals(9, 8, 7, 7.5)
    points[3] = pair(points[3], mean, reference=reference)
    last = verdicts(points)[-1]
    assert ("s" if last.verb is Verb.STOP else "c", last.reason) == expected
    assert last.statistic == pytest.approx(-mean * 10)


def test_pairs_add_up_over_fresh_evals_and_only_to_one_reference() -> None:
    points = evals(9, 8, 7, 6, 5)
    same = [*points[:3], pair(points[3], -0.2), pair(points[4], -0.2, n=300)]
    last = verdicts(same, evals=2, margin=3.9)[-1]
    assert last.reason == "ConfirmedOnSamePrompts"
    assert last.statistic == pytest.approx(0.2 * 400 / 400**0.5)
    other = [*points[:3], pair(points[3], -0.2), pair(points[4], -0.2, reference=10)]
    assert verdicts(other, evals=2)[-1].reason == "ConfirmedByFreshEvals"
    missing = [*points[:3], points[3], pair(points[4], -0.2)]
    assert verdicts(missing, evals=2)[-1].reason == "ConfirmedByFreshEvals"


def test_what_it_was_confirmed_by_is_told_as_long_as_it_stands() -> None:
    """Evals may come faster than anybody looks: the newest verdict explains the stop, whichever it is."""
    points = evals(9, 8, 7, 6, 5, 4, 8)
    points[3] = pair(points[3], -0.3)
    found = verdicts(points)
    assert [v.reason for v in found[3:6]] == ["ConfirmedOnSamePrompts"] * 3
    assert found[5].statistic == pytest.approx(3.0)
    assert found[6].verb is Verb.CONTINUE


def test_a_pair_before_the_rule_asked_is_not_fresh() -> None:
    points = evals(9, 8, 7, 7.5)
    points[2] = pair(points[2], -5.0)
    assert verbs(points) == "ccac"


def test_other_modifiers_hold_what_it_confirms() -> None:
    made = make_rule(KD, [PolicySpec("confirm"), PolicySpec("warmUp", {"min_evals": 6})])
    state, found = made.initial(), []
    for point in evals(9, 8, 7, 6, 5, 4):
        state, verdict = made.observe(state, point)
        found.append(verdict.verb)
    assert Verb.STOP not in found[:5]
    assert found[5] is Verb.STOP


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"evals": 0}, r"confirm\.evals: 0 .*>= 1"),
        ({"margin": -1.0}, r"confirm\.margin: -1\.0 .*>= 0"),
        ({"wait_seconds": 0}, r"confirm\.wait_seconds: 0 .*>= 1"),
        ({"unanswered": "Never"}, r"confirm\.unanswered: 'Never' .*one of NextEval, Stop"),
    ],
)
def test_bounds(params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        verdicts([], **params)


@given(st.lists(st.floats(-3, 3), max_size=40), st.integers(1, 4), st.floats(0, 4))
@settings(max_examples=150)
def test_it_stops_nothing_before_its_rule_does_and_never_below_the_margin(
    scores: list[float], fresh: int, margin: float
) -> None:
    plain, state = make_rule(KD), make_rule(KD).initial()
    first = None
    for i, score in enumerate(scores):
        state, verdict = plain.observe(state, EvalPoint(i, score, stderr=0.5))
        if first is None and verdict.verb is Verb.STOP:
            first = i
    points = [EvalPoint(i, s, stderr=0.5) for i, s in enumerate(scores)]
    found = verbs(points, evals=fresh, margin=margin)
    if "s" in found:
        at = found.index("s")
        assert first is not None
        assert at >= first + fresh
        mean = sum(scores[at - fresh + 1 : at + 1]) / fresh
        best = max(scores[: at - fresh + 1])
        assert best - mean >= margin * (0.25 + 0.25 / fresh) ** 0.5 - 1e-9


def test_false_stops_of_flat_runs_become_rare() -> None:
    """1,000 flat runs of 30 evals under k = 2: what the rule stops, one fresh eval mostly takes back."""
    rng = random.Random(11)
    plain = confirmed = 0
    for _ in range(1000):
        scores = [rng.gauss(0, 1) for _ in range(30)]
        points = evals(*scores, stderr=1.0)
        made, state = make_rule(KD), make_rule(KD).initial()
        stopped = False
        for point in points:
            state, verdict = made.observe(state, point)
            stopped = stopped or verdict.verb is Verb.STOP
        plain += stopped
        confirmed += "s" in verbs(points)
    assert plain > 900
    assert confirmed < plain / 2
