"""A dashboard as a value, and its JSON in Grafana's form (schema version 39, Grafana 10.4 and newer)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Query = tuple[str, str]  # (PromQL, legend)

COLUMNS = 24  # of Grafana's grid
SMALL, HEIGHT, STAT_HEIGHT = 4, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One picture. ``unit``: Grafana's name of it. ``note``: what a reader may ask. ``warn``: of a number,
    from which on it is coloured."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    note: str = ""
    stack: bool = False
    number: bool = False
    warn: float | None = None

    def render(self, number: int, place: Json) -> Json:
        targets = [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(self.queries)
        ]
        steps: list[Json] = [{"color": "text", "value": None}]
        if self.warn is not None:
            steps.append({"color": "orange", "value": self.warn})
        defaults: Json = {"unit": self.unit, "min": 0 if self.unit != "s" else None}
        options: Json
        if self.number:
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"}
        else:
            stacking = {"mode": "normal" if self.stack else "none"}
            fill = 30 if self.stack else 8
            defaults["custom"] = {"lineWidth": 2, "fillOpacity": fill, "stacking": stacking}
            options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        return {
            "id": number,
            "type": "stat" if self.number else "timeseries",
            "title": self.title,
            "description": self.note,
            "datasource": _SOURCE,
            "gridPos": place,
            "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
        }


def stat(title: str, expression: str, *, unit: str = "short", warn: float | None = None) -> Panel:
    """Return a panel that shows one number."""
    return Panel(title, unit, ((expression, ""),), number=True, warn=warn)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def file(self) -> str:
        return f"{self.uid}.json"

    @property
    def panels(self) -> Iterator[Panel]:
        return (panel for row in self.rows for panel in row.panels)

    def text(self) -> str:
        """Return what the file has to be."""
        return json.dumps(self._render(), indent=1) + "\n"

    def _render(self) -> Json:
        source = {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        }
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["evalstop"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [source]},
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[Json]:
        """Yield rows one below the other; in each, numbers side by side first, then pictures, three
        abreast."""
        number, y = 1, 0
        for row in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
            number, y = number + 1, y + 1
            for small in (True, False):
                panels = [panel for panel in row.panels if panel.number is small]
                width, height = (SMALL, STAT_HEIGHT) if small else (COLUMNS // 3, HEIGHT)
                for i, panel in enumerate(panels):
                    per_line = COLUMNS // width
                    place = {
                        "x": i % per_line * width,
                        "y": y + i // per_line * height,
                        "w": width,
                        "h": height,
                    }
                    yield panel.render(number, place)
                    number += 1
                y += -(-len(panels) // (COLUMNS // width)) * height
