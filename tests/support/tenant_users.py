"""Tenants of a cluster as users of its API server: `alice` may edit her namespace, `bob` only its RLHFJobs.

    alice = Tenant.editor(plane, "alice", namespace)
    alice.create({"apiVersion": "v1", "kind": "ConfigMap", …})
    alice.create(b'{"kind": …', "RLHFJob")   # text that no client would write

What a tenant is refused raises `controller.kube.errors.ApiError` with the server's words and its status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.api import LocalApi
from deploy.local.plane import Plane

Object = dict[str, Any]

_RLHFJOBS = {
    "apiGroups": ["evalstop.dev"],
    "resources": ["rlhfjobs"],
    "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
}
_PLURALS = {
    "Pod": "/api/v1/{}/pods",
    "ConfigMap": "/api/v1/{}/configmaps",
    "Event": "/api/v1/{}/events",
    "Job": "/apis/batch/v1/{}/jobs",
    "RLHFJob": "/apis/evalstop.dev/v1alpha1/{}/rlhfjobs",
    "ResourceClaim": "/apis/resource.k8s.io/v1/{}/resourceclaims",
    "Workload": "/apis/kueue.x-k8s.io/v1beta2/{}/workloads",
    "LocalQueue": "/apis/kueue.x-k8s.io/v1beta2/{}/localqueues",
}


@dataclass(frozen=True)
class Tenant:
    """A user with rights in one namespace. ``kubeconfig``: for kubectl and clients."""

    name: str
    namespace: str
    kubeconfig: Path
    plane: Plane

    @staticmethod
    def editor(plane: Plane, name: str, namespace: str) -> Tenant:
        """Who has role `edit` in the namespace, and by aggregation what EvalStop adds to it."""
        root = Path(__file__).resolve().parents[2]
        plane.kubectl("apply", "-f", str(root / "deploy" / "manifests" / "users.yaml"))
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        return _bound(plane, name, namespace, role)

    @staticmethod
    def of_rlhfjobs(plane: Plane, name: str, namespace: str) -> Tenant:
        """Who has rights on the namespace's RLHFJobs, and no others."""
        admin, role = plane.client(), {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"
        admin.post(path, {"metadata": {"name": name}, "rules": [_RLHFJOBS]})
        return _bound(plane, name, namespace, role)

    def send(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> Object:
        """The server's answer to these very bytes. Raises `ApiError` where it refuses."""
        identity = self.plane.client_cert(self.name, ["system:authenticated"])
        client = LocalApi(self.plane.url, self.plane.ca, identity)
        _, text = client.send(method, path, body, 30.0, content_type)
        try:
            found: Object = json.loads(text)
        except (RecursionError, ValueError):
            return {}  # what was sent was made so that nobody can read it
        return found

    def create(self, obj: Object | bytes, kind: str = "") -> Object:
        """Create an object in the namespace; of bytes the kind must be told."""
        path = _PLURALS[kind or obj["kind"]].format(f"namespaces/{self.namespace}")  # type: ignore[index]
        return self.send("POST", path, obj if isinstance(obj, bytes) else json.dumps(obj).encode())

    def patch(self, kind: str, name: str, patch: Object | bytes) -> Object:
        """A JSON merge patch of an object in the namespace."""
        path = _PLURALS[kind].format(f"namespaces/{self.namespace}") + f"/{name}"
        text = patch if isinstance(patch, bytes) else json.dumps(patch).encode()
        return self.send("PATCH", path, text, "application/merge-patch+json")


def nested(levels: int, inner: bytes = b"1") -> bytes:
    """An object in an object in an object: JSON that recursive readers do not survive."""
    return b'{"a":' * levels + inner + b"}" * levels


def _bound(plane: Plane, name: str, namespace: str, role: Object) -> Tenant:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
    plane.client().post(path, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    return Tenant(name, namespace, plane.kubeconfig_for(name, ["system:authenticated"]), plane)
