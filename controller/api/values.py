"""Scalars of the status: doubles and times as text that reads back exactly, states as strict JSON."""

from __future__ import annotations

import json
import math
import re
import time
from datetime import date
from functools import lru_cache
from typing import Any

from controller import bounded

_EPOCH = date(1970, 1, 1).toordinal()
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z")


def number(value: float) -> str | None:
    """Return the shortest decimal that reads back as this very double, whole ones without a point.

    None for NaN.
    """
    if math.isnan(value):
        return None
    value = float(value)  # rules put whole numbers where a float is meant
    if value.is_integer() and 0 < abs(value) < 1e15:
        return str(int(value))
    return repr(value)


@lru_cache(maxsize=4096)
def timestamp(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC, with as many digits after the second as it takes to be exact.

    Raises:
        ValueError: before 1970, after 9999, or not a number.
    """
    if not 0 <= seconds < 253402300800:
        raise ValueError(f"time {seconds!r}: expected seconds since the epoch, within the years 1970 to 9999")
    digits = next((d for d in range(18) if float(f"{seconds:.{d}f}") == seconds), 30)
    whole, _, fraction = f"{seconds:.{digits}f}".partition(".")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(whole)))
    return f"{stamp}.{fraction}Z" if fraction else f"{stamp}Z"


@lru_cache(maxsize=4096)
def seconds(stamp: str) -> float:
    """Return the seconds since the epoch of a text of `timestamp`.

    Raises:
        ValueError: not of the form 2026-11-21T09:30:00.25Z.
    """
    found = _TIME.fullmatch(stamp)
    if found is None:
        raise ValueError(f"time {stamp!r}: expected the form 2026-11-21T09:30:00.25Z")
    year, month, day, hours, minutes, rest = map(int, found.groups()[:6])
    days = date(year, month, 1).toordinal() - _EPOCH + day - 1
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    return float(f"{whole}{found[7] or ''}")


def state_text(**states: tuple[object, ...]) -> str:
    """Return nested tuples of JSON scalars as one line of strict JSON.

    A double that JSON has no word for, as inf, is an object: ``{"double": "inf"}``.
    """
    return json.dumps({k: _encode(v) for k, v in states.items()}, separators=(",", ":"), allow_nan=False)


def state_values(text: str) -> dict[str, tuple[Any, ...]]:
    """Return the states that a text of `state_text` holds, by name."""
    return {k: _decode(v) for k, v in bounded.load(text, "a rule's state").items()}


def _encode(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"double": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"rule state holds {type(value).__name__} {value!r}: only tuples of JSON scalars are kept"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if isinstance(value, dict):
        return float(value["double"])
    return value


def camel(name: str) -> str:
    """Return ``min_delta`` as ``minDelta``: fields as the API has them."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
