"""The API on a real API server: CRDs and manifests installed once, requests in a few words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controller.kube.errors import ApiError
from deploy.local.api import LocalApi
from deploy.local.plane import Plane

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

GROUP = "/apis/evalstop.dev/v1alpha1"


def install(plane: Plane) -> None:
    """Apply crds/ and deploy/manifests without the operator's Deployment; wait until served."""
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    plane.established()
    manifests = ROOT / "deploy" / "manifests"
    for name in ("namespace", "rbac", "priorityclass", "users", "admission"):
        plane.kubectl("apply", "-f", str(manifests / f"{name}.yaml"))


def jobs(namespace: str, name: str = "", query: str = "") -> str:
    path = f"{GROUP}/namespaces/{namespace}/rlhfjobs"
    return path + (f"/{name}" if name else "") + (f"?{query}" if query else "")


def refusal(client: LocalApi, method: str, path: str, body: Json) -> str:
    """The server's words when it refuses, "" when it does not."""
    try:
        client.request(method, path, body, 10.0)
    except ApiError as error:
        return str(error)
    return ""


def as_user(plane: Plane, user: str, groups: Iterable[str] = ()) -> LocalApi:
    return LocalApi(plane.url, plane.ca, plane.client_cert(user, groups))


def allow(plane: Plane, namespace: str, user: str, *rules: Json) -> None:
    """A Role of these rules in a namespace, bound to a user."""
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    metadata = {"name": user.replace(":", "-")}
    admin = plane.client()
    admin.post(f"{root}/roles", {"metadata": metadata, "rules": list(rules)})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    admin.post(f"{root}/rolebindings", {"metadata": metadata, "roleRef": reference, "subjects": [subject]})


def rule(group: str, resource: str, *verbs: str, names: Iterable[str] = ()) -> Json:
    found: Json = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return found | ({"resourceNames": list(names)} if names else {})
