"""A run whose workload asks for fewer pods than its gang has: somebody scaled it down.

Its pods go and its GPUs stay granted, so it is told. Unlike one that somebody suspended it is not put back:
of a Job's spec the operator may change suspend and its pods' placement alone (admission policy
operator-job-changes).
"""

from __future__ import annotations

from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.wording import lacks_members


def told(context: PlanContext) -> bool:
    """Say in condition Running that an admitted run is scaled down; False: it is not."""
    workload, desired = context.observed.workload, context.desired
    if workload is None or not (what := lacks_members(workload.sizes, desired.replicas)):
        return False
    name = (desired.workload_ref or desired.key).replace("/", " ").rpartition(" ")[2]
    message = (
        f"Job {name}: {what}: somebody scaled it, and it keeps its GPUs; set it back, or, to stop the run, "
        "set spec.runState: Stopped (evalstop stop)"
    )
    context.conditions.set(c.RUNNING, False, c.SCALED, message, warning=True)
    return True
