"""A rollout actor's Job: one pod, on the node of its entry, without retries, owned by the child workload.

Owned by the child, so that garbage collection ends it with that one and Kueue, which looks at the owner,
leaves it alone. The engine is the user's container; the sidecar that faces the network is put before it. The
two share a folder for the engine's Unix socket, and only the sidecar gets the token for the step API.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from controller import bounded, names
from controller.objects import (
    Object,
    controller_of,
    controller_reference,
    has_condition,
    is_ready,
    is_terminal,
    parse_time,
)
from controller.policy.actor_types import Actor
from controller.policy.job import ActorSeen
from controller.policy.types import Problem
from controller.workloads.kinds import get
from controller.workloads.pod_trouble import pod_trouble
from controller.workloads.pods import gpus, unheard
from controller.workloads.problems import ProblemError
from controller.workloads.running import pool_toleration
from controller.workloads.scheduling import Scheduling, set_scheduling
from controller.workloads.step_token import token_source

TEMPLATE, WEIGHTS = "spec.rollout.template", "spec.rollout.weightsVolume"
COMPONENT = "actor"
SIDECAR = "evalstop-actor"
ENGINE_DIR, ENGINE_VOLUME = "/run/engine", "evalstop-engine"
WEIGHTS_DIR = "/run/weights"  # where sidecar and engine have the weights of a shared volume
_OF_ONE_POD = ("emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI")
TOKEN_DIR, TOKEN_VOLUME = names.STEPS_TOKEN_DIR, names.STEPS_TOKEN_VOLUME
PORT = names.ACTOR_PORT
PROBE_SECONDS = 2  # whole: how much later than it does it may be seen to take prompts


class Sidecar(NamedTuple):
    """An actor's sidecar, and the place where it registers."""

    image: str
    steps: str  # https:// addresses of the step API, by commas
    ca_configmap: str  # ConfigMap whose key `names.STEPS_CA_KEY` has the authority of its certificate
    engine: str = "Plain"
    weights: str = ""  # volume of the template that the trainer writes weights to; "": they are pushed


def weights_problem(rollout: Object) -> Problem | None:
    """Return what is wrong with the way on which weights come to actors, by field, and what would be right.

    Args:
        rollout: ``spec.rollout`` of an RLHFJob.
    """
    named, engine = str(rollout.get("weightsVolume") or ""), str(rollout.get("engine", "Plain"))
    if not named:
        if engine == "Plain":
            return None
        return Problem(
            "WeightsNotShared",
            f"{WEIGHTS}: missing, engine {engine} loads weights from a shared volume alone: expected the "
            f"name of one in {TEMPLATE}.spec.volumes",
        )
    volumes = {str(one.get("name")): one for one in get(rollout, ("template", "spec", "volumes")) or ()}
    if named not in volumes:
        there = ", ".join(sorted(volumes)) or "none"
        return Problem(
            "NoWeightsVolume", f"{WEIGHTS}: {named!r}, expected one of {TEMPLATE}.spec.volumes ({there})"
        )
    if kind := next((kind for kind in _OF_ONE_POD if kind in volumes[named]), ""):
        return Problem(
            "WeightsNotShared",
            f"{WEIGHTS}: {named!r} is of kind {kind}, which is not shared with the trainer's pod: expected "
            "one that is, such as a persistentVolumeClaim",
        )
    return None


def actor_template_problem(template: Object, gpus_per_actor: int) -> Problem | None:
    """Return what is wrong with the template of actors' pods, by field, and what would be right."""
    pod = get(template, ("spec",)) or {}
    containers = pod.get("containers") or []
    if not containers:
        return Problem("NoContainers", f"{TEMPLATE}.spec.containers: empty, expected the engine's container")
    field = f"{TEMPLATE}.spec.containers[*].resources.limits[{names.GPU_RESOURCE}]"
    asked = gpus(pod)
    if not asked:
        return Problem(
            "ActorWithoutGPUs", f"{field}: none, expected {gpus_per_actor} as in spec.rollout.gpusPerActor"
        )
    if asked != gpus_per_actor:
        return Problem(
            "ActorGPUsMismatch",
            f"{field}: {asked} in all, expected {gpus_per_actor} as in spec.rollout.gpusPerActor",
        )
    if pod.get("nodeName"):
        return Problem("ActorPlaced", f"{TEMPLATE}.spec.nodeName: leave it out, the pool chooses the node")
    for i, volume in enumerate(pod.get("volumes") or ()):
        if volume.get("name") in (ENGINE_VOLUME, TOKEN_VOLUME):
            return Problem(
                "ReservedName",
                f"{TEMPLATE}.spec.volumes[{i}].name: {volume['name']!r} is the operator's, choose another",
            )
    for group in ("initContainers", "containers"):
        for i, container in enumerate(pod.get(group) or ()):
            if container.get("name") == SIDECAR:
                return Problem(
                    "ReservedName",
                    f"{TEMPLATE}.spec.{group}[{i}].name: {SIDECAR!r} is the operator's, choose another",
                )
    return None


def is_actor(obj: Object) -> bool:
    """Return whether a Job or pod says that it is of a rollout actor."""
    return (obj["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == COMPONENT


def actor_number(obj: Object) -> int | None:
    """Return the number that an actor's Job or pod bears; None: it bears none."""
    number = (obj["metadata"].get("labels") or {}).get(names.LABEL_ACTOR, "")
    return bounded.whole(number)


def actor_job_name(name: str, attempt: int, number: int) -> str:
    """Return the name of an actor's Job: the same whenever it is asked for, so that none is made twice."""
    return f"{name}-actor-{attempt}-{number}"


def build_actor(
    child: Object,
    name: str,
    template: Object,
    entry: Actor,
    sidecar: Sidecar,
    *,
    attempt: int,
    pool: str,
    grace: int,
    scheduling: Scheduling,
) -> dict[str, Any]:
    """Return the Job of one actor.

    Args:
        child: the RLHFJob's workload, with ``metadata.uid``; it is to own the Job.
        name: of the RLHFJob.
        template: pod template of actors; nothing of it is shared with the result.
        entry: what is on record: number, node and GPUs.
        sidecar: what is put before the engine.
        attempt: number of the admission that the actor belongs to.
        pool: name of the GPUPool, whose taint its pod tolerates.
        grace: s that the pod may take to end at most: a recall waits for it.
        scheduling: what the pool asks of its pods.

    Raises:
        ProblemError: `actor_template_problem` has something to say.
    """
    problem = actor_template_problem(template, entry.gpus)
    if problem is not None:
        raise ProblemError(problem)
    made = copy.deepcopy(dict(template))
    metadata, pod = dict(made.get("metadata") or {}), dict(made["spec"])
    labels = {
        names.LABEL_JOB: name,
        names.LABEL_COMPONENT: COMPONENT,
        names.LABEL_ACTOR: str(entry.number),
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }
    annotations = {names.ANNOTATION_ADMISSION: str(attempt)}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    pod["restartPolicy"] = "Never"
    pod["terminationGracePeriodSeconds"] = min(int(pod.get("terminationGracePeriodSeconds", grace)), grace)
    pod["affinity"] = _on_node(pod.get("affinity") or {}, entry.node)
    tolerations = [t for t in pod.get("tolerations") or [] if t != pool_toleration(pool)]
    pod["tolerations"] = [*tolerations, pool_toleration(pool)]
    set_scheduling(pod, scheduling)
    _put_sidecar(pod, sidecar)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": actor_job_name(name, attempt, entry.number),
            "namespace": child["metadata"]["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [controller_reference(child)],
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": metadata, "spec": pod},
        },
    }


class ActorPods(NamedTuple):
    """An actor as the cluster shows it, and its pods that are there."""

    seen: ActorSeen
    pods: tuple[Object, ...]


def actors_seen(name: str, jobs: Sequence[Object], pods: Iterable[Object]) -> tuple[ActorPods, ...]:
    """Return a job's rollout actors as the cluster shows them, by number.

    A pod whose Job is gone is still there: it holds its GPUs until it is gone, too. It is known by the name
    of the Job that controls it, which nobody else's has. So is one whose Job is not seen yet: watches are not
    in step, and a pod may come first. Which of the two it is, its own deletion tells.

    Args:
        name: of the RLHFJob.
        jobs: those of its actors that its workload controls.
        pods: any that say to be an actor's.
    """
    of_job: dict[str, list[Object]] = {}
    orphans: dict[int, list[Object]] = {}
    uids = {job["metadata"]["uid"] for job in jobs}
    for pod in pods:
        owner, number = controller_of(pod) or {}, actor_number(pod)
        if owner.get("uid") in uids:
            of_job.setdefault(str(owner["uid"]), []).append(pod)
        elif number is not None and _is_of_gone_job(name, number, pod, owner) and not is_terminal(pod):
            orphans.setdefault(number, []).append(pod)
    found: dict[int, ActorPods] = {}
    for job in jobs:
        mine = of_job.get(job["metadata"]["uid"], [])
        if (seen := actor_seen(job, mine)) is not None:
            found[seen.number] = ActorPods(seen, tuple(mine))
    for number, left in orphans.items():
        if number not in found:
            deleting = any(pod["metadata"].get("deletionTimestamp") is not None for pod in left)
            seen = ActorSeen(number, deleting=deleting, bound=_bound(left))
            found[number] = ActorPods(seen, tuple(left))
    return tuple(found[number] for number in sorted(found))


def actor_seen(job: Object, pods: Iterable[Object]) -> ActorSeen | None:
    """Return an actor's Job as the cluster shows it; None: it bears no number.

    ``pods``: any; those that this Job does not control are left out.
    """
    metadata, number = job["metadata"], actor_number(job)
    if number is None:
        return None
    mine = [pod for pod in pods if (controller_of(pod) or {}).get("uid") == metadata["uid"]]
    live = [pod for pod in mine if not is_terminal(pod)]
    ended = has_condition(job, "Complete", "True") or has_condition(job, "Failed", "True")
    return ActorSeen(
        number,
        ready=any(map(is_ready, live)),
        over=not live and (ended or bool(mine)),
        deleting=metadata.get("deletionTimestamp") is not None,
        bound=_bound(mine),
        trouble=next((trouble for pod in mine if (trouble := pod_trouble(pod)) is not None), None),
        away=any(unheard(pod) for pod in live),
    )


def _is_of_gone_job(name: str, number: int, pod: Object, owner: Object) -> bool:
    attempt = bounded.whole((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADMISSION))
    return attempt is not None and (owner.get("kind"), owner.get("name")) == (
        "Job",
        actor_job_name(name, attempt, number),
    )


def _condition(pod: Object, kind: str) -> Object | None:
    conditions = get(pod, ("status", "conditions")) or ()
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def _bound(pods: Iterable[Object]) -> float | None:
    """Return when the first of them got its node (s); None: none has one."""
    times = [
        parse_time(scheduled.get("lastTransitionTime"))
        for pod in pods
        if get(pod, ("spec", "nodeName")) and (scheduled := _condition(pod, "PodScheduled")) is not None
    ]
    return min((at for at in times if at is not None), default=None)


def _on_node(affinity: Object, node: str) -> dict[str, Any]:
    """Return the affinity with this node required beside whatever else it requires."""
    wanted = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_node = dict(affinity.get("nodeAffinity") or {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    # Of several terms one is enough, so each has to name the node.
    terms = (of_node.get(required) or {}).get("nodeSelectorTerms") or [{}]
    of_node[required] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or []), wanted]} for term in terms
        ]
    }
    return {**affinity, "nodeAffinity": of_node}


def _put_sidecar(pod: dict[str, Any], sidecar: Sidecar) -> None:
    folder: Object = {"name": ENGINE_VOLUME, "mountPath": ENGINE_DIR}
    folders = [folder]
    if sidecar.weights:  # at one path for all: vLLM opens the file that the sidecar has found right
        folders.append({"name": sidecar.weights, "mountPath": WEIGHTS_DIR, "readOnly": True})
    for container in pod["containers"]:
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), *folders]
    variables = {
        "EVALSTOP_ACTOR_HOST": "$(POD_IP)",  # where several pods share one loopback, each has its own address
        "EVALSTOP_ACTOR_ENGINE": sidecar.engine,
        "EVALSTOP_ACTOR_SOCKET": f"{ENGINE_DIR}/engine.sock",
        "EVALSTOP_ACTOR_PORT": str(PORT),
        "EVALSTOP_ACTOR_STEPS": sidecar.steps,
        "EVALSTOP_ACTOR_STEPS_CA": f"{TOKEN_DIR}/ca.crt",
        "EVALSTOP_ACTOR_TOKEN": f"{TOKEN_DIR}/token",
        **({"EVALSTOP_ACTOR_WEIGHTS": WEIGHTS_DIR} if sidecar.weights else {}),
    }
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": SIDECAR,
        "image": sidecar.image,
        "command": ["python", "-m", "controller.actor"],
        "restartPolicy": "Always",  # a native sidecar: it starts before the engine and ends after it
        "env": [address, *({"name": key, "value": value} for key, value in variables.items())],
        "ports": [{"name": "actor", "containerPort": PORT}],
        # The pod is ready once it takes prompts: the engine answers, and the step API knows it. No startup
        # probe: the engine's container would not be started before it had succeeded.
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": PORT, "scheme": "HTTPS"},
            "periodSeconds": PROBE_SECONDS,
            "timeoutSeconds": 5,
        },
        "volumeMounts": [*folders, {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod["initContainers"] = [container, *(pod.get("initContainers") or [])]
    authority = {"key": names.STEPS_CA_KEY, "path": "ca.crt"}
    sources = [
        token_source(),
        {"configMap": {"name": sidecar.ca_configmap, "items": [authority]}},
    ]
    pod["volumes"] = [
        *(pod.get("volumes") or []),
        {"name": ENGINE_VOLUME, "emptyDir": {}},
        {"name": TOKEN_VOLUME, "projected": {"sources": sources}},
    ]
