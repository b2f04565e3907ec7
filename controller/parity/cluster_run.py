"""A trial on a cluster: submits each job when its time has come, and looks on until all are over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace as changed
from typing import Any

from controller import names
from controller.kube.client import Api, Object
from controller.kube.errors import ApiError, NotFound
from controller.kube.listwatch import ListWatch
from controller.kube.resources import (
    CLAIMS,
    GPUPOOLS,
    NAMESPACES,
    NODES,
    PODS,
    RLHFJOBS,
    SECRETS,
    Resource,
)
from controller.parity import manifests
from controller.parity import nodes as its_nodes
from controller.parity.compressed_trace import TraceOnCluster
from controller.parity.facts import Facts, timeline
from controller.parity.manifests import ClusterTarget
from controller.parity.timeline import Timeline
from controller.policy.types import PolicySpec
from controller.policy.wording import agreeing, counted

PULL_SECRET_TYPE = "kubernetes.io/dockerconfigjson"
ReportLine = Callable[[str], None]
_LOOK_S = 0.2
_READY_S = 120.0  # for a pool to be ready, and for it to be gone
_QUIET_S = 5.0  # for the last words of pods, once all jobs are over


class Failed(Exception):
    """The trial could not be run as it was meant: the message says why, and ``next_step`` what to do."""

    def __init__(self, message: str, next_step: str = "evalstop doctor") -> None:
        super().__init__(message)
        self.next_step = next_step


async def play(
    api: Api,
    trial: TraceOnCluster,
    policy: PolicySpec,
    place: ClusterTarget,
    report_line: ReportLine,
    patience: float,
) -> tuple[Timeline, list[Facts]]:
    """Run a trial under a policy on the nodes of a place, and clean up after it.

    Args:
        api: client of the cluster.
        trial: what to play.
        policy: the queue policy of the pool.
        place: nodes, image, storage class and scheduler.
        report_line: called with a line on the progress, several times a second.
        patience: longest time for all jobs to end (s).

    Raises:
        Failed: the pool or the pull secret is not what the trial needs, a job was refused or failed, or
            patience ran out.
        ApiError: the API server refuses.
    """
    place = changed(place, taints=its_nodes.taints(await _nodes(api, place)))
    facts = [Facts(trial.workload.key(row), trial.workload.gpus[row]) for row in range(len(trial.workload))]
    async with _ground(api, trial, policy, place, report_line), _watching(api, trial, place, facts):
        zero = time.time()
        submitting = asyncio.create_task(_submit(api, trial, place, facts, zero))
        try:
            while not (submitting.done() and all(f.over for f in facts)):
                await asyncio.wait({submitting}, timeout=_LOOK_S)
                if submitting.done():
                    submitting.result()
                    await asyncio.sleep(_LOOK_S)
                report_line(_state(facts, time.time() - zero))
                _check(facts)
                if time.time() - zero > patience:
                    left = ", ".join(f"{f.key} ({f.state})" for f in facts if not f.over)
                    raise Failed(f"after {patience:.0f} s not over: {left}")
        finally:
            submitting.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await submitting
        for _ in range(int(_QUIET_S / _LOOK_S)):
            if all(map(_has_words, facts)):
                break
            await asyncio.sleep(_LOOK_S)
    return timeline(facts, zero), facts


def _has_words(facts: Facts) -> bool:
    return all(admitted.words is not None for admitted in facts.admissions.values())


def _check(facts: Iterable[Facts]) -> None:
    for one in facts:
        if one.problem:
            raise Failed(f"{one.key}: {one.problem}")


def _state(facts: list[Facts], seconds: float) -> str:
    states = {state: sum(f.state == state for f in facts) for state in ("ended", "stopped", "running")}
    back = sum(a.back is not None for f in facts for a in f.admissions.values())
    over = states["ended"] + states["stopped"]
    return (
        f"{over} of {counted(len(facts), 'job')} over, {states['stopped']} of them stopped, "
        f"{states['running']} on GPUs, {counted(back, 'preemption')}, {seconds:.0f} s"
    )


async def _submit(
    api: Api, trial: TraceOnCluster, place: ClusterTarget, facts: list[Facts], zero: float
) -> None:
    for row, at in enumerate(trial.workload.submitted):
        await asyncio.sleep(max(0.0, zero + at - time.time()))
        facts[row].submitted = time.time()
        await api.create(RLHFJOBS, manifests.rlhfjob(trial, row, place))


@contextlib.asynccontextmanager
async def _ground(
    api: Api, trial: TraceOnCluster, policy: PolicySpec, place: ClusterTarget, report_line: ReportLine
) -> AsyncIterator[None]:
    """Namespace, volumes and pool, ready; on the way out they are deleted."""
    report_line("making namespace, volumes and pool")
    secret = await _pull_secret(api, place)
    await api.create(NAMESPACES, manifests.namespace(place))
    try:
        if secret is not None:
            await api.create(SECRETS, manifests.pull_secret(secret, place))
        for claim in manifests.claims(place):
            await api.create(CLAIMS, claim)
        await api.create(GPUPOOLS, manifests.pool(place, policy, trial.max_priority))
        await _pool_ready(api, place, trial.cluster.gpus)
        yield
    finally:
        report_line("clearing up")
        for resource, namespace in ((NAMESPACES, None), (GPUPOOLS, None)):
            with contextlib.suppress(ApiError):
                found = await api.get(resource, place.name)
                await api.delete(resource, place.name, namespace, found["metadata"]["uid"])
        await _wait_deleted(api, place.name)


async def _nodes(api: Api, place: ClusterTarget) -> list[Object]:
    key, value = place.selector
    found, _ = await api.list(NODES, labels=f"{key}={value}")
    return found


async def _pull_secret(api: Api, place: ClusterTarget) -> Object | None:
    """Return the Secret to copy. Raises Failed: it is not there, or none that pulls images."""
    if place.pull_secret is None:
        return None
    namespace, name = place.pull_secret
    there_are = f"kubectl get secrets -n {namespace} --field-selector type={PULL_SECRET_TYPE}"
    try:
        found = await api.get(SECRETS, name, namespace)
    except NotFound:
        message = f"--image-pull-secret: there is no Secret {name} in namespace {namespace}"
        raise Failed(message, there_are) from None
    if found.get("type") != PULL_SECRET_TYPE:
        raise Failed(
            f"--image-pull-secret: Secret {namespace}/{name} is of type {found.get('type')!r}, expected "
            f"{PULL_SECRET_TYPE}",
            there_are,
        )
    return found


async def _pool_ready(api: Api, place: ClusterTarget, gpus: int) -> None:
    message = "its status says nothing"
    for _ in range(int(_READY_S / _LOOK_S)):
        status = (await api.get(GPUPOOLS, place.name)).get("status") or {}
        hidden = its_nodes.hidden_gpus(await _nodes(api, place), place.taints) if place.taints else 0
        # Where the pool does not count a node before the first job is there that tolerates its taints, it
        # cannot be Ready either; that nobody else has these nodes or is on them it says all the same.
        needed = ("NodesExclusive", "GPUsExclusive") if hidden else ("Ready",)
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        if all(type_ in conditions for type_ in needed):
            amiss = [one for type_ in needed if (one := conditions[type_])["status"] != "True"]
            counts = (status.get("free"), status.get("capacity"))
            if not amiss and all(count is not None and count + hidden == gpus for count in counts):
                return
            message = "; ".join(
                f"{one['reason']}: {one['message']}" for one in amiss or [conditions[needed[0]]]
            )
            there = "an unknown number of GPUs" if counts[1] is None else counted(counts[1], "GPU")
            message += f" ({counts[0]} of {there} {agreeing(counts[0] or 0, 'is', 'are')} free"
            message += f", and {hidden} are behind taints that the jobs tolerate)" if hidden else ")"
        await asyncio.sleep(_LOOK_S)
    key, value = place.selector
    raise Failed(
        f"the pool of the nodes with {key}={value} does not have the {counted(gpus, 'free GPU')} of the "
        f"trial after {_READY_S:.0f} s: {message}"
    )


async def _wait_deleted(api: Api, name: str) -> None:
    """Until the pool is gone: another one may want its nodes. The namespace goes in its own time."""
    for _ in range(int(_READY_S / _LOOK_S)):
        try:
            await api.get(GPUPOOLS, name)
        except NotFound:
            return
        except ApiError:
            return
        await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def _watching(
    api: Api, trial: TraceOnCluster, place: ClusterTarget, facts: list[Facts]
) -> AsyncIterator[None]:
    by_name = dict(zip(trial.names, facts, strict=True))

    def take(resource: Resource, obj: Mapping[str, Any], deleted: bool) -> None:
        metadata = obj["metadata"]
        if metadata.get("namespace") != place.name:
            return
        if resource is RLHFJOBS:
            if (one := by_name.get(metadata["name"])) is not None and not deleted:
                one.take(obj.get("status"))
        elif (one := by_name.get((metadata.get("labels") or {}).get(names.LABEL_JOB, ""))) is not None:
            one.take_pod(obj, time.time())

    def replace(resource: Resource, objects: Iterable[Mapping[str, Any]], version: str) -> None:
        for obj in objects:
            take(resource, obj, False)

    tasks = [asyncio.create_task(ListWatch(api, kind, take, replace).run()) for kind in (RLHFJOBS, PODS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
