"""Proxy and paired differences of an eval: read whole and for their own step, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.metrics.parse import Limits, MetricsError, parse
from controller.policy.job.types import MetricPoints, ScrapeOutcome
from controller.policy.types import Attempt, EvalPoint, Paired


def line(name: str, value: object, step: object = 20, metric: str = "gold", **labels: object) -> str:
    shown = {"metric": metric, "step": step, "attempt": "1-100", **labels}
    text = ",".join(f'{k}="{v}"' for k, v in shown.items())
    return f"{name}{{{text}}} {value}"


def pair(
    prompts: object = 512, mean: object = -0.25, variance: object = 0.5, **labels: object
) -> tuple[str, str, str]:
    at: dict[str, object] = {"reference": 10, **labels}
    return (
        line(names.METRIC_PAIRED_PROMPTS, prompts, **at),
        line(names.METRIC_PAIRED_MEAN, mean, **at),
        line(names.METRIC_PAIRED_VARIANCE, variance, **at),
    )


def page(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


SCORE = line(names.METRIC_EVAL_SCORE, 1.5)


def only(*lines: str) -> EvalPoint:
    (point,) = parse(page(SCORE, *lines), "gold").points
    return point


def test_an_eval_carries_its_proxy_and_its_differences() -> None:
    point = only(line(names.METRIC_EVAL_PROXY, 2.5), *pair())
    assert point == EvalPoint(20, 1.5, Attempt(1, "100"), None, None, 2.5, Paired(10, 512, -0.25, 0.5))


@pytest.mark.parametrize(
    "lines",
    [
        pair()[:2],  # one of the three is missing
        pair()[1:],
        pair(prompts=1),
        pair(prompts=3.5),
        pair(prompts="NaN"),
        pair(mean="NaN"),
        pair(mean="+Inf"),
        pair(variance=-0.1),
        pair(variance="Inf"),
        pair(reference=20),  # itself
        pair(reference=30),  # a later step
        pair() + pair(reference=5),  # two references: which one is meant?
        pair() + pair(mean=-0.5),  # two values for one
        pair()[:2] + pair(reference=5)[2:],  # three samples, but of two references
    ],
)
def test_differences_that_are_not_whole_are_left_out_and_named(lines: tuple[str, ...]) -> None:
    view = parse(page(SCORE, *lines), "gold")
    assert view.outcome is ScrapeOutcome.OK
    assert [(p.score, p.paired) for p in view.points] == [(1.5, None)]
    assert "gold at step 20: differences ignored" in view.message


@pytest.mark.parametrize(
    "lines",
    [
        pair(step=19),  # of another step
        pair(attempt="2-100"),  # of another life
        pair(metric="safety"),
        (line(names.METRIC_EVAL_PROXY, 2.5, step=19),),
        (line(names.METRIC_EVAL_PROXY, 2.5, attempt="2-100"),),
        (line(names.METRIC_EVAL_PROXY, "NaN"),),
        (line(names.METRIC_EVAL_PROXY, 2.5), line(names.METRIC_EVAL_PROXY, 2.6)),
        (f"{names.METRIC_PROXY_REWARD} 2.5",),  # the current policy's, not that eval's
    ],
)
def test_nothing_is_put_beside_another_evals_score(lines: tuple[str, ...]) -> None:
    point = only(*lines)
    assert (point.proxy, point.paired) == (None, None)


@pytest.mark.parametrize("reference", ["", "best", "-1", "1.5", "1" * 16])
def test_a_reference_that_is_no_step_fails_the_page(reference: str) -> None:
    with pytest.raises(MetricsError, match=r"rlhf_paired_prompts\{metric='gold'\} has reference "):
        only(*pair(reference=reference))


def test_a_missing_reference_fails_the_page() -> None:
    with pytest.raises(MetricsError, match="has reference '': expected a whole number"):
        only(line(names.METRIC_PAIRED_MEAN, 0.5))


def test_seven_digits_are_kept() -> None:
    point = only(line(names.METRIC_EVAL_PROXY, 2.123456789012), *pair(mean=-1.0 / 3.0, variance=2.0 / 3.0))
    assert point.proxy == 2.123457
    assert point.paired == Paired(10, 512, -0.3333333, 0.6666667)


@given(st.permutations([SCORE, line(names.METRIC_EVAL_PROXY, 2.5), *pair()]))
def test_the_order_of_the_lines_says_nothing(lines: list[str]) -> None:
    (point,) = parse(page(*lines), "gold").points
    assert point == EvalPoint(20, 1.5, Attempt(1, "100"), None, None, 2.5, Paired(10, 512, -0.25, 0.5))


def test_other_metrics_come_in_the_order_asked_for_with_their_own_parts() -> None:
    safety = line(names.METRIC_EVAL_SCORE, 0.9, metric="safety")
    view = parse(page(SCORE, safety, *pair(metric="safety")), "gold", others=("toxicity", "safety", "reward"))
    assert [p.paired for p in view.points] == [None]
    assert view.others == (
        MetricPoints("safety", (EvalPoint(20, 0.9, Attempt(1, "100"), paired=Paired(10, 512, -0.25, 0.5)),)),
    )


def test_other_metrics_are_capped_as_the_primary_is() -> None:
    lines = [line(names.METRIC_EVAL_SCORE, s, step=s, metric="safety") for s in range(9)]
    (found,) = parse(page(*lines), "gold", Limits(points=4), others=("safety",)).others
    assert [p.step for p in found.points] == [5, 6, 7, 8]


def test_a_bad_line_of_another_metric_fails_the_page_too() -> None:
    with pytest.raises(MetricsError, match="has step 'x'"):
        parse(
            page(SCORE, line(names.METRIC_EVAL_SCORE, 1, step="x", metric="safety")),
            "gold",
            others=("safety",),
        )
