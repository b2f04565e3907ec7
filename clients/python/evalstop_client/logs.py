"""Readings from a trainer's log beside the metric: its error, the reward of training, KL, further metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MOST = 31  # further metrics that are reported: guardrails among them, and names for who has the name wrong
_STDERR = ("stderr", "std_error", "sem")
_STD = ("std",)
_ABOUT_THE_EVAL = re.compile(r"(_|/|^)(runtime|\w*_per_second|num_tokens|epoch|step|num_input_tokens_seen)$")


class Reading(NamedTuple):
    """One eval, as a log shows it. ``score`` None: the log has no such metric."""

    score: float | None
    stderr: float | None
    samples: int | None
    others: Mapping[str, float]


def number(value: Any) -> float | None:
    """Return a value of a log as a number; None if it is none. Tensors and arrays of one element are."""
    if value is None or isinstance(value, (str, bytes, bool)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a log is a number."""
    found = ((str(name), number(value)) for name, value in logs.items())
    return {name: value for name, value in found if value is not None}


def read(metric: str, logs: Mapping[str, Any], samples: int | None) -> Reading:
    """Return what an eval's log says of ``metric``, the mean of so many samples.

    The standard error is the log's own (``…/stderr``), else its standard deviation (``…/std``) over the root
    of the samples. Evals of the others are reported too, but for those that only tell how long the eval took.
    """
    found = numbers(logs)
    stderr = _first(found, _beside(metric, _STDERR))
    if stderr is None and samples:
        std = _first(found, _beside(metric, _STD))
        stderr = None if std is None else std / math.sqrt(samples)
    if stderr is not None and not math.isfinite(stderr):
        stderr = None
    mine = {metric, *_beside(metric, _STDERR + _STD)}
    others = {
        name: value
        for name, value in found.items()
        if name not in mine and math.isfinite(value) and not _ABOUT_THE_EVAL.search(name)
    }
    return Reading(found.get(metric), stderr, samples, others)


def first(logs: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """Return the first of these that the log has as a finite number."""
    return _first({name: value for name, value in numbers(logs).items() if math.isfinite(value)}, names)


def kl_per_response(logs: Mapping[str, Any], kl: Iterable[str], length: str) -> float | None:
    """Return the KL in nats per response, from a mean per token and the mean length."""
    per_token, tokens = first(logs, kl), first(logs, (length,))
    return None if per_token is None or tokens is None else per_token * tokens


def _first(found: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((found[name] for name in names if name in found), None)


def _beside(metric: str, words: Iterable[str]) -> list[str]:
    """Return names under which a log may have something of it, as ``a/std`` of ``a/mean``."""
    found = []
    for word in words:
        if re.search(r"(^|[/_])mean$", metric):
            found.append(f"{metric[: -len('mean')]}{word}")
        found += [f"{metric}_{word}", f"{metric}/{word}"]
    return found
