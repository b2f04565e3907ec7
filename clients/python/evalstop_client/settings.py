"""A trainer's own settings, changed so that its next step does what the operator asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OneStep:
    """Settings that say every how many steps something is done, and are 1 for one step."""

    def __init__(self) -> None:
        self._usual: list[tuple[Any, str, Any]] = []

    def every_step(self, settings: Any, name: str) -> None:
        """Have it done in the next step. ``settings``: a mapping, or an object with attributes."""
        self._usual.append((settings, name, _get(settings, name)))
        _set(settings, name, 1)

    def restore(self) -> None:
        """Put back what was usual."""
        while self._usual:
            _set(*self._usual.pop())


def _get(settings: Any, name: str) -> Any:
    return settings[name] if isinstance(settings, Mapping) else getattr(settings, name)


def _set(settings: Any, name: str, value: Any) -> None:
    if isinstance(settings, Mapping):
        settings[name] = value  # type: ignore[index]
    else:
        setattr(settings, name, value)
