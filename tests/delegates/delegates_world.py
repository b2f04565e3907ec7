"""A child workload and, where there is a queue outside, that queue's objects: patched as a server would."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from controller import names
from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.delegates import Adapter, ExternalQueue, Placement, Write, of_workload, queue_of_workload
from controller.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    FLAVORS,
    JOBS,
    LOCAL_QUEUES,
    WORKLOADS,
    Resource,
)
from controller.policy.types import Delegate
from tests.support.merge_patch import merge_apply

Object = dict[str, Any]
T0 = "2026-11-21T12:00:00Z"
NAMESPACE, QUEUE = "team", "research"
PLACE = Placement(3, "gpus", {"pool": "gpus"})


def pool(delegate: Delegate, **spec: Any) -> GPUPool:
    queue = {"kueue": {"localQueue": QUEUE}} if delegate is Delegate.KUEUE else {}
    found = convert.parse_pool(
        {
            "apiVersion": names.API_VERSION,
            "kind": "GPUPool",
            "metadata": {"name": "gpus", "uid": "p", "generation": 1},
            "spec": {
                "nodeSelector": [{"key": "pool", "value": "gpus"}],
                "allowedNamespaces": [{"name": "*"}],
                "delegate": str(delegate),
                **queue,
                **spec,
            },
        }
    )
    assert isinstance(found, GPUPool), found
    return found


def child(adapter: Adapter, suspended: bool = True) -> Object:
    """A Job of an RLHFJob `run`, lined up by the adapter, as its controller reports it."""
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "run",
            "namespace": NAMESPACE,
            "uid": "job-uid",
            "resourceVersion": "1",
            "labels": {names.LABEL_JOB: "run"},
        },
        "spec": {
            "suspend": suspended,
            "template": {
                "metadata": {"labels": {names.LABEL_JOB: "run"}},
                "spec": {"containers": [{"name": "trainer"}]},
            },
        },
        "status": {"conditions": [{"type": "Suspended", "status": "True"}]} if suspended else {"active": 1},
    }
    if isinstance(adapter, ExternalQueue):
        adapter.enqueue(job, QUEUE)
    return job


def workload(job: Object, reserved: bool = True, state: str = "Pending") -> Object:
    """Kueue's Workload of it."""
    status = {
        "type": "QuotaReserved",
        "status": str(reserved),
        "reason": "R",
        "message": "insufficient quota",
    }
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": "Workload",
        "metadata": {
            "name": "job-run-1",
            "namespace": NAMESPACE,
            "uid": "workload-uid",
            "resourceVersion": "1",
            "labels": {names.LABEL_JOB: "run"},
            "ownerReferences": [
                {"kind": "Job", "name": "run", "uid": job["metadata"]["uid"], "controller": True}
            ],
        },
        "spec": {"active": True, "queueName": QUEUE, "podSets": [{"name": "main", "count": 2}]},
        "status": {
            "conditions": [{**status, "lastTransitionTime": T0}],
            "admissionChecks": [
                {"name": "somebodys", "state": "Ready", "message": "", "lastTransitionTime": T0},
                {
                    "name": "evalstop",
                    "state": state,
                    "message": "",
                    "lastTransitionTime": T0,
                    "retryCount": 1,
                },
            ],
        },
    }


def queues(gpus: int = 8) -> dict[Resource, list[Object]]:
    """A LocalQueue over a ClusterQueue with so many GPUs and the operator's check."""
    quota = {"name": names.GPU_RESOURCE, "nominalQuota": gpus}
    groups = [{"coveredResources": [names.GPU_RESOURCE], "flavors": [{"name": "f", "resources": [quota]}]}]
    checks = {"admissionChecks": [{"name": "somebodys"}, {"name": "evalstop"}]}
    return {
        FLAVORS: [made(FLAVORS, "f", {})],
        CLUSTER_QUEUES: [
            made(CLUSTER_QUEUES, "cq", {"resourceGroups": groups, "admissionChecksStrategy": checks})
        ],
        LOCAL_QUEUES: [made(LOCAL_QUEUES, QUEUE, {"clusterQueue": "cq"})],
        ADMISSION_CHECKS: [
            made(ADMISSION_CHECKS, "evalstop", {"controllerName": names.CHECK_CONTROLLER}),
            made(ADMISSION_CHECKS, "somebodys", {"controllerName": "some.body/else"}),
        ],
        WORKLOADS: [],
    }


def made(resource: Resource, name: str, spec: Object) -> Object:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    if resource.namespaced:
        metadata["namespace"] = NAMESPACE
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": copy.deepcopy(spec),
    }


class DelegateWorld:
    """`delegates.Known` over plain objects, and a server that patches them."""

    def __init__(self, adapter: Adapter, *, suspended: bool = True, known: bool = True) -> None:
        self.adapter = adapter
        self.job = child(adapter, suspended)
        self.objects = queues() if isinstance(adapter, ExternalQueue) else {}
        self.known = known
        self.gone: set[Resource] = set()
        self.sent: list[Write] = []
        if isinstance(adapter, ExternalQueue):
            self.objects[WORKLOADS].append(workload(self.job, state="Pending" if suspended else "Ready"))

    @property
    def workload(self) -> Object:
        return self.objects[WORKLOADS][0]

    def state(self) -> Object:
        """The operator's check on the Workload."""
        return next(c for c in self.workload["status"]["admissionChecks"] if c["name"] == "evalstop")

    def get(self, resource: Resource, key: str) -> Object | None:
        name = key.rpartition("/")[2]
        return next((o for o in self.objects.get(resource, ()) if o["metadata"]["name"] == name), None)

    def values(self, resource: Resource) -> Iterable[Object]:
        return self.objects.get(resource, ())

    def of_job(self, resource: Resource, job: str) -> Iterable[Object]:
        return [
            o for o in self.objects.get(resource, ()) if o["metadata"].get("labels", {}).get(names.LABEL_JOB)
        ]

    def listed(self, resource: Resource) -> bool:
        return self.known and resource not in self.gone

    def absent(self, resource: Resource) -> bool:
        return resource in self.gone

    def send(self, writes: Iterable[Write]) -> list[str]:
        """Patch what the writes mean. Returns where each went: kind, or kind/subresource."""
        found = []
        for write in writes:
            self.sent.append(write)
            target = self.job if write.resource == JOBS else self._find(write)
            assert target["metadata"]["uid"] == write.obj["metadata"]["uid"]
            merged = merge_apply(target, write.patch)
            target.clear()
            target.update(merged)
            found.append(write.resource.kind + (f"/{write.subresource}" if write.subresource else ""))
        return found

    def _find(self, write: Write) -> Object:
        found = self.get(write.resource, write.obj["metadata"]["name"])
        assert found is not None
        return found

    def start(self) -> list[str]:
        return self.send(of_workload(self.job).start(self.job, PLACE, self, 1.0))

    def stop(self, again: bool = False) -> list[str]:
        return self.send(of_workload(self.job).stop(self.job, "ConsecutiveDeclines", again, self, 1.0))

    def resume(self) -> list[str]:
        queue = queue_of_workload(self.job)
        return [] if queue is None else self.send(queue.resume(self.job, self))

    def refuse(self) -> list[str]:
        queue = queue_of_workload(self.job)
        return [] if queue is None else self.send(queue.refuse(self.job, "NoRoom: m", self, 1.0))
