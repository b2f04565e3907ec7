"""Recalls of spare actors, so that somebody who needs GPUs finds room: as few as do, the cheapest first.

The one recall for every need: a base actor that returns, and a gang that waits. Of actors that would do
alike, those go whose namespace borrows the most for its weight, then those of the job whose step got the
least shorter by them, then the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.policy.actor_types import Actor, JobKey
from controller.policy.pool.best_fit import NO_RACKS, FreeGpus
from controller.policy.pool.placement import Nodes, Shape, fit_job
from controller.policy.pool.rights import pack
from controller.policy.types import JobView


class Spare(NamedTuple):
    """A spare actor that could be recalled, or a base actor that could move."""

    key: JobKey
    actor: Actor


class Freed(NamedTuple):
    """Room for somebody, and those who have to go for it."""

    nodes: Nodes
    lenders: tuple[Spare, ...]


def spares(jobs: Iterable[JobView], nodes: Mapping[str, int]) -> list[Spare]:
    """Return the spare actors on these nodes, the first to be recalled first."""
    jobs = [job for job in jobs if job.rollout is not None]
    lent = borrowed_by_weight(jobs)
    found = []
    for job in jobs:
        assert job.rollout is not None
        rank = (-lent[job.namespace], job.rollout.gain or 0.0)
        found += [
            ((*rank, -actor.number, job.key), Spare(job.key, actor))
            for actor in job.rollout.spare
            if actor.node in nodes
        ]
    return [spare for _, spare in sorted(found, key=lambda one: one[0])]


def movable(
    jobs: Iterable[JobView], rights: Sequence[int], free: Mapping[str, int], backing: Mapping[str, int]
) -> list[Spare]:
    """Return the base actors that would have to move for rights that find no room, as few as do.

    A spare actor may stand on GPUs that a right needs, for it is recalled for that right. When an older actor
    of its job is gone it is a base actor, and what came free lies on another node, where a larger right finds
    no room. So such an actor may have to move: then it has a right of return, too, and all fit at once.

    Args:
        jobs: those that run.
        rights: GPUs of each base actor that may return.
        free: GPUs by node that nobody uses.
        backing: GPUs by node that rights may have besides.
    """
    before = pack(rights, free, backing).short
    if not before:
        return []
    # Who needs as much as the largest right would have to find as much as it needs.
    largest = max(rights)
    some = [
        Spare(job.key, actor)
        for job in jobs
        for actor in (job.rollout.held if job.rollout is not None else ())
        if actor.node in free and actor.gpus < largest
    ]
    some.sort(key=lambda one: (one.actor.number, one.key))  # the newest move first

    def short(moved: Sequence[Spare]) -> int:
        sizes = [one.actor.gpus for one in moved]
        return pack([*rights, *sizes], free, added(backing, by_node(moved))).short

    least = short(some)
    return _fewest(some, lambda moved: short(moved) <= least) if least < before else []


def borrowed_by_weight(jobs: Iterable[JobView]) -> dict[str, float]:
    """Return GPUs of spare actors by namespace, each divided by its weight."""
    found: Counter[str] = Counter()
    weights: dict[str, float] = {}
    for job in jobs:
        weights[job.namespace] = max(job.weight, 1e-9)
        if job.rollout is not None:
            found[job.namespace] += sum(actor.gpus for actor in job.rollout.spare)
    return {namespace: found[namespace] / weight for namespace, weight in weights.items()}


def free_up(
    wanted: Shape,
    avoid: tuple[str, ...],
    free: Mapping[str, int],
    borrowers: Sequence[Spare],
    rights: Sequence[int],
    racks: Mapping[str, str] = NO_RACKS,
    going: Mapping[str, int] | None = None,
) -> Freed | None:
    """Return whom to recall for one that needs GPUs; None: it would not fit even with all of them gone.

    Args:
        wanted: what needs room.
        avoid: nodes that would not have it.
        free: GPUs by node that nobody uses, those set aside for rights among them.
        borrowers: spare actors, the first to be recalled first.
        rights: GPUs of each base actor that may return: as many of them fit afterwards as fit before.
        racks: node -> rack.
        going: GPUs by node of who leaves anyhow, or would move: rights have them, too.
    """
    leaving = going or {}
    before = pack(rights, free, added(by_node(borrowers), leaving))
    found = _lend(wanted, avoid, free, borrowers, {}, racks)
    if found is not None and _rights_left(found, wanted, free, borrowers, rights, leaving) <= before.short:
        return found
    # Not there, then: some of it rights need. What they take when they choose first stays away.
    taken = pack(rights, added(free, by_node(borrowers)), leaving).on_free
    found = _lend(wanted, avoid, free, borrowers, taken, racks) if taken else None
    if found is not None and _rights_left(found, wanted, free, borrowers, rights, leaving) <= before.short:
        return found
    found = _with_all_gone(wanted, avoid, free, borrowers, racks) if taken else None
    if found is not None and _rights_left(found, wanted, free, borrowers, rights, leaving) <= before.short:
        return found
    return None


def _fewest(some: list[Spare], do: Callable[[list[Spare]], bool]) -> list[Spare]:
    """Return as few of them as do, those that come last in the list first: halves are left out, then
    quarters, and so on."""
    step = len(some) // 2
    while step:
        place = 0
        while place < len(some):
            without = some[:place] + some[place + step :]
            if do(without):
                some = without
            else:
                place += step
        step //= 2
    return some


def by_node(borrowers: Iterable[Spare]) -> dict[str, int]:
    """Return GPUs of spare actors by node."""
    found: Counter[str] = Counter()
    for one in borrowers:
        found[one.actor.node] += one.actor.gpus
    return found


def added(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return GPUs by node of both."""
    return {node: some.get(node, 0) + more.get(node, 0) for node in {**some, **more}}


def needs(nodes: Nodes, wanted: Shape) -> list[tuple[str, int]]:
    """Return (node, GPUs) of every pod of what was placed."""
    return nodes.of(wanted)


def _lend(
    wanted: Shape,
    avoid: tuple[str, ...],
    free: Mapping[str, int],
    borrowers: Sequence[Spare],
    taken: Mapping[str, int],
    racks: Mapping[str, str],
) -> Freed | None:
    """Free one actor after the other until it fits; then keep those that were not needed.

    ``taken``: GPUs by node that it may not have of what is there in all.
    """
    there = dict(free)
    room = FreeGpus({node: max(0, gpus - taken.get(node, 0)) for node, gpus in there.items()}, racks)

    def change(one: Spare, sign: int) -> None:
        node = one.actor.node
        there[node] += sign * one.actor.gpus
        room[node] = max(0, there[node] - taken.get(node, 0))

    nodes = fit_job(room, wanted, avoid)
    given: list[Spare] = []
    for one in borrowers:
        if nodes is not None:
            break
        change(one, 1)
        given.append(one)
        nodes = fit_job(room, wanted, avoid)
    if nodes is None:
        return None
    needed: list[Spare] = []
    for one in reversed(given):
        change(one, -1)
        without = fit_job(room, wanted, avoid)
        if without is None:
            change(one, 1)
            needed.append(one)
        else:
            nodes = without
    nodes = fit_job(room, wanted, avoid)
    assert nodes is not None
    return Freed(nodes, tuple(reversed(needed)))


def _with_all_gone(
    wanted: Shape,
    avoid: tuple[str, ...],
    free: Mapping[str, int],
    borrowers: Sequence[Spare],
    racks: Mapping[str, str],
) -> Freed | None:
    """Place it as though all were gone; those stay whose GPUs it does not get."""
    spare = by_node(borrowers)
    every = FreeGpus({node: gpus + spare.get(node, 0) for node, gpus in free.items()}, racks)
    nodes = fit_job(every, wanted, avoid)
    if nodes is None:
        return None
    missing: Counter[str] = Counter()
    for node, gpus in needs(nodes, wanted):
        missing[node] += gpus
    missing.subtract(free)
    lenders = []
    for one in borrowers:
        if missing[one.actor.node] > 0:
            missing[one.actor.node] -= one.actor.gpus
            lenders.append(one)
    return Freed(nodes, tuple(lenders))


def _rights_left(
    found: Freed,
    wanted: Shape,
    free: Mapping[str, int],
    borrowers: Sequence[Spare],
    rights: Sequence[int],
    going: Mapping[str, int],
) -> int:
    """Return how many rights find no room once it has started."""
    left = dict(free)
    for one in found.lenders:
        left[one.actor.node] += one.actor.gpus
    for node, gpus in needs(found.nodes, wanted):
        left[node] -= gpus
    stay = by_node(one for one in borrowers if one not in found.lenders)
    return pack(rights, left, added(stay, going)).short
