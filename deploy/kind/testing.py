"""The cluster tests on kind: the files that run on a local plane, given this cluster's kubeconfig instead.

First the API server's and the operator's tests, with an operator of their own, then the chart's, with the one
that the chart installs. What the first leave is taken away before the second. Of these some run a trainer's
image that is made here: it has safetensors, and names no user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.helm.cluster import NAMESPACE, RELEASE, ChartCluster
from deploy.images import build
from deploy.images.docker import Docker
from deploy.kind import stage as staging
from deploy.kind.nodes import Kind
from deploy.local.agent.images import REPOSITORY
from deploy.local.report import Report

VARIABLE = "EVALSTOP_TEST_KUBECONFIG"
WITHOUT_CHART = ("tests/api", "tests/operator", "tests/lease")
WITH_CHART = (
    "tests/chart/test_chart_installed.py",
    "tests/chart/test_chart_two_operators.py",
    "tests/chart/test_chart_kubelets.py",
    "tests/chart/test_chart_kubelets_groups.py",
)
ROOT_IMAGE = "evalstop/test-root-trainer:0.1.0"
_ROOT_FOLDER = REPOSITORY / "tests" / "chart" / "root_image"


def run(kind: Kind, cluster: ChartCluster, report: Report, more: list[str], keep: bool = False) -> int:
    """Run both halves; 0 when both pass. Errors: PlaneError.

    Args:
        kind: what the cluster was made by.
        cluster: with EvalStop's images on its nodes.
        report: called with each line on the progress.
        more: arguments for pytest.
        keep: whether the nodes have the image of these tests already.
    """
    if not keep:
        report("building the image of a trainer that runs as root …")
        kind.load(root_image(build.OUT / "root-trainer.tar", os.environ))
    remove(cluster, report)
    first = _pytest(cluster, [*WITHOUT_CHART, "-m", "cluster", *more])
    remove(cluster, report)
    second = _pytest(cluster, [*WITH_CHART, *more])
    return first or second


def root_image(archive: Path, environ: Mapping[str, str]) -> Path:
    """Return the archive, written, of the image that these tests' trainers run. Errors: PlaneError."""
    docker = Docker(environ)
    _, builder, _ = build.wanted({**environ, "TRIAL": "1"})
    named = docker.tag(docker.resolve(builder), "evalstop/build-base:tests")
    with tempfile.TemporaryDirectory(prefix="evalstop-root-image-") as context:
        shutil.copytree(_ROOT_FOLDER, context, dirs_exist_ok=True)
        client = REPOSITORY / "clients" / "python" / "evalstop_client"
        shutil.copytree(client, Path(context) / client.name)
        built = docker.build(_ROOT_FOLDER / "Dockerfile", Path(context), named)
    try:
        docker.save(docker.tag(built, ROOT_IMAGE), archive)
    finally:
        docker.remove(built)
    return archive


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
