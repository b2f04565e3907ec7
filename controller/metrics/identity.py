"""Identity of an eval on a trainer's page: the attempt and step that its samples are labelled with."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

from controller.metrics.samples import Sample, refuse_labels, same
from controller.policy.types import Attempt
from controller.untrusted_text import printable

_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)  # 15 digits: exact as a float, too


def identity(sample: Sample) -> tuple[Attempt, int]:
    """Return the attempt and step that a sample is labelled with. Raises what `refuse_labels` gives."""
    step = step_of(sample, "step")
    where = _where(sample)
    if "attempt" not in sample.labels:
        raise refuse_labels(
            f"{where} at step {step} has no label attempt: expected attempt='<number>-<life>', with the "
            "number of run.json"
        )
    attempt = sample.labels["attempt"]
    if len(attempt) > 31:
        raise refuse_labels(f"{where} has attempt {printable(attempt)!r}: expected at most 31 characters")
    try:
        return _attempt(attempt), step
    except ValueError as error:
        raise refuse_labels(f"{where}: {printable(str(error), 160)}") from None


@lru_cache(maxsize=64)
def _attempt(text: str) -> Attempt:
    """Return the parsed attempt; equal texts give the same object, so that evals share it."""
    return Attempt.parse(text)


def step_of(sample: Sample, label: str) -> int:
    """Return the whole number in a sample's label. Raises what `refuse_labels` gives."""
    text = sample.labels.get(label, "")
    if not _WHOLE_NUMBER.fullmatch(text):
        raise refuse_labels(
            f"{_where(sample)} has {label} {printable(text)!r}: expected a whole number of at most 15 digits"
        )
    return int(text)


def _where(sample: Sample) -> str:
    return f"{sample.name}{{metric={printable(sample.labels.get('metric', ''))!r}}}"


_Key = TypeVar("_Key")


def enter(column: dict[_Key, float | None], key: _Key, value: float) -> None:
    """Note a sample's value; None marks a series that has two."""
    known = column.setdefault(key, value)
    if known is not None and not same(known, value):
        column[key] = None


def short(value: float, digits: int = 7) -> float:
    """Return a value to so many significant digits: 32 are kept in a status. Seven are a float32's."""
    return float(f"{value:.{digits}g}")
