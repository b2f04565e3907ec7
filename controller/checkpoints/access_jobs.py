"""Access Jobs: the short CPU-only Jobs that do store work in a tenant's namespace, under its own identity.

Pure functions on plain dicts. The operator creates the Job suspended (`access_job`), then starts it with
`unsuspend_patch`; the answer is read from the pod's termination message (`parse_result`). The contract:
docs/understand/contracts.md#access-jobs. Tests: tests/checkpoints/test_checkpoints_access_jobs.py.

They have no deadline: a Job that makes progress is not killed. Its pod reports progress, and a Job without
progress is deleted and created again (controller/policy/job/transfer.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller import names
from controller.checkpoints import endpoints
from controller.checkpoints.places import RETENTION_MOUNT, MountedLocation, PlaceProblem, check_stays, resolve
from controller.checkpoints.progress import ADDRESS_ENV
from controller.checkpoints.request import REQUEST_ENV, BranchLife, ClaimMade, Request, Source
from controller.checkpoints.results import read_result
from controller.checkpoints.run_as import USER_REFUSED, RunAs, run_as
from controller.frozen import dataclass
from controller.objects import controller_reference
from controller.policy.job import AccessView, Operation, StartAccess
from controller.policy.types import Attempt, Problem

Object = Mapping[str, Any]

ANNOTATION_REQUEST_ID = f"{names.GROUP}/request-id"
COMPONENT = "access"
CONTAINER = "access"
NAME_LIMIT = 63  # characters: the name becomes a label value of the pods

_OF_JOBS = ("controller-uid", "job-name")  # labels that the API server gives a Job's pods


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Settings of access Jobs that the operator's administrator may change."""

    image: str = f"{names.ACCESS_IMAGE}:0.1.0"
    image_pull_policy: str = "IfNotPresent"
    keep_seconds: int = 3600  # s, after which Kubernetes deletes a finished Job that still exists
    cpu: str = "250m"
    memory: str = "256Mi"
    endpoints: str = endpoints.DEFAULT  # where object stores may be
    # Requests of a pod that must run on the trainer's node, where trainers often request every core.
    least_cpu: str = "10m"
    least_memory: str = "32Mi"


class AccessRefused(Exception):
    """This store work cannot be done as the RLHFJob stands: a CamelCase reason and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def access_problem(rlhfjob: Object, pod_template: Object, claims: Mapping[str, Object]) -> Problem | None:
    """Return why no access Job can be made for an RLHFJob at all; None: it can.

    Args:
        rlhfjob: with ``spec.checkpoints``.
        pod_template: of its workload (``metadata`` and ``spec``).
        claims: its namespace's PersistentVolumeClaims by name, as far as they are there.
    """
    try:
        _location(rlhfjob, pod_template, claims)
    except PlaceProblem as problem:
        return Problem(problem.reason, problem.message)
    return retention_problem(rlhfjob, pod_template, claims)


def retention_problem(rlhfjob: Object, pod_template: Object, claims: Mapping[str, Object]) -> Problem | None:
    """Return why copies of an RLHFJob's checkpoints have no place, whatever its location is like; None: they
    have one. Arguments: as of `access_problem`."""
    try:
        _retention(rlhfjob, pod_template, claims)
    except PlaceProblem as problem:
        return Problem(problem.reason, problem.message)
    return None


def access_job(
    rlhfjob: Object,
    pod_template: Object,
    action: StartAccess,
    settings: AccessSettings,
    *,
    claims: Mapping[str, Object],
    node: str | None = None,
    anchor: Object | None = None,
) -> dict[str, Any]:
    """Return the Job for one piece of store work, suspended.

    Args:
        rlhfjob: the resource, with ``metadata.uid`` and ``spec.checkpoints``.
        pod_template: of its workload (``metadata`` and ``spec``): identity, users, pull secrets, mounts.
        action: what to do.
        settings: of the operator.
        claims: its namespace's PersistentVolumeClaims by name.
        node: where the trainer's pods run, for claims that only one node may mount; None: on no
            node now.
        anchor: the child workload. It is the Job's controller for as long as the Job is suspended, so that
            Kueue does not queue it as a workload of its own (`unsuspend_patch` removes the controller).

    Raises:
        AccessRefused: the claims, mounts or places do not allow it.
    """
    trainer = pod_template.get("spec") or {}
    user = run_as(rlhfjob, trainer, action.file_owner)
    try:
        location, retention = _location(rlhfjob, pod_template, claims), None
        if not _within_location(action):
            retention = _retention(rlhfjob, pod_template, claims)
        copies = None if action.operation is Operation.CHECK else retention
        request = _request(rlhfjob, action, location, copies, user)
        check_stays(_mounted(action, location, retention), claims)
    except PlaceProblem as problem:
        raise AccessRefused(problem.reason, problem.message) from problem
    if (refused := user.problem(trainer)) is not None:
        raise AccessRefused(USER_REFUSED, refused)
    metadata = rlhfjob["metadata"]
    labels = {
        names.LABEL_JOB: metadata["name"],
        names.LABEL_COMPONENT: COMPONENT,
        names.LABEL_OPERATION: str(action.operation),
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }
    text = request.to_json()
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": access_job_name(metadata["name"], action.request_id, metadata["uid"]),
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": {
                names.ANNOTATION_JOB_UID: metadata["uid"],
                ANNOTATION_REQUEST_ID: action.request_id,
                names.ANNOTATION_REQUEST: hashlib.sha256(text.encode()).hexdigest()[:16],
            },
        },
        "spec": {
            "suspend": True,
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": settings.keep_seconds,
            "template": {
                "metadata": {
                    "labels": dict(labels),
                    "annotations": {
                        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    },
                },
                "spec": _pod(
                    trainer,
                    user,
                    settings,
                    text,
                    _mounted(action, location, retention),
                    node,
                ),
            },
        },
    }
    if anchor is not None:
        job["metadata"]["ownerReferences"] = [controller_reference(anchor, blocks=False)]
    return job


def unsuspend_patch(job: Object) -> dict[str, Any]:
    """Return a merge patch that starts a created access Job: no owner, no queue, not suspended.

    Applying it again changes nothing. It carries the Job's uid, so that the API server refuses it for another
    Job of the same name.
    """
    metadata: dict[str, Any] = {"uid": job["metadata"]["uid"], "ownerReferences": []}
    if names.QUEUE_LABEL in (job["metadata"].get("labels") or {}):
        metadata["labels"] = {names.QUEUE_LABEL: None}
    return {"metadata": metadata, "spec": {"suspend": False}}


def is_unsuspended(job: Object) -> bool:
    """Return whether `unsuspend_patch` has been applied, and nobody has suspended the Job again."""
    return not (job.get("spec") or {}).get("suspend")


def same_work(found: Object, asked: Object) -> bool:
    """Return whether a Job that was never started would do exactly what was asked for.

    Then it does not matter who created it: the pod template of a Job cannot be changed. A new version of
    this program that changes `_pod` takes suspended Jobs of the older version for other work. ``asked``: as
    the API server would store it, with its defaults.
    """
    spec, wanted = found.get("spec") or {}, asked.get("spec") or {}
    never = spec.get("suspend") is True and not (found.get("status") or {}).get("startTime")
    kept = (names.ANNOTATION_JOB_UID, ANNOTATION_REQUEST_ID, names.ANNOTATION_REQUEST)
    notes = ((job["metadata"].get("annotations") or {}) for job in (found, asked))
    mine, theirs = ([note.get(key) for key in kept] for note in notes)
    return never and mine == theirs and _work_of(spec) == _work_of(wanted)


def _work_of(spec: Object) -> dict[str, Any]:
    """Return a Job's spec without what is its own by its uid."""
    own = {"selector", "manualSelector"}
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    kept = {k: v for k, v in labels.items() if k.removeprefix("batch.kubernetes.io/") not in _OF_JOBS}
    return {
        **{key: value for key, value in spec.items() if key not in own},
        "template": {"labels": kept, "spec": template.get("spec")},
    }


def access_job_name(name: str, request_id: str, uid: str) -> str:
    """``<name>-<request id>-<5 hex of the uid>``; the name is cut where the whole would be too long."""
    tail = f"-{request_id}-{uid[:5]}".lower()
    return f"{name[: NAME_LIMIT - len(tail)].rstrip('-.')}{tail}"


def request_id(job: Object) -> str:
    """Return the request an access Job carries out."""
    return str((job["metadata"].get("annotations") or {}).get(ANNOTATION_REQUEST_ID, ""))


def parse_result(job: Object, pods: Iterable[Object]) -> AccessView:
    """Return an access Job in the brain's words; ``pods`` are its own (by owner uid). See
    `results.read_result`."""
    return read_result(job, pods, request_id(job))


def retained_folder(namespace: str, name: str, uid: str) -> str:
    """Return an RLHFJob's folder below its retention place: a later namesake gets another one."""
    return f"{namespace}/{name}-{uid[:5]}"


def _location(rlhfjob: Object, pod_template: Object, claims: Mapping[str, Object]) -> MountedLocation:
    checkpoints = (rlhfjob.get("spec") or {}).get("checkpoints") or {}
    copies = checkpoints.get("retention")
    claim = copies.get("volumeClaim") if isinstance(copies, Mapping) else None
    apart = str(claim.get("claimName") or "") if isinstance(claim, Mapping) else ""
    return resolve(
        "spec.checkpoints.location",
        checkpoints.get("location"),
        pod_template,
        claims,
        kept_apart=apart,
    )


def _retention(rlhfjob: Object, pod_template: Object, claims: Mapping[str, Object]) -> MountedLocation:
    checkpoints = (rlhfjob.get("spec") or {}).get("checkpoints") or {}
    return resolve(
        "spec.checkpoints.retention",
        checkpoints.get("retention"),
        pod_template,
        claims,
        mount=RETENTION_MOUNT,
    )


def _mounted(
    action: StartAccess, location: MountedLocation, retention: MountedLocation | None
) -> list[MountedLocation]:
    """Return the places a Job mounts: the retention volume only where it is needed, and what is only read as
    such.

    No ``subPath`` of ours narrows them further: where the folder is not there, the kubelet makes it, as root.
    """
    if action.operation is Operation.CHECK:
        return [location.read_only()]
    if retention is None:
        return [location]
    if action.operation is Operation.RETAIN:
        return [location.read_only(), retention]
    return [location, retention.read_only()]


def _within_location(action: StartAccess) -> bool:
    """Return whether the work is the location's alone: a pin is made whatever the retention place does.

    A check only reads the location, and a stop is carried out on it, whose copy must then have a place.
    """
    if action.operation is Operation.CHECK:
        return False
    return action.operation not in (Operation.RETAIN, Operation.RESTORE) or action.source is None


def _request(
    rlhfjob: Object,
    action: StartAccess,
    location: MountedLocation,
    retention: MountedLocation | None,
    user: RunAs,
) -> Request:
    metadata = rlhfjob["metadata"]
    checkpoints = rlhfjob["spec"]["checkpoints"]
    folder = retained_folder(metadata["namespace"], metadata["name"], metadata["uid"])
    source, named = action.source, checkpoints["layout"]
    return Request(
        operation=str(Operation.SECURE if action.operation is Operation.PIN else action.operation),
        layout=action.layout if action.layout and named == names.AUTO_LAYOUT else named,
        owner=metadata["uid"],
        location=location.root,
        step=action.step,
        max_step_lag=action.max_step_lag,
        release=action.release,  # pins that are no longer wanted: the Job deletes them
        source=None if source is None else Source(source.path, source.digest, source.step),
        destination="" if retention is None else f"{retention.root.rstrip('/')}/{folder}",
        keep_latest=action.operation is Operation.RETAIN and checkpoints.get("keep") == "BestAndLatest",
        id=action.request_id,
        job=f"{metadata['namespace']}/{metadata['name']}",
        branch=tuple(BranchLife(str(one.attempt), one.after, one.base) for one in action.branch),
        later=tuple(map(str, action.later)),
        known=tuple(map(str, action.known)),
        attempt=str(action.attempt),
        former=(action.former,) if action.former else (),
        location_within=location.within,
        destination_within="" if retention is None else retention.within,
        find_owner=user.user is None and bool(location.volumes),  # files on a volume have owners
        empty_at=action.empty_at,
        claimed=_claim_made(action),
    )


def _claim_made(action: StartAccess) -> ClaimMade | None:
    made = action.claimed
    return None if made is None else ClaimMade(str(Attempt(made.attempt, made.life)), made.newest_step)


def _pod(
    trainer: Object,
    user: RunAs,
    settings: AccessSettings,
    request: str,
    places: Sequence[MountedLocation],
    node: str | None,
) -> dict[str, Any]:
    first = (trainer.get("containers") or [{}])[0]
    volumes = [dict(volume) for place in places for volume in place.volumes]
    mounts = [dict(mount) for place in places for mount in place.mounts]
    environment: list[Object] = [
        {"name": REQUEST_ENV, "value": request},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": endpoints.ALLOWED_ENV, "value": settings.endpoints},
        {"name": ADDRESS_ENV, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "controller.checkpoints.access"],
        "env": environment,
        "ports": [{"name": names.PROGRESS_PORT_NAME, "containerPort": names.PROGRESS_PORT}],
        "resources": {
            "requests": {"cpu": settings.cpu, "memory": settings.memory},
            "limits": {"memory": settings.memory},
        },
        "securityContext": {
            **user.container_security(trainer),
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if any(place.credentials for place in places):
        _lend_credentials(trainer, first, container, volumes)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": trainer.get("serviceAccountName") or trainer.get("serviceAccount") or "default",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": user.pod_security(trainer),
        "tolerations": _tolerations(trainer),
        "containers": [container],
        "volumes": volumes,
    }
    if trainer.get("imagePullSecrets"):
        pod["imagePullSecrets"] = list(trainer["imagePullSecrets"])
    if trainer.get("runtimeClassName"):  # a sandboxed trainer has sandboxed access Jobs
        pod["runtimeClassName"] = trainer["runtimeClassName"]
    if node is not None and places[0].one_node:  # the location: the trainer's node holds it
        pod["affinity"] = _on_node(node)
        container["resources"]["requests"] = {"cpu": settings.least_cpu, "memory": settings.least_memory}
        if trainer.get("priorityClassName"):  # scheduled and evicted like the trainer beside it
            pod["priorityClassName"] = trainer["priorityClassName"]
    return pod


def _tolerations(trainer: Object) -> list[Object]:
    """Return the trainer's own, and those of pools: a node with the trainer's volume is a pool's node."""
    pool = {"key": names.POOL_TAINT, "operator": "Exists"}
    return [*(t for t in trainer.get("tolerations") or () if t != pool), pool]


def _on_node(node: str) -> dict[str, Any]:
    # By affinity and not by nodeName, so that the scheduler still checks resources and volumes.
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        }
    }


# Variables of the trainer that would change how our own program runs, or that are not credentials.
_NOT_LENT = re.compile(r"(EVALSTOP_|PYTHON|LD_|CUDA_|NVIDIA_|NCCL_)|(PATH|HOME|HOSTNAME|POD_IP)\Z")


def _lend_credentials(
    trainer: Object, first: Object, container: dict[str, Any], volumes: list[dict[str, Any]]
) -> None:
    """Give the Job what the trainer reaches its object store with: its variables and its secret files.

    The Job runs in the same namespace under the same service account, so it learns nothing new.
    """
    lent = [v for v in first.get("env") or () if not _NOT_LENT.match(str(v.get("name", "")))]
    container["env"] = [*lent, *container["env"]]
    if first.get("envFrom"):
        container["envFrom"] = list(first["envFrom"])
    taken = {volume["name"] for volume in volumes}
    files = {
        volume["name"]: volume
        for volume in trainer.get("volumes") or ()
        if ("secret" in volume or "projected" in volume)
        and volume.get("name") not in taken
        and not _is_api_token(volume)
    }
    mounts = [m for m in first.get("volumeMounts") or () if m.get("name") in files]
    container["volumeMounts"] = [*container["volumeMounts"], *({**m, "readOnly": True} for m in mounts)]
    volumes.extend(dict(files[name]) for name in sorted({m["name"] for m in mounts}))


def _is_api_token(volume: Object) -> bool:
    """Return whether a projected volume holds a token of the API server: no object store wants one."""
    projected = volume.get("projected")
    sources = projected.get("sources") if isinstance(projected, Mapping) else None
    tokens = [
        source.get("serviceAccountToken")
        for source in (sources if isinstance(sources, list) else ())
        if isinstance(source, Mapping)
    ]
    return any(
        names.API_AUDIENCE in str(token.get("audience") or names.API_AUDIENCE)
        for token in tokens
        if isinstance(token, Mapping)
    )
