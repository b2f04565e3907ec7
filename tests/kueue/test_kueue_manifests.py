"""Kueue's manifests, fitted to a manager on loopback."""

import base64
from typing import Any

from deploy.local.kueue import manifests
from deploy.local.kueue.recipe import KUEUE, MODULE, VERSION

SERVICE = {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/convert"}


def hook(name: str, group: str, resource: str) -> dict[str, Any]:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
    return {"name": name, "rules": [rule], "clientConfig": {"service": {**SERVICE, "path": f"/{name}"}}}


def crd(name: str, conversion: dict[str, Any] | None) -> dict[str, Any]:
    spec = {"group": "kueue.x-k8s.io"} | ({} if conversion is None else {"conversion": conversion})
    return {"kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec}


def test_webhooks_go_by_address_and_what_needs_a_deployment_is_left_out() -> None:
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": {"service": SERVICE}}}
    hooks = [
        hook("mjob", "batch", "jobs"),
        hook("mpod", "", "pods"),
        hook("mcronjob", "batch", "cronjobs"),
        hook("mworkload", "kueue.x-k8s.io", "workloads"),
    ]
    given = [
        {"kind": "Namespace", "metadata": {"name": "kueue-system"}},
        crd("plain", None),
        crd("converted", conversion),
        {"kind": "ClusterRole", "metadata": {"name": "kueue-manager-role"}},
        {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "hooks"}, "webhooks": hooks},
        *(
            {"kind": kind, "metadata": {"name": "x"}}
            for kind in ("Deployment", "Service", "APIService", "Secret")
        ),
    ]
    before, webhooks = manifests.fitted(given, "https://127.251.1.1:9443", b"PEM")
    assert [obj["kind"] for obj in before] == [
        "Namespace",
        "CustomResourceDefinition",
        "CustomResourceDefinition",
        "ClusterRole",
    ]
    trusted = base64.b64encode(b"PEM").decode()
    called = before[2]["spec"]["conversion"]["webhook"]["clientConfig"]
    assert called == {"url": "https://127.251.1.1:9443/convert", "caBundle": trusted}
    assert "conversion" not in before[1]["spec"]
    (fitted,) = webhooks
    assert [h["name"] for h in fitted["webhooks"]] == ["mjob", "mworkload"]
    assert fitted["webhooks"][0]["clientConfig"]["url"] == "https://127.251.1.1:9443/mjob"
    assert given[2]["spec"]["conversion"]["webhook"]["clientConfig"] == {"service": SERVICE}  # left as it was


def test_the_recipe_builds_the_pinned_version() -> None:
    assert f"require {MODULE} v{VERSION}" in (KUEUE.folder / "go.mod").read_text()
    assert f"GitVersion=v{VERSION}" in " ".join(KUEUE.flags)
