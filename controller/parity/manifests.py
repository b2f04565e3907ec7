"""Manifests of a trial on a cluster: a pool, a namespace with volumes, and each job as an RLHFJob."""

from __future__ import annotations

import math
from typing import Any

from controller import names
from controller.api.rule_text import written
from controller.frozen import dataclass
from controller.parity.compressed_trace import TraceOnCluster
from controller.parity.nodes import Taint
from controller.policy.queueing import MAX_WAIT, POLICIES
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import PolicySpec

METRIC = "score"
SCRAPE_SECONDS = 5  # the shortest that an RLHFJob takes
CHECKPOINTS, RETAINED = "checkpoints", "retained"
_MOUNT = "/checkpoints"
_USER = 10001

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """Target of a trial on a cluster.

    Attributes:
        selector: (key, value) of the label of its nodes.
        image: has Python and this repository, for `examples.played`.
        storage_class: of the volumes, which many pods mount; "": the cluster's default.
        scheduler: a kube-scheduler that asks the extender, so that members go to the nodes of the plan; "":
            the pool's default, which places them as it likes.
        pull_secret: (namespace, name) of the Secret that its images are pulled with.
        taints: of its nodes, which the pods tolerate.
    """

    name: str  # of the namespace and the pool
    selector: tuple[str, str]
    image: str = f"{names.TRAINER_IMAGE}:0.1.0"
    storage_class: str = ""
    scheduler: str = ""
    pull_secret: tuple[str, str] | None = None
    taints: tuple[Taint, ...] = ()


def namespace(place: ClusterTarget) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.name}}


def claims(place: ClusterTarget) -> list[Object]:
    """Volumes for checkpoints and for those that are kept."""
    spec: Object = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    if place.storage_class:
        spec["storageClassName"] = place.storage_class
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": place.name},
            "spec": spec,
        }
        for name in (CHECKPOINTS, RETAINED)
    ]


def pull_secret(found: Object, place: ClusterTarget) -> Object:
    """Return a copy of a Secret for the place: pods read those of their own namespace only."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": found["metadata"]["name"], "namespace": place.name},
        "type": found["type"],
        "data": found.get("data") or {},
    }


def pool(place: ClusterTarget, policy: PolicySpec, max_priority: int) -> Object:
    """Return a pool of the place's nodes under a policy, its limits those of `simulated.LIMITS`."""
    key, value = place.selector
    chosen = dict(policy.params)
    spec: Object = {
        "nodeSelector": [{"key": key, "value": value}],
        "queuePolicy": written(PolicySpec(policy.name, chosen), POLICIES),
        "allowedNamespaces": [{"name": place.name, "maxPriority": max_priority}],
        "stopLimits": {"sharedFallPercent": 0},
    }
    if place.scheduler:
        spec["schedulerName"] = place.scheduler
    if MAX_WAIT in chosen:
        spec["maxWaitSeconds"] = int(chosen[MAX_WAIT])
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUPool",
        "metadata": {"name": place.name},
        "spec": spec,
    }


def rlhfjob(trial: TraceOnCluster, row: int, place: ClusterTarget) -> Object:
    """Return a job of the trial, its pods playing it.

    Its user states what the run takes, not what the trace's user thought: the simulator's srtf goes by what
    is really left, and would be held against another policy.
    """
    workload, name = trial.workload, trial.names[row]
    replicas, gpus = trial.gangs[row]
    evals = workload.evals[row] if len(workload.evals) else None
    spec: Object = {
        "pool": place.name,
        "gang": {"replicas": replicas, "gpusPerReplica": gpus},
        "expectedDurationSeconds": int(workload.work[row]),
        "metrics": [{"name": METRIC}],
        "stopRule": written(trial.rule.rule, RULES),
        "modifiers": [written(modifier, MODIFIERS) for modifier in trial.rule.modifiers],
        "checkpoints": {
            "location": {"volumeClaim": {"claimName": CHECKPOINTS, "path": f"/{name}"}},
            "layout": "Plain",
            "retention": {"volumeClaim": {"claimName": RETAINED, "path": "/"}},
        },
        "scrape": {"intervalSeconds": SCRAPE_SECONDS},
        "workload": {
            "template": _template(place, name, replicas, gpus, _arguments(workload.work[row], evals))
        },
    }
    if len(workload.priority):
        spec["priority"] = workload.priority[row]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": place.name},
        "spec": spec,
    }


def _arguments(work: float, evals: Any) -> list[str]:
    """Of `examples.played`."""
    found = [f"--work={work:g}", f"--metric={METRIC}"]
    if evals is not None:
        found.append("--at=" + ",".join(map(repr, evals.at)))
        found.append("--scores=" + ",".join(repr(float(score)) for score in evals.scores))
        if len(evals.stderrs):
            errors = (math.nan if error is None else float(error) for error in evals.stderrs)
            found.append("--stderrs=" + ",".join(map(repr, errors)))
    return found


def _template(place: ClusterTarget, name: str, replicas: int, gpus: int, arguments: list[str]) -> Object:
    container: Object = {
        "name": "trainer",
        "image": place.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "examples.played"],
        "args": [*arguments, f"--checkpoints={_MOUNT}/{name}"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": names.METRICS_PORT_NAME, "containerPort": names.DEFAULT_METRICS_PORT}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "48Mi"},
            "limits": {names.GPU_RESOURCE: str(gpus)},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "checkpoints", "mountPath": _MOUNT}],
    }
    pod: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 15,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": CHECKPOINTS}}],
    }
    if place.pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": place.pull_secret[1]}]
    if place.taints:
        pod["tolerations"] = [taint.toleration() for taint in place.taints]
    ignored_failures = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "completionMode": "Indexed",
            "completions": replicas,
            "parallelism": replicas,
            "backoffLimit": 3,
            "podFailurePolicy": {"rules": ignored_failures},
            "template": {"spec": pod},
        },
    }
