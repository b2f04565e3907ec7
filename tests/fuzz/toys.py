"""Parsers with faults that the hunt must find, and one without: `python -m tests.fuzz.toys`."""

from __future__ import annotations

import ctypes
import json
import re
import sys

from tests.fuzz.hunt import hunt
from tests.fuzz.target import Target

KEPT: list[bytes] = []


def _raises(data: bytes) -> None:
    if b"[[" in data:
        raise KeyError(data)


def _goes_on(data: bytes) -> None:
    while b"}" in data and data[:1] != b"{":
        pass


def _backtracks(data: bytes) -> None:
    re.match(rb"(?:a|a?)+\Z", data.replace(b"{", b"a") * 30 + b"!")


def _hoards(data: bytes) -> None:
    """Twice what it may at most: to touch a gigabyte takes longer than a second on a busy machine."""
    KEPT.append(b"x" * min(data.count(b"[") << 21, 128 << 20))


def _dies(data: bytes) -> None:
    if data[-1:] != b"}":
        ctypes.string_at(0)


def _swallows(data: bytes) -> None:
    """Its own word is ValueError; that it says it to everything does not hide what is none."""
    try:
        json.loads(data)
    except Exception as error:
        raise ValueError from error


TOYS = tuple(
    Target(read.__name__[1:], read, lambda: (b'{"a": [1]}',), own=(ValueError,), cpu=1.0, memory=64 << 20)
    for read in (_raises, _goes_on, _backtracks, _hoards, _dies, _swallows)
)


def main() -> None:
    found = {}
    for toy in TOYS:  # until the first finding; of the one without a fault there is none
        hunted = hunt(toy, 1.0 if toy.name == "swallows" else 15.0)
        found[toy.name] = [(f.kind, f.data.decode("latin-1")) for f in hunted.findings]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
