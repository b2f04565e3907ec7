"""A run file that somebody deleted under a run: it is made again, with what it said.

A pod mounts it before any container starts: without it, the next start of a pod waits for ever and holds its
GPUs. A run that the operator never started has none, and needs none.
"""

from __future__ import annotations

from controller.policy.job.context import PlanContext
from controller.policy.job.types import WriteRun


def make_again(context: PlanContext) -> None:
    """Write the run file of a run under way if it is gone, and say so."""
    record = context.record
    started = record.admission is not None and record.run.attempt == record.admission.number
    if not started or not context.observed.run_gone:
        return
    if not any(isinstance(action, WriteRun) for action in context.actions):
        context.act(WriteRun(record.run))
    name = context.desired.key.rpartition("/")[2]
    message = (
        f"ConfigMap {name}-run, which its pods mount, was deleted: it is made again, and a pod that waits "
        "for it starts by itself"
    )
    context.event("RunFileGone", message, warning=True)
