"""Remedies for a failed access Job, by its reason; the conditions of its retries say them."""

from __future__ import annotations

from collections.abc import Mapping

from controller.policy.job.cures import key_of
from controller.policy.job.rotation import LEAVE_ALONE, remedy
from controller.policy.types import Problem

REMEDIES: Mapping[str, str] = {
    "OutOfSpace": "make room on the volume that the message names, or enlarge its claim",
    "StoreUnreachable": "see that the volume or the object store answers, and that its credentials are valid",
    "PermissionDenied": "set securityContext.runAsUser in the template to the user of the files, or "
    "spec.checkpoints.runAs.user; and make the folders writable for it",
    "OtherOwner": "set spec.checkpoints.runAs.user to the user that the message names",
    "UserRefused": "have the trainer write as a user that the namespace lets in, and name it in "
    "securityContext.runAsUser of the template",
    "AccessFailed": "see why the pod of the access Job ended: image, node, memory, quota of the namespace",
    "AccessJobRefused": "mend what the message names: a quota, a policy or an admission webhook",
    "AccessRefused": "mend what the API server names: a quota, a policy or an admission webhook",
    "AccessStalled": "see whether the pod of the access Job was scheduled and its volumes mounted",
    "AccessNameTaken": "delete the Job of that name, which belongs to another RLHFJob",
    "ClaimMissing": "make the claim that the message names",
    "ClaimTerminating": "keep its volume before the last pod ends (kubectl patch pv, with "
    "persistentVolumeReclaimPolicy Retain), and copy the checkpoints from a pod that has it mounted; a new "
    "RLHFJob needs another claim",
    "ClaimForOnePod": "use a claim with access mode ReadWriteMany or ReadWriteOnce",
    "PlaceMissing": "mount the claim in the trainer's template, or correct spec.checkpoints",
    "CheckpointMissing": "{rotation}",
    "EvalStopFolderGone": LEAVE_ALONE,
    "OtherFolder": "name the folder that the trainer saves to in spec.checkpoints.location, in a new RLHFJob",
    "OtherLayout": "name the trainer's own layout in spec.checkpoints.layout, in a new RLHFJob",
    "CopyGone": "resume from another checkpoint (evalstop resume --from latest, or --step with one that is "
    "still there); the pin of the same step is tried by itself",
    "CheckpointsAreLinks": "have the trainer write its checkpoints into the folder itself, or name the "
    "folder that the links lead to in spec.checkpoints.location, in a new RLHFJob",
    "CheckpointMisnamed": "have the trainer save each checkpoint into a folder of its own, named by its step",
    "ReportedFirst": "save each checkpoint before its eval is reported; or {rotation}",
    "EvalProcess": "have each process that evaluates report as the one that saves, by its "
    "client.environment(), or have that one report the scores",
    "NotSaved": "save a checkpoint at each step that is evaluated, before the eval is reported; or set "
    "spec.checkpoints.maxStepLag to the steps by which it may be older",
    "PinMissing": "take the step out of spec.checkpoints.pins (evalstop pin --remove): the trainer keeps no "
    "checkpoint of it",
    "CheckpointIncomplete": "have the trainer write save records (docs/use/trainer-contract.md), or correct "
    "spec.checkpoints.layout",
    "DigestMismatch": "have the trainer never write into a finished checkpoint",
    "CopyDamaged": "see whether the volume or object store that the message names is sound",
    "LayoutAmbiguous": "name the layout in spec.checkpoints.layout",
    "LocationTaken": "delete the other RLHFJob, if it is over, or give this one a location of its own in a "
    "new RLHFJob",
    "Interrupted": "nothing: it goes on where it was",
    "BadRequest": "correct the store, path or layout in spec.checkpoints; if they are right, "
    "report the message",
}

HELPS = ". What helps: "  # between what is wrong and its remedy


def retry(problem: Problem, tries: int, delay: float, layout: str = "") -> str:
    """Return the message of a condition for a failure after which the same is tried again.

    Args:
        problem: why it failed.
        tries: how often it has failed.
        delay: seconds until the next try.
        layout: of the checkpoint folder, where that says what helps.
    """
    message = f"{problem.message} (try {tries} failed; the next in {delay:.0f} s)"
    return of(Problem(problem.reason, message), layout)


def of(problem: Problem, layout: str = "") -> str:
    """Return the message with what would help, where that is known."""
    help_ = REMEDIES.get(key_of(problem.reason, problem.message), REMEDIES.get(problem.reason))
    if help_ is None:
        return problem.message
    return f"{problem.message}{HELPS}{help_.format(rotation=remedy(layout))}"
