"""Read a pickle without running it and without torch: every object in it becomes an inert one.

Metadata of torch's distributed checkpoints is a pickle. A pickle can name any function to be called; here no
name is ever resolved, all of them stand for `Inert`, which only holds what it was given.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from controller.bounded import shown


class PickleProblem(Exception):
    """The bytes are no whole pickle."""


class Inert:
    """An object of a pickle as its name, arguments and state; never the object itself."""

    __slots__ = ("arguments", "items", "name", "state")
    name: str

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: list[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.extend((item,))

    def extend(self, items: Any) -> None:
        if self.items is None:
            self.items = []
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.items is None:
            self.items = []
        self.items.append((key, value))

    def __call__(self, *arguments: Any) -> Inert:
        return Inert(self.name, arguments)


class _Named(type):
    """A class for each name, so that the pickle's own opcodes may call it or make objects of it."""

    def __call__(cls, *arguments: Any, **more: Any) -> Inert:
        return Inert(cls.__name__, arguments)


def _named(module: str, name: str) -> type:
    def new(cls: type, *arguments: Any, **more: Any) -> Inert:
        return Inert(cls.__name__, arguments)

    return _Named(f"{module}.{name}", (), {"__new__": new})


class _Reader(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._names: dict[tuple[str, str], type] = {}

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self._names:
            self._names[key] = _named(module, name)
        return self._names[key]

    def persistent_load(self, identity: Any) -> Any:
        return Inert("persistent", (identity,))


def load(data: bytes) -> Any:
    """Return the content of a pickle. Its size must have been bounded by the caller.

    Raises:
        PickleProblem: it is cut off, or no pickle.
    """
    try:
        _check_memo(data)
        return _Reader(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        RecursionError,
        OverflowError,
        MemoryError,
        UnicodeDecodeError,
    ) as error:
        raise PickleProblem(f"{type(error).__name__}: {error}") from error


def _check_memo(data: bytes) -> None:
    """Refuse a pickle that numbers what it remembers otherwise than one by one.

    Python's reader keeps what is remembered in an array as long as the largest number, so that seven bytes
    could take gigabytes. Raises: PickleProblem; whatever `pickletools` raises for what is no pickle.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data), start=1):
        if opcode.name in _PUTS and argument is not None and argument > count:
            raise PickleProblem(f"opcode {count} remembers something as number {shown(argument)}")


_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))

_MEMO = rb"(?:q.|r.{4}|\x94)?"  # what a pickler puts between a text and what follows it
_NUMBER = _MEMO + rb"(?:K(?P<byte>.)|M(?P<short>..)|J(?P<long>.{4}))"
_NUMBER_ALONE = rb"(?:K.|M..|J.{4})"
_NUMBERS = _MEMO + rb"\(?(?P<numbers>" + _NUMBER_ALONE + rb"{1,100000}+)[\x85-\x87t]"  # the ends of tuples
_FLAG = _MEMO + rb"(?P<flag>[\x88\x89])"


def small_number(pieces: Iterator[bytes], key: str) -> int | None:
    """Return the whole number that a dict in a pickle has under a key, found in its bytes as they come by.

    Looks at the opcodes right after the key's text, for pickles too large to be built. None: not found.
    """
    found = _after(pieces, key, _NUMBER)
    if found is None:
        return None
    raw = found["byte"] or found["short"] or found["long"]
    return int.from_bytes(raw, "little", signed=found["long"] is not None)


def highest_number(pieces: Iterator[bytes], key: str) -> int | None:
    """Return the highest of the whole numbers of a tuple that a dict in a pickle has under a key, found as
    `small_number` finds a number."""
    found = _after(pieces, key, _NUMBERS)
    if found is None:
        return None
    numbers = re.finditer(_NUMBER_ALONE, found["numbers"], re.DOTALL)
    return max(int.from_bytes(number[0][1:], "little", signed=number[0][:1] == b"J") for number in numbers)


def flag(pieces: Iterator[bytes], key: str) -> bool | None:
    """Return the truth value that a dict in a pickle has under a key, found as `small_number` finds a
    number."""
    found = _after(pieces, key, _FLAG)
    return None if found is None else found["flag"] == pickle.NEWTRUE


def _after(pieces: Iterator[bytes], key: str, value: bytes) -> re.Match[bytes] | None:
    name = key.encode()
    sized = (
        rb"(?:X"
        + re.escape(len(name).to_bytes(4, "little"))
        + rb"|\x8c"
        + re.escape(bytes([len(name)]))
        + rb")"
    )
    pattern = re.compile(sized + re.escape(name) + value, re.DOTALL)
    rest = b""
    for piece in pieces:
        data = rest + piece
        found = pattern.search(data)
        if found:
            return found
        rest = data[-(len(name) + 32) :]
    return None
