"""Runs that lose their GPUs in a pool of Kueue's: to its pool's own choice, or to Kueue's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from kueue_rig import KueueRig, Story

from controller.kube.errors import ApiError
from controller.kube.resources import JOBS, KUEUE, Resource
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from deploy.local.kueue.manager import Kueue
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import eventually

pytestmark = pytest.mark.cluster

# A job without a class of Kueue's has the priority of its pods: 1000, by class evalstop-rlhf.
ABOVE_THE_PODS_OWN = 1001
PRIORITIES = Resource(KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
# Kueue may say that a run is out, but cannot suspend it: what lies between its two writes, for longer.
HELD = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}}
    resourceRules:
    - {apiGroups: [batch], apiVersions: [v1], resources: [jobs], operations: [UPDATE]}
  validations:
  - {expression: "!object.spec.suspend || oldObject.spec.suspend", message: held by the test}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME, validationActions: [Deny]}
"""


def at_step(number: int, *scores: float, total: int = 100) -> ScrapeView:
    """A trainer that has just written a checkpoint, in its attempt of that number."""
    evals = tuple(EvalPoint(10 * (i + 1), float(s), Attempt(number), 0.01) for i, s in enumerate(scores))
    step = evals[-1].step
    return ScrapeView(
        ScrapeOutcome.OK,
        at=time.time(),
        metrics_seen=("gold",),
        points=evals,
        step=step,
        total_steps=total,
        checkpoint_step=step,
        resumed_step=0,
    )


@contextlib.asynccontextmanager
async def never_suspended(rig: KueueRig, kueue: Kueue, name: str) -> AsyncIterator[None]:
    """Nobody can suspend that job's workload within the block."""
    policy = HELD.replace("NAME", rig.namespace)

    async def refused() -> bool:
        try:
            await rig.api.merge_patch(JOBS, name, {"spec": {"suspend": True}}, rig.namespace, dry_run=True)
        except ApiError as error:
            return "held by the test" in str(error)
        return False

    await asyncio.to_thread(kueue.plane.kubectl, "apply", "-f", "-", stdin=policy)
    try:
        await eventually(refused, what="the policy to be in force")
        yield
    finally:
        await asyncio.to_thread(kueue.plane.kubectl, "delete", "-f", "-", stdin=policy)


def test_a_demoted_run_gives_way_and_runs_again(
    told: Callable[[Story], None], kueue: Kueue, kubelet: FakeKubelet
) -> None:
    """Both have quota, and nodes are there for one. While Kueue has said that the demoted one is out, and
    has not suspended it yet, it is not answered: nothing would ever take that answer back."""

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=16)
        await rig.make_kueue_pool()
        rig.names(["falls", "waits"])
        rig.outcome["falls"] = at_step(1, 1, 4, 3.5, 3)
        graded = [{"graded": {"warnAt": "0.3", "demoteAt": "0.5"}}]
        rule = {"kDeclines": {"k": 4}}
        await rig.make_job("falls", replicas=2, gpus=4, stopRule=rule, modifiers=graded)
        async with rig.operator():
            await eventually(lambda: rig.is_true("falls", "Demoted"), what="the demotion")
            await eventually(lambda: rig.runs("falls"), what="all of it to run")
            before = await rig.record("falls")
            async with never_suspended(rig, kueue, "falls"):
                await rig.make_job("waits", replicas=2, gpus=4)
                out = await eventually(lambda: rig.kueue_condition("falls", "Evicted"), what="the eviction")
                assert out["reason"] == "AdmissionCheck"
                await asyncio.sleep(1.0)  # the operator has seen that, and has nothing to say to it
                (state,) = (await rig.kueues("falls"))["status"]["admissionChecks"]
                assert state["state"] == "Pending"
                assert (await rig.workload("falls"))["spec"]["suspend"] is False
            await eventually(lambda: rig.runs("waits"), what="the other one to run")

            async def back_in_line() -> bool:
                return (await rig.record("falls")).preemptions == 1

            await eventually(back_in_line, what="the demoted one to be back in line")
            record = await rig.record("falls")
            assert record.decision is None
            assert (record.evictions, record.lost) == (before.evictions, 0.0)
            assert record.progress is not None
            assert record.progress.step == 40  # where it will go on
            assert await rig.reason("falls", "Running") == "Preempted"
            await asyncio.to_thread(kubelet.finish, rig.namespace, "waits")
            await eventually(partial(rig.runs, "falls", after=before.attempt), what="it to run again")
            record = await rig.record("falls")
            assert (await rig.run_file("falls"))["attempt"] == record.attempt
            assert (record.preemptions, record.decision) == (1, None)

    told(story)


def test_a_run_that_kueue_preempts_for_a_higher_priority_goes_on_when_that_is_over(
    told: Callable[[Story], None], kubelet: FakeKubelet
) -> None:
    """Put out, not stopped: no decision, an eviction and no preemption of ours, its own words."""

    async def story(rig: KueueRig) -> None:
        await rig.make_queues(gpus=8, preemption={"withinClusterQueue": "LowerPriority"})
        await rig.make_kueue_pool()
        high = f"high-{rig.pool_name}"
        body = {"apiVersion": f"{KUEUE}/v1beta2", "kind": PRIORITIES.kind, "metadata": {"name": high}}
        made = await rig.api.create(PRIORITIES, {**body, "value": ABOVE_THE_PODS_OWN})
        rig.names(["low", "urgent"])
        rig.outcome["low"] = at_step(1, 1, 2, 3)
        await rig.make_job("low", replicas=2, gpus=4)
        try:
            async with rig.operator():
                await eventually(lambda: rig.runs("low"), what="it to run")
                await eventually(lambda: rig.is_true("low", "BestCheckpointSecured"))
                before = await rig.record("low")
                template: dict[str, Any] = rig.template("urgent", 2, 4)
                template["metadata"] = {"labels": {f"{KUEUE}/priority-class": high}}
                await rig.make_job("urgent", replicas=2, gpus=4, workload={"template": template})
                await eventually(lambda: rig.runs("urgent"), what="the urgent one to run")
                await rig.waits_because("low", "WaitingForQuota")
                record = await rig.record("low")
                assert (record.decision, record.preemptions) == (None, 0)
                assert record.evictions == before.evictions + 1
                assert await rig.reason("low", "Running") == "PreemptedByQueue"
                assert record.progress is not None
                assert record.progress.step == 30
                assert {"PreemptedByQueue"} <= set(await rig.events("low"))
                await asyncio.to_thread(kubelet.finish, rig.namespace, "urgent")
                await eventually(partial(rig.runs, "low", after=before.attempt), what="it to go on")
                record = await rig.record("low")
                assert (await rig.run_file("low"))["attempt"] == record.attempt == 1 + record.evictions
                assert record.best is not None
                assert record.best.step == 30  # of the run's own history
                assert "Stopped" not in await rig.events("low")
        finally:
            await rig.api.delete(PRIORITIES, high, None, made["metadata"]["uid"])

    told(story)
