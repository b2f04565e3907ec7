"""GRPO of torch's by a shared worker group of two members: the final checkpoints are those of the run
alone."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.group.plane import GroupPlane, until
from tests.real_trainers.process import HERE, PATIENCE, Start, environment, report

pytestmark = pytest.mark.timeout(3600)

STEPS = 5
LONG = 4 * PATIENCE  # six processes import torch and transformers, on two busy cores
FAMILIES = {"ddp": "Policy", "fsdp2": "SharedPolicy"}


def digests(out: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("*.safetensors"))
    }


@pytest.mark.parametrize("parallel", list(FAMILIES))
def test_two_jobs_on_a_group_end_with_the_checkpoint_of_the_run_alone(
    parallel: str, trainer: Start, tmp_path: Path
) -> None:
    """One job sends PPO's name, one its own loss's gradients, and begins anew from a checkpoint on the way.

    A worker of the first one is killed.
    """
    alone = trainer("group_grpo.py", 2, PARALLEL=parallel)
    alone.start(STEPS)
    assert alone.end() == 0, alone.said[-4000:]
    wanted = digests(alone.out)
    assert set(wanted) == {"model.safetensors", "optimizer.safetensors"}
    python = os.environ["EVALSTOP_REAL_TRAINERS"]
    family = f"{HERE / 'group_family.py'}:{FAMILIES[parallel]}"
    with GroupPlane(
        2,
        state=1 << 20,
        family=family,
        environ=environment(),
        PYTHON=python,
        TURN_SECONDS=LONG,
        IDLE_SECONDS=LONG,
    ) as plane:
        plane.join("a-1", "b-1")
        jobs = {}
        for name, more in (("a-1", {}), ("b-1", {"CUSTOM": "1", "RESTART": "2"})):
            plane.client(name)
            variables = environment(GROUP_TICKET=str(plane.disk / f"{name}.json"), **more)
            with (tmp_path / f"{name}.log").open("wb") as log:
                command = [python, str(HERE / "group_grpo.py"), str(tmp_path / name), str(STEPS)]
                jobs[name] = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:

            def in_a_turn() -> bool:
                """Return whether the first job has had two turns, and is in another one."""
                found = plane.report() or {"residents": [], "turn": None}
                first = next((one for one in found["residents"] if one["name"] == "a-1"), {"released": 0})
                turn = found["turn"] or {}
                return first["released"] >= 2 and (turn.get("resident"), turn.get("phase")) == (
                    "a-1",
                    "Calling",
                )

            until(lambda: in_a_turn() or jobs["a-1"].poll() is not None, LONG, "the third turn of a-1")
            os.kill(plane.pods[1].workers()["a-1"], signal.SIGKILL)
            for name, job in jobs.items():
                assert job.wait(LONG) == 0, (tmp_path / f"{name}.log").read_text()[-4000:] + plane.logs()
            found = plane.report()
            assert found is not None
            turns = {one["name"]: (one["released"], one["lost"]) for one in found["residents"]}
            assert turns["a-1"][0] == STEPS, "each step was one turn that counts"
            assert turns["b-1"][0] == STEPS + 1, "and one to begin anew"
        finally:
            for job in jobs.values():
                job.kill()
                job.wait()
    for name in jobs:
        assert digests(tmp_path / name) == wanted, name
    report(
        f"GRPO by a group of two members, {parallel}: {STEPS} steps, turns (released, lost) {turns}, "
        f"a worker killed; model and optimizer of both jobs equal the run alone: "
        f"{wanted['model.safetensors'][:12]}"
    )
