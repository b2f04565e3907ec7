"""Samples of a trainer's page -> the evals of one metric, with what belongs to each.

Every part of an eval carries its step and attempt as labels, so nothing is ever put beside another step's
score. What contradicts itself is left out and named in ``notes``: a gap, and a gap never stops a run.
"""

from __future__ import annotations

import math

from controller import names
from controller.metrics import prompt_pairs
from controller.metrics.identity import enter, identity, short, step_of
from controller.metrics.samples import Sample, count
from controller.policy.job import PROMPTS_MAX
from controller.policy.types import Attempt, EvalPoint, Paired
from controller.policy.wording import TWO_VALUES, some
from controller.untrusted_text import printable


def points_of(samples: list[Sample], metric: str, notes: list[str]) -> list[EvalPoint]:
    """Evals of ``metric`` by life in the page's order, then step; not those that contradict themselves."""
    columns: dict[str, dict[tuple[Attempt, int], float | None]] = {
        names.METRIC_EVAL_SCORE: {},
        names.METRIC_EVAL_STDERR: {},
        names.METRIC_EVAL_SAMPLES: {},
        names.METRIC_EVAL_PROMPTS: {},
        names.METRIC_EVAL_PROXY: {},
    }
    for sample in samples:
        column = columns.get(sample.name)
        if column is not None and sample.labels.get("metric") == metric:
            enter(column, identity(sample), sample.value)
    scores, errors, counts, asked, proxies = columns.values()
    paired = _paired(samples, metric, notes)
    pairs = prompt_pairs.of(samples, metric, notes)
    points: list[EvalPoint] = []
    infinite: list[tuple[int, float]] = []
    several = False
    # Lives have no order of their own: a page shows the newest last.
    order = {attempt: place for place, (attempt, _) in enumerate(scores)}
    for (attempt, step), score in sorted(scores.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        if score is None:
            of = f"{metric} has {TWO_VALUES} {step}, attempt {attempt}"
            apart = "" if several else _apart(samples, metric, (attempt, step))  # once: a page may be long
            several = True
            notes.append(f"{of}{apart}: this eval is ignored")
            continue
        if not math.isfinite(score):
            infinite.append((step, score))
        number = count(counts.get((attempt, step)))
        if number == 0:
            notes.append(f"{metric} at step {step} was measured on 0 samples: this eval is ignored")
        prompts, complaint = _prompts((attempt, step) in asked, asked.get((attempt, step)), number)
        if complaint:
            notes.append(f"{metric} at step {step} {complaint}")
        if prompts == 0:
            number, prompts = 0, None
        same = pairs.get((attempt, step), ())
        if any(pair.prompts != prompts for pair in same):
            found = ", ".join(str(pair.prompts) for pair in same)
            notes.append(
                f"{metric} at step {step} is not paired: over {found} prompts, the eval has {prompts}"
            )
            same = ()
        error = errors.get((attempt, step))
        usable = error is not None and math.isfinite(error) and error >= 0
        proxy = proxies.get((attempt, step))
        points.append(
            EvalPoint(
                step,
                score,
                attempt,
                error if usable else None,
                number,
                short(proxy) if proxy is not None and math.isfinite(proxy) else None,
                paired.get((attempt, step)),
                prompts,
                same,
            )
        )
    if infinite:
        notes.insert(0, _not_finite(metric, infinite))
    return points


def _apart(samples: list[Sample], metric: str, of: tuple[Attempt, int]) -> str:
    """Return by which labels the series of one eval's scores differ: `` (split='val' and split='test')``;
    "": by none."""
    labels = [
        s.labels
        for s in samples
        if s.name == names.METRIC_EVAL_SCORE and s.labels.get("metric") == metric and identity(s) == of
    ]
    every = {key for one in labels for key in one}
    keys = sorted(key for key in every if len({one.get(key) for one in labels}) > 1)
    sets = [", ".join(f"{printable(k)}={printable(one.get(k, ''))!r}" for k in keys) for one in labels]
    return f" ({some(list(dict.fromkeys(sets)), 3)})" if keys else ""


def _not_finite(metric: str, evals: list[tuple[int, float]]) -> str:
    """Return in one sentence which evals have scores that are no numbers, the newest first."""
    (newest, score), *others = reversed(evals)
    if not others:
        return f"{metric} at step {newest} is {score}: this eval is ignored, scores must be finite"
    steps = some([str(step) for step, _ in (evals[-1], *others)], 3)
    return f"{metric} at steps {steps} is {score}: these evals are ignored, scores must be finite"


def _prompts(given: bool, value: float | None, samples: int | None) -> tuple[int | None, str]:
    """Return how many prompts an eval had, and what is wrong with what the page says of it.

    None: it does not say it in a way that could be used. 0: of none, so there was no eval.
    """
    if not given:
        return None, ""
    number = count(value)
    if number == 0:
        return 0, "was measured on 0 prompts: this eval is ignored"
    if number is None or number > PROMPTS_MAX:
        shown = "several numbers of prompts" if value is None else f"{value:g} prompts"
        return None, f"has {shown}: not used, expected a whole number of 1 to {PROMPTS_MAX}"
    if samples and number > samples:
        return None, f"has {number} prompts in {samples} samples: not used, expected at most one in each"
    return number, ""


def evaluators_of(samples: list[Sample], metric: str) -> dict[tuple[Attempt, int], str]:
    """Return the version of the evaluator that scored each eval of ``metric``, of those that name it."""
    return {
        identity(s): s.labels["evaluator"]
        for s in samples
        if s.name == names.METRIC_EVAL_SCORE
        and s.labels.get("metric") == metric
        and s.labels.get("evaluator")
    }


def _paired(samples: list[Sample], metric: str, notes: list[str]) -> dict[tuple[Attempt, int], Paired]:
    """Differences to a reference step, by the eval they belong to.

    Only whole and unambiguous ones: all three samples for one earlier reference step. What is left out is
    a gap in the evidence; a guess could be evidence against the wrong step.
    """
    columns: dict[str, dict[tuple[Attempt, int, int], float | None]] = {
        names.METRIC_PAIRED_PROMPTS: {},
        names.METRIC_PAIRED_MEAN: {},
        names.METRIC_PAIRED_VARIANCE: {},
    }
    for sample in samples:
        column = columns.get(sample.name)
        if column is not None and sample.labels.get("metric") == metric:
            enter(column, (*identity(sample), step_of(sample, "reference")), sample.value)
    prompts, means, variances = columns.values()
    found: dict[tuple[Attempt, int], list[Paired | None]] = {}
    for attempt, step, reference in sorted(prompts.keys() | means.keys() | variances.keys()):
        key = (attempt, step, reference)
        number, mean, variance = count(prompts.get(key)), means.get(key), variances.get(key)
        pair = None
        if (
            reference < step
            and (number is not None and number >= 2)
            and (mean is not None and math.isfinite(mean))
            and (variance is not None and math.isfinite(variance) and variance >= 0.0)
        ):
            pair = Paired(reference, number, short(mean), short(variance))
        found.setdefault((attempt, step), []).append(pair)
    out: dict[tuple[Attempt, int], Paired] = {}
    for (attempt, step), pairs in found.items():
        if len(pairs) == 1 and pairs[0] is not None:
            out[attempt, step] = pairs[0]
        else:
            notes.append(
                f"{metric} at step {step}: differences ignored, expected count (2 or more), mean and "
                "variance for one earlier reference step"
            )
    return out
