"""Fields of a status that this version does not know: a newer one wrote them; this one must not write there.

A status is written whole: whoever passes over a field takes it away with the next write. Those who only read
may pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from controller.api.codec import StatusError
from controller.api.crd import root_schema
from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob

Known = Mapping[str, Any]  # field -> the fields inside it; empty: a plain value


def refuse_newer_job(status: Mapping[str, Any] | None) -> None:
    """Look at the status of an RLHFJob that is about to be worked on.

    Raises:
        StatusError: it holds a field that this version does not know; the message has its path.
    """
    _refuse(status, _known(RLHFJob))


def refuse_newer_pool(status: Mapping[str, Any] | None) -> None:
    """Look at the status of a GPUPool that is about to be worked on.

    Raises:
        StatusError: it holds a field that this version does not know; the message has its path.
    """
    _refuse(status, _known(GPUPool))


@cache
def _known(model: type[BaseModel]) -> Known:
    return _fields(root_schema(model)["properties"]["status"])


def _fields(schema: Mapping[str, Any]) -> Known:
    of = schema.get("items", schema)
    return {name: _fields(inner) for name, inner in of.get("properties", {}).items()}


def _refuse(status: Mapping[str, Any] | None, known: Known) -> None:
    path = _stranger(status or {}, known)
    if path is not None:
        raise StatusError(
            f"status{path}: this version of EvalStop has no such field and would take it away with its next "
            "write; install the version that wrote it"
        )


def _stranger(value: Any, known: Known) -> str | None:
    """Return the path, from ``value`` on, of the first field in it that is not known; None: there is none."""
    if isinstance(value, dict):
        for name, inner in value.items():
            inside = known.get(name)
            if inside is None:
                return f".{name}"
            if inside and (deeper := _stranger(inner, inside)) is not None:
                return f".{name}{deeper}"
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if (deeper := _stranger(one, known)) is not None:
                return f"[{index}]{deeper}"
    return None
