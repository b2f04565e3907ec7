"""The shape of each job's gang on a cluster."""

from __future__ import annotations

from controller.policy.pool import Shape
from controller.policy.wording import counted
from sim.cluster import Cluster
from sim.workload import Workload


def gangs(workload: Workload, cluster: Cluster) -> list[tuple[int, int]] | None:
    """(replicas, GPUs of each) by row; None where only the number of GPUs matters.

    Raises:
        ValueError: a job could not run even in the empty cluster; the message names its row.
    """
    if not cluster.nodes and not workload.gpus_per_replica and not workload.actors:
        if max(workload.gpus, default=0) > cluster.gpus:
            row = next(r for r, gpus in enumerate(workload.gpus) if gpus > cluster.gpus)
            raise ValueError(
                f"workload.gpus[{row}]: {workload.gpus[row]} is more than the cluster's "
                f"{counted(cluster.gpus, 'GPU')}"
            )
        return None
    shapes = []
    whole: dict[int, tuple[int, int]] = {}  # GPUs -> shape, where that is all that is known
    fitting: set[Shape] = set()
    for row, gpus in enumerate(workload.gpus):
        actors = workload.actors[row] if workload.actors else None
        if actors is not None:
            gpus -= actors.pods * actors.gpus
            if gpus < 0:
                raise ValueError(
                    f"workload.actors[{row}]: {actors.pods} x {counted(actors.gpus, 'GPU')}, expected at "
                    f"most the job's {counted(workload.gpus[row], 'GPU')}"
                )
        if gpus not in whole:
            whole[gpus] = cluster.gang(gpus)
        shape = whole[gpus]
        if workload.gpus_per_replica and gpus:
            each = workload.gpus_per_replica[row]
            if each < 1 or gpus % each:
                raise ValueError(
                    f"workload.gpus_per_replica[{row}]: {each}, expected a divisor of the job's "
                    f"{counted(gpus, 'GPU')}"
                )
            shape = gpus // each, each
        if (*shape, actors, None) not in fitting and not cluster.holds(*shape, actors):
            more = (
                ""
                if actors is None
                else f" and, for base actors, {actors.pods} x {counted(actors.gpus, 'GPU')}"
            )
            raise ValueError(
                f"workload.gpus[{row}]: {shape[0]} x {counted(shape[1], 'GPU')}{more} do not fit into the "
                f"empty cluster of {counted(cluster.gpus, 'GPU')} on "
                f"{counted(max(1, len(cluster.nodes)), 'node')}"
            )
        fitting.add((*shape, actors, None))
        shapes.append(shape)
    return shapes
