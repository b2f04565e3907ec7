"""Jobs that the replayed nodes cannot hold: the pool was larger when they ran. They are missed out loud."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logged_world import Logged
from typer.testing import CliRunner, Result

from controller.cli.main import app
from sim.traces.past_files import read_past
from sim.what_if.arms import Alternative, setting
from sim.what_if.compare import compare
from tests.support.policy_world import logged_plans

SAID = (
    "2 of 8 jobs are left out of both sides, for their gangs do not fit into what is replayed, nodes 2x2;"
    " the largest: ns/wide-1, 4x2 GPUs."
)


def evalstop(*words: object) -> Result:
    done = CliRunner().invoke(app, ["what-if", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done


def _trains(world: Logged, key: str, gangs: int) -> None:
    world.submit(key, gangs, 2)
    world.settle()
    for step in range(4):
        world.now += 500.0
        world.progress(key, 0.1 * step, 40)
        world.settle()
    world.finish(key)
    world.settle()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of two nodes that has four at the end, when two gangs run on all four of them."""
    with logged_plans() as lines:
        world = Logged({"n1": 2, "n2": 2})
        for number in range(6):
            _trains(world, f"ns/small-{number}", 1)
        world.nodes = dict.fromkeys(("n1", "n2", "n3", "n4"), 2)
        for number in (1, 2):
            _trains(world, f"ns/wide-{number}", 4)
    log = tmp_path_factory.mktemp("grown") / "decisions.jsonl"
    log.write_text("\n".join(lines) + "\n")
    return log


def test_they_are_said_first_and_count_among_all(grown: Path, tmp_path: Path) -> None:
    picture = tmp_path / "w.svg"
    lines = evalstop(grown, "--nodes", "+1", "--plot", picture).stdout.splitlines()
    assert lines[1].endswith("6 of 8 jobs")
    assert lines.index(SAID) < next(n for n, line in enumerate(lines) if "The record replayed" in line)
    drawn = picture.read_text()
    assert all(f">{line}<" in drawn for line in ("nodes 3x2, against the record", SAID))
    found: dict[str, Any] = json.loads(evalstop(grown, "--nodes", "+1", "--json", "--no-plot").stdout)
    assert (found["jobs_compared"], found["jobs"], found["jobs_left_out"]) == (6, 8, 2)
    assert found["notes"][0] == SAID
    stopped = {one["figure"]: one for one in found["figures"]}["mean_jct"]
    assert stopped["recorded"] == pytest.approx(stopped["baseline"], rel=0.05)  # of the six alone


def test_a_second_comparison_of_the_same_history_misses_them_too(grown: Path) -> None:
    trace = read_past([grown])
    for _ in range(2):
        assert compare(trace, Alternative(stops=False)).notes[0] == SAID
    assert (len(trace.jobs), len(trace.skipped)) == (8, 0)
    assert [job.key for job in setting(trace).left_out] == ["ns/wide-1", "ns/wide-2"]


def test_where_none_is_missing_nothing_is_said(whole_log: list[str], tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("\n".join(whole_log) + "\n")
    found = json.loads(evalstop(log, "--nodes", "+1", "--json", "--no-plot").stdout)
    assert (found["jobs"], found["jobs_left_out"]) == (4, 0)
    assert not any("left out of both sides" in note for note in found["notes"])
