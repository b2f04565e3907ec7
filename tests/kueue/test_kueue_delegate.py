"""A pool that delegates to Kueue: the real Kueue queues, the operator answers by nodes, the extender
binds."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from kueue_objects import job
from kueue_rig import QUEUE, KueueRig, Story
from prometheus_client.parser import text_string_to_metric_families

from controller import names
from controller.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    FLAVORS,
    GPUPOOLS,
    JOBS,
    LOCAL_QUEUES,
    WORKLOADS,
)
from controller.policy import decision_log
from controller.policy.codec import dumps
from controller.policy.job import external_queue
from controller.policy.job.record import AdmissionRecord
from deploy.local.kueue.manager import PROCESS, Kueue
from deploy.local.scheduler import Extender, start_pair
from tests.support.audit_log import AuditLog
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import SETTINGS, CountingApi, Object, Recorder, Response, eventually, failure

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]
pytestmark = pytest.mark.cluster


class Pair(NamedTuple):
    """A kube-scheduler, by its name, and the extender that it asks."""

    scheduler: str
    extender: Extender

    async def asked(self) -> float:
        """How often the extender has said which nodes a pod may have."""
        seen = await asyncio.to_thread(self._metrics)
        name, labels = "evalstop_extender_requests_total", {"verb": "filter", "status": "200"}
        families = text_string_to_metric_families(seen)
        return sum(s.value for f in families for s in f.samples if (s.name, s.labels) == (name, labels))

    def _metrics(self) -> str:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.extender.metrics, timeout=20) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def pair(kueue: Kueue, operator_kubeconfig: Path) -> Iterator[Pair]:
    """Both leave with this module."""
    extender, running = start_pair(kueue.plane)
    yield Pair(running.process, extender)
    running.stop()
    extender.stop()


def test_quota_of_eight_three_jobs_of_four(told: Callable[[Story], None], pair: Pair, tmp_path: Path) -> None:
    """The third runs after the first is stopped, on its nodes, and the extender is asked for them; a stopped
    job that is resumed waits for quota like any other."""

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=8)
        await rig.make_kueue_pool(pair.scheduler)
        log = tmp_path / "decisions.jsonl"
        async with rig.operator(replace(SETTINGS, decision_log=str(log))) as engine:
            for name in ("one", "two"):
                await rig.make_job(name, replicas=2)
            for name in ("one", "two"):
                await eventually(lambda name=name: rig.runs(name), what=f"{name} to run")
            await rig.make_job("three", replicas=2)
            assert "insufficient" in (await rig.waits_because("three", "WaitingForQuota")).lower()

            first = await placed_as_planned(rig, "one", pair.scheduler)
            second = await placed_as_planned(rig, "two", pair.scheduler)
            assert not {*first.nodes} & {*second.nodes}
            seen, asked = Recorder(engine), await pair.asked()

            rig.scores["one"] = RISE_AND_FALL[:4]
            await eventually(lambda: rig.is_true("one", "BestCheckpointSecured"))
            rig.scores["one"] = RISE_AND_FALL
            await eventually(lambda: rig.runs("three"), what="the third to run")
            stopped, third = await rig.record("one"), await placed_as_planned(rig, "three", pair.scheduler)
            assert stopped.decision is not None
            assert third.nodes == first.nodes
            assert await pair.asked() >= asked + 2  # nobody else's pods have come meanwhile: once for each
            held_before_admitted_before_answered(rig, seen, "three", third)
            assert await eventually(lambda: rig.handed_to("one")) == f"{rig.namespace}/three"
            assert [k.best_step for k in stopped.retained] == [40]
            found = await rig.kueues("one")
            assert found["spec"]["active"] is False
            assert names.ANNOTATION_SWITCHED_OFF in found["metadata"]["annotations"]
            # Kueue hands the quota on when it is told, and may be at the template still when the third runs.
            await eventually(partial(unmarked, rig, "one"), what="its template to be restored")
            # Started and put out by Kueue alone: the operator has patched no Job but its access Jobs.
            patched = [w for w in rig.writes(engine) if w.startswith("PATCH") and "/jobs/" in w]
            assert not {w.rpartition("/")[2] for w in patched} & {"one", "two", "three"}

            await rig.patch("one", {"spec": {"resume": {"id": "again", "from": "Latest"}}})
            await rig.waits_because("one", "WaitingForQuota")
            await rig.patch("two", {"spec": {"runState": "Stopped"}})
            again = partial(rig.runs, "one", after=stopped.attempt)
            await eventually(again, what="the resumed one to run")
            found = await rig.kueues("one")
            assert names.ANNOTATION_SWITCHED_OFF not in (found["metadata"].get("annotations") or {})
            assert (await rig.run_file("one"))["attempt"] == (await rig.record("one")).attempt
            assert (await rig.reason("two", "Admitted")) == "Stopped"
        lines = log.read_text().splitlines()
        assert all(r.same for r in decision_log.replay(lines))
        offers = [json.loads(line)["decision"]["admissions"] for line in lines if '"kind":"pool"' in line]
        assert all(a["offer"] for admissions in offers for a in admissions)
        assert any(offers), dumps(offers)

    told(story)


async def placed_as_planned(rig: KueueRig, name: str, scheduler: str) -> AdmissionRecord:
    """A job that runs: its pods are where its admission has them, and Kueue was told to start it."""
    record, found = await rig.record(name), await rig.kueues(name)
    assert record.admission is not None
    assert record.admission.offer
    planned, pods = dict(enumerate(record.admission.nodes)), await rig.pods(name)
    assert len(pods) == len(planned)
    for pod in pods:
        number = pod["metadata"]["annotations"][names.ANNOTATION_ADMISSION]
        assert number == str(record.admission.number)
        index = int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
        assert pod["spec"]["nodeName"] == planned[index]
        assert pod["spec"]["schedulerName"] == scheduler
    (podset,) = found["spec"]["podSets"]
    assert names.ANNOTATION_ADMISSION not in json.dumps(podset["template"])
    (state,) = found["status"]["admissionChecks"]
    assert state["state"] == "Ready"
    return record.admission


def held_before_admitted_before_answered(
    rig: KueueRig, seen: Recorder, name: str, admission: AdmissionRecord
) -> None:
    """The pool's hold, the job's record and the answer to Kueue, in that order, all for one admission."""

    def reservations(pool: Object) -> bool:
        return any(
            (h["target"], h["admission"], tuple(h["nodes"]))
            == (f"{rig.namespace}/{name}", admission.number, admission.nodes)
            for h in pool["status"].get("reservations", ())
        )

    def admits(job: Object) -> bool:
        return job["status"].get("admission", {}).get("number") == admission.number

    def answers(workload: Object) -> bool:
        (owner,) = workload["metadata"]["ownerReferences"]
        (state,) = workload["status"].get("admissionChecks") or ({},)
        numbers = {u["annotations"][names.ANNOTATION_ADMISSION] for u in state.get("podSetUpdates", ())}
        return (owner["name"], state.get("state"), numbers) == (name, "Ready", {str(admission.number)})

    held = seen.first(f"/gpupools/{rig.pool_name}/status", reservations)
    admitted = seen.first(f"/rlhfjobs/{name}/status", admits)
    answered = min(v for v, path, o in seen.writes if "/workloads/" in path and answers(o))
    assert held < admitted < answered


async def queue_ready(rig: KueueRig, status: str, reason: str) -> bool:
    pool = await rig.api.get(GPUPOOLS, rig.pool_name)
    conditions = {c["type"]: c for c in (pool.get("status") or {}).get("conditions") or ()}
    found = conditions.get("QueueReady", {})
    return (found.get("status"), found.get("reason")) == (status, reason)


async def unmarked(rig: KueueRig, name: str) -> bool:
    template = (await rig.workload(name))["spec"]["template"]
    return names.ANNOTATION_ADMISSION not in (template["metadata"].get("annotations") or {})


def test_a_job_that_kueue_puts_out_is_not_a_stopped_job(told: Callable[[Story], None]) -> None:
    """It goes on under its next attempt; one that is switched off by hand waits for that hand."""

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=8)
        await rig.make_kueue_pool()
        await rig.make_job("run", replicas=2)
        async with rig.operator():
            await eventually(lambda: rig.runs("run"), what="it to run")
            before = await rig.record("run")
            await rig.change(CLUSTER_QUEUES, rig.pool_name, {"stopPolicy": "HoldAndDrain"})
            message = await rig.waits_because("run", "ClusterQueueStopped")
            assert message == (
                f"ClusterQueue {rig.pool_name}: spec.stopPolicy is 'HoldAndDrain', so it admits nobody; "
                "set it to None"
            )

            async def queued() -> bool:
                pool = await rig.api.get(GPUPOOLS, rig.pool_name)
                return bool(pool["status"].get("queued") == 1)

            await eventually(queued, what="the pool to say that one waits, whatever its queue gives")
            record = await rig.record("run")
            assert record.decision is None
            assert (record.evictions, record.preemptions) == (before.evictions + 1, 0)
            assert await rig.reason("run", "Running") == "Evicted"
            await rig.change(CLUSTER_QUEUES, rig.pool_name, {"stopPolicy": "None"})
            await eventually(partial(rig.runs, "run", after=before.attempt), what="it to go on")
            before = await rig.record("run")
            assert (await rig.run_file("run"))["attempt"] == before.attempt

            name = (await rig.kueues("run"))["metadata"]["name"]
            await rig.change(WORKLOADS, name, {"active": False})
            said = await rig.waits_because("run", "Deactivated")
            assert f"Workload {name}: spec.active is false" in said
            await eventually(lambda: rig.has_reason("run", "Running", "Deactivated"))
            assert (await rig.kueues("run"))["spec"]["active"] is False  # nobody but that hand undoes it
            await rig.change(WORKLOADS, name, {"active": True})
            await eventually(partial(rig.runs, "run", after=before.attempt), what="it to go on once more")
            record = await rig.record("run")
            assert record.evictions > before.evictions
            assert record.attempt == 1 + record.evictions
            assert {"Evicted", "Deactivated"} <= set(await rig.events("run"))
            assert "Stopped" not in await rig.events("run")

    told(story)


def test_kueue_restarted_in_the_middle_of_a_stop(
    told: Callable[[Story], None], kueue: Kueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_queue, "SLOW", 0.5)

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=4)
        await rig.make_kueue_pool()
        await rig.make_job("run", replicas=2)
        async with rig.operator():
            await eventually(lambda: rig.runs("run"), what="it to run")
            await rig.make_job("next", replicas=2)
            await rig.waits_because("next", "WaitingForQuota")
            before = await rig.record("run")
            await asyncio.to_thread(kueue.plane.stop, PROCESS)
            await rig.patch("run", {"spec": {"runState": "Stopped"}})
            await eventually(lambda: rig.is_true("run", "TerminationTarget"))
            await asyncio.to_thread(kueue.reconfigure, {})
            await eventually(lambda: rig.runs("next"), what="the next to run")
            # Kueue hands the quota on before the Job's own status says that no pod may come.
            await eventually(lambda: rig.has_reason("run", "Admitted", "Stopped"))
            assert (await rig.record("run")).evictions == before.evictions

    told(story)


def test_an_operator_that_dies_after_its_record_its_answer_or_its_stop_goes_on_there(
    told: Callable[[Story], None],
) -> None:
    def recorded(method: str, path: str, answer: Any) -> bool:
        return path.endswith("/rlhfjobs/run/status") and "admission" in answer.get("status", {})

    def answered(method: str, path: str, answer: Any) -> bool:
        states = answer.get("status", {}).get("admissionChecks", ()) if "/workloads/" in path else ()
        return any(state["state"] == "Ready" for state in states)

    def switched_off(method: str, path: str, answer: Any) -> bool:
        return "/workloads/" in path and answer["spec"].get("active") is False

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=4)
        await rig.make_kueue_pool()
        await rig.make_job("run", replicas=2)

        async def running() -> bool:
            return await rig.runs("run")

        async def handed_over() -> bool:
            # Kueue hands the quota on before the Job's own status says that no pod may come.
            decision = (await rig.record("run")).decision
            return decision is not None and decision.pods_gone_at is not None and await rig.runs("next")

        for moment in (recorded, answered):
            died = await rig.live_until_crash(None, False, running, on=moment)
            assert died is not None
        assert await rig.live_until_crash(None, False, running) is None
        await rig.make_job("next", replicas=2)
        rig.scores["run"] = RISE_AND_FALL[:4]
        secured = partial(rig.is_true, "run", "BestCheckpointSecured")
        assert await rig.live_until_crash(None, False, secured) is None
        rig.scores["run"] = RISE_AND_FALL
        assert await rig.live_until_crash(None, False, handed_over, on=switched_off) is not None
        assert await rig.live_until_crash(None, False, handed_over) is None
        stopped = await rig.record("run")
        assert stopped.attempt == 1 + stopped.evictions  # no number was lost, or used twice
        assert stopped.decision is not None
        assert [k.best_step for k in stopped.retained] == [40]

    told(story)


def test_what_a_queue_lacks_is_said_with_its_remedy_and_mended(told: Callable[[Story], None]) -> None:
    async def story(rig: KueueRig) -> None:
        await rig.make_kueue_pool()
        await rig.make_job("run", replicas=2)
        async with rig.operator():
            assert names.CHECK_CONTROLLER in await rig.waits_because("run", "CheckNotFound")
            await eventually(lambda: queue_ready(rig, "False", "CheckNotFound"))
            await rig.create(ADMISSION_CHECKS, rig.pool_name, {"controllerName": names.CHECK_CONTROLLER})
            assert f"there is no LocalQueue {QUEUE!r}" in await rig.waits_because("run", "QueueNotFound")
            await rig.create(LOCAL_QUEUES, QUEUE, {"clusterQueue": rig.pool_name, "stopPolicy": "Hold"})
            assert "spec.stopPolicy is 'Hold'" in await rig.waits_because("run", "QueueStopped")
            await rig.change(LOCAL_QUEUES, QUEUE, {"stopPolicy": "None"})
            assert rig.pool_name in await rig.waits_because("run", "ClusterQueueNotFound")
            await rig.create(FLAVORS, rig.pool_name, {})
            quota = {"name": names.GPU_RESOURCE, "nominalQuota": 2}
            flavor = {"name": rig.pool_name, "resources": [quota]}
            group = {"coveredResources": [names.GPU_RESOURCE], "flavors": [flavor]}
            spec = {"namespaceSelector": {}, "resourceGroups": [group]}
            await rig.create(CLUSTER_QUEUES, rig.pool_name, spec)
            await rig.waits_because("run", "CheckMissing")
            checks = {"admissionChecks": [{"name": rig.pool_name}]}
            await rig.change(CLUSTER_QUEUES, rig.pool_name, {"admissionChecksStrategy": checks})
            message = await rig.waits_because("run", "QuotaTooSmall")
            assert "nominalQuota: 2" in message
            assert "needs 4; raise it to 4" in message
            quota["nominalQuota"] = 4
            await rig.change(CLUSTER_QUEUES, rig.pool_name, {"resourceGroups": [group]})
            await eventually(lambda: rig.runs("run"), what="it to run in the end")

    told(story)


def test_a_gang_larger_than_the_pool_gives_its_quota_back_until_the_pool_grows(
    kueue: Kueue, told: Callable[[Story], None], kubelet: FakeKubelet
) -> None:
    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=12)
        await rig.make_kueue_pool()
        await rig.make_job("large", replicas=3, gpus=4)
        async with rig.operator():
            assert "at most 2 is right" in await rig.waits_because("large", "TooLarge")

            async def off() -> bool:
                found = await rig.kueues("large")
                return found["spec"]["active"] is False and not await rig.kueue_condition(
                    "large", "QuotaReserved"
                )

            await eventually(off, what="its quota to be free")
            await rig.make_job("small", replicas=2)
            await eventually(lambda: rig.runs("small"), what="another to have that quota")
            await rig.patch("small", {"spec": {"runState": "Stopped"}})
            larger, labels = [f"{rig.pool_name}-c"], {"pool": rig.pool_name}
            with FakeKubelet(kueue.plane.client(), larger, labels, gpus=4):
                await eventually(lambda: rig.runs("large"), what="it to run in the larger pool")

    told(story)


def test_every_right_over_kueues_kinds_is_used_and_no_other_is_asked_for(
    told: Callable[[Story], None], kueue_audit: AuditLog, repository: Path
) -> None:
    """What the API server's audit log says, against deploy/manifests (a test holds the chart to it)."""

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=12)
        await rig.make_kueue_pool()
        await rig.make_job("large", replicas=3, gpus=4)
        refused: list[str] = []

        async def look(method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
            """The first time that it would give the quota back, somebody else has just written."""
            if not refused and method == "PATCH" and re.search(r"/workloads/[^/]+$", path):
                refused.append(path)
                return failure(409, "Conflict")
            return await send()

        async with rig.operator() as engine:
            assert isinstance(engine.api, CountingApi)
            engine.api.fault = look
            await rig.waits_because("large", "TooLarge")

            async def off() -> bool:
                return (await rig.kueues("large"))["spec"]["active"] is False

            await eventually(off, what="its quota to be given back")
            assert refused
            await rig.make_job("small", replicas=2)
            await eventually(lambda: rig.runs("small"), what="another to run")

    told(story)
    roles = yaml.safe_load_all((repository / "deploy" / "manifests" / "rbac.yaml").read_text())
    (role,) = (r for r in roles if (r["kind"], r["metadata"]["name"]) == ("ClusterRole", "evalstop-operator"))
    group = ADMISSION_CHECKS.group
    given = {
        (group, resource, verb)
        for rule in role["rules"]
        if group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    account, namespace = "evalstop-operator", "evalstop-system"
    used = {right for right in kueue_audit.used(account, namespace) if right[0] == group}
    assert used == given
    assert {right for right in kueue_audit.denied(account, namespace) if right[0] == group} == set()


def test_a_job_of_nobodys_in_the_same_queue_is_let_through(
    told: Callable[[Story], None], kueue: Kueue
) -> None:
    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=8)
        await rig.make_kueue_pool()
        async with rig.operator():
            body = job("plain", 2, QUEUE)
            body["metadata"]["namespace"] = rig.namespace
            await rig.api.create(JOBS, body)

            async def started() -> bool:
                return (await rig.workload("plain"))["spec"]["suspend"] is False

            await eventually(started, what="Kueue to start it")

    told(story)
