"""Fixtures of the tests that ask the real Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kueue_rig import KueueRig, Story

from deploy.local.kueue.manager import Kueue
from tests.support.fake_kubelet import FakeKubelet, pool_of_its_own
from tests.support.operator_rig import install
from tests.support.store_work import Cluster


@pytest.fixture
def cluster(kueue: Kueue, kueue_namespace: str) -> Cluster:
    """A fresh namespace on the plane that has Kueue."""
    return Cluster(kueue.plane, kueue_namespace)


@pytest.fixture(scope="module")
def operator_kubeconfig(kueue: Kueue) -> Path:
    return install(kueue.plane)


@pytest.fixture
def kubelet(kueue: Kueue) -> Iterator[FakeKubelet]:
    """Two nodes of four GPUs in a pool of their own."""
    with pool_of_its_own(kueue.plane.client(), gpus=4) as running:
        yield running


@pytest.fixture
def told(
    kueue: Kueue, operator_kubeconfig: Path, kueue_namespace: str, kubelet: FakeKubelet
) -> Callable[[Story], None]:
    """Runs a story on a rig of its own, and takes away what it made for the whole cluster."""

    def tell(story: Story) -> None:
        async def whole() -> None:
            rig = KueueRig(kueue.plane.kubeconfig, operator_kubeconfig, kueue_namespace, kubelet.pool)
            async with rig:
                try:
                    await story(rig)
                finally:
                    await rig.clear()
                    await rig.delete_pool(rig.pool_name)

        asyncio.run(whole())

    return tell
