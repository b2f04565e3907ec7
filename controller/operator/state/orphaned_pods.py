"""Pods of a job's earlier attempts that no workload of the job owns any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller import names, workloads
from controller.objects import controller_uid, is_terminal
from controller.operator.state.ownership import child_key, controller_name
from controller.policy.job import OrphanedPod

Object = Mapping[str, Any]


def orphaned_pods(obj: Object, labelled: Iterable[Object], owners: set[str]) -> tuple[OrphanedPod, ...]:
    """Return the live pods that were started for the RLHFJob ``obj``, and whose owner is none of ``owners``.

    Args:
        obj: the RLHFJob.
        labelled: pods with its label.
        owners: uids of its workload and of earlier ones.

    That a pod was started for it the annotation with its admission says, which the operator alone may write.
    """
    workload = ("Job", child_key(obj).partition("/")[2])
    found = []
    for pod in labelled:
        metadata = pod["metadata"]
        component = (metadata.get("labels") or {}).get(names.LABEL_COMPONENT, "workload")
        if component != "workload" or controller_uid(pod) in owners or is_terminal(pod):
            continue
        view = workloads.pod_view(pod)
        if view.admission is None:
            continue
        # What a Job of that very name had made goes with it: the garbage collector sees to it.
        ending = view.deleting_since is not None or controller_name(pod) == workload
        found.append(OrphanedPod(view.name, ending, view.deleting_since))
    return tuple(sorted(found))
