"""A job's access Jobs as the cluster shows them: which are the operator's own, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller import names
from controller.checkpoints.access_jobs import COMPONENT, is_unsuspended, parse_result
from controller.checkpoints.access_jobs import request_id as access_request_id
from controller.kube.cache import Cache, key_of
from controller.kube.resources import JOBS, PODS, RLHFJOBS
from controller.operator.state.job_snapshot import sound
from controller.operator.state.ownership import controlled_by
from controller.operator.state.sources import AccessDetails
from controller.policy.job import AccessView, JobRecord
from controller.policy.types import JobKey

Object = Mapping[str, Any]


class AccessJobs:
    """Access Jobs of all jobs, from the cache and from what this process did itself."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._unstarted: dict[JobKey, dict[tuple[str, str], AccessView]] = {}  # by (uid, request id): why not
        self._forgotten: set[str] = set()  # uids of those whose deletion was accepted
        self._made: set[str] = set()  # uids of those that this process made, until they are on record
        self._foreign: set[str] = set()  # uids of Jobs that only say to be access Jobs, and were told of

    def unstarted(self, key: JobKey, job_uid: str, view: AccessView) -> None:
        """Record the failure of one that could not be started. ``job_uid``: of the RLHFJob."""
        self._unstarted.setdefault(key, {})[job_uid, view.request_id] = view

    def made(self, uid: str) -> None:
        """Record that this process has made one."""
        self._made.add(uid)

    def deleted(self, key: JobKey, job_uid: str, request_id: str, uid: str | None) -> None:
        """Record that one was deleted, or never existed (``uid`` None). ``job_uid``: of the RLHFJob."""
        self._unstarted.get(key, {}).pop((job_uid, request_id), None)
        if uid is not None:
            self._forgotten.add(uid)

    def gone(self, uid: str) -> None:
        """Forget a Job that is not in the cluster any more."""
        for known in (self._forgotten, self._made, self._foreign):
            known.discard(uid)

    def forget(self, key: JobKey) -> None:
        """Forget everything about an RLHFJob that is gone."""
        self._unstarted.pop(key, None)

    def find(self, obj: Object, request_id: str, uid: str = "") -> Object | None:
        """Return the access Job of a request, if it is there and was made for this very RLHFJob.

        ``uid``: of the Job, where it is known; else one that says to be of the request.
        """
        jobs = [job for job in self._of(obj) if access_request_id(job) == request_id]
        return next((job for job in jobs if uid in ("", job["metadata"]["uid"])), None)

    def foreign(self, obj: Object, record: JobRecord) -> list[str]:
        """Return names of Jobs, not told of yet, that say to carry out what is asked for, and that nobody
        asked."""
        found = [job for job in self._of(obj) if is_unsuspended(job) and not _may_answer(record, job)]
        new = [job["metadata"] for job in found if job["metadata"]["uid"] not in self._foreign]
        self._foreign.update(metadata["uid"] for metadata in new)
        return [metadata["name"] for metadata in new]

    def unreleased(self, obj: Object) -> list[Object]:
        """Access Jobs of this very RLHFJob that were created but not set going."""
        return [job for job in self._of(obj) if not is_unsuspended(job)]

    def _of(self, obj: Object) -> Iterable[Object]:
        uid = obj["metadata"]["uid"]
        for stored in self._cache.of_job(JOBS, key_of(obj)):
            job = stored.open()
            metadata = job["metadata"]
            if (
                (metadata.get("labels") or {}).get(names.LABEL_COMPONENT) == COMPONENT
                and (metadata.get("annotations") or {}).get(names.ANNOTATION_JOB_UID) == uid
                and metadata["uid"] not in self._forgotten
                and not metadata.get("deletionTimestamp")
            ):
                yield sound(job)

    def made_of(self, obj: Object, record: JobRecord) -> tuple[tuple[str, str], ...]:
        """Access Jobs that wait to be set going, as far as they are known to be the operator's own."""
        waited = record.access.job_uid if record.access is not None else ""
        return tuple(
            (access_request_id(job), uid)
            for job in self.unreleased(obj)
            if (uid := job["metadata"]["uid"]) == waited or uid in self._made
        )

    def views(self, obj: Object, record: JobRecord, details: Iterable[AccessDetails]) -> list[AccessView]:
        """Return what the job's access Jobs show: first those that were set going, then those that could not
        be started.

        Args:
            obj: the RLHFJob.
            record: its status, read.
            details: what else is asked about each.
        """
        uid = obj["metadata"]["uid"]
        pods = [pod.open() for pod in self._cache.of_job(PODS, key_of(obj))]
        views = []
        for job in self._of(obj):
            if not is_unsuspended(job):
                continue  # created but not set going: to the brain it is not started yet
            if not _may_answer(record, job):
                continue  # anybody may make a Job that says to be one
            own = [pod for pod in pods if controlled_by(pod, job["metadata"]["uid"])]
            view = parse_result(job, own)
            for source in details:
                view = source.of(key_of(obj), view, job, own)
            views.append(replace(view, holder_gone=self._holder_deleted(obj, view.holder)))
        known = {view.request_id for view in views}
        refused = self._unstarted.get(key_of(obj), {})
        never = [v for (u, request), v in refused.items() if u == uid and request not in known]
        return [*views, *never]

    def _holder_deleted(self, obj: Object, holder: tuple[str, str] | None) -> bool:
        """Return whether who holds a location was an RLHFJob of the same namespace that is deleted. Of
        another namespace, or another cluster, nothing is concluded: there the file on the store decides."""
        if holder is None or holder[1].partition("/")[0] != obj["metadata"]["namespace"]:
            return False
        there = self._cache.get(RLHFJOBS, holder[1])
        return there is None or there["metadata"]["uid"] != holder[0]


def _may_answer(record: JobRecord, job: Object) -> bool:
    """Return whether a Job that is set going may answer: not where another one was made for its request."""
    waited = record.access
    if waited is None or access_request_id(job) != waited.request_id:
        return True  # nobody waits for what it says; it is cleared away
    return bool(job["metadata"]["uid"] == waited.job_uid)
