"""Remedies by reason: data, so that every surface says the same and a script can carry it out.

Decided here: whether people can do something about a reason at all (`CURES`), what, and by which command. A
command holds ``<…>`` where only the owner knows the value; what the message itself tells is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.policy.job.earlier_job import EARLIER_JOB_REMAINS
from controller.policy.job.gone_copies import NOT_PUT_BACK
from controller.policy.job.made_anew import lacking
from controller.policy.job.pod_words import NOT_MATCHED, NOT_TOLERATED, rules_out
from controller.policy.job.rotation import LEAVE_ALONE, remedy
from controller.policy.wording import (
    ANEW,
    ENDED_WITHOUT,
    EVAL_PROCESS,
    FOLDER_GONE,
    LASTED,
    LINKS,
    MISNAMED,
    NO_CHECKPOINT,
    NONE_OF_THIS_RUN,
    OUT_OF_DATE,
    REPORTED_FIRST,
    SKIPPED,
    STANDS_STILL,
    TWO_VALUES,
    UNLABELLED,
    meant,
)

# What a message tells of a cure's blanks, besides the value that it proposes. `re` compiles them when a
# cure is filled in, which most commands do without.
_IN_MESSAGE = (
    r"containers\[(?P<container>\d+)\]",
    r"containers\[\d+\]\.(?P<field>\w+)\[(?P<index>\d+)\](?P<value_of>\.value)?",
    r"^spec\.metrics\[(?P<metric_index>\d+)\]",
    r"^spec\.metrics\[\d+\]\.direction: .* its direction is (?P<direction>Minimize|Maximize)",
    r"^spec\.stopRule\.(?P<rule>\w+)\.(?P<parameter>\w+): ",
    r"^spec\.modifiers\[(?P<modifier_index>\d+)\]\.(?P<modifier>\w+)\.(?P<parameter>\w+): ",
    r"^spec\.priority: .*, at most (?P<ceiling>-?\d+)$",
    r": (?P<gpus>[1-9]\d*) in all, expected \d+ as in spec\.gang",
    r"^claim [a-z0-9.-]+ \(volume (?P<volume>[a-z0-9.-]+)\) is being deleted",
    r"^pods of an earlier attempt run on, .* owns them: (?P<orphans>[a-z0-9., -]+?)(?: and \d+ more)?;",
    r"\bpod (?P<crashed>[a-z0-9.-]+) ended with exit code \d",
    r"members? ha(?:s|ve) ended well, and pods? (?P<member>[a-z0-9.-]+)",
    r"pods? (?P<unlabelled>[a-z0-9., -]+?)(?: and \d+ more)? of Job [a-z0-9.-]+ lacks? label",
    r"^the node of pod \S+ is not ready: (?P<lost_node>[a-z0-9.-]+) is down",
    r"^worker group (?P<group>[a-z0-9.-]+): ",
    r"expected (?P<replicas>\d+) as in spec\.gang\.replicas",
    r"\bspec\.(?:completions|parallelism): (?P<replicas>\d+)(?:;|$)",
    r"step (?P<pinned>\d+) of spec\.checkpoints\.pins",
    r"^Job (?P<workload>[a-z0-9.-]+?)(?: lacks \d+ fields)?(?:: |\.spec\.)",
    r"^spec\.gang\.gpusPerReplica: .*at most (?P<most>\d+) is right",
)
# Of what the message does not tell: where most jobs have it.
_USUAL = {"container": "0", "metric_index": "0"}


@dataclass(frozen=True, slots=True)
class Cure:
    """A remedy in words, and where there is one the command, or change of the manifest, that carries it out.

    Attributes:
        text: a sentence without a full stop; {rotation} stands for the trainer's own setting.
        command: a shell command, with {job} for `` NAME -n NAMESPACE``, {ns} for `` -n NAMESPACE``, {name}
            and {namespace} for those alone, {pool} for the pool. "": there is none. Beside a patch it only
            shows more.
        patch: where the field is fixed once the job is accepted: a JSON patch (RFC 6902) for the manifest of
            another RLHFJob. "": there is none.
        blank: the ``<…>`` in them that a value proposed by the message fills.
        apply: the command that applies the patch to the owner's manifest and puts the result in the job's
            place; of a cure that is filled in.
        of_job: the patch is a strategic merge patch, which adds to lists that may not be there, of the
            manifest of the Job that spec.workload.ref names.
    """

    text: str
    command: str = ""
    patch: str = ""
    blank: str = ""
    apply: str = ""
    of_job: bool = False

    def filled(self, name: str, namespace: str, pool: str, layout: str, message: str = "") -> Cure:
        """Return the cure for one job.

        Args:
            name: of the RLHFJob.
            namespace: its namespace.
            pool: of its spec.
            layout: of its checkpoint folder, "": not known.
            message: of the mark or condition, which may tell values; "": none.
        """
        ns = f" -n {namespace}"
        words = {"job": f" {name}{ns}", "ns": ns, "name": name, "namespace": namespace, "pool": pool}
        values = {"name": name} | _values(self.blank, message)
        if self.of_job:
            values["lacking"] = lacking(message, name)
        patch = _fill(self.patch, values)
        return replace(
            self,
            text=self.text.format(rotation=remedy(layout), **words),
            command=_fill(self.command.format(**words), values),
            patch=patch,
            apply=(_APPLY_TO_JOB if self.of_job else _APPLY).format(ns=ns, patch=patch) if patch else "",
        )

    @property
    def how(self) -> tuple[str, ...]:
        """The lines to paste that carry it out: the command, and the change of a manifest beside it."""
        if not self.command:
            return tuple(filter(None, (self.apply or self.patch,)))
        return tuple(filter(None, (self.command, self.apply)))

    @property
    def line(self) -> str:
        """The cure on one line or two: what, then how."""
        first = ": ".join(filter(None, (self.text, *self.how[:1])))
        return "\n".join(filter(None, (first, *self.how[1:])))


_APPLY = (
    "kubectl patch{ns} -f <manifest> --local --type json -p '{patch}' -o yaml | "
    "kubectl replace{ns} --force -f -"
)
_APPLY_TO_JOB = _APPLY.replace("<manifest>", "<job_manifest>").replace("json", "strategic")


def _values(blank: str, message: str) -> dict[str, str]:
    """Return what a message tells of a cure's blanks."""
    values = dict(_USUAL)
    for pattern in _IN_MESSAGE:
        if (found := re.search(pattern, message)) is not None:
            values |= {name: text or "" for name, text in found.groupdict().items()}
    if "orphans" in values:
        values["orphans"] = values["orphans"].replace(",", "")
    if "unlabelled" in values:
        values["unlabelled"] = values["unlabelled"].replace(",", "")
    values["value_of"] = values.get("value_of", "").replace(".", "/")
    if blank and (value := meant(message)):
        values[blank] = value
    return values


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


# Whose move it is, where it is not the run's owner's.
_OF_THE_POOL = frozenset(
    {
        "AtQuotaLimit",
        "CappedOff",
        "GPUsUsedByOthers",
        "GroupCannotStart",
        "GroupCrashes",
        "GroupPodWaits",
        "NamespaceNotAllowed",
        "NoScheduler",
        "NoUsableNodes",
        "NodesClosed",
        "PoolNotUsable",
        "StopBudgetSpent",
        "TurnsLost",
    }
)
_OF_THE_CLUSTER = frozenset(
    {
        "AccessJobRefused",
        "AccessPodUnschedulable",
        "AccessRefused",
        "CopyDamaged",
        EARLIER_JOB_REMAINS,
        "GroupDoesNotAnswer",
        "GroupNotReady",
        "NodeNotReady",
        "PodsRefused",
        "PodsStuck",
        "RefusedAddress",
        "ResidencyStuck",
        "StepsNotServed",
        "StoreUnreachable",
        "WaitingForController",
        "WaitingForSuspend",
        "WebhookFails",
    }
)


def whose_move(reason: str) -> str:
    """Return who can do something about a reason: "its owner", as most often, or who runs what."""
    if reason in _OF_THE_POOL:
        return "the pool's owner"
    return "whoever runs the cluster" if reason in _OF_THE_CLUSTER else "its owner"


def key_of(reason: str, message: str) -> str:
    """Return the key of a reason's cure: another one where its message shows what the reason alone does
    not."""
    if reason == "Unschedulable" and not rules_out(message):
        return reason  # nodes outside the pool never match: its template may be right
    for of, part, key in BY_MESSAGE:
        if reason in of and part in message:
            return key
    return reason


_MISSING = frozenset({"CheckpointMissing", "CheckpointIncomplete", "BestCheckpointLost"})
_GONE = frozenset({"CheckpointMissing", "CheckpointIncomplete", "DigestMismatch"})
_OF_A_JOB = frozenset(
    {
        "GangGPUsMismatch",
        "GangMismatch",
        "PriorityClassMissing",
        "PriorityClassNotAllowed",
        "RunVolumeMissing",
        "SchedulerMissing",
        "WorkloadNotLabelled",
    }
)
_UNANSWERED = frozenset({"Unreachable", "Timeout"})
# (reasons, what the message holds, key): the first one counts.
BY_MESSAGE = (
    (_MISSING, FOLDER_GONE, "EvalStopFolderGone"),
    (_OF_A_JOB, ANEW, "JobLacksFields"),
    (frozenset({"GangMismatch"}), "Job ", "JobScaled"),  # else it is the template
    (_GONE, NOT_PUT_BACK, "CopyGone"),
    (_MISSING | {"StartUnknown"}, EVAL_PROCESS, "EvalProcess"),
    (_MISSING, "what lies there is", "OtherLayout"),
    (_MISSING, LINKS, "CheckpointsAreLinks"),
    (_MISSING, MISNAMED, "CheckpointMisnamed"),
    (_MISSING, NO_CHECKPOINT, "OtherFolder"),
    (_MISSING, NONE_OF_THIS_RUN, "OtherFolder"),
    (_MISSING, "of spec.checkpoints.pins", "PinMissing"),
    (_MISSING, REPORTED_FIRST, "ReportedFirst"),
    (_MISSING, SKIPPED, "NotSaved"),
    (frozenset({"StoreUnreachable"}), "the template names", "OtherFolder"),
    (frozenset({"WaitingForGroup"}), "it is not ready", "GroupStartsAnew"),
    (_UNANSWERED, "only the pod itself reaches", "LoopbackOnly"),
    (frozenset({"NoPods"}), UNLABELLED, "PodsUnlabelled"),
    (frozenset({"ClaimMissing", "LocationNotMounted"}), "the trainer mounts", "ClaimMisnamed"),
    (frozenset({"TurnsLost"}), LASTED, "TurnsTooLong"),
    (frozenset({"PodWaits"}), "Image", "ImageNotPulled"),
    (frozenset({"PodWaits"}), '" not found', "ObjectMissing"),
    (frozenset({"PodWaits"}), "' not found", "ObjectMissing"),
    (frozenset({"PodsRefused"}), "no PriorityClass", "PriorityClassGone"),
    (frozenset({"Unschedulable"}), NOT_MATCHED, "NodesDontMatch"),
    (frozenset({"Unschedulable"}), NOT_TOLERATED, "NodesDontMatch"),
    (frozenset({"MetricMissing"}), "is there, expected", "MetricMisplaced"),
    (frozenset({"MetricMissing"}), "without the label metric", "MetricMisplaced"),
    (frozenset({"NoNewEvals"}), STANDS_STILL, "StandsStill"),
    (frozenset({"NoEvalsYet"}), TWO_VALUES, "SeveralSeries"),
    (frozenset({"NoEvalsYet"}), "can be used so far", "EvalsUnusable"),
    (frozenset({"NoEvalsYet"}), ENDED_WITHOUT, "NoEvals"),
    (frozenset({"LocationShared", "LocationTaken"}), "://", "StoreShared"),
    (frozenset({"ExitCode"}), "exit code 137", "Killed"),
    (frozenset({"GuardrailNotJudged"}), "that counts has come", "GuardrailOverdue"),
    (frozenset({"VerdictOutdated"}), OUT_OF_DATE, "GuardrailOverdue"),
    (frozenset({"GuardrailNotJudged"}), "no eval of guardrail", "GuardrailMissing"),
    (frozenset({"GangGPUsMismatch"}), ": 0 in all", "GPUsMissing"),
    (frozenset({"RunTooShort"}), "spec.modifiers[", "ModifierTooLong"),
    (frozenset({"TooLarge"}), "spec.gang.gpusPerReplica", "PodsTooLarge"),
)


def _merge(patch: str) -> str:
    """Return the command that merges a patch, JSON, into the job."""
    return f"kubectl patch rlhfjob{{job}} --type merge -p '{_escaped(patch)}'"


def _json(*operations: str, on: str = "rlhfjob{job}") -> str:
    """Return the command that applies a JSON patch, of these operations, to the job or to another object."""
    return f"kubectl patch {on} --type json -p '{_escaped(_patch(*operations))}'"


def _patch(*operations: str) -> str:
    return f"[{','.join(operations)}]"


def _set(path: str, value: str, op: str = "replace") -> str:
    """Return one operation of a JSON patch. ``value``: as JSON."""
    return f'{{"op":"{op}","path":"{path}","value":{value}}}'


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


_EDIT = "kubectl edit rlhfjob{job}"
_DOCTOR = "evalstop doctor{job}"
_LOGS = "kubectl logs{ns} -l evalstop.dev/job={name}"
# A container that was started again in its pod has a former one; that of a pod that has ended has none, and
# the kubelet refuses.
_LAST_LOGS = "kubectl logs{ns} <crashed> --previous 2>/dev/null || kubectl logs{ns} <crashed>"
_PODS = "kubectl get pods{ns} -l evalstop.dev/job={name}"
_POOL = "evalstop pools {pool}"
_CLAIMS = "kubectl get pvc{ns}"
_CONTRACT = "(docs/use/trainer-contract.md)"
# Of a location, which is fixed from the moment in which the job was accepted once.
_ELSEWHERE = (
    "delete the other RLHFJob that the message names, if it is over: this one then goes on by itself; or "
    "give this one a folder of its own in its manifest, where its trainer saves to, and make it anew"
)
_LOCATION = "/spec/checkpoints/location"
_JOB = "/spec/workload/template/spec"
_CONTAINER = f"{_JOB}/template/spec/containers/<container>"
_PORT = _merge('{"spec":{"scrape":{"port":<port>}}}')
_PATH = _merge('{"spec":{"scrape":{"port":<port>,"path":"<path>"}}}')
_SIZES = (
    "kubectl patch job <workload>{ns} --type merge -p "
    """'{{"spec":{{"completions":<replicas>,"parallelism":<replicas>}}}}'"""
)
_DEFAULT_RULE = _merge('{"spec":{"stopRule":null}}')
_CLAIM = _merge('{"spec":{"checkpoints":{"location":{"volumeClaim":{"claimName":"<claim>"}}}}}')
_READ = Cure("see what the trainer's metrics page answers through the API server", _DOCTOR)

_FAMILY = (
    "correct what the message names in the family's template in spec.sharing of the GPUPool; then delete the "
    "group's Job: it starts anew from the corrected family"
)
_FAMILY_PODS = (
    f"kubectl edit gpupool {{pool}}; kubectl delete jobs -n {GROUPS_NAMESPACE} -l evalstop.dev/group=<group>"
)

CURES: dict[str, Cure] = {
    # -- the spec, and its pool
    "PoolNotFound": Cure(
        "name one of the pools that evalstop pools lists",
        _merge('{"spec":{"pool":"<pool>"}}'),
        blank="pool",
    ),
    "PoolNotUsable": Cure("whoever runs the pool mends what the message names", "evalstop doctor"),
    "NamespaceNotAllowed": Cure(
        "whoever runs the pool adds the namespace to spec.allowedNamespaces of the GPUPool",
        _json(
            _set("/spec/allowedNamespaces/-", '{"name":"<namespace>"}', "add"), on="gpupool {pool}"
        ).replace("<namespace>", "{namespace}"),
    ),
    "PriorityTooHigh": Cure(
        "lower spec.priority, or ask for a higher maxPriority in the GPUPool",
        _merge('{"spec":{"priority":<ceiling>}}'),
    ),
    "InvalidSpec": Cure("correct the field that the message names", _EDIT),
    "InvalidStopRule": Cure(
        "correct the parameter that the message names, or leave it out for its default",
        _merge('{"spec":{"stopRule":{"<rule>":{"<parameter>":null}}}}'),
    ),
    "DurationMissing": Cure(
        "say how many seconds the run is expected to take",
        _merge('{"spec":{"expectedDurationSeconds":<seconds>}}'),
    ),
    "WorkloadNotFound": Cure(
        "make the workload that spec.workload.ref names, or a new RLHFJob with a template"
    ),
    "WorkloadNotLabelled": Cure(
        "label the Job that spec.workload.ref names",
        "kubectl label job{ns} <workload> evalstop.dev/job={name}",
    ),
    "JobLacksFields": Cure(
        "a Job's pod template cannot be changed: delete the Job, which ends its pods, and make it anew from "
        "its manifest with what it lacks; or give it as spec.workload.template, to which EvalStop adds all "
        "of it",
        patch='{"metadata":{"labels":{"evalstop.dev/job":"<name>"}},"spec":<lacking>}',
        of_job=True,
    ),
    "GangMismatch": Cure(
        "make completions and parallelism of the template equal spec.gang.replicas",
        _json(
            _set(f"{_JOB}/completions", "<replicas>", "add"),
            _set(f"{_JOB}/parallelism", "<replicas>", "add"),
        ),
    ),
    "JobScaled": Cure(
        "set completions and parallelism of that Job back to spec.gang.replicas",
        _SIZES,
    ),
    "GangGPUsMismatch": Cure(
        "make spec.gang.gpusPerReplica equal the GPUs of each pod of the template, or change those",
        _merge('{"spec":{"gang":{"gpusPerReplica":<gpus>}}}'),
    ),
    EARLIER_JOB_REMAINS: Cure(
        "see what its deletion waits for: a finalizer is taken away by whoever set it, once its work is "
        "done; with foregroundDeletion its pods have to end; then this one starts by itself",
        "kubectl get job {name}{ns} "
        "-o jsonpath='{{.metadata.deletionTimestamp}} {{.metadata.finalizers}} {{.status.active}}'",
    ),
    "WorkloadNameTaken": Cure(
        "give the RLHFJob another name in its manifest, or delete the Job of that name if nobody needs it",
        "kubectl describe job{ns} {name}",
    ),
    "GPUsMissing": Cure(
        "give the trainer's container its GPUs in the template: resources.limits, nvidia.com/gpu", _EDIT
    ),
    "StepsNotServed": Cure(
        "have the operator serve the step API (docs/use/rollouts.md), or take spec.rollout out", _EDIT
    ),
    "RolloutNotDelegated": Cure(
        "name a pool with delegate Builtin in spec.pool, or take spec.rollout out", _EDIT
    ),
    "SharingNotOffered": Cure("choose a pool that offers worker groups, or remove spec.sharing", _EDIT),
    "FamilyNotFound": Cure("name a family that the pool has, as the message lists them", _EDIT),
    "StateTooLarge": Cure("correct spec.sharing.stateBytes, or choose a family with more memory", _EDIT),
    "ActorTooLarge": Cure("ask for as few GPUs per actor as a node of the pool has", _EDIT),
    "ActorRefused": Cure("correct spec.rollout.template as the API server says", _EDIT),
    "ActorWithoutGPUs": Cure("give the engine's container its GPUs, in spec.rollout.template", _EDIT),
    "ActorGPUsMismatch": Cure(
        "make the GPUs of spec.rollout.template equal spec.rollout.gpusPerActor", _EDIT
    ),
    "ActorPlaced": Cure("take nodeName out of spec.rollout.template", _EDIT),
    "NoWeightsVolume": Cure(
        "name a volume of spec.rollout.template in spec.rollout.weightsVolume, or leave it out", _EDIT
    ),
    "WeightsNotShared": Cure(
        "name a volume that trainer and actors share in spec.rollout.weightsVolume", _EDIT
    ),
    "TemplateRefused": Cure("correct spec.workload.template as the API server says, in a new RLHFJob"),
    "UnsupportedKind": Cure("use a workload kind that docs/use/api.md names"),
    "LayoutAmbiguous": Cure(
        "name the layout",
        _merge('{"spec":{"checkpoints":{"layout":"<layout>"}}}'),
        blank="layout",
    ),
    "OtherLayout": Cure(
        "name the trainer's own layout in spec.checkpoints.layout, in the manifest",
        patch=_patch(_set("/spec/checkpoints/layout", '"<layout>"')),
        blank="layout",
    ),
    "OtherFolder": Cure(
        "name the folder that the trainer saves to in spec.checkpoints.location, in the manifest; nothing "
        "is wrong if it has saved nothing yet",
        patch=_patch(_set("/spec/checkpoints/location/volumeClaim/path", '"<path>"')),
        blank="path",
    ),
    "LocationShared": Cure(
        _ELSEWHERE, patch=_patch(_set(f"{_LOCATION}/volumeClaim/path", '"<path>"', "add"))
    ),
    "LocationTaken": Cure(_ELSEWHERE, patch=_patch(_set(f"{_LOCATION}/volumeClaim/path", '"<path>"', "add"))),
    "StoreShared": Cure(_ELSEWHERE, patch=_patch(_set(f"{_LOCATION}/objectStore/uri", '"<uri>"'))),
    "LocationNotMounted": Cure(
        "mount the claim in the trainer's template, or correct spec.checkpoints", _EDIT
    ),
    "PlaceMissing": Cure("mount the claim in the trainer's template, or correct spec.checkpoints", _EDIT),
    "BadRequest": Cure("correct the store, path or layout in spec.checkpoints", _EDIT),
    "ClaimMissing": Cure(
        "make the claim that the message names, or correct spec.checkpoints while the job is not accepted",
        "kubectl apply{ns} -f <claim>.yaml",
    ),
    "ClaimMisnamed": Cure("name the claim that the trainer mounts", _CLAIM, blank="claim"),
    "ClaimTerminating": Cure(
        "keep its volume before the last pod that has it mounted ends, copy the checkpoints from that pod, "
        "and give a new RLHFJob another claim",
        """kubectl patch pv <volume> -p '{{"spec":{{"persistentVolumeReclaimPolicy":"Retain"}}}}'""",
    ),
    "ClaimForOnePod": Cure("use a claim with access mode ReadWriteMany or ReadWriteOnce", _CLAIMS),
    # -- pods
    "NoPods": Cure("see what keeps its pods from being there", _DOCTOR),
    "PodsUnlabelled": Cure(
        "set the label back that somebody took away or changed: without it the pod is none of this run's, "
        "and its GPUs count as somebody else's",
        "kubectl label pods{ns} <unlabelled> evalstop.dev/job={name} --overwrite",
    ),
    "PodWaits": Cure(
        "correct what the message names (ConfigMap, Secret, security) in a new RLHFJob",
        "kubectl describe pods{ns} -l evalstop.dev/job={name}",
    ),
    "ObjectMissing": Cure(
        "make the ConfigMap, Secret or claim that the message names (EvalStop makes {name}-run itself); "
        "the pod then starts by itself",
        "kubectl apply{ns} -f <object>.yaml",
    ),
    "PodsRefused": Cure(
        "correct what the message names (a quota, Pod Security, a webhook, the service account); it is tried "
        "again by itself",
        "kubectl describe quota,limits{ns}; kubectl describe job{ns} {name}",
    ),
    "ScaledByOthers": Cure(
        "have somebody who may update GPUPool {pool} set the Job's pods back (others may not), or "
        "delete the Job, which is made anew by evalstop resume{job} --from latest; to stop the run: evalstop "
        "stop{job}",
        _SIZES,
    ),
    "PriorityClassGone": Cure(
        "make the PriorityClass again that the message names (a helm upgrade of the chart makes its own); it "
        "is tried again by itself",
        "kubectl apply -f deploy/manifests/priorityclass.yaml",
    ),
    "NoScheduler": Cure(
        "whoever runs the pool installs that scheduler (the chart's scheduler.enabled), or corrects "
        "spec.schedulerName of the GPUPool; after that the RLHFJob is made anew, for its pods keep the name",
        "kubectl edit gpupool {pool}",
    ),
    "Unschedulable": Cure(
        "see which nodes its scheduler rules out, and why; it is tried again by itself",
        "kubectl describe pods{ns} -l evalstop.dev/job={name}",
    ),
    "NodesDontMatch": Cure(
        "correct nodeSelector, affinity.nodeAffinity or tolerations of the template's pods in the manifest, "
        "so that nodes of the pool match; or have those nodes labelled so, and it goes on by itself",
        "evalstop check -f <manifest>",
        _patch(_set(f"{_JOB}/template/spec/nodeSelector", "<labels>", "add")),
    ),
    "ImageNotPulled": Cure(
        "correct the image, or its pull secret, in the manifest",
        "kubectl describe pods{ns} -l evalstop.dev/job={name}",
        _patch(_set(f"{_CONTAINER}/image", '"<image>"')),
        blank="image",
    ),
    "ExitCode": Cure(
        "correct what the trainer's last words name, in the manifest",
        _LAST_LOGS,
        _patch(_set(f"{_CONTAINER}/command", "<command>", "add")),
        blank="command",
    ),
    "Killed": Cure(
        "exit code 137 is a kill, mostly for want of memory: give the container more in the manifest, or "
        "have the trainer use less",
        "kubectl describe pods{ns} -l evalstop.dev/job={name}",
        _patch(_set(f"{_CONTAINER}/resources/limits/memory", '"<memory>"', "add")),
    ),
    "Failed": Cure("see how its pods ended", "kubectl describe job{ns} {name}"),
    "WorkloadGone": Cure("copy the checkpoints yourself, or have the run go on", "evalstop resume{job}"),
    "EndUnknown": Cure(
        "have it go on from its newest checkpoint; a template's time to live is left out",
        "evalstop resume{job} --from latest",
    ),
    "StartedAgain": Cure(
        "have a stopped run go on by this; leave its workload's spec.suspend alone", "evalstop resume{job}"
    ),
    "OrphanedPods": Cure(
        "end the pods that an earlier attempt left, or let them train to their end: what was asked for then "
        "goes on by itself",
        "kubectl delete pods{ns} <orphans>",
    ),
    "TrainerEnded": Cure(
        "this run is over: a stop keeps its best checkpoint and frees its GPUs; in the next manifest make "
        "that container a sidecar (under initContainers, with restartPolicy: Always), which keeps no pod "
        "from completing, or have it end when the trainer does",
        "evalstop stop{job}",
    ),
    "MembersRunOn": Cure(
        "see what that member waits for (a collective that its peers have left, a thread that does not end); "
        "if it has nothing more to do, evalstop stop keeps the best checkpoint and frees the GPUs",
        "kubectl logs{ns} <member>",
    ),
    "MembersEnded": Cure(
        "delete its workload while it is suspended: it is made anew, and all members start",
        "kubectl delete job{ns} {name}",
    ),
    "PodsStuck": Cure("see whether the node of each of its pods is there", f"{_PODS} -o wide"),
    "WaitingForController": Cure(
        "see whether kube-controller-manager runs: the workload's status stands still",
        "kubectl get job{ns} {name} -o yaml",
    ),
    # -- the trainer's metrics
    "Unreachable": Cure(
        "correct spec.scrape.port, or have the trainer listen on its pod IP", _PORT, blank="port"
    ),
    "LoopbackOnly": Cure(
        "have the trainer listen on its pod IP, in the manifest",
        patch=_patch(_set(f"{_CONTAINER}/<field>/<index><value_of>", '"<value>"')),
        blank="value",
    ),
    "Timeout": _READ,
    "MetricsNotRead": _READ,
    "NoFreshScrape": _READ,
    "NotPrometheus": Cure("correct spec.scrape.port and spec.scrape.path", _PATH, blank="port"),
    "NotByContract": Cure(
        "have the trainer export its evals by evalstop_client, or with the labels that the message names, as "
        "`attempt` (docs/understand/contracts.md, Trainer metrics)"
    ),
    "NoSpeaker": Cure(
        "have the trainer's client export rlhf_run_info, or set spec.scrape.speaker to who speaks", _EDIT
    ),
    "DirectionDoubtful": Cure(
        "if the other way is better, make the RLHFJob anew with that direction: what it takes for the best "
        "checkpoint is the worst",
        patch=_patch(_set("/spec/metrics/<metric_index>/direction", '"<direction>"')),
    ),
    "SeveralSpeakers": Cure(f"let one process report {_CONTRACT}, or set spec.scrape.speaker", _EDIT),
    "RefusedAddress": Cure(
        "whoever runs EvalStop decides by EVALSTOP_SCRAPE_ADDRESSES of the operator which pods are read"
    ),
    "MetricMissing": Cure(
        "name one of the metrics that the message lists, or have the trainer export it",
        _json(_set("/spec/metrics/<metric_index>/name", '"<metric>"')),
        blank="metric",
    ),
    "MetricMisplaced": Cure(
        f"have the trainer export its evals by evalstop_client, or as the message says {_CONTRACT}"
    ),
    "SeveralSeries": Cure(
        "have the trainer export one series for each eval of the metric; what another label parts, as the "
        f"message tells, needs a metric name each, and spec.metrics the one that is meant {_CONTRACT}",
        _DOCTOR,
    ),
    "EvalsUnusable": Cure(
        f"have the trainer export scores that are finite, of this process, of one sample or more {_CONTRACT}",
        _LOGS,
    ),
    "NoEvalsYet": Cure(
        "wait for its first eval; if it takes longer by nature, say so; if it has made one, its log tells "
        "why the client left it out (no samples, no number)",
        _merge('{"spec":{"scrape":{"firstEvalSeconds":<seconds>}}}'),
    ),
    "NoEvals": Cure(
        "have the trainer report its evals, under the name in spec.metrics; if it has made some, its log "
        f"tells why the client left them out (no samples, no number) {_CONTRACT}",
        _LOGS,
    ),
    "NoNewEvals": Cure("see whether the trainer's evals and its scorer work", _DOCTOR),
    "StandsStill": Cure(
        "see whether the trainer hangs: members that wait for each other, a data loader, an evaluator that "
        "does not answer; if its steps take so long by nature, say so in spec.scrape.firstEvalSeconds",
        _LOGS,
    ),
    "ScoresNotFinite": Cure("see whether the trainer has diverged, or its scorer divides by zero", _LOGS),
    "StepsBeganAnew": Cure(
        f"have the trainer count its steps through the whole run, or begin a new process {_CONTRACT}", _LOGS
    ),
    "BeganAtTheStart": Cure(
        "have the trainer load what client.resume_path(folder) returns before its first step, or say "
        "client.resumed(step) if it finds its checkpoint by itself (docs/use/trainers.md); then stop it, and "
        "resume it from the checkpoint that is right",
        "evalstop stop{job}",
    ),
    "BeganAfresh": Cure(
        "if that is not meant: see whether its checkpoints are still where it looks for them; then stop it, "
        "and resume it from the retained one with evalstop resume --from best",
        "evalstop stop{job}",
    ),
    "NeverRead": Cure(
        f"have the trainer stay up until its last eval was read, at most two scrape intervals {_CONTRACT}"
    ),
    "EndUnseen": Cure(
        "look up its later evals where the trainer logs them: one may be better than the best that was read, "
        "and nothing keeps its checkpoint",
        _LOGS,
    ),
    "CappedOff": Cure(
        "whoever runs the pool may raise spec.modeCap of the GPUPool", "kubectl edit gpupool {pool}"
    ),
    "VerdictOutdated": Cure("see whether the trainer still makes evals", _DOCTOR),
    "PageTooLarge": Cure(f"have the trainer export fewer series {_CONTRACT}"),
    "ForeignPage": Cure("another trainer answers there (hostNetwork?), or run.json is old", _DOCTOR),
    "OtherAttempt": Cure(f"have the trainer's client read run.json at each start {_CONTRACT}"),
    "EarlierLife": Cure("an older process answers: end it", _PODS),
    "PageWithoutIdentity": Cure(
        "have the trainer use evalstop_client, or read run.json: export rlhf_run_info with its uid and "
        f"attempt, and label evals with that attempt {_CONTRACT}"
    ),
    # -- the rule
    "NoiseUnknown": Cure(
        f"have the trainer report prompts or the standard error of each eval {_CONTRACT}, or declare "
        "spec.metrics[].prompts",
        _json(_set("/spec/metrics/<metric_index>/prompts", "<prompts>", "add")),
    ),
    "NoPairedDifferences": Cure(
        f"have the trainer report paired differences {_CONTRACT}, or take the default rule", _DEFAULT_RULE
    ),
    "LossUnknown": Cure(
        f"have the trainer export its training loss {_CONTRACT}, or take the default rule", _DEFAULT_RULE
    ),
    "ProgressUnknown": Cure(
        f"have the trainer export its total steps {_CONTRACT}, or take the default rule", _DEFAULT_RULE
    ),
    "TooFewPeers": Cure("take the default rule, until more runs are alike", _DEFAULT_RULE),
    "RuleNotUsable": Cure("correct spec.stopRule or spec.modifiers as condition Accepted says", _EDIT),
    "RangeTooNarrow": Cure(
        "lower what the message names, or take the default rule; or correct the range, if that is wrong",
        _DEFAULT_RULE,
    ),
    "RunTooShort": Cure(
        "lower what the message names below the evals of a run, or take the default rule",
        _DEFAULT_RULE,
    ),
    "StopBudgetSpent": Cure(
        "wait: the stop comes once the hour has one left; or stop it yourself with evalstop stop, which no "
        "limit holds back; or raise spec.stopLimits.perHour of the pool",
        "kubectl edit gpupool {pool}",
    ),
    "ProxyUnknown": Cure(
        "have the trainer report the proxy with each eval, report_eval(..., proxy=...), or as a Proxy metric "
        "that the spec names; or take strict out",
        _json('{"op":"remove","path":"/spec/modifiers/<modifier_index>/divergence/strict"}'),
    ),
    "EvaluatorChanges": Cure(
        "give the evaluator's version a constant: judge, prompt set, code and decoding settings; not a time, "
        f"a commit, a seed, a step or an id of the judge's answer {_CONTRACT}",
        _DOCTOR,
    ),
    "UnitChanges": Cure(
        f"have the trainer report one unit throughout, percent or a share of 1 {_CONTRACT}", _DOCTOR
    ),
    "StderrTooLarge": Cure(
        "have the trainer report the standard error of the mean, sd / sqrt(n), not the standard deviation; "
        f"or none at all; where each eval has the same prompts, the differences per prompt {_CONTRACT}",
        _DOCTOR,
    ),
    "EvalImprecise": Cure(
        "give later evals another version of the evaluator (set_evaluator): the rule begins anew without it; "
        f"and keep the modifier gate, which leaves a single such eval out {_CONTRACT}",
        _DOCTOR,
    ),
    "StderrTooSmall": Cure(
        f"have the trainer report the standard error of the mean, sd / sqrt(n), or none at all {_CONTRACT}",
        _DOCTOR,
    ),
    "ScoreConstant": Cure(
        "see whether the trainer reports what its evaluator measures: a judge that fails may fall back to a "
        "constant; nothing is wrong with a success rate that is still 0, or 1",
        _DOCTOR,
    ),
    "ModifierTooLong": Cure(
        "lower what the message names below the evals of a run",
        _json(_set("/spec/modifiers/<modifier_index>/<modifier>/<parameter>", "<evals>")),
    ),
    "WebhookFails": Cure(
        "see whether what serves the webhook that the message names runs (Kueue's controller, say)",
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    "ActionRefused": Cure(
        "change what the message names: in the spec, the quota or the admission policy",
        "kubectl describe quota{ns}; kubectl get validatingadmissionpolicybindings",
    ),
    "GuardrailNotJudged": Cure("have the trainer export what the guardrail's rule looks at", _DOCTOR),
    "GuardrailOverdue": Cure(
        "see whether the guardrail's scorer runs, for NaN does not count; it may run more seldom than the "
        "Primary metric's: its verdict ages by the usual distance of its own evals, known from the second on",
        _LOGS,
    ),
    "GuardrailMissing": Cure(
        "have the trainer export it, name a metric that the message lists, or take the guardrail out by this",
        _json('{"op":"remove","path":"/spec/metrics/<metric_index>"}'),
    ),
    # -- rollout actors
    "ActorNotReady": Cure(
        "see what its pod waits for: the image, the weights, the sidecar's registration, of which the log of "
        "its container evalstop-actor tells (an engine on another socket, the step API out of reach)",
        "kubectl describe pods{ns} -l evalstop.dev/job={name},evalstop.dev/component=actor",
    ),
    "RolloutStarved": Cure(
        "see why its actors do not come, or give no tokens: Events ActorPutAside and ActorFailed of the job "
        "tell what became of each, and its trainer's log does; while it runs, its actors' logs do",
        "kubectl events{ns} --for rlhfjob/{name}",
    ),
    "ActorsFail": Cure(
        "see what the engine of an actor says (docs/use/rollouts.md)",
        "kubectl logs{ns} -l evalstop.dev/job={name},evalstop.dev/component=actor --all-containers --prefix",
    ),
    "StepsUnplanned": Cure(
        "have the trainer announce each step with its lengths (docs/use/rollouts.md)",
        "evalstop rollouts{job}",
    ),
    # -- checkpoints
    "CheckpointMissing": Cure("{rotation}"),
    "StepsDisagree": Cure(
        "have the trainer count evals, checkpoints and progress by one counter: the same step goes to "
        f"report_eval(step=…), checkpoint_saved(step=…) and set_progress {_CONTRACT}"
    ),
    "EvalStopFolderGone": Cure(LEAVE_ALONE),
    "CheckpointsAreLinks": Cure(
        "have the trainer write its checkpoints into the folder itself; or name the folder that the links "
        "lead to, on a claim that it mounts, in spec.checkpoints.location of a new RLHFJob"
    ),
    "CheckpointMisnamed": Cure(
        "have the trainer save each checkpoint into a folder of its own, named by its step as the message "
        "says; one that is written over at each save cannot be kept"
    ),
    "ReportedFirst": Cure(
        "save each checkpoint before its eval is reported: it is looked for once it is saved, and by then "
        "rotation may be near; or {rotation}"
    ),
    "EvalProcess": Cure(
        "have each process that evaluates report as the trainer's: give it client.environment() of the "
        "process that saves, or have that one report the scores (docs/use/trainers.md)"
    ),
    "NotSaved": Cure(
        "save a checkpoint at each step that is evaluated, before the eval is reported; or say by how many "
        "steps it may be older",
        _merge('{"spec":{"checkpoints":{"maxStepLag":<steps>}}}'),
    ),
    "PinMissing": Cure(
        "take the step out of spec.checkpoints.pins, for the trainer keeps no checkpoint of it",
        "evalstop pin{job} --remove <pinned>",
    ),
    "CopyGone": Cure(
        "resume from another checkpoint: the trainer's latest, or --step with one that is still there (the "
        "pin of the same step is tried by itself)",
        "evalstop resume{job} --from latest",
    ),
    "BestCheckpointLost": Cure("{rotation}"),
    "CheckpointIncomplete": Cure("spec.checkpoints.layout must be the trainer's own", _DOCTOR),
    "DigestMismatch": Cure(
        "have the trainer never write into a finished checkpoint (docs/use/checkpoints.md)"
    ),
    "CopyDamaged": Cure("see whether the volume or object store of spec.checkpoints.retention is sound"),
    "OutOfSpace": Cure("make room on the volume that the message names, or enlarge its claim", _CLAIMS),
    "StoreUnreachable": Cure("see whether the volume or object store answers", _CLAIMS),
    "PermissionDenied": Cure(
        "name the user that owns the files",
        _merge('{"spec":{"checkpoints":{"runAs":{"user":<user>}}}}'),
    ),
    "OtherOwner": Cure(
        "name the user that the message names",
        _merge('{"spec":{"checkpoints":{"runAs":{"user":<user>}}}}'),
    ),
    "UserRefused": Cure(
        "have the trainer write as a user that the namespace lets in (docs/use/checkpoints.md)"
    ),
    "AccessStalled": Cure(
        "see why the access Job's pod hangs", "kubectl describe pods{ns} -l evalstop.dev/component=access"
    ),
    "AccessFailed": Cure(
        "see why the access Job's pod ended", "kubectl describe pods{ns} -l evalstop.dev/component=access"
    ),
    "AccessPodUnschedulable": Cure(
        "make room on the node that the message names", "kubectl get pods{ns} -o wide"
    ),
    "AccessJobRefused": Cure(
        "correct the quota, limit range or admission webhook that the message names",
        "kubectl describe quota,limits{ns}",
    ),
    "AccessRefused": Cure("correct what the API server names", "kubectl describe quota,limits{ns}"),
    "AccessNameTaken": Cure(
        "delete the Job that the message names: it belongs to another RLHFJob", "kubectl delete job{ns} <job>"
    ),
    "RetentionGivenUp": Cure("copy the pin that the message names by hand before its volume goes"),
    "StartUnknown": Cure(
        "see why the claim Jobs of its folder do not end; the run goes on",
        "kubectl get jobs{ns} -l evalstop.dev/job={name}",
    ),
    "NoVerifiableCheckpoint": Cure("see why no checkpoint is in safety; the run goes on", _DOCTOR),
    # -- stops
    "WaitingForCopy": Cure(
        "see how far the access Jobs are that pin and copy it, and what they say",
        "kubectl get jobs{ns} -l evalstop.dev/job={name}",
    ),
    "WaitingForSuspend": Cure(
        "see whether its Events tell of calls that the API server refuses; it is tried again by itself",
        "kubectl describe rlhfjob{job}",
    ),
    "ModeForbids": Cure("let it stop, where the pool's modeCap allows it", "evalstop mode{job} Enforce"),
    "NothingRetained": Cure("go on without a retained checkpoint", "evalstop resume{job} --from latest"),
    "WouldStop": Cure(
        "let EvalStop stop it, where the pool's modeCap allows it", "evalstop mode{job} Enforce"
    ),
    # -- the queue
    "TooLarge": Cure("the gang is larger than the pool, or than its quota's limit", _POOL),
    "PodsTooLarge": Cure(
        "ask for no more GPUs a pod than the largest node has, in the manifest",
        _POOL,
        _patch(
            _set("/spec/gang/gpusPerReplica", "<most>"),
            _set(f"{_CONTAINER}/resources/limits/nvidia.com~1gpu", '"<most>"', "add"),
        ),
    ),
    "AtQuotaLimit": Cure("its namespace has all that it may; see who has what", _POOL),
    "NodesClosed": Cure("nodes of the pool take no new pods; open one", "kubectl uncordon <node>"),
    "NoUsableNodes": Cure("see which nodes the pool has, and why none can be used", _POOL),
    "NoGroupFits": Cure(
        "it gets a residency by itself; see which groups there are and what the message says they lack",
        "evalstop groups --pool {pool}",
    ),
    "GroupDoesNotAnswer": Cure(
        "see whether that group's pods run and what they log; the job goes into another one by itself",
        f"kubectl get pods -n {GROUPS_NAMESPACE} -o wide",
    ),
    "GroupNotReady": Cure(
        "see why that group took it in too late; it queues again by itself",
        f"kubectl get pods -n {GROUPS_NAMESPACE} -o wide",
    ),
    "TurnsTooLong": Cure(
        "have the trainer do less in one turn, or release it sooner; or raise turnSeconds in spec.sharing of "
        "the GPUPool, and delete the group's Job: it starts anew with it",
        f"kubectl edit gpupool {{pool}}; kubectl delete jobs -n {GROUPS_NAMESPACE} "
        "-l evalstop.dev/group=<group>",
    ),
    "TurnsLost": Cure(
        "correct what the reason names, the family's class or image in spec.sharing of the GPUPool, or what "
        "the job asks of it; then delete the group's Job: it starts anew from the corrected family, and its "
        "residents go on from their checkpoints",
        f"kubectl edit gpupool {{pool}}; kubectl delete jobs -n {GROUPS_NAMESPACE} "
        "-l evalstop.dev/group=<group>",
    ),
    "NodeNotReady": Cure(
        "see whether that node comes back; if it is lost for good, delete it: the cluster ends its pods, and "
        "makes others in their place",
        "kubectl describe node <lost_node>",
    ),
    "SlowedInGroup": Cure(
        "see who shares the group, and whose turns are long; stop one of them, or allow more than "
        "spec.sharing.maxSlowdownPercent says now: that can be changed while the job holds no GPUs",
        "evalstop groups <group>",
    ),
    "GroupCannotStart": Cure(
        "have the pool's owner correct the family as the message says (of FamilyNotFound: give it its "
        "replicas and gpusPerReplica back); the group then starts by itself, and its residents go on",
        "kubectl edit gpupool {pool}",
    ),
    "GroupStartsAnew": Cure(
        "it starts anew by itself, and the job goes on in it; see what it waits for",
        "evalstop groups <group>",
    ),
    "GroupCrashes": Cure(_FAMILY, _FAMILY_PODS),
    "GroupPodWaits": Cure(_FAMILY, _FAMILY_PODS),
    "ResidencyStuck": Cure(
        "if its group does not come back, delete its Job: once all of its pods are gone the residency has "
        "ended, and the group starts anew, its other residents from their checkpoints",
        f"kubectl delete jobs -n {GROUPS_NAMESPACE} -l evalstop.dev/group=<group>",
    ),
    "GPUsUsedByOthers": Cure("pods of no RLHFJob hold the pool's GPUs; see which", _POOL),
    "GangTimedOut": Cure("see why its pods found no node; it is tried again by itself", _DOCTOR),
    "QueueTakesWorkload": Cure("Kueue would take the workload: docs/use/checkpoints.md, Kueue"),
    "Deactivated": Cure(
        "set spec.active of its Kueue Workload to true (docs/operate/kueue.md)",
        "kubectl get workloads.kueue.x-k8s.io{ns}",
    ),
}

REFUSED = Cure("correct what the message names", _EDIT)  # of any other reason not to be accepted
CURES |= dict.fromkeys(
    (
        "NoContainers",
        "NoMetricsPort",
        "PriorityClassNotAllowed",
        "ReservedName",
        "RetentionReachable",
        "RunVolumeMissing",
        "WorkloadMissing",
    ),
    REFUSED,
)

# Of a WorkerGroup that is not Ready; {name} is the group's.
_GROUP_PODS = f"kubectl get pods -n {GROUPS_NAMESPACE} -l evalstop.dev/group={{name}} -o wide"
GROUP_CURES: dict[str, Cure] = {
    "WaitingForNodes": Cure("see which of its pods have no node yet, and why", _GROUP_PODS),
    "Starting": Cure(
        "see whether its pods' logs name what they wait for: an image, the step API, each other", _GROUP_PODS
    ),
    "Restarting": Cure("it starts anew by itself; see what became of the pod that was lost", _GROUP_PODS),
    "GroupFoundNoNodes": Cure("see whether the pool has nodes with so many free GPUs for each member", _POOL),
    "GroupDoesNotAnswer": Cure(
        "see whether its pods run, and what they log; delete those that are lost: it starts anew, and its "
        "residents resume from their checkpoints",
        _GROUP_PODS,
    ),
    "ResidencyStuck": Cure(
        "if it does not come back, delete its Job: once all of its pods are gone those residencies have "
        "ended, and it starts anew, its other residents from their checkpoints",
        f"kubectl delete jobs -n {GROUPS_NAMESPACE} -l evalstop.dev/group={{name}}",
    ),
    "GroupNotReady": Cure("see why members of its family do not become ready", _GROUP_PODS),
    "GroupCrashes": Cure(_FAMILY, _FAMILY_PODS.replace("<group>", "{name}")),
    "GroupPodWaits": Cure(_FAMILY, _FAMILY_PODS.replace("<group>", "{name}")),
    "TurnsLost": Cure(
        "correct what the reason names in spec.sharing of the GPUPool; then delete the group's Job: it "
        "starts anew from the corrected family, and its residents go on from their checkpoints",
        f"kubectl edit gpupool {{pool}}; kubectl delete jobs -n {GROUPS_NAMESPACE} "
        "-l evalstop.dev/group={name}",
    ),
    "JobRefused": Cure(
        "correct the family's template in spec.sharing of the GPUPool, as the message says",
        "kubectl edit gpupool {pool}",
    ),
    "FamilyNotFound": Cure(
        "give the family its replicas and gpusPerReplica back, or let its residents end",
        "kubectl edit gpupool {pool}",
    ),
    "StepsNotServed": Cure("have the operator serve the step API (docs/use/rollouts.md)", "evalstop doctor"),
}

# The same for whoever reads the findings of `evalstop doctor JOB`: those name that command.
EXAMINING: dict[str, Cure] = {
    **{
        reason: replace(CURES[reason], command=_LOGS)
        for reason in (
            "EvalImprecise",
            "EvaluatorChanges",
            "ScoreConstant",
            "SeveralSeries",
            "StderrTooLarge",
            "StderrTooSmall",
            "UnitChanges",
        )
    },
    **dict.fromkeys(
        ("Timeout", "MetricsNotRead", "NoFreshScrape"), Cure("see whether the trainer still answers", _LOGS)
    ),
    "NoNewEvals": Cure("see whether the trainer's evals and its scorer work", _LOGS),
    "VerdictOutdated": Cure("see whether the trainer still makes evals", _LOGS),
    "ForeignPage": Cure(
        "another trainer answers there (hostNetwork?), or it has not read run.json at its start"
    ),
    "GuardrailNotJudged": Cure(f"have the trainer export what the guardrail's rule looks at {_CONTRACT}"),
    "CheckpointIncomplete": Cure("set spec.checkpoints.layout to the trainer's own", _EDIT),
    "GangTimedOut": Cure("see why its pods found no node; it is tried again by itself", f"{_PODS} -o wide"),
    "NoPods": Cure(
        "see what keeps its pods from being there",
        "kubectl describe job{ns} {name}; kubectl describe pods{ns} -l evalstop.dev/job={name}",
    ),
    "NoVerifiableCheckpoint": Cure(
        "see what the access Jobs say; the run goes on", "kubectl get jobs{ns} -l evalstop.dev/job={name}"
    ),
}

# What Kueue lacks or refuses: the messages name the field, the page tells how it is all set up.
KUEUE = frozenset(
    {
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
    }
)
CURES |= dict.fromkeys(
    KUEUE,
    Cure(
        "correct what the message names (docs/operate/kueue.md)",
        "kubectl get localqueues{ns}; kubectl get clusterqueues,admissionchecks",
    ),
)

# Reasons of conditions that are False and need nobody: what they wait for comes by itself, or somebody wanted
# it so. A test holds that every reason the operator may write is in one of the two.
NEEDS_NOBODY = frozenset(
    {
        "LeavingGroup",
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
        "ModeOff",
        "GaveWay",
        "GroupLost",
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
        "PoolDeleted",
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
        "Spared",
        "Starting",
        "Stopped",
        "UnitDoubtful",
        "UserRequest",
        "WaitingForCheckpoint",
        "WaitingForGPUs",
        "WaitingForGroup",
        "WaitingForQueue",
        "WaitingForRecall",
        "WaitsItsTurn",
        "Withdrawn",
    }
)


def cure_of(reason: str, *, examining: bool = False) -> Cure:
    """Return what to do about a reason; of one that no entry knows, that its message says it.

    Args:
        reason: a CamelCase code.
        examining: it is `evalstop doctor JOB` that says so: the command does not name itself.
    """
    found: Mapping[str, Cure] = EXAMINING if examining else {}
    return found.get(reason) or CURES.get(reason, REFUSED)
