"""The operator's tests: a rig on the session's control plane, and nodes whose pods are played."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet, pool_of_its_own
from kubernetes import client
from operator_rig import Rig, install

from controller import log
from deploy.local.plane import Plane


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
