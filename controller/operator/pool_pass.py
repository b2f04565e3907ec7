"""One pass over one pool: taints, snapshot, plan, and its outcomes written into the jobs' statuses.

Pool passes are made one at a time. Holds are written before the grants they announce, grants before
admissions; the first write that finds things changed ends the pass, and the next one starts from what is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.api.values import timestamp
from controller.kube.cache import Cache
from controller.kube.errors import ApiError
from controller.kube.resources import GPUPOOLS, NODES, PODS, RLHFJOBS
from controller.operator import histories, log, nodes
from controller.operator.brain import Brain, Thought
from controller.operator.foreign import ForeignPods
from controller.operator.metrics import Metrics
from controller.operator.queue import Locks, WorkQueue
from controller.operator.taints import Taints
from controller.operator.world import World
from controller.operator.writer import Stale, StatusWriter
from controller.policy import lifecycle
from controller.policy.conditions import ADMITTED
from controller.policy.jobs import JobRecord
from controller.policy.pool import free_gpus
from controller.policy.queueing import SrtfEst
from controller.policy.types import (
    JobKey,
    JobState,
    JobView,
    Mode,
    NodeView,
    PastStop,
    PoolPlan,
    PoolSnapshot,
)

_logger = log.get("evalstop.pool")

MESSAGE_REFRESH = 60.0  # s between writes of a waiting reason of which only the numbers changed


class PoolPass:
    """Passes over pools. A job whose record is changed here is looked at because the cache tells so."""

    def __init__(
        self,
        cache: Cache,
        world: World,
        brain: Brain,
        writer: StatusWriter,
        taints: Taints,
        foreign: ForeignPods,
        metrics: Metrics,
        queue: WorkQueue,
        locks: Locks,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache, self._world, self._brain, self._writer = cache, world, brain, writer
        self._taints, self._foreign, self._metrics = taints, foreign, metrics
        self._queue, self._locks, self._clock, self._now = queue, locks, clock, monotonic
        self._told: dict[JobKey, float] = {}  # when a waiting job's reason was last written

    async def run(self, name: str) -> None:
        """Make one pass; never raises, a pass that failed is made again after its back-off."""
        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(pool=name):
            try:
                result = await self._pass(name)
                self._queue.forget(name)
            except Stale as error:
                result = "stale"
                _logger.debug("made again: what was read has changed", error=str(error))
                self._queue.later(name, 0.05)
            except ApiError as error:
                result = "unavailable"
                delay = self._queue.retry(name)
                _logger.warning("pass failed at an API call", error=str(error), again_in=delay)
            except Exception:
                result = "failed"
                delay = self._queue.retry(name)
                _logger.exception("pass failed in a way it should not", again_in=delay)
        self._metrics.passes.labels("pool", result).inc()
        self._metrics.pass_seconds.labels("pool").observe(time.perf_counter() - started)

    async def _pass(self, name: str) -> str:
        await self._taints.ensure()
        obj, pool = self._cache.get(GPUPOOLS, name), self._world.pool(name)
        if obj is None or pool is None:
            return "gone"
        if not isinstance(pool, GPUPool):
            reason, message = pool
            await self._writer.pool(obj, _status(obj, {}, (False, reason, message), self._clock()))
            return "invalid"
        thoughts = self._thoughts(name)
        now = self._clock()
        snapshot = self._snapshot(pool, obj, thoughts, now)
        plan = self._brain.plan_pool(snapshot, now)
        wrote = await self._writer.pool(obj, self._pool_status(obj, snapshot, plan, now))
        changed = await self._carry_out(plan, thoughts, now)
        if changed:
            self._queue.add(name)  # count what was just written
        self._queue.later(name, None if plan.wake_at is None else max(0.0, plan.wake_at - now))
        return "wrote" if wrote or changed else "quiet"

    # -- what is ---------------------------------------------------------------------------------------

    def _thoughts(self, name: str) -> dict[JobKey, Thought]:
        found = {key: self._brain.recall(key) for key in self._world.members(name)}
        return {key: thought for key, thought in found.items() if thought is not None}

    def _snapshot(
        self, pool: GPUPool, obj: Mapping[str, Any], thoughts: Mapping[JobKey, Thought], now: float
    ) -> PoolSnapshot:
        policy = convert.policy(pool)
        past = histories.history(thoughts.values()) if policy.name == SrtfEst.name else None
        views: list[JobView] = []
        known: set[str] = set()
        for thought in thoughts.values():
            view = thought.view_at(now)
            if view is None:
                continue
            if past is not None:
                view = replace(view, estimate=histories.estimate(thought, past))
            views.append(view)
            known.update(pod["metadata"]["uid"] for pod in thought.loaded.pods)
        mine = self._taints.nodes_of(pool.metadata.name)
        usable = [node for node in self._cache.values(NODES) if node["metadata"]["name"] in mine]
        usable = sorted((n for n in usable if nodes.usable(n)), key=lambda n: n["metadata"]["name"])
        # Our own labelled pods are watched, all others looked at now and then; a uid counts once.
        pods = {p["metadata"]["uid"]: p for p in self._foreign.pods()}
        pods.update((p["metadata"]["uid"], p) for p in self._cache.values(PODS))
        used = nodes.foreign_gpus(pods.values(), frozenset(known))
        return PoolSnapshot(
            pool=pool.metadata.name,
            policy=policy,
            nodes=tuple(
                NodeView(n["metadata"]["name"], nodes.node_gpus(n), used.get(n["metadata"]["name"], 0))
                for n in usable
            ),
            jobs=tuple(views),
            holds=convert.holds(obj.get("status")),
            hold_seconds=float(pool.spec.hold_seconds),
            limits=convert.stop_limits(pool),
            stopped=_rule_stops(thoughts.values()),
        )

    def _pool_status(
        self, obj: Mapping[str, Any], snapshot: PoolSnapshot, plan: PoolPlan, now: float
    ) -> dict[str, Any]:
        states = [job.state for job in snapshot.jobs]
        facts = {
            "capacity": sum(node.gpus for node in snapshot.nodes),
            "free": sum(free_gpus(snapshot).values()),
            "running": sum(1 for state in states if state is not JobState.QUEUED),
            "queued": sum(1 for state in states if state is JobState.QUEUED),
            "holds": convert.stored_holds(plan.holds[:64]),
        }
        if snapshot.nodes:
            ready = (True, "Planned", f"jobs are admitted to {len(snapshot.nodes)} nodes")
        else:
            ready = (
                False,
                "NoUsableNodes",
                "spec.nodeSelector: no ready and schedulable node matches",
            )
        return _status(obj, facts, ready, now)

    # -- what is to be -----------------------------------------------------------------------------------

    async def _carry_out(self, plan: PoolPlan, thoughts: Mapping[JobKey, Thought], now: float) -> bool:
        """Write the plan's outcomes into the jobs' records. Returns whether GPUs changed hands."""
        changed = False
        for grant in plan.grants:
            thought = thoughts[grant.key]
            desired = thought.loaded.desired
            record = lifecycle.granted(thought.plan.record, desired, grant, now)
            changed |= await self._write(thought, record, now, "grant")
        marks = dict(plan.marks)
        for preemption in plan.preemptions:
            thought = thoughts[preemption.key]
            record = lifecycle.preempted(thought.plan.record, preemption, now)
            record = lifecycle.marked(record, marks.pop(preemption.key, record.mark))
            changed |= await self._write(thought, record, now, "preemption")
        for admission in plan.admissions:
            thought = thoughts[admission.key]
            record = lifecycle.admitted(thought.plan.record, admission, now)
            record = lifecycle.marked(record, marks.pop(admission.key, record.mark))
            changed |= await self._write(thought, record, now, "admission")
        for held in plan.held_back:
            thought = thoughts[held.key]
            before = thought.plan.record
            record = lifecycle.held_back(before, thought.loaded.desired, held, now)
            if record is not before:
                await self._write(thought, record, now, "held-back")
        for key, mark in marks.items():
            thought = thoughts[key]
            await self._write(thought, lifecycle.marked(thought.plan.record, mark), now, "mark")
        await self._hand_over(plan, thoughts, now)
        await self._explain(plan, thoughts, now)
        return changed

    async def _hand_over(self, plan: PoolPlan, thoughts: Mapping[JobKey, Thought], now: float) -> None:
        """Note on each stopped job who got its GPUs. Looked at anew each pass: a crash may have come between
        the admission, whose record names the source, and this."""
        pairs = [(a.source, a.key) for a in plan.admissions if a.source is not None]
        for thought in thoughts.values():
            admission = thought.loaded.record.admission
            if admission is not None and admission.source is not None:
                pairs.append((admission.source, thought.loaded.key))
        for source, target in pairs:
            stopped = self._brain.recall(source)
            if stopped is None:
                continue
            record = lifecycle.handed(stopped.plan.record, target, now)
            if record is not stopped.plan.record:
                await self._write(stopped, record, now, "handover")

    async def _explain(self, plan: PoolPlan, thoughts: Mapping[JobKey, Thought], now: float) -> None:
        recent = self._now() - MESSAGE_REFRESH
        self._told = {key: at for key, at in self._told.items() if at > recent}
        for why in plan.waiting:
            thought = thoughts[why.key]
            before = thought.plan.record
            record = lifecycle.waiting(before, thought.loaded.desired, why, now)
            if record is before or not self._worth_telling(why.key, before, why.reason):
                continue
            self._told[why.key] = self._now()
            await self._write(thought, record, now, "waiting")

    def _worth_telling(self, key: JobKey, before: JobRecord, reason: str) -> bool:
        """A new reason at once; new numbers in the old reason at most once a minute, or a change of one GPU
        would be a write for every job in the queue."""
        known = before.condition(ADMITTED)
        if known is None or known.status or known.reason != reason:
            return True
        return key not in self._told

    async def _write(self, thought: Thought, record: JobRecord, now: float, verb: str) -> bool:
        loaded = thought.loaded
        async with self._locks.hold(loaded.key):
            current = self._cache.get(RLHFJOBS, loaded.key)
            if current is None or current["metadata"]["resourceVersion"] != loaded.version:
                raise Stale(f"{loaded.key} changed since the snapshot")
            wrote = await self._writer.record(loaded, record, now)
        if wrote:
            self._metrics.outcomes.labels(verb).inc()
            _logger.info(verb, job=loaded.key)
        return wrote


def _rule_stops(thoughts: Iterable[Thought]) -> tuple[PastStop, ...]:
    """Stops that a rule had asked for, oldest first; those of deleted RLHFJobs are forgotten."""
    decisions = (t.plan.record.decision for t in thoughts)
    found = (d for d in decisions if d and d.mode is Mode.ENFORCE and d.by != "User")
    return tuple(sorted((PastStop(d.at, d.proposal.e_value) for d in found), key=lambda stop: stop.at))


def _status(
    obj: Mapping[str, Any], facts: Mapping[str, Any], ready: tuple[bool, str, str], now: float
) -> dict[str, Any]:
    """A GPUPool's status with its one condition, Ready; what equals its default is left out."""
    status, reason, message = ready
    word = "True" if status else "False"
    known = next((c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] == "Ready"), None)
    since = known["lastTransitionTime"] if known is not None and known["status"] == word else timestamp(now)
    generation = int(obj["metadata"].get("generation") or 0)
    condition = {
        "type": "Ready",
        "status": word,
        "reason": reason,
        "message": message[:512],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }
    out: dict[str, Any] = {"conditions": [condition], "observedGeneration": generation}
    out.update({key: value for key, value in facts.items() if value != []})
    return out
