"""Hostile input as hypothesis strategies: text that is nearly right, and text that is dear to read."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice

from hypothesis import strategies as st

from tests.fuzz.target import Target

# Each of these has broken some parser of something. As they stand in a text; a number also between quotes.
NUMBERS = (
    *(b"9" * n for n in (17, 18, 19, 65, 309, 4300, 4301)),
    *(
        b"0",
        b"-0",
        b"-1",
        b"1",
        b"00",
        b"1.5",
        b"1e400",
        b"-1e400",
        b"1e-400",
        b"0.1e+1",
        b"9007199254740993",
    ),
    *(b"1e999999999", b"-9223372036854775809", b"18446744073709551616", b"0x10", b"1_000", "٣".encode()),
    *(b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"+Inf"),
)
TEXTS = (
    *(b"", b"\x00", b"\x1b[2J", b"\r", b"\n", b"\\", b"\\u0000", b"\\ud800", b"\\udc80\\ud800", b"\\x"),
    *("\u2028\u202e\u0085\ufeff".encode(), "é".encode() * 40, b"\xed\xa0\x80", b"\xff\xfe", b"\xc3"),
    *(b"..", b"../..", b"/", b"//", b"a/b", b".", b"%00", b"-", b"=", b"{}", b"$(x)", b"<b>&amp;", b"'"),
    *(b"2026-11-23T06:00:00Z", b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:60Z", b"1e3k", b"1Ei", b"null"),
)
VALUES = (
    *(b"null", b"true", b"false", b"[]", b"{}", b"[null]", b"[[]]", b"[{}]", b'{"":""}', b'{"a":1,"a":2}'),
    *(b"[" * n + b"]" * n for n in (150, 199, 200, 201, 1000)),
    *(b'{"a":' * n + b"1" + b"}" * n for n in (150, 200, 1000)),
    *(b"[" * 1000, b'{"a":' * 1000, b'"' + b"x" * 3000 + b'"', b"[" + b"0," * 2000 + b"0]"),
    *(b'"' + text + b'"' for text in TEXTS if b'"' not in text),
    *(b'"' + number + b'"' for number in NUMBERS),
)
WORDS = (*NUMBERS, *TEXTS, *VALUES, b",", b":", b'"', b"{", b"}", b"[", b"]", b"\t", b" ", b"#", b"e", b"E")

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[A-Za-z_][\w.-]*|-?[0-9][0-9.eE+-]*|\s+|.', re.DOTALL)
_CLOSES = {b"{": b"}", b"[": b"]"}

_HANDFUL = 12  # inputs of one example
_EDITS_MOST = 4  # of one seed: after more of them not much is left of it

Edit = tuple[int, int, bytes]  # which, where, what with


def inputs(target: Target, seeds: Sequence[bytes]) -> st.SearchStrategy[list[bytes]]:
    """A handful of inputs of at most `target.most` bytes: mostly seeds with edits, now and then others.

    A handful, because hypothesis takes longer to draw one than most targets to read it: the edits of one
    example are read one after the other, and then some more by a generator that the example gave its seed.
    """
    words = (*WORDS, *target.words, *sorted({t for seed in seeds for t in tokens(seed)[:400]}))
    pieces = st.sampled_from(words) | st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
    edit = st.tuples(st.integers(0, len(_EDITS) - 1), st.integers(0, 1 << 16), pieces)

    def edited(seed: bytes, edits: Sequence[Edit], more: int) -> list[bytes]:
        return list(islice(_edited(seed, seeds, chain(edits, _drawn(words, more)), target.most), _HANDFUL))

    def trap(seed: bytes, where: int, piece: bytes, size: int) -> list[bytes]:
        return [_trap(seed, where, piece, min(size, target.most))]

    numbers, sizes = st.integers(0, 1 << 16), st.sampled_from((64, 1000, 5000, target.most))
    edits = st.builds(edited, st.sampled_from(seeds), st.lists(edit, min_size=1, max_size=4), numbers)
    traps = st.builds(trap, st.sampled_from(seeds), numbers, pieces, sizes)
    anything = st.binary(max_size=200) | st.text(max_size=80).map(str.encode) | json_texts(words)
    of_words = st.lists(pieces, max_size=12).map(b"".join)
    others = st.lists(anything | of_words, min_size=1, max_size=3)
    families = (edits,) * 6 + (traps, others)
    return (
        st.sampled_from(range(len(families)))
        .flatmap(families.__getitem__)
        .map(lambda found: [data[: target.most] for data in found])
    )


def json_texts(words: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """JSON of values that no JSON library would write, with names that a target knows."""
    names = st.sampled_from([w for w in words if w[:1] == b'"' == w[-1:] and len(w) > 1] or [b'""'])
    leaves = st.sampled_from((*NUMBERS, *VALUES)) | names

    def inner(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        members = st.tuples(names, values).map(b":".join)
        return st.lists(values, max_size=3).map(lambda v: b"[" + b",".join(v) + b"]") | st.lists(
            members, max_size=5
        ).map(lambda v: b"{" + b",".join(v) + b"}")

    return st.recursive(leaves, inner, max_leaves=12)


@lru_cache(maxsize=4096)
def tokens(data: bytes) -> tuple[bytes, ...]:
    """Strings, words, numbers, runs of spaces and single characters, in their order."""
    return tuple(_TOKEN.findall(data))


def _edited(seed: bytes, seeds: Sequence[bytes], edits: Iterable[Edit], most: int) -> Iterator[bytes]:
    """A seed with one edit, with two, and so on; after a few it begins again with another seed."""
    data = seed
    for number, (which, where, piece) in enumerate(edits):
        if number and number % _EDITS_MOST == 0:
            data = seeds[where % len(seeds)]
        data = _EDITS[which](data, where, piece)[:most]
        yield data


def _drawn(words: Sequence[bytes], start: int) -> Iterator[Edit]:
    chance = random.Random(start)
    while True:
        yield chance.randrange(len(_EDITS)), chance.randrange(1 << 16), chance.choice(words)


def _trap(data: bytes, where: int, piece: bytes, size: int) -> bytes:
    """A piece over and over in some place: what takes its square in time shows it."""
    at = where % (len(data) + 1)
    times = max(1, (size - len(data)) // max(1, len(piece)))
    return data[:at] + piece * times + data[at:]


def _cut(data: bytes, where: int, piece: bytes) -> bytes:
    return data[: where % (len(data) + 1)]


def _insert(data: bytes, where: int, piece: bytes) -> bytes:
    at = where % (len(data) + 1)
    return data[:at] + piece + data[at:]


def _overwrite(data: bytes, where: int, piece: bytes) -> bytes:
    at = where % (len(data) + 1)
    return data[:at] + piece + data[at + len(piece) :]


def _replace(data: bytes, where: int, piece: bytes) -> bytes:
    """Another token, or for a bracket another value, in its place: what is around it stays right."""
    found = list(tokens(data))
    if not found:
        return piece
    at = where % len(found)
    return b"".join((*found[:at], piece, *found[_end(found, at) :]))


def _leave_out(data: bytes, where: int, piece: bytes) -> bytes:
    found = list(tokens(data))
    at = where % (len(found) or 1)
    return b"".join((*found[:at], *found[_end(found, at) :])) if found else b""


def _repeat(data: bytes, where: int, piece: bytes) -> bytes:
    """A part again: a name that is there twice, a line, an element."""
    found = list(tokens(data))
    at = where % (len(found) or 1)
    end = min(len(found), at + 1 + where % 7)
    return b"".join((*found[:end], *found[at:end], *found[end:]))


def _swap_ends(data: bytes, where: int, piece: bytes) -> bytes:
    at = where % (len(data) + 1)
    return data[at:] + data[:at]


def _end(found: Sequence[bytes], at: int) -> int:
    """After the value that begins with a token."""
    closes = _CLOSES.get(found[at])
    if closes is None:
        return at + 1
    level = 0
    for place in range(at, len(found)):
        level += (found[place] == found[at]) - (found[place] == closes)
        if level == 0:
            return place + 1
    return len(found)


# `_replace` twice and more: it leaves the most of what is around it to be read.
_EDITS: tuple[Callable[[bytes, int, bytes], bytes], ...] = (
    _replace,
    _replace,
    _replace,
    _replace,
    _leave_out,
    _insert,
    _cut,
    _repeat,
    _overwrite,
    _swap_ends,
)
