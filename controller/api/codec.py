"""Values of the brain as fields of a status and back, exactly, by what `controller.policy.stored` declares.

A reader of each class is made here when it is first needed, those that write by cattrs in
`controller.api.encoding`. What equals its default is left out. Fields that nobody declared are passed over.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from controller.api import evals, values
from controller.api.declared import STATE, absent, declared, is_record
from controller.policy.stored import Absent, Form
from controller.policy.types import Attempt, EvalPoint, LossTrend

Json = dict[str, Any]
T = TypeVar("T")
Read = Callable[[Any], Any]

_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


class StatusError(ValueError):
    """A stored status does not read back; the message names the field."""


def encode(value: Any) -> Json:
    """Return a stored dataclass as JSON values.

    Raises:
        ValueError: a rule's state is longer than what a status may hold, or a time is none.
    """
    from controller.api.encoding import CONVERTER

    found: Json = CONVERTER.unstructure(value)
    return found


def decode(cls: type[T], stored: Mapping[str, Any], path: str = "status") -> T:
    """Return the inverse of `encode`.

    Args:
        cls: the stored dataclass.
        stored: JSON values.
        path: where they stand, for the message.

    Raises:
        StatusError: a field is missing or does not read back.
    """
    try:
        read: Any = _reader
        found: T = read(cls)(stored)
    except _UNREADABLE as error:
        raise StatusError(_problem_in(error, path)) from None
    return found


def decode_field(cls: Any, stored: Mapping[str, Any] | None, name: str, path: str = "status") -> Any:
    """Return one field of what `stored` stands for, its default where it has none.

    Raises:
        StatusError: it does not read back.
    """
    key, read = _field_reader(cls, name)
    try:
        return read(stored)
    except _UNREADABLE as error:
        raise StatusError(_problem_in(error, f"{path}.{key}")) from None


@cache
def _field_reader(cls: Any, name: str) -> tuple[str, Read]:
    f = next(f for f in declared(cls) if f.name == name)
    read, default = _read_of(f.kind.type, f.kind.notes), getattr(cls(), name)
    return f.key, lambda stored: read(stored[f.key]) if stored and f.key in stored else default


class _FieldError(ValueError):
    """The first field of an object that does not read, "" where it is the object as a whole, and why."""

    def __init__(self, key: str, error: Exception) -> None:
        super().__init__(key, error)
        self.key, self.error = key, error


class _ElementError(ValueError):
    """The first element of a list that does not read, and why."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index, self.error = index, error


def _problem_in(error: Exception, path: str) -> str:
    """Return what is wrong with the first field that does not read, and where that is."""
    while isinstance(error, (_FieldError, _ElementError)):
        if isinstance(error, _ElementError):
            path += f"[{error.index}]"
        elif error.key:
            path += f".{error.key}"
        error = error.error
    return f"{path} is missing" if isinstance(error, KeyError) else f"{path}: {error}"


# --- readers ---------------------------------------------------------------------------------------------


def _read_of(sort: Any, notes: tuple[Any, ...] = ()) -> Read:
    """Return what reads a value of a type with its notes."""
    if get_origin(sort) is Annotated:
        return _read_of(sort.__origin__, (*notes, *sort.__metadata__))
    if Form.FLAG in notes:
        return "True".__eq__
    if Form.TIME in notes:
        return values.seconds
    if sort == tuple[EvalPoint, ...]:
        return evals.points
    if sort == tuple[object, ...]:
        return _same
    if get_origin(sort) is tuple and get_args(sort)[-1:] == (...,):
        return _list(_read_of(get_args(sort)[0]))
    if sort in _SCALARS:
        return _SCALARS[sort]
    if isinstance(sort, type) and issubclass(sort, StrEnum):
        return sort
    if not is_record(sort):
        raise NotImplementedError(f"{sort!r} is the type of a field, and nothing here reads it")
    return _reader(sort) if Form.INLINE in notes else _when_needed(sort)


def _when_needed(cls: Any) -> Read:
    """Return what reads a record, made with the first that is read: most statuses have few of the thirty."""
    made: list[Read] = []

    def read(stored: Any) -> Any:
        if not made:
            made.append(_reader(cls))
        return made[0](stored)

    return read


def _strict(sort: type) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not sort:
            raise ValueError(f"{reprlib.repr(value)} is not of type {sort.__name__}")
        return value

    return read


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{reprlib.repr(value)} is not of type str")
    return sys.intern(value)  # thousands of records say the same in the same words


def _same(value: Any) -> Any:
    return value


def _list(element: Read) -> Read:
    """Return a reader that ends at the first fault: a tenant can write hundreds of thousands of elements
    into a status."""

    def read(stored: Any) -> tuple[Any, ...]:
        if type(stored) is not list:
            raise ValueError(f"{reprlib.repr(stored)} is not a list")
        found = []
        for index, one in enumerate(stored):
            try:
                found.append(element(one))
            except _UNREADABLE as error:
                raise _ElementError(index, error) from None
        return tuple(found)

    return read


def _unless_none(read: Read) -> Read:
    return lambda stored: None if stored is None else read(stored)


_SCALARS: dict[Any, Read] = {
    int: _strict(int),
    bool: _strict(bool),
    str: _text,
    float: float,
    Attempt: Attempt.parse,
    LossTrend: lambda stored: LossTrend(*map(float, stored)),
}


class _Step(NamedTuple):
    """Reading one field. ``key``: where it stands; ``shown``: what a message calls it."""

    name: str
    key: str
    shown: str
    optional: bool
    read: Read


@cache
def _reader(cls: Any) -> Read:
    """Return what reads a dataclass or a named tuple."""
    steps = _steps(cls)

    def fields(stored: Any) -> Any:
        given = {}
        for name, key, shown, optional, read in steps:
            if optional and key not in stored:
                continue
            try:
                given[name] = read(stored[key])
            except Exception as error:
                raise _FieldError(shown, error) from None
        try:
            return cls(**given)
        except Exception as error:
            raise _FieldError("", error) from None

    inline = [f.name for f in declared(cls) if Form.INLINE in f.kind.notes]
    packed = any(Form.PACKED in f.kind.notes for f in declared(cls))
    meanings = absent(cls)
    if not (inline or packed or meanings):
        return fields

    def read(stored: Any) -> Any:
        whole = {**meanings, **stored, **dict.fromkeys(inline, stored)}
        if packed and STATE in stored:
            whole |= values.state_values(stored[STATE])
        return fields(whole)

    return read


def _steps(cls: Any) -> list[_Step]:
    if issubclass(cls, tuple):
        optional = set(cls._field_defaults)
    else:
        none = dataclasses.MISSING
        optional = {f.name for f in dataclasses.fields(cls) if not f.default is f.default_factory is none}
    found = []
    for f in declared(cls):
        read = _read_of(f.kind.type, f.kind.notes)
        if Absent(None) in f.kind.notes:
            read = _unless_none(read)
        key = f.name if f.key in ("", STATE) else f.key
        found.append(_Step(f.name, key, f.key, f.name in optional, read))
    return found
