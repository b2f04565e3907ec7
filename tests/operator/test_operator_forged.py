"""Tenants who answer for the checkpoint store, on the real control plane: a Job, a ConfigMap of their own."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

from controller import names
from controller.kube.resources import CONFIGMAPS, EVENTS, JOBS, PODS
from controller.workloads import Scheduling, build_child
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

FORGED = "sha256:" + "f" * 64


async def events(rig: Rig, reason: str) -> list[str]:
    found, _ = await rig.api.list(EVENTS, rig.namespace)
    return [event["message"] for event in found if event["reason"] == reason]


def forged(job: dict[str, Any], name: str) -> dict[str, Any]:
    """A Job like an access Job, by another name, whose pod says whatever its maker likes."""
    metadata = copy.deepcopy(job["metadata"])
    template = copy.deepcopy(job["spec"]["template"])
    template["metadata"]["labels"] = {names.LABEL_JOB: metadata["labels"][names.LABEL_JOB]}
    template["spec"]["containers"][0]["command"] = ["echo", "forged"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {key: metadata[key] for key in ("namespace", "labels", "annotations")} | {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }


def answers(kubelet: FakeKubelet, rig: Rig, job: str) -> bool:
    """Let the pod of a forged Job say that all is well."""
    said = {
        "ok": True,
        "step": 20,
        "path": "s3://forged/20",
        "digest": FORGED,
        "sourceDigest": FORGED,
        "bytes": 10,
    }
    return kubelet.say(rig.namespace, job, json.dumps(said))


def test_the_answer_of_a_forged_access_job_does_not_count(rig: Rig, kubelet: FakeKubelet) -> None:
    """A Job with the labels of one said that the best was in safety, and it was nowhere."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.scores["run"] = [1.0, 2.0]
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"), what="the first best")
                kubelet.slow_store.set()
                rig.scores["run"] = [1.0, 2.0, 3.0]
                found: list[dict[str, Any]] = []

                async def running() -> bool:
                    selector = f"{names.LABEL_COMPONENT}=access"
                    jobs, _ = await rig.api.list(JOBS, rig.namespace, labels=selector)
                    found[:] = [dict(job) for job in jobs if not job["spec"].get("suspend")]
                    return any("secure-30" in job["metadata"]["name"] for job in found)

                await eventually(running, what="an access Job that runs")
                real = next(job for job in found if "secure-30" in job["metadata"]["name"])
                await rig.api.create(JOBS, forged(real, "zz-forged"))

                async def answered() -> bool:
                    return answers(kubelet, rig, "zz-forged")

                await eventually(answered, what="the forged Job's pod")
                await asyncio.sleep(3.0)
                record = await rig.record("run")
                assert record.secured is not None
                assert record.secured.digest != FORGED
                assert record.secured.step == 20
                assert any("zz-forged" in message for message in await events(rig, "ForeignAccessJob"))
                assert record.access is not None
                assert record.access.job_uid == real["metadata"]["uid"]
                kubelet.answer_late()

                async def in_safety() -> bool:
                    kept = (await rig.record("run")).secured
                    return kept is not None and kept.step == 30

                await eventually(in_safety, what="the operator's own Job to be heard")

    asyncio.run(story())


def test_a_users_configmap_is_not_taken_over_unless_it_is_labelled_for_it(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """One that had the name of a run file was overwritten, and deleted with the RLHFJob: by proxy."""

    async def story() -> None:
        async with rig:
            await rig.make_pool(schedulerName="default-scheduler")
            rig.names(["run"])
            model = {
                "metadata": {"name": "run", "namespace": rig.namespace, "uid": "none"},
                "spec": {
                    "workload": {"template": rig.template("run", 1, 2)},
                    "gang": {"replicas": 1, "gpusPerReplica": 2},
                },
            }
            child = build_child(model, Scheduling("default-scheduler", names.PRIORITY_CLASS))
            del child["metadata"]["ownerReferences"]
            await rig.api.create(JOBS, child)
            theirs = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "run-run", "namespace": rig.namespace},
                "data": {"settings": "somebody's"},
            }
            before = await rig.api.create(CONFIGMAPS, theirs)
            await rig.make_job(
                "run", workload={"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "run"}}
            )
            async with rig.operator():

                async def refused() -> bool:
                    return any("run-run" in message for message in await events(rig, "ActionRefused"))

                await eventually(refused, 30, what="it to be told of")
                found = await rig.api.get(CONFIGMAPS, "run-run", rig.namespace)
                assert found["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
                (message,) = {m for m in await events(rig, "ActionRefused") if "run-run" in m}
                assert f"is not labelled {names.LABEL_JOB}: run" in message
                await rig.api.merge_patch(
                    CONFIGMAPS, "run-run", {"metadata": {"labels": {names.LABEL_JOB: "run"}}}, rig.namespace
                )

                async def adopted() -> bool:
                    found = await rig.api.get(CONFIGMAPS, "run-run", rig.namespace)
                    return bool(found["metadata"].get("ownerReferences"))

                await eventually(adopted, 60, what="it to be adopted")

    asyncio.run(story())


def test_the_answer_of_a_pod_that_is_given_our_access_job_as_its_owner_does_not_count(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """The Job is the operator's own; the pod is anybody's who may create pods, and it ends first."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.scores["run"] = [1.0, 2.0]
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "BestCheckpointSecured"), what="the first best")
                kubelet.slow_store.set()
                rig.scores["run"] = [1.0, 2.0, 3.0]
                found: list[dict[str, Any]] = []

                async def running() -> bool:
                    pods, _ = await rig.api.list(PODS, rig.namespace, labels="job-name")
                    found[:] = [dict(p) for p in pods if "secure-30" in p["metadata"]["labels"]["job-name"]]
                    return bool(found)

                await eventually(running, what="the pod of an access Job")
                own = found[0]["metadata"]
                await rig.api.create(PODS, second(own))

                async def answered() -> bool:
                    return answers(kubelet, rig, FORGERY)

                await eventually(answered, what="the forged pod")

                async def failed() -> bool:
                    conditions = (await rig.record("run")).conditions
                    return any("pods say that they are its access Job's" in c.message for c in conditions)

                await eventually(failed, 30, what="it to be told")
                record = await rig.record("run")
                assert record.secured is not None
                assert (record.secured.step, record.secured.digest == FORGED) == (20, False)

    asyncio.run(story())


FORGERY = "forgery"  # value of label job-name, by which `answers` finds the pod


def second(own: dict[str, Any]) -> dict[str, Any]:
    """A pod with the owner of another."""
    labels = {names.LABEL_JOB: own["labels"][names.LABEL_JOB], "job-name": FORGERY}
    metadata = {
        "name": "aa-forged",
        "namespace": own["namespace"],
        "labels": labels,
        "ownerReferences": own["ownerReferences"],
    }
    containers = [{"name": "access", "image": "x", "command": ["echo", "forged"]}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"restartPolicy": "Never", "containers": containers},
    }
