"""The claim of the copies goes while a run trains: its best is pinned on, and no stop is carried out.

Each pin was refused with ClaimMissing, though it needs nothing of that claim, and rotation took the best.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from test_operator_watched import KEY, child, pool, rlhfjob

from controller import names
from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.errors import NotFound, Unavailable
from controller.kube.resources import CLAIMS, GPUPOOLS, JOBS, RLHFJOBS
from controller.operator.reconcile import actions, validation
from controller.operator.state.cluster import ClusterState
from controller.policy.job import AdmissionRecord, Condition, JobRecord
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

RISE = [1.0, 2.0, 3.0]
CHECKPOINTS = {
    "layout": "Plain",
    "location": {"objectStore": {"uri": "s3://work/run"}},
    "retention": {"volumeClaim": {"claimName": "kept", "path": "/"}},
}


async def make_claim(rig: Rig) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "kept", "namespace": rig.namespace}
    await rig.api.create(
        CLAIMS, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    )


async def take_claim(rig: Rig) -> None:
    found = await rig.api.get(CLAIMS, "kept", rig.namespace)
    await rig.api.delete(CLAIMS, "kept", rig.namespace, found["metadata"]["uid"])
    with contextlib.suppress(NotFound):  # its protection may have been taken away meanwhile, and it with that
        await rig.api.merge_patch(CLAIMS, "kept", {"metadata": {"finalizers": None}}, rig.namespace)


def test_pins_go_on_while_the_copies_claim_is_missing_and_the_stop_waits_for_it(
    rig: Rig, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (actions, validation):
        monkeypatch.setattr(module, "NO_LASTS", 1.0)

    async def secured(step: int) -> bool:
        kept = (await rig.record("run")).secured
        return kept is not None and kept.step == step

    async def missing() -> bool:
        return await rig.has_reason("run", "BestCheckpointRetained", "ClaimMissing")

    async def unsaid() -> bool:
        attention = await rig.is_true("run", "NeedsAttention")
        return not attention and await rig.condition("run", "BestCheckpointRetained") is None

    async def copies() -> list[str]:
        jobs, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_OPERATION}=retain")
        return [job["metadata"]["name"] for job in jobs]

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await make_claim(rig)
            await rig.make_job("run", checkpoints=CHECKPOINTS)
            rig.scores["run"] = RISE
            async with rig.operator():
                await eventually(lambda: secured(30), what="the best to be pinned")
                await eventually(unsaid, what="nothing to be said of its claim")
                await take_claim(rig)
                rig.scores["run"] = [*RISE, 4.0]
                await eventually(lambda: secured(40), what="the new best to be pinned all the same")
                await eventually(missing, what="the missing claim to be told")
                await eventually(lambda: rig.has_reason("run", "NeedsAttention", "Unsafe"), what="the mark")
                await make_claim(rig)
                await eventually(unsaid, what="the claim that is back to be noticed")

                await take_claim(rig)
                rig.scores["run"] = [*RISE, 4.0, 5.0]
                await eventually(lambda: secured(50), what="the best to be pinned")
                rig.scores["run"] = [*RISE, 4.0, 5.0, 3.0, 2.0, 1.0]

                async def decided() -> bool:
                    return (await rig.record("run")).decision is not None and await missing()

                await eventually(decided, what="the stop to be decided, and to wait for the claim")
                await asyncio.sleep(1.0)
                decision = (await rig.record("run")).decision
                assert decision is not None
                assert decision.suspended_at is None
                assert await copies() == []
                await make_claim(rig)

                async def copied() -> bool:
                    return any("retain-50" in name for name in await copies())

                await eventually(copied, what="the copy of the right best to be asked for")

    asyncio.run(story())


@pytest.mark.parametrize("known", [True, False], ids=["noted", "noted by an operator that is gone"])
def test_claims_that_cannot_be_read_fail_no_pass_and_what_is_said_stays(known: bool) -> None:
    """Each pass failed before the run's evals were judged, for as long as it lasted."""
    cache, clock, asked = Cache(), SimpleNamespace(now=0.0), list[str]()
    cluster = ClusterState(cache, lambda: clock.now)
    for resource, obj in ((GPUPOOLS, pool()), (JOBS, child()), (RLHFJOBS, rlhfjob())):
        cache.put(resource, obj)

    async def get(resource: Any, name: str, namespace: str) -> Any:
        asked.append(name)
        raise Unavailable(503, "ServiceUnavailable", "away")

    checks = validation.SpecChecks(SimpleNamespace(get=get), cache, cluster)  # type: ignore[arg-type]
    fresh = cluster.load(KEY)
    assert fresh is not None
    said = Condition(
        "BestCheckpointRetained", False, "ClaimMissing", "no claim kept. What helps: make it", 1.8e9
    )
    record = JobRecord(attempt=1, admission=AdmissionRecord(1, ("n1",), 1.8e9), conditions=(said,))
    cache.put(RLHFJOBS, {**rlhfjob(20), "status": convert.status(record, fresh.desired, 0.0)})
    missing = validation.Problem("ClaimMissing", "no claim kept")
    loaded = cluster.load(KEY)
    assert loaded is not None
    if known:
        cluster.note_retention(loaded, missing, 0.0)
        loaded = cluster.load(KEY)
        assert loaded is not None
    for _ in range(2):
        asyncio.run(checks.ensure(loaded))
    assert asked == ["kept"], "again after a minute"
    assert checks.again_in(loaded) == validation.NO_LASTS
    after = cluster.load(KEY)
    assert after is not None
    assert after.observed.no_retention == missing
