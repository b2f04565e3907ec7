"""Values of the brain as fields of a status and back, exactly, by what `controller.policy.stored` declares.

cattrs makes one writer and one reader of each class. Here stands what it cannot know: our names and forms.
What equals its default is left out. Fields that nobody declared are passed over.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from operator import eq
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cattrs import BaseValidationError, Converter
from cattrs.cols import namedtuple_dict_structure_factory, namedtuple_dict_unstructure_factory
from cattrs.errors import AttributeValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from controller.api import evals, values
from controller.api.declared import STATE, declared, is_record
from controller.policy.stored import Absent, AtMost, Form
from controller.policy.types import Attempt, EvalPoint, LossTrend

Json = dict[str, Any]
T = TypeVar("T")


_UNREADABLE = (BaseValidationError, KeyError, TypeError, ValueError, AttributeError)


class StatusError(ValueError):
    """A stored status does not read back; the message names the field."""


def encode(value: Any) -> Json:
    """Return a stored dataclass as JSON values.

    Raises:
        ValueError: a rule's state is longer than what a status may hold, or a time is none.
    """
    found: Json = _CONVERTER.unstructure(value)
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
        return _CONVERTER.structure(stored, cls)
    except _UNREADABLE as error:
        raise StatusError(_problem_in(error, path)) from None  # it would print a page for each level


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
def _field_reader(cls: Any, name: str) -> tuple[str, Callable[[Any], Any]]:
    f = next(f for f in declared(cls) if f.name == name)
    hint, default = f.kind.hint, getattr(cls(), name)
    read = _CONVERTER.get_structure_hook(hint)
    return f.key, lambda stored: read(stored[f.key], hint) if stored and f.key in stored else default


class _ElementError(ValueError):
    """The first element of a list that does not read, and why."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index, self.error = index, error


def _problem_in(error: BaseException, path: str) -> str:
    """Return what is wrong with the first field that does not read, and where that is."""
    while isinstance(error, (BaseValidationError, _ElementError)):
        if isinstance(error, _ElementError):
            path, error = f"{path}[{error.index}]", error.error
            continue
        inner = error.exceptions[0]
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                key = next(f.key for f in declared(error.cl) if f.name == note.name)
                path += f".{key}" if key else ""
        error = inner
    return f"{path} is missing" if isinstance(error, KeyError) else f"{path}: {error}"


# --- what cattrs is told ---------------------------------------------------------------------------------


def _has_form(hint: Any, form: Form) -> bool:
    return get_origin(hint) is Annotated and form in hint.__metadata__


def _strict(sort: type) -> Callable[[Any, Any], Any]:
    def read(value: Any, _: Any) -> Any:
        if type(value) is not sort:
            raise ValueError(f"{reprlib.repr(value)} is not of type {sort.__name__}")
        return value

    return read


def _text(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{reprlib.repr(value)} is not of type str")
    return sys.intern(value)  # thousands of records say the same in the same words


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple and get_args(hint)[-1:] == (...,)


def _list(hint: Any, converter: Converter) -> Callable[[Any, Any], tuple[Any, ...]]:
    """Return a reader that ends at the first fault: cattrs makes an error of each, and a tenant can write
    hundreds of thousands of elements into a status."""
    of, *_ = get_args(hint)
    element = converter.get_structure_hook(of)

    def read(stored: Any, _: Any) -> tuple[Any, ...]:
        if type(stored) is not list:
            raise ValueError(f"{reprlib.repr(stored)} is not a list")
        found = []
        for index, one in enumerate(stored):
            try:
                found.append(element(one, of))
            except _UNREADABLE as error:
                raise _ElementError(index, error) from None
        return tuple(found)

    return read


def _cut(hint: Any) -> Callable[[str], str]:
    most = next(one.number for one in hint.__metadata__ if isinstance(one, AtMost))
    return lambda text: text[:most]


def _packed(cls: Any) -> dict[str, int | None]:
    """Return the fields that are stored in one text of JSON, and for one of them how long that may be."""
    return {
        f.name: next((one.number for one in f.kind.notes if isinstance(one, AtMost)), None)
        for f in declared(cls)
        if Form.PACKED in f.kind.notes
    }


def _absent(cls: Any) -> dict[str, Any]:
    return {f.key: one.value for f in declared(cls) for one in f.kind.notes if isinstance(one, Absent)}


def _overrides(cls: Any, converter: Converter, *, writes: bool) -> dict[str, Any]:
    """Return what cattrs is told of each field. Hooks are found here: it drops what ``Annotated`` says.

    ``writes``: those that write; else those that read. A command reads once, and finding both takes longer.
    """
    names = cls._fields if issubclass(cls, tuple) else [f.name for f in dataclasses.fields(cls)]
    found = dict.fromkeys(names, override(omit=True))
    for f in declared(cls):
        hint = f.kind.hint
        hook: Any = converter.get_unstructure_hook(hint) if writes else _when_needed(hint, converter)
        if Absent(None) in f.kind.notes:
            hook = partial(_unless_none, hook)
        found[f.name] = override(
            rename=f.name if f.key in ("", STATE) else f.key,
            omit_if_default=False if Form.PACKED in f.kind.notes else None,
            unstruct_hook=hook if writes else None,
            struct_hook=None if writes else hook,
        )
    return found


def _when_needed(hint: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Return what reads a field; of a record it is made with the first that is read: most statuses have few
    of the thirty."""
    within = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    of = get_args(within)[0] if _is_list(within) else within
    if not is_record(of) or Form.INLINE in getattr(hint, "__metadata__", ()):
        found: Callable[[Any, Any], Any] = converter.get_structure_hook(hint)
        return found
    made: list[Callable[[Any, Any], Any]] = []

    def read(stored: Any, sort: Any) -> Any:
        if not made:
            made.append(converter.get_structure_hook(hint))
        return made[0](stored, sort)

    return read


def _unless_none(hook: Callable[..., Any], value: Any, *of: Any) -> Any:
    return None if value is None else hook(value, *of)


def _writer(cls: Any, converter: Converter) -> Callable[[Any], Json]:
    named = _overrides(cls, converter, writes=True)
    if issubclass(cls, tuple):
        fields = namedtuple_dict_unstructure_factory(cls, converter, True, False, **named)
    else:
        fields = make_dict_unstructure_fn(
            cls, converter, _cattrs_omit_if_default=True, _cattrs_use_linecache=False, **named
        )
    inline = [f.name for f in declared(cls) if Form.INLINE in f.kind.notes]
    packed, absent = _packed(cls), _absent(cls)

    def write(value: Any) -> Json:
        out = {key: found for key, found in fields(value).items() if found is not None}
        for name in inline:
            out |= out.pop(name)
        for key, meaning in absent.items():
            if key in out and out[key] == meaning:
                del out[key]
        if packed:
            _pack(out, packed)
        return out

    return write


def _pack(out: Json, packed: Mapping[str, int | None]) -> None:
    text = values.state_text(**{name: out.pop(name) for name in packed})
    most = max(filter(None, packed.values()))
    if len(text) > most:
        raise ValueError(
            f"rule state of {next(iter(out.values()))!r} is {len(text)} characters of JSON, a status holds "
            f"{most}"
        )
    out[STATE] = text


def _reader(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    named = _overrides(cls, converter, writes=False)
    if issubclass(cls, tuple):
        fields = namedtuple_dict_structure_factory(cls, converter, "from_converter", False, False, **named)
    else:
        fields = make_dict_structure_fn(cls, converter, _cattrs_use_linecache=False, **named)
    inline = [f.name for f in declared(cls) if Form.INLINE in f.kind.notes]
    packed, absent = _packed(cls), _absent(cls)
    if not (inline or packed or absent):
        return fields

    def read(stored: Any, _: Any) -> Any:
        whole = {**absent, **stored, **dict.fromkeys(inline, stored)}
        if packed and STATE in stored:
            whole |= values.state_values(stored[STATE])
        return fields(whole, cls)

    return read


def _made() -> Converter:
    converter = Converter(unstruct_collection_overrides={tuple: list})
    read, write = converter.register_structure_hook, converter.register_unstructure_hook
    converter.register_structure_hook_factory(is_record, _reader)
    converter.register_unstructure_hook_factory(is_record, _writer)
    converter.register_structure_hook_factory(_is_list, _list)
    write(float, values.number)
    read(int, _strict(int))
    read(bool, _strict(bool))
    read(str, _text)
    write(StrEnum, str)  # else they are taken for the str that they are
    read(StrEnum, lambda text, sort: sort(text))
    write(Attempt, str)
    read(Attempt, _reading(Attempt.parse))
    write(LossTrend, lambda trend: [values.number(one) for one in trend])
    read(LossTrend, lambda stored, _: LossTrend(*map(float, stored)))
    forms: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]], ...] = (
        (partial(eq, tuple[EvalPoint, ...]), lambda points: evals.lines(points) or None, evals.points),
        (partial(eq, tuple[object, ...]), _same, _same),
        (partial(_has_form, form=Form.TIME), values.timestamp, values.seconds),
        (partial(_has_form, form=Form.FLAG), str, "True".__eq__),
    )
    for of_it, write_it, read_it in forms:
        converter.register_unstructure_hook_func(of_it, write_it)
        converter.register_structure_hook_func(of_it, _reading(read_it))
    converter.register_unstructure_hook_factory(partial(_has_form, form=Form.CUT), _cut)
    return converter


def _reading(read: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda stored, _: read(stored)


def _same(value: Any) -> Any:
    return value


_CONVERTER = _made()
