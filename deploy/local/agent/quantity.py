"""Kubernetes quantities: ``500m``, ``2Gi``, ``1e3`` as exact numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)")

Amounts = dict[str, Fraction]


def parse(text: str | int | float) -> Fraction:
    """Return the exact value of a quantity. Raises ValueError naming what is not one."""
    found = _FORM.fullmatch(str(text))
    if not found:
        raise ValueError(
            f"{text!r} is not a quantity: expected a number with an optional suffix, as in 500m or 2Gi"
        )
    number, exponent, suffix = found.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIX[suffix or ""]
    return Fraction(number) * scale


def amounts(raw: Mapping[str, str] | None) -> Amounts:
    """Return a resource list (``{"cpu": "500m"}``) with exact values."""
    return {name: parse(value) for name, value in (raw or {}).items()}


def add(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Amounts:
    return {name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in {*left, *right}}


def largest(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Amounts:
    return {name: max(left.get(name, Fraction(0)), right.get(name, Fraction(0))) for name in {*left, *right}}


def show(value: Fraction) -> str:
    """Return a value for people: whole numbers as they are, others in thousandths."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value * 1000):g}m"
