"""Samples of a trainer's page -> the evals of one metric, with what belongs to each.

Every part of an eval carries its step and attempt as labels, so nothing is ever put beside another step's
score. What contradicts itself is left out and named in ``notes``: a gap, and a gap never stops a run.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TypeVar

from controller import names
from controller.metrics.samples import Sample, count, refuse, same
from controller.policy.types import Attempt, EvalPoint, Paired
from controller.untrusted_text import printable

_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)  # 15 digits: exact as a float, too


def _identity(sample: Sample) -> tuple[Attempt, int]:
    """Attempt and step of an eval's sample."""
    step = _step(sample, "step")
    where = _where(sample)
    if "attempt" not in sample.labels:
        raise refuse(f"{where} at step {step} has no attempt: expected attempt='<number>-<life>'")
    attempt = sample.labels["attempt"]
    if len(attempt) > 31:
        raise refuse(f"{where} has attempt {printable(attempt)!r}: expected at most 31 characters")
    try:
        return _attempt(attempt), step
    except ValueError as error:
        raise refuse(f"{where}: {printable(str(error), 160)}") from None


@lru_cache(maxsize=64)
def _attempt(text: str) -> Attempt:
    """Return the parsed attempt; equal texts give the same object, so that evals share it."""
    return Attempt.parse(text)


def _step(sample: Sample, label: str) -> int:
    text = sample.labels.get(label, "")
    if not _WHOLE_NUMBER.fullmatch(text):
        raise refuse(
            f"{_where(sample)} has {label} {printable(text)!r}: expected a whole number of at most 15 digits"
        )
    return int(text)


def _where(sample: Sample) -> str:
    return f"{sample.name}{{metric={printable(sample.labels.get('metric', ''))!r}}}"


def points_of(samples: list[Sample], metric: str, notes: list[str]) -> list[EvalPoint]:
    """Evals of ``metric`` by life in the page's order, then step; not those that contradict themselves."""
    columns: dict[str, dict[tuple[Attempt, int], float | None]] = {
        names.METRIC_EVAL_SCORE: {},
        names.METRIC_EVAL_STDERR: {},
        names.METRIC_EVAL_SAMPLES: {},
        names.METRIC_EVAL_PROXY: {},
    }
    for sample in samples:
        column = columns.get(sample.name)
        if column is not None and sample.labels.get("metric") == metric:
            _enter(column, _identity(sample), sample.value)
    scores, errors, counts, proxies = columns.values()
    paired = _paired(samples, metric, notes)
    points: list[EvalPoint] = []
    # Lives have no order of their own: a page shows the newest last.
    order = {attempt: place for place, (attempt, _) in enumerate(scores)}
    for (attempt, step), score in sorted(scores.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        if score is None:
            notes.append(f"{metric} has two values for step {step}, attempt {attempt}: this eval is ignored")
            continue
        if not math.isfinite(score):
            notes.append(f"{metric} at step {step} is {score}: this eval is ignored, scores must be finite")
        number = count(counts.get((attempt, step)))
        if number == 0:
            notes.append(f"{metric} at step {step} was measured on 0 samples: this eval is ignored")
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
                _short(proxy) if proxy is not None and math.isfinite(proxy) else None,
                paired.get((attempt, step)),
            )
        )
    return points


def evaluators_of(samples: list[Sample], metric: str) -> dict[tuple[Attempt, int], str]:
    """Return the version of the evaluator that scored each eval of ``metric``, of those that name it."""
    return {
        _identity(s): s.labels["evaluator"]
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
            _enter(column, (*_identity(sample), _step(sample, "reference")), sample.value)
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
            pair = Paired(reference, number, _short(mean), _short(variance))
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


_Key = TypeVar("_Key")


def _enter(column: dict[_Key, float | None], key: _Key, value: float) -> None:
    """Note a sample's value; None marks a series that has two."""
    known = column.setdefault(key, value)
    if known is not None and not same(known, value):
        column[key] = None


def _short(value: float) -> float:
    """Seven significant digits, what a float32 carries: 32 of them are kept in a status."""
    return float(f"{value:.7g}")
