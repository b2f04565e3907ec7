"""One number or all file names out of a JSON file of any size, in a few megabytes of memory.

Hugging Face's ``trainer_state.json`` carries the whole log history: 60 MB and more for a long run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from controller.checkpoints.weights import Content

PIECE = 1 << 20  # bytes read at a time
STRING_LIMIT = 8 << 20  # bytes of one JSON string

_WHOLE_STRINGS = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def pieces(content: Content, name: str) -> Iterator[bytes]:
    """Yield a file in pieces, each longer than nothing."""
    size = content.files()[name]
    for start in range(0, size, PIECE):
        yield content.read_range(name, start, min(PIECE, size - start))


def top_number(content: Content, name: str, key: str) -> int | str:
    """Return the whole number under a key of the outermost object, or why there is none: cut off, no such
    key."""
    quoted = rb'"' + re.escape(key.encode()) + rb'"'
    wanted = re.compile(quoted + rb"\s*+:\s*+(-?\d{1,18}+)(?=[\s,}])")
    cut_off = re.compile(quoted + rb"\s*(?::\s*-?\d*)?\Z")
    depth, found, rest, began = 0, None, b"", False
    for piece in pieces(content, name):
        rest += piece
        end = _WHOLE_STRINGS.match(rest).end()  # type: ignore[union-attr]
        if unfinished := cut_off.search(rest, max(0, end - 256), end):  # the piece ends inside the number
            end = unfinished.start()
        ready, rest = rest[:end], rest[end:]
        if len(rest) > STRING_LIMIT:
            return f"{name} holds a text of more than {STRING_LIMIT} bytes"
        depth, found, began, problem = _scan(ready, depth, found, began, wanted, name)
        if problem:
            return problem
    if _WHOLE_STRINGS.match(rest).end() != len(rest):  # type: ignore[union-attr]
        return f"{name} is not whole JSON: the save is not finished"
    depth, found, began, problem = _scan(rest, depth, found, began, wanted, name)
    if problem:
        return problem
    if depth or not began:
        return f"{name} is not whole JSON: the save is not finished"
    return f"{name} has no {key}" if found is None else found


def _scan(
    data: bytes, depth: int, found: int | None, began: bool, wanted: re.Pattern[bytes], name: str
) -> tuple[int, int | None, bool, str | None]:
    """(depth after the data, number found, whether an object began, problem)."""
    at = 0
    for match in () if found is not None else wanted.finditer(data):
        depth += _nesting(data[at : match.start()])
        at = match.start()
        if depth == 1 and found is None:
            found = int(match[1])
    bare = _STRING.sub(b"", data[at:])
    if not began and (first := _STRING.sub(b"", data).lstrip()):
        if not first.startswith(b"{"):
            return depth, found, began, f"{name} holds no JSON object"
        began = True
    depth += _count(bare)
    return depth, found, began, None


def _nesting(data: bytes) -> int:
    return _count(_STRING.sub(b"", data))


def _count(bare: bytes) -> int:
    return bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")


def matches(content: Content, name: str, pattern: re.Pattern[bytes], longest: int = 4096) -> Iterator[bytes]:
    """Yield the first group of each match in a file; a match is at most ``longest`` bytes long."""
    rest = b""
    for piece in pieces(content, name):
        data, end = rest + piece, 0
        for found in pattern.finditer(data):
            end = found.end()
            yield found[1]
        rest = data[max(end, len(data) - longest) :]
