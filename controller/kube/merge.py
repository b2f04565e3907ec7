"""JSON merge patches (RFC 7386), computed and applied."""

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


def merge_apply(old: Any, patch: Any) -> Any:
    """Return what the API server makes of ``old`` under ``patch``."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_apply(result.get(key), value)
    return result
