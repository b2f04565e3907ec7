"""One job's curve under another rule: what a person asks of an RLHFJob, and what nobody can know."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import declared_scale
from controller.policy.job.record import JobRecord, OutOfRange
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction
from controller.policy.params import ParamError
from controller.policy.types import Attempt, EvalPoint, EvalScale, Paired, PolicySpec, PromptPair, Verb
from sim import specs
from sim.foresight import RuleSpec, first_stop
from sim.what_if import curve
from sim.workload import Evals

PEAK = (0.1, 0.3, 0.5, 0.6, 0.55, 0.5, 0.45)


LIFE = Attempt(1, "7")


def points(*scores: float, life: Attempt = LIFE, first: int = 10) -> list[EvalPoint]:
    return [EvalPoint(first + 10 * n, score, life) for n, score in enumerate(scores)]


def test_the_demos_story_on_one_curve() -> None:
    found = curve(points(*PEAK), specs.rule("kDeclines:k=3"), gpu_seconds_per_step=360.0, end_step=170)
    assert (found.stopped_step, found.best_step, found.best_score) == (70, 40, 0.6)
    assert found.reason == "ConsecutiveDeclines"
    assert found.share_saved == pytest.approx(100 / 170)
    assert found.gpu_hours_saved == pytest.approx(10.0)
    assert found.score_lost is None  # nothing was seen after the stop
    assert found.lost_quality is None
    assert [one.verb for one in found.judgements][-1] is Verb.STOP
    assert [one.statistic for one in found.judgements] == [0, 0, 0, 0, 1, 2, 3]


CASES: dict[str, tuple[tuple[float, ...], str, dict[str, Any], dict[str, Any]]] = {
    "never stopped": (
        PEAK[:4],
        "kDeclines:k=3",
        {"gpu_seconds_per_step": 1.0},
        {
            "stopped_step": None,
            "best_step": 40,
            "gpu_hours_saved": 0.0,
            "share_saved": 0.0,
            "score_lost": None,
        },
    ),
    "what came later was better": (
        (*PEAK, 0.9, 0.95),
        "kDeclines:k=3",
        {},
        {"stopped_step": 70, "best_step": 40, "later_best_step": 90, "gpu_hours_saved": None},
    ),
    "what came later was worse": (
        (*PEAK, 0.4),
        "kDeclines:k=3",
        {},
        {"score_lost": 0.0, "lost_quality": False, "later_best_step": 80},
    ),
    "lower is better": (
        tuple(-score for score in PEAK),
        "kDeclines:k=3",
        {"direction": Direction.MINIMIZE},
        {"stopped_step": 70, "best_step": 40, "best_score": -0.6},
    ),
    "no evals": ((), "scan", {}, {"stopped_step": None, "best_step": None, "last_step": None}),
    "an eval that is no number": (
        (0.1, math.nan, 0.5, 0.4, 0.3, 0.2),
        "kDeclines:k=3",
        {},
        {"stopped_step": 60, "best_step": 30},
    ),
    "a grade before the stop": (
        PEAK,
        "kDeclines:k=3+graded",
        {},
        {"warned_step": 60, "stopped_step": 70},
    ),
    "progress is known": (PEAK, "fixedProgress:share=0.5", {"total_steps": 100}, {"stopped_step": 50}),
    "progress is not known": (
        PEAK,
        "fixedProgress:share=0.5",
        {},
        {"stopped_step": None, "missing": ("progress",)},
    ),
    "the proxy is not known": (PEAK, "scan+divergence", {}, {"stopped_step": None, "missing": ("proxy",)}),
    "a guardrail falls": (
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        "kDeclines:k=3|safety=kDeclines:k=2",
        {"others": {"safety": {10: 0.9, 20: 0.9, 30: 0.8, 40: 0.7}}},
        {"stopped_step": 40, "missing": ()},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_curves(name: str) -> None:
    scores, rule, given_, expected = CASES[name]
    found = curve(points(*scores), specs.rule(rule), **given_)
    assert {key: getattr(found, key) for key in expected} == expected


def test_a_loss_beyond_the_noise_is_told_from_one_within() -> None:
    quiet = [p._replace(stderr=0.01) for p in points(*PEAK, 0.7)]
    loud = [p._replace(stderr=0.3) for p in points(*PEAK, 0.7)]
    rule = specs.rule("kDeclines:k=3")
    assert curve(quiet, rule).lost_quality is True
    assert curve(quiet, rule).score_lost == pytest.approx(0.1)
    assert curve(loud, rule).lost_quality is False
    assert curve(loud, rule).score_lost == pytest.approx(0.1)


def test_a_resumed_run_takes_back_what_it_did_again() -> None:
    first = points(*PEAK)
    again = points(0.7, 0.8, life=Attempt(2, "9"), first=50)
    found = curve([*again, *first], specs.rule("kDeclines:k=3"))
    assert [one.score for one in found.judgements] == [*PEAK[:4], 0.7, 0.8]
    assert found.stopped_step is None


def test_paired_differences_are_turned_with_the_scores() -> None:
    pairs = [p._replace(paired=Paired(10, 64, 0.5, 0.01)) if n else p for n, p in enumerate(points(*PEAK))]
    up = curve(pairs, specs.rule("eProcess"))
    down = curve(pairs, specs.rule("eProcess"), direction=Direction.MINIMIZE)
    assert up.stopped_step is None
    assert down.stopped_step is not None


@pytest.mark.parametrize("direction", list(Direction))
def test_a_jobs_own_rule_says_of_its_evals_what_it_said_in_the_run(direction: Direction) -> None:
    """Told what the job declares: prompts, their range, and what each eval brought along."""
    rule, modifiers, sign = PolicySpec("scan", {"alpha": 0.04}), (PolicySpec("gate"),), 1.0
    low, high = 0.0, 1.0
    if direction is Direction.MINIMIZE:
        sign, low, high = -1.0, -1.0, 0.0
    desired = Desired(
        "ns/a", "u", 1, "m", 1, 1, rule, modifiers, direction=direction, scale=EvalScale(200, (low, high))
    )
    use = RuleInUse.of(desired, total_steps=140)
    state, said, seen = use.rule.initial(), [], []
    for step, score in enumerate((0.2, 0.4, 0.5, 0.52, 0.51, 0.49, 0.5, 0.1, 0.1, 0.1), start=1):
        pairs = tuple(PromptPair(p.step, 200, sign * score - p.score, 0.2) for p in seen[-2:])
        seen.append(EvalPoint(10 * step, sign * score, LIFE, prompt_pairs=pairs))
        state, verdict = use.observe(state, seen[-1])
        said.append((verdict.verb, verdict.statistic, verdict.threshold))
    spec = RuleSpec(rule, modifiers)
    found = curve(
        seen, spec, direction=direction, total_steps=140, scale=declared_scale(desired, JobRecord())
    )
    assert [(one.verb, one.statistic, one.threshold) for one in found.judgements] == said
    assert found.stopped_step == 90
    wrong = JobRecord(out_of_range=(OutOfRange("m", 10, 7.0, low, high),))
    assert declared_scale(desired, wrong) == EvalScale(200, None)


def test_a_rule_out_of_bounds_is_refused() -> None:
    with pytest.raises(ParamError, match=r"kDeclines\.k: 0 is not allowed"):
        curve(points(*PEAK), RuleSpec(PolicySpec("kDeclines", {"k": 0})))


@given(st.lists(st.floats(-1.0, 1.0), max_size=40), st.sampled_from(["kDeclines:k=2", "scan", "drawdown"]))
def test_it_stops_where_a_replay_stops(scores: list[float], text: str) -> None:
    rule = specs.rule(text)
    made = Evals([(n + 1) / max(1, len(scores)) for n in range(len(scores))], scores)
    foreseen = first_stop(rule.make(), made) if scores else None
    found = curve(points(*scores), rule)
    assert found.stopped_step == (None if foreseen is None else 10 * (foreseen.eval + 1))
    if foreseen is not None:
        assert found.best_step == 10 * (foreseen.best + 1)
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_page_s_example_is_true(repository: Path) -> None:
    page = (repository / "docs" / "use" / "what-if.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        exec(example, {})
