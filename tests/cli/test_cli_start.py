"""The command starts without what takes long to load, and every command has help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from controller.cli.main import app
from tests.support import cli_world as w
from tests.support.stub_api import stub_api

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
    "textual",
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


# What looking at jobs does without: a library's own HTTP, other commands, what draws and simulates, and, as
# long as it is called plainly, what reads any command line.
NOT_TO_LOOK = (
    *(name for name in HEAVY if name != "yaml"),
    *("typer", "rich", "pydantic", "pydantic_core", "cattrs", "attrs", "shutil", "calendar"),
    *("aiohttp_retry", "requests", "urllib3", "httpx", "jinja2", "structlog", "prometheus_client", "uvloop"),
    *("controller.operator", "controller.web", "controller.metrics", "controller.checkpoints"),
    *(
        "controller.policy.pool",
        "controller.policy.job.plan",
        "controller.cli.rules",
        "controller.cli.parity",
    ),
)
# And what one of them alone does without.
NOT_FOR = {
    "list": ("controller.policy.stopping", "controller.api.record"),
    "TAB": ("controller.policy.stopping", "controller.api.record", "controller.cli.table"),
    "get": ("controller.cli.explanation", "controller.policy.job.cures"),
    "why": (),
}
LOOKING = {
    "list": (["list"], {}, "over"),
    "get": (["get", "over"], {}, "step 160"),
    "why": (["why", "over"], {}, "Stopped by kDeclines"),
    "TAB": (
        [],
        {"_EVALSTOP_COMPLETE": "complete_bash", "COMP_WORDS": "evalstop why ov", "COMP_CWORD": "2"},
        "over",
    ),
}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    with stub_api(tmp_path_factory.mktemp("stub"), jobs) as kubeconfig:
        yield kubeconfig


@pytest.mark.parametrize("what", LOOKING)
def test_looking_at_jobs_loads_nothing_heavy(stub: Path, what: str) -> None:
    """Over TLS, with a key in the kubeconfig, up to what is printed."""
    arguments, environ, printed = LOOKING[what]
    without = (*NOT_TO_LOOK, *NOT_FOR[what])
    program = (
        "import json, os, sys, contextlib\n"
        "os._exit = sys.exit  # a command ends without taking Python apart\n"
        f"sys.argv = ['evalstop', *{arguments!r}]\n"
        "from controller.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
        f"print(json.dumps([m for m in {without!r} if m in sys.modules]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KUBECONFIG": str(stub), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed in done.stdout, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


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
        assert all(form in refused.stderr for form in ("json", "yaml", "wide", "name")), refused.stderr
        assert "--no-headers" in flags(name), name
    for name in ("why", "history", "simulate", "doctor"):
        assert {"--output", "-o"} <= flags(name), name
    assert {"--all-namespaces", "-A", "--selector", "-l"} <= flags("list") & flags("top")
