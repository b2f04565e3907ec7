"""Fixtures of the tests with hostile tenants: the operator's rig, and users with their rights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_namespace import fresh_namespace
from kubernetes import client
from tenant_users import Tenant

from deploy.local.plane import Plane

sys.path.append(str(Path(__file__).resolve().parents[1] / "operator"))
from fake_kubelet import FakeKubelet, pool_of_its_own
from operator_rig import Rig, install


@pytest.fixture(scope="session")
def installed(plane: Plane) -> Path:
    """CRDs and RBAC are applied: the operator's kubeconfig."""
    return install(plane)


@pytest.fixture
def kubelet(api: client.ApiClient) -> Iterator[FakeKubelet]:
    """Two nodes of two GPUs, labelled for a pool of their own: `kubelet.pool`."""
    with pool_of_its_own(api) as running:
        yield running


@pytest.fixture
def rig(plane: Plane, installed: Path, namespace: str, kubelet: FakeKubelet) -> Rig:
    """The honest neighbour: its namespace, and the operator."""
    return Rig(plane.kubeconfig, installed, namespace, kubelet.pool)


@pytest.fixture
def alice(plane: Plane, installed: Path, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """Role `edit` in a namespace of her own."""
    with fresh_namespace(plane, f"alice-{request.node.name}") as name:
        yield Tenant.editor(plane, "alice", name)


@pytest.fixture
def bob(plane: Plane, rig: Rig) -> Tenant:
    """Rights on RLHFJobs alone, in the honest neighbour's namespace."""
    return Tenant.of_rlhfjobs(plane, "bob", rig.namespace)
