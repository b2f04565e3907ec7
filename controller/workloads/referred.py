"""A workload that exists already and is referred to: all that it lacks, in one message.

The operator puts nothing into it: labels, run volume, scheduler and priority class are its user's to write.
Most of it is in the pod template, which the API server keeps as it is: such a workload has to be made anew,
and whoever makes one anew wants to do so once. A condition holds few characters, so of several fields only
path and expected value are told. `controller.policy.job.made_anew` reads them again, for the patch that is
proposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from controller import names
from controller.bounded import quoted
from controller.policy.types import Problem
from controller.policy.wording import ANEW
from controller.workloads.child import NO_SCHEDULING, SIZE, gang_problems, pod_problem, run_configmap
from controller.workloads.kinds import Kind, Object, Path, dotted, find, get, supported
from controller.workloads.scheduling import Scheduling, ref_scheduling_problems

_NO_GPUS = ": 0 in all"
_LABELS: Path = ("metadata", "labels")
_SET = re.compile(
    r"(?P<path>[^ ]+?)(?:: | is )(?![1-9]\d* in all|counted).*, expected (?P<value>'[^']*'|\d+|true)"
)
_NO_PORT = re.compile(r"(?P<path>[^ ]+\.ports): .*, expected one named (?P<value>'[^']*')")
_ASIDE = re.compile(r" \(| as in ")


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
    lacks = [*_label(workload, metadata["name"], _LABELS, where), *fixed]
    lacks += _open(kind, workload, spec, where)
    if not lacks:
        return None
    trainer = _trainer(get(workload, (*kind.pod_template, "spec")) or {})
    told = [one.message.removeprefix(where).lstrip(".: ") for one in lacks]
    if fixed:  # it is told which container is to have it
        told = [
            one if _may_stay(p) else _of_trainer(one, trainer) for p, one in zip(lacks, told, strict=True)
        ]
        if not suspended:
            told.append(f"{dotted(kind.suspend)} is False, expected true")
    elif len(told) == 1:
        return lacks[0]
    count, anew = len(told), f", so {ANEW}" if fixed else ""
    fields = told[0] if count == 1 else _in_short(told, kind, metadata["name"])
    return Problem(
        lacks[0].reason, f"{where} lacks {count} {'field' if count == 1 else 'fields'}{anew}: {fields}"
    )


def _of_trainer(text: str, trainer: str) -> str:
    return text.replace("containers[*]", f"containers[{trainer}]")


def _in_short(told: Sequence[str], kind: Kind, name: str) -> str:
    """Return path and expected value of each field, those of the pod's spec last."""
    of_pods = f"{dotted(kind.pod_template)}."
    own, pods = (f"{prefix}{dotted(_LABELS)}" for prefix in ("", of_pods))
    unlabelled = [path for path in (own, pods) if any(one.startswith(f"{path}[") for one in told)]
    labels = f"{names.LABEL_JOB}: {name!r} in {' and '.join(unlabelled)}"
    texts = [_short(one) for one in told if not one.startswith((f"{own}[", f"{pods}["))]
    inside = f"{of_pods}spec."
    outer = [labels] * bool(unlabelled) + [one for one in texts if not one.startswith(inside)]
    inner = [one.removeprefix(inside) for one in texts if one.startswith(inside)]
    if inner:
        inner[0] = f"in {inside.rstrip('.')}: {inner[0]}"
    return "; ".join([*outer, *inner])


def _short(text: str) -> str:
    found = _NO_PORT.match(text) or _SET.match(text)
    return f"{found['path']}: {found['value']}" if found is not None else _ASIDE.split(text)[0]


def _label(workload: Object, name: str, path: Path, where: str) -> Iterator[Problem]:
    label = (get(workload, path) or {}).get(names.LABEL_JOB)
    if label != name:
        what = "not set" if label is None else quoted(label)
        yield Problem(
            "WorkloadNotLabelled",
            f"{where}: {dotted(path)}[{names.LABEL_JOB}] is {what}, expected {name!r}",
        )


def _fixed(kind: Kind, workload: Object, rlhfjob: Object, where: str) -> Iterator[Problem]:
    """Yield what can only be had by another workload."""
    name, template = rlhfjob["metadata"]["name"], dotted(kind.pod_template)
    yield from _label(workload, name, (*kind.pod_template, *_LABELS), where)
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    configmap = run_configmap(name)
    if not _has_run_volume(pod, configmap):
        mounts = f"{template}.spec.containers[{_trainer(pod)}].volumeMounts"
        yield Problem(
            "RunVolumeMissing",
            f"{where}: {mounts}: ConfigMap {configmap!r} at {names.RUN_DIR} (no container mounts it; the "
            "trainer is told there what to resume from)",
        )
    gang = get(rlhfjob, ("spec", "gang")) or {}
    yield from (
        one for one in gang_problems(kind, workload, gang, where) if not (_may_stay(one) or _is_size(one))
    )


def _open(kind: Kind, workload: Object, spec: Object, where: str) -> Iterator[Problem]:
    """Yield what needs no other workload: how many pods it asks for can be set, and with the rest the RLHFJob
    can be made to agree."""
    gang = spec.get("gang") or {}
    yield from (one for one in gang_problems(kind, workload, gang, where) if _may_stay(one) or _is_size(one))
    if (unread := pod_problem(kind, workload, spec, where)) is not None:
        yield unread


def _may_stay(problem: Problem) -> bool:
    """Return whether the workload may be right, and ``spec.gang`` wrong: it has GPUs, but not as many."""
    return problem.reason == "GangGPUsMismatch" and _NO_GPUS not in problem.message


def _is_size(problem: Problem) -> bool:
    """Return whether it is how many pods the workload asks for, which `kubectl scale` changes, too."""
    return problem.reason == "GangMismatch" and SIZE in problem.message


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
