"""JSON as it comes in logs: every fault is a `TraceError`, and none hides in what JSON lets through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controller.bounded import DEPTH, too_deep
from sim.traces.errors import TraceError

TOO_DEEP = f"nested deeper than {DEPTH} levels"
_DIGITS = 308  # an integer of more may be beyond every float; Python reads none of more than 4300


class RepeatedName(ValueError):
    """An object has a name twice. JSON readers take the last one; what was meant nobody knows."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the name {name!r} is there twice in one object, expected once")


def parse(file: Path, line: int, text: str, hint: str = "") -> Any:
    """Return the value of one line; an integer beyond every float is infinite, so that whoever reads it
    refuses it.

    Raises:
        TraceError: not JSON, a name is repeated in an object, or nested too deeply. ``hint`` is put after
            the first.
    """
    if too_deep(text):
        raise TraceError(file, line, "", TOO_DEEP)
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg} at column {error.colno}){hint}"
        raise TraceError(file, line, "", problem) from None
    except RepeatedName as error:
        raise TraceError(file, line, "", str(error)) from None
    except RecursionError:
        raise TraceError(file, line, "", TOO_DEEP) from None


def decoder() -> json.JSONDecoder:
    """For a file that is one JSON value; its `RepeatedName` is the caller's to place."""
    return json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def _integer(text: str) -> float:
    return int(text) if len(text) <= _DIGITS else float(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedName(next(name for place, name in enumerate(names) if name in names[:place]))
    return found
