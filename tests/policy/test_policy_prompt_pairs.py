"""Evals on the same prompts: what the trainer is told to keep, and what of its pairs is believed."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.metrics.parse import parse
from controller.operator.state import run_configmap
from controller.policy.job.evals import is_eval
from controller.policy.job.record import JobRecord, RunFile
from controller.policy.job.types import Direction, Guardrail, MetricPoints
from controller.policy.types import Attempt, EvalPoint, EvalScale, PolicySpec, PromptPair
from tests.support.policy_world import PolicyWorld

GATE = PolicySpec("gate")
LIFE = Attempt(1, "1")
SCORES = (0.50, 0.52, 0.51, 0.53, 0.50, 0.99, 0.51, 0.52)  # at step 60 the scorer was wrong


def world(**wish: Any) -> PolicyWorld:
    found = PolicyWorld({"n1": 1})
    found.submit("ns/a", rule=PolicySpec("scan"), modifiers=(GATE,), **wish)
    found.settle()
    return found


def evals(w: PolicyWorld, *scores: float, sign: float = 1.0, paired: bool = True) -> None:
    """The trainer's window, each eval paired with the one before it; a scrape per eval."""
    job = w.jobs["ns/a"]
    points: list[EvalPoint] = []
    for i, score in enumerate(scores):
        before = points[-1:]
        pairs = tuple(PromptPair(p.step, 1000, sign * score - p.score, 0.1) for p in before if paired)
        points.append(EvalPoint(10 * (i + 1), sign * score, LIFE, prompts=1000, prompt_pairs=pairs))
        job.checkpoints.add(points[-1].step)
        w.scrape("ns/a", points=tuple(points), checkpoint_step=points[-1].step, request_served=0)
        for _ in range(5):
            w.step("ns/a", seconds=0.0)
            w._cluster(job)
            w.pool_pass()


def record(w: PolicyWorld) -> JobRecord:
    return w.jobs["ns/a"].record


def written(w: PolicyWorld) -> RunFile:
    found = w.jobs["ns/a"].observed.run_written
    assert found is not None
    return found


def test_the_best_is_named_where_it_is_not_the_highest_score() -> None:
    for direction, sign in ((Direction.MAXIMIZE, 1.0), (Direction.MINIMIZE, -1.0)):
        w = world(direction=direction)
        evals(w, *SCORES, sign=sign)
        best = record(w).best
        assert best is not None
        assert best.step == 40, "the gate dropped the eval of step 60"
        assert (written(w).best_metric, written(w).best_step) == (w.jobs["ns/a"].desired.metric, 40)


def test_a_best_that_the_trainer_keeps_by_itself_is_not_named() -> None:
    w = world()
    evals(w, *SCORES[:5])
    assert written(w).best_step is None
    assert record(w).best is not None


def test_trainers_that_pair_nothing_are_told_nothing() -> None:
    w = world()
    evals(w, *SCORES, paired=False)
    assert written(w).best_step is None


def test_the_run_file_says_which_metrics_are_minimised() -> None:
    safety = Guardrail("toxicity", PolicySpec("kDeclines"), Direction.MINIMIZE)
    w = world(guardrails=(safety,))
    assert written(w).minimize == ("toxicity",)
    w.jobs["ns/a"].wish(guardrails=(Guardrail("toxicity", PolicySpec("kDeclines")),))
    evals(w, *SCORES[:3])
    assert written(w).minimize == (), "a direction that was corrected is told"


def test_the_run_file_reads_back() -> None:
    run = RunFile(attempt=2, minimize=("loss", "toxicity"), best_metric="gold", best_step=400, uid="u")
    text = run_configmap.render(run)
    assert json.loads(text)["best"] == {"metric": "gold", "step": 400}
    assert run_configmap.read({"data": {"run.json": text}}) == run


# what is not believed, and said


def passes(w: PolicyWorld) -> None:
    for _ in range(3):
        w.step("ns/a", seconds=0.0)
        w.pool_pass()


def page(w: PolicyWorld, *points: EvalPoint) -> str:
    """Show a page; return what MetricsAvailable says of it."""
    job = w.jobs["ns/a"]
    job.checkpoints |= {p.step for p in points}
    w.scrape("ns/a", points=points, checkpoint_step=points[-1].step, request_served=0)
    for _ in range(3):
        w.step("ns/a", seconds=0.0)
        w._cluster(job)
        w.pool_pass()
    found = record(w).condition("MetricsAvailable")
    assert found is not None
    assert found.status == any(map(is_eval, points)), "the page is read all the same"
    return found.message


def point(step: int, score: float, **more: Any) -> EvalPoint:
    return EvalPoint(step, score, LIFE, **more)


UNIT = EvalScale(None, (0.0, 1.0))


def test_a_range_that_a_score_contradicts_is_given_up_for_good() -> None:
    """Percents under a range of 0 to 1: near 0 their noise would look a tenth of what it is."""
    w = world(scale=UNIT)
    chance = random.Random(3)
    points = [point(10 * i, abs(chance.gauss(0.8, 0.3)), prompts=1000) for i in range(60)]
    first = next(p for p in points if p.score > 1.0)
    for n in range(1, len(points) + 1):
        said = page(w, *points[max(0, n - 32) : n])
        if points[n - 1].step >= first.step:
            assert f"at step {first.step}, outside of its range 0 to 1: the range is not used" in said
            assert "correct spec.metrics[].range, or preset where that sets it" in said
    assert [(one.step, one.score) for one in record(w).out_of_range] == [(first.step, first.score)]
    assert record(w).decision is None
    rule = record(w).rule
    assert rule is not None
    assert rule.params_hash.endswith("-unbounded"), "what was judged by the range is judged again without it"
    w.jobs["ns/a"].wish(scale=EvalScale(None, (0.0, 100.0)))
    assert "outside" not in page(w, *points[-32:])
    assert record(w).out_of_range == ()


def test_a_guardrails_range_is_given_up_by_itself() -> None:
    guard = Guardrail("safety", PolicySpec("scan"), Direction.MINIMIZE, EvalScale(100, (0.0, 1.0)))
    w = world(guardrails=(guard,), scale=UNIT)
    others = (MetricPoints("safety", (point(10, 7.0),)),)
    w.scrape("ns/a", points=(point(10, 0.5),), others=others, checkpoint_step=10, request_served=0)
    passes(w)
    found = record(w).condition("MetricsAvailable")
    assert found is not None
    assert "'safety' is 7 at step 10, outside of its range 0 to 1" in found.message
    assert [one.metric for one in record(w).out_of_range] == ["safety"]
    rule, guards = record(w).rule, record(w).guards
    assert rule is not None
    assert not rule.params_hash.endswith("-unbounded")
    assert [g.params_hash.endswith("-unbounded-min") for g in guards] == [True]


def test_what_is_not_believed_of_a_guardrails_eval_is_not_shown_to_its_rule() -> None:
    """Each page twice: as it is, and as it would be without what is told to be wrong with it."""
    before = (point(10, 0.6, prompts=200), point(20, 0.5, prompts=200))
    last = point(30, 0.4, prompts=200)
    wrong = PromptPair(10, 200, 0.3, 0.2)  # the scores differ by -0.2
    for bad, said in (
        (last._replace(prompt_pairs=(wrong,)), "'safety' at step 30 is not paired with step 10"),
        (last._replace(prompts=1000), "'safety' has 1000 prompts at step 30 and had 200 at step 20: the"),
    ):
        states = []
        for newest in (bad, last):
            guard = Guardrail("safety", PolicySpec("scan", {"alpha": 0.04}), scale=UNIT)
            w = world(guardrails=(guard,), scale=UNIT)
            others = (MetricPoints("safety", (*before, newest)),)
            w.scrape("ns/a", points=(point(10, 0.5),), others=others, checkpoint_step=10, request_served=0)
            passes(w)
            told = record(w).condition("MetricsAvailable")
            assert told is not None
            assert (said in told.message) == (newest is bad)
            states += [g.state for g in record(w).guards]
        assert states[0] == states[1], said


def test_of_numbers_of_prompts_that_change_the_fewest_count() -> None:
    w = world(scale=UNIT)
    said = page(w, point(10, 0.5, prompts=200), point(20, 0.5, prompts=10_000_000))
    assert "has 10000000 prompts at step 20 and had 200 at step 10: the fewest count" in said
    assert [p.prompts for p in record(w).evals] == [200, 200]
    page(w, point(10, 0.5, prompts=200), point(20, 0.5, prompts=10_000_000), point(30, 0.5, prompts=50))
    assert [p.prompts for p in record(w).evals] == [200, 200, 50]


def test_a_standard_error_below_a_tenth_of_what_the_prompts_allow_is_said() -> None:
    w = world(scale=EvalScale(1000, (0.0, 1.0)))
    assert "standard error" not in page(w, point(10, 0.5, stderr=0.016), point(20, 0.5, stderr=0.0))
    said = page(w, point(10, 0.5, stderr=0.016), point(20, 0.5, stderr=0.001))
    assert "at step 20 has a standard error of 0.001, below a tenth of what its prompts allow" in said


@pytest.mark.parametrize(
    "pair",
    [
        PromptPair(10, 1000, 0.1, 0.2),  # the scores differ by -0.1
        PromptPair(10, 1000, -0.1, 1.5),  # more than two scores of 0 to 1 can vary
        PromptPair(10, 1000, -1e99, 1e99),
    ],
)
def test_a_pair_that_cannot_be_is_dropped_and_said(pair: PromptPair) -> None:
    w = world(scale=UNIT)
    said = page(w, point(10, 0.6, prompts=1000), point(20, 0.5, prompts=1000, prompt_pairs=(pair,)))
    assert "at step 20 is not paired with step 10" in said
    assert [p.prompt_pairs for p in record(w).evals] == [(), ()]


def test_a_pair_that_can_be_is_kept_and_one_of_an_unknown_step_is_not() -> None:
    w = world(scale=UNIT)
    good, unknown = PromptPair(10, 1000, -0.1, 0.2), PromptPair(5, 1000, 0.4, 0.2)
    said = page(w, point(10, 0.6, prompts=1000), point(20, 0.5, prompts=1000, prompt_pairs=(unknown, good)))
    assert "not paired" not in said
    assert [p.prompt_pairs for p in record(w).evals] == [(), (good,)]


def test_a_best_that_an_eval_is_not_paired_with_is_bounded_through_one_that_both_are() -> None:
    """The trainer's own best was wrong, and dropped: until it reads the name of ours, it pairs with that."""
    best, wrong, last = 0.60, 0.99, 0.59
    rows = [
        (10, 0.58, {}),
        (20, best, {10: 0.1}),
        (30, wrong, {20: 0.2}),
        (40, last, {30: 0.2, 20: 0.1}),
        (50, 0.55, {30: 0.2, 40: 0.04}),
    ]
    scores = {step: score for step, score, _ in rows}
    points = []
    w = world(scale=UNIT)
    for step, score, against in rows:
        pairs = tuple(PromptPair(s, 1000, score - scores[s], v) for s, v in against.items())
        points.append(point(step, score, prompts=1000, prompt_pairs=pairs))
        page(w, *points)
    newest = {p.step: p for p in record(w).evals[-1].prompt_pairs}
    assert set(newest) == {20, 30, 40}
    assert newest[20].mean == pytest.approx(0.55 - best)
    assert newest[20].variance == pytest.approx((0.04**0.5 + 0.1**0.5) ** 2)
    assert [len(p.prompt_pairs) for p in record(w).evals] == [0, 1, 1, 2, 3]


def test_a_bound_that_says_no_more_than_other_prompts_would_is_left_out() -> None:
    w = world(scale=UNIT)
    points = [
        point(10, 0.50, prompts=1000),
        point(20, 0.60, prompts=1000, prompt_pairs=(PromptPair(10, 1000, 0.1, 0.2),)),
        point(30, 0.55, prompts=1000, prompt_pairs=(PromptPair(10, 1000, 0.05, 0.2),)),
    ]
    page(w, *points)
    assert [p.step for p in record(w).evals[-1].prompt_pairs] == [10], "(2 x .45) squared is above 2 x .25"


def test_a_primary_that_is_no_eval_is_told_where_the_page_is() -> None:
    batches = [point(10 * n, 0.1 + 0.7 * (n % 2), prompts=1000) for n in range(1, 11)]
    assert "'gold' scatters by 0.507" in page(world(scale=UNIT), *batches)
    proxies = [point(10 * n, 0.1 * n, proxy=0.1 * n) for n in range(1, 6)]
    assert "is the reward that the run optimises" in page(world(), *proxies)


def test_a_rule_that_does_not_know_the_noise_says_which_number_would_tell() -> None:
    """On QualityDeclining, and so in `why` and doctor, which show its message."""
    for scale, more, said in (
        (EvalScale(), {}, "it would see with prompts and range (or preset) of the metric, or"),
        (UNIT, {}, "it would see with prompts of the metric, or"),
        (UNIT, {"prompts": None}, "it would see with prompts of the metric, or"),
        (EvalScale(), {"prompts": 100}, "it would see with range (or preset) of the metric, or"),
    ):
        w = world(scale=scale)
        page(w, *(point(10 * n, 0.5, **more) for n in range(1, 8)))
        found = record(w).condition("QualityDeclining")
        assert found is not None
        assert said in found.message
        assert "a standard error of each eval (rlhf_eval_score_stderr)" in found.message


HOSTILE = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1e300, -1e300, 5e-324, 0.0])


@given(
    st.lists(
        st.tuples(HOSTILE, st.none() | HOSTILE, st.none() | st.integers(-5, 10**18), HOSTILE, HOSTILE),
        min_size=1,
        max_size=8,
    ),
    st.tuples(st.floats(-1e114, 1e114), st.floats(-1e114, 1e114)).filter(lambda r: r[0] < r[1]),
)
@settings(max_examples=60, deadline=None)
@example(rows=[(math.inf, None, None, 0.0, 0.0)], limits=(0.0, 1.0))
def test_no_number_of_a_tenant_breaks_the_plan(
    rows: list[tuple[float, float | None, int | None, float, float]], limits: tuple[float, float]
) -> None:
    """What the page's reader lets through is less; here every number comes as it is, and as JSON goes."""
    w = world(scale=EvalScale(10, limits))
    points: list[EvalPoint] = []
    for i, (score, stderr, prompts, mean, variance) in enumerate(rows):
        lines = [f'rlhf_eval_score{{metric="m",step="{10 * i}",attempt="1-1"}} {score!r}']
        lines += (
            [f'rlhf_eval_score_stderr{{metric="m",step="{10 * i}",attempt="1-1"}} {stderr!r}']
            if stderr
            else []
        )
        of = f'metric="m",step="{10 * i}",attempt="1-1"'
        lines += [f'rlhf_eval_prompts{{{of},prompt_set="00000000"}} {prompts}']
        ref = f'{of},reference="{max(0, 10 * i - 10)}"'
        lines += [f'rlhf_prompt_pair_prompts{{{ref},prompt_set="00000000"}} {prompts}']
        lines += [
            f"rlhf_prompt_pair_mean{{{ref}}} {mean!r}",
            f"rlhf_prompt_pair_variance{{{ref}}} {variance!r}",
        ]
        text = "\n".join(line for line in lines if not line.endswith("None")) + "\n"
        points += parse(text.replace("nan", "NaN").encode(), "m").points
    page(w, *points)
    assert record(w).decision is None
