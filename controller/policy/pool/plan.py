"""The pool's plan: who is released, who starts where, who waits and why. Pure, total, deterministic.

Whose each GPU is: `accounts`. A gang is admitted only when the GPUs of all its members are free at once, and
what it was admitted to is charged to it from then on, so that no two gangs are ever admitted to the same GPU.
To whom GPUs will go that are still in use: `holds`. The winner is chosen again, by the same policy, when they
are free; a hold never decides an admission.

In a pool whose delegate is None nobody queues: every job starts at once, and where its pods go is left to
kube-scheduler. Only a gang that did not find room in time (`gangs`) waits until no other gang is looking for
some, so that those that fit only one after the other get their turn.

Where namespaces are guaranteed GPUs or limited, that comes before the policy's order (`queueing.quotas`).

In a pool whose delegate is Kueue jobs wait there, and only those start for which it has quota (`delegation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.policy.fleet import learn, sift
from controller.policy.pool.delegates import (
    DELEGATIONS,
    TOO_LARGE,
    OfferRoom,
    offers,
    refusals,
    waits_for_quota,
    wake_ups,
)
from controller.policy.pool.demotion import REASON as DEMOTED
from controller.policy.pool.demotion import give_way, lowered
from controller.policy.pool.gpu_accounting import LEAVING, Books, books, free_gpus
from controller.policy.pool.placement import AnyRoom, NodeRoom, fit
from controller.policy.pool.planner import Planner
from controller.policy.pool.reservations import current, holds, source_of
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.queueing.base import queue_key
from controller.policy.queueing.quota_ledger import charged, explained, too_large
from controller.policy.types import (
    Admission,
    Grant,
    HeldBack,
    Hold,
    JobKey,
    JobState,
    JobView,
    NodeView,
    PolicySpec,
    PoolPlan,
    PoolSnapshot,
    Preemption,
    Waiting,
)
from controller.policy.wording import named, some

__all__ = ["free_gpus", "plan_pool"]

STOPPING = JobState.STOPPING


def plan_pool(snapshot: PoolSnapshot, now: float) -> PoolPlan:
    """What is to happen in this pool at ``now`` (s).

    Raises:
        ParamError: the pool's queue policy or one of its parameters does not exist or is out of bounds.
    """
    how = DELEGATIONS[snapshot.delegate]
    if how.offers:
        # Who is next is decided outside. For whom freed GPUs are promised is a guess by the same order.
        snapshot = replace(snapshot, policy=PolicySpec("fifo", {"backfill": True}))
    snapshot = current(snapshot, now)
    accounts = books(snapshot)
    snapshot = accounts.as_charged(snapshot)
    quotas = snapshot.quotas if how.orders else ()
    views = {j.key: j for j in snapshot.jobs}
    unfit = _unfit_jobs(snapshot)
    paused = _paused(snapshot, now)
    racks = {n.name: n.rack for n in snapshot.nodes if n.rack}
    room: NodeRoom | AnyRoom = NodeRoom(accounts.free, racks)
    policy = snapshot.policy
    offered = offers(j for j in snapshot.jobs if j.key not in paused) if how.offers else {}
    if how.offers:
        room = OfferRoom(accounts.free, racks, offered.keys())
    elif not how.places:
        room, policy = AnyRoom(), PolicySpec("fifo")
    planner = Planner(EvalStop(make_policy(policy, quotas)), room)
    sifted = sift(snapshot.jobs, snapshot, now)
    held = {h.key for h in sifted.held}
    jobs = (lowered(replace(j, proposal=None) if j.key in held else j) for j in snapshot.jobs)
    if quotas:
        jobs = (_with_all_it_has(j, accounts) for j in jobs)
    planner.rebuild((j for j in jobs if j.key not in unfit and j.key not in paused), now)
    for job in snapshot.jobs:
        if job.state is JobState.ADMITTED and not job.preemptible and job.proposal is None:
            planner.policy.shielded(lowered(job), now)

    decision = planner.decide(now)
    source = source_of(snapshot)
    admitted = tuple(
        Admission(j.key, room.placed[j.key], source(j.key, room.placed[j.key]), views[j.key].offer)
        for j in decision.admit
    )
    released = [views[j.key] for j in decision.release]
    preemptions = [Preemption(j.key, why) for j, why in decision.preempt]
    idle = _uncontended(snapshot.jobs, held | {j.key for j in released})
    taken = {a.key for a in admitted}
    rest = [views[j.key] for j in planner.policy.queue() if j.key not in taken]
    barred = [views[j.key] for j in planner.policy.barred()]
    if quotas:
        ledger = charged(quotas, snapshot.jobs, taken)
        barred += [j for j in rest if ledger.bars(j.key, j.gpus)]
        rest = [j for j in rest if not ledger.bars(j.key, j.gpus)]
    leaving = sorted((j for j in snapshot.jobs if j.state in LEAVING), key=lambda j: j.state is not STOPPING)
    leaving += [*released, *(views[p.key] for p in preemptions)]
    if how.places:
        going = {j.key for j in leaving}
        run = [j for j in snapshot.jobs if j.state is JobState.ADMITTED and j.key not in going]
        lower = [j for j in run if j.demoted and j.preemptible]
        stay = [j for j in run if not (j.demoted and j.preemptible)]
        # A queue outside may give the quota of one that gives way to whomever it likes, to this one again
        # among them: so only for those who have quota.
        wait = [j for j in rest if j.key in offered] if how.offers else [*rest, *barred]
        starting = [replace(views[a.key], state=JobState.ADMITTED, nodes=a.nodes) for a in admitted]
        demoted = give_way(
            lambda: make_policy(policy, quotas),
            [*stay, *starting] if quotas else stay,
            lower,
            leaving,
            wait,
            NodeRoom(room.free),
            now,
            quotas=quotas,
        )
        preemptions += [Preemption(j.key, DEMOTED) for j in demoted]
        leaving += demoted
    promised = holds(snapshot, leaving, admitted, [*rest, *barred], room.free, accounts, now)
    waiting = _waiting(rest, room.free, unfit, paused, offered if how.offers else None)
    if quotas:
        waiting = explained(waiting, barred, ledger, views)
    refused = refusals(offered, waiting, snapshot.offer_seconds, now)
    return PoolPlan(
        grants=tuple(Grant(j.key, j.proposal) for j in released if j.proposal is not None),
        admissions=admitted,
        preemptions=tuple(preemptions),
        refusals=refused,
        lifted=tuple(
            j.key
            for j in snapshot.jobs
            if j.refused and (j.key not in unfit or unfit[j.key].reason != TOO_LARGE)
        ),
        holds=promised,
        waiting=waiting,
        held_back=(*sifted.held, *idle),
        marks=_marks(
            planner,
            {key: job for key, job in views.items() if key not in unfit and key not in paused},
            admitted,
            preemptions,
            now,
        ),
        stops=sifted.stops,
        noise=learn(
            snapshot.noise,
            (j for j in snapshot.jobs if j.state is JobState.ADMITTED),
            snapshot.limits.scope,
        ),
        falls=sifted.falls,
        wake_at=_wake_at(
            snapshot,
            promised,
            now,
            decision.wake_at,
            sifted.wake_at,
            *wake_ups({k: j for k, j in offered.items() if k not in taken}, snapshot.offer_seconds, now),
        ),
    )


def _marks(
    planner: Planner,
    views: Mapping[JobKey, JobView],
    admitted: tuple[Admission, ...],
    preemptions: list[Preemption],
    now: float,
) -> tuple[tuple[JobKey, tuple[int, ...]], ...]:
    """What the policy asks to remember of its jobs once this plan is carried out, where that is news."""
    for admission in admitted:
        view = replace(views[admission.key], state=JobState.ADMITTED, since=now, nodes=admission.nodes)
        planner.admitted(view, now)
    for preemption in preemptions:
        planner.leaving(replace(views[preemption.key], state=JobState.PREEMPTING), now)
    asked = ((job.key, planner.policy.mark(job.key), job) for job in views.values())
    return tuple((key, mark) for key, mark, job in asked if mark != job.mark and job.state is not STOPPING)


def _wake_at(
    snapshot: PoolSnapshot, promised: tuple[Hold, ...], now: float, *others: float | None
) -> float | None:
    """When to plan again: a hold is due for renewal or ends, a back-off is over, or what others say."""
    half = snapshot.hold_seconds / 2
    wakes = [w for w in others if w is not None]
    wakes += [h.expires - half if h.expires - half > now else h.expires for h in promised]
    wakes += [j.not_before for j in snapshot.jobs if j.not_before is not None and j.not_before > now]
    return min(wakes, default=None)


def _paused(snapshot: PoolSnapshot, now: float) -> dict[JobKey, str]:
    """Queued jobs whose gangs found no room and that are not to be admitted now, and why."""
    failed = [j for j in snapshot.jobs if j.state is JobState.QUEUED and j.not_before is not None]
    if not failed:
        return {}
    why = (
        "not every pod found a node when it was last admitted, or some members had ended well before (then "
        "condition Running says so); it is tried again after its back-off"
    )
    paused = {j.key: why for j in failed if j.not_before is not None and j.not_before > now}
    if DELEGATIONS[snapshot.delegate].places:
        return paused
    # Nobody queues: those that failed are tried one by one, while no other gang is looking for room.
    looking = any(j.state is JobState.ADMITTED and j.unbound for j in snapshot.jobs)
    ready = sorted((j for j in failed if j.key not in paused), key=queue_key)
    for job in ready if looking else ready[1:]:
        paused[job.key] = "not every pod found a node when it was last admitted; another gang is tried first"
    return paused


def _uncontended(jobs: tuple[JobView, ...], settled: set[JobKey]) -> tuple[HeldBack, ...]:
    """Jobs that ask to be stopped only when others wait, and nobody does."""
    why = "nobody waits for its GPUs, and its modifier onlyWhenContended lets it go on until somebody does"
    asking = (j for j in jobs if j.proposal is not None and j.proposal.when_contended)
    return tuple(
        HeldBack(j.key, "NobodyWaits", why)
        for j in asking
        if j.state is JobState.ADMITTED and j.key not in settled
    )


def _with_all_it_has(job: JobView, accounts: Books) -> JobView:
    """A leaving gang with what is still charged to it in the place of pods that are gone: who waits for it
    is not to have somebody else preempted meanwhile."""
    if job.state not in LEAVING or not job.bound:
        return job
    return replace(job, bound=tuple(accounts.account(job)))


def _unfit_jobs(snapshot: PoolSnapshot) -> dict[JobKey, Waiting]:
    """Queued jobs that could not run though no other job were there, and why. They block nobody: no job that
    ends can make room for them. Many gangs have the same shape."""
    known: dict[tuple[int, int], tuple[str, str] | None] = {}
    unfit: dict[JobKey, Waiting] = too_large(snapshot.quotas, snapshot.jobs)
    for job in sorted(snapshot.jobs, key=lambda j: j.key):
        if job.state is not JobState.QUEUED or not job.gpus or job.key in unfit:
            continue
        shape = (job.replicas, job.gpus_per_replica)
        if shape not in known:
            known[shape] = _unfit(job, snapshot)
        if why := known[shape]:
            unfit[job.key] = Waiting(job.key, 0, *why)
    return unfit


def _unfit(job: JobView, snapshot: PoolSnapshot) -> tuple[str, str] | None:
    """Why a gang of this job's shape could not run if no other job were there: reason and message.

    Too large is what all nodes of the pool together could not hold, be some of them closed for now."""
    nodes, pool, size = snapshot.nodes, snapshot.pool, job.gpus_per_replica
    every = nodes + tuple(n for n in snapshot.closed if n.gpus)  # a node that boots tells no GPUs yet
    largest = max((n.gpus for n in every), default=size)
    if size > largest:
        return (
            "TooLarge",
            f"spec.gang.gpusPerReplica: {size} is more than the {largest} GPUs of the "
            f"largest node of pool {pool!r}; at most {largest} is right",
        )
    members = _members(every, size)
    if every and job.replicas > members:
        return (
            "TooLarge",
            f"spec.gang.replicas: {job.replicas} replicas of {size} GPUs are more than pool "
            f"{pool!r} can hold ({sum(n.gpus for n in every)} GPUs on {len(every)} nodes); "
            f"at most {members} is right",
        )
    if not nodes:
        return (
            "NoUsableNodes",
            f"GPUPool {pool!r} has no ready and schedulable node now; the job waits until it has",
        )
    if job.replicas > (members := _members(nodes, size)):
        closed = [n.name for n in snapshot.closed]
        what, are = ("node", "is") if len(closed) == 1 else ("nodes", "are")
        return (
            "NodesClosed",
            f"needs {job.replicas} x {size} GPUs; {what} {some(closed, 3)} of pool {pool!r} {are} not ready, "
            f"cordoned or tainted, which leaves room for {members}; the job waits until enough nodes are "
            "open again, and others go first",
        )
    stay = {n.name: n.foreign - n.leaving for n in nodes}
    left = sum(max(0, n.gpus - stay[n.name]) // size for n in nodes)
    if job.replicas > left:
        return (
            "GPUsUsedByOthers",
            f"needs {job.replicas} x {size} GPUs; pods of no RLHFJob of pool {pool!r} use "
            f"{sum(stay.values())} of its {sum(n.gpus for n in nodes)}, which leaves room for "
            f"{left}; the job waits until they are gone, and others go first",
        )
    return None


def _members(nodes: Iterable[NodeView], size: int) -> int:
    """How many members of ``size`` GPUs the nodes hold."""
    return sum(n.gpus // size for n in nodes)


def _waiting(
    rest: list[JobView],
    free: Mapping[str, int],
    unfit: Mapping[JobKey, Waiting],
    paused: Mapping[JobKey, str],
    offered: Mapping[JobKey, JobView] | None,
) -> tuple[Waiting, ...]:
    """``offered``: jobs for which a queue outside has quota; None: no such queue is asked."""
    waiting = []
    head = next((j.key for j in rest if offered is None or j.key in offered), None)
    total, largest = sum(free.values()), max(free.values(), default=0)
    fits: dict[tuple[int, int], bool] = {}
    for position, job in enumerate(rest, start=1):
        if offered is not None and job.key not in offered:
            waiting.append(waits_for_quota(job, position))
            continue
        shape = (job.replicas, job.gpus_per_replica)
        if shape not in fits:
            fits[shape] = fit(free, *shape) is not None
        if fits[shape]:
            assert head is not None  # this one, if no other
            why = f"it would fit, but {named(head, job.key)} comes first"
            waiting.append(Waiting(job.key, position, "BehindHead", why))
        else:
            message = (
                f"needs {job.replicas} x {job.gpus_per_replica} GPUs at once; {total} are free, "
                f"at most {largest} on one node"
            )
            waiting.append(Waiting(job.key, position, "WaitingForGPUs", message))
    waiting += [Waiting(key, 0, "BackingOff", why) for key, why in sorted(paused.items()) if key not in unfit]
    waiting += unfit.values()
    return tuple(waiting)
