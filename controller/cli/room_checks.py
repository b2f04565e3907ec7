"""Check whether a job could ever run in its pool: the pool's own plan is asked, as if it were alone there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from controller.api import convert, sharing_terms
from controller.api.gpupool import GPUPool
from controller.cli import actor_checks, formatting, pool_checks
from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, as_cure, note, ok, wrong
from controller.kube import nodes as kube_nodes
from controller.operator.state.nodes import selector_of, selects
from controller.policy.actor_types import Rollout
from controller.policy.job import Cure, Desired, JobRecord, cure_of, residency
from controller.policy.pool import plan_pool
from controller.policy.types import JobView, NodeView, PoolSnapshot, Waiting
from controller.policy.wording import counted, some

Object = Mapping[str, Any]

NO_NODES, TOO_LARGE = "NoUsableNodes", "TooLarge"
# What no job that ends, and no time, makes right.
NEVER = frozenset({TOO_LARGE, NO_NODES, "SharingNotOffered", "FamilyNotFound", "StateTooLarge"})
_SMALLER = as_cure("lower gang.replicas or gang.gpusPerReplica, or take another pool")


class Nodes(NamedTuple):
    """A pool's nodes: those that take pods, and those that take none for now."""

    usable: tuple[NodeView, ...]
    closed: tuple[NodeView, ...] = ()

    @property
    def sizes(self) -> list[Mapping[str, Any]]:
        """Return GPUs per usable node, and on how many, as a pool's status has them: the largest first."""
        found = Counter(node.gpus for node in self.usable)
        return [{"gpus": gpus, "nodes": count} for gpus, count in sorted(found.items(), reverse=True)]

    def __str__(self) -> str:
        return formatting.node_sizes(self.sizes)


async def nodes_of(api: CallerApi, pool: Object) -> Nodes | None:
    """Return a GPUPool's nodes: as its status tells, else as they are; None: the caller may not know."""
    status = pool.get("status") or {}
    if sizes := status.get("nodeSizes"):
        each = [int(size["gpus"]) for size in sizes for _ in range(int(size["nodes"]))]
        return Nodes(tuple(NodeView(str(place), gpus) for place, gpus in enumerate(each)))
    none = any(one.get("reason") == NO_NODES for one in status.get("conditions") or ())
    listed = await pool_checks.nodes(api)
    if listed is None:
        return Nodes(()) if none else None
    mine = [node for node in listed if selects(selector_of(pool), node)]
    if none:
        return Nodes((), _views(node for node in mine if not kube_nodes.usable(node)))
    return nodes_among(mine)


def nodes_among(mine: Sequence[Object]) -> Nodes | None:
    """Return nodes as a pool has them; None: nobody knows how many GPUs they have."""
    usable = [node for node in mine if kube_nodes.usable(node)]
    found = Nodes(_views(usable), _views(node for node in mine if not kube_nodes.usable(node)))
    # Devices that are claimed, or a node that boots: nobody knows yet how many GPUs it will have.
    return None if usable and not any(view.gpus for view in found.usable) else found


def _views(nodes: Iterable[Object]) -> tuple[NodeView, ...]:
    return tuple(NodeView(str(node["metadata"]["name"]), kube_nodes.node_gpus(node)) for node in nodes)


def why_not(pool: GPUPool, asked: Desired, nodes: Nodes) -> Waiting | None:
    """Return why the pool would not start a job although no other one is there; None: it would."""
    view = JobView(
        asked.key,
        0.0,
        0,
        asked.replicas,
        asked.gpus_per_replica,
        offer="alone",  # of an external queue: that has quota for it
        rollout=None if asked.rollout is None else Rollout(asked.rollout.base, asked.rollout.gpus),
        sharing=residency.shared_training(asked, JobRecord()),
    )
    snapshot = PoolSnapshot(
        pool.metadata.name,
        convert.policy(pool),
        nodes.usable,
        (view,),
        delegate=pool.spec.delegate,
        closed=nodes.closed,
        quotas=convert.quotas(pool),
        lending=None if asked.rollout is None else convert.lending(pool),
        sharing=sharing_terms.sharing(pool),
    )
    plan = plan_pool(snapshot, 0.0)
    if any(one.key == asked.key for one in plan.admissions):
        return None
    return next((one for one in plan.waiting if one.key == asked.key), None)


def fits(pool: GPUPool, asked: Desired, nodes: Nodes, most_actors: int = 0) -> Iterator[Finding]:
    """Yield whether a job could ever run in its pool, were it alone there; nothing of one without GPUs.

    ``most_actors``: ``spec.rollout.actors.max``.
    """
    if not asked.gpus and asked.sharing is None:
        return
    told = why_not(pool, asked, nodes)
    actors = asked.rollout is not None and asked.sharing is None
    if told is not None and not (actors and _about(told) == "actors"):
        yield _unfit(pool, asked, nodes, told)
        return
    gang = f"{asked.replicas} x {counted(asked.gpus_per_replica, 'GPU')}"
    if asked.sharing is not None:
        whole = f"a group of {asked.sharing.family!r}" + (f" and {gang}" if asked.gpus_per_replica else "")
        yield ok("sharing", f"room for {whole} is in the pool when it is free ({nodes})")
    elif asked.gpus_per_replica:
        yield ok("gang", f"{gang} fit into the pool when it is free ({nodes})")
    if asked.rollout is not None and asked.sharing is None:
        # In words of its own: with mode Shadow another field says how many there are.
        yield from actor_checks.room(
            nodes.sizes, asked.replicas, asked.gpus_per_replica, asked.rollout, most_actors
        )


def _about(told: Waiting) -> str:
    """Return which part of the job it is that has no room."""
    field = told.message.partition(":")[0]
    parts = {"spec.sharing": "sharing", "spec.rollout": "actors"}
    return next((part for start, part in parts.items() if field.startswith(start)), "gang")


def _unfit(pool: GPUPool, asked: Desired, nodes: Nodes, told: Waiting) -> Finding:
    name = pool.metadata.name
    if told.reason == NO_NODES:
        labels = ", ".join(f"{one.key}={one.value}" for one in pool.spec.node_selector)
        text = f"spec.pool: {told.message}"
        if nodes.closed:
            closed = some([node.name for node in nodes.closed], 3)
            return note("pool", f"{text} (not ready, cordoned or tainted: {closed})")
        cure = f"have nodes labelled {labels}, as its spec.nodeSelector says, or name another pool"
        return wrong("pool", text, as_cure(cure))
    about = _about(told)
    if told.reason not in NEVER:
        return note(about, told.message, as_cure(cure_of(told.reason).text))
    if about == "gang":
        return wrong(about, told.message, _SMALLER)
    if about == "actors":
        return wrong(about, told.message, as_cure("lower it, or take another pool"))
    return wrong(about, told.message, _other_family(pool, asked, nodes) or as_cure(f"evalstop pools {name}"))


def _other_family(pool: GPUPool, asked: Desired, nodes: Nodes) -> Cure | None:
    """Return which of the pool's families would do, or that none does."""
    if asked.sharing is None or pool.spec.sharing is None:
        return None
    names = [
        one.name
        for one in pool.spec.sharing.families
        if why_not(pool, replace(asked, sharing=replace(asked.sharing, family=one.name)), nodes) is None
    ]
    if not names:
        return as_cure("take another pool, or have its owner give the family a size that its nodes hold")
    return as_cure(f"of its families there would be room for {some(names, 3)}, or take another pool")
