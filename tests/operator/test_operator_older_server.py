"""Kubernetes before 1.36: the pod template of a Job that has run once is fixed until its start time is gone.

The same server with the two feature gates of 1.36 off, and a controller manager that leaves start times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.kube.errors import Refused
from controller.kube.resources import JOBS
from deploy.local.acquire import Found
from deploy.local.components import Options
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fresh_namespace import fresh_namespace
from tests.support.operator_rig import CountingApi, Rig, eventually, install

GATES = {"MutableSchedulingDirectivesForSuspendedJobs": False, "MutablePodResourcesForSuspendedJobs": False}


@pytest.fixture
def older(tools: dict[str, Found], tmp_path: Path) -> Iterator[Plane]:
    with Plane(tmp_path / "older", Options(feature_gates=GATES)) as running:
        yield running


def test_a_stopped_run_is_placed_and_started_again(older: Plane) -> None:
    """Stopped and resumed: the second admission changes the template, for which the start time must go."""

    async def story(rig: Rig) -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator() as engine:
                await eventually(lambda: rig.is_true("run", "Running"), 40, "the run")
                await rig.patch("run", {"spec": {"runState": "Stopped"}})
                await eventually(lambda: rig.is_true("run", "GPUsReleased"), 40, "the stop")
                stopped = await rig.workload("run")
                assert stopped["status"]["startTime"], "this server's controllers leave it"
                with pytest.raises(Refused, match="field is immutable"):
                    await rig.api.merge_patch(JOBS, "run", _another_label(), rig.namespace)
                await rig.patch("run", {"spec": {"runState": "Run"}})
                await eventually(lambda: rig.is_true("run", "Running"), 40, "the run to go on")
                assert isinstance(engine.api, CountingApi)
                assert any(w.endswith(f"/{rig.namespace}/jobs/run/status") for w in engine.api.writes)
            (pod,) = await rig.pods("run")
            assert pod["metadata"]["annotations"]["evalstop.dev/admission"] == "2"

    with fresh_namespace(older, "older") as namespace:
        installed = install(older)
        with FakeKubelet(older.client(), ["older-a"], {"pool": "older"}) as kubelet:
            asyncio.run(story(Rig(older.kubeconfig, installed, namespace, kubelet.pool)))


def _another_label() -> dict[str, Any]:
    return {"spec": {"template": {"metadata": {"labels": {"another": "label"}}}}}
