"""The state of the cluster as input of the planner: the cache, the last scrapes, and refusals.

Loading a job is pure reading. Everything durable is in the RLHFJob's status; what is held here besides the
cache can be lost at any time and is found out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller import delegates, names, workloads
from controller.api import convert, fleet, newer
from controller.api.gpupool import GPUPool
from controller.frozen import dataclass
from controller.kube import wire
from controller.kube.cache import Cache, job_key, key_of
from controller.kube.deflated import Deflater
from controller.kube.packed import Stored
from controller.kube.resources import CONFIGMAPS, GPUPOOLS, JOBS, NODES, PODS, RLHFJOBS, Resource
from controller.objects import controller_uid, is_terminal
from controller.operator.state import run_configmap, steps
from controller.operator.state.access_jobs import AccessJobs
from controller.operator.state.compressed import Compressed
from controller.operator.state.job_names import JobNames
from controller.operator.state.job_snapshot import JobSnapshot, State, sound
from controller.operator.state.locations import Locations
from controller.operator.state.orphaned_pods import orphaned_pods
from controller.operator.state.ownership import (
    child_key,
    controlled_by,
    generation,
    is_ref,
    pool_of,
)
from controller.operator.state.peer_curves import PeerCurves
from controller.operator.state.sources import (
    NO_DETAILS,
    NO_QUEUES,
    NO_STARTS,
    AccessDetails,
    Refusals,
    Starts,
)
from controller.operator.state.specs import Specs
from controller.operator.state.steps import NO_WANTS, StepAddress
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job import (
    CARRIED_OUT,
    AccessView,
    Desired,
    Direction,
    GroupSeen,
    JobRecord,
    Observed,
    OrphanedPod,
    PodView,
    QueueView,
    RolloutView,
    ScrapeOutcome,
    ScrapeView,
    nodes_of,
    peers,
)
from controller.policy.types import FleetScope, FleetView, JobKey, Problem, ScoredBy, namespace_of
from controller.policy.wording import agreeing, some, unlabelled
from controller.workloads.actor_jobs import actor_number, is_actor

Object = Mapping[str, Any]

# Fields of a record by which `load` looks at other objects.
_SEEN_BY = ("access", "actors", "admission", "decision", "evaluator")
NAMED_AFTER = 40  # characters of a Job's name that the names of its pods begin with: a long one is cut there
FORMER = 8  # earlier workloads of a job that are remembered: each is gone when its pods are


@dataclass(frozen=True, slots=True)
class _Refusal:
    uid: str
    generation: int
    problem: Problem
    until: float  # monotonic s


class ClusterState:
    """Loads jobs and pools, and counts their revisions, so that an unchanged job is not planned again.

    ``changed(key)`` is called for each job something of which changed; ``pool_changed(name)`` for each pool.
    """

    def __init__(self, cache: Cache, monotonic: Callable[[], float]) -> None:
        self.cache = cache
        self._jobs = cache.stores[RLHFJOBS]
        self._now = monotonic
        self._scrapes: dict[JobKey, tuple[float, Compressed[ScrapeView]]] = {}  # when (s), what besides
        self._deflater = Deflater()  # of scrapes
        self._unread: set[JobKey] = set()  # of whose page no pass has written yet what it brought
        self._refusals: dict[JobKey, _Refusal] = {}
        self._carried_out: dict[JobKey, tuple[str, Problem | None]] = {}  # uid, why its last actions were not
        # Of jobs whose copies have no place now: uid, why, when to look again (monotonic s).
        self._no_retention: dict[JobKey, tuple[str, Problem, float]] = {}
        self._former: dict[JobKey, tuple[str, ...]] = {}  # uids of earlier workloads of this job's
        self._revisions: dict[JobKey, int] = {}
        # Pods without our label, by key and uid of the Job that controls them.
        self._unlabelled: Mapping[tuple[str, str], tuple[str, ...]] = {}
        self.access_jobs = AccessJobs(cache)
        self._specs = Specs(cache)
        self._members: dict[str, set[JobKey]] = {}  # pool name -> its jobs
        self._curves = PeerCurves(cache)
        self._locations = Locations()
        self.names = JobNames(cache)
        cache.subscribe(self._on_change)
        self.queues: delegates.Known = NO_QUEUES
        # GPUs that a pod (by uid) holds beside those that it requests by name.
        self.claimed: Callable[[str], int] = lambda uid: 0
        self.progress: AccessDetails = NO_DETAILS
        self.refusals: Refusals = NO_DETAILS
        self.starts: Starts = NO_STARTS
        self.steps: StepAddress | None = None  # None: the step API is not served
        # What steps want of their actors, by uid of the job.
        self.wants: Callable[[str], RolloutView] = lambda uid: NO_WANTS
        # What a job's worker group says of it, by its uid.
        self.group_seen: Callable[[str, JobRecord], GroupSeen | None] = lambda uid, record: None
        self.group_changed: Callable[[str], None] = lambda name: None
        self.changed: Callable[[JobKey], None] = lambda key: None
        self.pool_changed: Callable[[str], None] = lambda name: None

    # -- what changed ------------------------------------------------------------------------------------

    def state(self, key: JobKey) -> State | None:
        """Return what changes whenever `load` would give something else; None: there is no such job."""
        stored = self._jobs.get(key)
        return (self._revisions.get(key, 0), stored.version) if stored is not None else None

    def is_current(self, loaded: JobSnapshot) -> bool:
        """Return whether `load` would give the same, but for the time at which the page last said so."""
        return self.state(loaded.key) == loaded.state

    def is_newest(self, loaded: JobSnapshot) -> bool:
        """Return whether `load` would give the same."""
        read_at, _ = self._scrapes.get(loaded.key, (None, None))
        scrape = loaded.observed.scrape
        return self.is_current(loaded) and read_at == (scrape.at if scrape is not None else None)

    def touch(self, key: JobKey) -> None:
        self._revisions[key] = self._revisions.get(key, 0) + 1
        self.changed(key)

    def unlabelled_are(self, pods: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        """Take in which pods of Jobs are there without our label, by key and uid of the Job."""
        before, self._unlabelled = self._unlabelled, pods
        for job in {*before, *pods}:
            if before.get(job) != pods.get(job) and (child := self.cache.get(JOBS, job[0])) is not None:
                self.touch_job_of(child, None)

    def touch_job_of(self, old: Object | None, new: Object | None) -> None:
        """Something changed of an object that an RLHFJob's label names."""
        for key in {job_key(obj) for obj in (old, new) if obj is not None}:
            if key is None:
                continue
            namespace, _, name = key.partition("/")
            if namespace == GROUPS_NAMESPACE:
                self.group_changed(name)
            else:
                self.touch(key)

    def _on_change(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if resource == RLHFJOBS:
            self._job_changed(old, new)
        elif resource == GPUPOOLS:
            self._gpupool_changed(old, new)
        elif resource in (JOBS, PODS, CONFIGMAPS):
            if resource == JOBS and old is not None:
                self._workload_changed(old, new)
            self.touch_job_of(old, new)

    def _workload_changed(self, old: Object, new: Object | None) -> None:
        """Remember whose pods may still be there when a job's workload is gone."""
        uid = old["metadata"]["uid"]
        if new is not None and new["metadata"]["uid"] == uid:
            return
        if new is None:
            self.access_jobs.gone(uid)
        job = job_key(old)
        owner = self.cache.get(RLHFJOBS, job) if job is not None else None
        if job is not None and owner is not None and key_of(old) == child_key(owner):
            self._former[job] = (*self._former.get(job, ()), uid)[-FORMER:]

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        for obj, present in ((old, False), (new, True)):
            if obj is None:
                continue
            key, pool = key_of(obj), pool_of(obj)
            members = self._members.setdefault(pool, set())
            if present:
                members.add(key)
            else:
                members.discard(key)
                if not members:
                    del self._members[pool]
        if old is not None and (new is None or pool_of(new) != pool_of(old)):
            self.pool_changed(pool_of(old))
        obj = new or old
        assert obj is not None
        others: list[str] = []
        if new is None:
            others = self._locations.drop(obj)
        elif not wire.problem(new):  # one that cannot be read any more keeps the folder that it had
            others = self._locations.put(new)
        for name in others:
            self.touch(f"{obj['metadata']['namespace']}/{name}")
        self.touch(key_of(obj))

    def _gpupool_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        name = key_of(obj)
        changed = old is None or new is None or generation(old) != generation(new)
        before, after = _taught(old), _taught(new)
        for key in self.members(name) if changed or before != after else ():
            mine = namespace_of(key)
            if changed or before.get(mine) != after.get(mine) or self._counts_others(name):
                self.touch(key)
        for source, _ in _stops(new) - _stops(old):
            self.touch(source)  # a stop that waited to be announced
        self.pool_changed(name)

    def _counts_others(self, pool: str) -> bool:
        """Return whether what is known of one namespace's runs is told to others, too."""
        found = self.pool(pool)
        return isinstance(found, GPUPool) and found.spec.fleet.scope is FleetScope.POOL

    # -- what the operator found out itself --------------------------------------------------------------

    def scraped(self, key: JobKey, view: ScrapeView) -> bool:
        """Note a scrape; True if it says anything new.

        A page that no pass has taken in stays until one has, whatever the scrapes after it find: it may be
        the last of a run that ends, with its best eval. What they find is noted by the next one.
        """
        known, content = self._scrapes.get(key), replace(view, at=0.0)
        if known is not None and known[1].holds(content):
            self._scrapes[key] = view.at, known[1]
            return False
        if view.outcome is ScrapeOutcome.OK:
            self._unread.add(key)
        elif key in self._unread:
            return False
        self._scrapes[key] = view.at, Compressed(content, self._deflater)
        self.touch(key)
        return True

    def took_in(self, loaded: JobSnapshot) -> None:
        """Note that what the job's page brought is written."""
        if loaded.key in self._unread and self._scrapes[loaded.key][1] is loaded.page:
            self._unread.discard(loaded.key)

    def last_scrape(self, key: JobKey) -> ScrapeView | None:
        known = self._scrapes.get(key)
        return replace(known[1].open(), at=known[0]) if known is not None else None

    def refuse(self, loaded: JobSnapshot, problem: Problem, seconds: float) -> None:
        """Remember for ``seconds``, or until the spec changes, that the cluster refuses this workload."""
        until = self._now() + seconds
        self._refusals[loaded.key] = _Refusal(loaded.uid, generation(loaded.obj), problem, until)
        if self._problem(loaded.desired, loaded.obj) != loaded.desired.problem:
            self.touch(loaded.key)

    def accept(self, loaded: JobSnapshot) -> None:
        """Forget a refusal: the cluster would accept the workload."""
        if self._refusals.pop(loaded.key, None) is not None:
            self.touch(loaded.key)

    def refused(self, loaded: JobSnapshot) -> Problem | None:
        """Return the refusal in force, expired or not."""
        found = self._refusals.get(loaded.key)
        return found.problem if found is not None else None

    def refusal_expired(self, loaded: JobSnapshot) -> bool:
        found = self._refusals.get(loaded.key)
        return found is not None and found.until <= self._now()

    def note_retention(self, loaded: JobSnapshot, problem: Problem | None, seconds: float) -> None:
        """Note why copies of the job's checkpoints have no place now, to be looked at again in ``seconds``;
        None: they have one."""
        known = self._no_retention.pop(loaded.key, None)
        if problem is not None:
            self._no_retention[loaded.key] = (loaded.uid, problem, self._now() + seconds)
        if (known[:2] if known is not None else None) != (problem and (loaded.uid, problem)):
            self.touch(loaded.key)

    def retention_due(self, loaded: JobSnapshot) -> float | None:
        """Return in how many seconds that is to be looked at again; None: nothing is known to be wrong."""
        known = self._no_retention.get(loaded.key)
        return max(0.0, known[2] - self._now()) if known is not None and known[0] == loaded.uid else None

    def carried_out(self, loaded: JobSnapshot, problem: Problem | None) -> None:
        """Record whether the job's last actions were let through, for its next plan; ``problem``: why not.

        Of a webhook that goes on failing the first words stay: an error of the network differs each time.
        """
        known = self._carried_out.get(loaded.key)
        if known is None and problem is None and loaded.record.condition(CARRIED_OUT) is None:
            return  # as nearly always
        told = loaded.uid, problem
        if known is not None and (known[0], _subject(known[1])) == (told[0], _subject(problem)):
            return
        self._carried_out[loaded.key] = told
        self.touch(loaded.key)

    def unstarted(self, loaded: JobSnapshot, view: AccessView) -> None:
        """Record the failure of an access Job that could not be started."""
        self.access_jobs.unstarted(loaded.key, loaded.uid, view)
        self.touch(loaded.key)

    def made(self, key: JobKey, job_uid: str) -> None:
        """Record that this process has made an access Job."""
        self.access_jobs.made(job_uid)
        self.touch(key)

    def forget_access(self, loaded: JobSnapshot, request_id: str, job_uid: str | None) -> None:
        """Record that an access Job was deleted, or never existed."""
        self.access_jobs.deleted(loaded.key, loaded.uid, request_id, job_uid)
        self._revisions[loaded.key] = self._revisions.get(loaded.key, 0) + 1

    def forget(self, key: JobKey) -> None:
        """Forget everything about a job that is gone."""
        self._scrapes.pop(key, None)
        self._unread.discard(key)
        self._refusals.pop(key, None)
        self._carried_out.pop(key, None)
        self._no_retention.pop(key, None)
        self._revisions.pop(key, None)
        self._specs.forget(key)
        self._curves.forget(key)
        self.access_jobs.forget(key)
        self._former.pop(key, None)

    # -- loading -----------------------------------------------------------------------------------------

    def members(self, pool: str) -> list[JobKey]:
        return sorted(self._members.get(pool, ()))

    def pools(self) -> list[GPUPool]:
        """Return the pools that can be used, oldest first."""
        return self._specs.pools()

    def pool(self, name: str) -> GPUPool | Problem | None:
        """Return the pool; what is wrong with it; None if there is none."""
        return self._specs.pool(name)

    def load(self, key: JobKey) -> JobSnapshot | None:
        """Return the job as it is known now; None if there is no such job.

        Raises:
            StatusError: its status does not read as a record. Nothing may then be done with the job.
            Unreadable: nor if it, or a workload of its own, was put aside.
        """
        stored = self.cache.find(RLHFJOBS, key)
        if stored is None:
            return None
        obj = sound(stored.open())
        found = self.pool(pool_of(obj))
        pool = found if isinstance(found, GPUPool) else None
        read, (_, page) = self._specs.job(obj, found), self._scrapes.get(key, (0.0, None))
        desired, scrape = read.desired, self.last_scrape(key)
        newer.refuse_newer_job(obj.get("status"))
        record = self.names.shown(convert.record(obj.get("status")))
        child = self._child(obj)
        job = child.open() if child is not None else None
        pods = self._pods(obj)
        there = [pod.open() for pod in pods]
        rollout, actor_pods = self._rollout(obj, desired, record)
        observed = Observed(
            workload=workloads.view(job) if job is not None else None,
            pods=self._pod_views(key, there),
            scrape=self._named(scrape, key, job, record),
            access=tuple(self.access_jobs.views(obj, record, (self.progress, self.refusals))),
            made=self.access_jobs.made_of(obj, record),
            run_written=run_configmap.read(
                self._run_configmap(obj), self.steps_of(desired), self.group_door_of(desired)
            ),
            run_gone=self.cache.get(CONFIGMAPS, _run_key(obj)) is None,
            queue=self._queue(job) if job is not None else None,
            queue_problem=self._queue_problem(desired, pool, job),
            fleet=self._fleet(desired, record, scrape, pool_of(obj)),
            finalizer=names.FINALIZER in (obj["metadata"].get("finalizers") or ()),
            announced=self._announced(obj, record),
            rollout=rollout,
            group=self.group_seen(desired.uid, record),
            refused=self._refused(key, desired, record, job, there),
            orphans=self._orphans(obj, pods),
            no_retention=self._no_place(key, desired.uid),
            **self._carried(key, desired.uid),
        )
        problem = self._problem(desired, obj) or steps.not_served(desired, record, self.steps is not None)
        if problem is None and desired.rollout is not None:
            problem = steps.too_large(desired, record, pool_of(obj), self._pool_status(pool_of(obj)))
        if problem != desired.problem:  # nearly never: thousands of jobs' are kept, and by the plans too
            desired = replace(desired, problem=problem)
        revision = self._revisions.get(key, 0)
        return JobSnapshot(
            key,
            stored,
            pool,
            desired,
            observed,
            record,
            child,
            pods,
            revision,
            actor_pods,
            read.scraping,
            page,
        )

    def _carried(self, key: JobKey, uid: str) -> dict[str, Any]:
        known = self._carried_out.get(key)
        if known is None or known[0] != uid:
            return {}
        return {"not_carried_out": known[1], "carried_out": known[1] is None or None}

    def _no_place(self, key: JobKey, uid: str) -> Problem | None:
        known = self._no_retention.get(key)
        return known[1] if known is not None and known[0] == uid else None

    def as_written(self, loaded: JobSnapshot, record: JobRecord) -> JobSnapshot | None:
        """Return a job as `load` gives it now that ``record`` is its status, without reading that back.

        None: something else of it has changed, or what is seen of it goes by what changed in the record.
        """
        key, stored = loaded.key, self._jobs.get(loaded.key)
        if stored is None or self._revisions.get(key, 0) != loaded.revision + 1:
            return None
        if any(getattr(record, name) != getattr(loaded.record, name) for name in _SEEN_BY):
            return None
        if peers.wanted(loaded.desired) or not convert.is_whole(stored.open().get("status") or {}, record):
            return None
        if self.names.shown(self.names.hidden(record, key)) != record:
            return None
        return replace(loaded, stored=stored, record=record, revision=loaded.revision + 1)

    def steps_of(self, desired: Desired) -> StepAddress | None:
        """Return what a job's trainer is told of the step API; None: it has no actors."""
        return self.steps if desired.rollout is not None else None

    def group_door_of(self, desired: Desired) -> StepAddress | None:
        """Return where a job's pods get their ticket for its worker group; None: it shares none."""
        return self.steps if desired.sharing is not None else None

    def _rollout(
        self, obj: Object, desired: Desired, record: JobRecord
    ) -> tuple[RolloutView | None, tuple[Stored, ...]]:
        if desired.rollout is None and not record.actors:
            return None, ()
        name, wants, pods = (
            obj["metadata"]["name"],
            self.wants(desired.uid),
            self.cache.of_job(PODS, key_of(obj)),
        )
        return steps.rollout(name, record, wants, self.actor_jobs(obj), list(pods))

    def actor_jobs(self, obj: Object, number: int | None = None) -> list[Object]:
        """Return the Jobs of a job's rollout actors that are there; ``number``: of this one alone."""
        owners = self._owners(obj)
        found = (job.open() for job in self.cache.of_job(JOBS, key_of(obj)))
        return [
            job
            for job in found
            if is_actor(job)
            and controller_uid(job) in owners
            and (number is None or actor_number(job) == number)
        ]

    def _pod_views(self, key: JobKey, pods: Sequence[Object]) -> tuple[PodView, ...]:
        late = self.starts.of(key, pods)
        views = tuple(self._pod_view(pod) for pod in pods)
        if late is None:
            return views
        return tuple(replace(view, trouble=late) if view.name == late.pod else view for view in views)

    def _pod_view(self, pod: Object) -> PodView:
        view, claimed = workloads.pod_view(pod), self.claimed(str(pod["metadata"]["uid"]))
        return replace(view, gpus=view.gpus + claimed) if claimed else view

    def _queue(self, child: Object) -> QueueView | None:
        queue = delegates.queue_of_workload(child)
        return None if queue is None else queue.view(child, self.queues)

    def _queue_problem(self, desired: Desired, pool: GPUPool | None, child: Object | None) -> Problem | None:
        """Return why the external queue that the job is to wait in cannot serve it."""
        asked = delegates.queue_of_pool(pool)
        if not desired.queue or pool is None or asked is None:
            return None
        namespace, gpus = desired.key.partition("/")[0], desired.replicas * desired.gpus_per_replica
        # A workload that is referred to may name a queue of its own.
        own = workloads.queue_of(child) if child is not None and desired.workload_ref else ""
        return asked.queue_problem(namespace, own or desired.queue, gpus, pool, self.queues)

    def aside(self, key: JobKey) -> list[tuple[Object, str]]:
        """Return a job's objects that were put aside, each with the reason: those that carry its label, and
        itself."""
        if not self.cache.aside:
            return []
        found = [
            stored.open() for kind in (PODS, JOBS, CONFIGMAPS) for stored in self.cache.of_job(kind, key)
        ]
        if (obj := self.cache.get(RLHFJOBS, key)) is not None:
            found.append(obj)
        return [(obj, why) for obj in found if (why := wire.problem(obj))]

    def _child(self, obj: Object) -> Stored | None:
        """Return the job's workload, if it is really its own (template) or the one it names (ref)."""
        found = self.cache.find(JOBS, child_key(obj))
        if found is None or is_ref(obj) or controlled_by(found.open(), obj["metadata"]["uid"]):
            if found is not None:
                sound(found.open())
            return found
        return None

    def _pool_status(self, name: str) -> Object | None:
        return (self.cache.get(GPUPOOLS, name) or {}).get("status")

    def _fleet(self, desired: Desired, record: JobRecord, scrape: ScrapeView | None, name: str) -> FleetView:
        """Return what its pool tells the job, and where its rule looks at peers, how they stood at its new
        evals."""
        key, found = desired.key, self.pool(name)
        scope = found.spec.fleet.scope if isinstance(found, GPUPool) else FleetScope.NAMESPACE
        # The evals that are about to be taken in are those of the page's evaluator.
        evaluator = (scrape.evaluator if scrape is not None else None) or record.evaluator
        scored_by = ScoredBy(namespace_of(key), desired.metric, evaluator)
        guardrails = [guard.metric for guard in desired.guardrails]
        context = fleet.view_for(self._pool_status(name), scored_by, scope, guardrails)
        steps = peers.unseen_steps(record, scrape) if peers.wanted(desired) else ()
        if not steps:
            return context
        others = (other for other in self.members(name) if peers.are_peers(key, other))
        same = [other for other in others if self._metric(other, name) == (desired.metric, desired.direction)]
        curves = self._curves.of(same, evaluator)
        return context._replace(peers=peers.standings(curves, steps, desired.direction))

    def _metric(self, key: JobKey, pool: str) -> tuple[str, Direction] | None:
        obj = self.cache.get(RLHFJOBS, key)
        if obj is None:
            return None
        desired = self._specs.job(obj, self.pool(pool)).desired
        return desired.metric, desired.direction

    def _announced(self, obj: Object, record: JobRecord) -> bool:
        """Return whether the pool's status has the job's stop, and with it the reservations of its GPUs."""
        if record.decision is None:
            return False
        status = self._pool_status(pool_of(obj))
        try:
            stops = convert.handovers(status)
        except convert.StatusError:
            return True  # the pool writes none that it cannot read; nothing waits for that
        return any((s.source, s.decided) == (key_of(obj), record.decision.at) for s in stops)

    def _refused(
        self, key: JobKey, desired: Desired, record: JobRecord, job: Object | None, pods: Sequence[Object]
    ) -> str | None:
        """Return why the cluster makes no more pods of a workload that runs; None: it has them, or nobody
        knows."""
        if job is None or record.admission is None:
            return None
        view = workloads.view(job)
        if view.suspended or view.finished is not None:
            return None
        own = sum(1 for pod in pods if controlled_by(pod, job["metadata"]["uid"]))
        return self.refusals.of_trainer(key, job, own, desired.replicas)

    def _problem(self, desired: Desired, obj: Object) -> Problem | None:
        if desired.problem is not None:
            return desired.problem
        if (clash := self._locations.clash(obj)) is not None:
            return clash
        found = self._refusals.get(key_of(obj))
        if found is None:
            return None
        same = (found.uid, found.generation) == (obj["metadata"]["uid"], generation(obj))
        return found.problem if same else None

    def _pods(self, obj: Object) -> tuple[Stored, ...]:
        """Return pods that hold GPUs in the job's name: of its workload, and of earlier ones, by their uids.
        Others that say they are hold their GPUs as anybody's do."""
        owners = self._owners(obj)
        pods = self.cache.of_job(PODS, key_of(obj))
        return tuple(pod for pod in pods if controller_uid(pod.open()) in owners)

    def _orphans(self, obj: Object, own: Sequence[Stored]) -> tuple[OrphanedPod, ...]:
        labelled = self.cache.of_job(PODS, key_of(obj))
        if len(labelled) == len(own):  # which are among them
            return ()
        return orphaned_pods(obj, (pod.open() for pod in labelled), self._owners(obj))

    def _named(
        self, scrape: ScrapeView | None, key: JobKey, child: Object | None, record: JobRecord
    ) -> ScrapeView | None:
        """Return the view of a page, which says which pods are there unseen, or which planned nodes are not
        there any more, where it finds none to read."""
        if scrape is None or scrape.outcome is not ScrapeOutcome.NO_PODS or child is None:
            return scrape
        if gone := self._gone_nodes(record):
            which = agreeing(len(gone), "the node planned for it, is", "the nodes planned for it, are")
            scrape = replace(scrape, message=f"{scrape.message}; {some(gone, 3)}, {which} gone")
        pods = self._unlabelled.get((key_of(child), child["metadata"]["uid"]), ()) or self._mislabelled(
            key, child
        )
        if not pods:
            return scrape
        told = unlabelled(pods, key_of(child).partition("/")[2], names.LABEL_JOB, key.partition("/")[2])
        return replace(scrape, message=f"{scrape.message}; {told}")

    def _mislabelled(self, key: JobKey, child: Object) -> tuple[str, ...]:
        """Return the names of a Job's live pods that do not bear this RLHFJob's label; where it has none that
        are active nobody looks, and of the others none is unpacked, for there may be thousands."""
        if not (child.get("status") or {}).get("active"):
            return ()
        uid, (space, _, name) = child["metadata"]["uid"], key_of(child).partition("/")
        named = f"{space}/{name[:NAMED_AFTER]}"
        found = (pod for pod in self.cache.stores[PODS].values() if pod.key.startswith(named))
        there = (pod.open() for pod in found if pod.job != key)
        own = (pod for pod in there if controller_uid(pod) == uid and not is_terminal(pod))
        return tuple(sorted(str(pod["metadata"]["name"]) for pod in own))

    def _gone_nodes(self, record: JobRecord) -> list[str]:
        """Return the nodes planned for a gang without any pod on a node that are not there any more."""
        found, there = nodes_of(record.admission)
        known = () if there else self.cache.values(NODES)
        names = {str(node["metadata"]["name"]) for node in known}
        return sorted(set(found) - names) if names else []

    def _owners(self, obj: Object) -> set[str]:
        """Return the uids of a job's workload and of earlier ones."""
        child = self.cache.find(JOBS, child_key(obj))
        owners = set(self._former.get(key_of(obj), ()))
        if child is not None:
            owners.add(child.open()["metadata"]["uid"])
        return owners

    def _run_configmap(self, obj: Object) -> Object | None:
        found = self.cache.get(CONFIGMAPS, _run_key(obj))
        return found if found is not None and controlled_by(found, obj["metadata"]["uid"]) else None


def _run_key(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{workloads.run_configmap(obj['metadata']['name'])}"


def _taught(pool: Object | None) -> dict[str, list[Any]]:
    """Return what a GPUPool's status tells its jobs, by namespace."""
    return fleet.taught((pool or {}).get("status"))


def _stops(pool: Object | None) -> set[tuple[JobKey, str]]:
    """(job, when it was decided) of each stop that a GPUPool's status tells of."""
    stops = ((pool or {}).get("status") or {}).get("lastHandovers") or ()
    return {(s["source"], s["decidedTime"]) for s in stops}


def _subject(problem: Problem | None) -> tuple[str, str] | None:
    return (problem.reason, problem.message.partition(' Post "')[0]) if problem is not None else None
