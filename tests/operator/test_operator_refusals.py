"""What cannot be done is said on the RLHFJob: field, value, what would be right. Nothing else is done."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from pathlib import Path
from typing import Any

from controller import names
from controller.checkpoints.pod_security import LABEL
from controller.kube.resources import GPUPOOLS, JOBS, NAMESPACES, NODES, PODS
from controller.policy.job import cure_of, key_of
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from deploy.local.plane import Plane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually, run_line


def without(template: dict[str, Any], *path: Any, value: Any = None) -> dict[str, Any]:
    """A template in which one field is another, or is gone."""
    changed = copy.deepcopy(template)
    node: Any = changed
    for part in path[:-1]:
        node = node[part]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


POD = ("spec", "template", "spec")


def test_jobs_that_cannot_be_accepted(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool(allowedNamespaces=[{"name": rig.namespace, "maxPriority": 5}])
            await rig.make_pool_named(f"{rig.pool_name}-closed", allowedNamespaces=[{"name": "elsewhere"}])
            rig.names(
                [
                    "kind",
                    "port",
                    "gang",
                    "refused",
                    "taken",
                    "eager",
                    "nowhere",
                    "closed",
                    "missing",
                    "watched",
                ]
            )
            good = rig.template("port", 1, 2)
            claim = {"volumeClaim": {"claimName": "absent", "path": "/"}}
            gone = {"volumeClaim": {"claimName": "gone", "path": "/"}}
            store = {"objectStore": {"uri": "s3://kept"}}
            bad: dict[str, tuple[dict[str, Any], str, str]] = {
                "kind": (
                    {
                        "workload": {
                            "template": {**good, "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
                        }
                    },
                    "UnsupportedKind",
                    "expected one of batch/v1 Job",
                ),
                "port": (
                    {"workload": {"template": without(good, *POD, "containers", 0, "ports")}},
                    "NoMetricsPort",
                    "expected one named 'metrics'",
                ),
                "gang": (
                    {"workload": {"template": without(good, "spec", "completionMode")}},
                    "GangMismatch",
                    "expected 'Indexed'",
                ),
                "refused": (
                    {"workload": {"template": without(good, *POD, "restartPolicy", value="Always")}},
                    "TemplateRefused",
                    "restartPolicy",
                ),
                "taken": ({}, "WorkloadNameTaken", "delete it, or rename"),
                "eager": ({"priority": 6}, "PriorityTooHigh", "spec.priority: 6"),
                "nowhere": ({"pool": "no-such-pool"}, "PoolNotFound", "no GPUPool 'no-such-pool'"),
                "closed": ({"pool": f"{rig.pool_name}-closed"}, "NamespaceNotAllowed", "only: elsewhere"),
                "missing": (
                    {"checkpoints": {"location": claim, "layout": "Plain", "retention": store}},
                    "ClaimMissing",
                    "'absent'",
                ),
                "watched": (  # in Shadow its pods would wait for the claim all the same, and hold GPUs
                    {
                        "mode": "Shadow",
                        "checkpoints": {"location": gone, "layout": "Plain", "retention": store},
                    },
                    "ClaimMissing",
                    "'gone'",
                ),
            }
            await rig.api.create(JOBS, plain_job("taken", rig.namespace))
            for name, (spec, _, _) in bad.items():
                fitting = {"workload": {"template": rig.template(name, 1, 2)}} if name == "gang" else {}
                await rig.make_job(name, **{**fitting, **spec})
            async with rig.operator() as engine:
                for name, (_, reason, words) in bad.items():
                    await eventually(
                        lambda n=name, r=reason: rig.has_reason(n, "Accepted", r), what=f"{name}: {reason}"
                    )
                    found = await rig.condition(name, "Accepted")
                    assert found is not None
                    assert words in found[2], found
                children, _ = await rig.api.list(JOBS, rig.namespace)
                assert [j["metadata"]["name"] for j in children] == ["taken"]
                # Once what was wrong is put right, the job goes its way, without anybody touching the job.
                await rig.make_pool_named("no-such-pool")
                await eventually(lambda: rig.is_true("nowhere", "Accepted"), what="the pool to be noticed")
                # The last that is written of it: its workload is made, and its pool has said why it waits.
                await eventually(lambda: rig.has_reason("nowhere", "Admitted", "NoUsableNodes"))
                await asyncio.sleep(0.5)
                before = len(rig.writes(engine))
                for name in bad:
                    engine.jobs.add(f"{rig.namespace}/{name}")
                await asyncio.sleep(0.5)
                # Of the job that waits now, what looked at its claim may still be cleared away.
                refused = [write for write in rig.writes(engine)[before:] if "/nowhere" not in write]
                assert refused == [], "a refusal that stays is written once"
            await rig.delete_pool("no-such-pool")
            await rig.delete_pool(f"{rig.pool_name}-closed")

    asyncio.run(story())


def test_a_user_that_the_namespace_lets_no_pod_run_as_is_told_before_the_run_starts(
    rig: Rig, kubelet: FakeKubelet
) -> None:
    """Nothing said it: the run trained to its end, and no checkpoint could ever be secured."""

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            label = {"metadata": {"labels": {LABEL: "restricted"}}}
            await rig.api.merge_patch(NAMESPACES, rig.namespace, label)
            rig.names(["template"])
            template = rig.template("template", 1, 2)
            template["spec"]["template"]["spec"]["securityContext"] = {"runAsUser": 0}
            await rig.make_job("template", workload={"template": template})
            named = (await rig.make_job("free"))["spec"]["checkpoints"]
            own = {"location": {"objectStore": {"uri": "s3://work/named"}}, "runAs": {"user": 0}}
            await rig.make_job("named", checkpoints={**named, **own})
            async with rig.operator():
                for name, source in (
                    ("template", "spec.securityContext.runAsUser"),
                    ("named", "spec.checkpoints.runAs.user"),
                ):
                    await eventually(
                        lambda n=name: rig.has_reason(n, "Accepted", "UserRefused"), what=f"{name}: refused"
                    )
                    found = await rig.condition(name, "Accepted")
                    assert found is not None
                    assert f"namespace {rig.namespace} enforces Pod Security level restricted" in found[2]
                    assert f"as user 0 (from {source}" in found[2]
                    assert f"label the namespace {LABEL}: baseline" in found[2]
                await eventually(lambda: rig.is_true("free", "Accepted"), what="whose user is not known yet")

    asyncio.run(story())


def plain_job(name: str, namespace: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


def test_gangs_too_large_for_any_node_or_for_the_pool(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("wide", gpus=3)
            await rig.make_job("many", replicas=3, gpus=2)
            async with rig.operator():
                for name, words in (("wide", "3 is more than the 2 GPUs"), ("many", "at most 2 is right")):
                    await eventually(lambda n=name: rig.has_reason(n, "Admitted", "TooLarge"))
                    found = await rig.condition(name, "Admitted")
                    assert found is not None
                    assert words in found[2]

    asyncio.run(story())


def test_trainers_that_cannot_be_read_go_on_unjudged(rig: Rig, kubelet: FakeKubelet) -> None:
    """Unknown metric, NaN and Inf, and each way a scrape can fail: a condition, and no stop."""

    async def story() -> None:
        values = [1.0, math.nan, math.inf, -math.inf, math.nan, math.nan]
        points = tuple(EvalPoint(10 * i, v, Attempt(1)) for i, v in enumerate(values, 1))
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            rig.outcome["run"] = ScrapeView(ScrapeOutcome.OK, metrics_seen=("bleu", "kl"))
            async with rig.operator():
                await eventually(lambda: rig.has_reason("run", "MetricsAvailable", "MetricMissing"))
                found = await rig.condition("run", "MetricsAvailable")
                assert found is not None
                assert "'gold'" in found[2]
                assert "bleu, kl" in found[2]
                for outcome in ("Unreachable", "Timeout", "PageTooLarge", "NotPrometheus", "RefusedAddress"):
                    rig.outcome["run"] = ScrapeView(ScrapeOutcome(outcome), f"told by the scraper: {outcome}")
                    await eventually(lambda o=outcome: rig.has_reason("run", "MetricsAvailable", o))
                rig.outcome["run"] = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points)
                await eventually(lambda: rig.is_true("run", "MetricsAvailable"))
                await asyncio.sleep(0.5)
                record = await rig.record("run")
            assert [p.score for p in record.evals] == [1.0]
            assert record.decision is None

    asyncio.run(story())


def test_gpus_of_others_are_not_given_out(rig: Rig, kubelet: FakeKubelet) -> None:
    """Nobody's pod holds a node's GPUs; when it goes, the gang gets them. The taint goes with the label."""

    async def story() -> None:
        node = f"{rig.pool_name}-a"
        limits = {"limits": {names.GPU_RESOURCE: "2"}}
        guest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "guest", "namespace": rig.namespace},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "x", "resources": limits}],
            },
        }
        async with rig:
            made = await rig.api.create(PODS, guest)
            await rig.make_pool()
            await rig.make_job("gang", replicas=2)
            async with rig.operator():
                await eventually(lambda: rig.has_reason("gang", "Admitted", "GPUsUsedByOthers"))
                pool = await rig.api.get(GPUPOOLS, rig.pool_name)
                assert (pool["status"]["capacity"], pool["status"]["free"]) == (4, 2)
                assert await taint(rig, node) == rig.pool_name
                await rig.api.delete(PODS, "guest", rig.namespace, made["metadata"]["uid"])
                await eventually(lambda: rig.is_true("gang", "Running"))
                await rig.api.merge_patch(NODES, node, {"metadata": {"labels": {"pool": None}}})
                await eventually(lambda: untainted(rig, node), what="the taint to go with the label")

    asyncio.run(story())


async def taint(rig: Rig, node: str) -> str | None:
    found = await rig.api.get(NODES, node)
    return next((t["value"] for t in found["spec"].get("taints") or () if t["key"] == names.POOL_TAINT), None)


async def untainted(rig: Rig, node: str) -> bool:
    return await taint(rig, node) is None


def test_a_pool_deleted_while_the_operator_was_away_loses_its_taints(rig: Rig, kubelet: FakeKubelet) -> None:
    async def story() -> None:
        node = f"{rig.pool_name}-b"
        async with rig:
            await rig.make_pool()
            async with rig.operator():
                await eventually(lambda: tainted(rig, node))
            await rig.delete_pool(rig.pool_name)
            async with rig.operator():
                await eventually(lambda: untainted(rig, node), what="the taint to go")

    asyncio.run(story())


async def tainted(rig: Rig, node: str) -> bool:
    return await taint(rig, node) is not None


def test_what_is_printed_of_a_folder_that_another_has_is_accepted(
    rig: Rig, plane: Plane, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """`kubectl edit` was printed, and its edit refused: a location is fixed once the job was accepted."""
    owner = {"ok": False, "reason": "LocationTaken", "holder": {"uid": "u", "job": "elsewhere/x"}}
    message = "s3://work/taken: the checkpoint folder belongs to RLHFJob elsewhere/x"

    async def make(name: str, uri: str) -> Path:
        location = {"objectStore": {"uri": uri}}
        store = {"objectStore": {"uri": "s3://kept"}}
        made = await rig.make_job(
            name, gpus=1, checkpoints={"location": location, "layout": "Plain", "retention": store}
        )
        metadata = {field: made["metadata"][field] for field in ("name", "namespace")}
        manifest = tmp_path / f"{name}.json"
        manifest.write_text(json.dumps({**made, "metadata": metadata}))
        return manifest

    async def cured(name: str, reason: str, manifest: Path) -> None:
        await eventually(lambda: rig.has_reason(name, "Accepted", reason), what=f"{name}: {reason}")
        told = await rig.condition(name, "Accepted")
        assert told is not None
        cure = cure_of(key_of(*told[1:])).filled(name, rig.namespace, rig.pool_name, "", told[2])
        line = cure.apply.replace("<manifest>", str(manifest)).replace("<uri>", f"s3://work/own-{name}")
        kubelet.store.pills.pop(f"{rig.namespace}/{name}", None)
        await asyncio.to_thread(run_line, plane, line)
        await eventually(lambda: rig.is_true(name, "Running"), what=f"{name} to run in its own folder")

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            kubelet.store.pills[f"{rig.namespace}/taken"] = json.dumps({**owner, "message": message})
            async with rig.operator():
                await make("one", "s3://work/one")
                await eventually(lambda: rig.is_true("one", "Running"), what="the first to run")
                await cured("late", "LocationShared", await make("late", "s3://work/one/inside"))
                await cured("taken", "LocationTaken", await make("taken", "s3://work/taken"))
                await make("waits", "s3://work/one")
                await eventually(lambda: rig.has_reason("waits", "Accepted", "LocationShared"))
                await asyncio.to_thread(plane.kubectl, "delete", "rlhfjob", "one", "-n", rig.namespace)
                await eventually(lambda: rig.is_true("waits", "Running"), what="it to go on by itself")

    asyncio.run(story())
