"""Real GRPO runs as RLHFJobs on the local control plane: stopped, confirmed, preempted, gone on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.record import record
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE
from deploy.local.acquire import Found
from deploy.local.demo import cast
from deploy.local.demo.stage import stage
from deploy.local.report import silent
from sim import specs
from sim.foresight import RuleSpec
from tests.real_trainers.process import HERE, REPOSITORY, report
from tests.support.stage_jobs import StageJobs, holds

pytestmark = pytest.mark.timeout(2400)

NAMESPACE = "real"
METRIC = "eval_rewards/gold/mean"
PATIENCE = 900.0  # s for a run to get somewhere
Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageJobs]:
    """One node with one GPU, in a pool that preempts for the shorter job."""
    scenes = cast.load(namespace=NAMESPACE)
    supplies = [s for s in scenes.supplies if s["kind"] != "Namespace" or s["metadata"]["name"] == NAMESPACE]
    for one in supplies:
        if one["kind"] == "GPUPool":
            one["spec"].update(queuePolicy={"srtf": {}}, preemption={"graceSeconds": 120})  # type: ignore[index]
    work = tmp_path_factory.mktemp("real") / "plane"
    with stage(work, scenes.node_labels, silent, gpus=(1,)) as built:
        built.apply(supplies)
        yield StageJobs(built, NAMESPACE, PATIENCE)


def job(name: str, *, steps: int, seconds: int, every: int = 5, **spec: Any) -> Json:
    """A GRPO run in an image that sets no user, as most trainers' images."""
    python = os.environ["EVALSTOP_REAL_TRAINERS"]
    variables = {
        "PYTHONPATH": str(REPOSITORY / "clients" / "python"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "EVERY": str(every),
        "STEP_SECONDS": "1.5",  # an eval takes longer than from one scrape to the next, as in long runs
    }
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": "trainer",
        "image": "evalstop/example-trainer:0.1.0",
        "command": [python, str(HERE / "grpo.py"), f"/checkpoints/{name}", str(steps)],
        "env": [address, *({"name": key, "value": value} for key, value in variables.items())],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    rules = [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}]
    workload = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": pod},
    }
    checkpoints = {
        "location": {"volumeClaim": {"claimName": "checkpoints", "path": f"/{name}"}},
        "layout": "HuggingFace",
        "retention": {"volumeClaim": {"claimName": "retained", "path": "/"}},
        "keep": "Best",
    }
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "pool": "research",
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "expectedDurationSeconds": seconds,
            "metrics": [{"name": METRIC, "direction": "Maximize", "role": "Primary"}],
            "checkpoints": checkpoints,
            "scrape": {"intervalSeconds": 5},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": workload}},
            **spec,
        },
    }


def first_verdict(cluster: StageJobs, name: str) -> int:
    """Return the step of the eval at which the rule first said to stop the run."""
    for line in cluster.stage.decision_log().read_text().splitlines():
        for one in json.loads(line).get("input", {}).get("jobs", ()):
            if one["key"] == f"{NAMESPACE}/{name}" and one.get("proposal"):
                return int(one["proposal"]["step"])
    pytest.fail(f"{name}: no decision says that it is to be stopped")


def stops(evals: list[Any], rule: str, folder: Path) -> bool:
    """Whether `evalstop rules evaluate` says that the rule stops a run with these evals."""
    history = folder / f"{len(evals)}.csv"
    with history.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["series_id", "step", "eval", "stderr", "n", "label"])
        rows.writerows(["run", e.step, e.score, e.stderr, e.samples, "healthy"] for e in evals)
    command = [
        sys.executable,
        "-m",
        "controller.cli",
        "rules",
        "evaluate",
        str(history),
        "--json",
        "--no-plot",
    ]
    done = subprocess.run([*command, "--rule", rule], capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    return bool(row["false_stops"])  # of one series that is called healthy: stopped or not


def test_a_run_past_its_best_is_stopped_where_the_rule_alone_would(
    cluster: StageJobs, tmp_path: Path
) -> None:
    rule = specs.rule_text(RuleSpec(DEFAULT_RULE, DEFAULT_MODIFIERS))
    cluster.stage.apply([job("grpo", steps=400, seconds=600)])
    status = cluster.wait("grpo", "stopped", lambda s: holds(s, "GPUsReleased"))
    assert "decision" in status, json.dumps(status, indent=1)
    decision, best = status["decision"], status["best"]
    verdict = first_verdict(cluster, "grpo")
    kept = record(status)
    judged = [e for e in kept.evals if e.step <= verdict]
    assert judged[0].step == 5, "all evals are still in the status"
    assert all(e.stderr and e.samples for e in judged[1:])
    assert stops(judged, rule, tmp_path)
    alone = len(judged)
    while stops(judged[: alone - 1], rule, tmp_path):
        alone -= 1
    # Evals that the gate has asked for come seconds apart: the operator judges all that one scrape has read.
    read = dict(zip(reversed([e.step for e in kept.evals]), reversed(kept.eval_times), strict=False))
    assert read[judged[alone - 1].step] == read[verdict], f"alone it stops at {judged[alone - 1]}: {read}"
    # What was kept is the best one, and it loads.
    retained = status["retained"][-1]
    assert retained["step"] == best["step"]
    (weights,) = cluster.stage.claim_folder(NAMESPACE, "retained").rglob(
        f"*{best['step']}*/**/model.safetensors"
    )
    load = "import sys; from transformers import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1])"
    subprocess.run([os.environ["EVALSTOP_REAL_TRAINERS"], "-c", load, str(weights.parent)], check=True)
    report(
        f"GRPO as an RLHFJob: best {best['score']} at step {best['step']}, past it by the eval of {verdict}, "
        f"stopped at {decision['step']} of 400; `rules evaluate --rule {rule}` stops at the eval of "
        f"{judged[alone - 1].step}, which the same scrape has read; the kept checkpoint loads"
    )
    cluster.delete("grpo")


def test_a_stop_is_confirmed_by_an_eval_asked_for_at_once(cluster: StageJobs) -> None:
    rule = {"stopRule": {"kDeclines": {"k": 2}}, "modifiers": [{"confirm": {}}]}
    cluster.stage.apply([job("sure", steps=400, seconds=600, **rule)])
    status = cluster.wait("sure", "stopped", lambda s: holds(s, "GPUsReleased"))
    asked = [e.step for e in record(status).evals if e.step % 5]
    assert asked, "an eval between the trainer's own"
    assert status["decision"]["step"] >= asked[-1]
    report(f"`confirm`: evals asked for at steps {asked}, stopped at step {status['decision']['step']}")
    cluster.delete("sure")


def test_a_preempted_run_saves_makes_room_and_goes_on_where_it_was(cluster: StageJobs) -> None:
    mode = {"mode": "Shadow"}  # nothing but the queue stops these
    cluster.stage.apply([job("long", steps=100_000, seconds=86_400, **mode)])
    cluster.wait("long", "evaluated", lambda s: len(s.get("evals") or ()) >= 3)
    cluster.stage.apply([job("short", steps=10, seconds=600, **mode)])
    cluster.wait("short", "complete", lambda s: holds(s, "Completed"))
    again = cluster.wait("long", "running again", lambda s: s.get("attempt") == 2 and holds(s, "Running"))
    assert again["preemptions"] == 1
    before = max(int(line.split()[0]) for line in again["evals"])
    on = cluster.wait(
        "long",
        "evaluated again",
        lambda s: max(int(line.split()[0]) for line in s["evals"]) > before,
    )
    log = cluster.stage.plane.kubectl(
        "-n", NAMESPACE, "logs", "-l", "batch.kubernetes.io/job-name=long", "--tail=-1"
    )
    resumed = next(line for line in log.splitlines() if line.startswith("RESUME "))
    assert resumed != "RESUME None", "it went on, and did not start afresh"
    report(f"preempted after step {before}: {resumed}, evals go on to {on['evals'][-1].split()[0]}")
    cluster.delete("long")
    cluster.delete("short")
