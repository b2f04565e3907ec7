"""The operator's tests: a rig on the session's control plane, and nodes whose pods are played."""

import contextlib
import logging
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet
from kubernetes import client
from operator_rig import Rig

from controller.operator import log
from deploy.local.plane import Plane

OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"


@pytest.fixture(scope="session")
def installed(plane: Plane, kubectl_session: Callable[..., str]) -> Path:
    """CRDs and RBAC are applied. Returns the kubeconfig of the operator's own identity, so that every test
    proves its rights, too."""
    root = Path(__file__).resolve().parents[2]
    kubectl_session("apply", "-f", str(root / "crds"))
    for name in ("namespace.yaml", "rbac.yaml", "priorityclass.yaml"):
        kubectl_session("apply", "-f", str(root / "deploy" / "manifests" / name))
    kubectl_session(
        "wait", "--for=condition=Established", "crd", "rlhfjobs.evalstop.dev", "gpupools.evalstop.dev"
    )
    return plane.kubeconfig_for(OPERATOR, ["system:serviceaccounts", "system:authenticated"])


@pytest.fixture(scope="session")
def kubectl_session(plane: Plane) -> Callable[..., str]:
    return plane.kubectl


@pytest.fixture
def kubelet(api: client.ApiClient) -> Iterator[FakeKubelet]:
    """Two nodes of two GPUs, labelled for a pool of their own: `kubelet.pool`."""
    pool = f"p-{secrets.token_hex(3)}"
    with FakeKubelet(api, [f"{pool}-a", f"{pool}-b"], {"pool": pool}) as running:
        yield running
        with contextlib.suppress(client.ApiException):
            client.CustomObjectsApi(api).delete_cluster_custom_object(
                "evalstop.dev", "v1alpha1", "gpupools", pool
            )


@pytest.fixture
def rig(plane: Plane, installed: Path, namespace: str, kubelet: FakeKubelet) -> Rig:
    return Rig(plane.kubeconfig, installed, namespace, kubelet.pool)


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """The operator's log as a person reads it, in what pytest shows of a failed test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log.configure("INFO", "console", sys.stderr)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
