"""The child workload: built from the template, checked, and what is wrong with it in words."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from controller import names
from controller.bounded import quoted
from controller.objects import controller_reference
from controller.policy.types import Problem
from controller.workloads.kinds import Kind, Object, dotted, find, get, kind_of, supported
from controller.workloads.pods import gpus
from controller.workloads.problems import ProblemError
from controller.workloads.scheduling import (
    Scheduling,
    set_scheduling,
    template_scheduling_problem,
)
from controller.workloads.shape import shape_problem
from controller.workloads.step_token import put_token

TEMPLATE = "spec.workload.template"
SIZE = "as in spec.gang.replicas"  # in a problem of how many pods a workload asks for
MOST_RULES = 20  # of a podFailurePolicy, by the API server
NO_SCHEDULING = Scheduling()


def run_configmap(name: str) -> str:
    """Name of the ConfigMap through which the operator talks to the trainer."""
    return f"{name}{names.RUN_CONFIGMAP_SUFFIX}"


def build_child(
    rlhfjob: Object, scheduling: Scheduling = NO_SCHEDULING, configmap: str | None = None
) -> dict[str, Any]:
    """Return the child workload of an RLHFJob: its template, suspended, owned, labelled, with the run volume,
    and with its pool's scheduler and priority class.

    Args:
        rlhfjob: the resource, with ``metadata.uid`` and ``spec.workload.template``.
        scheduling: what its pool asks for.
        configmap: name of its run ConfigMap; by default `run_configmap` of its name.

    Returns:
        A new manifest; nothing the user wrote in the template is lost or shared with it, but for the time
        after which it would remove itself (`expiry_note`).

    Raises:
        ProblemError: `template_problem` has something to say.
    """
    problem = template_problem(rlhfjob, scheduling)
    if problem is not None:
        raise ProblemError(problem)
    metadata = rlhfjob["metadata"]
    child: dict[str, Any] = copy.deepcopy(dict(rlhfjob["spec"]["workload"]["template"]))
    child.setdefault("apiVersion", "batch/v1")
    child.setdefault("kind", "Job")
    child.pop("status", None)
    kind = find(child["apiVersion"], child["kind"])
    assert kind is not None  # template_problem saw to it
    _mark(child, metadata)
    _set(child, kind.suspend, True)
    if kind.expires is not None:  # its end is to be seen, however long the operator is away
        _dict_at(child, kind.expires[:-1]).pop(kind.expires[-1], None)
    template = _dict_at(child, kind.pod_template)
    pod_labels = _dict_at(template, ("metadata", "labels"))
    pod_labels.update(_labels(metadata["name"]))
    pod = _dict_at(template, ("spec",))
    _inject(pod, configmap or run_configmap(metadata["name"]))
    if any(get(rlhfjob, ("spec", asked)) is not None for asked in ("rollout", "sharing")):
        put_token(pod)
        if kind.exit_rules is not None and pod.get("restartPolicy") == "Never":
            _ignore_starved(_dict_at(child, kind.exit_rules))
    for group in ("initContainers", "containers"):
        for container in pod.get(group) or ():  # a trainer that ends says why: `pod_trouble` reads it
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    set_scheduling(pod, scheduling)
    return child


def expiry_note(template: Object) -> str:
    """Return what is said of a template whose workload would remove itself after its end; "": it would
    not."""
    kind = find(template.get("apiVersion", "batch/v1"), template.get("kind", "Job"))
    if kind is None or kind.expires is None or get(template, kind.expires) is None:
        return ""
    return (
        f"{TEMPLATE}.{dotted(kind.expires)} is left out: of a workload that is gone before its end was "
        "seen nobody knows how it ended; it goes with its RLHFJob"
    )


def template_problem(rlhfjob: Object, scheduling: Scheduling = NO_SCHEDULING) -> Problem | None:
    """Return what the operator itself can tell to be wrong with a template; a dry run tells the rest."""
    spec = rlhfjob.get("spec") or {}
    template = get(spec, ("workload", "template")) or {}
    api_version, kind_name = template.get("apiVersion", "batch/v1"), template.get("kind", "Job")
    kind = find(api_version, kind_name)
    if kind is None:
        return Problem(
            "UnsupportedKind", f"{TEMPLATE}: kind {api_version} {kind_name}, expected one of {supported()}"
        )
    return (
        shape_problem(kind, template, TEMPLATE)
        or _gang_problem(kind, template, spec.get("gang") or {}, TEMPLATE)
        or pod_problem(kind, template, spec, TEMPLATE)
        or _reserved_problem(kind, template, TEMPLATE)
        or template_scheduling_problem(kind, template, scheduling, TEMPLATE)
    )


def child_problem(rlhfjob: Object, workload: Object) -> Problem | None:
    """Return how a child that waits differs from its gang: in pods or in GPUs, which are what was asked for.

    Whoever may edit the namespace's Jobs may change a suspended one, sizes and GPUs too. It waits without
    its pool's toleration, so that no admission policy has kept it as it was made.
    """
    kind = kind_of(workload)
    gang = get(rlhfjob, ("spec", "gang")) or {}
    return _gang_problem(kind, workload, gang, f"{kind.kind} {workload['metadata']['name']}")


def template_shape_problem(rlhfjob: Object) -> Problem | None:
    """Return whether a template can be read at all; of a kind that is not supported, and where there is none,
    nothing."""
    template = get(rlhfjob, ("spec", "workload", "template"))
    if not isinstance(template, Mapping):
        return None
    kind = find(template.get("apiVersion", "batch/v1"), template.get("kind", "Job"))
    return None if kind is None else shape_problem(kind, template, TEMPLATE)


def _gang_problem(kind: Kind, workload: Object, gang: Object, where: str) -> Problem | None:
    return next(gang_problems(kind, workload, gang, where), None)


def gang_problems(kind: Kind, workload: Object, gang: Object, where: str) -> Iterator[Problem]:
    """Yield how a workload differs from its gang, in pods and in GPUs.

    Args:
        kind: of the workload.
        workload: as the API server has it, or a template.
        gang: ``spec.gang`` of the RLHFJob.
        where: begins each path.
    """
    for path, expected in kind.required:
        value = get(workload, path)
        if value != expected:
            what = "not set" if value is None else quoted(value)
            yield Problem("GangMismatch", f"{where}.{dotted(path)}: {what}, expected {expected!r}")
    replicas = int(gang.get("replicas", 1))
    for path in kind.replicas:
        value = get(workload, path)
        if value != replicas:
            what = "not set" if value is None else quoted(value)
            yield Problem(
                "GangMismatch",
                f"{where}.{dotted(path)}: {what}, expected {replicas} {SIZE} "
                "(all pods of a gang run at once)",
            )
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    if (other := _counted_otherwise(pod)) is not None:
        field, name = other
        yield Problem(
            "GangGPUsMismatch",
            f"{where}.{dotted(kind.pod_template)}.spec.{field}[{quoted(name)}]: counted by nobody here, "
            f"expected {names.GPU_RESOURCE}, or spec.resourceClaims",
        )
    per_pod, claims = gpus(pod), bool(pod.get("resourceClaims"))
    expected_gpus = int(gang.get("gpusPerReplica", 1))
    # What claims bring is told when they are allocated.
    if per_pod != expected_gpus and not (claims and per_pod < expected_gpus):
        field = (
            f"{where}.{dotted(kind.pod_template)}.spec.containers[*].resources.limits[{names.GPU_RESOURCE}]"
        )
        yield Problem(
            "GangGPUsMismatch",
            f"{field}: {per_pod} in all, expected {expected_gpus} as in spec.gang.gpusPerReplica",
        )


def _counted_otherwise(pod: Object) -> tuple[str, str] | None:
    """Return (field, resource) by which a pod asks for GPUs, or slices of them, under a name that no pool
    counts: it would take more than its gang."""
    for kind in ("containers", "initContainers"):
        for at, container in enumerate(pod.get(kind) or ()):
            resources = container.get("resources") or {}
            for of in ("limits", "requests"):
                for name, count in (resources.get(of) or {}).items():
                    other = name != names.GPU_RESOURCE and name.startswith(
                        (names.DEVICES, names.DEVICE_CLASS)
                    )
                    if other and count not in (0, "0"):
                        return f"{kind}[{at}].resources.{of}", name
    return None


def pod_problem(kind: Kind, workload: Object, spec: Object, where: str) -> Problem | None:
    """Return what the pods of a workload lack for their metrics to be read; arguments as of `gang_problems`,
    ``spec`` of the RLHFJob."""
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    containers = pod.get("containers") or []
    pod_path = f"{where}.{dotted(kind.pod_template)}.spec"
    if not containers:
        return Problem("NoContainers", f"{pod_path}.containers: empty, expected the trainer's container")
    if get(spec, ("scrape", "port")) is not None:
        return None
    # Native sidecars may be the ones that publish metrics.
    servers = [
        *containers,
        *(c for c in pod.get("initContainers") or () if c.get("restartPolicy") == "Always"),
    ]
    ports = [port for container in servers for port in container.get("ports") or ()]
    if any(port.get("name") == names.METRICS_PORT_NAME for port in ports):
        return None
    seen = ", ".join(sorted(str(port.get("name") or port.get("containerPort")) for port in ports)) or "none"
    return Problem(
        "NoMetricsPort",
        f"{pod_path}.containers[*].ports: {seen}, expected one named {names.METRICS_PORT_NAME!r}, or its "
        "number in spec.scrape.port",
    )


def _reserved_problem(kind: Kind, workload: Object, where: str) -> Problem | None:
    """Return what the template has in the very places that the operator fills."""
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    pod_path = f"{where}.{dotted(kind.pod_template)}.spec"
    for i, volume in enumerate(pod.get("volumes") or ()):
        if (name := volume.get("name")) in (names.RUN_VOLUME, names.STEPS_TOKEN_VOLUME):
            return Problem(
                "ReservedName",
                f"{pod_path}.volumes[{i}].name: {name!r} is the operator's, choose another",
            )
    for group in ("initContainers", "containers"):
        for i, container in enumerate(pod.get(group) or ()):
            for j, mount in enumerate(container.get("volumeMounts") or ()):
                if str(mount.get("mountPath", "")).rstrip("/") == names.RUN_DIR:
                    return Problem(
                        "ReservedName",
                        f"{pod_path}.{group}[{i}].volumeMounts[{j}].mountPath: {names.RUN_DIR} is where the "
                        "operator mounts the run file, choose another",
                    )
            for j, variable in enumerate(container.get("env") or ()):
                if variable.get("name") == names.RUN_DIR_ENV and variable.get("value") != names.RUN_DIR:
                    return Problem(
                        "ReservedName",
                        f"{pod_path}.{group}[{i}].env[{j}]: {names.RUN_DIR_ENV} is set by the operator, "
                        "leave it out",
                    )
    return None


def _ignore_starved(policy: dict[str, Any]) -> None:
    """Have a trainer that starved count as no failure of its Job: it goes back into the queue. A rule of the
    user's that names its exit code stays the first word."""
    rules = list(policy.get("rules") or [])
    asked = [rule.get("onExitCodes") or {} for rule in rules]
    named = any(a.get("operator") == "In" and names.EXIT_STARVED in (a.get("values") or ()) for a in asked)
    if not named and len(rules) < MOST_RULES:
        ours = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [names.EXIT_STARVED]}}
        policy["rules"] = [ours, *rules]


def _mark(child: dict[str, Any], owner: Object) -> None:
    metadata = _dict_at(child, ("metadata",))
    metadata.pop("generateName", None)
    metadata["name"], metadata["namespace"] = owner["name"], owner["namespace"]
    _dict_at(metadata, ("labels",)).update(_labels(owner["name"]))
    _dict_at(metadata, ("annotations",))[names.ANNOTATION_JOB_UID] = owner["uid"]
    metadata["ownerReferences"] = [owner_reference(owner)]


def owner_reference(owner: Object) -> dict[str, Any]:
    """Return an RLHFJob, by its metadata, as the controller of what it owns."""
    return controller_reference({"apiVersion": names.API_VERSION, "kind": "RLHFJob", "metadata": owner})


def _labels(name: str) -> dict[str, str]:
    return {
        names.LABEL_JOB: name,
        names.LABEL_COMPONENT: "workload",
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }


def _inject(pod: dict[str, Any], configmap: str) -> None:
    # Not optional: a trainer that started without it would not know what to resume from.
    volume = {"name": names.RUN_VOLUME, "configMap": {"name": configmap}}
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    mount = {"name": names.RUN_VOLUME, "mountPath": names.RUN_DIR, "readOnly": True}
    variable = {"name": names.RUN_DIR_ENV, "value": names.RUN_DIR}
    for group in ("initContainers", "containers"):
        for container in pod.get(group) or ():
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
            if all(known.get("name") != names.RUN_DIR_ENV for known in container.get("env") or ()):
                container["env"] = [*(container.get("env") or []), variable]


def _dict_at(obj: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the dict at a path, made where it is missing."""
    for name in path:
        value = obj.get(name)
        if not isinstance(value, dict):
            value = obj[name] = dict(value) if isinstance(value, Mapping) else {}
        obj = value
    return obj


def _set(obj: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    _dict_at(obj, path[:-1])[path[-1]] = value


__all__ = [
    "ProblemError",
    "build_child",
    "child_problem",
    "expiry_note",
    "gang_problems",
    "owner_reference",
    "pod_problem",
    "run_configmap",
    "template_problem",
    "template_shape_problem",
]
