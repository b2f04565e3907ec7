"""A control plane of its own, whose policies these tests take apart, and what their requests are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from policies_scene import Scene

from deploy.local.acquire import Found
from deploy.local.plane import Plane
from tests.support import given_cluster


@pytest.fixture(scope="package")
def guarded(tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """All policies in force, those that a value switches on among them."""
    if given_cluster.given() is not None:
        pytest.skip("takes the cluster's policies apart")
    with Plane(tmp_path_factory.mktemp("policies")) as plane:
        yield Scene.made(plane)
