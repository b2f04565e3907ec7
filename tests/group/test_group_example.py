"""The example trainer by a shared group: its checkpoints are those of the run alone, with a worker killed
on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evalstop_client.client import EvalStopClient
from examples.trainer.checkpoints import CheckpointError
from examples.trainer.process import TrainerProcess
from examples.trainer.settings import parse
from examples.trainer.termination import Termination
from tests.group.plane import ROOT, GroupPlane, until

FAMILY = "examples.softmax_family:SoftmaxFamily"
STEPS = 10
RUN = (
    "--steps",
    str(STEPS),
    "--eval-every",
    "5",
    "--eval-samples",
    "64",
    "--batch",
    "32",
    "--preferences",
    "100",
)


def trainer(folder: Path, seed: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.trainer", *RUN, "--port", "0", "--seed", str(seed)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clients/python")])}
    return subprocess.Popen([*command, "--checkpoints", str(folder), *more], cwd=ROOT, env=environ)


def digest(folder: Path, step: int = STEPS) -> str:
    manifest = json.loads((folder / f"step-{step}" / "manifest.json").read_text())
    return str(manifest["files"]["params.npz"]["sha256"])


def test_checkpoints_equal_those_of_the_run_alone(tmp_path: Path) -> None:
    alone = [trainer(tmp_path / f"alone{seed}", seed) for seed in (1, 2)]
    assert [one.wait(240) for one in alone] == [0, 0]
    with GroupPlane(2, family=FAMILY, state=1 << 16, IDLE_SECONDS=30) as plane:
        plane.join("a-1", "b-1")
        for name in ("a-1", "b-1"):
            plane.client(name)
        # Each step's turn takes a while, so that the other job waits for it, and one is going on at the kill.
        paced = ("--train-seconds", "0.1", "--rollout-seconds", "0.1")
        jobs = [
            trainer(tmp_path / f"shared{seed}", seed, "--group", str(plane.disk / f"{name}.json"), *paced)
            for seed, name in ((1, "a-1"), (2, "b-1"))
        ]
        try:

            def turn_of_the_first() -> bool:
                found = plane.report() or {}
                turn = found.get("turn") or {}
                return turn.get("resident") == "a-1" and turn.get("phase") == "Calling"

            until(turn_of_the_first, 120.0, "a turn of the first job")
            os.kill(plane.pods[1].workers()["a-1"], signal.SIGKILL)
            assert [one.wait(240) for one in jobs] == [0, 0], plane.logs()
        finally:
            for one in jobs:
                one.kill()
                one.wait()
        report = plane.report()
        assert report is not None
        assert {one["name"]: one["released"] for one in report["residents"]} == {"a-1": STEPS, "b-1": STEPS}
        for name in ("a-1", "b-1"):
            with plane.client(name).turn() as turn:
                counted = turn.call("progress").result
            # `put` in the first turn, and two calls in each.
            assert counted == {"calls": 1 + 2 * STEPS, "steps": STEPS}, (
                "calls of turns that count, and no others"
            )
        # A run that goes on from its own checkpoint puts it into the group.
        (tmp_path / "again").mkdir()
        (tmp_path / "shared1" / "step-5").rename(tmp_path / "again" / "step-5")
        plane.join("c-1")
        plane.client("c-1")
        again = trainer(tmp_path / "again", 1, "--group", str(plane.disk / "c-1.json"))
        assert again.wait(240) == 0, plane.logs()
    for seed in (1, 2):
        assert digest(tmp_path / f"shared{seed}") == digest(tmp_path / f"alone{seed}")
    assert digest(tmp_path / "again") == digest(tmp_path / "alone1")


def test_without_a_group_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(tmp_path))
    with EvalStopClient(port=0, host="127.0.0.1") as client, pytest.raises(CheckpointError) as refused:
        TrainerProcess(parse(["--group"]), client, Termination())
    assert "--group: run.json names no group" in str(refused.value)
    assert "spec.sharing" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--group", "--rollouts", "local"], {}, "--group: expected --rollouts off"),
        (["--group"], {"JOB_COMPLETION_INDEX": "1"}, "expected a gang of one pod"),
        (["--rollouts", "local", "--rollout-seconds", "1"], {}, "--rollout-seconds: expected --rollouts off"),
    ],
)
def test_settings_that_do_not_go_together(
    arguments: list[str], environment: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, environment)
    assert words in capsys.readouterr().err
