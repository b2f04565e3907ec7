"""RLHFJobs and GPUPools as they are now: followed by list and watch, read into the brain's values once each.
WorkerGroups are followed, too, where they may be: without them all else is there.

Objects are kept without what nobody is shown (pod templates, managed fields), so that a thousand jobs are a
few megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from controller import log, names
from controller.api import codec, convert
from controller.api.gpupool import GPUPool
from controller.api.rule_text import rule_and_modifiers
from controller.api.status import PoolStatus
from controller.frozen import dataclass
from controller.kube import wire
from controller.kube.cache import key_of
from controller.kube.client import Api
from controller.kube.errors import ApiError, NotFound
from controller.kube.lease import UnwrittenNote
from controller.kube.listwatch import ListWatch
from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS, Resource
from controller.objects import parse_time
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job import Desired, JobRecord
from controller.policy.pool import ordered_by
from controller.policy.wording import agreeing, some
from controller.web.dashboard.operator_lease import OperatorLease

Object = Mapping[str, Any]

_logger = log.get("evalstop.dashboard.feed")

_LOOK = 0.02  # s between looks whether all is listed


@dataclass(frozen=True, slots=True)
class Job:
    """An RLHFJob as it is shown. ``problem``: why its spec or status could not be read; "": both could."""

    key: str
    namespace: str
    name: str
    pool: str
    priority: int
    created: float  # s since the epoch
    uid: str
    version: str
    summary: str
    desired: Desired
    record: JobRecord
    rule_text: str
    problem: str = ""

    @property
    def gpus(self) -> int:
        return self.desired.gpus


OPERATOR_AWAY = "no operator renews its Lease, so nothing is decided until one is back"
OPERATOR_REFUSED = "the operator is refused rights that it needs, so runs may go on unseen until it has them"


NOT_SERVED = "the operator does not serve {namespaces}, so runs there are neither watched nor stopped"
NOT_WRITTEN = "the API server refuses {which}, so nothing is judged or stopped there (see evalstop doctor)"
API_SILENT = "the API server does not answer"


class Stale(NamedTuple):
    """Since when (s) what is shown may be old, and why: a clause for people, without addresses."""

    since: float
    why: str


def _in_words(problem: ApiError) -> str:
    """Return why nothing new is heard. The log has the error itself: its text names addresses and tries."""
    if problem.status in (401, 403):
        return "the API server does not let this process look any more"
    if problem.status == 0 or problem.status >= 500 or problem.status == 429:
        return API_SILENT
    return f"the API server refuses to be followed ({problem.reason})"


@dataclass(frozen=True, slots=True)
class Pool:
    """A GPUPool as it is shown; like `Job`."""

    name: str
    version: str
    spec: GPUPool | None
    status: PoolStatus
    problem: str = ""

    @property
    def ordered_by(self) -> str:
        """Return what orders its jobs: its queue policy, or its delegate; "": its spec does not read."""
        spec = self.spec.spec if self.spec is not None else None
        return ordered_by(spec.delegate, spec.queue_policy.chosen().name) if spec is not None else ""

    @property
    def used(self) -> int:
        """GPUs that pods of its jobs use; those of worker groups are no job's own."""
        s = self.status
        rest = (s.free, s.held, s.foreign, s.shared)
        return max(0, (s.capacity or 0) - sum(gpus or 0 for gpus in rest))


@dataclasses.dataclass
class Feed:
    """The cluster's RLHFJobs and GPUPools as the API server has them now.

    Attributes:
        namespaces: the ones whose RLHFJobs are followed; None: all, by one watch.
        pools_allowed: whether GPUPools are followed, too.
        operator_namespace: where the operator's Lease is.
        version: changes with everything that can be seen here.
        broken: nothing is followed any more; the process must start anew.
    """

    api: Api
    namespaces: Sequence[str] | None = None
    pools_allowed: bool = True
    operator_namespace: str = names.NAMESPACE
    version: int = 0
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    _jobs: dict[str, Object] = field(default_factory=dict)
    _pools: dict[str, Object] = field(default_factory=dict)
    _groups: dict[str, Object] = field(default_factory=dict)
    _read_jobs: dict[str, Job] = field(default_factory=dict)
    _read_pools: dict[str, Pool] = field(default_factory=dict)
    _watches: list[ListWatch] = field(default_factory=list)
    _group_watch: ListWatch | None = None  # not among the others: nothing else waits for it
    _broken_since: float | None = None
    _lease: OperatorLease | None = None

    @contextlib.asynccontextmanager
    async def following(self, patience: float = 10.0) -> AsyncIterator[Feed]:
        """Follow the cluster until the block ends. Begins when all is listed, after ``patience`` s anyway."""
        for namespace in [None] if self.namespaces is None else self.namespaces:
            self._watches.append(
                ListWatch(self.api, RLHFJOBS, self._take, self._replacer(namespace), namespace=namespace)
            )
        if self.pools_allowed:
            self._watches.append(ListWatch(self.api, GPUPOOLS, self._take, self._replacer(None)))
        self._group_watch = ListWatch(
            self.api, WORKERGROUPS, self._take, self._replacer(GROUPS_NAMESPACE), namespace=GROUPS_NAMESPACE
        )
        followed = (*self._watches, self._group_watch)
        tasks = [asyncio.create_task(watch.run(), name=f"watch {watch}") for watch in followed]
        self._lease = OperatorLease(self.api, self.operator_namespace)
        lease = asyncio.create_task(self._lease.follow(), name="the operator's Lease")
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            for _ in range(int(patience / _LOOK)):
                if self.broken.is_set() or all(w.listed or w.problem for w in self._watches):
                    break
                await asyncio.sleep(_LOOK)
            yield self
        finally:
            for task in (*tasks, lease):
                task.cancel()
            await asyncio.gather(*tasks, lease, return_exceptions=True)

    # -- what there is -----------------------------------------------------------------------------------

    def jobs(self) -> Iterator[Job]:
        """Return all of them, in no order."""
        return (self._job(key) for key in list(self._jobs))

    def job(self, key: str) -> Job | None:
        return self._job(key) if key in self._jobs else None

    def pools(self) -> list[Pool]:
        """Return all of them, by name."""
        return [self._pool(name) for name in sorted(self._pools)]

    def pool(self, name: str) -> Pool | None:
        return self._pool(name) if name in self._pools else None

    def groups(self) -> list[Object]:
        """Return all WorkerGroups, by name, as they are."""
        return [self._groups[key] for key in sorted(self._groups)]

    def object_of(self, resource: Resource, key: str) -> Object | None:
        """Return an object as it is, without what nobody is shown; None: it is not there."""
        return self._held(resource).get(key)

    @property
    def groups_known(self) -> bool:
        """Return whether WorkerGroups were listed, and are followed."""
        watch = self._group_watch
        return watch is not None and watch.listed and watch.problem is None

    @property
    def problem(self) -> ApiError | None:
        """Return why what is shown may be old or missing; None: it is not."""
        return next((w.problem for w in self._watches if w.problem is not None), None)

    def stale(self, now: float, namespaces: Collection[str] | None = None) -> Stale | None:
        """Return since when what is shown may be old, and why; None: it is not.

        Args:
            now: s.
            namespaces: those whose objects may be named; None: all.
        """
        problem = self.problem
        if problem is None:
            self._broken_since = None
            away = self._lease.away_since() if self._lease is not None else None
            if self._lease is None:
                return None
            if away is None:
                refused = self._lease.refused
                if refused is not None:
                    return Stale(refused.since, OPERATOR_REFUSED)
                out = self._not_served(self._lease.served)
                if out:
                    return Stale(self._lease.term_began or now, out)
                return self._not_written(self._lease.unwritten, namespaces)
            return Stale(away, API_SILENT if self._lease.unanswered else OPERATOR_AWAY)
        if self._broken_since is None:
            self._broken_since = now
        return Stale(self._broken_since, _in_words(problem))

    def _not_served(self, among: frozenset[str] | None) -> str:
        """Return that runs are shown of namespaces that the operator does not serve; "": none is."""
        if among is None:
            return ""
        out = sorted({key.partition("/")[0] for key in self._jobs} - among)
        which = f"{agreeing(len(out), 'namespace', 'namespaces')} {some(out, 4)}"
        return NOT_SERVED.format(namespaces=which) if out else ""

    def _not_written(self, every: UnwrittenNote | None, namespaces: Collection[str] | None) -> Stale | None:
        """Return that statuses of what is shown are refused; None: none that the Lease names."""
        if every is None:
            return None
        shown = [
            f"{kind.kind}/{key}"
            for kind in (RLHFJOBS, WORKERGROUPS)
            for key in self._held(kind)
            if namespaces is None or key.partition("/")[0] in namespaces
        ]
        if namespaces is None:
            shown += [f"{GPUPOOLS.kind}/{key}" for key in self._pools]
        found = every.among(shown)
        return Stale(found.since, NOT_WRITTEN.format(which=found.which())) if found is not None else None

    @property
    def ready(self) -> bool:
        """Return whether everything was listed once."""
        return bool(self._watches) and not self.broken.is_set() and all(w.listed for w in self._watches)

    @property
    def not_installed(self) -> bool:
        """Return whether the kinds are not there."""
        return isinstance(self.problem, NotFound)

    def _job(self, key: str) -> Job:
        found = self._read_jobs.get(key)
        if found is None:
            found = self._read_jobs[key] = read_job(self._jobs[key], self._pools)
        return found

    def _pool(self, name: str) -> Pool:
        found = self._read_pools.get(name)
        if found is None:
            found = self._read_pools[name] = read_pool(self._pools[name])
        return found

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Log the end of a watch and set `broken`: a watch must go on until it is cancelled."""
        if not task.cancelled():
            _logger.error("the watch ended", task=task.get_name(), exc_info=task.exception())
            self.broken.set()

    def _held(self, resource: Resource) -> dict[str, Object]:
        if resource is WORKERGROUPS:
            return self._groups
        return self._jobs if resource is RLHFJOBS else self._pools

    # -- what comes in -----------------------------------------------------------------------------------

    def _take(self, resource: Resource, obj: Object, deleted: bool) -> None:
        self._put(resource, key_of(obj), None if deleted else _trim(obj))

    def _replacer(self, namespace: str | None) -> Any:
        def replace(resource: Resource, objects: Iterable[Object], version: str) -> None:
            listed = {key_of(obj): _trim(obj) for obj in objects}
            held = self._held(resource)
            for key in list(held):
                if key not in listed and (namespace is None or key.startswith(f"{namespace}/")):
                    self._put(resource, key, None)
            for key, obj in listed.items():
                if held.get(key) != obj:
                    self._put(resource, key, obj)
            self.version += 1  # also where nothing is there: what was not known is known now

        return replace

    def _put(self, resource: Resource, key: str, obj: Object | None) -> None:
        held = self._held(resource)
        if obj is None:
            held.pop(key, None)
        else:
            held[key] = obj
        if resource is RLHFJOBS:
            self._read_jobs.pop(key, None)
        elif resource is GPUPOOLS:
            self._read_pools.pop(key, None)
            # A pool's limits bear on what its jobs' specs mean.
            for other, job in list(self._read_jobs.items()):
                if job.pool == key:
                    del self._read_jobs[other]
        self.version += 1


def read_job(obj: Object, pools: Mapping[str, Object]) -> Job:
    """Return an RLHFJob in the brain's values. Never raises for what users or other versions wrote."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    pool = pools.get(str(spec.get("pool")))
    desired = convert.desired(obj, convert.parse_pool(pool) if pool is not None else None)
    problem = ""
    # Without the pool at hand the operator's own judgement (condition Accepted) is what counts.
    if desired.problem is not None and desired.problem.reason == "InvalidSpec":
        problem = f"spec: {desired.problem.message}"
    try:
        record = convert.record(obj.get("status"))
    except convert.StatusError as error:
        record, problem = JobRecord(), f"{error}; another version of the operator may have written it"
    if why := wire.problem(obj):
        problem = f"{why}; the operator leaves it alone"
    return Job(
        key=key_of(obj),
        namespace=str(metadata.get("namespace")),
        name=str(metadata["name"]),
        pool=str(spec.get("pool", "")),
        priority=int(spec.get("priority") or 0),
        created=parse_time(metadata.get("creationTimestamp")) or 0.0,
        uid=str(metadata.get("uid", "")),
        version=str(metadata["resourceVersion"]),
        summary=str((obj.get("status") or {}).get("summary") or ("Unreadable" if problem else "New")),
        desired=desired,
        record=record,
        rule_text=_rule_text(spec),
        problem=problem,
    )


def read_pool(obj: Object) -> Pool:
    """Return a GPUPool as a model; like `read_job`."""
    found = convert.parse_pool(obj)
    problem = "" if isinstance(found, GPUPool) else f"{found[1]} ({found[0]})"
    try:
        status = codec.decode(PoolStatus, obj.get("status") or {})
    except ValueError as error:
        status, problem = PoolStatus(), problem or str(error)
    name, version = str(obj["metadata"]["name"]), str(obj["metadata"]["resourceVersion"])
    return Pool(name, version, found if isinstance(found, GPUPool) else None, status, problem)


def _trim(obj: Object) -> Object:
    metadata = {
        key: obj["metadata"][key]
        for key in ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
        if key in obj["metadata"]
    }
    spec = dict(obj.get("spec") or {})
    if "template" in (spec.get("workload") or {}):
        template = spec["workload"]["template"] or {}
        spec["workload"] = {"template": {k: template[k] for k in ("apiVersion", "kind") if k in template}}
    kept = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": metadata, "spec": spec}
    for name in ("status", wire.PROBLEM):
        if name in obj:
            kept[name] = obj[name]
    return kept


def _rule_text(spec: Object) -> str:
    """Rule and modifiers on one line, as ``kDeclines(k=3, minDelta=0.02) + warmUp(minEvals=5)``."""
    words = []
    for member in rule_and_modifiers(spec):
        for name, params in member.items() if isinstance(member, Mapping) else ():
            listed = ", ".join(f"{k}={v}" for k, v in (params or {}).items())
            words.append(f"{name}({listed})" if listed else str(name))
    return " + ".join(words)
