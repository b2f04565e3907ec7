"""`evalstop sim sharing …` as users run it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.cli.sim_sharing import COMMANDS
from sim.sharing.registry import COMPARISONS

SMALL = ("--seeds", "2", "--workers", "1", "--set", "steps=40")
FEW = (
    "--seeds", "1", "--workers", "1", "--set", "jobs=20", "--set", "gpus=512", "--set", "longest=50",
    "--set", "kinds=6",
)  # fmt: skip


def run(*args: str | Path, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["sim", "sharing", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_commands_are_the_comparisons() -> None:
    assert list(COMMANDS) == list(COMPARISONS)


@pytest.mark.parametrize("name", [*COMMANDS, "replay"])
def test_each_prints_one_json_document_with_its_goals(name: str) -> None:
    out, _ = run(name, *(FEW if name == "replay" else SMALL), "--json")
    document = json.loads(out)
    assert document["experiment"] == name
    goals = [row for row in document["rows"] if row["goal"]]
    assert goals
    assert {row["met"] for row in goals} <= {"met", "not met"}
    missed = [row["what"] for row in goals if row["met"] == "not met"]
    assert all(any(what in note for note in document["notes"]) for what in missed), "losses are said"


def test_a_table_and_a_plot_are_written(tmp_path: Path) -> None:
    table, plot = tmp_path / "curve.csv", tmp_path / "saving.svg"
    run("curve", *SMALL, "--table", table)
    out, _ = run("saving", *SMALL, "--plot", plot)
    assert "235B, R = 24" in out
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert float(rows[1]["hours_low"]) <= float(rows[1]["hours"]) <= float(rows[1]["hours_high"])
    assert "GPU-hours saved" in plot.read_text()


def test_the_same_command_prints_the_same() -> None:
    args = ("arms", *SMALL, "--json")
    assert run(*args)[0] == run(*args)[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--set", "step=3"), "--set: 'step' is not allowed, expected one of"),
        (("--set", "steps"), "expected NAME=VALUE"),
        (("--set", "steps=x"), "--set steps: 'x' is not allowed, expected a number above 0"),
        (("--plot", "saving.gif"), "--plot: 'saving.gif' is not allowed, expected a name with .svg"),
        (("--plot", "none/saving.svg"), "expected a file in a folder that exists"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(given: tuple[str, ...], words: str) -> None:
    _, err = run("saving", *SMALL, *given, code=2)
    assert words in err
