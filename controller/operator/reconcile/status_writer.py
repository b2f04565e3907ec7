"""The only place that writes statuses: only what changed, and only if the object has not changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.api import convert
from controller.api.markers import EPOCH_REFUSED
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import ApiError, Refused
from controller.kube.merge import merge_diff
from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS, Resource
from controller.kube.unwritten_statuses import UnwrittenStatuses
from controller.kube.versioned import patch_as_read
from controller.operator.process.leader_election import Term
from controller.operator.process.metrics import Metrics
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.operator.state.ownership import pool_of
from controller.policy.job import Decision, JobRecord

Object = Mapping[str, Any]


class StatusWriter:
    """Writes statuses; the results are put into the cache at once, so that the next pass uses them.

    Each carries the number of the term in which it is written. It is no reason to write: a status in which
    nothing else changed keeps an older number. ``unwritten`` is told of each that is refused, and of the
    next one that is not.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        cluster: ClusterState,
        metrics: Metrics,
        term: Term,
        unwritten: UnwrittenStatuses | None = None,
    ) -> None:
        self._api, self._cache, self._cluster, self._metrics = api, cache, cluster, metrics
        self._term, self._unwritten = term, unwritten or UnwrittenStatuses(cache)

    async def record(self, loaded: JobSnapshot, record: JobRecord, now: float) -> bool:
        """Make ``record`` the job's status. Returns whether there was anything to write.

        Raises:
            Stale: the RLHFJob changed since it was loaded.
            ApiError: the call failed.
        """
        wanted = convert.status(self._cluster.names.hidden(record, loaded.key), loaded.desired, now)
        written = await self._write(RLHFJOBS, loaded.obj, wanted)
        self._metrics.jobs.note(loaded.key, record)
        if written:
            self._metrics.record_changed(loaded.record, record)
            self._measure(loaded, record)
        return written

    async def pool(self, obj: Object, wanted: Mapping[str, Any]) -> bool:
        """Make ``wanted`` a GPUPool's status, like `record`."""
        return await self._write(GPUPOOLS, obj, wanted)

    async def group(self, obj: Object, wanted: Mapping[str, Any]) -> bool:
        """Make ``wanted`` a WorkerGroup's status, like `record`."""
        return await self._write(WORKERGROUPS, obj, wanted)

    async def make_group(self, made: dict[str, Any]) -> Object:
        """Make a WorkerGroup and return it. Raises ApiError."""
        return await self._api.create(WORKERGROUPS, made, strict=True)

    async def stamp(self, obj: Object) -> None:
        """Put the term's number into a GPUPool's status, and nothing else: what a leader of an earlier term
        still wants to promise there is refused from then on. Raises like `record`."""
        if self._term.epoch is not None and (obj.get("status") or {}).get("epoch") != self._term.epoch:
            await self._patch(GPUPOOLS, obj, {})

    async def _write(self, resource: Resource, obj: Object, wanted: Mapping[str, Any]) -> bool:
        before = {key: value for key, value in (obj.get("status") or {}).items() if key != "epoch"}
        patch = merge_diff(before, {key: value for key, value in wanted.items() if key != "epoch"})
        if not patch:
            self._unwritten.wrote(resource, obj)
            return False
        await self._patch(resource, obj, patch)
        return True

    async def _patch(self, resource: Resource, obj: Object, patch: dict[str, Any]) -> None:
        if self._term.epoch is not None:
            patch = {**patch, "epoch": self._term.epoch}
        # Strict: a definition of an older version would forget fields, `epoch` among them.
        try:
            await patch_as_read(
                self._api, self._cache, resource, obj, {"status": patch}, subresource="status", strict=True
            )
        except ApiError as error:
            if isinstance(error, Refused) and EPOCH_REFUSED in error.message:
                self._term.note_later_term(f"{resource.kind} {obj['metadata']['name']}: {error.message}")
            else:
                self._unwritten.refused(resource, obj, error)
            raise
        self._unwritten.wrote(resource, obj)

    def _measure(self, loaded: JobSnapshot, record: JobRecord) -> None:
        self._metrics.graded(loaded.desired.mode, loaded.record.past_grades, record.past_grades)
        self._metrics.preempted_lost.inc(max(0.0, record.lost - loaded.record.lost))
        admission, before = record.admission, loaded.record.admission
        began = admission is not None and admission.running_since is not None
        if began and (before is None or before.running_since is None):
            self._measure_hand_over(loaded, record)
            self._cluster.pool_changed(pool_of(loaded.obj))  # its handover is complete
        decision = record.decision
        if decision is None or decision.pods_gone_at is None:
            return
        known = loaded.record.decision
        if known is None or known.pods_gone_at is None:
            self._metrics.saved.inc(saved_gpu_hours(loaded))

    def _measure_hand_over(self, loaded: JobSnapshot, record: JobRecord) -> None:
        """Measure how long it took from the decision on a job until the job with its GPUs is running."""
        admission = record.admission
        if admission is None or admission.source is None or admission.running_since is None:
            return
        decision = self._decision(admission.source)
        if decision is not None and decision.handed_to == loaded.key:
            self._metrics.running(decision.at, admission.running_since)

    def _decision(self, key: str) -> Decision | None:
        obj = self._cache.get(RLHFJOBS, key)
        try:
            found = convert.record(obj.get("status")) if obj is not None else None
            return self._cluster.names.shown(found).decision if found is not None else None
        except convert.StatusError:
            return None


def saved_gpu_hours(loaded: JobSnapshot) -> float:
    """Return GPU-hours that the stopped run would have used until its planned end, at its own pace so far: of
    its gang, and what it would have been charged of its worker group.

    0 where the trainer did not say how many steps it means to make, or the pace is unknown.
    """
    scrape, admission = loaded.observed.scrape, loaded.record.admission
    decision = loaded.record.decision
    if scrape is None or admission is None or admission.running_since is None or decision is None:
        return 0.0
    if scrape.step is None or scrape.total_steps is None:
        return 0.0
    made = scrape.step - (scrape.resumed_step or 0)
    seconds = (decision.suspended_at or decision.at) - admission.running_since
    left = scrape.total_steps - scrape.step
    if made <= 0 or seconds <= 0 or left <= 0:
        return 0.0
    spent = seconds * loaded.desired.gpus + _charged(loaded)
    return left * spent / made / 3600.0


def _charged(loaded: JobSnapshot) -> float:
    """Return GPU-seconds that the present attempt was charged of its worker group."""
    known, seen = loaded.record.residency, loaded.observed.group
    if known is None:
        return 0.0
    return max(known.charged, seen.charged if seen is not None and seen.name == known.group else 0.0)
