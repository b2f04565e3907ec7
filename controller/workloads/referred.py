"""A workload that exists already and is referred to: all that it lacks, in one message.

The operator puts nothing into it: labels, run volume, scheduler and priority class are its user's to write.
Most of it is in the pod template, which the API server keeps as it is: such a workload has to be made anew,
and whoever makes one anew wants to do so once. `controller.policy.job.made_anew` reads the fields of the
message again, for the patch that is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller import names
from controller.bounded import quoted
from controller.policy.types import Problem
from controller.policy.wording import ANEW
from controller.workloads.child import NO_SCHEDULING, gang_problems, pod_problem, run_configmap
from controller.workloads.kinds import Kind, Object, dotted, find, get, supported
from controller.workloads.scheduling import Scheduling, ref_scheduling_problems

_NO_GPUS = ": 0 in all"


def ref_problem(
    rlhfjob: Object,
    workload: Object | None,
    scheduling: Scheduling = NO_SCHEDULING,
    *,
    watched: bool = False,
) -> Problem | None:
    """Return all that is wrong with a workload that is referred to; None: nothing.

    Args:
        rlhfjob: the resource.
        workload: as the API server has it; None: it is not there.
        scheduling: what its pool asks for.
        watched: its mode is Shadow or Off. One that runs is then only looked at, and needs no scheduling of
            its pool, unless it has to be made anew.
    """
    spec, metadata = rlhfjob.get("spec") or {}, rlhfjob["metadata"]
    ref = get(spec, ("workload", "ref")) or {}
    kind = find(ref.get("apiVersion", ""), ref.get("kind", ""))
    if kind is None:
        what = f"{ref.get('apiVersion')} {ref.get('kind')}"
        return Problem("UnsupportedKind", f"spec.workload.ref: kind {what}, expected one of {supported()}")
    where = f"{kind.kind} {ref.get('name')}"
    if workload is None:
        return Problem(
            "WorkloadMissing", f"spec.workload.ref: there is no {where} in {metadata['namespace']}"
        )
    suspended = bool(get(workload, kind.suspend))
    fixed = list(_fixed(kind, workload, rlhfjob, where))
    if fixed or suspended or not watched:
        fixed += ref_scheduling_problems(kind, workload, scheduling, where)
    lacks = [*_label(workload, metadata["name"], where), *fixed, *_open(kind, workload, spec, where)]
    if not lacks:
        return None
    trainer = _trainer(get(workload, (*kind.pod_template, "spec")) or {})
    told = [_within(one, trainer) for one in lacks] if fixed else [one.message for one in lacks]
    if fixed and not suspended:
        told.append(f"{dotted(kind.suspend)} is not true, expected true (EvalStop starts it in its turn)")
    message = told[0]
    if len(told) > 1:
        fields = (one.removeprefix(where).lstrip(".: ") for one in told)
        message = f"{where} lacks {len(told)} things: {'; '.join(fields)}"
    return Problem(lacks[0].reason, f"{message}; {ANEW}" if fixed else message)


def _within(problem: Problem, trainer: str) -> str:
    """Return the message, with the container that is to have the field where that may be any."""
    if _may_stay(problem):
        return problem.message
    return problem.message.replace("containers[*]", f"containers[{trainer}]")


def _label(workload: Object, name: str, where: str) -> Iterator[Problem]:
    label = (get(workload, ("metadata", "labels")) or {}).get(names.LABEL_JOB)
    if label != name:
        what = "not set" if label is None else quoted(label)
        yield Problem(
            "WorkloadNotLabelled", f"{where}: metadata.labels[{names.LABEL_JOB}] is {what}, expected {name!r}"
        )


def _fixed(kind: Kind, workload: Object, rlhfjob: Object, where: str) -> Iterator[Problem]:
    """Yield what can only be had by another workload."""
    name, template = rlhfjob["metadata"]["name"], dotted(kind.pod_template)
    label = (get(workload, (*kind.pod_template, "metadata", "labels")) or {}).get(names.LABEL_JOB)
    if label != name:
        what = "not set" if label is None else quoted(label)
        yield Problem(
            "WorkloadNotLabelled",
            f"{where}: {template}.metadata.labels[{names.LABEL_JOB}] is {what}, expected {name!r} (pods are "
            "found by it)",
        )
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    configmap = run_configmap(name)
    if not _has_run_volume(pod, configmap):
        mounts = f"{template}.spec.containers[{_trainer(pod)}].volumeMounts"
        yield Problem(
            "RunVolumeMissing",
            f"{where}: {mounts}: no container mounts a volume of ConfigMap {configmap!r}, expected at "
            f"{names.RUN_DIR} (the trainer is told there what to resume from)",
        )
    gang = get(rlhfjob, ("spec", "gang")) or {}
    yield from (one for one in gang_problems(kind, workload, gang, where) if not _may_stay(one))


def _open(kind: Kind, workload: Object, spec: Object, where: str) -> Iterator[Problem]:
    """Yield what the RLHFJob can be made to agree with as well."""
    gang = spec.get("gang") or {}
    yield from (one for one in gang_problems(kind, workload, gang, where) if _may_stay(one))
    if (unread := pod_problem(kind, workload, spec, where)) is not None:
        yield unread


def _may_stay(problem: Problem) -> bool:
    """Return whether the workload may be right, and ``spec.gang`` wrong: it has GPUs, but not as many."""
    return problem.reason == "GangGPUsMismatch" and _NO_GPUS not in problem.message


def _trainer(pod: Object) -> str:
    """Name of the container that publishes metrics; of the first one where none has such a port."""
    containers = pod.get("containers") or [{}]
    ports = ((c, port.get("name")) for c in containers for port in c.get("ports") or ())
    found = next((c for c, port in ports if port == names.METRICS_PORT_NAME), containers[0])
    return str(found.get("name") or "0")


def _has_run_volume(pod: Object, configmap: str) -> bool:
    sources = {
        volume.get("name")
        for volume in pod.get("volumes") or ()
        if (volume.get("configMap") or {}).get("name") == configmap
    }
    return any(
        mount.get("name") in sources
        for container in pod.get("containers") or ()
        for mount in container.get("volumeMounts") or ()
    )


__all__ = ["ref_problem"]
