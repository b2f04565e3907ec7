"""The plane behaves as a normal cluster: RBAC, NodeRestriction, service accounts, anonymous requests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_helpers import until

from controller.kube.errors import ApiError
from deploy.local.api import LocalApi
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane


def test_versions_are_the_pinned_ones(plane: Plane) -> None:
    from deploy.local.versions import KUBERNETES

    assert plane.client().get("/version")["gitVersion"] == f"v{KUBERNETES}"


def test_pod_gets_the_default_service_account_and_its_token_volume(plane: Plane, namespace: str) -> None:
    spec = plane.client().post(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
    )["spec"]
    assert spec["serviceAccountName"] == "default"
    mounted = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert mounted == ["/var/run/secrets/kubernetes.io/serviceaccount"]


def test_rbac_denies_who_was_granted_nothing(
    plane: Plane, kubectl: Callable[..., str], namespace: str
) -> None:
    nobody = plane.kubeconfig_for("alice", ["staff"])
    with pytest.raises(PlaneError, match=r'Forbidden.*User "alice" cannot list resource "pods"'):
        kubectl("get", "pods", "-n", namespace, kubeconfig=nobody)
    kubectl("create", "rolebinding", "staff", "--clusterrole=view", "--group=staff", "-n", namespace)
    # The API server decides by its own copy of the bindings, which hears of a new one a little later.
    until(lambda: allowed(kubectl, "get", "pods", "-n", namespace, kubeconfig=nobody))
    assert kubectl("get", "pods", "-n", namespace, "-o", "name", kubeconfig=nobody) == ""


def allowed(kubectl: Callable[..., str], *arguments: str, kubeconfig: Path) -> bool:
    try:
        kubectl(*arguments, kubeconfig=kubeconfig)
    except PlaneError:
        return False
    return True


@pytest.fixture
def node_identity(plane: Plane) -> Iterator[LocalApi]:
    """A client that is the node agent of restricted-a; that node and restricted-b exist."""
    admin = plane.client()
    for name in ("restricted-a", "restricted-b"):
        admin.post("/api/v1/nodes", {"metadata": {"name": name}})
    yield LocalApi(plane.url, plane.ca, plane.client_cert("system:node:restricted-a", ["system:nodes"]))
    for name in ("restricted-a", "restricted-b"):
        admin.delete(f"/api/v1/nodes/{name}")


def test_node_may_report_its_own_status_only(node_identity: LocalApi) -> None:
    # Not the whole node: the controllers write a new one, too.
    port = {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}
    answer = node_identity.patch("/api/v1/nodes/restricted-a/status", port)
    assert answer["status"]["daemonEndpoints"] == port["status"]["daemonEndpoints"]
    with pytest.raises(
        ApiError, match='node "restricted-a" is not allowed to modify node "restricted-b"'
    ) as no:
        node_identity.patch("/api/v1/nodes/restricted-b/status", port)
    assert no.value.status == 403


def test_node_may_not_taint_itself(node_identity: LocalApi, plane: Plane) -> None:
    own = plane.client().get("/api/v1/nodes/restricted-a")
    del own["metadata"]["resourceVersion"]
    own["spec"]["taints"] = [{"key": "evalstop.dev/pool", "value": "x", "effect": "NoSchedule"}]
    with pytest.raises(ApiError, match="not allowed to modify taints"):
        node_identity.request("PUT", "/api/v1/nodes/restricted-a", own, 10)


@pytest.mark.parametrize(
    ("path", "status"), [("/readyz", 200), ("/livez", 200), ("/version", 401), ("/api", 401)]
)
def test_without_credentials_only_health_answers(plane: Plane, path: str, status: int) -> None:
    stranger = LocalApi(plane.url, plane.ca, None)
    if status == 200:
        assert stranger.get(path) == "ok"
    else:
        with pytest.raises(ApiError) as refused:
            stranger.get(path)
        assert refused.value.status == status


def test_validating_admission_policies_are_served(plane: Plane) -> None:
    served = plane.client().get("/apis/admissionregistration.k8s.io/v1")["resources"]
    assert "validatingadmissionpolicies" in {resource["name"] for resource in served}


def test_etcd_serves_nobody_without_its_own_certificates(plane: Plane) -> None:
    endpoint = next(
        word.split("=", 1)[1]
        for word in Path(f"/proc/{etcd_pid(plane)}/cmdline").read_text().split("\0")
        if word.startswith("--listen-client-urls=")
    )
    with pytest.raises(ApiError):
        LocalApi(endpoint, None, None).get("/version")
    with pytest.raises(ApiError):  # the cluster's own CA is not etcd's
        LocalApi(endpoint, None, plane.client_cert("mallory", ["system:masters"])).get("/version")


def etcd_pid(plane: Plane) -> int:
    return next(part.pid for part in plane.status().processes if part.name == "etcd" and part.pid)
