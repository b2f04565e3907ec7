"""Policy values as JSON and back; equal values give the same bytes.

Encoding is canonical: keys sorted, no spaces, floats by their shortest exact form, non-finite floats as the
strings "NaN", "Infinity", "-Infinity", members of unions tagged by class name. Decoding follows type hints.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from controller.policy.stored import WHERE_USED

T = TypeVar("T")

TAG = "is"


def dumps(value: Any) -> str:
    """Canonical JSON of what `encode` makes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode(value: Any, *, tagged: bool = False) -> Any:
    """JSON values (dict, list, str, number, bool, None) of a brain value.

    A field declared with `WHERE_USED` is left out while it is None: who does not use it sees nothing of it.

    Raises:
        TypeError: the value is of no kind the brain uses.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else _NON_FINITE[repr(value)]
    if kind is tuple or kind is list:
        return [encode(v, tagged=tagged) for v in value]
    if (fields := _fields(kind)) is not None:
        made = {TAG: kind.__name__} if tagged else {}
        for name, where_used in fields:
            if (field := getattr(value, name)) is not None or not where_used:
                made[name] = encode(field, tagged=name == "actions")
        return made
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, (tuple, list)):
        return [encode(v, tagged=tagged) for v in value]
    if isinstance(value, Mapping):
        return {k: encode(v) for k, v in value.items()}
    raise TypeError(f"{kind.__name__} has no JSON form here")


def decode(hint: type[T], value: Any) -> T:
    """Return the brain value of type ``hint`` that `encode` made ``value`` of.

    Raises:
        ValueError: the JSON does not have that shape; the message names the place.
    """
    return typing.cast(T, _decode(hint, value, hint.__name__))


_PLAIN = frozenset({str, int, bool, type(None)})
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(hint, value, where)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, where)
    if origin is not None:  # Mapping[str, X]
        _expect(value, dict, where)
        inner = get_args(hint)[1]
        return {k: _decode(inner, v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return _decode_fields(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, tuple):  # NamedTuple
        _expect(value, list, where)
        inner = list(_hints(hint).values())
        return hint(
            *(_decode(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(inner, value, strict=True)))
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hint is float:
        return _decode_float(value, where)
    if hint in (Any, object):
        return _freeze(value)
    _expect(value, hint, where)
    return value


def _decode_fields(hint: Any, value: Any, where: str) -> Any:
    _expect(value, dict, where)
    hints = _hints(hint)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}")
    return hint(**{name: _decode(hints[name], v, f"{where}.{name}") for name, v in value.items()})


def _decode_optional(hint: Any, value: Any, where: str) -> Any:
    choices = [a for a in get_args(hint) if a is not type(None)]
    if value is None and len(choices) < len(get_args(hint)):
        return None
    if len(choices) == 1:
        return _decode(choices[0], value, where)
    if isinstance(value, (bool, int, float, str)):  # a union of scalars, as parameters are
        return value
    raise ValueError(f"{where}: expected {hint}, got {value!r}")


def _decode_tuple(inner: tuple[Any, ...], value: Any, where: str) -> Any:
    _expect(value, list, where)
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_decode(inner[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    return tuple(_decode(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(inner, value, strict=True)))


def _decode_float(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _NON_FINITE.values():
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: expected a number, got {value!r}")
    # An int stays an int: states and statistics may hold either, and must come out as they went in.
    return value


def _expect(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where}: expected {kind.__name__}, got {value!r}")


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...] | None:
    """Return a dataclass' fields, and of each whether it is left out while it is None; None: no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((f.name, f.metadata == WHERE_USED) for f in dataclasses.fields(kind))


@cache
def _hints(hint: Any) -> dict[str, Any]:
    return get_type_hints(hint)
