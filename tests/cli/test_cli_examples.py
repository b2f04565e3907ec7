"""Examples in the help, and both ways to ask for JSON."""

from __future__ import annotations

import shlex

import pytest
import typer.main
from typer.testing import CliRunner

from controller.cli.examples import EXAMPLES
from controller.cli.lazy_group import even
from controller.cli.main import COMMANDS, app

GROUP = typer.main.get_command(app)
EVERY = [(name, command) for name, examples in EXAMPLES.items() for _, command in examples]


def test_every_command_has_examples_and_they_stand_in_its_help() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    for name in COMMANDS:
        page = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "160"}).stdout
        assert "Examples" in page, name
        for _, command in EXAMPLES[name]:
            assert command in page, f"{name}: {command}"


@pytest.mark.parametrize(("name", "line"), EVERY)
def test_an_example_is_a_command_that_can_be_run(name: str, line: str) -> None:
    """Its words are parsed by the command itself; a flag that is gone, or a missing name, fails."""
    program, *words = shlex.split(line)
    assert (program, words[0]) == ("evalstop", name)
    command, place = GROUP, "evalstop"
    while hasattr(command, "commands") and words != ["--help"]:
        found = command.commands.get(words[0])
        assert found is not None, f"{place} has no {words[0]}"
        command, place, words = found, f"{place} {words[0]}", words[1:]
    if "--help" not in words:
        command.make_context(name, list(words))


@pytest.mark.parametrize(
    ("args", "known", "result"),
    [
        (["run", "--json"], {"-o"}, ["run", "-o", "json"]),
        (["run", "-o", "json"], {"-o"}, ["run", "-o", "json"]),
        (["run", "-o", "json"], {"--json"}, ["run", "--json"]),
        (["-ojson"], {"--json"}, ["--json"]),
        (["--output=json", "x"], {"--json"}, ["--json", "x"]),
        (["-o", "yaml"], {"--json"}, ["-o", "yaml"]),
        (["--json"], {"--json", "-o"}, ["--json"]),
        (["--", "--json"], {"-o"}, ["--", "--json"]),
        (["--json"], set(), ["--json"]),
    ],
)
def test_json_is_asked_for_in_both_ways(args: list[str], known: set[str], result: list[str]) -> None:
    assert even(args, known) == result


def test_a_command_of_a_group_takes_both_ways_too() -> None:
    words = ["sim", "base-rate", "--seeds", "1", "--set", "jobs=20", "--workers", "1"]
    one, other = CliRunner().invoke(app, [*words, "--json"]), CliRunner().invoke(app, [*words, "-o", "json"])
    assert one.exit_code == 0, one.output
    assert one.stdout == other.stdout
