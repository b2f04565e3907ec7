"""Fixture of the node agent's own tests."""

import pytest
from agent_pods import Pods

from deploy.local.nodes import Nodes
from deploy.local.plane import Plane


@pytest.fixture
def pods(plane: Plane, nodes: Nodes, namespace: str) -> Pods:
    """The pods of a fresh namespace, on running nodes."""
    return Pods(plane, namespace)
