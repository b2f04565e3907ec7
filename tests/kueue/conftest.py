"""The real Kueue, on a control plane of its own: its webhooks see every Job of a cluster.

`kueue` (`kueue.plane` is its plane) and `kueue_nodes` (one node with eight GPUs) end with this folder's
tests: idle, they would take their part of a core from all that come after. `kueue_namespace` is one test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kueue_rig import KueueRig, Story

from deploy.local.acquire import Found
from deploy.local.agent.images import python_environment
from deploy.local.components import Options
from deploy.local.kueue.manager import Kueue
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER
from tests.support.agent_fixture import SHELL_IMAGE
from tests.support.audit_log import AuditLog
from tests.support.fake_kubelet import FakeKubelet, pool_of_its_own
from tests.support.fresh_namespace import fresh_namespace
from tests.support.operator_rig import install
from tests.support.store_work import Cluster


@pytest.fixture(scope="package")
def kueue_audit(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    """What service accounts asked of the plane that has Kueue, so far."""
    return AuditLog(tmp_path_factory.mktemp("kueue-audit"))


@pytest.fixture(scope="package")
def kueue(
    kueue_tools: dict[str, Found], kueue_audit: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kueue]:
    """Kueue's manager as its release installs it, on a plane of its own."""
    options = Options(flags={APISERVER: kueue_audit.flags()})
    with (
        Plane(tmp_path_factory.mktemp("kueue"), options) as plane,
        Kueue(plane, tools=kueue_tools) as running,
    ):
        yield running


@pytest.fixture(scope="package")
def kueue_nodes(kueue: Kueue) -> Iterator[Nodes]:
    """Node `node-1` with eight GPUs."""
    images = {SHELL_IMAGE: python_environment(cmd=("sh", "-c", "sleep 3600"))}
    with Nodes(kueue.plane, count=1, gpus=8, images=images) as running:
        yield running


@pytest.fixture
def kueue_namespace(kueue: Kueue, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace in which pods can be created."""
    with fresh_namespace(kueue.plane, request.node.name, deleted=True) as name:
        yield name


@pytest.fixture
def cluster(kueue: Kueue, kueue_namespace: str) -> Cluster:
    """A fresh namespace on the plane that has Kueue."""
    return Cluster(kueue.plane, kueue_namespace)


@pytest.fixture(scope="module")
def operator_kubeconfig(kueue: Kueue) -> Path:
    return install(kueue.plane)


@pytest.fixture
def kubelet(kueue: Kueue) -> Iterator[FakeKubelet]:
    """Two nodes of four GPUs in a pool of their own."""
    with pool_of_its_own(kueue.plane.client(), gpus=4) as running:
        yield running


@pytest.fixture
def told(
    kueue: Kueue, operator_kubeconfig: Path, kueue_namespace: str, kubelet: FakeKubelet
) -> Callable[[Story], None]:
    """Runs a story on a rig of its own, and takes away what it made for the whole cluster."""

    def tell(story: Story) -> None:
        async def whole() -> None:
            rig = KueueRig(kueue.plane.kubeconfig, operator_kubeconfig, kueue_namespace, kubelet.pool)
            async with rig:
                try:
                    await story(rig)
                finally:
                    await rig.clear()
                    await rig.delete_pool(rig.pool_name)

        asyncio.run(whole())

    return tell
