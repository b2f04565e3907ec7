"""Verdicts in a sentence, what rules promise, and what other rules say: for people, and true."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from controller.policy.job import (
    Decision,
    Direction,
    JobRecord,
    RuleRecord,
    evidence,
    flat_stops,
    other_rules,
    other_rules_sentence,
    promise,
    statement,
    ways_on,
)
from controller.policy.job.record import Best, ProtectedCheckpoint
from controller.policy.stopping import RULES
from controller.policy.types import EvalPoint, Mode, PolicySpec, Proposal, Verb, Verdict
from controller.policy.wording import about, counted, percent, statistic, two_digits


def verdict(reason: str, statistic: float, threshold: float) -> Verdict:
    return Verdict(Verb.STOP, reason, statistic, threshold)


BELOW = "the newest evals are 5.1 standard deviations worse than the best stretch, limit 4.2"


@pytest.mark.parametrize(
    ("rule", "reason", "statistic", "threshold", "text"),
    [
        ("kDeclines", "ConsecutiveDeclines", 4, 3, "4 evals in a row fell, limit 3"),
        ("kDeclines", "Declining", 1, 3, "1 eval in a row fell, limit 3"),
        (
            *("kDeclines", "WarmingUp", 3, 3),
            "3 evals in a row fell, limit 3; no rule stops it yet, it is warming up",
        ),
        (
            *("kDeclines", "ConfirmedByFreshEvals", 3.412, 2),
            "fresh evals are 3.4 standard errors worse than the best, limit 2",
        ),
        (
            *("drawdown", "FellBelowPeak", 0.0834, 0.05),
            "the smoothed score is 0.083 worse than at its peak, limit 0.05",
        ),
        (
            *("scan", "NearBestStretch", -0.4, 4.2),
            "the newest evals are not worse than the best stretch, limit 4.2 standard deviations",
        ),
        ("glr", "FellBeyondChance", 5.13, 4.2, BELOW),
        ("scan", "NoiseUnknown", 0.0, math.inf, "how noisy an eval is, is not known yet"),
        ("scan", "RewardHacking", 5.13, 4.2, f"{BELOW}; the proxy rose meanwhile"),
        ("fixedProgress", "ProgressReached", 0.66, 0.65, "66 % of the run is done, limit 65 %"),
        ("scan", "Unheard", math.nan, 1.0, ""),
    ],
)
def test_a_verdict_in_words(rule: str, reason: str, statistic: float, threshold: float, text: str) -> None:
    assert statement(rule, verdict(reason, statistic, threshold)) == text


def test_every_rule_has_words() -> None:
    for rule in RULES:
        assert statement(rule, verdict("Unheard", 1.0, 2.0)), rule


def record(*scores: float, best: int) -> JobRecord:
    evals = tuple(EvalPoint(10 * n, s) for n, s in enumerate(scores, 1))
    stands = RuleRecord("kDeclines", 1, "h", (), (), verdict("ConsecutiveDeclines", 4, 3))
    return JobRecord(evals=evals, evals_seen=len(evals), rule=stands, best=Best(10 * best, scores[best - 1]))


def test_the_sentence_of_the_issue() -> None:
    found = record(0.5, 0.98, 0.8, 0.7, 0.65, 0.6, best=2)
    assert evidence(found, Direction.MAXIMIZE) == "4 evals in a row fell, limit 3; 38.8 % worse than the best"
    low = record(0.5, 0.2, 0.25, best=2)
    assert evidence(low, Direction.MINIMIZE).endswith("; 25 % worse than the best")  # above it, that is
    assert evidence(record(0.5, 0.0, best=2), Direction.MINIMIZE) == "4 evals in a row fell, limit 3"
    assert evidence(JobRecord(), Direction.MAXIMIZE) == ""
    alone = replace(found, decision=None, rule=replace(found.rule, verdict=verdict("AwaitsNextEval", 0, 3)))
    assert evidence(alone, Direction.MAXIMIZE).startswith("the newest eval waits for the next ones")
    ended = evidence(replace(alone, finished="Complete"), Direction.MAXIMIZE)
    assert ended == "the run ended before later evals could bear the newest one out"


def test_the_sentence_is_of_the_eval_that_asked_for_the_stop() -> None:
    found = record(0.5, 1.0, 0.9, 0.5, best=2)
    asked = Proposal(30, 20, "ConsecutiveDeclines", 3.0, 3.0)
    found = replace(found, decision=Decision("kDeclines", Mode.SHADOW, asked, "said", 0.0))
    assert evidence(found, Direction.MAXIMIZE) == "3 evals in a row fell, limit 3; 10 % worse than the best"
    guard = replace(
        found, decision=Decision("kDeclines", Mode.SHADOW, replace(asked, metric="kl"), "said", 0.0)
    )
    assert "limit 3" in evidence(guard, Direction.MAXIMIZE)


@pytest.mark.parametrize(("k", "n"), [(1, 2), (1, 5), (2, 3), (2, 6), (3, 4), (3, 7), (4, 7)])
def test_the_chance_of_a_flat_run_is_that_of_all_orders(k: int, n: int) -> None:
    stopped = total = 0
    for order in itertools.permutations(range(n)):
        falls = "".join("d" if b < a else "u" for a, b in itertools.pairwise(order))
        stopped += "d" * k in falls
        total += 1
    assert flat_stops(k, n) == pytest.approx(stopped / total)


def test_three_declines_stop_83_percent_of_flat_runs_of_50_evals() -> None:
    assert percent(flat_stops(3, 50), 2) == "83 %"
    assert flat_stops(3, 3) == 0.0
    assert flat_stops(3, 5000) == pytest.approx(1.0, abs=1e-6)


def test_what_rules_promise() -> None:
    assert promise(PolicySpec("kDeclines", {"k": 3}), 50) == (
        "it promises nothing: of flat runs of 50 evals it stops about 83 %, whatever the noise"
    )
    assert "about 100 %, whatever" in promise(PolicySpec("kDeclines", {"k": 3}), 1000)
    assert "about 83 % at most" in promise(PolicySpec("kDeclines", {"min_delta": 0.01}), 50)
    assert "at most 4 %, given independent noise" in promise(PolicySpec("scan", {"alpha": 0.04}), 50)
    assert "at most 2.5 %, given Gaussian noise" in promise(PolicySpec("glr"), 50)
    for rule in RULES:
        assert promise(PolicySpec(rule), 20), rule


def test_other_rules_are_shown_the_evals_that_are_kept_alone() -> None:
    scores = [0.1 * n for n in range(1, 11)] + [1.0 - 0.09 * n for n in range(1, 10)]
    found = record(*scores, best=10)
    others = other_rules(found, "kDeclines", Direction.MAXIMIZE)
    assert {one.rule for one in others} == {"drawdown", "scan", "cusum", "glr"}
    assert all(one.since == 10 for one in others)
    assert all(one.stop is not None and one.stop > 100 for one in others if one.rule in ("drawdown", "scan"))
    mirrored = replace(found, evals=tuple(p._replace(score=-p.score) for p in found.evals))
    assert other_rules(mirrored, "kDeclines", Direction.MINIMIZE) == others
    late = replace(found, evals=found.evals[12:])
    assert all(one.since == 130 for one in other_rules(late, "kDeclines", Direction.MAXIMIZE))
    rising = record(*(0.1 * n for n in range(1, 20)), best=19)
    assert all(one.stop is None for one in other_rules(rising, "kDeclines", Direction.MAXIMIZE))
    assert other_rules(JobRecord(), "scan", Direction.MAXIMIZE) == ()


def test_what_other_rules_say_in_a_sentence() -> None:
    from controller.policy.job import OtherRule

    def said(*stops: int | None) -> str:
        names = ("drawdown", "scan", "glr")
        return other_rules_sentence(tuple(OtherRule(n, s, 10) for n, s in zip(names, stops, strict=False)))

    assert said(180, 190, None) == (
        "drawdown stops it at step 180, scan at step 190; glr does not; judged by the evals from step 10 on"
    )
    assert said(180, 180, 190).startswith("drawdown and scan stop it at step 180, glr at step 190; judged")
    assert said(None, None) == "drawdown and scan do not stop it; judged by the evals from step 10 on"
    assert said(180) == "drawdown stops it at step 180; judged by the evals from step 10 on"
    assert said() == ""


def test_ways_to_go_on() -> None:
    asked = Proposal(30, 20, "ConsecutiveDeclines", 3.0, 3.0)
    found = record(0.5, 1.0, 0.9, best=2)
    shadow = replace(found, decision=Decision("kDeclines", Mode.SHADOW, asked, "said", 0.0))
    assert ways_on(shadow, "run -n team") == [
        ("evalstop mode run -n team Enforce", "from now on its rule may stop it")
    ]
    kept = ProtectedCheckpoint(20, 20, "/kept/20", "sha256:a", 0.0)
    decision = Decision("kDeclines", Mode.ENFORCE, asked, "said", 0.0, 1.0, 2.0)
    over = replace(found, decision=decision, retained=(kept,))
    assert [do for do, _ in ways_on(over, "run -n team")] == [
        "evalstop resume run -n team --from best",
        "evalstop resume run -n team --from latest --for-evals 8",
    ], "the evals that spoke for the stop are remembered there"
    by_user = replace(over, decision=replace(decision, by="User"))
    assert ways_on(by_user, "run -n team")[-1][0] == "evalstop resume run -n team --from latest"
    again = replace(over, resume_id="a", attempt=0)
    assert "evalstop resume run -n team --from best --for-evals 8" in dict(ways_on(again, "run -n team"))
    assert ways_on(found, "run -n team") == []


def test_a_stop_by_a_guardrail_is_told_by_the_guardrail() -> None:
    """It said of the Primary metric that nothing spoke for a stop."""
    asked = Proposal(50, 40, "FellBelowBestStretch", 5.2, 3.96, metric="tox")
    decision = Decision("scan", Mode.ENFORCE, asked, "", 0.0, suspended_at=1.0)
    said = evidence(replace(record(0.5, 0.6, best=2), decision=decision), Direction.MAXIMIZE)
    assert said == (
        "guardrail 'tox': the newest evals are 5.2 standard deviations worse than the best stretch, limit 4"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-2.707e13, "below -8600"), (1.8e14, "over 8600"), (3.1, "3.1"), (-120.0, "-120"), (0.0, "0")],
)
def test_a_statistic_beyond_all_sense_is_not_printed_as_such(value: float, shown: str) -> None:
    """Of evals without noise."""
    assert statistic(value, 8.6) == shown
    deviations = statement("scan", Verdict(Verb.STOP, "FellBelowBestStretch", value, 8.6))
    assert "e+" not in deviations
    assert statistic(-1e6, -1.1e6) == "-1e+06", "a score is no such thing"


def test_numbers_for_people() -> None:
    assert [counted(n, "eval") for n in (0, 1, 2)] == ["0 evals", "1 eval", "2 evals"]
    assert [percent(x) for x in (0.3876, 1.0, 0.0, 2.5, 0.00041)] == [
        "38.8 %",
        "100 %",
        "0 %",
        "250 %",
        "0.041 %",
    ]
    numbers = {0.07311: "0.073", 1.26: "1.3", 9.96: "10", 12.4: "12", 1234.0: "1200", 99.7: "100"}
    assert {value: two_digits(value) for value in numbers} == numbers
    assert (percent(0.99999, 2), percent(9.999, 2), percent(1e-9)) == ("100 %", "1000 %", "0 %")
    assert {percent(x) for x in (10.1, 12345.0, 1e308, float("inf"), float("nan"))} == {"over 1000 %"}
    assert about(1.0, "GPU-hours") == "about 1 GPU-hour"
    assert about(38.2, "GPU-hours") == "about 38 GPU-hours"
    assert about(0.0, "GPU-hours") == "no GPU-hours"
