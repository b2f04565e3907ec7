"""Parameters of rules and policies: frozen dataclasses whose fields carry unit, meaning and bounds.

One declaration serves three readers: `check` refuses wrong values when a rule is made, `controller/api`
derives the custom resource's schema from it, and the docs print it.

    @dataclass(frozen=True, slots=True)
    class KDeclinesParams:
        k: int = param(3, unit="evals", doc="consecutive declines that stop the run", ge=1, le=100)
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

from controller.frozen import dataclass

P = TypeVar("P")


class ParamError(ValueError):
    """A parameter is out of bounds, of the wrong type, or unknown.

    The message names the field, the value and what would be right; the parts are kept apart for those who
    put them into a condition or an HTTP answer.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}: {value!r} is not allowed, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive (``ge``, ``le``) and strict (``gt``, ``lt``) limits; ``choices`` for text."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: tuple[str, ...] = ()

    def broken_by(self, value: float) -> bool:
        return (
            (self.ge is not None and value < self.ge)
            or (self.gt is not None and value <= self.gt)
            or (self.le is not None and value > self.le)
            or (self.lt is not None and value >= self.lt)
        )

    def __str__(self) -> str:
        signs = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        return " and ".join(
            f"{sign} {limit if isinstance(limit, int) else format(limit, 'g')}"  # 999999999999999, not 1e+15
            for sign, limit in signs
            if limit is not None
        )


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """One parameter as schema and docs see it. ``kind``: int, float, bool or str."""

    name: str
    kind: type
    default: Any
    unit: str
    doc: str
    bounds: Bounds


def param(
    default: Any,
    *,
    unit: str,
    doc: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field with its unit, its meaning and its bounds."""
    bounds = Bounds(ge=ge, gt=gt, le=le, lt=lt, choices=choices)
    return dataclasses.field(default=default, metadata={"unit": unit, "doc": doc, "bounds": bounds})


def describe(params_type: type) -> tuple[ParamInfo, ...]:
    """Return the parameters of a params dataclass, in the order of their declaration."""
    return _described(params_type)


@cache  # asked for at every plan, and reading type hints would be most of what a plan costs
def _described(params_type: Any) -> tuple[ParamInfo, ...]:
    hints = get_type_hints(params_type)
    return tuple(
        ParamInfo(
            f.name, hints[f.name], f.default, f.metadata["unit"], f.metadata["doc"], f.metadata["bounds"]
        )
        for f in dataclasses.fields(params_type)
    )


def check(params: Any, owner: str) -> None:
    """Raise `ParamError` for the first field whose value has the wrong type or breaks its bounds."""
    for info in describe(type(params)):
        _check_one(info, getattr(params, info.name), f"{owner}.{info.name}")


def build(params_type: type[P], values: Mapping[str, Any], owner: str) -> P:
    """Make and check a params object from values by field name.

    Raises:
        ParamError: a name is unknown, or a value has the wrong type or breaks its bounds.
    """
    known = {info.name: info for info in describe(params_type)}
    for name, value in values.items():
        if name not in known:
            raise ParamError(
                f"{owner}.{name}", value, f"one of the parameters {', '.join(known) or '(none)'}"
            )
    converted = {n: float(v) if known[n].kind is float and type(v) is int else v for n, v in values.items()}
    params = params_type(**converted)
    check(params, owner)
    return params


def fingerprint(*parts: Any) -> str:
    """Twelve hex digits that change when a rule's name, version or any parameter does."""
    import hashlib  # of no use to whoever only reads a status

    text = json.dumps(parts, sort_keys=True, default=dataclasses.asdict, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_one(info: ParamInfo, value: Any, field: str) -> None:
    kind: type = type(value)
    if kind is not info.kind:
        raise ParamError(field, value, f"{_article(info.kind)} ({info.unit})")
    if info.kind is str:
        if info.bounds.choices and value not in info.bounds.choices:
            raise ParamError(field, value, "one of " + ", ".join(info.bounds.choices))
    elif info.kind is float and not math.isfinite(value):
        raise ParamError(field, value, f"a finite number ({info.unit})")
    elif info.kind is not bool and info.bounds.broken_by(value):
        raise ParamError(field, value, f"a value {info.bounds} ({info.unit})")


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
