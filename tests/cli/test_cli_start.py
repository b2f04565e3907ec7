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


def test_commands_that_talk_to_a_cluster_take_kubectl_s_flags() -> None:
    for name in (
        "list",
        "get",
        "why",
        "history",
        "simulate",
        "resume",
        "pin",
        "mode",
        "stop",
        "top",
        "doctor",
    ):
        flags = {flag for p in FOUND[name].params for flag in p.opts}
        assert {"--kubeconfig", "--context", "--namespace", "-n"} <= flags, name
    for name in ("pools", "queue"):
        assert {"--kubeconfig", "--context"} <= {flag for p in FOUND[name].params for flag in p.opts}, name
    assert {"-A", "-l", "-w", "-o", "--no-headers"} <= {flag for p in FOUND["list"].params for flag in p.opts}
