"""What to do about a condition's reason. A reason without an entry needs nobody to do anything."""

from __future__ import annotations

from controller.cli.job_view import Reading
from controller.policy.job import ACCEPTED, FAILED, METRICS, Condition, remedy

# {job} is `` NAME -n NAMESPACE``, {ns} `` -n NAMESPACE``; {rotation} the trainer's setting, by layout.
CURES = {
    "PoolNotFound": "evalstop pools lists the pools there are; set spec.pool: kubectl edit rlhfjob{job}",
    "PoolNotUsable": "whoever runs the pool: evalstop doctor names what is wrong with it",
    "NamespaceNotAllowed": "ask for the namespace to be added to spec.allowedNamespaces of the GPUPool",
    "PriorityTooHigh": "lower spec.priority, or ask for a higher maxPriority in the GPUPool",
    "InvalidSpec": "mend the field that the message names: kubectl edit rlhfjob{job}",
    "InvalidStopRule": "mend spec.stopRule or spec.modifiers: kubectl edit rlhfjob{job}",
    "DurationMissing": "set spec.expectedDurationSeconds: kubectl edit rlhfjob{job}",
    "WorkloadNotFound": "make the workload that spec.workload.ref names, or a new RLHFJob with a template",
    "WorkloadGone": "copy the checkpoints yourself, or have the run go on: evalstop resume{job}",
    "NoPods": "the trainer has no pod yet: kubectl get pods{ns} -l evalstop.dev/job={name}",
    "Unreachable": "evalstop doctor{job} reads the trainer's metrics through the API server",
    "Timeout": "evalstop doctor{job} reads the trainer's metrics through the API server",
    "NotPrometheus": "evalstop doctor{job} shows what the page lacks (docs/use/trainer-contract.md)",
    "NoSpeaker": "have the trainer's client export rlhf_run_info, or set spec.scrape.speaker to who speaks",
    "SeveralSpeakers": "let one process report (docs/use/trainer-contract.md), or set spec.scrape.speaker",
    "RefusedAddress": "EVALSTOP_SCRAPE_ADDRESSES of the operator decides which pod addresses are read",
    "MetricMissing": "correct spec.metrics, or have the trainer export it (docs/use/trainer-contract.md)",
    "NoEvalsYet": "nothing to do until its first eval; evalstop doctor{job} shows what it exports",
    "CheckpointMissing": "{rotation}",
    "CheckpointIncomplete": "evalstop doctor{job}; spec.checkpoints.layout must be the trainer's own",
    "DigestMismatch": "the trainer wrote into a finished checkpoint: see docs/use/checkpoints.md",
    "CopyDamaged": "see whether the volume or object store of spec.checkpoints.retention is sound",
    "OutOfSpace": "make room on the volume that the message names, or enlarge its claim",
    "StoreUnreachable": "evalstop doctor{job}; kubectl get pvc{ns}",
    "PermissionDenied": "set securityContext.runAsUser in the template, or spec.checkpoints.runAs.user, to "
    "the user that owns the files: kubectl edit rlhfjob{job}",
    "OtherOwner": "set spec.checkpoints.runAs.user to the user that the message names: kubectl edit "
    "rlhfjob{job}",
    "UserRefused": "have the trainer write as a user that the namespace lets in (docs/use/checkpoints.md)",
    "ClaimForOnePod": "use a claim with access mode ReadWriteMany or ReadWriteOnce",
    "AccessStalled": "kubectl describe pods{ns} -l evalstop.dev/component=access says why it hangs",
    "MetricsNotRead": "evalstop doctor{job} reads the trainer's metrics through the API server",
    "VerdictOutdated": "evalstop doctor{job}; see whether the trainer still makes evals",
    "NoFreshScrape": "evalstop doctor{job} reads the trainer's metrics through the API server",
    "ModeForbids": "evalstop mode{job} Enforce, where the pool's modeCap allows it",
    "NothingRetained": "evalstop resume{job} --from latest goes on without a retained checkpoint",
    "TooLarge": "the gang is larger than the pool, or than its quota's limit: evalstop pools {pool}",
    "AtQuotaLimit": "its namespace has all it may: evalstop pools {pool} shows who has what",
    "NodesClosed": "nodes of the pool take no new pods: see kubectl get nodes; kubectl uncordon opens one",
    "GPUsUsedByOthers": "pods of nobody's hold the pool's GPUs: evalstop pools {pool} names them",
    "GangTimedOut": "evalstop doctor{job} shows why its pods found no node; it is tried again by itself",
    "QueueTakesWorkload": "Kueue would take the workload: see docs/use/checkpoints.md, Kueue",
    "NoVerifiableCheckpoint": "evalstop doctor{job} says why no checkpoint is in safety; the run goes on",
    "PlaceMissing": "mount the claim in the trainer's template, or correct spec.checkpoints",
    "ClaimMissing": "make the claim that the message names: kubectl get pvc{ns}",
    "GangMismatch": "make the template's completions and parallelism equal spec.gang.replicas",
    "TemplateRefused": "mend spec.workload.template as the API server says, in a new RLHFJob",
    "EndUnknown": "evalstop resume{job} --from latest has it go on; a template's time to live is left out",
    "StartedAgain": "a stopped run goes on by evalstop resume{job}; leave its workload's spec.suspend alone",
    "MembersEnded": "delete its workload while it is suspended: it is made anew, and all members start",
    "WaitingForController": "see whether kube-controller-manager runs: the workload's status stands still",
    "AccessPodUnschedulable": "make room on the node that the message names: kubectl get pods{ns} -o wide",
    "UnsupportedKind": "use a workload kind that docs/use/api.md names",
    "PageTooLarge": "have the trainer export fewer series (docs/use/trainer-contract.md)",
    "ForeignPage": "evalstop doctor{job}: another trainer answers there (hostNetwork?), or run.json is old",
    "OtherAttempt": "have the trainer's client read run.json at each start (docs/use/trainer-contract.md)",
    "EarlierLife": "kubectl get pods{ns} -l evalstop.dev/job={name}: an older process answers; end it",
    "NoNewEvals": "evalstop doctor{job} reads the page; see whether the trainer's evals and its scorer work",
    "PageWithoutIdentity": "have the trainer's client export rlhf_run_info (docs/use/trainer-contract.md)",
    "BestCheckpointLost": "{rotation}",
    "LocationShared": "give each RLHFJob a location of its own: kubectl edit rlhfjob{job}",
    "LayoutAmbiguous": "name the layout in spec.checkpoints.layout: kubectl edit rlhfjob{job}",
    "LocationTaken": "give each RLHFJob a location of its own: kubectl edit rlhfjob{job}",
    "LocationNotMounted": "mount the claim in the trainer's template, or correct spec.checkpoints",
    "RetentionGivenUp": "the pin that the message names stays: copy it by hand before its volume goes",
    "AccessFailed": "kubectl describe pods{ns} -l evalstop.dev/component=access says why its pod ended",
    "AccessJobRefused": "mend what the message names: kubectl describe quota{ns}, or an admission webhook",
    "AccessRefused": "mend what the API server names: kubectl describe quota{ns}, or an admission webhook",
    "AccessNameTaken": "delete the Job that the message names: it belongs to another RLHFJob",
    "BadRequest": "correct the store, path or layout: kubectl edit rlhfjob{job}",
    "PodsStuck": "kubectl get pods{ns} -l evalstop.dev/job={name} -o wide; is the node of each there?",
    "NoUsableNodes": "evalstop pools {pool} says which nodes are there, and why none can be used",
    "Deactivated": "kubectl get workloads.kueue.x-k8s.io{ns}: set spec.active to true; docs/operate/kueue.md",
}

REFUSED = "mend what the message names: kubectl edit rlhfjob{job}"  # of any other reason not to be accepted
CURES |= dict.fromkeys(
    (
        "NoContainers",
        "NoMetricsPort",
        "PriorityClassNotAllowed",
        "ReservedName",
        "RetentionReachable",
        "RunVolumeMissing",
        "WorkloadMissing",
        "WorkloadNotLabelled",
    ),
    REFUSED,
)

# The same for whoever reads the findings of `evalstop doctor JOB`: those name that command.
EXAMINING = {
    **dict.fromkeys(
        ("Unreachable", "Timeout", "MetricsNotRead", "NoFreshScrape"),
        "does the trainer still answer? kubectl logs{ns} -l evalstop.dev/job={name}",
    ),
    "NotPrometheus": "have the page be in Prometheus' text format (docs/use/trainer-contract.md)",
    "NoEvalsYet": "nothing to do until its first eval",
    "NoNewEvals": "see whether the trainer's evals and its scorer work",
    "VerdictOutdated": "see whether the trainer still makes evals",
    "ForeignPage": "another trainer answers there (hostNetwork?), or it has not read run.json at its start",
    "CheckpointIncomplete": "set spec.checkpoints.layout to the trainer's own: kubectl edit rlhfjob{job}",
    "StoreUnreachable": "kubectl get pvc{ns}",
    "GangTimedOut": "see kubectl get pods{ns} -l evalstop.dev/job={name}; it is tried again by itself",
    "NoVerifiableCheckpoint": "kubectl get jobs{ns} -l evalstop.dev/job={name}; the run goes on",
}

# What Kueue lacks or refuses: the messages name the field, the page tells how it is all set up.
_KUEUE = "kubectl get localqueues{ns}; kubectl get clusterqueues,admissionchecks; docs/operate/kueue.md"
CURES |= dict.fromkeys(
    (
        "KueueNotInstalled",
        "CheckNotFound",
        "CheckMissing",
        "QueueNotFound",
        "QueueStopped",
        "QueueLabelMissing",
        "ClusterQueueNotFound",
        "ClusterQueueStopped",
        "ClusterQueueInactive",
        "QuotaMissing",
        "QuotaTooSmall",
        "FlavorMismatch",
        "NodeSelectorMismatch",
        "ParametersNotSupported",
    ),
    _KUEUE,
)

# Reasons of conditions that are False and need nobody: what they wait for comes by itself, or somebody wanted
# it so. A test holds that every reason the operator may write is in one of the two.
NEEDS_NOBODY = frozenset(
    {
        "AwaitingFreshEval",
        "AwaitingNextEval",
        "BackingOff",
        "BeganAnew",
        "BehindHead",
        "CalledOff",
        "ClaimingLocation",
        "Failing",
        "Finished",
        "FinishedFirst",
        "GaveWay",
        "InProgress",
        "Interrupted",
        "NewBest",
        "NewLife",
        "NoLongerDeclining",
        "NobodyWaits",
        "NotAccepted",
        "NotAdmitted",
        "NotDemoted",
        "NotJudged",
        "NotQueued",
        "NothingToResume",
        "Pinning",
        "PodsTerminating",
        "Preempted",
        "Preempting",
        "QueueChanged",
        "Queued",
        "Recovered",
        "Restarting",
        "Restoring",
        "Resumed",
        "ResumedFirst",
        "Shadow",
        "Starting",
        "Stopped",
        "UserRequest",
        "WaitingForCheckpoint",
        "WaitingForGPUs",
        "WaitingForQueue",
        "WaitsItsTurn",
        "Withdrawn",
    }
)


def asks(job: Reading, condition: Condition) -> bool:
    """Return whether a condition of a job asks something of people: all is not well, and they can mend it."""
    if condition.type == FAILED:
        return condition.status and condition.reason in CURES
    if condition.type == METRICS and not trains(job):
        return False  # a run that is over, or waits, has no trainer whose metrics could be read
    return not condition.status and (condition.type == ACCEPTED or condition.reason in CURES)


def trains(job: Reading) -> bool:
    """Return whether a trainer of the job should be there: it has GPUs, and has not ended."""
    return job.record.admission is not None and job.record.finished is None


def cure(job: Reading, reason: str, *, examining: bool = False) -> str:
    """Return what to do about the reason of a condition that `asks`.

    Args:
        job: the job.
        reason: of the condition.
        examining: it is `evalstop doctor JOB` that says so: the command does not name itself.
    """
    lost = job.record.lost_bests
    if reason == "BestCheckpointLost" and lost and lost[-1] in job.record.changed_bests:
        reason = "DigestMismatch"  # it was not removed, but written into
    text = CURES.get(reason, REFUSED)
    if examining:
        text = EXAMINING.get(reason, text)
    name = f" {job.name}{job.flags()}"
    layout = job.record.layout_of(str((job.spec.get("checkpoints") or {}).get("layout") or ""))
    return text.format(
        job=name,
        ns=job.flags(),
        name=job.name,
        pool=job.spec.get("pool", ""),
        rotation=remedy(layout),
    )
