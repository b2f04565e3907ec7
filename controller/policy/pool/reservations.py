"""Reservations: which waiting job the GPUs of a leaving job will go to, decided before they are free.

The event of a pod being gone wakes kube-scheduler before anything could be written after it, so the pool
writes its reservations when a stop or a preemption begins, before the workload is suspended. They are for the
scheduler extender and for people, never an input to who goes next: the winner is chosen anew, by the same
policy, when the GPUs are free.

A reservation ends when every member of its target has a node, at its expiry, when its target is gone, or when
the stop that was to free its GPUs is taken back. While its source has all its pods (the copy of its best
checkpoint may take long) it is renewed at half time; from the first pod gone it has only what is left, so
that a pod that never goes cannot keep the others' GPUs. There are at most `RESERVATIONS_MAX` at a time, and
`NODES_MAX` nodes in all of them: a GPUPool's status is one object of bounded size. What is beyond is not
announced, those that expire last first; the GPUs still go by the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from controller.policy.actor_types import Place
from controller.policy.pool.gpu_accounting import GpuAccounts
from controller.policy.pool.placement import NodeRoom, fit_job, shape
from controller.policy.pool.sharing_room import SharedRoom
from controller.policy.queueing import make_policy
from controller.policy.queueing.quota_ledger import charged
from controller.policy.types import Admission, JobKey, JobState, JobView, PoolSnapshot, Reservation

RESERVATIONS_MAX = 256
NODES_MAX = 4096


class _Wanted(NamedTuple):
    source: JobKey
    target: JobKey
    nodes: tuple[str, ...]
    group: str | None = None  # of which the target gets the residency


def current(snapshot: PoolSnapshot, now: float) -> PoolSnapshot:
    """Return the snapshot without the reservations that have expired at ``now`` (s)."""
    if all(r.expires > now for r in snapshot.reservations):
        return snapshot
    return replace(snapshot, reservations=tuple(r for r in snapshot.reservations if r.expires > now))


def reserve(
    snapshot: PoolSnapshot,
    leaving: Iterable[JobView],
    admitted: Iterable[Admission],
    rest: Iterable[JobView],
    free: Mapping[str, int],
    accounts: GpuAccounts,
    now: float,
    new_room: Callable[[Mapping[str, int]], NodeRoom] = NodeRoom,
) -> tuple[Reservation, ...]:
    """Return the pool's reservations: made while a job leaves, kept until its winner's pods have nodes.

    ``leaving``: jobs on their way off their GPUs, in the order in which theirs are given out. ``admitted``:
    in this pass. ``rest``: who waits after it, next one first. ``free``: GPUs per node after it.
    ``accounts``: the accounts before it. ``new_room``: makes a room of free GPUs per node, with the pool's
    worker groups if it has some; those of them that leave are among ``leaving``, after their residents.
    """
    leaving, admitted = list(leaving), list(admitted)
    views = {j.key: j for j in snapshot.jobs}
    starting = {a.key for a in admitted}
    expires = _expiries(snapshot, leaving, now)
    if snapshot.quotas:
        wanted = _wanted_within_quotas(snapshot, leaving, admitted, list(rest), new_room(free), accounts, now)
    else:
        wanted = _wanted(snapshot, leaving, list(rest), new_room(free), accounts, now)
    wanted += [_Wanted(a.source, a.key, a.nodes) for a in admitted if a.source is not None]
    settled = {w.source for w in wanted} | {j.key for j in leaving}
    ledger = charged(snapshot.quotas, snapshot.jobs)
    for reservation in snapshot.reservations:
        target = views.get(reservation.target)
        if target is None:
            continue
        waits = target.state is JobState.QUEUED or target.unbound > 0
        if (
            waits
            and not (target.state is JobState.QUEUED and ledger.bars(target.key, target.gpus))
            and reservation.source not in settled
            and not _void(reservation, views.get(reservation.source), snapshot.reservation_seconds)
        ):
            kept = _Wanted(reservation.source, reservation.target, reservation.nodes, reservation.group)
            wanted.append(kept)
    return _bounded(
        Reservation(
            w.source, w.target, w.nodes, expires[w.source], _admission(views[w.target], starting), w.group
        )
        for w in wanted
        if w.source in expires
    )


def source_of(snapshot: PoolSnapshot) -> Callable[[JobKey, tuple[str, ...], str | None], JobKey | None]:
    """Return a function from a job, its nodes and its worker group to the other job whose GPUs, or whose
    residency, these were; None: nobody's.

    It goes by the oldest reservation of these nodes, or in that group, whose source is gone.
    """
    if not snapshot.reservations:
        return lambda key, nodes, group: None
    there = {(j.key, node) for j in snapshot.jobs for node, _ in j.bound}
    here = {j.key for j in snapshot.jobs if j.bound or (j.sharing is not None and j.sharing.group)}
    oldest = sorted(snapshot.reservations, key=lambda r: (r.expires, r.source))

    def source(key: JobKey, nodes: tuple[str, ...], group: str | None) -> JobKey | None:
        wanted = set(nodes)
        freed = (
            r
            for r in oldest
            if any(n in wanted and (r.source, n) not in there for n in r.nodes)
            or (group is not None and r.group == group and r.source not in here)
        )
        return next((r.source for r in freed if r.source != key), None)

    return source


def _void(reservation: Reservation, source: JobView | None, reservation_seconds: float) -> bool:
    """Return whether the stop behind a reservation was taken back since, so that its source stays.

    Renewal ends with the stop, so what expires later than that was made for another one.
    """
    if source is None or source.taken_back is None or source.state is not JobState.ADMITTED:
        return False
    return reservation.expires - reservation_seconds <= source.taken_back


def _wanted(
    snapshot: PoolSnapshot,
    leaving: list[JobView],
    rest: list[JobView],
    room: NodeRoom,
    accounts: GpuAccounts,
    now: float,
) -> list[_Wanted]:
    """Return what the same policy would give out of the room as it is once each leaving job is gone."""
    if not leaving or not rest:
        return []
    policy = make_policy(snapshot.policy)
    shares = any(job.sharing is not None for job in rest)
    reservations: list[_Wanted] = []
    shapes = Counter(map(shape, rest))
    policy.rebuild(rest, now)
    for job in leaving:
        _free(job, room, accounts)
        # Asking the policy means a walk over all who wait: not, while not one of them would fit.
        if not shares and not any(fit_job(room.free, wanted) is not None for wanted in +shapes):
            continue
        for winner in policy.decide(now, room).admit:
            policy.removed(winner, now)
            shapes[shape(winner)] -= 1
            reservations.append(_Wanted(job.key, winner.key, *_gets(winner.key, room)))
    return reservations


def _wanted_within_quotas(
    snapshot: PoolSnapshot,
    leaving: list[JobView],
    admitted: list[Admission],
    rest: list[JobView],
    room: NodeRoom,
    accounts: GpuAccounts,
    now: float,
) -> list[_Wanted]:
    """Return the same under quotas: once all who leave are gone, what they have had counts no more.

    A gang's reservation names the leaving job with which the last GPUs that it needs come free.
    """
    if not leaving or not rest:
        return []
    policy, have = make_policy(snapshot.policy, snapshot.quotas), dict(room.free)
    for job in leaving:
        _free(job, room, accounts)
    going = {j.key for j in leaving}
    starting = {a.key: a.nodes for a in admitted}
    stay = [j for j in snapshot.jobs if j.state is JobState.ADMITTED and j.key not in going]
    new = [
        replace(j, state=JobState.ADMITTED, nodes=starting[j.key]) for j in snapshot.jobs if j.key in starting
    ]
    policy.rebuild([*stay, *new, *rest], now)
    for job in stay:
        if not job.preemptible:
            policy.shielded(job, now)
    coming = {j.key: room.placed[j.key] for j in policy.decide(now, room).admit}
    needed = {
        j.key: _by_node(coming[j.key].of(shape(room.asked.get(j.key, j)))) for j in rest if j.key in coming
    }
    on: dict[str, list[JobKey]] = {}  # node -> who gets GPUs there, next one first
    for key in coming:
        for node in needed[key]:
            on.setdefault(node, []).append(key)

    def served(touched: Iterable[str]) -> list[_Wanted]:
        """Return who has all its GPUs by now that more came free on these nodes; the source is still to be
        named."""
        found = []
        for key in dict.fromkeys(key for node in touched for key in on.get(node, ())):
            needs = needed[key] if key in coming else {}
            if not needs or any(have[node] < gpus for node, gpus in needs.items()):
                continue
            for node, gpus in needs.items():
                have[node] -= gpus
            del coming[key]
            found.append(_Wanted("", key, *_gets(key, room)))
        return found

    served(on)  # these need nobody to leave
    reservations: list[_Wanted] = []
    for job in leaving:
        account = [(node, gpus) for node, gpus in accounts.account(job) if node in have]
        for node, gpus in account:
            have[node] += gpus
        reservations += [one._replace(source=job.key) for one in served(node for node, _ in account)]
    return reservations


def _free(job: JobView, room: NodeRoom, accounts: GpuAccounts) -> None:
    """Count the GPUs of one that leaves as free, and its residency; those of a worker group, if nobody is in
    it any more."""
    if isinstance(room, SharedRoom) and not room.let_go(job.key):
        return
    for node, gpus in accounts.account(job):
        if node in room.free:
            room.free[node] += gpus


def _gets(key: JobKey, room: NodeRoom) -> tuple[tuple[str, ...], str | None]:
    """Return the nodes of a winner's pods, or else of the workers of its group, and that group."""
    nodes = room.placed[key]
    group = room.residencies.joined.get(key) if isinstance(room, SharedRoom) else None
    return nodes.gang or nodes.workers, group


def _by_node(places: Iterable[Place]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node, gpus in places:
        found[node] = found.get(node, 0) + gpus
    return found


def _expiries(snapshot: PoolSnapshot, leaving: list[JobView], now: float) -> dict[JobKey, float]:
    """Return until when (s) each source's GPUs are reserved; who has no entry has had its time."""
    expires: dict[JobKey, float] = {}
    for reservation in snapshot.reservations:
        expires[reservation.source] = max(reservation.expires, expires.get(reservation.source, 0.0))
    full, half = now + snapshot.reservation_seconds, now + snapshot.reservation_seconds / 2
    for job in leaving:
        known = expires.get(job.key)
        if job.state is JobState.ADMITTED and known is None:
            expires[job.key] = full  # begins to leave just now
        elif len(job.bound) >= job.replicas and (known is None or known <= half):
            expires[job.key] = full
    return expires


def _admission(target: JobView, starting: set[JobKey]) -> int:
    """Return the number of the admission a reservation is for: the target's next, if it waits or starts just
    now."""
    waits = target.state is JobState.QUEUED or target.key in starting
    return target.attempt + 1 if waits else target.attempt


def _bounded(found: Iterable[Reservation]) -> tuple[Reservation, ...]:
    every = tuple(found)
    if len(every) <= RESERVATIONS_MAX and sum(len(r.nodes) for r in every) <= NODES_MAX:
        return every
    kept: list[Reservation] = []
    room = NODES_MAX
    for reservation in sorted(every, key=lambda r: (r.expires, r.source, r.target)):
        if len(kept) < RESERVATIONS_MAX and len(reservation.nodes) <= room:
            kept.append(reservation)
            room -= len(reservation.nodes)
    return tuple(kept)
