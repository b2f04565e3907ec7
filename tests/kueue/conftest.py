"""Fixture of the tests that ask the real Kueue."""

import pytest
from store_work import Cluster

from deploy.local.kueue.manager import Kueue


@pytest.fixture
def cluster(kueue: Kueue, kueue_namespace: str) -> Cluster:
    """A fresh namespace on the plane that has Kueue."""
    return Cluster(kueue.plane, kueue_namespace)
