"""JSON merge patches (RFC 7386), computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest merge patch that turns ``old`` into ``new``; empty when they are equal.

    Lists are atomic: a changed list is sent whole. Neither side may hold null (the API server stores none).
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, Mapping) and isinstance(old[key], Mapping):
            if inner := merge_diff(old[key], value):
                patch[key] = inner
        elif type(old[key]) is not type(value) or old[key] != value:
            patch[key] = value
    return patch
