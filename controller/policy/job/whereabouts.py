"""Whereabouts of an admitted gang, for people: the nodes of its bound pods; of those to come, the plan.

The plan is a promise only where the pool's scheduler asks the extender. Any other binds pods where it likes,
and who empties a planned node by its name would then empty the wrong one.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy import wording
from controller.policy.job.context import PlanContext
from controller.policy.job.record import AdmissionRecord


def note_bound(context: PlanContext) -> None:
    """Write down on which nodes the pods of the admission are."""
    admission = context.record.admission
    assert admission is not None
    ours = (p for p in context.observed.pods if p.admission is None or p.admission == admission.number)
    # Sorted: a pod that is made again on the same node changes nothing.
    nodes = tuple(sorted(p.node for p in ours if p.node is not None and not p.terminal))
    if nodes != admission.bound_nodes:
        context.update(admission=replace(admission, bound_nodes=nodes))


def nodes_of(admission: AdmissionRecord | None) -> tuple[tuple[str, ...], bool]:
    """Return the nodes of a gang, each once, and whether pods of it are there: else they are only planned."""
    if admission is None:
        return (), False
    told = admission.bound_nodes or admission.nodes
    return tuple(dict.fromkeys(node for node in told if node)), bool(admission.bound_nodes)


def place(admission: AdmissionRecord) -> str:
    """Return where a gang is: ``on node-3``, ``planned on node-1``; "": neither is known."""
    planned = f"planned on {wording.places(admission.nodes)}" if any(admission.nodes) else ""
    if not admission.bound_nodes:
        return planned
    here = f"on {wording.places(admission.bound_nodes)}"
    to_come = len(admission.nodes) - len(admission.ended) - len(admission.bound_nodes)
    return f"{here} so far, {planned}" if admission.running_since is None and to_come > 0 else here
