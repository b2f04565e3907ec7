"""A shell for tests on a real cluster: commands in this process, or as one that goes on until it is ended."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.plane import Plane
from tests.support import cli_world as w


class Shell:
    """`shell("list", "-o", "json")`: the command, with this world's namespace in its kubeconfig's context."""

    def __init__(self, plane: Plane, namespace: str, pool: str, kubeconfig: Path) -> None:
        self.plane, self.namespace, self.pool, self.kubeconfig = plane, namespace, pool, kubeconfig

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> Any:
        environ = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": "", **env}
        result = CliRunner().invoke(app, list(arguments), env=environ)
        told = f"{result.stdout}{result.stderr}"
        assert result.exit_code == code, told
        assert result.exception is None or isinstance(result.exception, SystemExit), told
        return result

    def any(self, *arguments: str) -> Any:
        """The command, however it ends."""
        return CliRunner().invoke(
            app, list(arguments), env={"KUBECONFIG": str(self.kubeconfig), "COLUMNS": ""}
        )

    def out(self, *arguments: str, **env: str) -> str:
        return str(self(*arguments, **env).stdout)

    def spec(self, name: str) -> dict[str, Any]:
        path = f"{w.GROUP}/namespaces/{self.namespace}/rlhfjobs/{name}"
        found: dict[str, Any] = self.plane.client().get(path)["spec"]
        return found


def kubeconfig_in(folder: Path, source: Path, namespace: str) -> Path:
    """A copy of a kubeconfig whose context names a namespace."""
    content = yaml.safe_load(source.read_text())
    for entry in content["contexts"]:
        entry["context"]["namespace"] = namespace
    path = folder / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


class Following:
    """A command with ``--watch``: what it has printed so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.printed = process, ""

    def until(self, what: Callable[[str], Any], seconds: float = 60.0) -> str:
        """All that was printed, once ``what`` holds of it."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while not what(self.printed):
            assert time.monotonic() < deadline, f"not within {seconds:g} s; printed: {self.printed}"
            if select.select([self._process.stdout], [], [], 0.5)[0]:
                piece = os.read(self._process.stdout.fileno(), 65536)
                assert piece, f"it has ended; printed: {self.printed}"
                self.printed += piece.decode()
        return self.printed


@contextlib.contextmanager
def following(kubeconfig: Path, *arguments: str) -> Iterator[Following]:
    """`evalstop ARGUMENTS`, as a process, until the block ends."""
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONUNBUFFERED": "1", "COLUMNS": ""}
    command = [sys.executable, "-m", "controller.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        try:
            yield Following(process)
        finally:
            process.terminate()
