"""The one reader of text that tenants write: how long, how deep, of how many values and digits it may be.

What Python's own readers do with hostile text is no answer for a process that serves everybody: `json.loads`
gives up on deep nesting with an error that is no ValueError, and on 3.12 reads deeper than what comes after
it can walk; `int` refuses 4,301 digits and takes quadratic time up to there. Here each limit is named in the
error.

Answers of the API server are read by `controller.kube.wire`, with `prune` where they hold too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

BYTES = 1 << 16  # of one text; a run.json has 300, an access Job's answer 4,096 at most
# Arrays and objects inside each other: what a Python function that calls itself for each can walk, whoever
# called it. One less than what the reader of the API server's answers takes (jiter: 201). A pod has some
# fifteen.
DEPTH = 200
DIGITS = 18  # of a whole number: every such number fits an int64
PYTHON_DIGITS = 64  # of one that a Python program wrote, whose numbers have no end: seeds, states, sizes
# Members of arrays and objects in one text. Two characters (`[]`) take 64 bytes once they are read, one
# member of an object up to 320: so many fit the 256 MiB that an access Job has.
VALUES = 500_000
SHOWN = 60  # characters of a value that an error repeats

_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_LONG = re.compile(r"[0-9]{19}")  # digits in a row; in a string or after a point they are no whole number
_WHOLE = re.compile(r"[0-9]+\Z", re.ASCII)


class Unbounded(ValueError):
    """A text is not read; the message says what it is, what is wrong with it and what the limit is."""


def load(
    text: str | bytes, what: str, most: int = BYTES, *, values: int = VALUES, python: bool = False
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON text.
        what: how errors call it.
        most: largest number of bytes (of a str: of its UTF-8).
        values: largest number of members of arrays and objects.
        python: whether to accept what Python's own ``json`` writes: NaN and infinities, and numbers of
            `PYTHON_DIGITS` digits.

    Raises:
        Unbounded: it is longer, deeper than `DEPTH`, holds more values, or a number of more than `DIGITS`
            digits, or is no JSON.
    """
    if isinstance(text, bytes):
        size = len(text)
    else:  # a text with more characters than bytes are allowed need not be encoded to be refused
        size = len(text) if len(text) > most else len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise Unbounded(f"{what}: {size} bytes, at most {most} are read")
    try:
        given = text if isinstance(text, str) else text.decode()
        if too_deep(given):
            raise Unbounded(f"{what}: nested deeper than {DEPTH} levels")
        # Two characters of each value at least: a short text need not be counted. A comma in a string counts.
        if len(given) > values and _members(given) > values:
            raise Unbounded(f"{what}: more than {values} values")
        decoders = _PYTHONS if python else _STRICT
        return decoders[_LONG.search(given) is not None].decode(given)
    except Unbounded:
        raise
    except _Digits as error:
        digits = PYTHON_DIGITS if python else DIGITS
        raise Unbounded(f"{what}: a number of {error} digits, at most {digits} are read") from None
    except ValueError as error:
        raise Unbounded(f"{what}: not JSON ({shown(str(error))})") from None


def too_deep(text: str) -> bool:
    """Return whether a JSON text is nested deeper than `DEPTH`, in time that grows with its length alone."""
    return text.count("[") + text.count("{") > DEPTH and _depth(text) > DEPTH


def whole(value: object) -> int | None:
    """Return a whole number, 0 or more, that was given as a text of at most `DIGITS` ASCII digits or as a
    number; None: it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 10**DIGITS else None
    text = value if isinstance(value, str) else ""
    return int(text) if len(text) <= DIGITS and _WHOLE.match(text) else None


def shown(value: object, most: int = SHOWN) -> str:
    """Return a value as an error repeats it: in so many characters, whatever it is."""
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value[: 4 * most].decode("utf-8", "replace")
        text = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    elif isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        text = f"{kind} of {len(value)}"
    else:
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**DIGITS else "a very large number"
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(value: object) -> str:
    """Return the value as `shown` does; a text is in quotes."""
    return repr(shown(value)) if isinstance(value, str) else shown(value)


class Cut(NamedTuple):
    """A value that `prune` left out. ``path``: names of fields, and places in lists of objects."""

    path: tuple[str | int, ...]
    why: str


_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]|-?[0-9][0-9.eE+-]{64,}", re.DOTALL)
# Where all is left out only the balance counts: brackets in a row are one match, and so are objects in
# objects.
_RUNS = re.compile(rb'(?:[\[{](?:"[^"\\\[\]{}]*":)?)+|[\]}]+|' + _STRING, re.DOTALL)
_QUOTE, _OBJECT, _OPENS, _ENDS = ord('"'), ord("{"), b"[{", b"]}"


def prune(data: bytes, depth: int) -> tuple[bytes, list[Cut]]:
    """Return a JSON document without the values in it that are nested too deep, or are numbers of more than
    64 characters: null is in their place. It walks over brackets and strings once, without recursion.

    Args:
        data: the JSON document.
        depth: how many brackets may be open at once.
    """
    out: list[bytes] = []
    cuts: list[Cut] = []
    stack: list[_Level] = []
    at = taken = 0

    def leave_out(begin: int, end: int, why: str) -> None:
        nonlocal at, taken
        out.extend((data[taken:begin], b"null"))
        at = taken = end
        cuts.append(Cut(tuple(level.place() for level in stack), why))

    while match := _TOKEN.search(data, at):
        at, char = match.end(), data[match.start()]
        if char == _QUOTE:
            if stack:
                stack[-1].key = match
        elif char in _OPENS:
            if stack:
                stack[-1].children += 1
            if len(stack) < depth:
                stack.append(_Level(char == _OBJECT))
            else:
                leave_out(match.start(), _end(data, match.start()), f"nested deeper than {depth} levels")
        elif char in _ENDS:
            if stack:
                stack.pop()
        else:
            leave_out(match.start(), at, f"a number of {at - match.start()} characters, at most 64 are read")
    out.append(data[taken:])
    return b"".join(out), cuts


class _Level:
    """An array or object that is open: in an object the last string before a bracket or number is its key."""

    __slots__ = ("children", "key", "named")

    def __init__(self, named: bool) -> None:
        self.named, self.children = named, 0
        self.key: re.Match[bytes] | None = None

    def place(self) -> str | int:
        if not self.named or self.key is None:
            return max(self.children - 1, 0)
        return self.key[0][1:-1].decode("utf-8", "replace")


def _end(data: bytes, begin: int) -> int:
    """Return where the value ends that begins with this bracket."""
    level = 0
    for match in _RUNS.finditer(data, begin):
        char = data[match.start()]
        if char in _OPENS:
            level += match[0].count(b"[") + match[0].count(b"{")
        elif char in _ENDS:
            if match.end() - match.start() >= level:
                return match.start() + level
            level -= match.end() - match.start()
    return len(data)


def _depth(text: str) -> int:
    level = most = 0
    for match in _BRACKET.finditer(text):
        char = text[match.start()]
        if char in "[{":
            level += 1
            most = max(most, level)
        elif char in "]}":
            level -= 1
    return most


def _members(text: str) -> int:
    """As many members as its arrays and objects have, or more."""
    return text.count(",") + text.count("[") + text.count("{")


class _Digits(ValueError):
    """A whole number has so many digits."""


def _whole_of(most: int) -> Callable[[str], int]:
    def read(digits: str) -> int:
        count = len(digits.lstrip("-"))
        if count > most:
            raise _Digits(str(count))
        return int(digits)

    return read


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


# Of a text without, and of one with, that many digits in a row.
_STRICT = (
    json.JSONDecoder(parse_constant=_no_number),
    json.JSONDecoder(parse_constant=_no_number, parse_int=_whole_of(DIGITS)),
)
_PYTHONS = (json.JSONDecoder(), json.JSONDecoder(parse_int=_whole_of(PYTHON_DIGITS)))
