"""The actions of a plan: each is idempotent, and its result is put into the cache at once.

Names are deterministic, so that a create whose answer was lost finds its own object the next time. Patches
and deletions name the uid and the version they mean: one that a leader sent before it lost its office, and
that arrives late, finds the object changed. No action decides whether it should happen: that was the plan's
part.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller import delegates, log, names, workloads
from controller.checkpoints.access_jobs import (
    AccessRefused,
    AccessSettings,
    access_job,
    is_unsuspended,
    retention_problem,
    same_work,
    unsuspend_patch,
)
from controller.checkpoints.access_jobs import request_id as request_id_of
from controller.delegates import NotYet, Placement, Write
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from controller.kube.resources import CONFIGMAPS, JOBS, RLHFJOBS, Resource
from controller.kube.versioned import Stale, delete_as_read, patch_as_read
from controller.operator.process.settings import Settings
from controller.operator.reconcile.validation import NO_LASTS, actor_manifest, child_of, user_problem
from controller.operator.state import run_configmap
from controller.operator.state.claims import claims_of
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.operator.state.ownership import controlled_by, leftover
from controller.policy.actor_types import Actor
from controller.policy.job import (
    AccessView,
    Action,
    CreateWorkload,
    DeleteActor,
    ForgetAccess,
    JobRecord,
    MakeActor,
    RefuseOffer,
    RemakeWorkload,
    ResumeWorkload,
    SetFinalizer,
    StartAccess,
    StartWorkload,
    SuspendWorkload,
    WriteRun,
)
from controller.policy.types import Problem

Object = Mapping[str, Any]

_logger = log.get("evalstop.actions")


class Actions:
    """Carries out the actions of plans.

    Args:
        outside: copies of what external queues have on record; None: there are none.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        cluster: ClusterState,
        settings: Settings,
        queue_cache: Cache | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._cache, self._cluster, self._clock = api, cache, cluster, clock
        self._queue_cache = queue_cache or Cache(())
        self._access = AccessSettings(image=settings.access_image, endpoints=settings.store_endpoints)
        self._sidecar_image = settings.actor_image
        self._deleted: deque[str] = deque(maxlen=1024)  # uids of actors' Jobs, newest last

    async def do(self, loaded: JobSnapshot, action: Action) -> None:
        """Carry one action out.

        Raises:
            Stale: what the plan was made of has changed; plan again.
            ApiError: the call failed.
        """
        _logger.info("action", action=type(action).__name__)
        match action:
            case CreateWorkload():
                await self._create_workload(loaded)
            case WriteRun(run):
                of = self._cluster.steps_of(loaded.desired), self._cluster.group_door_of(loaded.desired)
                await self._write_run(loaded, run_configmap.manifest(loaded.obj, run, *of))
            case StartWorkload(attempt, _):
                await self._start_workload(loaded, attempt)
            case SuspendWorkload(reason, again):
                await self._suspend_workload(loaded, reason, again)
            case ResumeWorkload():
                await self._resume_workload(loaded)
            case RefuseOffer(reason, message):
                await self._refuse_offer(loaded, reason, message)
            case RemakeWorkload():
                await self._remake_workload(loaded)
            case StartAccess():
                await self._start_access(loaded, action)
            case ForgetAccess(request_id):
                await self._forget_access(loaded, request_id)
            case SetFinalizer(present):
                await self._set_finalizer(loaded, present)
            case MakeActor(actor, attempt):
                await self._make_actor(loaded, actor, attempt)
            case DeleteActor(number, _):
                await self._delete_actor(loaded, number)

    # -- the workload ------------------------------------------------------------------------------------

    async def _create_workload(self, loaded: JobSnapshot) -> None:
        child = child_of(loaded)
        found = await self._create(JOBS, child)
        _must_be_ours(JOBS, found, loaded)
        patch = workloads.strip_queue_patch(found, child)
        if patch is None:
            return
        try:
            # At any version: a pass made again would not come here, and what this takes away nobody needs.
            await self._patch(JOBS, found, patch, any_version=True)
        except Refused:
            problem = workloads.queue_problem(found, child) or ""
            metadata = found["metadata"]
            if names.ANNOTATION_ATTEMPT not in (metadata.get("annotations") or {}):
                # Never started by us, and that queue must not start it: away with it, and asked anew later.
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(JOBS, metadata["name"], metadata["namespace"], metadata["uid"])
                self._cluster.refuse(loaded, Problem("QueueTakesWorkload", problem), NO_LASTS)
            raise Refused(403, "QueueLabelKept", problem) from None

    async def _start_workload(self, loaded: JobSnapshot, attempt: int) -> None:
        child, pool = loaded.child, loaded.pool
        if child is None or pool is None:
            raise Stale(f"{loaded.key}: its workload or pool is gone")
        # It may have been changed since it was admitted: what is patched below is this very version of it.
        if (grown := workloads.child_problem(loaded.obj, child)) is not None:
            raise Refused(422, grown.reason, grown.message)
        selector = {label.key: label.value for label in pool.spec.node_selector}
        if not loaded.desired.gpus_per_replica:  # its GPUs are a worker group's: it may go to any node
            selector = {}
        place = Placement(attempt, pool.metadata.name, selector)
        by = delegates.of_workload(child)
        try:
            await self._write_delegate(
                loaded, lambda: by.start(child, place, self._cluster.queues, self._clock())
            )
        except Refused as error:
            restart = None if workloads.queue_of(child) else workloads.restart_patch(child)
            if error.status != 422 or restart is None:
                raise
            await self._patch(JOBS, child, restart, subresource="status")
            raise Stale(
                f"{loaded.key}: its workload's start time is taken away, to be started anew"
            ) from error

    async def _suspend_workload(self, loaded: JobSnapshot, reason: str, again: bool) -> None:
        child = loaded.child
        if child is not None:
            by, queues = delegates.of_workload(child), self._cluster.queues
            await self._write_delegate(loaded, lambda: by.stop(child, reason, again, queues, self._clock()))

    async def _resume_workload(self, loaded: JobSnapshot) -> None:
        child = loaded.child
        if child is not None and (queue := delegates.queue_of_workload(child)) is not None:
            await self._write_delegate(loaded, lambda: queue.resume(child, self._cluster.queues))

    async def _refuse_offer(self, loaded: JobSnapshot, reason: str, message: str) -> None:
        child, refusal = loaded.child, f"{reason}: {message}"
        if child is not None and (queue := delegates.queue_of_workload(child)) is not None:
            await self._write_delegate(
                loaded, lambda: queue.refuse(child, refusal, self._cluster.queues, self._clock())
            )

    async def _remake_workload(self, loaded: JobSnapshot) -> None:
        child = loaded.child
        if child is None or loaded.desired.workload_ref or not workloads.view(child).suspended:
            raise Stale(f"{loaded.key}: its workload is no longer one to be made anew")
        _must_be_ours(JOBS, child, loaded)
        await delete_as_read(self._api, self._cache, JOBS, child)

    async def _write_delegate(self, loaded: JobSnapshot, what: Callable[[], Sequence[Write]]) -> None:
        """Send what the delegate of a job's workload would write."""
        try:
            writes = what()
        except NotYet as error:
            raise Stale(f"{loaded.key}: {error}") from error
        for write in writes:
            await self._patch(write.resource, write.obj, write.patch, subresource=write.subresource)

    # -- rollout actors ------------------------------------------------------------------------------------

    async def _make_actor(self, loaded: JobSnapshot, actor: Actor, attempt: int) -> None:
        child = loaded.child
        if child is None:
            raise Stale(f"{loaded.key}: its workload is gone")
        manifest = actor_manifest(loaded, child, actor, attempt, self._cluster.steps, self._sidecar_image)
        found = await self._create(JOBS, manifest)
        if not controlled_by(found, child["metadata"]["uid"]):
            name = found["metadata"]["name"]
            raise Refused(409, "NameTaken", f"Job {name} exists and is no actor of this RLHFJob: delete it")

    async def _delete_actor(self, loaded: JobSnapshot, number: int) -> None:
        """Delete an actor's Job. It stays until its pod is gone: its pod's grace period is no longer than a
        recall."""
        for job in self._cluster.actor_jobs(loaded.obj, number):
            metadata = job["metadata"]
            # At any version: whatever became of it since, it is to go. Once: the watch may be behind.
            if metadata.get("deletionTimestamp") or metadata["uid"] in self._deleted:
                continue
            try:
                await self._api.delete(
                    JOBS, metadata["name"], metadata["namespace"], metadata["uid"], foreground=True
                )
            except NotFound:
                self._cache.drop(JOBS, job)
            else:
                self._deleted.append(metadata["uid"])

    # -- the way back to the trainer -----------------------------------------------------------------------

    async def _write_run(self, loaded: JobSnapshot, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        known: Object | None = self._cache.get(CONFIGMAPS, f"{metadata['namespace']}/{metadata['name']}")
        found = known if known is not None else await self._create(CONFIGMAPS, manifest)
        if loaded.desired.workload_ref and workloads.controller_of(found) is None:
            # Pods of a workload referred to need this ConfigMap before we make it, so its user may have. What
            # is not labelled for this RLHFJob is for something else: it would be deleted with the RLHFJob.
            label, name = names.LABEL_JOB, loaded.obj["metadata"]["name"]
            if (found["metadata"].get("labels") or {}).get(label) != name:
                text = (
                    f"ConfigMap {metadata['name']} exists and is not labelled {label}: {name}; label it, to "
                    "have it written and deleted with this RLHFJob, or give it another name"
                )
                raise Refused(409, "NameTaken", text)
            own = {key: metadata[key] for key in ("labels", "ownerReferences")}
            await self._patch(CONFIGMAPS, found, {"metadata": own, "data": manifest["data"]})
            return
        _must_be_ours(CONFIGMAPS, found, loaded)
        if (found.get("data") or {}).get(names.RUN_KEY) != manifest["data"][names.RUN_KEY]:
            await self._patch(CONFIGMAPS, found, {"data": manifest["data"]})

    # -- the checkpoint store ------------------------------------------------------------------------------

    async def _start_access(self, loaded: JobSnapshot, action: StartAccess) -> None:
        """Create suspended; then, in the pass that has its uid on record, set going."""
        try:
            if not action.job_uid:
                await self._make_access(loaded, action)
                return
            found = self._cluster.access_jobs.find(loaded.obj, action.request_id, action.job_uid)
            if found is None:
                raise Stale(f"{loaded.key}: the access Job of {action.request_id} is gone")
            if not is_unsuspended(found):
                await self._patch(JOBS, found, unsuspend_patch(found))
        except AccessRefused as error:
            self._answer_no(loaded, action, error.reason, error.message)
        except Refused as error:
            self._answer_no(loaded, action, "AccessRefused", f"the API server says: {error.message}")

    async def _make_access(self, loaded: JobSnapshot, action: StartAccess) -> None:
        """Create the Job. What is there under its name already may be anybody's, who knows names, or was made
        by a life that ended before it could record that: it serves if it would do just what is asked."""
        manifest = await self._access_manifest(loaded, action)
        name = manifest["metadata"]["name"]
        found = self._cluster.access_jobs.find(loaded.obj, action.request_id)
        if found is None or found["metadata"]["name"] != name:
            try:
                found = await self._api.create(JOBS, manifest)
                self._cache.put(JOBS, found)
                self._cluster.made(loaded.key, found["metadata"]["uid"])
                return
            except AlreadyExists:
                found = await self._found_there(JOBS, manifest)
        free = {**manifest["metadata"], "name": f"{name[:61].rstrip('-.')}-0"}
        asked = await self._api.create(JOBS, {**manifest, "metadata": free}, dry_run=True)
        if not same_work(found, asked):
            raise AccessRefused("AccessNameTaken", f"Job {name} exists, and is not the operator's: delete it")
        self._cache.put(JOBS, found)
        self._cluster.made(loaded.key, found["metadata"]["uid"])

    async def _access_manifest(self, loaded: JobSnapshot, action: StartAccess) -> dict[str, Any]:
        child = loaded.child
        # A deletion in the foreground takes the workload first: what is left of it is in the spec.
        made = child if child is not None or loaded.desired.workload_ref else child_of(loaded)
        if made is None:
            raise Stale(f"{loaded.key}: its workload is gone")
        # The namespace's level, or the owner of the files, may have changed since the run was accepted.
        if (refused := await user_problem(self._api, loaded, made["spec"]["template"])) is not None:
            raise AccessRefused(*refused)
        # Of the pods the gang may have on several nodes, the first: with ReadWriteOnce they share one anyway.
        node = next((pod.node for pod in loaded.observed.pods if not pod.terminal and pod.node), None)
        template, claims = made["spec"]["template"], await claims_of(self._api, loaded.obj)
        job = access_job(loaded.obj, template, action, self._access, claims=claims, node=node, anchor=child)
        # What touches the location alone is done all the same, and its plan tells that no copy could be.
        lacks = retention_problem(loaded.obj, template, claims)
        self._cluster.note_retention(loaded, lacks, NO_LASTS)
        return job

    def _answer_no(self, loaded: JobSnapshot, action: StartAccess, reason: str, message: str) -> None:
        """Record an access Job that could not be started as one that failed.

        The plan then sets a condition that says so, and tries it again.
        """
        self._cluster.unstarted(
            loaded,
            AccessView(
                action.request_id, action.operation, finished=True, ok=False, reason=reason, message=message
            ),
        )

    async def discard_unreleased(self, loaded: JobSnapshot, record: JobRecord) -> None:
        """Delete access Jobs that a crash left between create and start, if nobody waits for them any more.

        They would wait for ever: deadline and time to live count from the start.
        """
        waited = record.access.request_id if record.access is not None else None
        for job in self._cluster.access_jobs.unreleased(loaded.obj):
            if request_id_of(job) != waited:
                await self._forget_access(loaded, request_id_of(job))

    async def _forget_access(self, loaded: JobSnapshot, request_id: str) -> None:
        waited = loaded.record.access
        own = waited.job_uid if waited is not None and waited.request_id == request_id else ""
        found = self._cluster.access_jobs.find(loaded.obj, request_id, own)
        if found is None:
            self._cluster.forget_access(loaded, request_id, None)
            return
        await delete_as_read(self._api, self._cache, JOBS, found)
        self._cluster.forget_access(loaded, request_id, found["metadata"]["uid"])

    # -- the RLHFJob itself ----------------------------------------------------------------------------------

    async def _set_finalizer(self, loaded: JobSnapshot, present: bool) -> None:
        obj = self._cache.get(RLHFJOBS, loaded.key) or loaded.obj
        known = list(obj["metadata"].get("finalizers") or ())
        if (names.FINALIZER in known) == present:
            return
        wanted = [*known, names.FINALIZER] if present else [f for f in known if f != names.FINALIZER]
        # A list is replaced whole: only over the very version that was read, or another's would be lost.
        await self._patch(RLHFJOBS, obj, {"metadata": {"finalizers": wanted or None}})

    # -- the two kinds of write ------------------------------------------------------------------------------

    async def _create(self, resource: Resource, manifest: dict[str, Any]) -> Object:
        """Return the object as created, or as it is there already under that name."""
        try:
            found: Object = await self._api.create(resource, manifest)
        except AlreadyExists:
            found = await self._found_there(resource, manifest)
        self._copies(resource).put(resource, found)
        return found

    async def _found_there(self, resource: Resource, manifest: dict[str, Any]) -> Object:
        metadata = manifest["metadata"]
        try:
            return await self._api.get(resource, metadata["name"], metadata["namespace"])
        except NotFound as error:
            raise Stale(f"{resource.kind} {metadata['name']} was there and is gone") from error

    async def _patch(
        self,
        resource: Resource,
        obj: Object,
        patch: Mapping[str, Any],
        *,
        any_version: bool = False,
        subresource: str = "",
    ) -> None:
        await patch_as_read(
            self._api,
            self._copies(resource),
            resource,
            obj,
            patch,
            any_version=any_version,
            subresource=subresource,
        )

    def _copies(self, resource: Resource) -> Cache:
        return self._queue_cache if resource in self._queue_cache.stores else self._cache


def _must_be_ours(resource: Resource, found: Object, loaded: JobSnapshot) -> None:
    """Nothing of somebody else's is touched, whatever its name."""
    if controlled_by(found, loaded.uid):
        return
    what = f"{resource.kind} {found['metadata']['name']}"
    if leftover(found, loaded.obj):
        raise Unavailable(0, "Leftover", f"{what} of an earlier RLHFJob of this name is still being removed")
    raise Refused(409, "NameTaken", f"{what} exists and does not belong to this RLHFJob: delete or rename it")
