"""Kueue's objects, as the tests make and read them."""

from typing import Any

from controller import names
from controller.kube.errors import ApiError
from tests.support.agent_fixture import SHELL_IMAGE
from tests.support.store_work import KUEUE_API, QUEUE, Cluster


def make_queue(cluster: Cluster, name: str, gpus: int) -> None:
    """A LocalQueue in the test's namespace over a ClusterQueue of its own; returns once Kueue knows it."""
    queue = f"{cluster.namespace}-{name}"
    flavor = {"name": queue, "resources": [{"name": names.GPU_RESOURCE, "nominalQuota": gpus}]}
    for kind, object_name, spec in (
        ("ResourceFlavor", queue, {}),
        (
            "ClusterQueue",
            queue,
            {
                "namespaceSelector": {},
                "resourceGroups": [{"coveredResources": [names.GPU_RESOURCE], "flavors": [flavor]}],
            },
        ),
        ("LocalQueue", name, {"clusterQueue": queue}),
    ):
        made = {"apiVersion": KUEUE_API, "kind": kind, "metadata": {"name": object_name}, "spec": spec}
        cluster.create(made, namespaced=kind == "LocalQueue")
    cluster.wait(lambda: condition(cluster.get("LocalQueue", name), "Active") is not None)
    if name == "default":
        cluster.wait(lambda: captured(cluster.create(job("probe"), dry_run=True)))


def job(name: str, gpus: int = 1, queue: str | None = None) -> dict[str, Any]:
    """A Job of one pod that sleeps."""
    container = {
        "name": "c",
        "image": SHELL_IMAGE,
        "command": ["sleep", "3600"],
        "resources": {"limits": {names.GPU_RESOURCE: gpus}},
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {} if queue is None else {QUEUE: queue}},
        "spec": {"template": {"spec": pod}},
    }


def captured(found: Any) -> bool:
    """Whether a Job is under a queue."""
    return QUEUE in (found["metadata"].get("labels") or {})


def workload_of(cluster: Cluster, found: Any) -> Any | None:
    """The Workload that Kueue made for a Job; None: it made none."""
    uid = found["metadata"]["uid"]
    owned = [w for w in cluster.all("Workload") if w["metadata"]["ownerReferences"][0]["uid"] == uid]
    return owned[0] if owned else None


def condition(obj: Any, type_: str) -> Any | None:
    """A condition that is True."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_ and c["status"] == "True"), None)


def deactivate(cluster: Cluster, found: Any) -> None:
    """Have Kueue stop a Job."""
    workload = workload_of(cluster, found)
    assert workload is not None
    cluster.patch(workload, {"spec": {"active": False}})


def suspended(cluster: Cluster, name: str) -> bool:
    return cluster.get("Job", name)["spec"].get("suspend") is True


def unlabel_problem(cluster: Cluster, name: str) -> str | None:
    """Why the queue label cannot be taken off a Job; None: it could (a dry run)."""
    try:
        cluster.patch(cluster.get("Job", name), {"metadata": {"labels": {QUEUE: None}}}, dry_run=True)
    except ApiError as error:
        return str(error)
    return None
