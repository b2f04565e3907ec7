"""Every object of the chart, for several values, against the schemas of a real API server (kubeconform)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from rendering import Object, render
from test_chart_render import CASES

from deploy.local.acquire import Found
from deploy.local.helm.client import Helm
from deploy.local.kubeconform import schemas
from deploy.local.kubeconform.recipe import PROGRAM
from deploy.local.plane import Plane


@pytest.fixture(scope="module")
def kubeconform(
    request: pytest.FixtureRequest,
    kubeconform_tools: dict[str, Found],
    plane: Plane,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    """kubeconform with this server's schemas, and nowhere else to look."""
    folder = tmp_path_factory.mktemp("schemas")
    assert schemas.write(plane.client().get("/openapi/v2"), folder) > 200
    program = str(kubeconform_tools[PROGRAM].path)
    return [program, "-strict", "-summary", "-output=json", f"-schema-location={folder}/{schemas.LOCATION}"]


def verdict(kubeconform: list[str], objects: list[Object]) -> Object:
    done = subprocess.run(kubeconform, input=yaml.safe_dump_all(objects), capture_output=True, text=True)
    found: Object = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["default", "full", "least"])
def test_every_object_conforms(kubeconform: list[str], helm: Helm, chart: Path, name: str) -> None:
    given, _ = CASES[name]  # without the monitoring kinds, which this server does not serve
    objects = render(helm, chart, given)
    found = verdict(kubeconform, objects)
    assert found.get("resources", []) == []
    assert found["summary"] == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}


def test_what_does_not_conform_is_told(kubeconform: list[str]) -> None:
    wrong = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {
            "replica": 1,
            "selector": {},
            "template": {"spec": {"containers": [{"name": "c", "port": 1}]}},
        },
    }
    found = verdict(kubeconform, [wrong])
    assert found["summary"]["invalid"] == 1
    told = json.dumps(found["resources"])
    assert "additional properties 'replica' not allowed" in told
    assert "additional properties 'port' not allowed" in told
