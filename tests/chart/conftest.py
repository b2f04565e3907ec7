"""One cluster for the tests of the installed chart: it has an audit log of every request, and counts GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from installed import LOCAL, POOL, AuditLog

from deploy.helm.cluster import Cluster
from deploy.local.components import Options
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER

# Who asked for what: request bodies are not kept. Reads of the API's own description are nobody's right.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    return AuditLog(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def chart_plane(
    helm_program: Path, audit: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plane]:
    """A plane of its own: the chart is of the whole cluster, and the audit log of this test alone."""
    policy = audit.folder / "policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY))
    flags = [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={audit.path}",
        # As on clusters that check who may block whose deletion: the `finalizers` rights are for these.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
    ]
    with Plane(tmp_path_factory.mktemp("chart"), Options(flags={APISERVER: flags})) as plane:
        yield plane


@pytest.fixture(scope="module")
def cluster(chart_plane: Plane, helm_program: Path) -> Iterator[Cluster]:
    """Two nodes of two GPUs; nothing is installed yet."""
    labels = {"evalstop.dev/gpu-pool": POOL["name"]}
    with Nodes(chart_plane, count=2, gpus=2, labels=labels):
        yield Cluster.of(chart_plane, helm_program)


@pytest.fixture(scope="module")
def notes(cluster: Cluster) -> str:
    """The chart is installed: what Helm said."""
    return cluster.install(LOCAL)
