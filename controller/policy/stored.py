"""Declarations of a status's fields: once each, where the brain has them.

A field is ``name: Annotated[type, "what it means to users", bounds and form …]``. From that alone
`controller.api.schema` makes the definition that the API server enforces, and `controller.api.codec` writes
and reads the field. One that has a default is left out of a status while it has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from controller.names import STEP_MAX

MESSAGE_MAX = 512  # characters
# Metadata of a field that decision logs leave out while it is None: who does not use it sees nothing of it.
WHERE_USED: Mapping[str, bool] = MappingProxyType({"where used": True})


class Name(NamedTuple):
    """The field's name in the status, where it is not its own in camelCase."""

    text: str


class Within(NamedTuple):
    """Bounds of a whole number, and its width."""

    least: int | None
    most: int | None
    format: str


class AtMost(NamedTuple):
    """Bound of a text (characters) or of a list (items)."""

    number: int


class Absent(NamedTuple):
    """Meaning of a status without such a field; for one that has no default in the brain."""

    value: object


class KeyedBy(NamedTuple):
    """The items of a list are told apart by this field."""

    field: str


class Form(Enum):
    TIME = "seconds since 1970, written after RFC 3339"
    CUT = "a text that is cut at its bound"
    FLAG = "true or false, written as in a condition: True or False"
    INLINE = "its fields stand beside those of the object that it is in"
    PACKED = "one line of JSON, field `state`, holds it and all others of the object that are so declared"
    NOT_STORED = "known while the operator runs, and no part of a status"


Count = Annotated[int, Within(0, 2**31 - 1, "int32")]
Step = Annotated[int, Within(0, STEP_MAX, "int64")]
Time = Annotated[float, Form.TIME]
Word = Annotated[str, AtMost(63)]
Message = Annotated[str, AtMost(MESSAGE_MAX), Form.CUT]
NodeName = Annotated[str, AtMost(253)]
Path = Annotated[str, AtMost(1024)]
