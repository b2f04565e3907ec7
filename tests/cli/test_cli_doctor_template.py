"""Doctor on a workload's template: what becomes of the trainer when its pod is told to end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cli import get, job_view
from controller.cli.doctor import job as checks
from controller.cli.doctor import template
from controller.cli.doctor.findings import Finding, Level, ok
from controller.cli.terminal import Terminal
from controller.kube.errors import NotFound
from controller.policy.job.record import FileOwner, FoundLayout, JobRecord
from controller.policy.types import Attempt, EvalPoint
from tests.support import cli_world as w

IGNORES = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}


def job(command: list[str], *rules: dict[str, Any], grace: int | None = 60, **spec: Any) -> dict[str, Any]:
    """A Job whose first container has this command."""
    pod: dict[str, Any] = {"containers": [{"name": "trainer", "image": "x", "command": command}]}
    if grace is not None:
        pod["terminationGracePeriodSeconds"] = grace
    policy = {"podFailurePolicy": {"rules": list(rules)}} if rules else {}
    return {"kind": "Job", "spec": {"template": {"spec": pod}, **policy, **spec}}


def found(workload: dict[str, Any], step_seconds: float | None = None) -> list[tuple[Level, str, str]]:
    return [(f.level, f.about, f.text) for f in template.examined(workload, step_seconds)]


WELL = [ok("launcher", "SIGTERM reaches the trainer, and what it then ends with is no failure")]


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py"],
        ["sh", "-c", "python train.py --out /checkpoints"],  # the shell becomes the last command
        ["bash", "-ec", "cd /work\nexport A=1\nexec python train.py"],
        ["sh", "-c", "python train.py \\\n  --out /checkpoints > log 2>&1\n"],
        ["bash", "-c", "trap 'kill -TERM $!' TERM; python train.py & wait"],
        ["/bin/sh", "/opt/start.sh"],  # what is in it cannot be seen
        [],
    ],
)
def test_a_template_as_it_should_be(command: list[str]) -> None:
    assert list(template.examined(job(command, IGNORES))) == WELL


def test_the_examples_are_as_they_should_be(repository: Path) -> None:
    manifests = sorted((repository / "examples" / "manifests").glob("[3-6]0-*.yaml"))
    assert manifests
    for manifest in manifests:
        for document in yaml.safe_load_all(manifest.read_text()):
            assert list(template.examined(document["spec"]["workload"]["template"])) == WELL, manifest


WRONG = [
    (["accelerate", "launch", "train.py"], "accelerate launch dies at once of SIGTERM"),
    (["sh", "-c", "cd /w && accelerate launch train.py"], "accelerate launch dies at once of SIGTERM"),
    (["python", "-m", "accelerate.commands.launch", "t.py"], "accelerate launch dies at once of SIGTERM"),
    (["sh", "-c", "pip install x; python train.py"], "the shell gets SIGTERM, the trainer does not"),
    (["bash", "-xc", "python train.py | tee log"], "the shell gets SIGTERM, the trainer does not"),
    (["bash", "-c", "cd /w\ntorchrun train.py"], "the shell gets SIGTERM, the trainer does not"),
]


@pytest.mark.parametrize(("command", "said"), WRONG)
def test_a_trainer_that_does_not_hear_of_sigterm(command: list[str], said: str) -> None:
    ignored = {**IGNORES, "onExitCodes": {"operator": "In", "values": [1, 143]}}
    told = [text for level, about, text in found(job(command, ignored)) if level is Level.WRONG]
    assert any(said in text for text in told)


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_the_rule_for_143_comes_with_the_restart_policy_that_it_needs(policy: str) -> None:
    """The API server refuses podFailurePolicy beside any other, as was seen on kind."""
    workload = job(["python", "train.py"])
    workload["spec"]["template"]["spec"]["restartPolicy"] = policy
    (one,) = [one for one in template.examined(workload) if one.about == "exit code"]
    assert one.cure.line.startswith("set restartPolicy: Never") == (policy != "Never")
    assert "add one with action Ignore, onExitCodes In [143]" in one.cure.line


def test_ray_is_told_what_it_costs() -> None:
    ((level, about, text),) = found(job(["ray", "job", "submit", "--", "python3", "-m", "verl"]))
    assert (level, about) == (Level.NOTE, "launcher")
    assert "nothing is saved" in text


@pytest.mark.parametrize("module", ["verl.trainer.main_ppo", "openrlhf.cli.train_ppo_ray"])
def test_a_driver_of_rays_ends_with_1(module: str) -> None:
    """Seen with Ray 2.60.0: its driver ends with 1 at once."""
    command = ["bash", "-c", f"exec python3 -m {module} x=1"]
    said = [(level, text) for level, _, text in found(job(command, IGNORES))]
    assert [level for level, _ in said] == [Level.NOTE, Level.NOTE]
    assert "nothing is saved" in said[0][1]
    assert "ignores exit code 1 (a driver of Ray's ends with 1)" in said[1][1]


TORCHRUN = ["torchrun", "--nproc-per-node=8", "train.py"]
ALL_BUT_0 = {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [0]}}
FAILS = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 42]}}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("command", "rules", "level", "said"),
    [
        (["python"], [], Level.NOTE, "no rule of podFailurePolicy ignores exit code 143"),
        (["python"], [DISRUPTED], Level.NOTE, "backoffLimit is 3"),
        (TORCHRUN, [IGNORES], Level.NOTE, "ignores exit code 1 (torchrun ends with 1"),
        (["python", "-m", "torch.distributed.run", "t.py"], [IGNORES], Level.NOTE, "exit code 1 "),
        (["python"], [FAILS, IGNORES], Level.WRONG, "fails the Job at exit code 143"),
        (TORCHRUN, [FAILS], Level.WRONG, "fails the Job at exit code 143"),
        (TORCHRUN, [IGNORES, FAILS], Level.WRONG, "fails the Job at exit code 1"),
    ],
)
def test_an_exit_code_that_counts_as_a_failure(
    command: list[str], rules: list[dict[str, Any]], level: Level, said: str
) -> None:
    ((seen, about, text),) = found(job(command, *rules, backoffLimit=3))
    assert (seen, about) == (level, "exit code")
    assert said in text


@pytest.mark.parametrize("rules", [[ALL_BUT_0], [DISRUPTED, IGNORES, FAILS]])
def test_the_first_rule_that_fits_counts(rules: list[dict[str, Any]]) -> None:
    assert list(template.examined(job(["python"], *rules))) == WELL


@pytest.mark.parametrize(
    ("grace", "step", "level", "said"),
    [
        (None, None, Level.NOTE, "no terminationGracePeriodSeconds, so it is 30 s: one step and one save"),
        (None, 45.0, Level.WRONG, "so it is 30 s, and a step takes 45 s"),
        (60, 61.0, Level.WRONG, "terminationGracePeriodSeconds is 60, and a step takes 61 s"),
    ],
)
def test_a_grace_period_that_is_shorter_than_a_step(
    grace: int | None, step: float | None, level: Level, said: str
) -> None:
    ((seen, about, text),) = found(job(["python"], IGNORES, grace=grace), step)
    assert (seen, about) == (level, "grace period")
    assert said in text


def reading(**record: Any) -> job_view.Reading:
    return job_view.Reading(w.whole("run", w.running()), replace(JobRecord(), **record))


def test_how_long_a_step_takes_is_read_off_the_evals() -> None:
    """At most: two that one scrape read first have the same time, and a restart is between two lives."""
    at = [(10, 0, "a"), (20, 900, "a"), (30, 900, "a"), (40, 1500, "a"), (20, 1510, "b"), (30, 2700, "b")]
    evals = tuple(EvalPoint(step, 0.5, Attempt(1, life)) for step, _, life in at)
    seen = reading(evals=evals, eval_times=tuple(seconds for _, seconds, _ in at))
    assert template.seconds_per_step(seen) == 60.0
    assert template.seconds_per_step(reading()) is None


def test_the_owner_of_the_files_is_named() -> None:
    """By doctor and by get: as whom access Jobs run, and by which file, where nobody named a user."""
    owner = FileOwner(1000, 2000, "checkpoint-40/model.safetensors")
    seen = reading(file_owner=owner, layout=FoundLayout("HuggingFace", "checkpoint-40/trainer_state.json"))

    class Nothing:
        """A cluster in which no claim and no Job is left."""

        async def get(self, *_: Any) -> Any:
            raise NotFound(404, "NotFound", "not found")

        async def list(self, *_: Any, **__: Any) -> Any:
            return [], None

    async def examined() -> list[Finding]:
        nothing: Any = Nothing()
        return [f async for f in checks.checkpoints(nothing, seen)]

    said = [f.text for f in asyncio.run(examined())]
    assert "they are reached as user 1000, group 2000, whose checkpoint-40/model.safetensors is" in said
    assert "layout HuggingFace, by checkpoint-40/trainer_state.json" in said
    page = get.page(seen, 0.0, Terminal(width=120, colour=False, unicode=False))
    assert any("user 1000, group 2000, by checkpoint-40/model.safetensors" in line for line in page)
