"""Runs whose trainer has ended while something of their pods goes on, and with it the hold on their GPUs.

A pod completes once all of its ordinary containers have ended: a proxy or TensorBoard beside the trainer
keeps it, and its GPUs, for ever. So does a member of a gang that hangs after the one that was read has ended.
Told only once the page is not read any more: until then the run may be at its last eval.
"""

from __future__ import annotations

from controller.policy.job import endings
from controller.policy.job.context import PlanContext
from controller.policy.job.types import PodView
from controller.policy.types import Problem
from controller.policy.wording import agreeing, counted, some

NAMED = 5  # pods, or containers


def ended(context: PlanContext) -> Problem | None:
    """Return that the trainer has ended, and what goes on all the same; None: it has not, or nothing does."""
    admission = context.record.admission
    if admission is None or endings.has_ended(context):
        return None
    ours = [p for p in context.observed.pods if p.admission in (None, admission.number)]
    left = [p for p in ours if not p.terminal and p.deleting_since is None]
    for pod in left:
        if pod.trainer_end is not None:
            end = pod.trainer_end
            message = (
                f"the trainer's container {end.container} of pod {pod.name} has ended (exit code "
                f"{end.code}), and the pod does not complete, for {some(end.going, NAMED)} of it "
                f"{agreeing(len(end.going), 'runs', 'run')} on: its GPUs stay held"
            )
            return Problem("TrainerEnded", message)
    return _member(context, ours, left) if admission.running_since is not None else None


def _member(context: PlanContext, ours: list[PodView], left: list[PodView]) -> Problem | None:
    """Return that some members of a gang that ran whole have ended well, and which run on."""
    workload, size = context.observed.workload, context.desired.replicas
    done = max(sum(1 for p in ours if p.succeeded), len(workload.completed) if workload is not None else 0)
    left = [p for p in left if p.node is not None]  # one that waits for a node runs nowhere
    if not left or not 0 < done < size:
        return None
    names = some(sorted(p.name for p in left), NAMED)
    message = (
        f"{done} of {counted(size, 'member')} {agreeing(done, 'has', 'have')} ended well, and "
        f"{agreeing(len(left), 'pod', 'pods')} {names} {agreeing(len(left), 'runs', 'run')} on: the run does "
        "not end before, and its GPUs stay held"
    )
    return Problem("MembersRunOn", message)
