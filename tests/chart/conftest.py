"""One cluster for the tests of the installed chart: it has an audit log of every request, and counts GPUs.

The modules that use it build on each other in their order: the chart is installed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import SPACE, for_kubelets

from deploy.helm.cluster import NAMESPACE, ChartCluster
from deploy.helm.local import LOCAL, POOL, POOL_LABEL
from deploy.kind.stage import scheduler_image
from deploy.local.acquire import Found
from deploy.local.components import Options
from deploy.local.errors import PlaneError
from deploy.local.helm.client import Helm
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER, KUBECTL
from tests.support import given_cluster
from tests.support.audit_log import AuditLog

_LOOKS = (  # at what a cluster shows where a test failed
    ("get", "rlhfjobs,gpupools,jobs,pods", "-A", "-o", "wide"),
    ("describe", "rlhfjobs", "-A"),
    ("get", "leases", "-n", NAMESPACE, "-o", "yaml"),
    ("logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator", "--tail=60", "--prefix"),
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Beside what a test says stands what its cluster shows: the next test changes that."""
    report: Any = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and isinstance(cluster, ChartCluster):
        for look in _LOOKS:
            try:
                found = cluster.kubectl(*look)
            except PlaneError as error:
                found = str(error)
            report.sections.append((f"kubectl {' '.join(look)}", found))
    return report  # type: ignore[return-value]


@pytest.fixture(scope="package")
def audit(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    return AuditLog(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="package")
def chart_plane(
    audit: AuditLog, tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plane]:
    """A plane of its own: the chart is of the whole cluster, and the audit log of these tests alone. Or the
    cluster that EVALSTOP_TEST_KUBECONFIG names, whose audit log nobody can read here."""
    if (path := given_cluster.given()) is not None:
        binaries = {name: found.path for name, found in tools.items()}
        yield given_cluster.GivenCluster(path, tmp_path_factory.mktemp("given"), binaries)
        return
    flags = [
        *audit.flags(),
        # As on clusters that check who may block whose deletion: the `finalizers` rights are for these.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
    ]
    with Plane(tmp_path_factory.mktemp("chart"), Options(flags={APISERVER: flags})) as plane:
        yield plane


@pytest.fixture(scope="package")
def cluster(
    chart_plane: Plane, helm_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChartCluster]:
    """A cluster whose pool has nodes: locally two of two GPUs each. Nothing is installed yet."""
    if given_cluster.given() is not None:
        helm = Helm(helm_program, chart_plane.kubeconfig, tmp_path_factory.mktemp("helm"))
        found = ChartCluster(chart_plane.kubeconfig, chart_plane.binaries[KUBECTL], helm)
        found.kubectl("delete", "namespace", SPACE, "--ignore-not-found", "--wait", timeout_s=180)
        yield found
        return
    with Nodes(chart_plane, count=2, gpus=2, labels={POOL_LABEL: POOL["name"]}):
        yield ChartCluster.of(chart_plane, helm_program)


@pytest.fixture(scope="package")
def values(cluster: ChartCluster) -> dict[str, Any]:
    """Values of the chart for this cluster."""
    if given_cluster.given() is None:
        return LOCAL
    return for_kubelets(scheduler_image(cluster))


@pytest.fixture(scope="package")
def notes(cluster: ChartCluster, values: dict[str, Any]) -> str:
    """The chart is installed: what Helm said. A given cluster may have definitions that no Helm made."""
    return cluster.install(values, *(["--take-ownership"] if given_cluster.given() is not None else []))


@pytest.fixture
def own_plane() -> None:
    """For tests that need the API server's audit log or flags of their own."""
    if given_cluster.given() is not None:
        pytest.skip("needs the API server's audit log, and a flag of its own")
