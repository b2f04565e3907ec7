"""The chart as Helm renders it, for tests: objects by kind and name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from deploy.local.helm.client import Helm

Object = dict[str, Any]
NAMESPACE = "evalstop-system"
MONITORING = [
    f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")
]
SCHEDULER = {"enabled": True, "image": "scheduler:v1.36.3"}


def values(given: Object) -> str:
    """Values as a file's text for `-f -`; JSON is YAML."""
    return json.dumps(given)


def render(helm: Helm, chart: Path, given: Object | None = None, apis: Iterable[str] = ()) -> list[Object]:
    """Every object of the chart for these values, hooks among them. Errors: PlaneError with Helm's words."""
    more = [f"--api-versions={api}" for api in apis]
    text = helm(
        *("template", "evalstop", str(chart), "--namespace", NAMESPACE, "-f", "-", *more),
        stdin=values(given or {}),
    )
    return [document for document in yaml.safe_load_all(text) if document]


def named(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    found = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind} {name}: {len(found)} in the chart"
    return found[0]


def kinds(objects: Iterable[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def rules(role: Object) -> set[tuple[str, str, str, str]]:
    """A role as a set of (group, resource, resource name or "", verb)."""
    return {
        (group, resource, name, verb)
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }
