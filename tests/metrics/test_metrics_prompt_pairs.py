"""Prompts of an eval, and its pairs with earlier evals on the same prompts: read whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.metrics.parse import MetricsError, parse
from controller.policy.job import ScrapeOutcome, ScrapeView
from controller.policy.types import EvalPoint, PromptPair

SET, OTHER = "0f1e2d3c4b5a6978", "ffffffff00000000"


def line(name: str, value: object, step: object = 20, metric: str = "gold", **labels: object) -> str:
    shown = {"metric": metric, "step": step, "attempt": "1-100", **labels}
    text = ",".join(f'{k}="{v}"' for k, v in shown.items())
    return f"{name}{{{text}}} {value}"


def prompts(value: object = 512, of: str = SET, **labels: object) -> str:
    return line(names.METRIC_EVAL_PROMPTS, value, prompt_set=of, **labels)


def pair(
    number: object = 512, mean: object = -0.25, variance: object = 0.5, of: str = SET, reference: object = 10
) -> tuple[str, str, str]:
    return (
        line(names.METRIC_PROMPT_PAIR_PROMPTS, number, reference=reference, prompt_set=of),
        line(names.METRIC_PROMPT_PAIR_MEAN, mean, reference=reference),
        line(names.METRIC_PROMPT_PAIR_VARIANCE, variance, reference=reference),
    )


SCORE = line(names.METRIC_EVAL_SCORE, 0.5)


def view(*lines: str, metric: str = "gold") -> ScrapeView:
    return parse(("\n".join((SCORE, *lines)) + "\n").encode(), metric)


def only(*lines: str) -> EvalPoint:
    (point,) = view(*lines).points
    return point


def test_an_eval_carries_its_prompts_and_three_pairs() -> None:
    point = only(prompts(), *pair(), *pair(reference=0, mean=0.125), *pair(reference=15, variance=0))
    assert point == EvalPoint(
        20,
        0.5,
        point.attempt,
        prompts=512,
        prompt_pairs=(
            PromptPair(0, 512, 0.125, 0.5),
            PromptPair(10, 512, -0.25, 0.5),
            PromptPair(15, 512, -0.25, 0.0),
        ),
    )
    assert point.paired is None, "not the fresh differences that eProcess counts"


@given(st.permutations([prompts(), *pair(), *pair(reference=0)]))
def test_the_order_of_the_lines_says_nothing(lines: list[str]) -> None:
    assert only(*lines) == only(prompts(), *pair(), *pair(reference=0))


@pytest.mark.parametrize("value", [-1, 0.5, "1e300", "NaN", "+Inf", 1_000_001])
def test_a_number_of_prompts_that_cannot_be_is_not_used_and_named(value: object) -> None:
    found = view(prompts(value))
    assert found.outcome is ScrapeOutcome.OK
    assert [(p.score, p.prompts, p.samples) for p in found.points] == [(0.5, None, None)]
    assert (
        f"gold at step 20 has {float(value):g} prompts: not used, expected a whole number of 1 to"
        in found.message
    )  # type: ignore[arg-type]


def test_an_eval_of_no_prompts_is_none() -> None:
    found = view(prompts(0))
    assert [p.samples for p in found.points] == [0]
    assert "gold at step 20 was measured on 0 prompts: this eval is ignored" in found.message


def test_two_numbers_for_one_eval_are_none() -> None:
    found = view(prompts(512), prompts(513))
    assert found.points[0].prompts is None
    assert "has several numbers of prompts: not used" in found.message


def test_more_prompts_than_samples_are_not_believed() -> None:
    samples = line(names.METRIC_EVAL_SAMPLES, 240)
    assert only(samples, prompts(30)).prompts == 30
    found = view(samples, prompts(1024))
    assert (found.points[0].prompts, found.points[0].samples) == (None, 240)
    assert "has 1024 prompts in 240 samples: not used" in found.message


@pytest.mark.parametrize(
    "lines",
    [
        pair()[:2],  # one of the three is missing
        pair()[1:],
        pair(1),
        pair(3.5),
        pair("1e300"),
        pair("NaN"),
        pair(mean="NaN"),
        pair(mean="-Inf"),
        pair(mean="1e200"),
        pair(variance=-0.1),
        pair(variance="NaN"),
        pair(variance="1e300"),
        pair(reference=20),  # itself
        pair(reference=30),  # a later step
        pair() + pair(mean=-0.5),  # two values for one
        pair(of=OTHER),  # over other prompts than the eval's
        pair(of=""),
        pair() + pair(reference=1) + pair(reference=2) + pair(reference=3),  # more than three
        pair() + pair(3.5, reference=5),  # a good one beside a bad one
    ],
)
def test_pairs_that_are_not_whole_are_left_out_and_named(lines: tuple[str, ...]) -> None:
    found = view(prompts(), *lines)
    assert found.outcome is ScrapeOutcome.OK
    assert [(p.score, p.prompts, p.prompt_pairs) for p in found.points] == [(0.5, 512, ())]
    assert "gold at step 20: its evals are not paired" in found.message


@pytest.mark.parametrize("of", ["", "judge", "ABCDEF0123456789", "0f1e2d3", "0" * 65])
def test_without_a_digest_nothing_is_paired(of: str) -> None:
    found = view(prompts(of=of), *pair(of=of))
    assert (found.points[0].prompts, found.points[0].prompt_pairs) == (512, ())
    assert "not paired" in found.message


def test_pairs_over_more_prompts_than_the_eval_has_are_not_believed() -> None:
    found = view(prompts(200), *pair(999_999))
    assert (found.points[0].prompts, found.points[0].prompt_pairs) == (200, ())
    assert "is not paired: over 999999 prompts, the eval has 200" in found.message
    assert view(*pair()).points[0].prompt_pairs == (), "nor those of an eval that has no number"


def test_a_change_of_the_prompts_is_said() -> None:
    earlier = [line(names.METRIC_EVAL_SCORE, 0.5, step=10), prompts(step=10)]
    assert view(*earlier, prompts()).message == ""
    found = view(*earlier, prompts(of=OTHER))
    assert found.message == "gold: the prompts of step 20 are not those of step 10: not paired"
    assert [p.prompts for p in found.points] == [512, 512]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("MeanDiffers", "the mean over its prompts is not the difference of the two scores"),
        ("NoResults", "the results of the best eval are gone"),
        ("DirectionChanged", "the metric's direction was corrected"),
        ("<script>", "its client gives a reason that is not known here"),
    ],
)
def test_why_a_client_paired_nothing_is_said_in_our_words(reason: str, said: str) -> None:
    found = view(prompts(), line(names.METRIC_PROMPT_PAIRS_DROPPED, 1, reason=reason))
    assert f"gold at step 20 is not paired: {said}" in found.message
    assert "<script>" not in found.message


def test_a_reference_that_is_no_step_fails_the_page() -> None:
    with pytest.raises(MetricsError, match="has reference 'best': expected a whole number"):
        view(prompts(), *pair(reference="best"))


def test_five_digits_are_kept() -> None:
    (found,) = only(prompts(), *pair(mean=-1.0 / 3.0, variance=2.0 / 3.0)).prompt_pairs
    assert found == PromptPair(10, 512, -0.33333, 0.66667)
