"""Objects of the API that tenants write, from the bytes of the server's answer on; and kube-scheduler's
questions, which hold their pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from controller import bounded, names, workloads
from controller.api import convert, fleet, newer
from controller.checkpoints import access_jobs as access
from controller.checkpoints.places import PlaceProblem
from controller.cli import explanation, job_view
from controller.extender import views
from controller.extender import wire as extender
from controller.extender.ledger_sync import WATCHED as EXTENDERS
from controller.extender.ledger_sync import LedgerSync
from controller.kube import wire
from controller.kube.cache import Cache
from controller.kube.devices import Inventory
from controller.kube.packed import Packer, TooLarge
from controller.kube.resources import (
    CONFIGMAPS,
    GPUPOOLS,
    JOBS,
    LOCAL_QUEUES,
    PODS,
    RESOURCE_CLAIMS,
    RLHFJOBS,
    WORKLOADS,
    Resource,
)
from controller.kube.trim import trim_or_bare
from controller.metrics.pods import member, members, metrics_port
from controller.objects import completion_index, controller_uid
from controller.operator.state import nodes, ownership, run_configmap
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import Unreadable
from controller.policy.job.record import Operation
from controller.policy.job.types import StartAccess
from controller.policy.node.ledger import GpuLedger
from controller.web.dashboard.feed import read_job, read_pool
from controller.web.dashboard.jobs import row
from controller.workloads import ProblemError
from controller.workloads.child import child_problem
from controller.workloads.shape import shape_problem
from tests.fuzz.target import Target
from tests.fuzz.targets import story
from tests.support import pills

Object = dict[str, Any]
NOW = 1795413600.0


def _answer(data: bytes) -> None:
    """A command reads an answer by Python's own reader; the operator would have read the same."""
    brief = wire.briefly(data)
    if brief is not None:
        assert repr(wire.decode(data)) == repr(brief)  # which tells 1 from 1.0 and True


def kept(resource: Resource, data: bytes) -> Object | None:
    """What is kept of an object that the API server sends; None: it could not have sent it."""
    try:
        obj = wire.decode(data)
    except ValueError:
        return None  # no JSON: the server is not heard at all
    # What the server says, whatever was asked for.
    metadata = obj.get("metadata")
    obj["metadata"] = {
        **(metadata if isinstance(metadata, dict) else {}),
        "name": "run",
        "namespace": "alice",
        "uid": "u-1",
        "resourceVersion": "7",
    }
    obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
    found = trim_or_bare(resource, obj)
    with suppress(TooLarge):
        again = Packer()(found).open()
        assert again["metadata"]["uid"] == "u-1"
    return found


def told(kind: Resource, obj: Object) -> None:
    """As the watches tell of it: the operator's knowledge, and the extender's ledger."""
    cache = Cache(EXTENDERS)
    ledger = GpuLedger(str)
    LedgerSync(cache, ledger, "rack", lambda: None, lambda uid: None)
    own = Cache((RLHFJOBS, GPUPOOLS, PODS, JOBS, CONFIGMAPS))
    world = ClusterState(own, lambda: 0.0)
    own.put(GPUPOOLS, pool())
    for known in (cache, own):
        known.put(kind, obj)
    with suppress(convert.StatusError, Unreadable):
        world.load("alice/run")


def pool() -> Object:
    spec = {"nodeSelector": [{"key": "pool", "value": "gpus"}], "allowedNamespaces": [{"name": "*"}]}
    metadata = {"name": "gpus", "uid": "p", "generation": 1, "resourceVersion": "1"}
    return {"apiVersion": names.API_VERSION, "kind": "GPUPool", "metadata": metadata, "spec": spec}


def _pod(data: bytes) -> None:
    pod = kept(PODS, data)
    if pod is None:
        return
    view = workloads.pod_view(pod)
    assert view.uid == "u-1"
    owner = controller_uid(pod)
    workloads.owned(pod, "job-run", [])
    ownership.controller_name(pod)
    completion_index(pod)
    with suppress(StopIteration):
        job = {"metadata": {"uid": owner, "namespace": "alice"}}
        for chosen in members([pod], job, None):
            metrics_port(chosen)
            member(chosen)
    nodes.with_gpus_on([pod], {"node-1"})
    nodes.gpus_by_node([pod])
    nodes.place(pod)
    views.pod_request(pod)
    views.uid(pod)
    told(PODS, pod)
    if not wire.problem(pod):
        access.parse_result({"metadata": {}}, [pod])


def _job(data: bytes) -> None:
    job = kept(JOBS, data)
    if job is None or wire.problem(job):
        return
    workloads.view(job)
    workloads.start_problem(job)
    workloads.start_patch(job, 2, {"pool": "a"}, labels={"x": "y"})
    workloads.restart_patch(job)
    workloads.queue_of(job)
    workloads.queue_problem(job, {})
    workloads.strip_queue_patch(job, {})
    workloads.suspend_patch(job)
    workloads.tolerations(job)
    workloads.node_selector(job)
    workloads.pod_annotations(job)
    workloads.scaled_down(job, 2)
    if shape_problem(workloads.kind_of(job), job, "Job run") is None:
        of = rlhfjob({})
        of["spec"]["workload"] = {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "run"}}
        workloads.ref_problem(of, job)
        child_problem(rlhfjob({"spec": job.get("spec") or {}}), job)
    access.is_unsuspended(job)
    access.same_work(job, job)
    access.parse_result(job, [])
    ownership.leftover(job, {"metadata": {"name": "run", "uid": "x"}})
    ownership.earlier_job(job, {"metadata": {"name": "run", "uid": "x"}})


def _template(data: bytes) -> None:
    """Fields that no schema knows: the one part of an RLHFJob that the server takes as it is."""
    try:
        template = wire.decode(data)
    except ValueError:
        return
    if wire.problem(template):
        return
    obj = rlhfjob(template)
    workloads.expiry_note(template)
    if workloads.template_shape_problem(obj) is not None:
        return
    if workloads.template_problem(obj) is not None:
        return
    child = workloads.build_child(obj)
    child["metadata"]["uid"] = "u-2"
    workloads.view(child)
    workloads.start_patch(child, 1, {"pool": "a"})
    pods = child["spec"]["template"]
    if access.access_problem(obj, pods, {}) is None:
        action = StartAccess("7", Operation.SECURE, step=100)
        with suppress(access.AccessRefused, PlaceProblem):
            access.access_job(obj, pods, action, access.AccessSettings(), claims={}, anchor=child)


def rlhfjob(template: Object) -> Object:
    obj = pills.KINDS[RLHFJOBS]("run")
    obj["spec"]["workload"]["template"] = template
    location = {"objectStore": {"uri": "s3://alice/run"}}
    obj["spec"]["checkpoints"] |= {"location": location, "retention": location}
    metadata = {"name": "run", "namespace": "alice", "uid": "u-1", "generation": 1, "resourceVersion": "7"}
    return {"apiVersion": names.API_VERSION, "kind": "RLHFJob", "metadata": metadata, **obj}


def _rlhfjob(data: bytes) -> None:
    obj = kept(RLHFJOBS, data)
    if obj is None or wire.problem(obj):
        return
    convert.desired(obj, None)
    told(RLHFJOBS, obj)
    with suppress(convert.StatusError):
        newer.refuse_newer_job(obj.get("status"))
        convert.record(obj.get("status"))


def _status(data: bytes) -> None:
    """Of an RLHFJob and of a GPUPool: the operator's own, and of whoever may write there."""
    try:
        status = wire.decode(data)
    except ValueError:
        return
    if wire.problem(status):
        return
    for read in (
        convert.handovers,
        convert.reservations,
        convert.recalled,
        fleet.noise,
        fleet.shared_falls,
        fleet.stops,
    ):
        with suppress(convert.StatusError):
            read(status)
    fleet.taught(status)
    read_pool({"metadata": {"name": "gpus", "resourceVersion": "7"}, "status": status})
    obj = rlhfjob({})
    obj["status"] = status
    with suppress(convert.StatusError):
        newer.refuse_newer_pool(status)
    newer.refuse_newer_job(status)
    record = convert.record(status)
    convert.status(record, convert.desired(obj, None), NOW)
    explanation.explain(job_view.read(obj), NOW)
    row(read_job(obj, {}), NOW)


def _configmap(data: bytes) -> None:
    found = kept(CONFIGMAPS, data)
    if found is not None and not wire.problem(found):
        run_configmap.read(found)


def _claim(data: bytes) -> None:
    claim = kept(RESOURCE_CLAIMS, data)
    if claim is not None and not wire.problem(claim):
        Inventory([]).holdings(claim)


def _of_kueue(resource: Resource) -> Callable[[bytes], object]:
    return lambda data: kept(resource, data)


def _list(data: bytes) -> None:
    """A page of a LIST: one object spoils no other."""
    answer = wire.decode(b'{"kind":"List","items":[{"metadata":{"name":"first"}},%s,{"a":[[]]}]}' % data)
    items = answer["items"]
    if isinstance(items, list) and len(items) == 3 and all(isinstance(item, dict) for item in items):
        assert wire.problem(answer["items"][0]) == ""
        assert answer["items"][2] == {"a": [[]]}


def _prune(data: bytes) -> None:
    for depth in (1, 20, bounded.DEPTH):
        pruned, cuts = bounded.prune(data, depth)
        assert len(pruned) <= len(data) + 4 * len(cuts)


def _question(data: bytes) -> None:
    message = extender.parse(data)
    for read in (extender.args, extender.preemption_args):
        with suppress(extender.BadRequest):
            found = read(message)
            views.pod_request(found.pod)
            views.uid(found.pod)


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _seeds(resource: Resource) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        name = "run-run" if resource == CONFIGMAPS else "run"
        obj = {"metadata": pills._metadata(name, "run"), **pills.KINDS[resource]("run")}
        yield _dumped(obj)
        yield _dumped({**obj, "spec": "DEEP"}).replace(b'"DEEP"', b"[" * 300 + b"]" * 300)

    return seeds


POOL_STATUS = {
    "reservations": [
        {"source": "a/b", "target": "c/d", "nodes": ["n"], "expires": "2026-11-23T06:00:00Z", "admission": 1}
    ],
    "recalled": [
        {
            "target": "a/b",
            "places": [{"node": "n", "gpus": 1}],
            "expires": "2026-11-23T06:00:00Z",
            "returning": True,
        }
    ],
    "noise": [{"namespace": "a", "metric": "gold", "sigma": "0.1", "freedom": "9", "jobs": 2}],
    "sharedFalls": [
        {
            "namespace": "a",
            "after": "2026-11-23T06:00:00Z",
            "before": "2026-11-23T06:00:00Z",
            "fell": 2,
            "of": 3,
        }
    ],
    "stops": {"lastHour": 1, "today": 2, "granted": [{"job": "a/b", "time": "2026-11-23T06:00:00Z"}]},
    "lastHandovers": [],
}
QUESTION = {
    "Pod": {"metadata": {"name": "p", "namespace": "alice", "labels": {names.LABEL_JOB: "run"}}, "spec": {}},
    "NodeNames": ["n1", "n2"],
}
VICTIMS = {
    "Pod": QUESTION["Pod"],
    "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}},
}
WHOLE = {"Pod": QUESTION["Pod"], "Nodes": {"items": [{"metadata": {"name": "n1"}}]}}

TARGETS = (
    Target("pod", _pod, _seeds(PODS), most=1 << 18),
    Target("job", _job, _seeds(JOBS), most=1 << 18),
    Target("rlhfjob", _rlhfjob, _seeds(RLHFJOBS), most=1 << 18),
    Target(
        "workload-template",
        _template,
        lambda: (_dumped({"apiVersion": "batch/v1", "kind": "Job", "spec": pills._job_spec()}),),
        own=(ProblemError,),
        most=1 << 18,
    ),
    Target(
        "status",
        _status,
        lambda: (_dumped(story.status()), _dumped(POOL_STATUS)),
        own=(convert.StatusError,),
        most=1 << 18,
    ),
    Target("run-configmap", _configmap, _seeds(CONFIGMAPS), most=1 << 18),
    Target("resource-claim", _claim, _seeds(RESOURCE_CLAIMS), most=1 << 18),
    Target("kueue-workload", _of_kueue(WORKLOADS), _seeds(WORKLOADS), most=1 << 18),
    Target("local-queue", _of_kueue(LOCAL_QUEUES), _seeds(LOCAL_QUEUES), most=1 << 18),
    Target("list-of-objects", _list, _seeds(PODS), own=(ValueError,), most=1 << 20, cpu=4.0),
    Target("answer", _answer, _seeds(PODS), most=1 << 18),
    Target("pruned-json", _prune, lambda: (b'{"a":[{"b":[1,2]},"]"],"c":{}}',), most=1 << 20, cpu=6.0),
    Target(
        "extenders-question",
        _question,
        lambda: (_dumped(QUESTION), _dumped(VICTIMS), _dumped(WHOLE)),
        own=(extender.BadRequest,),
        most=1 << 18,
    ),
)
