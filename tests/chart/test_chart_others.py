"""Objects of the chart whose kinds other projects define, against those projects' own definitions."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from rendering import MONITORING, Object, named, render
from test_chart_render import CERT_MANAGER

from deploy.local.build import Toolchain
from deploy.local.errors import PlaneError, ToolsMissing
from deploy.local.gomodule import Module
from deploy.local.helm.client import Helm
from deploy.local.plane import Plane
from deploy.local.recipe import cache_root
from tests.support import given_cluster

# Kind -> where its definition is.
_PROMETHEUS = Module(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
_CERT_MANAGER = Module(
    "github.com/cert-manager/cert-manager", "v1.19.1", "h1:Txh8L/nLWTDcb7ZnXuXbTe15BxQnLbLirXmbNk0fGgY="
)
_MONITORS = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
DEFINITIONS = {
    "ServiceMonitor": (_PROMETHEUS, _MONITORS.format("servicemonitors")),
    "PrometheusRule": (_PROMETHEUS, _MONITORS.format("prometheusrules")),
    "Certificate": (_CERT_MANAGER, "deploy/crds/cert-manager.io_certificates.yaml"),
}


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Iterator[None]:
    """The cluster serves these kinds, while these tests run."""
    if given_cluster.given() is not None:
        pytest.skip("needs a cluster that may have other projects' definitions for a while")
    toolchain = Toolchain(cache_root())
    try:
        files = [module.fetch(toolchain) / path for module, path in DEFINITIONS.values()]
    except ToolsMissing as error:
        pytest.skip(str(error))
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in files]
    try:
        for file in files:
            plane.kubectl("apply", "--server-side", "-f", str(file))
        plane.established(*names)
        yield
    finally:
        with contextlib.suppress(PlaneError):
            plane.kubectl("delete", "crd", "--ignore-not-found", *names)


def asked(kubectl: Callable[..., str], obj: Object, namespace: str) -> str:
    """What the API server says to an object in that namespace; nothing is stored."""
    moved = copy.deepcopy(obj)
    moved["metadata"]["namespace"] = namespace
    dry = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    return kubectl(*dry, stdin=yaml.safe_dump(moved))


def test_kinds_of_others_are_as_their_definitions_say(
    defined: None, kubectl: Callable[..., str], helm: Helm, chart: Path, namespace: str
) -> None:
    objects = render(helm, chart, apis=MONITORING) + render(helm, chart, CERT_MANAGER)
    found = [o for o in objects if o["kind"] in DEFINITIONS]
    assert {o["kind"] for o in found} == set(DEFINITIONS)
    for obj in found:
        said = asked(kubectl, obj, namespace)
        assert "serverside-applied (server dry run)" in said, f"{obj['kind']}: {said}"


def test_a_module_of_another_hash_is_refused(defined: None) -> None:
    wrong = dataclasses.replace(_CERT_MANAGER, sum="h1:none")
    with pytest.raises(ToolsMissing, match=r"its hash is h1:Txh8L/\S+, pinned is h1:none"):
        wrong.fetch(Toolchain(cache_root()))


def test_what_their_definitions_do_not_know_is_told(
    defined: None, kubectl: Callable[..., str], helm: Helm, chart: Path, namespace: str
) -> None:
    certificate = named(render(helm, chart, CERT_MANAGER), "Certificate", "evalstop-extender")
    certificate["spec"]["dnsName"] = certificate["spec"].pop("dnsNames")
    with pytest.raises(PlaneError, match=r"spec.dnsName: field not declared in schema|unknown field"):
        asked(kubectl, certificate, namespace)
    rule = named(render(helm, chart, apis=MONITORING), "PrometheusRule", "evalstop")
    rule["spec"]["groups"][0]["rules"][0]["for"] = "soon"
    with pytest.raises(PlaneError, match=r"rules\[0\]\.for"):
        asked(kubectl, rule, namespace)
