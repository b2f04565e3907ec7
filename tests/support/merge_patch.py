"""JSON merge patches (RFC 7386) as an API server applies them, for the API servers of tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
