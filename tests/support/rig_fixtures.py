"""Fixtures of tests with an operator: a rig on the session's control plane, nodes whose pods are played.

A folder's conftest.py takes them by ``from tests.support.rig_fixtures import ...``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet, pool_of_its_own
from tests.support.operator_rig import Rig, install

__all__ = ["installed", "kubelet", "rig"]


@pytest.fixture(scope="session")
def installed(plane: Plane) -> Path:
    """CRDs and RBAC are applied: the operator's kubeconfig."""
    return install(plane)


@pytest.fixture
def kubelet(plane: Plane) -> Iterator[FakeKubelet]:
    """Two nodes of two GPUs, labelled for a pool of their own: `kubelet.pool`."""
    with pool_of_its_own(plane.client()) as running:
        yield running


@pytest.fixture
def rig(plane: Plane, installed: Path, namespace: str, kubelet: FakeKubelet) -> Rig:
    """The operator, and a namespace of its own."""
    return Rig(plane.kubeconfig, installed, namespace, kubelet.pool)
