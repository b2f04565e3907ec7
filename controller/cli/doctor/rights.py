"""Rights: those without which the parts of an installation fail sooner or later, and whether they have them.

The tables are what the roles of deploy/ and of the chart grant (tests/cli/test_cli_rights.py compares them),
so a part that passes lacks nothing that it could come to ask for.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from controller import names
from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, note, ok, unknown, wrong
from controller.environ import listed
from controller.frozen import dataclass
from controller.kube.errors import ApiError
from controller.kube.resources import (
    ACCESS_REVIEWS,
    CLUSTER_WIDE,
    EVENTS,
    GPUPOOLS,
    KUEUE,
    PODS,
    RLHFJOBS,
    Resource,
)
from controller.policy.group_types import GROUPS_NAMESPACE

Object = dict[str, Any]
T = TypeVar("T")

OPERATOR, EXTENDER, DASHBOARD = names.OPERATOR, "evalstop-extender", "evalstop-dashboard"
_PREFIX = {OPERATOR: "EVALSTOP_", EXTENDER: "EVALSTOP_EXTENDER_"}  # of settings; the dashboard always asks
AT_ONCE = 8  # questions: what a busy API server answers without making others wait
CHART = "deploy/helm/evalstop"
# Where the rights of each part are written down, for who installs without Helm.
MANIFESTS = {
    OPERATOR: "deploy/manifests/rbac.yaml",
    EXTENDER: "deploy/extender/rbac.yaml",
    DASHBOARD: "deploy/dashboard/dashboard.yaml",
}


@dataclass(frozen=True, slots=True)
class Right:
    """A right that a part needs: in the whole cluster, unless ``own`` or ``where`` says less.

    Attributes:
        name: of the one object that it is over; "": over all.
        own: it is in the part's own namespace.
        where: the namespace that it is in; "": see above.
    """

    verb: str
    group: str
    resource: str  # with its subresource: jobs/status
    name: str = ""
    own: bool = False
    where: str = ""

    @property
    def in_namespaces(self) -> bool:
        """Return whether it is over things in namespaces that are served."""
        # A namespace itself is read with a right in it.
        plural = self.resource.partition("/")[0]
        return not self.own and not self.where and (plural == "namespaces" or plural not in CLUSTER_WIDE)

    @property
    def what(self) -> str:
        """``jobs.batch/status``, as kubectl auth can-i names it."""
        plural, slash, subresource = self.resource.partition("/")
        qualified = f"{plural}.{self.group}" if self.group else plural
        return f"{qualified}{slash}{subresource}" + (f" {self.name}" if self.name else "")

    def attributes(self, namespace: str) -> dict[str, str]:
        """As an access review asks. ``namespace``: the part's own."""
        plural, _, subresource = self.resource.partition("/")
        asked = {
            "verb": self.verb,
            "group": self.group,
            "resource": plural,
            "subresource": subresource,
            "name": self.name,
            "namespace": namespace if self.own else self.where,
        }
        return {key: value for key, value in asked.items() if value or key == "group"}


def _rights(
    verbs: str, group: str, resources: str, name: str = "", own: bool = False, where: str = ""
) -> tuple[Right, ...]:
    return tuple(
        Right(verb, group, resource, name, own, where)
        for resource in resources.split()
        for verb in verbs.split()
    )


_LEASES = "coordination.k8s.io"
# Who somebody is, and what they may see: metrics, or the dashboard's pages.
_REVIEWS = (
    *_rights("create", "authentication.k8s.io", "tokenreviews"),
    *_rights("create", "authorization.k8s.io", "subjectaccessreviews"),
)
# Whatever the chart's values are.
ALWAYS = (
    *_rights("get list watch patch", names.GROUP, "rlhfjobs"),
    *_rights("get list watch", names.GROUP, "gpupools"),
    *_rights("patch", names.GROUP, "rlhfjobs/status gpupools/status"),
    *_rights("update", names.GROUP, "rlhfjobs/finalizers"),
    *_rights("get list watch create delete", names.GROUP, "workergroups", where=GROUPS_NAMESPACE),
    *_rights("patch", names.GROUP, "workergroups/status", where=GROUPS_NAMESPACE),
    *_rights("update", names.GROUP, "workergroups/finalizers", where=GROUPS_NAMESPACE),
    *_rights("get list watch create delete", "batch", "jobs"),
    *_rights("update", "batch", "jobs/finalizers"),
    *_rights("get", "scheduling.k8s.io", "priorityclasses"),
    *_rights("list watch", "", "pods"),
    *_rights("get list watch patch", "", "nodes"),
    *_rights("get list watch create patch", "", "configmaps"),
    *_rights("get", "", "persistentvolumeclaims namespaces"),
    *_rights("list watch", "resource.k8s.io", "resourceclaims resourceslices"),
    *_rights("list create patch", "", "events"),
    *_rights("create", _LEASES, "leases", own=True),
    *_rights("get patch", _LEASES, "leases", OPERATOR, own=True),
    *_REVIEWS,
)
# To start and to stop a workload: `workloads.job` of the chart, the one kind of workload there is.
WORKLOADS = _rights("patch", "batch", "jobs")
# For the same, on API servers before 1.36.
BEFORE_1_36 = _rights("patch", "batch", "jobs/status")
# Once a GPUPool has delegate Kueue: `delegates.kueue` of the chart.
DELEGATED = (
    *_rights("list watch", KUEUE, "admissionchecks resourceflavors clusterqueues localqueues"),
    *_rights("get list watch patch", KUEUE, "workloads"),
    *_rights("patch", KUEUE, "workloads/status admissionchecks/status"),
)
# What the chart grants only with these values.
BY_VALUE = {"workloads.job": (*WORKLOADS, *BEFORE_1_36), "delegates.kueue": DELEGATED}
BESIDE = {
    EXTENDER: (
        *_rights("list watch", names.GROUP, "rlhfjobs gpupools workergroups"),
        *_rights("list watch", "", "nodes pods"),
        *_rights("patch", "storage.k8s.io", "csistoragecapacities", names.WAKE_OBJECT, own=True),
        *_REVIEWS,
    ),
    DASHBOARD: (
        *_rights("list watch", names.GROUP, "rlhfjobs gpupools workergroups"),
        *_rights("get", _LEASES, "leases", OPERATOR, own=True),
        *_REVIEWS,
    ),
}
# What the caller's commands need, and which those are.
CALLER_NEEDS: tuple[tuple[str, Resource, str, str], ...] = (
    ("list", RLHFJOBS, "", "list, get, why, history, simulate, top"),
    ("watch", RLHFJOBS, "", "--watch, top"),
    ("patch", RLHFJOBS, "", "mode, stop, resume, pin"),
    ("list", EVENTS, "", "the Events in history"),
    ("list", PODS, "", "doctor JOB"),
    ("get", PODS, "proxy", "doctor JOB reads the trainer's metrics"),
)


_EVENTS_OF_POOLS = "default"  # namespace: events about what is in none go there


async def operators(api: CallerApi, deployment: Object) -> AsyncIterator[Finding]:
    """Yield whether the operator has what it needs on this cluster, with these pools and its settings."""
    needed = [*ALWAYS, *WORKLOADS]
    if await _before_1_36(api):
        needed += BEFORE_1_36
    if await _delegated(api):
        needed += DELEGATED
    watched = listed(_setting(deployment, "EVALSTOP_WATCH_NAMESPACES"))
    async for finding in _of(api, deployment, OPERATOR, [*_where(needed, watched)]):
        yield finding


async def beside(api: CallerApi, deployment: Object, part: str) -> AsyncIterator[Finding]:
    """Yield the same of the extender or the dashboard."""
    async for finding in _of(api, deployment, part, BESIDE[part]):
        yield finding


async def _of(
    api: CallerApi, deployment: Object, part: str, needed: Sequence[Right]
) -> AsyncIterator[Finding]:
    called = part.removeprefix("evalstop-")
    about = f"{called}'s rights"
    if not await api.may("create", ACCESS_REVIEWS):
        yield unknown(about, "you may not ask for another's rights (subjectaccessreviews)")
        return
    if _setting(deployment, f"{_PREFIX.get(part, '-')}METRICS_ACCESS") == "open":
        needed = [right for right in needed if right not in _REVIEWS]  # nobody is asked who he is
    namespace = deployment["metadata"]["namespace"]
    account = deployment["spec"]["template"]["spec"].get("serviceAccountName", "default")

    async def has(right: Right) -> bool:
        return await _allowed(api, namespace, account, right)

    answers = await _each(needed, has)
    lacking = [right for right, allowed in zip(needed, answers, strict=True) if not allowed]
    if lacking:
        text = f"ServiceAccount {namespace}/{account} lacks {', '.join(grouped(lacking))}"
        yield wrong(about, text, cure(deployment, part, lacking))
    else:
        text = f"ServiceAccount {namespace}/{account} has all {len(needed)} that the {called} needs"
        yield ok(about, text)


def _where(needed: Iterable[Right], watched: Sequence[str]) -> Iterator[Right]:
    """Yield the rights in the namespaces in which they are used: with `operator.watchNamespaces` they are
    granted in those alone. None are ``watched``: in all."""
    for right in needed:
        if not watched or not right.in_namespaces:
            yield right
            continue
        of_pools = right.resource == "events" and right.verb != "list"
        places = {*watched, _EVENTS_OF_POOLS} if of_pools else {*watched}
        yield from (replace(right, where=place) for place in sorted(places))


def _setting(deployment: Object, name: str) -> str:
    """Return the value of an environment variable of a part's containers; "": it has none."""
    for container in deployment["spec"]["template"]["spec"].get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == name:
                return str(variable.get("value") or "")
    return ""


async def _allowed(api: CallerApi, namespace: str, account: str, right: Right) -> bool:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": groups,
            "resourceAttributes": right.attributes(namespace),
        },
    }
    answer = await api.create(ACCESS_REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))


async def _each(asked: Iterable[T], ask: Callable[[T], Awaitable[bool]]) -> list[bool]:
    """Return the answers, in the questions' order; at most `AT_ONCE` are under way."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(question: T) -> bool:
        async with room:
            return await ask(question)

    return await asyncio.gather(*map(one, asked))


def grouped(lacking: Sequence[Right]) -> list[str]:
    """``get/list nodes``: every one of them, those over the same thing together."""
    verbs: dict[str, list[str]] = {}
    for right in lacking:
        place = "its own namespace" if right.own else f"namespace {right.where}" if right.where else ""
        where = f"{right.what} (in {place})" if place else right.what
        verbs.setdefault(where, []).append(right.verb)
    return [f"{'/'.join(found)} {what}" for what, found in verbs.items()]


def cure(deployment: Object, part: str, lacking: Sequence[Right] = ()) -> str:
    """Return the command that grants a part what it lacks, by how it was installed."""
    metadata = deployment["metadata"]
    if (metadata.get("labels") or {}).get("app.kubernetes.io/managed-by") != "Helm":
        return f"kubectl apply -f {MANIFESTS[part]}"
    release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name", "evalstop")
    anywhere = {replace(right, where="") for right in lacking}
    values = [value for value, theirs in BY_VALUE.items() if part == OPERATOR and {*theirs} & anywhere]
    more = "".join(f" --set {value}=true" for value in values)
    return f"helm upgrade {release} {CHART} -n {metadata['namespace']} --reset-then-reuse-values{more}"


async def _before_1_36(api: CallerApi) -> bool:
    """Return whether the API server is that old; one that does not say is taken to be."""
    version = json.loads(await api.raw("GET", "/version"))
    found = re.match(r"v?(\d+)\.(\d+)", str(version.get("gitVersion", "")))
    return found is None or (int(found[1]), int(found[2])) < (1, 36)


async def _delegated(api: CallerApi) -> bool:
    """Return whether a pool leaves its queue to Kueue. Pools that cannot be read are told elsewhere."""
    try:
        found, _ = await api.list(GPUPOOLS, None)
    except ApiError:
        return False
    return any((pool.get("spec") or {}).get("delegate") == "Kueue" for pool in found)


async def caller(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield what the caller may do in a namespace, and which commands need it."""
    about = "your rights"

    async def may(need: tuple[str, Resource, str, str]) -> bool:
        verb, resource, subresource, _ = need
        return await api.may(verb, resource, namespace, subresource)

    lacking = []
    answers = await _each(CALLER_NEEDS, may)
    for (verb, resource, subresource, commands), allowed in zip(CALLER_NEEDS, answers, strict=True):
        if not allowed:
            what = f"{resource}{'/' + subresource if subresource else ''}"
            lacking.append(f"{verb} {what} (for {commands})")
    role = f"kubectl create rolebinding NAME -n {namespace} --clusterrole=edit --user=YOU"
    if lacking:
        yield note(about, f"in namespace {namespace} you may not: {'; '.join(lacking)}", f"ask for {role}")
    else:
        yield ok(about, f"you may use every command in namespace {namespace}")
    if not await api.may("list", GPUPOOLS):
        yield note(about, "you may not list gpupools.evalstop.dev (for pools, and the pools in top)")
