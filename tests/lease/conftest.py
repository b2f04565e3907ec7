"""The election's tests: the virtual clock of the scrape loop's tests, the rig and nodes of the operator's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).resolve().parents[1] / neighbour) for neighbour in ("metrics", "operator")]

from fake_kubelet import FakeKubelet, pool_of_its_own
from kubernetes import client
from operator_rig import Rig, install

from deploy.local.plane import Plane


@pytest.fixture(scope="session")
def identity(plane: Plane) -> Path:
    """CRDs and RBAC are applied: the kubeconfig of the operator's own identity."""
    return install(plane)


@pytest.fixture
def kubelet(api: client.ApiClient) -> Iterator[FakeKubelet]:
    """Two nodes of two GPUs, labelled for a pool of their own: `kubelet.pool`."""
    with pool_of_its_own(api) as running:
        yield running


@pytest.fixture
def rig(plane: Plane, identity: Path, namespace: str, kubelet: FakeKubelet) -> Rig:
    return Rig(plane.kubeconfig, identity, namespace, kubelet.pool)
