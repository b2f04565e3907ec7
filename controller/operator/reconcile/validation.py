"""Validation of a job's workload by the API server; a refusal is the job's problem.

For a template: a server-side dry run, so that schema, quota, security and any webhook have their say. For a
ref: whether the object is there and is what the contract asks for. The answer is believed until the spec
changes or, when it was no, for a minute: quotas and missing objects get mended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from controller import delegates, names, workloads
from controller.api.gpupool import GPUPool
from controller.checkpoints.access_jobs import access_problem, retention_problem
from controller.checkpoints.pod_security import RESTRICTED, refusal
from controller.checkpoints.run_as import USER_REFUSED, run_as
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.errors import AlreadyExists, ApiError, NotFound, Refused, Unavailable, WebhookFails
from controller.kube.resources import JOBS, PRIORITY_CLASSES
from controller.kube.trim import Object
from controller.kube.versioned import Stale
from controller.operator.state.claims import claims_of
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.operator.state.namespaces import enforced_level
from controller.operator.state.ownership import (
    child_key,
    controlled_by,
    earlier_job,
    generation,
    is_ref,
    leftover,
)
from controller.operator.state.steps import StepAddress
from controller.policy.actor_types import Actor
from controller.policy.job import (
    ACTION_REFUSED,
    EARLIER_JOB_REMAINS,
    WEBHOOK_FAILS,
    earlier_job_remains,
    place_is_missing,
    place_problem,
)
from controller.policy.types import Mode, Problem
from controller.workloads.actor_jobs import Sidecar, actor_template_problem, build_actor, weights_problem

NO_LASTS = 60.0  # s
WEBHOOK_AWAY = 15.0  # s after which one that did not answer is tried again
# s after which it is seen whether a Job of an earlier RLHFJob is gone: nobody tells the new one.
EARLIER_JOB_AGAIN = 5.0
_ASKED_AGAIN = {WEBHOOK_FAILS: WEBHOOK_AWAY, EARLIER_JOB_REMAINS: EARLIER_JOB_AGAIN}


class SpecChecks:
    """Asks the API server, and remembers the answers in the `ClusterState`, where each load finds them.

    ``clock``: seconds since the epoch.
    """

    def __init__(
        self, api: Api, cache: Cache, cluster: ClusterState, clock: Callable[[], float] = time.time
    ) -> None:
        self._api, self._cache, self._cluster, self._clock = api, cache, cluster, clock
        self._classes: set[str] = set()  # PriorityClasses that were found
        self._passed: dict[str, tuple[str, int]] = {}  # job key -> (uid, generation) that passed

    async def ensure(self, loaded: JobSnapshot) -> None:
        """Make sure that the cluster state holds the present answer for this job.

        Raises:
            ApiError: the cluster could not be asked.
        """
        await self._look_at_retention(loaded)
        refused = self._cluster.refused(loaded)
        desired, record = loaded.desired, loaded.record
        if desired.deleting or record.admission is not None or record.finished is not None:
            return
        stamp = (loaded.uid, generation(loaded.obj))
        if loaded.child is not None and not is_ref(loaded.obj):
            self._passed.pop(loaded.key, None)
            if (grown := workloads.child_problem(loaded.obj, loaded.child)) is None:
                self._cluster.accept(loaded)
            else:
                self._cluster.refuse(loaded, grown, NO_LASTS)
            return
        if refused is None and loaded.desired.problem is not None:
            return  # the spec alone is wrong already
        if refused is None and self._passed.get(loaded.key) == stamp and not is_ref(loaded.obj):
            return
        if refused is not None and loaded.desired.problem == refused and not self._due(loaded):
            return
        try:
            problem = await (self._check_ref(loaded) if is_ref(loaded.obj) else self._check_template(loaded))
        except WebhookFails as error:
            problem = not_let_through("", error)
        if problem is None:
            self._passed[loaded.key] = stamp
            self._cluster.accept(loaded)
        else:
            self._passed.pop(loaded.key, None)
            self._cluster.refuse(loaded, problem, _lasts(problem))

    def again_in(self, loaded: JobSnapshot) -> float | None:
        """Return seconds after which a refusal is to be asked about anew; None: there is none."""
        refused = self._cluster.refused(loaded)
        times = (_lasts(refused) if refused is not None else None, self._retention_due(loaded))
        return min((t for t in times if t is not None), default=None)

    def _retention_due(self, loaded: JobSnapshot) -> float | None:
        """Return in how many seconds the place of a run's copies is to be looked at; None: it need not be."""
        record = loaded.record
        if record.admission is None or record.finished is not None or loaded.desired.deleting:
            return None
        if loaded.child is None:
            return None
        due = self._cluster.retention_due(loaded)
        # What is said and not known was found out by an operator that is gone.
        return 0.0 if due is None and place_is_missing(record) else due

    async def _look_at_retention(self, loaded: JobSnapshot) -> None:
        """Look whether copies of a run's checkpoints have a place by now, where they had none.

        While the claims cannot be read what is said stays so: the run's evals are judged all the same.
        """
        if self._retention_due(loaded) == 0.0 and loaded.child is not None:
            template = loaded.child["spec"]["template"]
            try:
                claims = await claims_of(self._api, loaded.obj)
            except ApiError:
                found = loaded.observed.no_retention or place_problem(loaded.record)
            else:
                found = retention_problem(loaded.obj, template, claims)
            self._cluster.note_retention(loaded, found, NO_LASTS)

    def _due(self, loaded: JobSnapshot) -> bool:
        return self._cluster.refusal_expired(loaded)

    async def _check_template(self, loaded: JobSnapshot) -> Problem | None:
        template = loaded.obj["spec"]["workload"]["template"]
        problem: Problem | None = workloads.template_problem(loaded.obj, scheduling_of(loaded.pool))
        problem = problem or _delegate_problem(loaded, child_of(loaded), "spec.workload.template")
        if problem is not None:
            return problem
        taken = False

        async def dry_run(manifest: Object) -> Object | None:
            nonlocal taken
            try:
                return await self._api.create(JOBS, manifest, dry_run=True)
            except AlreadyExists:
                taken = True
                return None

        child = child_of(loaded)
        problem = await workloads.server_problem(dry_run, child)
        if taken:
            problem = await self._owner_problem(loaded)
        problem = problem or await self._check_actors(loaded, child)
        problem = problem or await self._check_class(child)
        return problem or await self._check_store(loaded, template)

    async def _check_actors(self, loaded: JobSnapshot, child: Mapping[str, Any]) -> Problem | None:
        """Return what is wrong with the template of rollout actors, by what the operator knows and by a dry
        run of an actor's Job."""
        spec, terms = loaded.obj["spec"].get("rollout"), loaded.desired.rollout
        if spec is None or terms is None:
            return None
        problem = actor_template_problem(spec["template"], terms.gpus) or weights_problem(spec)
        if problem is not None:
            return problem
        known = {**child, "metadata": {**child["metadata"], "uid": loaded.uid}}  # it is not made yet
        entry = Actor(0, "any", terms.gpus)
        asked = actor_manifest(loaded, known, entry, 0, self._cluster.steps, names.OPERATOR_IMAGE)
        try:
            await self._api.create(JOBS, asked, dry_run=True)
        except AlreadyExists:
            return None
        except Refused as error:
            return Problem("ActorRefused", f"spec.rollout.template: the API server says: {error.message}")
        return None

    async def _check_class(self, workload: Mapping[str, Any]) -> Problem | None:
        """Return whether the PriorityClass of the pods is there: the server asks only when pods are made."""
        name = workloads.priority_class_of(workload)
        if not name or name in self._classes:
            return None
        try:
            await self._api.get(PRIORITY_CLASSES, name)
        except NotFound:
            cure = " (kubectl apply -f deploy/manifests)" if name == names.PRIORITY_CLASS else ""
            return Problem(
                "PriorityClassNotFound",
                f"priorityClassName: there is no PriorityClass {name!r}, so no pod could be made; make it"
                f"{cure}, or name another in the template or in the GPUPool's spec.priorityClassName",
            )
        self._classes.add(name)
        return None

    async def _check_store(self, loaded: JobSnapshot, workload: Mapping[str, Any]) -> Problem | None:
        """Return whether the checkpoints can be reached at all: better said before the run than after it."""
        if loaded.desired.mode is Mode.OFF:
            return None
        template = (workload.get("spec") or {}).get("template") or {}
        problem = access_problem(loaded.obj, template, await claims_of(self._api, loaded.obj))
        return problem or await user_problem(self._api, loaded, template)

    async def _owner_problem(self, loaded: JobSnapshot) -> Problem | None:
        """Return the problem if a Job of the child's name exists that is not ours; None: there is none.

        A Job of ours that the cache did not have yet is put into it.

        Raises:
            Unavailable: the Job is of an earlier RLHFJob of this name and may be about to go.
        """
        key = child_key(loaded.obj)
        namespace, _, name = key.partition("/")
        try:
            found = await self._api.get(JOBS, name, namespace)
        except NotFound:
            return None
        if controlled_by(found, loaded.uid):
            self._cache.put(JOBS, found)
            return None
        if leftover(found, loaded.obj):
            remains = earlier_job_remains(earlier_job(found, loaded.obj), self._clock())
            if remains is not None:
                return remains
            raise Unavailable(0, "Leftover", f"Job {key} of an earlier RLHFJob of this name is being removed")
        return Problem(
            "WorkloadNameTaken",
            f"Job {key} exists already and does not belong to this RLHFJob: delete it, or rename the RLHFJob",
        )

    async def _check_ref(self, loaded: JobSnapshot) -> Problem | None:
        child: Mapping[str, Any] | None = loaded.child
        if child is None:  # not there, or without the label by which it would be watched
            namespace, _, name = child_key(loaded.obj).partition("/")
            try:
                child = await self._api.get(JOBS, name, namespace)
            except NotFound:
                child = None
        problem: Problem | None = workloads.ref_problem(
            loaded.obj, child, scheduling_of(loaded.pool), watched=_watched(loaded)
        )
        if problem is None and child is not None and not (_watched(loaded) and _runs(child)):
            problem = _delegate_problem(loaded, child, f"Job {child['metadata']['name']}")
        if problem is None and child is not None:
            self._cache.put(JOBS, child)
            problem = await self._check_class(child)
            if problem is None and not (_watched(loaded) and _runs(child)):  # it runs as somebody made it
                problem = await self._check_store(loaded, child)
        return problem


def not_let_through(action: str, error: Refused | WebhookFails) -> Problem:
    """Return why the API server lets an action not through, in its words.

    Args:
        action: of a plan; "": it is only asked whether it would.
        error: its answer.
    """
    if isinstance(error, Refused):
        return Problem(ACTION_REFUSED, f"{action}: {error.message}")
    text = "the API server makes and changes nothing for this job, and it is tried again"
    return Problem(WEBHOOK_FAILS, f"{text}: {error.message}")


def _lasts(problem: Problem) -> float:
    return _ASKED_AGAIN.get(problem.reason, NO_LASTS)


async def user_problem(api: Api, loaded: JobSnapshot, pod_template: Mapping[str, Any]) -> Problem | None:
    """Return why no pod may reach the checkpoints as the user that they have to be reached as; None: one may,
    or that user is not known yet."""
    trainer = pod_template.get("spec") or {}
    user = run_as(loaded.obj, trainer, loaded.record.file_owner)
    message = user.problem(trainer)
    if message is None:
        namespace = loaded.obj["metadata"]["namespace"]
        # What the strictest level lets in passes every one: the API server is seldom asked.
        if refusal(namespace, RESTRICTED, user, trainer) is not None:
            message = refusal(namespace, await enforced_level(api, namespace), user, trainer)
    return Problem(USER_REFUSED, message) if message is not None else None


def _watched(loaded: JobSnapshot) -> bool:
    return loaded.desired.mode is not Mode.ENFORCE


def _delegate_problem(loaded: JobSnapshot, workload: Mapping[str, Any], where: str) -> Problem | None:
    if loaded.pool is None:
        return None
    return delegates.of_pool(loaded.pool).problem(workload, loaded.pool, loaded.desired.queue, where)


def child_of(loaded: JobSnapshot) -> dict[str, Any]:
    """Return the child of an RLHFJob that brings a template, as it is to be made in its pool.

    Raises:
        ProblemError: the template is wrong (`workloads.template_problem`).
    """
    child = workloads.build_child(loaded.obj, scheduling_of(loaded.pool))
    if (queue := delegates.queue_of_pool(loaded.pool)) is not None:
        queue.enqueue(child, loaded.desired.queue)
    return child


def actor_manifest(
    loaded: JobSnapshot,
    child: Mapping[str, Any],
    actor: Actor,
    attempt: int,
    steps: StepAddress | None,
    image: str,
) -> dict[str, Any]:
    """Return the Job of a rollout actor as it is to be made in its job's pool.

    Raises:
        ProblemError: the template is wrong (`actor_template_problem`).
        Stale: the pool is gone, or nobody serves steps.
    """
    spec, terms, name = (
        loaded.obj["spec"].get("rollout"),
        loaded.desired.rollout,
        loaded.obj["metadata"]["name"],
    )
    if loaded.pool is None or steps is None or spec is None or terms is None:
        raise Stale(f"{loaded.key}: there is nobody to make an actor for")
    sidecar = Sidecar(
        image,
        ",".join(steps.urls),
        workloads.run_configmap(name),
        str(spec.get("engine", "Plain")),
        str(spec.get("weightsVolume") or ""),
    )
    return build_actor(
        child,
        name,
        spec["template"],
        actor,
        sidecar,
        attempt=attempt,
        pool=loaded.pool.metadata.name,
        grace=int(terms.recall_seconds),
        scheduling=scheduling_of(loaded.pool),
    )


def _runs(workload: Mapping[str, Any]) -> bool:
    return not (workload.get("spec") or {}).get("suspend")


def scheduling_of(pool: GPUPool | None) -> workloads.Scheduling:
    """Return what a pool asks of its jobs' pods; of a pool that is not there, what one asks by default."""
    if pool is None:
        return workloads.Scheduling("", names.PRIORITY_CLASS)
    spec = pool.spec
    return workloads.Scheduling(spec.scheduler_name, spec.priority_class_name, spec.allowed_priority_classes)
