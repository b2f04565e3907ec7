"""Fixture `nodes`: two GPU nodes on the session's control plane, started by the first test that asks."""

from collections.abc import Iterator

import pytest

from deploy.local.agent.images import python_environment
from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support import given_cluster

#: A shell with the system's programs; for tests only.
SHELL_IMAGE = "evalstop/test-shell"


@pytest.fixture(scope="session")
def nodes(plane: Plane) -> Iterator[Nodes]:
    """Nodes `node-1` and `node-2` with two GPUs each; restarts back off by 0.5 s, not 10 s."""
    if given_cluster.given() is not None:
        pytest.skip("pods as local processes: a cluster with kubelets of its own runs none")
    images = {SHELL_IMAGE: python_environment(cmd=("sh", "-c", "sleep 3600"))}
    with Nodes(plane, count=2, gpus=2, images=images, restart_backoff_s=0.5) as running:
        yield running
