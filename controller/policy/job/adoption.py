"""Adoption of runs that were already running when the operator first saw them, or that it may only watch."""

from __future__ import annotations

from controller.policy.job.context import PlanContext
from controller.policy.job.record import AdmissionRecord
from controller.policy.types import Mode


def adopt(context: PlanContext) -> bool:
    """Count a run that nobody admitted as admitted, where suspending it would do harm; True if so.

    That is a workload referred to that ran before its RLHFJob was made (suspending it would lose the work
    since its last checkpoint), and any running workload in Shadow or Off, which touch nothing. Its GPUs are
    in use already: adopting it only makes the pool's books right. In Enforce, a workload that somebody
    unsuspends later is not adopted: GPUs are granted by the pool alone.
    """
    workload, record = context.observed.workload, context.record
    if workload is None or workload.suspended or workload.finished is not None:
        return False
    watch_only = context.desired.mode is not Mode.ENFORCE
    before_us = bool(context.desired.workload_ref) and record.attempt == 0
    if not (watch_only or before_us):
        return False
    nodes = tuple(p.node for p in context.observed.pods if p.node is not None and not p.terminal)
    queue = context.observed.queue
    offer = queue.offer if queue is not None else ""
    context.update(admission=AdmissionRecord(record.attempt, nodes, context.now, offer=offer))
    context.event("Adopted", "the workload runs already; it is watched, and its GPUs are counted")
    return True
