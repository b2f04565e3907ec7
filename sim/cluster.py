"""The virtual cluster: how many GPUs there are and whether it matters on which node they are."""

from __future__ import annotations

from collections.abc import Sequence

from controller.frozen import dataclass
from controller.policy.actor_types import Part
from controller.policy.pool import FreeGpus, NodeRoom, SlotRoom, fit_job


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs as slots (``nodes`` empty), or nodes by name with their GPUs.

    On slots any free GPUs will do for any gang. On nodes a gang's members are packed by the production
    placement (`controller.policy.pool.placement`), and a member never spans nodes.
    """

    gpus: int
    nodes: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def slots(gpus: int) -> Cluster:
        """Return a cluster of alike GPUs.

        Raises:
            ValueError: fewer than one GPU.
        """
        if gpus < 1:
            raise ValueError(f"cluster.gpus: {gpus!r} is not allowed, expected at least 1 GPU")
        return Cluster(gpus)

    @staticmethod
    def of_nodes(gpus_per_node: Sequence[int]) -> Cluster:
        """Return nodes ``n0``, ``n1``, … with that many GPUs each.

        Raises:
            ValueError: no node, or one without a GPU.
        """
        for number, gpus in enumerate(gpus_per_node):
            if gpus < 1:
                raise ValueError(f"cluster.nodes[{number}]: {gpus!r} is not allowed, expected at least 1 GPU")
        if not gpus_per_node:
            raise ValueError("cluster.nodes: () is not allowed, expected at least one node")
        width = len(str(len(gpus_per_node) - 1))
        names = tuple((f"n{i:0{width}d}", gpus) for i, gpus in enumerate(gpus_per_node))
        return Cluster(sum(gpus_per_node), names)

    def room(self) -> SlotRoom | NodeRoom:
        """Return all of it, empty."""
        return NodeRoom(dict(self.nodes)) if self.nodes else SlotRoom(self.gpus)

    def gang(self, gpus: int) -> tuple[int, int]:
        """(replicas, GPUs of each) of a job of which only the GPUs are known.

        On slots one member; on nodes as few members as the largest node allows, all alike.
        """
        if not self.nodes or gpus == 0:
            return 1, gpus
        largest = max(g for _, g in self.nodes)
        replicas = -(-gpus // largest)
        while gpus % replicas:
            replicas += 1
        return replicas, gpus // replicas

    def holds(self, replicas: int, gpus_per_replica: int, actors: Part | None = None) -> bool:
        """Return whether a gang, and with it its base actors, could run were the cluster empty."""
        if not self.nodes:
            of_actors = 0 if actors is None else actors.pods * actors.gpus
            return replicas * gpus_per_replica + of_actors <= self.gpus
        if actors is not None:
            return fit_job(FreeGpus(dict(self.nodes)), (replicas, gpus_per_replica, actors, None)) is not None
        return not gpus_per_replica or replicas <= sum(g // gpus_per_replica for _, g in self.nodes)
