"""Every command that a page shows is run by a test: here, or by the one that is named here.

A command that is neither fails, and so does a line of the tables (docs_table.py) whose command is on no page
any more, or whose test has not the words of its command.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
from docs_commands import ALL, SAID, Shown, lacks, modules
from docs_table import (
    BLOCKS,
    BY_HAND,
    CLUSTER,
    LOOK,
    MENTIONED,
    ON_A_CLUSTER,
    OTHERWISE,
    PASTED,
    SHOWN,
    WITHIN,
)
from typer.testing import CliRunner

from controller.cli.main import app
from tests.support import cli_docs

ROOT = Path(__file__).resolve().parents[2]


def whose(command: str, table: dict[str, str]) -> str | None:
    """The longest line of a table that the command begins with."""
    return max((key for key in table if command.startswith(key)), key=len, default=None)


def named() -> list[tuple[Shown, str, str]]:
    """Each command that a line is about, that line, and where it says that it is run."""
    found = []
    for shown, table in [*((s, SHOWN) for s in ALL), *((s, WITHIN) for s in SAID)]:
        if shown.command not in MENTIONED and (key := whose(shown.command, table)) is not None:
            found.append((shown, key, table[key]))
    return found


@pytest.mark.parametrize("shown", ALL, ids=str)
def test_every_command_is_run_by_a_test(shown: Shown) -> None:
    if shown.language == "" and shown.page in BLOCKS and shown.command.startswith("evalstop "):
        return
    if shown.language == "sh" and (shown.page in ON_A_CLUSTER or shown.page in PASTED):
        return
    assert whose(shown.command, SHOWN), f"{shown}: name the test that runs it in SHOWN, or run it"


@pytest.mark.parametrize("shown", [s for s in SAID if not s.command.startswith("evalstop ")], ids=str)
def test_every_command_within_a_sentence_is_run_by_a_test(shown: Shown) -> None:
    known = shown.command in MENTIONED or whose(shown.command, WITHIN)
    assert known, f"{shown}: name the test that runs it in WITHIN, or say there why it is run by hand"


def test_the_tables_name_tests_that_are_there_and_commands_that_are_shown() -> None:
    used = {(shown.language is None, key) for shown, key, _ in named()}
    assert {*SHOWN} - {key for within, key in used if not within} == set(), "no page shows these any more"
    assert {*WITHIN} - {key for within, key in used if within} == set(), "no page says these any more"
    assert MENTIONED - {shown.command for shown in SAID} == set(), "no page names these any more"
    for place in {*SHOWN.values(), *WITHIN.values(), *BLOCKS.values(), *PASTED.values(), CLUSTER}:
        if place.startswith(BY_HAND):
            assert len(place.removeprefix(BY_HAND).split()) > 3, f"{place!r}: why is it run by hand?"
            continue
        path, _, name = place.partition("::")
        assert (ROOT / path).is_file(), place
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), place


def test_the_tests_that_are_named_run_the_commands() -> None:
    """Their sources have what tells each command from others: its subcommand and its flags. A test that goes
    by the table itself runs whatever that gives it."""
    wrong, used = [], set()
    for shown, key, place in named():
        if place.startswith(BY_HAND) or place in (LOOK, BLOCKS["cli.md"]):
            continue
        without = lacks(place, shown.command)
        allowed, _ = OTHERWISE.get(key, (set(), ""))
        used |= {(key, word) for word in without & allowed}
        if without - allowed:
            wrong.append(f"{shown}: {place} has no {', '.join(sorted(without - allowed))}")
    assert wrong == []
    assert {(key, word) for key, (few, _) in OTHERWISE.items() for word in few} == used, "these it has"


def test_a_test_that_does_not_run_a_command_is_found_out() -> None:
    there = "tests/docs/test_docs_commands.py::test_what_scripts_read_is_there"
    assert lacks(there, "evalstop why run -o json") == set()
    assert lacks(there, "evalstop resume run --from best --wait") == {"resume", "--from"}
    assert lacks(there, "make check") == {*modules("check")} != set()
    assert lacks(there, "kubectl -n team get nodes,pods --show-labels | grep -v a") == {
        *("nodes", "pods", "--show-labels")
    }


def test_targets_and_benchmarks_that_pages_name_are_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for shown in ALL + SAID:
        words = shown.command.split()
        if words[0] == "make":
            assert words[1] in targets, shown
        elif words[:3] == ["python", "-m", "tests.bench"]:
            source = (ROOT / "tests" / "bench" / "__main__.py").read_text()
            if words[3:4] in (["faults"], ["group-faults"], ["tenants"]):  # they have options of their own
                assert f'["{words[3]}"]' in source
                continue
            assert all(f'"{word}": bench_' in source for word in words[3:]), shown


@pytest.mark.parametrize("shown", [s for s in ALL + SAID if s.command.startswith("evalstop ")], ids=str)
def test_every_command_and_flag_is_one_that_evalstop_knows(shown: Shown) -> None:
    text = re.split(r" \| |[;>]| && | \|\| |…$", shown.command.replace(" | --", " --"))[0]
    words = shlex.split(re.sub(r"[\[\]]", " ", text))[1:]
    command: Any = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])):
        command, words = found, words[1:]
    if isinstance(command, click.Group):
        assert not words or words[0].isupper(), f"evalstop has no {words[0]!r}"
        return
    command.make_parser(click.Context(command)).parse_args(words)


# -- those that are run here --------------------------------------------------------------------------------


def test_rules_of_the_page_on_stop_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but for the number of runs."""
    monkeypatch.chdir(tmp_path)
    commands = [s.command for s in ALL if s.page == "stop-actions.md" and "rules" in s.command]
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command)[1:] + (["--runs", "10"] if "generate" in command else ["--no-plot"])
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        if "evaluate" in command:
            rules = [rule for flag, rule in itertools.pairwise(words) if flag == "--rule"]
            rows = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
            assert [rule for rule in rules if rule not in rows] == []


def test_the_run_of_the_trainer_contract(tmp_path: Path) -> None:
    """What the page's command records is the page's table."""
    (command,) = (s.command for s in ALL if "examples.trainer" in s.command)
    words = [sys.executable, *shlex.split(command)[1:-1], str(tmp_path / "run.jsonl")]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=240)
    recorded = {p["step"]: p for p in map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())}
    rows = {
        cells[0]: [cell.strip("* ") for cell in cells[1:]]
        for line in (ROOT / "docs" / "use" / "trainer-contract.md").read_text().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 11
    }
    for name, key in (("proxy", "proxy"), ("gold", "gold")):
        for step, shown in zip(rows["step"], rows[name], strict=True):
            assert recorded[int(step)][key] == pytest.approx(float(shown), abs=0.006), (name, step)


def test_what_scripts_read_is_there() -> None:
    """The paths that the page's jq expressions go by."""
    with cli_docs.stub() as env:
        listed = json.loads(cli_docs.said("evalstop list -A -o json", env))
        stopped = [
            i["metadata"]["name"] for i in listed["items"] if i.get("status", {}).get("summary") == "Stopped"
        ]
        why = json.loads(cli_docs.said("evalstop why over -o json", env))
    assert stopped == ["over"]
    assert why["decision"]["statistic"] == 3.0
