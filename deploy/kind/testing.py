"""The cluster tests on kind: the files that run on a local plane, given this cluster's kubeconfig instead.

First the API server's and the operator's tests, with an operator of their own, then the chart's, with the one
that the chart installs. What the first leave is taken away before the second.
"""

from __future__ import annotations

import os
import subprocess
import sys

from deploy.helm.cluster import NAMESPACE, RELEASE, ChartCluster
from deploy.kind import stage as staging
from deploy.local.agent.images import REPOSITORY
from deploy.local.report import Report

VARIABLE = "EVALSTOP_TEST_KUBECONFIG"
WITHOUT_CHART = ("tests/api", "tests/operator", "tests/lease")
WITH_CHART = ("tests/chart/test_chart_installed.py", "tests/chart/test_chart_failover.py")


def run(cluster: ChartCluster, report: Report, more: list[str]) -> int:
    """Run both halves; 0 when both pass. ``more``: arguments for pytest. Errors: PlaneError."""
    remove(cluster, report)
    first = _pytest(cluster, [*WITHOUT_CHART, "-m", "cluster", *more])
    remove(cluster, report)
    second = _pytest(cluster, [*WITH_CHART, *more])
    return first or second


def remove(cluster: ChartCluster, report: Report) -> None:
    """No operator, and no rights of one, however it was installed. Errors: PlaneError."""
    if RELEASE in cluster.helm("list", "--namespace", NAMESPACE, "--short", "--all").split():
        report(f"uninstalling release {RELEASE}, which would act on the tests' jobs")
        cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=120s")
    folder = str(REPOSITORY / "deploy" / "manifests")
    cluster.kubectl("delete", "-k", folder, "--ignore-not-found", "--wait", timeout_s=180)
    staging.remove_pools(cluster)


def _pytest(cluster: ChartCluster, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {**os.environ, VARIABLE: str(cluster.kubeconfig)}
    return subprocess.run(command, cwd=REPOSITORY, env=environment).returncode
