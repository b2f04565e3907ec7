"""Commands that need no cluster, as they stand on the pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from docs_commands import ALL, SAID
from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.helm.client import Helm
from tests.support import cli_docs

ROOT = Path(__file__).resolve().parents[2]

# The command's beginning; what stands for its placeholders and its files; more, so that it takes seconds.
COMMANDS = {
    "evalstop sim record examples/traces/sixty.jsonl": ({"examples/traces/sixty.jsonl": "made.jsonl"}, ""),
    "evalstop sim replay LOG": ({"LOG [LOG …]": "log.jsonl", "[--gpus 64 |": "", "[": "", "]": ""}, ""),
    "evalstop rules generate FILE": ({"FILE": "made.csv"}, "--runs 10"),
    "evalstop rules table": ({}, "--runs 10"),
    "evalstop what-if decisions.jsonl": ({}, "--no-plot"),
    "evalstop export decisions.jsonl --out": ({"past.jsonl": "made.jsonl"}, ""),
    "evalstop export decisions.jsonl --cluster": ({"past.jsonl": "made.jsonl"}, ""),
    "evalstop export --pool research": ({"research": "a100", "past.jsonl": "made.jsonl"}, ""),
}


@pytest.mark.parametrize("start", COMMANDS)
def test_the_commands_as_they_stand(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a cluster in it, it is the one of docs/use/cli.md."""
    (command,) = {shown.command for shown in ALL if shown.command.startswith(start)}
    instead, more = COMMANDS[start]
    for old, new in instead.items():
        assert old in command
        command = command.replace(old, new)
    monkeypatch.chdir(tmp_path)
    history = (ROOT / "examples" / "histories" / "demo.jsonl").read_text()
    Path("decisions.jsonl").write_text(history.replace('"research"', '"a100"'))
    Path("log.jsonl").write_text((ROOT / "examples" / "traces" / "sixty.jsonl").read_text())
    with cli_docs.stub() as env:
        done = CliRunner().invoke(app, shlex.split(f"{command} {more}")[1:], env=env)
    assert done.exit_code == 0, done.output
    made = [path for path in tmp_path.glob("made.*") if path.stat().st_size]
    assert bool(made) == ("made." in command), done.output


def test_a_wrong_value_is_refused_as_the_page_says(helm: Helm) -> None:
    (command,) = (shown.command for shown in ALL if shown.command.startswith("helm template evalstop"))
    _, *words = shlex.split(command)
    done = helm.run(*words[:2], str(ROOT / words[2]), *words[3:])
    (said,) = re.findall(
        rf"\$ {re.escape(command)}\n +(.*)$",
        (ROOT / "docs" / "operate" / "install.md").read_text(),
        re.MULTILINE,
    )
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("command", ["python -m controller.operator --help", "python -m controller.extender"])
def test_help_is_printed(command: str) -> None:
    """Of programs that else run until they are ended, as other tests do with their parts."""
    assert command in [shown.command for shown in SAID]
    words = [*shlex.split(command.removesuffix(" --help"))[1:], "--help"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "EVALSTOP_" in done.stdout
