"""Sources of what the cache does not tell of a job, and the empty ones that stand where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from controller.kube.resources import Resource
from controller.policy.job import AccessView, PodTrouble
from controller.policy.types import JobKey

Object = Mapping[str, Any]


class _NoQueues:
    """No external queue: nothing is read, and nothing is concluded from that."""

    def get(self, resource: Resource, key: str) -> Object | None:
        return None

    def values(self, resource: Resource) -> Iterable[Object]:
        return ()

    def of_job(self, resource: Resource, job: str) -> Iterable[Object]:
        return ()

    def listed(self, resource: Resource) -> bool:
        return False

    def absent(self, resource: Resource) -> bool:
        return False


NO_QUEUES = _NoQueues()


class AccessDetails(Protocol):
    """A source of what an access Job and its pods do not say themselves (access_progress.py,
    access_refusals.py)."""

    def of(self, key: JobKey, view: AccessView, job: Object, pods: Sequence[Object]) -> AccessView:
        """Return the view of an access Job, with what is known of it from there."""
        ...


class Refusals(AccessDetails, Protocol):
    """A source of why the cluster makes no pod of a Job (access_refusals.py)."""

    def of_trainer(self, key: JobKey, job: Object, pods: int, expected: int) -> str | None:
        """Return why a workload lacks pods; None: it does not, or nobody knows."""
        ...


class Starts(Protocol):
    """A source of why a pod that has its node does not start (pod_starts.py)."""

    def of(self, key: JobKey, pods: Sequence[Object]) -> PodTrouble | None:
        """Return why one of a job's pods does not start; None: they have, or nobody knows."""
        ...


class _NoStarts:
    """No such source."""

    def of(self, key: JobKey, pods: Sequence[Object]) -> PodTrouble | None:
        return None


NO_STARTS = _NoStarts()


class _NoDetails:
    """No such source."""

    def of_trainer(self, key: JobKey, job: Object, pods: int, expected: int) -> str | None:
        return None

    def of(self, key: JobKey, view: AccessView, job: Object, pods: Sequence[Object]) -> AccessView:
        return view


NO_DETAILS = _NoDetails()
