"""Faults of a manifest in sentences: each by its field, its value, and what would be right.

pydantic names them for whoever writes Python ("Tuple should have at most 4 items after validation"); people
who write manifests are told in the words of those, as the API server has them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from controller.policy.wording import agreeing, counted, did_you_mean

NO_SUCH_FIELD = "there is no such field"
MOST_TOLD = 3  # faults in one message
CLOSE = 0.6  # likeness from which on a field or a value is thought to be meant
_VALUE_MOST = 60  # characters of a value that are repeated
_CHOICE = re.compile(r"'([^']*)'")

_NUMBERS: Mapping[str, str] = {
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "multiple_of": "a multiple of {multiple_of}",
}
_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
    "dict_type": "an object with fields",
    "model_type": "an object with fields",
    "model_attributes_type": "an object with fields",
    "list_type": "a list",
    "tuple_type": "a list",
}


class Fault(NamedTuple):
    """One fault. ``field``: as the API server writes it, ``spec.metrics[0].direction``."""

    field: str
    text: str

    @property
    def sentence(self) -> str:
        return f"{self.field}: {self.text}"


def faults(error: ValidationError) -> tuple[Fault, ...]:
    """Return what is wrong, each fault once."""
    told = error.errors(include_url=False)
    paths = [one["loc"] for one in told]
    found = []
    for one in told:
        where = one["loc"]
        # What has a faulty member counts as empty besides: that is no fault of its own.
        hollow = one["type"] == "too_short" and not (one.get("ctx") or {}).get("actual_length")
        if hollow and any(len(path) > len(where) and path[: len(where)] == where for path in paths):
            continue
        found.append(Fault(path_of(where), _text(one)))
    return tuple(found)


def sentence(error: ValidationError) -> str:
    """Return the faults in one message: the first ones, and how many more there are."""
    found = faults(error)
    more = len(found) - MOST_TOLD
    end = f" (and {more} more)" if more > 0 else ""
    return "; ".join(one.sentence for one in found[:MOST_TOLD]) + end


def path_of(parts: tuple[int | str, ...]) -> str:
    """Return a field as the API server writes it."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _text(one: Any) -> str:
    kind, value, context = one["type"], one.get("input"), one.get("ctx") or {}
    if kind == "missing":
        return "is needed"
    if kind == "value_error":
        return str(one["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return NO_SUCH_FIELD
    return f"is {_short(value)}: expected {_expected(kind, value, context, one)}"


def _expected(kind: str, value: Any, context: Mapping[str, Any], one: Any) -> str:
    if kind == "enum":
        return _choice(value, str(context.get("expected", "")))
    if kind in _NUMBERS:
        return _NUMBERS[kind].format(**context)
    if kind in ("too_long", "too_short"):
        most = kind == "too_long"
        length = context.get("max_length" if most else "min_length", 0)
        return f"{'at most' if most else 'at least'} {counted(int(length), 'item')}"
    if kind in ("string_too_long", "string_too_short"):
        most = kind == "string_too_long"
        length = int(context.get("max_length" if most else "min_length", 0))
        return f"{'at most' if most else 'at least'} {length} {agreeing(length, 'character', 'characters')}"
    if kind == "string_pattern_mismatch":
        return f"text like {context.get('pattern')}"
    if kind == "string_type":
        numeric = isinstance(value, bool | int | float)
        plain = str(value).lower() if isinstance(value, bool) else str(value)
        return f'text: write it in quotes, "{plain}"' if numeric else "text"
    if kind in ("list_type", "tuple_type"):
        return "a list" + (', as in ["0", "1"]' if one["loc"][-1] == "range" else "")
    if kind in _KINDS:
        return _KINDS[kind]
    return str(one["msg"]).removeprefix("Input should be ")


def _choice(value: Any, expected: str) -> str:
    """Return the words that are allowed, and the one that may be meant."""
    words = {word.casefold(): word for word in _CHOICE.findall(expected)}
    close = difflib.get_close_matches(str(value).casefold(), words, 1, CLOSE)
    return f"{expected}; {did_you_mean(words[close[0]])}" if close else expected


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_MOST else text[: _VALUE_MOST - 1] + "…"
