"""The example trainer's parameters do not depend on who generated, when, where, or who was killed
meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rollouts_world import Pods, StepServer, counted, environment, until

STEPS = 4
GIVEN = ["--steps", str(STEPS), "--seed", "11", "--eval-every", "100", "--rollout-most", "48", "--port", "0"]


def trainer(folder: Path, *more: str, run: Path | None = None, token: str = "") -> subprocess.Popen[str]:
    given = {} if run is None else {"EVALSTOP_RUN_DIR": str(run), "EVALSTOP_STEPS_TOKEN": token}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.trainer", *GIVEN, *more],
        env=environment(**given),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def digest(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the final parameters' SHA-256 and the tokens that were trained on."""
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0, text
    found = re.search(r"parameters sha256 (\w{64}) after (\d+) tokens", text)
    assert found, text
    return found[1], int(found[2])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    return digest(trainer(tmp_path_factory.mktemp("alone"), "--rollouts", "local"))


def pods_run(world: Pods, server: StepServer, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    run, record = tmp_path / "run", tmp_path / "steps.jsonl"
    run.mkdir()
    document = {"uid": "job-1", "attempt": 3, "steps": {"urls": [server.url], "ca": server.ca}}
    (run / "run.json").write_text(json.dumps(document))
    more = [
        "--rollouts",
        "pods",
        "--rollouts-record",
        str(record),
        "--checkpoints",
        str(tmp_path / "checkpoints"),
    ]
    return trainer(tmp_path, *more, run=run, token=server.token("trainer-1")), record


def test_static_actors(world: Pods, server: StepServer, tmp_path: Path, alone: tuple[str, int]) -> None:
    for number in (0, 1):
        world.start(number)
    world.await_ready(0, 1)
    process, record = pods_run(world, server, tmp_path)
    assert digest(process) == alone
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert sum(line["tokens"] for line in lines) == alone[1]
    known = [line for line in lines if counted(line) is not None]
    assert known, "a step waits 2 s for the counters; not all four can have been too late"
    for line in known:
        assert counted(line) == line["tokens"], "the learner generated nothing: the engines' counters add up"
    assert all(line["rank"] is not None for line in lines)


def test_elastic_actors_that_are_killed(
    world: Pods, server: StepServer, tmp_path: Path, alone: tuple[str, int]
) -> None:
    """One actor is killed in each step and another started; one is recalled in between."""
    world.start(0)
    world.await_ready(0)
    process, record = pods_run(world, server, tmp_path)
    over = threading.Event()

    def chaos() -> None:
        number, step = 0, 0
        while not over.is_set():
            demand = server.do(lambda: server.directory.demand("job-1"))
            if demand.generating and demand.step > step:
                step = demand.step
                world.start(number + 1)
                world.await_ready(number + 1)
                if step == 2:
                    world.recall(number)
                    over.wait(1.0)
                world.kill(number)
                number += 1
            over.wait(0.05)

    breaking = threading.Thread(target=chaos)
    breaking.start()
    try:
        assert digest(process) == alone
    finally:
        over.set()
        breaking.join(90)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert sum(line["tokens"] for line in lines) == alone[1]
    happened = [name for line in lines for name in line["counts"]]
    assert "lost" in happened or "recalled" in happened


def test_a_run_without_a_step_api_says_so(tmp_path: Path) -> None:
    process = trainer(tmp_path, "--rollouts", "pods")
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the job needs spec.rollout" in text
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: False, "never", 0.01)
