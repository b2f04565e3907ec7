"""The operator itself: a workload waits suspended, and runs while the operator has it unsuspended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from controller import names, workloads
from controller.api.gpupool import GPUPool
from controller.delegates.base import Adapter, Known, NotYet, Object, Placement, Write
from controller.kube.resources import JOBS
from controller.policy.types import Delegate, Problem


class Builtin:
    """Jobs wait in their pool's own queue."""

    delegate: ClassVar[Delegate] = Delegate.BUILTIN

    def manages(self, workload: Object) -> bool:
        return not workloads.queue_of(workload)

    def problem(self, workload: Object, pool: GPUPool, queue: str, where: str) -> Problem | None:
        found = workloads.queue_of(workload)
        if not found:
            return None
        return Problem(
            "QueueLabelNotExpected",
            f"{where}.metadata.labels[{names.QUEUE_LABEL}]: {found!r}, but GPUPool {pool.metadata.name!r} "
            f"has delegate {pool.spec.delegate}, so Kueue and the operator would start and suspend it "
            "against each other; leave the label out, or use a pool with delegate Kueue",
        )

    def start(self, workload: Object, place: Placement, known: Known, now: float) -> Sequence[Write]:
        if not workloads.view(workload).suspended:
            return ()
        why = workloads.start_problem(workload)
        if why is not None:
            raise NotYet(f"its workload cannot be started yet, {why}")
        tolerations = [workloads.pool_toleration(place.pool)]
        labels = {names.LABEL_POOL: place.pool}
        patch = workloads.start_patch(workload, place.number, place.node_selector, tolerations, labels)
        return (Write(JOBS, workload, patch),)

    def stop(self, workload: Object, reason: str, again: bool, known: Known, now: float) -> Sequence[Write]:
        if workloads.view(workload).suspended:
            return ()
        return (Write(JOBS, workload, workloads.suspend_patch(workload)),)


ADAPTER: Adapter = Builtin()
