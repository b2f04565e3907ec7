"""The extender as its own process under its own identity, and the manifests that install it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from controller.extender.scheduler_config import write
from deploy.local.client import Client
from deploy.local.plane import Plane
from deploy.local.scheduler import EXTENDER_USER, Certificates, Extender

pytestmark = pytest.mark.cluster


def test_the_process_is_ready_tells_that_it_fails_open_and_ends_when_asked(
    plane: Plane, extender_kubeconfig: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    options = Certificates(tmp_path / "pki").options("https://127.0.0.1:1", ignorable=True)
    config.write_text(write(options))
    process = Extender(plane, process="extender-process", config=config).start()
    with urllib.request.urlopen(f"{process.status}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    assert "evalstop_extender_ignorable 1.0" in lines
    assert "evalstop_extender_ready 1.0" in lines
    process.stop()
    (part,) = [p for p in plane.status().processes if p.name == "extender-process"]
    assert part.state != "running"
    assert '"code": 0' in plane.log("extender-process").read_text()


def test_its_identity_may_touch_a_pods_status_and_nothing_else(
    plane: Plane, extender_kubeconfig: Path
) -> None:
    groups = ["system:serviceaccounts", "system:authenticated"]
    client = Client(plane.url, plane.ca, plane.client_cert(EXTENDER_USER, groups))

    def may(verb: str, what: str, subresource: str = "") -> bool:
        resource, _, group = what.partition(".")
        asked = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
        review = client.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            },
        )
        return bool(review["status"]["allowed"])

    assert may("patch", "pods", "status")
    for resource in ("rlhfjobs.evalstop.dev", "gpupools.evalstop.dev", "nodes", "pods"):
        assert may("watch", resource)
        assert not any(may(verb, resource) for verb in ("create", "update", "patch", "delete"))
    assert not may("get", "secrets")


def test_the_manifests_are_accepted_and_grant_no_wildcard(
    kubectl: Callable[..., str], extender_kubeconfig: Path, repository: Path
) -> None:
    folder = repository / "deploy" / "extender"
    told = kubectl("apply", "--dry-run=server", "--validate=strict", "-k", str(folder))
    assert "deployment.apps/evalstop-extender" in told
    assert "deployment.apps/evalstop-scheduler" in told
    for path in folder.glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            for rule in document.get("rules", ()):
                granted = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "*" not in granted
                assert "secrets" not in granted
