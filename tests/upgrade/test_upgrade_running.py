"""An upgrade under a running job, and back: nothing is lost or done twice, nothing unread is touched.

What the version before stored is real (`stored`), its process is not run: the Job is as its code made it, the
definitions and the status as it wrote them. This version's definitions and operator then take over, on a real
control plane.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import stored

from controller.api import convert
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.operator.engine import Engine
from controller.operator.process.leader_election import Unopposed
from controller.operator.process.settings import Settings
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from deploy.local.acquire import Found
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.fresh_namespace import fresh_namespace
from tests.support.operator_rig import OPERATOR, SETTINGS, CountingApi, Object, Rig, eventually, install

pytestmark = pytest.mark.cluster

FALL = [-0.2, -0.3, -0.4, -0.5, -0.6]
SINCE_S = 3600.0  # for how long the recorded run has been running


@pytest.fixture
def plane_before(tools: dict[str, Found], tmp_path: Path) -> Iterator[Plane]:
    """A control plane of its own: its definitions are another version's."""
    with Plane(tmp_path / "before") as running:
        stored.apply(running, stored.definitions())
        manifests = stored.CRDS.parent / "deploy" / "manifests"
        running.kubectl("apply", "-f", str(manifests / "priorityclass.yaml"))
        yield running


class Term(Unopposed):
    """The first term that an election of this version gives."""

    epoch = 1


class Upgraded(Rig):
    """A rig whose operators have been elected, and whose trainer goes on with its recorded evals."""

    def engine(self, settings: Settings | None = None) -> Engine:
        term = Term()
        chosen = settings or SETTINGS
        api = CountingApi(self._connection, about=self.about, permit=term.check)
        return Engine(chosen, self._connection, api, scrape=self._scrape, term=term)

    def evals(self, name: str, scores: list[float]) -> None:
        """The trainer's window: evals after the last one of the record, in the same life of its process."""
        points = tuple(
            EvalPoint(123100 + 100 * i, score, Attempt(stored.ATTEMPT, stored.LIFE))
            for i, score in enumerate(scores, 1)
        )
        self.outcome[name] = ScrapeView(
            ScrapeOutcome.OK,
            at=time.time(),
            metrics_seen=("gold",),
            points=points,
            evals_total=1200 + len(points),
            step=123100 + 100 * len(points),
        )


def test_a_running_job_is_taken_over_judged_and_handed_on_and_a_newer_one_is_left_alone(
    plane_before: Plane,
) -> None:
    async def story(rig: Upgraded, kubelet: FakeKubelet, nodes: list[str]) -> None:
        async with rig:
            rig.names(["upgraded"])
            await rig.make_pool()
            before = await stored.running_job(rig, nodes, time.time() - SINCE_S)
            await eventually(lambda: _running(rig, "upgraded", 2), what="the pods of the version before")
            identities = await _identities(rig, "upgraded")
            pool = await rig.api.get(GPUPOOLS, rig.pool_name)
            assert stored.LATER not in pool["spec"], "the definition before knows the field already"

            install(plane_before)
            await eventually(lambda: _default(rig), what="the stored pool to have the new field's default")
            assert (await rig.job("upgraded"))["status"] == before["status"]

            async with rig.operator() as engine:
                await _is_taken_over(rig, before, identities)
                await _is_stopped_once_and_hands_over(rig, engine, kubelet, before)
            await _a_newer_status_is_left_alone(rig, plane_before)

    nodes = ["upgrade-a", "upgrade-b"]
    operator = plane_before.kubeconfig_for(OPERATOR, ["system:serviceaccounts", "system:authenticated"])
    with (
        fresh_namespace(plane_before, "upgrade") as namespace,
        FakeKubelet(plane_before.client(), nodes, {"pool": "upgrade"}) as kubelet,
    ):
        rig = Upgraded(plane_before.kubeconfig, operator, namespace, kubelet.pool)
        asyncio.run(story(rig, kubelet, nodes))


async def _is_taken_over(rig: Upgraded, before: Object, identities: Object) -> None:
    """Its rule is another version's: what it remembers is told to the new one, and it runs on."""
    rig.evals("upgraded", [])
    await eventually(lambda: rig.has_reason("upgraded", "Running", "Running"), what="the job to be looked at")
    await eventually(lambda: rig.has_reason("upgraded", "MetricsAvailable", "Scraped"), what="its trainer")
    old, new = before["status"], (await rig.job("upgraded"))["status"]
    # The trainer counts its evals itself, and its folder is claimed.
    told = {"conditions", "observedGeneration", "printed", "summary", "evalsInAttempt", "accessSerial"}
    kept = set(old) - told - {"rule", "admission", "run"}
    assert {key: new.get(key) for key in kept} == {key: old[key] for key in kept}
    # kDeclines compares no checkpoints: no reference is named to the trainer any more.
    assert new["run"] == {key: value for key, value in old["run"].items() if key != "referenceStep"}
    # Whose GPUs it got is another namespace's business, and nobody is there any more who had that name. Which
    # nodes its pods are on was not written by the version before.
    changed = {"unboundSince": None, "source": "uid:unknown", "boundNodes": old["admission"]["nodes"]}
    assert {**old["admission"], **changed} == {**new["admission"], "unboundSince": None}
    assert await _identities(rig, "upgraded") == identities
    assert "epoch" not in old
    assert new["epoch"] == Term.epoch
    assert new["rule"]["paramsHash"] != old["rule"]["paramsHash"]
    assert float(new["rule"]["verdict"]["statistic"]) == 0, "32 equal evals, judged anew"


async def _is_stopped_once_and_hands_over(
    rig: Upgraded, engine: Engine, kubelet: FakeKubelet, before: Object
) -> None:
    await rig.make_job("next")
    await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"), what="the next to wait")
    rig.evals("upgraded", FALL[:4])

    async def four_seen() -> bool:
        return (await rig.record("upgraded")).evals[-1].step == 123500

    await eventually(four_seen, what="the new evals to be taken in")
    old, now = convert.record(before["status"]), await rig.record("upgraded")
    assert now.evals[:-4] == old.evals[4:], "the newest 32 are kept"
    assert (now.best, now.decision) == (old.best, None)
    assert now.evals_seen == old.evals_seen + 4
    rig.evals("upgraded", FALL)
    await eventually(lambda: rig.is_true("upgraded", "GPUsReleased"), what="the stop")
    await eventually(lambda: rig.is_true("next", "Running"), what="the next job to run")
    stopped = await rig.record("upgraded")
    assert stopped.decision is not None
    assert (stopped.decision.proposal.best_step, stopped.decision.proposal.step) == (120000, 123600)
    handed = await eventually(lambda: rig.handed_to("upgraded"), what="the hand-over")
    assert handed == f"{rig.namespace}/next"
    assert [copy.step for copy in stopped.retained] == [120000]
    assert (kubelet.store.done("secure"), kubelet.store.done("retain")) == ([], [120000])
    suspended = [w for w in rig.writes(engine) if w.startswith("PATCH") and w.endswith("/jobs/upgraded")]
    assert len(suspended) == 1
    pool = await rig.api.get(GPUPOOLS, rig.pool_name)
    assert (pool["status"]["epoch"], pool["status"]["stops"]["today"]) == (Term.epoch, 1)


async def _a_newer_status_is_left_alone(rig: Upgraded, plane: Plane) -> None:
    """A downgrade: a version after this one wrote a field into a status that this one does not know."""
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/mood"
    patch = json.dumps([{"op": "add", "path": path, "value": {"type": "string"}}])
    plane.kubectl("patch", "crd", "rlhfjobs.evalstop.dev", "--type=json", "-p", patch)

    async def written() -> bool:
        status = {"status": {"mood": "good"}}
        found = await rig.api.merge_patch(RLHFJOBS, "next", status, rig.namespace, subresource="status")
        return "mood" in found["status"]

    await eventually(written, what="the API server to know the new field")
    await rig.make_job("other")
    identities = await _identities(rig, "next")
    newer = await rig.job("next")
    for name in ("next", "other"):
        rig.scores[name] = [1.0, *FALL]
    async with rig.operator() as engine:
        await eventually(lambda: rig.is_true("other", "GPUsReleased"), what="the other job to be stopped")
        assert "\nevalstop_unreadable_jobs 1.0\n" in engine.metrics.text().decode()
        assert [w for w in rig.writes(engine) if "/next" in w] == []
    assert await rig.job("next") == newer
    assert await _identities(rig, "next") == identities


async def _running(rig: Rig, name: str, replicas: int) -> bool:
    phases = [pod["status"].get("phase") for pod in await rig.pods(name)]
    return phases == ["Running"] * replicas


async def _default(rig: Rig) -> bool:
    spec = (await rig.api.get(GPUPOOLS, rig.pool_name))["spec"]
    return bool(spec.get(stored.LATER) == 300)


async def _identities(rig: Rig, name: str) -> Object:
    """What must not change: the Job, whether it is suspended, and its pods with the processes in them."""
    job, pods = await rig.workload(name), await rig.pods(name)
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in pods)
    return {
        "job": job["metadata"]["uid"],
        "suspend": job["spec"]["suspend"],
        "pods": sorted(pod["metadata"]["uid"] for pod in pods),
    }
