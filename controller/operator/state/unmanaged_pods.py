"""GPU pods of no RLHFJob on the pools' nodes: listed now and then, not watched.

The pools' taint keeps nearly all of them away, so a watch of every pod of the cluster would be a high price
for a rare guest. Pods with our label are watched; these are the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller import names, workloads
from controller.kube.client import Api
from controller.kube.namespaced_watch import list_in
from controller.kube.resources import PODS
from controller.kube.trim import Object, trim_or_bare
from controller.objects import controller_uid
from controller.operator.state.ownership import controller_name

FEW_NODES = 32  # up to here one indexed LIST per node, beyond it one LIST of all
RETRY = 1.0  # s, until the first look has succeeded
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


class UnmanagedPods:
    """Unlabelled pods with GPUs on given nodes, as of the last list."""

    def __init__(self, api: Api, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: those that may be looked into; none: all."""
        self._api, self._namespaces = api, namespaces
        self._pods: dict[str, Object] = {}
        self.looked = False
        self.listed_all = False  # at the last look

    def pause(self, seconds: float, list_seconds: float) -> float:
        """Return how long (s) to leave it at the last look: a LIST of all pods of a large cluster is no small
        thing.

        ``seconds``: between looks node by node. ``list_seconds``: between LISTs of all, at least.
        """
        if not self.looked:
            return RETRY
        return max(seconds, list_seconds) if self.listed_all else seconds

    def pods(self) -> Iterable[Mapping[str, Any]]:
        return self._pods.values()

    def of_jobs(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the names of those pods that a Job controls, by its ``namespace/name`` and its uid."""
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for pod in self._pods.values():
            kind, name = controller_name(pod) or ("", "")
            if kind == "Job" and (uid := controller_uid(pod)) is not None:
                metadata = pod["metadata"]
                job = (f"{metadata['namespace']}/{name}", uid)
                found[job] = tuple(sorted((*found.get(job, ()), str(metadata["name"]))))
        return found

    async def look(self, nodes: Iterable[str]) -> frozenset[str]:
        """List them anew. Returns the names of nodes on which such a pod came, goes, or is gone."""
        wanted = frozenset(nodes)
        if few := len(wanted) <= FEW_NODES:
            selectors = [f"spec.nodeName={node},{_LIVE}" for node in sorted(wanted)]
        else:
            selectors = [f"spec.nodeName!=,{_LIVE}"]
        found: dict[str, Object] = {}
        for selector in selectors:
            pods = await list_in(
                self._api.list, PODS, self._namespaces, labels=f"!{names.LABEL_JOB}", fields=selector
            )
            for given in pods:
                if (pod := _with_gpus(given)) is not None and pod["spec"].get("nodeName") in wanted:
                    found[pod["metadata"]["uid"]] = pod
        before, self._pods = self._pods, found
        self.looked, self.listed_all = True, not few
        return frozenset(
            pod["spec"]["nodeName"]
            for uid, pod in (*before.items(), *found.items())
            if _for_pool(before.get(uid)) != _for_pool(found.get(uid))
        )


def _with_gpus(given: Object) -> Object | None:
    """Return what is kept of a pod that has GPUs; None: it has none, as nearly all have."""
    with contextlib.suppress(Exception):  # one that is not as it should be is looked at with care
        if not workloads.gpus(given["spec"]):
            return None
    pod = trim_or_bare(PODS, given)
    return pod if workloads.gpus(pod["spec"]) else None


def _for_pool(pod: Object | None) -> tuple[bool, Any]:
    """Return what of a pod its pool goes by: whether it is there, and whether it is on its way out."""
    return pod is not None, None if pod is None else pod["metadata"].get("deletionTimestamp")
