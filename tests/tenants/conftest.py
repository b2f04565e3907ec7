"""Fixtures of the tests with hostile tenants: the operator's rig, and users with their rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.plane import Plane
from tests.support.fresh_namespace import fresh_namespace
from tests.support.rig_fixtures import Rig, installed, kubelet, rig
from tests.support.tenant_users import Tenant

__all__ = ["installed", "kubelet", "rig"]


@pytest.fixture
def alice(plane: Plane, installed: Path, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """Role `edit` in a namespace of her own."""
    with fresh_namespace(plane, f"alice-{request.node.name}") as name:
        yield Tenant.editor(plane, "alice", name)


@pytest.fixture
def bob(plane: Plane, rig: Rig) -> Tenant:
    """Rights on RLHFJobs alone, in the honest neighbour's namespace."""
    return Tenant.of_rlhfjobs(plane, "bob", rig.namespace)
