"""Writers of a status's values, made by cattrs of what `controller.policy.stored` declares.

Here stands what cattrs cannot know: our names and forms. Who only reads statuses (`controller.api.codec`)
does not load it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from operator import eq
from typing import Annotated, Any, get_origin

from cattrs import Converter
from cattrs.cols import namedtuple_dict_unstructure_factory
from cattrs.gen import make_dict_unstructure_fn, override

from controller.api import evals, values
from controller.api.declared import STATE, absent, declared, is_record
from controller.policy.stored import Absent, AtMost, Form
from controller.policy.types import Attempt, EvalPoint, LossTrend

Json = dict[str, Any]


def _has_form(hint: Any, form: Form) -> bool:
    return get_origin(hint) is Annotated and form in hint.__metadata__


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


def _overrides(cls: Any, converter: Converter) -> dict[str, Any]:
    """Return what cattrs is told of each field. Hooks are found here: it drops what ``Annotated`` says."""
    names = cls._fields if issubclass(cls, tuple) else [f.name for f in dataclasses.fields(cls)]
    found = dict.fromkeys(names, override(omit=True))
    for f in declared(cls):
        hook: Any = converter.get_unstructure_hook(f.kind.hint)
        if Absent(None) in f.kind.notes:
            hook = partial(_unless_none, hook)
        found[f.name] = override(
            rename=f.name if f.key in ("", STATE) else f.key,
            omit_if_default=False if Form.PACKED in f.kind.notes else None,
            unstruct_hook=hook,
        )
    return found


def _unless_none(hook: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else hook(value)


def _writer(cls: Any, converter: Converter) -> Callable[[Any], Json]:
    named = _overrides(cls, converter)
    if issubclass(cls, tuple):
        fields = namedtuple_dict_unstructure_factory(cls, converter, True, False, **named)
    else:
        fields = make_dict_unstructure_fn(
            cls, converter, _cattrs_omit_if_default=True, _cattrs_use_linecache=False, **named
        )
    inline = [f.name for f in declared(cls) if Form.INLINE in f.kind.notes]
    packed, meanings = _packed(cls), absent(cls)

    def write(value: Any) -> Json:
        out = {key: found for key, found in fields(value).items() if found is not None}
        for name in inline:
            out |= out.pop(name)
        for key, meaning in meanings.items():
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


def _made() -> Converter:
    converter = Converter(unstruct_collection_overrides={tuple: list})
    write = converter.register_unstructure_hook
    converter.register_unstructure_hook_factory(is_record, _writer)
    write(float, values.number)
    write(StrEnum, str)  # else they are taken for the str that they are
    write(Attempt, str)
    write(LossTrend, lambda trend: [values.number(one) for one in trend])
    forms: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
        (partial(eq, tuple[EvalPoint, ...]), lambda points: evals.lines(points) or None),
        (partial(eq, tuple[object, ...]), _same),
        (partial(_has_form, form=Form.TIME), values.timestamp),
        (partial(_has_form, form=Form.FLAG), str),
    )
    for of_it, write_it in forms:
        converter.register_unstructure_hook_func(of_it, write_it)
    converter.register_unstructure_hook_factory(partial(_has_form, form=Form.CUT), _cut)
    return converter


def _same(value: Any) -> Any:
    return value


CONVERTER = _made()
