"""Kueue's tools, for whoever runs a Kueue of its own (tests/kueue has one that its tests share)."""

from __future__ import annotations

import pytest

from deploy.local.acquire import Found
from tests.support.cluster_report import built


@pytest.fixture(scope="session")
def kueue_tools(request: pytest.FixtureRequest, tools: dict[str, Found]) -> dict[str, Found]:
    """Kueue's program and manifests; without them the test does not run, and the summary says so."""
    return built(request, "kueue_tools")
