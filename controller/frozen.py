"""`dataclass(frozen=True, slots=True)`, made in less than half of the time that `dataclasses` takes for it.

A command that one waits for, each access Job and each actor's sidecar start with some hundred such classes.
For each of them `dataclasses` compiles six methods one by one, 1 ms in all: that was nearly half of the CPU
of ``evalstop why``. Here ``__init__``, ``__eq__`` and ``__hash__`` are compiled when they are called first,
and the others are the same functions for all classes. Fields, `dataclasses.replace`, `dataclasses.fields`,
matching, comparison, hash and pickle are as there. ``python -m tests.bench dataclasses`` prints both side by
side.

For type checkers it is `dataclasses.dataclass` itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

_Written = tuple[str, dict[str, Any]]  # text of a method, and what its names stand for
_NO_FIELD = re.compile(r"ClassVar|InitVar|KW_ONLY")
_ABSENT: Any = object()  # an argument in whose place the field's factory is called


def _dataclass(*, frozen: bool, slots: bool) -> Callable[[type[Any]], type[Any]]:
    """Return the decorator. Both arguments are to be true: they stand there for who reads and who checks.

    There is no `InitVar`.

    Errors:
        TypeError: one is not.
    """
    if not (frozen and slots):
        raise TypeError("frozen and slots must be True; for others there is dataclasses.dataclass")
    return _made


def _made(cls: type[Any]) -> type[Any]:
    own = vars(cls)
    made = _with_fields(cls)
    methods = {
        "__repr__": _repr,
        "__setattr__": _setattr,
        "__delattr__": _delattr,
        "__getstate__": _getstate,
        "__setstate__": _setstate,
    }
    for name, written in (("__init__", _init), ("__eq__", _eq), ("__hash__", _hash)):
        methods[name] = _compiled_at_first(made, name, written)
    for name, method in methods.items():
        if own.get(name) is None:  # Python sets __hash__ to None beside an __eq__ of one's own
            setattr(made, name, method)
    return made


def _with_fields(cls: type[Any]) -> type[Any]:
    """Return the class with its fields and slots, as `dataclasses` makes them.

    Two things that take it half of the time are spared: it looks three times at each annotation for what is
    no field, and a class without a docstring gets one by way of `inspect.signature`.
    """
    if cls.__doc__ is None:
        cls.__doc__ = f"{cls.__name__}()"
    written: dict[str, Any] = vars(cls).get("__annotations__", {})
    as_dataclasses = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)
    if not written or not all(map(_is_plain, written.values())):
        return as_dataclasses(cls)
    cls.__annotations__ = dict.fromkeys(written, object)
    made = as_dataclasses(cls)
    made.__annotations__ = written
    for one in dataclasses.fields(made):
        if one.type is object and one.name in written:
            one.type = written[one.name]
    return made


def _is_plain(annotation: object) -> bool:
    """Return whether an annotation is that of a field: nobody here calls what is none by another name."""
    return type(annotation) is str and _NO_FIELD.search(annotation) is None


def _compiled_at_first(cls: type[Any], name: str, written: Callable[[type[Any]], _Written]) -> Any:
    """Return a method that, when it is called first, puts the compiled one in its own place."""

    def first(self: Any, *given: Any, **named: Any) -> Any:
        text, known = written(cls)
        exec(text, known)
        method = known[name]
        method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        type.__setattr__(cls, name, method)
        return method(self, *given, **named)

    first.__name__ = name
    return first


def _init(cls: type[Any]) -> _Written:
    """Return ``__init__``, which sets slots by their descriptors, past ``__setattr__``."""
    known: dict[str, Any] = {"_ABSENT": _ABSENT}
    head, named, body = ["self"], list[str](), list[str]()
    for at, one in enumerate(dataclasses.fields(cls)):
        known[f"_set{at}"] = getattr(cls, one.name).__set__
        if one.init:
            (named if one.kw_only else head).append(_parameter(one, at, known))
        body.append(f" _set{at}(self, {_value(one, at, known)})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    arguments = ", ".join([*head, *(["*", *named] if named else [])])
    return f"def __init__({arguments}):\n" + "\n".join(body or [" pass"]), known


def _eq(cls: type[Any]) -> _Written:
    mine, others = (_values(who, [f for f in dataclasses.fields(cls) if f.compare]) for who in ("self", "o"))
    text = (
        "def __eq__(self, o):\n if self is o:\n  return True\n"
        f" return {mine} == {others} if o.__class__ is self.__class__ else NotImplemented"
    )
    return text, {}


def _hash(cls: type[Any]) -> _Written:
    hashed = [f for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash({_values('self', hashed)})", {}


def _values(who: str, fields: Iterable[Field[Any]]) -> str:
    return "(" + "".join(f"{who}.{one.name}," for one in fields) + ")"


def _parameter(one: Field[Any], at: int, known: dict[str, Any]) -> str:
    if one.default is not MISSING:
        known[f"_default{at}"] = one.default
        return f"{one.name}=_default{at}"
    return f"{one.name}=_ABSENT" if one.default_factory is not MISSING else one.name


def _value(one: Field[Any], at: int, known: dict[str, Any]) -> str:
    """Return the expression of what a field is set to."""
    if one.default_factory is not MISSING:
        known[f"_make{at}"] = one.default_factory
        return f"_make{at}() if {one.name} is _ABSENT else {one.name}" if one.init else f"_make{at}()"
    if not one.init:
        known[f"_default{at}"] = one.default
        return f"_default{at}"
    return one.name


# -- the same for all --------------------


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _setattr(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


if not TYPE_CHECKING:
    dataclass = _dataclass
