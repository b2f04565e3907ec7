"""Cures as data: which one a message leads to, and what it fills in."""

from __future__ import annotations

import json
import re

import pytest

from controller.policy.job import cures
from controller.policy.job.cures import CURES, EXAMINING, cure_of, key_of, whose_move
from controller.policy.wording import (
    NONE_OF_THIS_RUN,
    SKIPPED,
    did_you_mean,
    eval_process,
    meant,
    nearest,
)

MEANT = re.compile(r"<([a-zA-Z_]+)>")


def filled(reason: str, message: str = "", layout: str = "") -> tuple[str, str, str]:
    found = cure_of(key_of(reason, message)).filled("run", "team", "a100", layout, message)
    return found.command, found.patch, found.apply


MERGE = "kubectl patch rlhfjob run -n team --type merge -p '%s'"
JSON = "kubectl patch rlhfjob run -n team --type json -p '%s'"
BOX = "/spec/workload/template/spec/template/spec/containers"


@pytest.mark.parametrize(
    ("reason", "message", "command"),
    [
        (
            "MetricMissing",
            "spec.metrics: no eval of 'gold' is exported; names seen: gold_reward; did you mean "
            "'gold_reward'?",
            JSON % '[{"op":"replace","path":"/spec/metrics/0/name","value":"gold_reward"}]',
        ),
        (
            "MetricMissing",
            "spec.metrics[2]: no eval of 'x' is exported; names seen: a, b",
            JSON % '[{"op":"replace","path":"/spec/metrics/2/name","value":"<metric>"}]',
        ),
        (
            "NoEvalsYet",
            "none of the evals of 'x' on its page can be used so far",
            "kubectl logs -n team -l evalstop.dev/job=run",
        ),
        (
            "NoEvalsYet",
            "none of the evals of 'x' on its page can be used so far; x has two values for step 610",
            "evalstop doctor run -n team",
        ),
        ("MetricMissing", "no eval of 'x' is exported; a series x is there, expected y", ""),
        ("NoPods", "no pod has an address yet", "evalstop doctor run -n team"),
        ("StartUnknown", "to be stopped, but whose", "kubectl get jobs -n team -l evalstop.dev/job=run"),
        ("StartUnknown", f"to be stopped, but whose; {eval_process()}", ""),
        ("CheckpointIncomplete", f"{NONE_OF_THIS_RUN}; it lay there; {eval_process()}", ""),
        (
            "NoPods",
            "no pod has an address yet; pods run-0-a, run-1-b of Job run lack label evalstop.dev/job=run, so "
            "nobody reads them",
            "kubectl label pods -n team run-0-a run-1-b evalstop.dev/job=run --overwrite",
        ),
        (
            "PodWaits",
            'pod run-0 waits, FailedMount: MountVolume.SetUp failed for volume "x" : configmap "y" not found',
            "kubectl apply -n team -f <object>.yaml",
        ),
        (
            "PodWaits",
            'pod run-0 waits, RunContainerError: exec: "trian": executable file not found in $PATH',
            "kubectl describe pods -n team -l evalstop.dev/job=run",
        ),
        (  # --previous alone is refused for a pod that is not started again: its container has no former one
            "ExitCode",
            "BackoffLimitExceeded: no more; pod run-0-x7 ended with exit code 3 (2 times): no",
            "kubectl logs -n team run-0-x7 --previous 2>/dev/null || kubectl logs -n team run-0-x7",
        ),
        ("Unreachable", "refused; did you mean '9400'?", MERGE % '{"spec":{"scrape":{"port":9400}}}'),
        ("Unreachable", "refused", MERGE % '{"spec":{"scrape":{"port":<port>}}}'),
        ("PoolNotFound", "no 'reserch'; did you mean 'research'?", MERGE % '{"spec":{"pool":"research"}}'),
        (
            "ClaimMissing",
            "x: 'a', but no such claim; the trainer mounts b: did you mean 'b'?",
            MERGE % '{"spec":{"checkpoints":{"location":{"volumeClaim":{"claimName":"b"}}}}}',
        ),
        (
            "NamespaceNotAllowed",
            "",
            "kubectl patch gpupool a100 --type json -p "
            '\'[{"op":"add","path":"/spec/allowedNamespaces/-","value":{"name":"team"}}]\'',
        ),
        (
            "InvalidStopRule",
            "spec.stopRule.drawdown.maxDrop: 0.0 is not allowed, expected a value > 0",
            MERGE % '{"spec":{"stopRule":{"drawdown":{"maxDrop":null}}}}',
        ),
        (
            "GangGPUsMismatch",
            "spec.workload.template.x[nvidia.com/gpu]: 2 in all, expected 1 as in spec.gang.gpusPerReplica",
            MERGE % '{"spec":{"gang":{"gpusPerReplica":2}}}',
        ),
        (
            "GuardrailNotJudged",
            "spec.metrics[2]: no eval of guardrail 'tox' is exported; others on its page: toxicity",
            JSON % '[{"op":"remove","path":"/spec/metrics/2"}]',
        ),
        (  # not: whether the trainer makes evals, for it does
            "VerdictOutdated",
            "nothing is proposed: guardrail 'safe' is out of date: 17 evals of 'win' came after its newest",
            "kubectl logs -n team -l evalstop.dev/job=run",
        ),
        (
            "VerdictOutdated",
            "nothing is proposed: the verdict may be out of date, for its metrics bring no evals now",
            "evalstop doctor run -n team",
        ),
        (
            "PriorityTooHigh",
            "spec.priority: 9 is above the ceiling of GPUPool 'p' for namespace 'team', at most 2",
            MERGE % '{"spec":{"priority":2}}',
        ),
        ("TooFewPeers", "", MERGE % '{"spec":{"stopRule":null}}'),
        (
            "PodsRefused",
            'pods "run-0-" is forbidden: no PriorityClass with name evalstop-rlhf was found',
            "kubectl apply -f deploy/manifests/priorityclass.yaml",
        ),
        (
            "Unschedulable",
            "the scheduler finds no node for pod run-0-x: 0/2 nodes are available: 2 node(s) didn't match "
            "Pod's node affinity/selector",
            "evalstop check -f <manifest>",
        ),
        (
            "Unschedulable",
            "the scheduler finds no node for pod run-0-x: 0/2 nodes are available: 1 Insufficient "
            "nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector",
            "kubectl describe pods -n team -l evalstop.dev/job=run",
        ),
    ],
)
def test_a_command_holds_what_the_message_tells(reason: str, message: str, command: str) -> None:
    assert filled(reason, message)[0] == command


@pytest.mark.parametrize(
    ("reason", "message", "patch"),
    [
        (
            "Unreachable",
            "refused; containers[1].args[3] is '--host=127.0.0.1', which only the pod itself reaches: "
            "did you mean '--host=$(POD_IP)'?",
            [{"op": "replace", "path": f"{BOX}/1/args/3", "value": "--host=$(POD_IP)"}],
        ),
        (
            "Unreachable",
            "x; containers[0].env[2].value is 'localhost', which only the pod itself reaches: "
            "did you mean '0.0.0.0'?",
            [{"op": "replace", "path": f"{BOX}/0/env/2/value", "value": "0.0.0.0"}],
        ),
        (
            "CheckpointMissing",
            "no checkpoint of steps 0 to 20 in /c (layout HuggingFace); complete ones there: none; what lies "
            "there is of layout Plain (by step-10/manifest.json): did you mean 'Plain'?",
            [{"op": "replace", "path": "/spec/checkpoints/layout", "value": "Plain"}],
        ),
        (
            "BestCheckpointLost",
            "lost: no checkpoint of any known layout lies there; the template names /run: "
            "did you mean '/run'?",
            [{"op": "replace", "path": "/spec/checkpoints/location/volumeClaim/path", "value": "/run"}],
        ),
        (
            "LocationShared",
            "spec.checkpoints.location: /a of claim work is the same as that of RLHFJob other (/a), which",
            [{"op": "add", "path": "/spec/checkpoints/location/volumeClaim/path", "value": "<path>"}],
        ),
        (
            "LocationTaken",
            "s3://work/a: the checkpoint folder belongs to RLHFJob ns/other, and",
            [{"op": "replace", "path": "/spec/checkpoints/location/objectStore/uri", "value": "<uri>"}],
        ),
        (
            "ExitCode",
            "pod run-0 ended with exit code 137 (2 times): step 40",
            [{"op": "add", "path": f"{BOX}/0/resources/limits/memory", "value": "<memory>"}],
        ),
        (
            "TooLarge",
            "spec.gang.gpusPerReplica: 16 is more than the 2 GPUs of the largest node of pool 'p'; at most 2 "
            "is right",
            [
                {"op": "replace", "path": "/spec/gang/gpusPerReplica", "value": 2},
                {"op": "add", "path": f"{BOX}/0/resources/limits/nvidia.com~1gpu", "value": "2"},
            ],
        ),
    ],
)
def test_where_the_spec_is_fixed_the_cure_is_a_patch_of_the_manifest(
    reason: str, message: str, patch: list[object]
) -> None:
    _, text, apply = filled(reason, message)
    assert json.loads(text) == patch
    assert f"'{text}'" in apply
    assert apply.endswith("| kubectl replace -n team --force -f -")


def test_a_best_that_was_rotated_away_is_not_cured_by_a_lag() -> None:
    """A folder that has nothing, or another trainer's files, has nothing to do with either."""
    rotated = cure_of(key_of("BestCheckpointLost", "complete ones there: 20, 30")).filled(
        "run", "team", "p", "Verl"
    )
    assert rotated.text.startswith("raise trainer.max_actor_ckpt_to_keep")
    skipped = cure_of(key_of("BestCheckpointLost", f"complete ones there: 10, 30; {SKIPPED}"))
    assert "maxStepLag" in skipped.filled("run", "team", "p", "Verl").command, "but one that lay between"
    for message in ("no checkpoint of any known layout lies there", "what lies there is of layout Plain"):
        assert (
            "maxStepLag" not in cure_of(key_of("CheckpointMissing", message)).filled("a", "b", "c", "").text
        )


def test_what_only_the_owner_knows_is_left_out_and_nothing_else_is_odd() -> None:
    """Every command and patch is whole but for its blanks: braces and quotes close, JSON reads."""
    for reason, cure in (*CURES.items(), *EXAMINING.items()):
        done = cure.filled("run", "team", "a100", "")
        assert "{job}" not in done.line
        assert "{ns}" not in done.line
        for text in filter(None, (done.patch, *re.findall(r"-p '([^']+)'", done.command))):
            value = re.sub(r'(?<!")<[a-zA-Z_]+>(?!")', "0", MEANT.sub(r"<\1>", text))
            assert json.loads(value), f"{reason}: {text}"


def test_a_value_that_a_shell_or_json_would_read_otherwise_is_left_to_its_owner() -> None:
    assert meant(f"x; {did_you_mean('gold_reward')}") == "gold_reward"
    for odd in ("it's", 'say "x"', "a\\b", "a\nb"):
        assert meant(f"x; {did_you_mean(odd)}") == ""


def test_the_nearest_name() -> None:
    assert nearest("reserch", ["research", "night"]) == "research"
    assert nearest("anything", ["only"]) == "only"
    assert nearest("anything", ["research", "night"]) == ""
    assert nearest("anything", []) == ""


def test_it_is_told_whose_move_it_is() -> None:
    assert whose_move("MetricMissing") == "its owner"
    assert whose_move("NamespaceNotAllowed") == "the pool's owner"
    assert whose_move("RefusedAddress") == "whoever runs the cluster"
    named = cures._OF_THE_POOL | cures._OF_THE_CLUSTER
    assert named <= CURES.keys()
    assert not cures._OF_THE_POOL & cures._OF_THE_CLUSTER
