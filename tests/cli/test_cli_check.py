"""`evalstop check`: what is wrong with a manifest, found before it is applied."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_shell import Shell
from typer.testing import CliRunner

from controller.api import convert
from controller.api.crd import RESOURCES, root_schema
from controller.cli import yaml_reader
from controller.cli.main import app
from controller.cli.manifest_checks import modifier_notes, said_besides, unknown_fields, unserved
from controller.kube.errors import from_status
from tests.support import cli_world as w

# A few lines that stand for a billion values.
LAUGHS = "a: &a [{k: v}]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SCHEMA = root_schema(next(r.model for r in RESOURCES if r.kind == "RLHFJob"))


def put(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A manifest with a field set; None: without it."""
    changed = copy.deepcopy(manifest)
    *folders, last = path.split(".")
    inside = changed
    for name in folders:
        inside = inside[int(name)] if isinstance(inside, list) else inside.setdefault(name, {})
    if value is None:
        inside.pop(last)
    else:
        inside[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("spec.stopRul", "spec.stopRul is not known; did you mean stopRule?"),
        ("spec.metrics.0.directon", "spec.metrics[0].directon is not known; did you mean direction?"),
        ("spec.gang.gpusPerReplicas", "did you mean gpusPerReplica?"),
        ("spec.checkpoints.location.volumClaim", "did you mean volumeClaim?"),
        ("spec.gang.zzz", "spec.gang.zzz is not known; there are: gpusPerReplica, replicas"),
        ("speck", "speck is not known; did you mean spec?"),
    ],
)
def test_a_misspelt_field_is_named_with_the_one_that_is_meant(path: str, said: str) -> None:
    (told,) = unknown_fields(put(w.job("a", "ns", "p"), path, {}), SCHEMA)
    assert told.endswith(said)


@pytest.mark.parametrize(
    ("modifiers", "notes"),
    [
        ([{"patience": {"evals": 3}}, {"patience": {"evals": 30}}], ["patience is there 2 times"]),
        ([{"cooldown": {"evals": 40}}], ["[0].cooldown: without atStep", "a run of 40 evals or fewer"]),
        ([{"gate": {}}, {"cooldown": {}}], ["[1].cooldown: without atStep", "a run of 5 evals or fewer"]),
        ([{"cooldown": {"atStep": 9}}, {"cooldown": {"atStep": 90}}, {"patience": {}}], []),
    ],
)
def test_modifiers_that_may_not_be_meant_are_noted(modifiers: list[Any], notes: list[str]) -> None:
    """Two of a kind, and a cooldown of nothing but the run's start, were said to be nothing wrong."""
    asked = convert.desired(put(w.job("a", "ns", "p"), "spec.modifiers", modifiers), None)
    told = " ".join(modifier_notes(asked))
    assert all(one in told for one in notes)
    assert bool(told) == bool(notes)


def test_what_nobody_s_schema_knows_is_left_alone() -> None:
    job = put(w.job("a", "ns", "p"), "spec.workload.template.spec.template.spec.anything", 1)
    assert list(unknown_fields(put(job, "metadata.annotations", {"x": "y"}), SCHEMA)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file or directory"),
        ("a: [", "is no YAML"),
        ("kind: RLHFJob\n", "document 1 has no apiVersion and kind"),
        ("apiVersion: evalstop.dev/v1alpha1\nkind: RLHFJob\n", "document 1, a RLHFJob, has no metadata.name"),
        (
            "apiVersion: evalstop.dev/v1alpha1\nkind: RLHFJob\nmetadata: {generateName: a-}\n",
            "give it metadata.name for the check",
        ),
        ("a: {{ .Values.a }}\n", "render it first, helm template CHART"),
        ("a: b: {{ .Values.a }}\n", "render it first, helm template CHART"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "there is no RLHFJob or GPUPool"),
        ("kind: List\nitems: 5\n", "document 1 has no apiVersion and kind"),
        ("[" * 100_000, "nested deeper than 200 levels, in line 1, column 201"),
        ("&a [*a]", "alias a is within what it stands for, in line 1, column 5"),
        (LAUGHS, "more than 100000 values, aliases counted in full, in line 6, column"),
        (LAUGHS.replace("[", "{<<: [").replace("]", "]}"), "more than 100000 values"),
        ("a: " + "9" * 5000, "a number of 5000 digits is nothing that a resource can hold"),
        ("a: .nan", "number .nan is nothing"),
        ("a: !!set {b}", "tag tag:yaml.org,2002:set is nothing"),
        ("a: 2001-13-45\nb: *c", "found undefined alias 'c'"),  # a date is text, also one that is none
        ('"\\U00110000"', "is not read: chr() arg not in range"),
        ("a" * ((3 << 20) + 1), "3145729 bytes, at most 3145728 are read"),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "file.yaml"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(app, ["check", "-f", str(path)])
    assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_yaml_is_read_as_kubectl_reads_it() -> None:
    text = "a: &a {since: 2026-01-02, 1: on, q: 0x1f, t: 1:30}\nb: {<<: [*a, {q: 2, r: ~}], 1: off}\n"
    since = {"since": "2026-01-02", "t": "1:30", "q": 31}
    first, second = yaml_reader.documents(f"{text}---\n- 1_000\n")
    assert first == {"a": {**since, "1": True}, "b": {**since, "1": False, "r": None}}
    assert second == [1000]
    for file in (Path(__file__).parents[2] / "examples" / "manifests").rglob("*.yaml"):
        assert list(yaml_reader.documents(file.read_text())) == list(yaml.safe_load_all(file.read_text()))


def test_one_fault_is_told_once_and_in_words_of_manifests() -> None:
    """What the API server says of a field whose fault is told in words of ours is not told again."""
    job = put(put(w.job("a", "ns", "p"), "spec.mode", "shaddow"), "spec.gang.replicas", 0)
    own = convert.faults_of(put(job, "spec.checkpoints.pins", [1, 2, 3, 4, 5]))
    assert [one.sentence for one in own] == [
        "spec.gang.replicas: is 0: expected 1 or more",
        "spec.mode: is 'shaddow': expected 'Enforce', 'Shadow' or 'Off'; did you mean 'Shadow'?",
        "spec.checkpoints.pins: is [1, 2, 3, 4, 5]: expected at most 4 items",
    ]
    body = {
        "reason": "Invalid",
        "message": "all of it",
        "details": {
            "causes": [
                {"field": "spec.mode", "message": 'Unsupported value: "shaddow"'},
                {"field": "<nil>", "message": "Invalid value: null: some validation rules were not checked"},
                {"field": "spec.other", "message": "Invalid value: 1: too much"},
            ]
        },
    }
    refused = from_status(422, body, {})
    assert list(said_besides(refused, own)) == ["spec.other: Invalid value: 1: too much"]
    assert list(said_besides(from_status(422, {"message": "a webhook"}, {}), own)) == ["a webhook"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.metrics", [{"name": "a", "direction": "maximise"}], "did you mean 'Maximize'?"),
        ("spec.stopRule", {"kDeclines": {"minDelta": 0.02}}, 'expected text: write it in quotes, "0.02"'),
        ("metadata.name", "My_Run", "expected text like ^"),
        ("spec.gang", [1], "expected an object with fields"),
        ("spec.stopRule", {"kDeclines": {"kk": 2}}, "spec.stopRule.kDeclines.kk: there is no such field"),
        ("spec.pool", None, "spec.pool: is needed"),
    ],
)
def test_faults_are_told_in_words_of_manifests(path: str, value: Any, said: str) -> None:
    (fault,) = convert.faults_of(put(w.job("a", "ns", "p"), path, value))
    assert fault.sentence.endswith(said) or said in fault.sentence
    for word in ("Input", "Tuple", "String", "valid"):
        assert word not in fault.sentence


@pytest.mark.cluster
def test_manifests_on_a_cluster(shell: Shell, tmp_path: Path) -> None:
    """Each mistake is WRONG, exit code 1, and nothing is there afterwards."""
    limits = "spec.workload.template.spec.template.spec.containers.0.resources.limits"
    good = put(w.job("checked", shell.namespace, shell.pool), limits, {"nvidia.com/gpu": 2})
    good = put(good, "spec.scrape", {"port": 9400})
    client = shell.plane.client()
    path = f"{w.GROUP}/namespaces/{shell.namespace}/rlhfjobs"
    before = {job["metadata"]["name"] for job in client.get(path)["items"]}

    def told(*manifests: dict[str, Any], code: int = 1) -> str:
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        return str(shell("check", "-f", str(file), code=code).stdout)

    mistakes = (
        ("spec.stopRul", {"glr": {}}, "spec.stopRul is not known; did you mean stopRule?"),
        ("spec.mode", "Shaddow", "Shaddow"),
        ("spec.pool", f"{shell.pool}x", f"did you mean {shell.pool}?"),
        ("spec.gang.replicas", 0, "replicas"),
        ("spec.stopRule", {"kDeclines": {"k": 0}}, "kDeclines.k"),
        ("spec.checkpoints.location.volumeClaim.claimName", "nowhere", "nowhere"),
        ("spec.workload.template.spec.template.spec.containers.0.image", None, "image"),
        ("metadata.namespace", "no-such-namespace", "kubectl create namespace no-such-namespace"),
        ("metadata.namespace", f"{shell.namespace}x", f"did you mean {shell.namespace}?"),
        ("spec.metrics", [{"name": "a"}, {"name": "b"}], "one that must not fall is role: Guardrail"),
        (
            "spec.workload",
            {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}},
            "kubectl get jobs -n",
        ),
    )
    for field, value, said in mistakes:
        out = told(put(good, field, value))
        assert any(said in line for line in out.splitlines()), f"{field}: {out}"
        assert "WRONG" in out, (field, out)
        assert "kubectl edit rlhfjob" not in out, "it is not there yet: the file is to be corrected"
        assert "validation rules were not checked" not in out, out
        if field in ("spec.mode", "spec.pool", "spec.gang.replicas", "spec.stopRule", "spec.metrics"):
            about = [line for line in out.splitlines() if "WRONG" in line and field in line]
            assert len(about) == 1, f"one fault is one finding: {about}"
    out = told(put(good, "spec.metrics.0.name", "eval_loss"))
    assert "higher counts as better of 'eval_loss': is lower better, its direction is Minimize" in out
    never = put(good, "spec.stopRule", {"drawdown": {"maxDrop": "5"}})
    assert "maxDrop" not in told(never), "of scores without a range a fall of 5 is one like any other"
    out = told(put(never, "spec.metrics", [{"name": "gold_reward", "range": ["0", "1"]}]))
    assert "spec.stopRule.drawdown.maxDrop: the rule lets a fall of 5 in all pass" in out
    quotas = f"/api/v1/namespaces/{shell.namespace}/resourcequotas"
    client.post(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    try:
        assert "ResourceQuota 'few' lets in 1 GPU, the gang asks for 2" in told(good)
    finally:
        client.delete(f"{quotas}/few")
    assert "ResourceQuota" not in told(good)
    limits = f"/api/v1/namespaces/{shell.namespace}/limitranges"
    most = {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]}
    client.post(limits, {"metadata": {"name": "small"}, "spec": most})
    try:
        out = told(good)
        assert "a pod of spec.workload.template would be refused: " in out, out
    finally:
        client.delete(f"{limits}/small")
    assert "a pod of its template would be let in (dry run)" in told(good)
    pool = client.get(f"{w.GROUP}/gpupools/{shell.pool}")
    selected = {one["key"]: one["value"] for one in pool["spec"]["nodeSelector"]}
    labels = {"labels": {**selected, "disk": "ssd"}}
    client.post("/api/v1/nodes", {"metadata": {"name": f"{shell.pool}-disk", **labels}})
    asks = "spec.workload.template.spec.template.spec.nodeSelector"
    try:
        out = told(put(good, asks, {"disk": "nvme"}))
        assert f"no node of pool {shell.pool!r} has disk=nvme ({asks}): those there have disk=ssd" in out, out
        assert f"matches ({shell.pool}-disk) {asks}" in told(put(good, asks, {"disk": "ssd"}))
    finally:
        client.delete(f"/api/v1/nodes/{shell.pool}-disk")
    fresh = {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": "checked"},
        "spec": pool["spec"],
    }
    out = told(fresh, put(good, "spec.pool", "checked"))
    assert "there is no GPUPool" not in out, "it is in the same file"
    assert "RLHFJob checked: API server: it would be taken (dry run)" in out
    assert "GPUPool checked: API server: it would be taken (dry run)" in out
    assert f"spec.nodeSelector: GPUPool {shell.pool!r} selects " in out
    after = {job["metadata"]["name"] for job in client.get(path)["items"]}
    assert before == after, "nothing is changed"
    nobody = str(shell.plane.kubeconfig_for("check-nobody"))
    refused = shell("check", "-f", str(tmp_path / "job.yaml"), "--kubeconfig", nobody, code=4)
    assert "check-nobody" in refused.stderr


@pytest.mark.cluster
def test_a_job_of_a_user_that_is_referred_to_is_cured_by_the_line_that_is_printed(
    shell: Shell, tmp_path: Path
) -> None:
    """One line, whatever it lacks; and of one that lacks nothing but its own label, that label."""
    job, own = tmp_path / "job.yaml", tmp_path / "own.yaml"
    template = put(w.TEMPLATE, "spec.completionMode", None)
    resources = {"limits": {"nvidia.com/gpu": 2}}
    template = put(template, "spec.template.spec.containers.0.resources", resources)
    template = put(
        template, "spec.template.spec.containers.0.volumeMounts", [{"name": "c", "mountPath": "/c"}]
    )
    volume = {"name": "c", "persistentVolumeClaim": {"claimName": "work"}}
    template = put(template, "spec.template.spec.volumes", [volume])
    own.write_text(yaml.safe_dump(put(template, "metadata", {"name": "own"})))
    ref = {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "own"}}
    asked = w.job("refers", shell.namespace, shell.pool, workload=ref, scrape={"port": 9400})
    job.write_text(yaml.safe_dump(asked))

    def kubectl(line: str) -> None:
        environ = {
            **os.environ,
            "KUBECONFIG": str(shell.plane.kubeconfig),
            "PATH": f"{shell.plane.binaries['kubectl'].parent}:{os.environ['PATH']}",
            **shell.plane.kubectl_environment,
        }
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def cure(code: int = 1) -> str:
        document = json.loads(shell("check", "-f", str(job), "-o", "json", code=code).stdout)
        of_job = [one for one in document["findings"] if one["about"] == "workload"]
        assert not code or "metadata.labels" in of_job[0]["text"], document
        return str(of_job[0]["cure"]["apply"] or of_job[0]["cure"]["command"]) if code else ""

    kubectl(f"kubectl apply -n {shell.namespace} -f {own}")
    try:
        kubectl(cure().replace("<job_manifest>", str(own)))
        cure(0)
        path = f"/apis/batch/v1/namespaces/{shell.namespace}/jobs/own"
        made = shell.plane.client().get(path)["spec"]
        assert made["suspend"] is True
        (container,) = made["template"]["spec"]["containers"]
        assert [one["name"] for one in container["volumeMounts"]] == ["evalstop-run", "c"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        # One without any label gets those of its pods.
        kubectl(f"kubectl label -n {shell.namespace} job own team=a evalstop.dev/job-")
        kubectl(cure())
        cure(0)
    finally:
        kubectl(f"kubectl delete job own -n {shell.namespace} --wait=false")


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_pool_that_says_that_nobody_schedules_its_pods_is_told(status: str) -> None:
    condition = {"type": "PodsScheduled", "status": status, "reason": "NoScheduler", "message": "m"}
    found = list(unserved({"status": {"conditions": [condition]}}))
    assert [one.text for one in found] == (["NoScheduler: m"] if status == "False" else [])
