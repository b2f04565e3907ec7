"""The status of a GPUPool, made from the pool, its snapshot and its plan.

Conditions: Ready (jobs are admitted), QueueReady (its external queue is there; only where
there is one), GuaranteesFit (its quotas guarantee no more GPUs than it has) and QuotasAllowed (every
namespace in them may use it), both only where there are quotas, NodesExclusive (no other pool selects its
nodes), GPUsExclusive (no pod of somebody else's uses its GPUs), GPUsThere (no node has fewer GPUs than its
pods hold; there only while one has), StopsHeldBack (its limits hold stops back; there from the first time
on).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller import workloads
from controller.api import codec
from controller.api import fleet as fleet_status
from controller.api.sharing_terms import stored_profiles
from controller.api.status import NODE_SIZES_MAX, NodeSize, PoolStatus, QuotaUse
from controller.api.values import timestamp
from controller.frozen import dataclass
from controller.operator.reconcile import fleet
from controller.operator.reconcile.fleet import PoolCondition
from controller.operator.state.nodes import node_of
from controller.policy.group_types import PoolSharing
from controller.policy.job import STUCK_AFTER
from controller.policy.pool import RESERVATIONS_MAX, Handover, free_gpus
from controller.policy.queueing.quota_ledger import usage
from controller.policy.stored import MESSAGE_MAX
from controller.policy.types import JobState, PoolPlan, PoolSnapshot, Problem
from controller.policy.wording import CLOSED, agreeing, counted, some

Object = Mapping[str, Any]

NAMED = 5  # nodes or pods that a message names
# What is found out at each pass; of a pool that is not usable nothing is, and the rest stays as it was.
_COUNTED = (
    *("nodeSizes", "capacity", "free", "held", "foreign", "actors", "lent", "shared", "running", "queued"),
)
_FOUND = (*_COUNTED, "recalled", "reservations", "quotas")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the cluster that concerns a pool besides its own jobs.

    Attributes:
        contested: node -> the pools that select it, its owner first, where there are several.
        unmanaged: non-terminal pods with GPUs on the pool's nodes that are no job's of the pool.
        queue: condition QueueReady; None: it delegates to no external queue.
    """

    contested: Mapping[str, Sequence[str]]
    unmanaged: Sequence[Object]
    queue: PoolCondition | None = None
    shut_out: Sequence[str] = ()  # namespaces in its quotas that may not use it
    nodes: Collection[str] = ()  # names of its nodes
    unserved: int = 0  # jobs whose pods nobody schedules
    outside: int = 0  # jobs that wait in an external queue, and are in no snapshot


def planned(
    obj: Object,
    snapshot: PoolSnapshot,
    plan: PoolPlan,
    around: Surroundings,
    stops: Iterable[Handover],
    now: float,
) -> dict[str, Any]:
    """Return the status of a pool that was planned at ``now`` (s); ``obj`` is the GPUPool as last read."""
    counts = _counts(snapshot)
    facts = replace(
        counts,
        queued=(counts.queued or 0) + around.outside,
        recalled=plan.lending.reserved[:RESERVATIONS_MAX] if plan.lending is not None else (),
        reservations=plan.reservations,
        quotas=_quotas(snapshot, plan),
        last_handovers=tuple(stops),
        stops=fleet_status.stored_stops(plan.stops, snapshot.stopped),
        noise=plan.noise,
        shared_falls=plan.falls,
        next_group=_next_group(snapshot, plan),
        profiles=stored_profiles(snapshot.sharing.profiles) if snapshot.sharing is not None else (),
    )
    conditions = [
        _ready(snapshot),
        _nodes_exclusive(snapshot.pool, around.contested),
        _gpus_exclusive(around.unmanaged, now),
    ]
    if snapshot.quotas:
        conditions.append(_guarantees_fit(snapshot, counts.capacity or 0))
        conditions.append(_quotas_allowed(snapshot, around.shut_out))
    if around.unserved:
        conditions.append(_unserved(obj, around.unserved))
    if short := _gpus_there(snapshot):
        conditions.append(short)
    if around.queue is not None:
        conditions.append(around.queue)
    if held := fleet.held_back(obj, plan):
        conditions.append(held)
    return _status(obj, codec.encode(facts), conditions, now)


def unusable(
    obj: Object, problem: Problem, now: float, snapshot: PoolSnapshot | None = None
) -> dict[str, Any]:
    """Return the status of a pool whose spec cannot be carried out. What it remembers of its jobs stays.

    ``snapshot``: of its nodes and jobs, which are counted all the same; None: its nodes are not known either.
    """
    facts = {key: value for key, value in (obj.get("status") or {}).items() if key not in _FOUND}
    if snapshot is not None:
        counted = codec.encode(_counts(snapshot))
        facts |= {key: counted[key] for key in _COUNTED if key in counted}
    return _status(obj, facts, [PoolCondition("Ready", False, *problem)], now)


def _counts(snapshot: PoolSnapshot) -> PoolStatus:
    """Return a pool's nodes, GPUs and jobs, counted."""
    capacity = sum(node.gpus for node in snapshot.nodes)
    foreign = sum(node.foreign for node in snapshot.nodes)
    here = {node.name for node in snapshot.nodes}
    bound = sum(gpus for job in snapshot.jobs for node, gpus in job.bound if node in here)
    free = sum(free_gpus(snapshot).values())
    groups = snapshot.sharing.groups if snapshot.sharing is not None else ()
    shared = sum(gpus for group in groups for node, gpus in group.bound if node in here)
    rollouts = [job.rollout for job in snapshot.jobs if job.rollout is not None]
    actors = sum(a.gpus for rollout in rollouts for a in rollout.actors if a.node in here)
    lent = sum(
        job.rollout.rights * job.rollout.gpus
        for job in snapshot.jobs
        if job.rollout is not None and job.state is JobState.ADMITTED
    )
    queued = sum(1 for job in snapshot.jobs if job.state is JobState.QUEUED)
    sizes = sorted(Counter(node.gpus for node in snapshot.nodes).items(), reverse=True)
    return PoolStatus(
        node_sizes=tuple(NodeSize(gpus, count) for gpus, count in sizes[:NODE_SIZES_MAX]),
        capacity=capacity,
        free=free,
        held=max(0, capacity - foreign - bound - actors - shared - free),
        foreign=foreign,
        actors=actors if rollouts else None,
        lent=lent if rollouts else None,
        shared=shared if groups else None,
        running=len(snapshot.jobs) - queued,
        queued=queued,
    )


def _next_group(snapshot: PoolSnapshot, plan: PoolPlan) -> int | None:
    """Return the number of the next worker group; None: none was ever opened."""
    before = snapshot.sharing.next_group if snapshot.sharing is not None else 1
    number = max(before, plan.sharing.next_group if plan.sharing is not None else 1)
    return number if number > 1 else None


def stuck_at(unmanaged: Iterable[Object], now: float) -> float | None:
    """Return when (s) the next of these pods will have been terminating for too long; None: none will be."""
    times = [at for pod in unmanaged if (at := _deleting(pod)) is not None]
    return min((at + STUCK_AFTER for at in times if at + STUCK_AFTER > now), default=None)


def leaving(unmanaged: Iterable[Object], now: float) -> list[Object]:
    """Return those of these pods that are being deleted, and not for so long yet that they are stuck."""
    return [g for g in unmanaged if (at := _deleting(g)) is not None and now - at < STUCK_AFTER]


def queue_ready(problem: Problem | None) -> PoolCondition:
    """Return condition QueueReady of a pool that delegates to an external queue. ``problem``: why that cannot
    serve it."""
    if problem is not None:
        return PoolCondition("QueueReady", False, *problem)
    return PoolCondition("QueueReady", True, "Served", "the queue that it delegates to is there")


def _ready(snapshot: PoolSnapshot) -> PoolCondition:
    if snapshot.nodes:
        message = f"jobs are admitted to {counted(len(snapshot.nodes), 'node')}"
        told = "; ".join(filter(None, (message, outgrown(snapshot.sharing))))
        return PoolCondition("Ready", True, "Planned", told[:MESSAGE_MAX])
    message = "spec.nodeSelector: no ready and schedulable node matches that no older GPUPool has"
    if names := [node.name for node in snapshot.closed]:
        which = agreeing(
            len(names), "the node that matches is", f"all {counted(len(names), 'node')} that match are"
        )
        message = f"{which} {CLOSED}: {some(names, 6)}; jobs wait until one takes pods again"
    return PoolCondition("Ready", False, "NoUsableNodes", message)


def outgrown(sharing: PoolSharing | None) -> str:
    """Return which of a pool's groups have members of a size that their family has no more; "": none."""
    if sharing is None:
        return ""
    sizes = {one.name: (one.replicas, one.gpus) for one in sharing.families}
    others = [g for g in sharing.groups if not g.closing and sizes.get(g.family) != (g.replicas, g.gpus)]
    if not others:
        return ""
    groups = some([f"{g.name} ({g.family!r}, {g.replicas} x {counted(g.gpus, 'GPU')})" for g in others], 3)
    which = agreeing(len(others), "group", "groups")
    return (
        f"spec.sharing.families: no longer of the size of {which} {groups}: one whose pods are lost cannot "
        "start again; give the family its replicas and gpusPerReplica back, or let the residents end"
    )


def _quotas(snapshot: PoolSnapshot, plan: PoolPlan) -> tuple[QuotaUse, ...]:
    """Return how each entry of its quotas stands once the plan is carried out."""
    found = usage(snapshot.quotas, snapshot.jobs, (a.key for a in plan.admissions))
    return tuple(
        QuotaUse(quota.namespaces, quota.guaranteed, *stands, limit=quota.limit)
        for quota, stands in zip(snapshot.quotas, found, strict=True)
    )


def _guarantees_fit(snapshot: PoolSnapshot, capacity: int) -> PoolCondition:
    total = sum(quota.guaranteed for quota in snapshot.quotas)
    if total <= capacity:
        message = (
            f"{total} of {counted(capacity, 'GPU')} {agreeing(total, 'is', 'are')} guaranteed to namespaces"
        )
        return PoolCondition("GuaranteesFit", True, "Covered", message)
    closed = sum(node.gpus for node in snapshot.closed)
    more = (
        f" ({closed} more {agreeing(closed, 'is', 'are')} on nodes that are closed for now)" if closed else ""
    )
    message = (
        f"spec.quotas: {counted(total, 'GPU')} {agreeing(total, 'is', 'are')} guaranteed, of {capacity} that "
        f"the pool has{more}; who comes first by the queue policy gets them, so guarantee {capacity} in all "
        "at most, or add nodes"
    )
    return PoolCondition("GuaranteesFit", False, "MoreThanThePoolHas", message)


def _quotas_allowed(snapshot: PoolSnapshot, shut_out: Sequence[str]) -> PoolCondition:
    if not shut_out:
        message = f"every namespace of {counted(len(snapshot.quotas), 'quota')} may use the pool"
        return PoolCondition("QuotasAllowed", True, "Allowed", message)
    message = (
        f"spec.quotas: {some(shut_out, NAMED)} {_are(shut_out)} not in spec.allowedNamespaces, so nobody can "
        "use what is guaranteed there; allow them, or leave them out of the quotas"
    )
    return PoolCondition("QuotasAllowed", False, "NamespaceNotAllowed", message)


def _nodes_exclusive(pool: str, contested: Mapping[str, Sequence[str]]) -> PoolCondition:
    lost = sorted(node for node, pools in contested.items() if pool in pools[1:])
    if lost:
        owners = sorted({contested[node][0] for node in lost})
        message = (
            f"spec.nodeSelector: {some(lost, NAMED)} {_are(lost)} selected by GPUPool {', '.join(owners)} "
            "too, which is older and has them; a node is in one pool only, so let the selectors not overlap"
        )
        return PoolCondition("NodesExclusive", False, "YieldedToOlderPool", message)
    shared = sorted(node for node, pools in contested.items() if pools[0] == pool)
    if shared:
        others = sorted({other for node in shared for other in contested[node][1:]})
        message = (
            f"spec.nodeSelector: {some(shared, NAMED)} {_are(shared)} selected by GPUPool "
            f"{', '.join(others)} too; this pool is older and has them; let the selectors not overlap"
        )
        return PoolCondition("NodesExclusive", False, "SharedWithYoungerPool", message)
    return PoolCondition("NodesExclusive", True, "Exclusive", "no other GPUPool selects its nodes")


def _unserved(obj: Object, jobs: int) -> PoolCondition:
    """Return condition PodsScheduled, which is there only while it is false."""
    name = (obj.get("spec") or {}).get("schedulerName") or "default-scheduler"
    message = (
        f"spec.schedulerName is {name}, and no scheduler has said anything of the pods of "
        f"{counted(jobs, 'job')}: they hold GPUs and never start; install that scheduler, or correct the name"
    )
    return PoolCondition("PodsScheduled", False, "NoScheduler", message)


def _gpus_exclusive(unmanaged: Sequence[Object], now: float) -> PoolCondition:
    if not unmanaged:
        return PoolCondition(
            "GPUsExclusive", True, "Exclusive", "only pods of the pool's RLHFJobs use its GPUs"
        )
    total = sum(workloads.gpus(pod.get("spec") or {}) for pod in unmanaged)
    message = (
        f"{counted(total, 'GPU')} {agreeing(total, 'is', 'are')} used by {counted(len(unmanaged), 'pod')} of "
        f"no RLHFJob of this pool: {some(sorted(_described(pod) for pod in unmanaged), NAMED)}; "
        f"{agreeing(total, 'it is', 'they are')} not counted as free"
    )
    since = {_name(pod): at for pod in unmanaged if (at := _deleting(pod)) is not None}
    stuck = sorted(f"{name} (since {timestamp(at)})" for name, at in since.items() if now - at >= STUCK_AFTER)
    if stuck:
        return PoolCondition(
            "GPUsExclusive",
            False,
            "ForeignPodsStuck",
            f"still terminating after {STUCK_AFTER:.0f} s: {some(stuck, NAMED)}; {message}",
        )
    return PoolCondition("GPUsExclusive", False, "ForeignPods", message)


def _gpus_there(snapshot: PoolSnapshot) -> PoolCondition | None:
    """Return condition GPUsThere, which is there only while it is false: GPUs of a node were taken away, or
    have failed, under pods that hold them. Nothing ends by that, so nothing else tells of it."""
    used = _used(snapshot)
    nodes = (*snapshot.nodes, *snapshot.closed)
    short = [n for n in nodes if used[n.name] and used[n.name] + n.foreign > n.gpus]
    if not short:
        return None
    told = [
        f"{n.name} has {counted(n.gpus, 'GPU')}, and {used[n.name] + n.foreign} are held there" for n in short
    ]
    message = (
        f"fewer GPUs than pods hold: {some(told, NAMED)}; the runs there go on, as far as their GPUs work, "
        "and none is admitted there until enough are back or free; see Allocatable of kubectl describe node "
        f"{short[0].name}"
    )
    return PoolCondition("GPUsThere", False, "FewerThanHeld", message)


def _used(snapshot: PoolSnapshot) -> Counter[str]:
    """Return the GPUs that pods of jobs and of their groups hold, by node."""
    used: Counter[str] = Counter()
    for job in snapshot.jobs:
        actors = job.rollout.actors if job.rollout is not None else ()
        for node, gpus in (*job.bound, *((a.node, a.gpus) for a in actors)):
            used[node] += gpus
    for group in snapshot.sharing.groups if snapshot.sharing is not None else ():
        for node, gpus in group.bound:
            used[node] += gpus
    return used


def _described(pod: Object) -> str:
    return f"{_name(pod)} on {node_of(pod)} ({workloads.gpus(pod.get('spec') or {})})"


def _name(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _deleting(pod: Object) -> float | None:
    return workloads.pod_view(pod).deleting_since


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _status(
    obj: Object, facts: Mapping[str, Any], wanted: Iterable[PoolCondition], now: float
) -> dict[str, Any]:
    """Return a status as it is stored; a condition's time is that of its last change."""
    known = {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or ()}
    generation = int(obj["metadata"].get("generation") or 0)
    conditions = [_condition(one, known.get(one.type), generation, now) for one in wanted]
    return {**facts, "conditions": conditions, "observedGeneration": generation}


def _condition(wanted: PoolCondition, known: Object | None, generation: int, now: float) -> dict[str, Any]:
    word = "True" if wanted.status else "False"
    message = (
        wanted.message if len(wanted.message) <= MESSAGE_MAX else wanted.message[: MESSAGE_MAX - 1] + "…"
    )
    same = known is not None and known["status"] == word
    return {
        "type": wanted.type,
        "status": word,
        "reason": wanted.reason,
        "message": message,
        "lastTransitionTime": known["lastTransitionTime"] if known is not None and same else timestamp(now),
        "observedGeneration": generation,
    }
