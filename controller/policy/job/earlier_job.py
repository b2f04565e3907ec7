"""A Job of an earlier RLHFJob of the same name: how long its removal may take before it is told.

A new RLHFJob's workload has its name, so it is made once the earlier one's is gone. The garbage collector
removes that within seconds, which nobody needs to hear of. Where a finalizer holds it, or a deletion in the
foreground waits for its pods, it may take for ever: meanwhile its trainer goes on.
"""

from __future__ import annotations

from controller.frozen import dataclass
from controller.policy.types import Problem

EARLIER_JOB_REMAINS = "EarlierJobRemains"
REMOVED_WITHIN = 15.0  # s that the removal of such a Job takes at most, as a rule
FOREGROUND = "foregroundDeletion"  # Kubernetes' own finalizer: what the Job owns is deleted first
_NAMED = 3  # finalizers


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A Job whose RLHFJob is gone, as the API server has it.

    Attributes:
        name: its own, and the RLHFJob's.
        since: s, from when on it has been in the way: its deletion, or the making of the new RLHFJob.
        deleted: its deletionTimestamp; "": nobody has asked for its deletion yet.
        finalizers: its own.
    """

    name: str
    since: float
    deleted: str = ""
    finalizers: tuple[str, ...] = ()


def earlier_job_remains(found: EarlierJob, now: float) -> Problem | None:
    """Return that such a Job keeps the new one from being made; None: it may be about to go."""
    if now < found.since + REMOVED_WITHIN:
        return None
    message = (
        f"Job {found.name}: it is of an earlier RLHFJob of this name, and this one is started once it is "
        f"gone; {_held_by(found)}; until then its pods may hold GPUs and write to the checkpoint folder"
    )
    return Problem(EARLIER_JOB_REMAINS, message)


def _held_by(found: EarlierJob) -> str:
    """Return what its removal waits for, a clause."""
    if not found.deleted:
        return (
            "the cluster's garbage collector has not deleted it yet: see whether kube-controller-manager runs"
        )
    since = f"its deletion was asked for at {found.deleted}"
    others = [one for one in found.finalizers if one != FOREGROUND]
    waits = []
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        waits.append(f"metadata.finalizers, {', '.join(others[:_NAMED])}{more}, to be taken away")
    if FOREGROUND in found.finalizers:
        waits.append(f"its pods to end first ({FOREGROUND})")
    return f"{since}, and waits for {' and for '.join(waits)}" if waits else since
