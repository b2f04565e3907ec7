"""Findings of an experiment, in one form for terminal, JSON, CSV and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from math import isfinite
from typing import Any

from controller.frozen import dataclass
from sim.experiments.estimate import Estimate

Value = Estimate | float | int | str | None

NUMERIC_FORMS = frozenset({"share", "seconds", "count", "number", "p"})  # forms of columns that align right


@dataclass(frozen=True, slots=True)
class Column:
    """``form``: text, share (0.12 is 12 %), seconds, number, count or p."""

    key: str
    title: str
    form: str = "share"


@dataclasses.dataclass(slots=True)
class Findings:
    """One experiment's answer.

    ``rows`` are tidy: one for each thing compared, with every figure; ``columns`` says which of them a person
    is shown, and in which order. ``headline`` comes first in the JSON document, by its own keys.
    """

    name: str
    title: str
    setting: Mapping[str, Any]
    columns: tuple[Column, ...]
    rows: list[dict[str, Value]]
    headline: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)  # JSON values that are no figures

    def document(self) -> dict[str, Any]:
        """As JSON values; an `Estimate` is ``{"value", "low", "high"}``, what is not known null."""
        return {
            "experiment": self.name,
            "title": self.title,
            **{key: plain(value) for key, value in self.headline.items()},
            "rows": [{key: plain(value) for key, value in row.items()} for row in self.rows],
            **self.extra,
            "notes": self.notes,
            "setting": self.setting,
        }

    def tidy(self) -> tuple[list[str], list[list[Any]]]:
        """Header and rows of plain values; an estimate makes the columns ``x``, ``x_low``, ``x_high``."""
        header: dict[str, None] = {}
        flat = []
        for row in self.rows:
            cells: dict[str, Any] = {"experiment": self.name}
            for key, value in row.items():
                if isinstance(value, Estimate):
                    cells.update({key: value.value, f"{key}_low": value.low, f"{key}_high": value.high})
                else:
                    cells[key] = value
            header.update(dict.fromkeys(cells))
            flat.append({key: _finite(value) for key, value in cells.items()})
        return list(header), [[row.get(key) for key in header] for row in flat]


def plain(value: Value) -> Any:
    if isinstance(value, Estimate):
        return {"value": _finite(value.value), "low": _finite(value.low), "high": _finite(value.high)}
    return _finite(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
