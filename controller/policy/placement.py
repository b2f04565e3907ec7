"""Which nodes a gang gets: whole gangs or nothing, packed to leave the largest gaps.

Members of a gang ask for the same number of GPUs each and never span nodes. Best fit: each member goes to
the node with the fewest free GPUs that still hold it, ties by name, so that large gangs find whole nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.policy.types import JobKey, JobView


def fit(free: Mapping[str, int], replicas: int, gpus_per_replica: int) -> tuple[str, ...] | None:
    """The node of each member, or None if the gang does not fit whole.

    A gang without GPUs fits anywhere and gets no nodes.
    """
    if gpus_per_replica == 0:
        return ()
    nodes: list[str] = []
    for name in sorted(free, key=lambda n: (free[n], n)):
        members = free[name] // gpus_per_replica
        nodes += [name] * min(members, replicas - len(nodes))
        if len(nodes) == replicas:
            return tuple(nodes)
    return None


class NodeRoom:
    """A `Room` over named nodes; remembers where each gang taken in this pass goes."""

    def __init__(self, free: Mapping[str, int]) -> None:
        """``free``: GPUs per node that nobody uses."""
        self.free = dict(free)
        self.placed: dict[JobKey, tuple[str, ...]] = {}

    def take(self, job: JobView) -> bool:
        nodes = fit(self.free, job.replicas, job.gpus_per_replica)
        if nodes is None:
            return False
        for node in nodes:
            self.free[node] -= job.gpus_per_replica
        self.placed[job.key] = nodes
        return True

    def give(self, job: JobView) -> None:
        held = job.bound or [(node, job.gpus_per_replica) for node in job.nodes]
        for node, gpus in held:
            if node in self.free:
                self.free[node] += gpus
