"""The command starts without what takes long to load, and every command has help."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from controller.cli.main import app

# pydantic is not among them: typer itself reads flags by it.
HEAVY = (
    "kubernetes",
    "aiohttp",
    "matplotlib",
    "numpy",
    "scipy",
    "fastapi",
    "yaml",
    "rich.live",
    "kopf",
    "sim",
)
FOUND = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = sorted(FOUND)


@pytest.mark.parametrize("arguments", [["--help"], ["why", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """A test on what is loaded, not on time: time is the machine's."""
    program = (
        "import json, sys, contextlib, io\n"
        "from controller.cli.main import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    app({arguments!r})\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_begins_with_what_it_does(name: str) -> None:
    found = FOUND[name]
    assert len((found.help or "").splitlines()[0].split()) > 3
    for parameter in found.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name}"


def test_help_is_printed() -> None:
    result = CliRunner().invoke(app, ["list", "--help"], env={"COLUMNS": "100"})
    assert (result.exit_code, "--all-namespaces" in result.stdout) == (0, True)


def test_the_commands_that_are_promised_are_there() -> None:
    promised = (
        "list get why history simulate resume pin mode pools queue top doctor dashboard stop version replay"
    )
    assert set(promised.split()) <= set(COMMANDS)


def flags(name: str) -> set[str]:
    return {flag for parameter in FOUND[name].params for flag in parameter.opts}


# Those that ask a cluster: `--context` is how they are known, so that a new one is among them.
ASKING = [name for name in COMMANDS if "--context" in flags(name)]
# Of a kind that is in no namespace, or of a whole cluster.
NOWHERE = {"pools", "parity"}


@pytest.mark.parametrize("name", ASKING)
def test_commands_that_talk_to_a_cluster_take_kubectl_s_flags(name: str) -> None:
    assert {"--kubeconfig", "--context", "--request-timeout"} <= flags(name)
    assert name in NOWHERE or {"--namespace", "-n"} <= flags(name)


def test_commands_that_show_what_is_there_take_kubectl_s_flags_for_that() -> None:
    shown = {"list", "get", "pools", "queue"}
    assert shown <= set(ASKING)
    for name in shown:
        assert {"--output", "-o", "--watch", "-w"} <= flags(name), name
    for name in shown - {"queue"}:
        refused = CliRunner().invoke(app, [name, "one", "-o", "odd"], env={"COLUMNS": "200"})
        assert refused.exit_code == 2
        assert all(f"'{form}'" in refused.stderr for form in ("json", "yaml", "wide", "name")), refused.stderr
        assert "--no-headers" in flags(name), name
    for name in ("why", "history", "simulate", "doctor"):
        assert {"--output", "-o"} <= flags(name), name
    assert {"--all-namespaces", "-A", "--selector", "-l"} <= flags("list") & flags("top")
