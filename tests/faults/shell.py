"""A model of the operator: the real plans and transitions, carried out on the world's objects.

It reads from caches that may be old, writes only over what it read, and can die before or after any write
and any action. What it does between plan and act is what controller/operator does, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from controller.api import convert
from controller.api.codec import encode
from controller.api.status import PoolStatus
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord, RunFile
from controller.policy.job.types import (
    AccessView,
    Action,
    CreateWorkload,
    Desired,
    ForgetAccess,
    Observed,
    Plan,
    PodView,
    ScrapeView,
    SetFinalizer,
    StartAccess,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
    WriteRun,
)
from controller.policy.job.view import job_view
from controller.policy.pool import job_outcomes
from controller.policy.pool.handovers import newest_handovers
from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobView, Mode, NodeView, PoolPlan, PoolSnapshot, Problem, StopLimits
from tests.faults import product
from tests.faults.cluster import Child, Job, Json, Pod

if TYPE_CHECKING:
    from tests.faults.world import World


SLOWEST = 0.5  # of the true time's pace


class Crash(Exception):
    """The operator's process is gone."""


class Stale(Exception):
    """What was read is no longer so."""


@dataclass(frozen=True)
class Seen:
    """One job as the operator's caches have it."""

    obj: Json
    version: int
    child: Child | None
    pods: tuple
    run: RunFile | None
    finalizer: bool


@dataclass(frozen=True)
class Thought:
    job: Job
    seen: Seen
    desired: Desired
    observed: Observed
    record: JobRecord
    plan: Plan


class Operator:
    """One process of it. ``fuse``: how many writes and actions it still lives to make; None: it lives on."""

    def __init__(self, world: World, fuse: int | None = None) -> None:
        self.world, self.fuse = world, fuse
        self.cache: dict[str, Seen] = {}
        self.scrapes: dict[str, ScrapeView] = {}  # as they were first seen to say this
        self.scraped_at: dict[str, float] = {}
        self.news: dict[str, int] = {}  # how often a page said something else
        self.next_scrape: dict[str, float] = {}
        self.unstarted: dict[tuple[str, str], AccessView] = {}  # by uid and request: why there is no Job
        self.thoughts: dict[str, tuple[tuple[object, ...], float | None, Thought]] = {}
        self.cap: Mode | None = None  # how far the pool let it go when it last could be read
        self.pool_made: tuple[tuple[object, ...], float] | None = None
        self.pool_kept: dict[str, Thought] = {}  # what that was made of, so that no id is used again
        self.carried: dict[str, Thought] = {}  # what the last whole pass of each job carried out
        self.left: tuple[tuple[object, ...], float] | None = None  # what the last round left, until when
        self.left_with: tuple[object, ...] = ()  # what that names by its id, so that no id is used again
        self.latest, self.asked = 0.0, world.now
        self.stale = 0  # passes for which its caches stand still
        self.behind = False  # whether they did so in this pass
        self.pool_cache: Json | None = None
        self._desired: dict[str, tuple[object, Desired]] = {}
        self._seen: dict[str, tuple[tuple[object, ...], Seen]] = {}
        self._pools: dict[int, object] = {}
        self._read_of: Json | None = None  # the pool's spec of which the cap is
        self._records: dict[int, tuple[object, JobRecord]] = {}

    # -- what it knows -----------------------------------------------------------------------------------

    def now(self) -> float:
        truly, before = self.world.now, self.asked
        self.asked = truly
        # The product's clock is slewed: it never goes back, and never stands still (operator/clock.py).
        self.latest = max(self.latest + SLOWEST * (truly - before), truly + self.world.clock_ahead)
        return self.latest

    def sync(self) -> None:
        """The watches bring what is, unless they lag."""
        self.behind = self.stale > 0
        if self.behind:
            self.stale -= 1
            return
        self.cache = {job.key: self._look(job) for job in self.world.jobs.values() if not job.gone}
        self.pool_cache = self.world.pool

    def _look(self, job: Job) -> Seen:
        pods = tuple((p.uid, p.node, p.ready, p.ended, p.deleting) for p in job.pods)
        stamp = (id(job.obj), job.version, job.child, id(job.run), job.finalizer, pods)
        known = self._seen.get(job.uid)
        if known is None or known[0] != stamp:
            known = self._seen[job.uid] = (stamp, self._look_anew(job))
        return known[1]

    def _look_anew(self, job: Job) -> Seen:
        pods = tuple(
            PodView(
                name=p.name,
                node=p.node,
                gpus=p.gpus,
                terminal=p.ended is not None,
                ready=p.ready,
                succeeded=p.ended == "Succeeded",
                deleting_since=p.deleting,
                admission=p.attempt,
                uid=p.uid,
                created=p.created,
            )
            for p in job.pods
        )
        return Seen(job.obj, job.version, job.child, pods, job.run, job.finalizer)

    def record(self, obj: Json) -> JobRecord:
        status = obj.get("status")
        known = self._records.get(id(status))
        if known is None or known[0] is not status:
            known = self._records[id(status)] = (status, convert.record(status))
        return known[1]

    def _pool(self) -> object:
        obj = self.pool_cache
        if obj is None:
            return None
        key = id(obj["spec"])
        if key not in self._pools:
            self._pools[key] = (convert.parse_pool(obj), obj["spec"])
        return self._pools[key][0]  # type: ignore[index]

    def load(self, key: str) -> Thought | None:
        seen, job = self.cache.get(key), self.world.jobs.get(key)
        if seen is None or job is None:
            return None
        found = self._pool()
        metadata = seen.obj["metadata"]
        if self.pool_cache is not None and self.pool_cache["spec"] is not self._read_of:
            self._read_of = self.pool_cache["spec"]
            self.cap = convert.mode_cap(self.pool_cache) or self.cap
        stamp = (
            metadata["uid"],
            metadata["generation"],
            "deletionTimestamp" in metadata,
            id(found),
            self.cap,
        )
        known = self._desired.get(key)
        if known is None or known[0] != stamp:
            known = self._desired[key] = (stamp, convert.desired(seen.obj, found, self.cap))  # type: ignore[arg-type]
        desired, record = known[1], self.record(seen.obj)
        announced = self._announced(key, record)
        never = tuple(request for uid, request in self.unstarted if uid == job.uid)
        stamp = (id(desired), id(seen), self.news.get(key), announced, self._moments(job), never)
        kept = self.thoughts.get(key)
        if kept is not None and kept[0] == stamp and (kept[1] is None or self.now() < kept[1]):
            return kept[2]
        child = seen.child
        workload = None
        if child is not None:
            settled = child.suspended and not any(not p.terminal for p in seen.pods)
            active = sum(1 for p in seen.pods if not p.terminal)
            workload = WorkloadView(child.uid, child.suspended, settled, child.finished, active=active)
        observed = Observed(
            workload=workload,
            pods=seen.pods,
            scrape=self._scrape(key),
            access=self._access(job),
            run_written=seen.run,
            finalizer=seen.finalizer,
            announced=announced,
        )
        now = self.now()
        plan = plan_job(desired, observed, record, now)
        wake = None if plan.requeue_after is None else now + plan.requeue_after
        thought = Thought(job, seen, desired, observed, record, plan)
        self.thoughts[key] = (stamp, wake, thought)
        return thought

    def _scrape(self, key: str) -> ScrapeView | None:
        view = self.scrapes.get(key)
        return None if view is None else replace(view, at=self.scraped_at[key])

    def _moments(self, job: Job) -> tuple[object, ...]:
        """What is seen of a job's access Jobs; how far they have come is looked at each minute."""
        now = self.world.now
        return tuple(
            (a.id, now >= a.ends, a.hangs, a.failed, int(now - a.created) // 60) for a in job.access.values()
        )

    def scraped(self, key: str, view: ScrapeView) -> None:
        """Note a page; only one that says something else is news."""
        known, self.scraped_at[key] = self.scrapes.get(key), self.now()
        if known is not view and known != view:
            self.scrapes[key] = view
            self.news[key] = self.news.get(key, 0) + 1

    def _access(self, job: Job) -> tuple[AccessView, ...]:
        there = tuple(self.world.access_view(a) for a in job.access.values())
        never = (
            v for (uid, request), v in self.unstarted.items() if uid == job.uid and request not in job.access
        )
        return (*there, *never)

    def _announced(self, key: str, record: JobRecord) -> bool:
        if record.decision is None:
            return False
        status = (self.pool_cache or {}).get("status")
        stops = convert.handovers(status)
        return any((s.source, s.decided) == (key, record.decision.at) for s in stops)

    # -- writing -----------------------------------------------------------------------------------------

    def point(self) -> None:
        """The operator may die here."""
        if self.fuse is None:
            return
        self.fuse -= 1
        if self.fuse < 0:
            raise Crash

    def write(self, thought: Thought, record: JobRecord) -> bool:
        job, seen = thought.job, thought.seen
        stored = (seen.obj.get("status") or {}).get("observedGeneration")
        if stored == thought.desired.generation and (record is thought.record or record == thought.record):
            return False
        wanted = product.plain(convert.status(record, thought.desired, self.now()))
        if wanted == (seen.obj.get("status") or {}):
            return False
        self.point()
        if job.gone or job.version != seen.version:
            self.world.saw("stale: a status write met a newer version")
            self._refresh(job)
            raise Stale
        job.obj = {**job.obj, "status": wanted}
        job.version += 1
        if job.key in self.cache:
            self.cache[job.key] = replace(self.cache[job.key], obj=job.obj, version=job.version)
        self.world.written(job, thought.record, self.record(job.obj))
        self.point()
        return True

    def _refresh(self, job: Job) -> None:
        if job.gone:
            self.cache.pop(job.key, None)
        else:
            self.cache[job.key] = self._look(job)

    # -- passes ------------------------------------------------------------------------------------------

    def round(self) -> None:
        """A pass of each job and of the pool, unless all is as the last round left it."""
        if self.left is not None and self.now() < self.left[1] and self._stamp() == self.left[0]:
            return
        self.left = None
        for key in list(self.cache):
            self.job_pass(key)
        self.pool_pass()
        kept = [self.thoughts.get(key) for key in self.cache]
        if any(
            t is None or self.carried.get(key) is not t[2] for key, t in zip(self.cache, kept, strict=True)
        ):
            return
        wakes = [t[1] for t in kept if t is not None and t[1] is not None]
        if self.pool_made is not None:
            wakes.append(self.pool_made[1])
        elif self.pool_cache is not None and not isinstance(self._pool(), tuple):
            return
        self.left = (self._stamp(), min(wakes, default=float("inf")))
        self.left_with = (*self.cache.values(), self.pool_cache)

    def _stamp(self) -> tuple[object, ...]:
        """All that a round looks at, but the time."""
        jobs = self.world.jobs
        ready = tuple(n.ready for n in self.world.cluster.nodes.values())
        each = tuple(
            (key, id(seen), self.news.get(key), self._moments(jobs[key])) for key, seen in self.cache.items()
        )
        return (id(self.pool_cache), self.cap, ready, self._left(), len(self.unstarted), each)

    def job_pass(self, key: str) -> Plan | None:
        try:
            thought = self.load(key)
            if thought is None or self.carried.pop(key, None) is thought:
                if thought is not None:
                    self.carried[key] = thought
                return None  # nothing has changed: the product would make no pass
            self.world.planned(thought)
            self.write(thought, thought.plan.record)
            for action in thought.plan.actions:
                self.point()
                self._do(thought, action)
                self.point()
            for event in thought.plan.events:
                self.world.told(thought.job, event)
            self.carried[key] = thought
            return thought.plan
        except Stale:
            return None

    def _do(self, thought: Thought, action: Action) -> None:
        job, seen, world = thought.job, thought.seen, self.world
        if job.gone or job.uid != thought.desired.uid:
            raise Stale
        if isinstance(action, CreateWorkload):
            if job.child is None:
                job.child = Child(f"child-{world.cluster.number()}", 1)
        elif isinstance(action, WriteRun):
            job.run = action.run
        elif isinstance(action, StartWorkload):
            child = self._child(job, seen)
            world.starting(job, thought)
            job.child = replace(
                child, suspended=False, attempt=action.attempt, nodes=action.nodes, version=child.version + 1
            )
        elif isinstance(action, SuspendWorkload):
            child = self._child(job, seen)
            if not child.suspended:
                world.suspending(job, thought, action.reason)
                job.child = replace(child, suspended=True, version=child.version + 1)
        elif isinstance(action, StartAccess):
            self._start_access(job, thought, action)
        elif isinstance(action, ForgetAccess):
            world.forgotten(job, job.access.pop(action.request_id, None))
            self.unstarted.pop((job.uid, action.request_id), None)
        elif isinstance(action, SetFinalizer):
            job.finalizer = action.present
            world.collect(job)
        if job.key in self.cache and not job.gone:
            self.cache[job.key] = replace(
                self.cache[job.key], child=job.child, run=job.run, finalizer=job.finalizer
            )

    def _child(self, job: Job, seen: Seen) -> Child:
        if job.child is None or seen.child is None:
            self._refresh(job)
            raise Stale
        if (job.child.uid, job.child.version) != (seen.child.uid, seen.child.version):
            # Written over by this very pass: its own answer is what it goes on with.
            cached = self.cache[job.key].child
            if cached is None or (cached.uid, cached.version) != (job.child.uid, job.child.version):
                self.world.saw("stale: a patch met a newer version")
                self._refresh(job)
                raise Stale
        return job.child

    def _start_access(self, job: Job, thought: Thought, action: StartAccess) -> None:
        if action.request_id in job.access:
            return
        made = product.access_manifest(thought.seen.obj, action)
        if isinstance(made, Problem):
            view = AccessView(action.request_id, action.operation, True, False, *made)
            self.unstarted[job.uid, action.request_id] = view
            return
        job.access[action.request_id] = self.world.access_job(job, action, made)

    # -- the pool ----------------------------------------------------------------------------------------

    def pool_pass(self) -> None:
        found = self._pool()
        if self.pool_cache is None or found is None or isinstance(found, tuple):
            return
        try:
            self._pool_pass(found)
        except Stale:
            return

    def _pool_pass(self, found) -> None:  # type: ignore[no-untyped-def]
        thoughts = {key: t for key in sorted(self.cache) if (t := self.load(key)) is not None}
        now = self.now()
        ready = tuple(n.ready for n in self.world.cluster.nodes.values())
        stamp = (*map(id, thoughts.values()), id(self.pool_cache), ready, self._left())
        if self.pool_made is not None and self.pool_made[0] == stamp and now < self.pool_made[1]:
            return
        self.pool_made = None
        views = [v for t in thoughts.values() if (v := self._view(t, found, now)) is not None]
        known = {v.key for v in views}
        nodes = []
        for node in self.world.cluster.nodes.values():
            guests = [p for p in self._guests(known) if p.node == node.name]
            foreign = sum(p.gpus for p in guests)
            leaving = sum(p.gpus for p in guests if p.deleting is not None)
            if node.ready:
                nodes.append(NodeView(node.name, node.gpus, foreign, leaving))
        status = self.pool_cache.get("status") or {}  # type: ignore[union-attr]
        snapshot = PoolSnapshot(
            "p",
            convert.policy(found),
            tuple(nodes),
            tuple(views),
            convert.reservations(status),
            reservation_seconds=float(getattr(found.spec, "reservation_seconds", 300)),
            delegate=found.spec.delegate,
            limits=StopLimits(shared_fall_percent=None),
        )
        plan = plan_pool(snapshot, now)
        stored = [
            (key, t.desired.replicas * t.desired.gpus_per_replica, t.record) for key, t in thoughts.items()
        ]
        stops = newest_handovers(convert.handovers(status), stored)
        wanted = encode(PoolStatus(reservations=plan.reservations, last_handovers=tuple(stops)))
        if wanted != status:
            self.point()
            if self.world.pool is not self.pool_cache:
                self.pool_cache = self.world.pool
                raise Stale
            self.world.pool = self.pool_cache = {**self.pool_cache, "status": wanted}  # type: ignore[dict-item]
            self.point()
        self._carry_out(plan, thoughts, now)
        stamp = (*map(id, thoughts.values()), id(self.pool_cache), ready, self._left())
        wake = plan.wake_at if plan.wake_at is not None else float("inf")
        self.pool_made, self.pool_kept = (stamp, wake), thoughts

    def _left(self) -> int:
        return sum(len(j.live_pods) for j in self.world.jobs.values() if j.gone)

    def _guests(self, known: set[str]) -> list[Pod]:
        """Pods on the pool's nodes of no job that it plans for: of deleted ones, say."""
        jobs = (j for j in self.world.jobs.values() if j.gone or j.key not in known)
        return [p for j in jobs for p in j.live_pods]

    def _view(self, t: Thought, found, now: float) -> JobView | None:  # type: ignore[no-untyped-def]
        ceiling = found.ceiling("team")
        wanted = int(t.seen.obj["spec"].get("priority") or 0)
        return job_view(
            t.desired,
            t.observed,
            t.plan.record,
            t.plan,
            submitted=t.job.submitted,
            priority=wanted if ceiling is None else min(wanted, ceiling),
            preemptible=found.spec.mode_cap is Mode.ENFORCE,
            now=now,
        )

    def _carry_out(self, plan: PoolPlan, thoughts: dict[str, Thought], now: float) -> None:
        def put(key: str, change: Callable[[JobRecord], JobRecord]) -> None:
            t = thoughts[key]
            self.write(t, change(t.plan.record))

        for grant in plan.grants:
            newest = self.load(grant.key)
            if newest is None or newest.plan.proposal != grant.proposal:
                raise Stale  # it was judged anew since its pool was planned
            thoughts[grant.key], desired = newest, newest.desired
            self.world.granting(newest)
            put(grant.key, lambda r, g=grant, d=desired: job_outcomes.granted(r, d, g, now))
        for preemption in plan.preemptions:
            put(preemption.key, lambda r, p=preemption: job_outcomes.preempted(r, p, now))
        for key in plan.called_off or ():
            put(key, job_outcomes.called_off)
        policy_states = dict(plan.policy_states)
        for admission in plan.admissions:
            self.world.admitting(thoughts[admission.key], admission)
            put(admission.key, lambda r, a=admission: job_outcomes.admitted(r, a, now))
        for held in plan.held_back:
            desired = thoughts[held.key].desired
            if (
                job_outcomes.held_back(thoughts[held.key].record, desired, held, now)
                is not thoughts[held.key].record
            ):
                put(held.key, lambda r, h=held, d=desired: job_outcomes.held_back(r, d, h, now))
        for key, policy_state in policy_states.items():
            put(key, lambda r, m=policy_state: job_outcomes.with_policy_state(r, m))
        pairs = [(a.source, a.key) for a in plan.admissions if a.source is not None]
        pairs += [
            (t.record.admission.source, key)
            for key, t in thoughts.items()
            if t.record.admission is not None and t.record.admission.source is not None
        ]
        for source, target in pairs:
            if source not in thoughts:
                continue
            record = thoughts[source].record
            if job_outcomes.handed(record, target, now) is not record:
                put(source, lambda r, to=target: job_outcomes.handed(r, to, now))
        for why in plan.waiting:
            t = thoughts[why.key]
            known = t.record.condition("Admitted")
            if known is None or known.status or known.reason != why.reason:
                put(why.key, lambda r, w=why, d=t.desired: job_outcomes.waiting(r, d, w, now))
