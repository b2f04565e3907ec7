"""`evalstop sim rollout …` as users run it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.cli.sim_rollout import COMMANDS
from sim.rollout.registry import COMPARISONS

SMALL = (
    "--seeds", "2", "--workers", "1", "--set", "prompts=32", "--set", "slots=16",
    "--set", "per_epoch=1", "--set", "epochs=2", "--set", "most=4",
)  # fmt: skip


def run(*args: str | Path, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["sim", "rollout", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_commands_are_the_comparisons() -> None:
    assert list(COMMANDS) == list(COMPARISONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_prints_one_json_document_with_its_goals(name: str) -> None:
    args = (*SMALL, "--set", "epochs=5") if name == "headline" else SMALL
    out, _ = run(name, *args, "--json")
    document = json.loads(out)
    assert document["experiment"] == name
    assert document["setting"]["prompts"] == 32
    goals = [row for row in document["rows"] if row["goal"]]
    assert goals
    assert {row["met"] for row in goals} <= {"met", "not met"}
    missed = [row["what"] for row in goals if row["met"] == "not met"]
    assert all(any(what in note for note in document["notes"]) for what in missed), "losses are said"


def test_a_table_is_printed_and_written(tmp_path: Path) -> None:
    table = tmp_path / "starts.csv"
    out, _ = run("starts", *SMALL, "--table", table)
    assert "What slow starts cost" in out
    assert "Release forced" in out
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert float(rows[0]["speed_low"]) <= float(rows[0]["speed"]) <= float(rows[0]["speed_high"])


def test_the_same_command_prints_the_same() -> None:
    args = ("ablation", *SMALL, "--json")
    assert run(*args)[0] == run(*args)[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("slot=3", "--set: 'slot' is not allowed, expected one of"),
        ("slots", "expected NAME=VALUE"),
        ("slots=x", "--set slots: 'x' is not allowed, expected a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(given: str, words: str) -> None:
    _, err = run("headline", "--set", given, code=2)
    assert words in err
