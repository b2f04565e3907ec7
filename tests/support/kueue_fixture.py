"""Fixtures with the real Kueue, on a control plane of their own: its webhooks see every Job of a cluster.

`kueue` (one per session; `kueue.plane` is its plane), `kueue_nodes` (one node with eight GPUs),
`kueue_namespace` (a fresh one per test).
"""

from collections.abc import Iterator

import pytest

from deploy.local.acquire import Found
from deploy.local.agent.images import python_environment
from deploy.local.components import Options
from deploy.local.kueue.manager import Kueue
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER
from tests.support.agent_fixture import SHELL_IMAGE
from tests.support.audit_log import AuditLog
from tests.support.cluster_report import built
from tests.support.fresh_namespace import fresh_namespace


@pytest.fixture(scope="session")
def kueue_tools(request: pytest.FixtureRequest, tools: dict[str, Found]) -> dict[str, Found]:
    """Kueue's program and manifests; without them the test does not run, and the summary says so."""
    return built(request, "kueue_tools")


@pytest.fixture(scope="session")
def kueue_audit(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    """What service accounts asked of the plane that has Kueue, in this session so far."""
    return AuditLog(tmp_path_factory.mktemp("kueue-audit"))


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
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
