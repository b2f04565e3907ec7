"""Structural schemas of what is stored in a status, from what `controller.policy.stored` declares."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, TypeVar, get_args

from pydantic import WithJsonSchema

from controller.api import markers
from controller.api.declared import Field, Kind, declared, is_record, kind
from controller.policy.stored import AtMost, Form, KeyedBy, Within
from controller.policy.types import Attempt, EvalPoint, LossTrend

Json = dict[str, Any]
T = TypeVar("T")

_WORD: Json = {"maxLength": 63, "type": "string"}
_NUMBER: Json = {"maxLength": 32, "type": "string"}  # a double as text (`controller.api.values.number`)
_TIME: Json = {"maxLength": 40, "type": "string", **markers.TIME}
_FLAG: Json = {"enum": ["True", "False", "Unknown"], "maxLength": 7, "type": "string"}
_OF_THEIR_OWN: dict[Any, Json] = {  # types that `controller.api.codec` writes in a form of their own
    Attempt: _WORD,
    LossTrend: {"items": _NUMBER, "maxItems": len(LossTrend._fields), "type": "array", **markers.ATOMIC},
    EvalPoint: {"maxLength": 512, "type": "string"},
}


def status_of(cls: Any) -> WithJsonSchema:
    """Return what gives a pydantic field the schema of a stored class. Nothing reads a status by pydantic."""
    return WithJsonSchema(structural(cls))


def structural(cls: Any) -> Json:
    """Return the schema of a stored class as the API server enforces it."""
    properties: Json = {}
    required: list[str] = []
    for field in declared(cls):
        if Form.INLINE in field.kind.notes:
            inner = structural(field.kind.type)
            properties |= inner["properties"]
            required += inner.get("required", ())
        elif field.meaning:
            properties[field.key] = {"description": field.meaning, **_of(field)}
            required += [field.key] if field.required else []
    out: Json = {"description": _first_paragraph(cls), "type": "object", "properties": properties}
    return out | ({"required": required} if required else {})


def _of(field: Field) -> Json:
    if Form.PACKED in field.kind.notes:
        return {"maxLength": _bound(field.kind, AtMost).number, "type": "string"}
    found = _schema(field.kind)
    return {key: value for key, value in found.items() if key != "description"}


def _schema(what: Kind) -> Json:
    type_ = what.type
    if type_ in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[type_]
    if is_record(type_):
        return structural(type_)
    if type_ is float:
        return _TIME if Form.TIME in what.notes else _NUMBER
    if type_ is bool:
        return _FLAG if Form.FLAG in what.notes else {"type": "boolean"}
    if type_ is int:
        return _whole(_bound(what, Within))
    if type_ is str:
        return {"maxLength": _bound(what, AtMost).number, "type": "string"}
    if isinstance(type_, type) and issubclass(type_, Enum):
        return _WORD
    keys = [one.field for one in what.notes if isinstance(one, KeyedBy)]
    return {
        "items": _schema(kind(get_args(type_)[0])),
        "maxItems": _bound(what, AtMost).number,
        "type": "array",
        **(markers.list_map(*keys) if keys else markers.ATOMIC),
    }


def _whole(within: Within) -> Json:
    found = {"minimum": within.least, "maximum": within.most, "format": within.format, "type": "integer"}
    return {key: value for key, value in found.items() if value is not None}


def _bound(what: Kind, sort: type[T]) -> T:
    """Return what is said of that sort; the last one, as a field's own bound goes before its type's."""
    found = [one for one in what.notes if isinstance(one, sort)]
    if not found:
        raise TypeError(f"{what.type} is stored, and needs {sort.__name__}(…) in its Annotated[…]")
    return found[-1]


def _first_paragraph(cls: Any) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
