"""Checks of the cluster and of EvalStop in it: API, CRDs, operator, extender, dashboard, pools."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from controller import names
from controller.cli.cluster import CallerApi, rivals
from controller.cli.doctor import rights
from controller.cli.doctor.findings import Finding, Level, note, ok, wrong
from controller.cli.pools import amiss
from controller.kube.errors import ApiError, NotFound
from controller.kube.resources import DEPLOYMENTS, GPUPOOLS, LEASES, PODS
from controller.policy.wording import CLOSED, counted, some

Object = dict[str, Any]

OPERATOR, EXTENDER, SCHEDULER = rights.OPERATOR, rights.EXTENDER, names.SCHEDULER_NAME
NAME_LABEL = "app.kubernetes.io/name"
UPGRADE = (
    "kubectl apply --server-side --force-conflicts -f crds   "
    "(or: helm upgrade, with the chart of this version)"
)
INSTALL = "kubectl apply --server-side -f crds && kubectl apply -k deploy/manifests   (or the Helm chart)"

ONE = (
    "keep one: helm uninstall the other, delete its Deployment or end its process\n"
    "kubectl get pods -A -l app.kubernetes.io/name=evalstop-operator shows those of this cluster"
)


async def server(api: CallerApi) -> AsyncIterator[Finding]:
    """Yield whether the API server answers, and its version."""
    version = json.loads(await api.raw("GET", "/version"))
    where = f"{api.caller.server}" + (f", context {api.caller.context}" if api.caller.context else "")
    yield ok("API server", f"{where}: Kubernetes {version.get('gitVersion', 'of unknown version')}")


async def resource_definitions(api: CallerApi) -> AsyncIterator[Finding]:
    """Yield whether the CRDs are served, and have the fields and words that this version knows."""
    from controller.api.crd import RESOURCES, root_schema

    try:
        served = json.loads(await api.raw("GET", f"/openapi/v3/apis/{names.API_VERSION}"))
    except NotFound:
        yield wrong("CRDs", f"the cluster does not serve {names.API_VERSION}", INSTALL)
        return
    schemas = served.get("components", {}).get("schemas", {})
    for resource in RESOURCES:
        about = f"CRD {resource.crd_name}"
        key = ".".join([*reversed(names.GROUP.split(".")), names.VERSION, resource.kind])
        if key not in schemas:
            yield wrong(about, f"the cluster does not serve {resource.kind} {names.API_VERSION}", INSTALL)
            continue
        ours, theirs = set(words(root_schema(resource.model))), set(words(schemas[key]))
        lacking, further = sorted(ours - theirs), sorted(theirs - ours)
        if lacking:
            text = f"older than this evalstop: it does not know {some(lacking, 4)}"
            yield wrong(about, text, UPGRADE)
        if further:
            text = f"newer than this evalstop: {some(further, 4)} would not be shown"
            yield note(about, text, "upgrade evalstop on this machine")
        if not lacking and not further:
            yield ok(about, f"{names.VERSION}, as this evalstop knows it")


def words(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of a schema's fields below spec and status, and ``path=word`` for each word of an
    enum."""
    for name, inner in (schema.get("properties") or {}).items():
        if not path and name not in ("spec", "status"):
            continue
        here = f"{path}.{name}" if path else name
        yield here
        yield from words(inner, here)
    if isinstance(schema.get("items"), Mapping):
        yield from words(schema["items"], f"{path}[]")
    for word in schema.get("enum") or ():
        yield f"{path}={word}"


async def deployments(api: CallerApi, namespace: str) -> list[Object]:
    """Deployments of EvalStop: of all namespaces where the caller may look, else of the operator's."""
    labels = f"app.kubernetes.io/part-of={names.MANAGED_BY}"
    try:
        found, _ = await api.list(DEPLOYMENTS, None, labels=labels)
    except ApiError:
        found, _ = await api.list(DEPLOYMENTS, namespace, labels=labels)
    return found


def called(found: Sequence[Object], name: str) -> list[Object]:
    """Return the Deployments of a component."""
    return [d for d in found if (d["metadata"].get("labels") or {}).get(NAME_LABEL) == name]


async def operator(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether exactly one installation's operator is there, ready, leading, and has the rights it
    needs."""
    operators = called(await deployments(api, namespace), OPERATOR)
    if len(operators) < 2 and (told := await rivals(api, time.time())):
        yield wrong("operator", told, ONE)
    if not operators:
        try:
            led = [finding async for finding in _lease(api, namespace)]
        except ApiError:  # of who may not read it
            led = []
        if led and led[0].level is Level.OK:
            where = f"no Deployment labelled {NAME_LABEL}={OPERATOR} runs it"
            yield note("operator", f"{where}, but one is at work: it may run outside of this cluster")
            yield led[0]
            return
        yield wrong(
            "operator",
            f"there is no Deployment labelled {NAME_LABEL}={OPERATOR}",
            f"{INSTALL}\nevalstop doctor --operator-namespace NAMESPACE, if it is elsewhere",
        )
        return
    if len(operators) > 1:
        where = ", ".join(f"{d['metadata']['namespace']}/{d['metadata']['name']}" for d in operators)
        yield wrong(
            "operator",
            f"{counted(len(operators), 'installation')} in one cluster would work against each other: "
            f"{where}",
            "helm uninstall one of them, or delete its Deployment",
        )
    for deployment in operators:
        async for finding in _deployment(api, deployment, "operator"):
            yield finding
        async for finding in _lease(api, deployment["metadata"]["namespace"]):
            yield finding
        async for finding in rights.operators(api, deployment):
            yield finding


async def _deployment(api: CallerApi, deployment: Object, about: str) -> AsyncIterator[Finding]:
    """Its replicas, and what each says of its own health."""
    from controller.cli.doctor.pods import trouble

    metadata, wanted = deployment["metadata"], (deployment.get("spec") or {}).get("replicas", 1)
    namespace, ready = metadata["namespace"], (deployment.get("status") or {}).get("readyReplicas", 0)
    selector = ",".join(
        f"{k}={v}" for k, v in (deployment["spec"].get("selector") or {}).get("matchLabels", {}).items()
    )
    pods, _ = await api.list(PODS, namespace, labels=selector)
    if ready >= wanted > 0:
        yield ok(about, f"{namespace}/{metadata['name']}: {ready} of {counted(wanted, 'replica')} ready")
        return
    problems = "; ".join(filter(None, (trouble(pod) for pod in pods)))
    text = f"{namespace}/{metadata['name']}: {ready} of {counted(wanted, 'replica')} ready"
    cure = f"kubectl -n {namespace} logs deployment/{metadata['name']} --tail=20"
    if not wanted:  # nobody is there who could have logged anything
        cure = f"kubectl -n {namespace} scale deployment/{metadata['name']} --replicas=1"
    yield wrong(about, text + (f": {problems}" if problems else ""), cure)
    for pod in pods:
        port = _port(pod)
        if port is None:
            continue
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:{port}/proxy/readyz"
        try:
            await api.raw("GET", path)
        except ApiError as error:
            if error.status >= 500 and error.message:
                yield wrong(about, f"{pod['metadata']['name']} says: {error.message}", cure)


def _port(pod: Object) -> int | None:
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == "http":
                return int(port["containerPort"])
    return None


async def _lease(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether somebody leads: one finding. Times in a Lease are of another machine's clock: it is
    watched instead."""
    try:
        lease = await api.get(LEASES, OPERATOR, namespace)
    except NotFound:
        yield note("leader", f"there is no Lease {namespace}/{OPERATOR} yet: no operator has led so far")
        return
    spec = lease.get("spec") or {}
    duration = float(spec.get("leaseDurationSeconds") or 15)
    if not spec.get("holderIdentity"):
        yield wrong("leader", "nobody leads: nothing is decided", f"kubectl -n {namespace} get pods")
        return
    version = lease["metadata"]["resourceVersion"]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + duration
    while loop.time() < deadline:
        await asyncio.sleep(min(1.0, duration / 4))
        again = await api.get(LEASES, OPERATOR, namespace)
        if again["metadata"]["resourceVersion"] != version:
            term = (again.get("spec") or {}).get("leaseTransitions", 0)
            yield ok("leader", f"{spec['holderIdentity']} leads, term {term}")
            return
    yield wrong(
        "leader",
        f"{spec['holderIdentity']} has not renewed its Lease for {duration:g} s: nothing is decided",
        f"kubectl -n {namespace} delete pod of that name if it hangs; a standby takes over by itself",
    )


async def beside(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether the extender and the dashboard, where they are installed, have the rights they need.

    The extender's health is told with the pools that ask for it."""
    found = await deployments(api, namespace)
    for deployment in called(found, rights.DASHBOARD):
        async for finding in _deployment(api, deployment, "dashboard"):
            yield finding
    for part in (rights.EXTENDER, rights.DASHBOARD):
        for deployment in called(found, part):
            async for finding in rights.beside(api, deployment, part):
                yield finding


async def pools(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield what each GPUPool says is wrong with it, and whether its scheduler is installed."""
    found, _ = await api.list(GPUPOOLS, None)
    if not found:
        yield wrong(
            "pools",
            "there is no GPUPool, so no RLHFJob can be accepted",
            "kubectl apply -f a GPUPool, as in examples/manifests/10-pool.yaml",
        )
    there: list[Object] | None = None
    for pool in sorted(found, key=lambda p: str(p["metadata"]["name"])):
        about, name = f"pool {pool['metadata']['name']}", pool["metadata"]["name"]
        status = pool.get("status") or {}
        if not status.get("conditions"):
            yield wrong(
                about, "the operator has not looked at it", "see what is found of the operator, above"
            )
            continue
        bad = amiss(status["conditions"])
        for condition in bad:
            cure = _pool_cure(name, str(condition["reason"]), str(condition["message"]))
            yield wrong(about, f"{condition['reason']}: {condition['message']}", cure)
        if not bad:
            free = f"{status.get('free', 0)} of {counted(status.get('capacity', 0), 'GPU')} free"
            yield ok(about, f"{free}, {status.get('queued', 0)} waiting")
        if scheduler := (pool.get("spec") or {}).get("schedulerName"):
            there = await deployments(api, namespace) if there is None else there
            async for finding in _scheduling(api, about, str(scheduler), there):
                yield finding


async def _scheduling(
    api: CallerApi, about: str, scheduler: str, there: Sequence[Object]
) -> AsyncIterator[Finding]:
    if scheduler == SCHEDULER and not called(there, SCHEDULER):
        if bound := await _bound_by(api, scheduler):
            text = f"{scheduler} is run by no Deployment labelled {NAME_LABEL}={scheduler}"
            yield note(about, f"{text}, but it is at work: it has placed {bound}")
            return
        yield wrong(
            about,
            f"spec.schedulerName is {scheduler}, which is not installed: its pods would wait for ever",
            "helm upgrade with scheduler.enabled=true, or kubectl apply -k deploy/extender",
        )
    for name in (EXTENDER, SCHEDULER):
        for deployment in called(there, name):
            async for finding in _deployment(api, deployment, name.removeprefix("evalstop-")):
                yield finding


async def _bound_by(api: CallerApi, scheduler: str) -> str:
    """Return a pod that is there and that this scheduler has placed; "" if none, or it may not be seen."""
    try:
        pods, _ = await api.list(PODS, None, fields=f"spec.schedulerName={scheduler}")
    except ApiError:
        return ""
    for pod in pods:
        if (pod.get("spec") or {}).get("nodeName"):
            return f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return ""


def _pool_cure(name: str, reason: str, message: str) -> str:
    edit = f"kubectl edit gpupool {name}"
    if reason == "NoUsableNodes" and CLOSED in message:
        return "of a node that is cordoned: kubectl uncordon NODE; else kubectl describe node NODE"
    return {
        "NoUsableNodes": f"label nodes as spec.nodeSelector says, or {edit}",
        "InvalidSpec": f"mend the field that the message names: {edit}",
        "YieldedToOlderPool": f"let the pools select different nodes: {edit}",
        "SharedWithYoungerPool": f"let the pools select different nodes: {edit}",
        "NoScheduler": f"install that scheduler (the chart's scheduler.enabled), or correct the name: {edit}",
        "ForeignPods": "kubectl delete those pods, or keep the pool's nodes from them by a taint",
        "ForeignPodsStuck": "kubectl describe those pods; of a node that is gone: kubectl delete node NODE",
        "FewerThanHeld": "kubectl describe node NODE: its device plugin, or the GPU that has failed",
        "MoreThanThePoolHas": f"guarantee fewer GPUs in spec.quotas, or add nodes: {edit}",
        "KueueNotInstalled": "install Kueue, or choose another spec.delegate: docs/operate/kueue.md",
        "CheckNotFound": "make the AdmissionCheck that docs/operate/kueue.md shows",
    }.get(reason, f"evalstop pools {name}")
