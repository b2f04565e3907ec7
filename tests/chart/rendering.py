"""The chart as Helm renders it, for tests: objects by kind and name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.local.helm.client import Helm

Object = dict[str, Any]
NAMESPACE = "evalstop-system"
MONITORING = [f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PrometheusRule")]
API_SERVER = ["10.96.0.1/32", "192.0.2.10/32"]
SCHEDULER = {"enabled": True, "image": "scheduler:v1.36.3"}


def values(given: Object) -> str:
    """Values as a file's text for `-f -` (JSON is YAML), with the API server's addresses: `helm template`
    asks no cluster for them."""
    network = {"apiServerAddresses": API_SERVER, **given.get("networkPolicy", {})}
    return json.dumps({**given, "networkPolicy": network})


def render(helm: Helm, chart: Path, given: Object | None = None, apis: Iterable[str] = ()) -> list[Object]:
    """Every object of the chart for these values, hooks among them. Errors: PlaneError with Helm's words."""
    text = _rendered(helm, chart, values(given or {}), tuple(apis))
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _rendered(helm: Helm, chart: Path, given: str, apis: tuple[str, ...]) -> str:
    """Return what Helm prints: many tests look at the same, and each call takes half a second."""
    more = [f"--api-versions={api}" for api in apis]
    return helm("template", "evalstop", str(chart), "--namespace", NAMESPACE, "-f", "-", *more, stdin=given)


def named(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    found = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind} {name}: {len(found)} in the chart"
    return found[0]


def kinds(objects: Iterable[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def rules(role: Object) -> set[tuple[str, str, str, str]]:
    """A role as a set of (group, resource or path, resource name or "", verb)."""
    paths = {
        ("", path, "", verb)
        for rule in role.get("rules") or ()
        for path in rule.get("nonResourceURLs") or ()
        for verb in rule["verbs"]
    }
    return paths | {
        (group, resource, name, verb)
        for rule in role.get("rules") or ()
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }
