"""Fixtures with the real Helm: `helm` (no cluster), and `helm_program` to run it against one; kubeconform."""

from pathlib import Path

import pytest

from deploy.helm.generate import CHART
from deploy.local.acquire import Found
from deploy.local.helm.client import Helm
from deploy.local.helm.recipe import PROGRAM
from tests.support.cluster_report import built


@pytest.fixture(scope="session")
def helm_tools(request: pytest.FixtureRequest, tools: dict[str, Found]) -> dict[str, Found]:
    """Helm; without it the test does not run, and the summary says so."""
    return built(request, "helm_tools")


@pytest.fixture(scope="session")
def kubeconform_tools(request: pytest.FixtureRequest, tools: dict[str, Found]) -> dict[str, Found]:
    """kubeconform, in the same way."""
    return built(request, "kubeconform_tools")


@pytest.fixture(scope="session")
def helm_program(helm_tools: dict[str, Found]) -> Path:
    """The `helm` binary."""
    return helm_tools[PROGRAM].path


@pytest.fixture(scope="session")
def helm(helm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster: `helm("template", "evalstop", str(chart))`."""
    return Helm(helm_program, None, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def chart() -> Path:
    """The chart's folder."""
    return CHART
