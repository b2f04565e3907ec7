"""Quotas on the real control plane: what is lent is taken back at a checkpoint, and the borrower goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.kube.resources import GPUPOOLS
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fresh_namespace import fresh_namespace
from tests.support.operator_rig import Rig, eventually, trainer


@pytest.fixture
def owner(plane: Plane, installed: Path, kubelet: FakeKubelet) -> Iterator[Rig]:
    """Whose namespace is guaranteed GPUs."""
    with fresh_namespace(plane, "owner") as name:
        yield Rig(plane.kubeconfig, installed, name, kubelet.pool)


def test_a_guaranteed_gang_takes_its_gpus_back_and_the_borrower_goes_on_from_its_checkpoint(
    rig: Rig, owner: Rig, kubelet: FakeKubelet
) -> None:
    async def quota() -> dict[str, Any]:
        found = await rig.api.get(GPUPOOLS, rig.pool_name)
        (told,) = (found.get("status") or {}).get("quotas") or [{}]
        return {key: told.get(key) for key in ("used", "borrowed", "waiting")}

    async def quota_is(used: int, borrowed: int, waiting: int) -> bool:
        return await quota() == {"used": used, "borrowed": borrowed, "waiting": waiting}

    async def tells(who: Rig, name: str, text: str) -> bool:
        told = await who.condition(name, "Admitted")
        return told is not None and text in told[2]

    async def story() -> None:
        async with rig, owner:
            for one in (rig, owner):
                one.names(["lent", "own"])
            rig.outcome["own"] = ScrapeView(ScrapeOutcome.UNREACHABLE, at=time.time())
            await rig.make_pool(
                allowedNamespaces=[{"name": rig.namespace, "maxPriority": 10}, {"name": owner.namespace}],
                quotas=[{"namespaces": [owner.namespace], "guaranteed": 4}],
            )
            rig.outcome["lent"] = trainer(50, 40)
            # What is idle is lent, to a job that would come first by the policy.
            await rig.make_job("lent", replicas=2, priority=9)
            async with rig.operator():
                await eventually(lambda: rig.is_true("lent", "Running"), what="the borrower to run")
                await eventually(lambda: quota_is(0, 0, 0), what="the quota to be told")
                await owner.make_job("own", replicas=2)
                await eventually(
                    lambda: rig.has_reason("lent", "Admitted", "Preempting"), what="the borrower to give way"
                )
                # The passes of the two jobs and of the pool write one after the other: each is waited for.
                await eventually(
                    lambda: tells(rig, "lent", "GuaranteeReclaimed: goes on to its next checkpoint"),
                    what="the borrower to tell why",
                )
                await eventually(
                    lambda: tells(owner, "own", "fits into the 4 GPUs guaranteed to namespace"),
                    what="the owner's job to tell why it waits",
                )
                await eventually(lambda: quota_is(0, 0, 4), what="the quota to be told")
                pool = await rig.api.get(GPUPOOLS, rig.pool_name)
                held = {(h["source"], h["target"]) for h in pool["status"]["reservations"]}
                assert held == {(f"{rig.namespace}/lent", f"{owner.namespace}/own")}
                assert (await rig.workload("lent"))["spec"]["suspend"] is False, "it goes on until it saved"
                rig.outcome["lent"] = trainer(55, 55)
                await eventually(lambda: owner.is_true("own", "Running"), what="the owner's gang to run")
                await eventually(lambda: quota_is(4, 0, 0), what="the quota to be told")
                record = await rig.record("lent")
                assert (record.preemptions, record.lost) == (1, 0.0)
                kubelet.finish(owner.namespace, "own")

                async def goes_on() -> bool:
                    if (await rig.record("lent")).attempt == 2:
                        rig.outcome["lent"] = trainer(56, 55, resumed=55)
                    return await rig.is_true("lent", "Running")

                await eventually(goes_on, 40, what="the borrower to go on")
            assert (await rig.record("lent")).attempt == 2
            status = (await rig.api.get(GPUPOOLS, rig.pool_name))["status"]
            conditions = {c["type"]: c for c in status["conditions"]}
            assert conditions["GuaranteesFit"]["status"] == "True"

    asyncio.run(story())
