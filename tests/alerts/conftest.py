"""Prometheus' own programs, from Debian's package; operators as the election's tests start them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.local.acquire import Found
from deploy.local.errors import ToolsMissing
from deploy.local.prometheus.acquire import obtain

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "helm" / "evalstop" / "files" / "alerts.yaml"


@pytest.fixture(scope="session")
def prometheus_tools() -> dict[str, Found]:
    """`prometheus` and `promtool`; where no way leads to them the test does not run, under CI it fails."""
    try:
        return obtain()
    except ToolsMissing as error:
        if os.environ.get("CI", "").strip().lower() in ("true", "1", "yes"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def promtool(prometheus_tools: dict[str, Found]) -> Path:
    return prometheus_tools["promtool"].path


@pytest.fixture(scope="session")
def prometheus(prometheus_tools: dict[str, Found]) -> Path:
    return prometheus_tools["prometheus"].path


@pytest.fixture
def alerts() -> Path:
    """The file of rules that is shipped."""
    return ALERTS
