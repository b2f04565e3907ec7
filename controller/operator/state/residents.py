"""Between the operator's passes over jobs and the step API: which pods are of jobs that share worker groups.

In memory: every pass over such a job tells it anew.
"""

from __future__ import annotations

from controller import names
from controller.objects import is_terminal
from controller.operator.state.job_snapshot import JobSnapshot
from controller.policy.job import JobRecord, residency
from controller.policy.types import JobKey
from controller.steps.groups import GroupDirectory, SharingJob


class Residents:
    """Keeps a `GroupDirectory` equal to what passes over jobs observe."""

    def __init__(self, directory: GroupDirectory) -> None:
        self._directory = directory
        self._uids: dict[JobKey, str] = {}

    def put(self, loaded: JobSnapshot, record: JobRecord) -> None:
        """Take in a job as a pass has planned it."""
        admission, known = record.admission, record.residency
        if loaded.desired.sharing is None or admission is None:
            self.forget(loaded.key)
            return
        if self._uids.get(loaded.key) not in (None, loaded.uid):
            self.forget(loaded.key)  # a namesake came in its place
        self._uids[loaded.key] = loaded.uid
        pods = frozenset(
            str(pod["metadata"]["uid"])
            for pod in loaded.pods
            if not is_terminal(pod)
            and (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADMISSION)
            == str(admission.number)
        )
        job = SharingJob(loaded.uid, admission.number, pods)
        if known is not None and known.group and not known.leaving:
            resident = residency.name_of(loaded.uid, known.number)
            job = SharingJob(loaded.uid, admission.number, pods, known.group, resident, known.joined)
        self._directory.put_job(job)

    def forget(self, key: JobKey) -> None:
        """Forget a job that shares no group now, or is gone."""
        if (uid := self._uids.pop(key, None)) is not None:
            self._directory.drop_job(uid)
