"""Scheduler and priority of a child's pods: set when it is made, fixed from then on.

A Job's pod template may change while the Job is suspended, but never in these two fields. So a workload that
is referred to must have them already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from controller import names
from controller.policy.types import Problem
from controller.workloads.kinds import Kind, Object, dotted, get, kind_of


class Scheduling(NamedTuple):
    """Fields of its jobs' pods that a pool sets; "" sets nothing.

    ``allowed``: PriorityClasses that pods may name besides; None: any.
    """

    scheduler: str = ""
    priority_class: str = ""
    allowed: tuple[str, ...] | None = None


def set_scheduling(pod: dict[str, Any], wanted: Scheduling) -> None:
    """Put a pool's scheduler and priority class into a pod spec; a class that the user chose stays."""
    if wanted.scheduler:
        pod["schedulerName"] = wanted.scheduler
    if wanted.priority_class and not pod.get("priorityClassName"):
        pod["priorityClassName"] = wanted.priority_class


def template_scheduling_problem(
    kind: Kind, workload: Object, wanted: Scheduling, where: str
) -> Problem | None:
    """Return what a template has in the way of its pool's scheduling.

    Admission refuses a pod whose ``priority`` or ``preemptionPolicy`` differs from its class's, and it does
    so when the Job's controller makes the pod, where no user looks: better said here.
    """
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    path = f"{where}.{dotted(kind.pod_template)}.spec"
    named = pod.get("schedulerName")
    if wanted.scheduler and named not in (None, "", wanted.scheduler):
        return Problem(
            "SchedulerMismatch",
            f"{path}.schedulerName: {named!r}, expected {wanted.scheduler!r} as in the GPUPool's "
            "spec.schedulerName, or nothing",
        )
    if refused := _class_problem(pod, wanted, path):
        return refused
    if not wanted.priority_class or pod.get("priorityClassName"):
        return None
    shipped = wanted.priority_class == names.PRIORITY_CLASS
    for field, same in (("preemptionPolicy", "Never" if shipped else None), ("priority", None)):
        value = pod.get(field)
        if value is not None and value != same:
            return Problem(
                "PriorityMismatch",
                f"{path}.{field}: {value!r}, leave it out: that of PriorityClass {wanted.priority_class!r} "
                "goes, or choose another class by priorityClassName",
            )
    return None


def ref_scheduling_problems(
    kind: Kind, workload: Object, wanted: Scheduling, where: str
) -> Iterator[Problem]:
    """Yield what a workload that is referred to lacks of its pool's scheduling."""
    pod = get(workload, (*kind.pod_template, "spec")) or {}
    path = f"{where}: {dotted(kind.pod_template)}.spec"
    named = pod.get("schedulerName") or "default-scheduler"
    if wanted.scheduler and named != wanted.scheduler:
        yield Problem(
            "SchedulerMissing",
            f"{path}.schedulerName is {named!r}, expected {wanted.scheduler!r} as in the GPUPool's "
            "spec.schedulerName",
        )
    if refused := _class_problem(pod, wanted, path):
        yield refused
    elif wanted.priority_class and not pod.get("priorityClassName"):
        yield Problem(
            "PriorityClassMissing",
            f"{path}.priorityClassName is not set, expected {wanted.priority_class!r} as in the GPUPool's "
            "spec.priorityClassName, or a class of your own",
        )


def _class_problem(pod: Object, wanted: Scheduling, path: str) -> Problem | None:
    """Return a class that the pool's owner has not allowed: by it pods could evict those of others."""
    named = pod.get("priorityClassName")
    if wanted.allowed is None or not named or named == wanted.priority_class or named in wanted.allowed:
        return None
    classes = dict.fromkeys(filter(None, (wanted.priority_class, *wanted.allowed)))
    only = f"only: {', '.join(classes)}" if classes else "none"
    return Problem(
        "PriorityClassNotAllowed",
        f"{path}.priorityClassName: {named!r} is not allowed by the GPUPool, {only} (its "
        "spec.priorityClassName and spec.allowedPriorityClasses); or leave it out",
    )


def priority_class_of(workload: Object) -> str:
    """Name of the PriorityClass that a workload's pods will have; "": none."""
    pod = get(workload, (*kind_of(workload).pod_template, "spec")) or {}
    return str(pod.get("priorityClassName") or "")
