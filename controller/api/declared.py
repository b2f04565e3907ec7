"""Declarations of a stored class (`controller.policy.stored`), field by field."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from controller.api import values
from controller.policy.stored import Absent, Form, Name

STATE = "state"  # the field that holds all that is `Form.PACKED`


class Kind(NamedTuple):
    """A type, without None, and its notes: bounds, forms, its meaning."""

    type: Any
    notes: tuple[Any, ...]

    @property
    def hint(self) -> Any:
        """The same as an annotation."""
        annotated: Any = Annotated
        return annotated[(self.type, *self.notes)]


class Field(NamedTuple):
    """A declared field.

    Attributes:
        key: its name in the status; "": it has none (`Form.INLINE`).
        required: it is in every status that has the object.
    """

    name: str
    key: str
    kind: Kind
    required: bool

    @property
    def meaning(self) -> str:
        """Return what it means to users; "": it is part of another field."""
        return next((one for one in self.kind.notes if isinstance(one, str)), "")


def kind(hint: Any) -> Kind:
    """Return what a type hint says."""
    notes: tuple[Any, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            hint, notes = hint.__origin__, (*notes, *hint.__metadata__)
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = (one for one in get_args(hint) if one is not NoneType)
        else:
            return Kind(hint, notes)


@cache
def declared(cls: Any) -> tuple[Field, ...]:
    """Return the fields of a stored dataclass or named tuple, but those that are `Form.NOT_STORED`."""
    hints = _hints(cls)
    if is_record(cls) and issubclass(cls, tuple):
        defaults, hints = set(cls._field_defaults), {name: hints[name] for name in cls._fields}
    else:
        fields = dataclasses.fields(cls)
        defaults = {f.name for f in fields if not f.default is f.default_factory is dataclasses.MISSING}
    found = []
    for name, hint in hints.items():
        what = kind(hint)
        if Form.NOT_STORED not in what.notes:
            absent = any(isinstance(one, Absent) for one in what.notes)
            required = name not in defaults and not absent
            found.append(Field(name, _key(name, what.notes), what, required))
    return tuple(found)


def _hints(cls: Any) -> dict[str, Any]:
    """Return what `typing.get_type_hints` does with ``include_extras`` for a class whose module postpones its
    annotations: all of a class are compiled at once, which takes a third of the time."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        written = getattr(base, "__annotations__", None) or {}
        # typing.NamedTuple wraps them.
        texts = [getattr(one, "__forward_arg__", one) for one in written.values()]
        if not all(type(text) is str for text in texts):
            return get_type_hints(cls, include_extras=True)
        if texts:
            known = vars(sys.modules[base.__module__])
            found |= zip(written, eval(f"({', '.join(texts)},)", known, dict(vars(base))), strict=True)
    return found


def absent(cls: Any) -> dict[str, Any]:
    """Return what it means that a field is not there, by its key, where that is no default of the brain."""
    return {f.key: one.value for f in declared(cls) for one in f.kind.notes if isinstance(one, Absent)}


def is_record(cls: Any) -> bool:
    """Return whether a class has named fields: a dataclass or a named tuple."""
    return dataclasses.is_dataclass(cls) or (isinstance(cls, type) and hasattr(cls, "_field_defaults"))


def _key(name: str, notes: tuple[Any, ...]) -> str:
    if Form.INLINE in notes:
        return ""
    if Form.PACKED in notes:
        return STATE
    if Form.TIME in notes and (name == "at" or name.endswith("_at")):
        name = f"{name.removesuffix('at')}time"
    return next((one.text for one in notes if isinstance(one, Name)), values.camel(name))
