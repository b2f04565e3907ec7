"""Runs Helm against one cluster, with its own folders: the user's repositories and cache are not touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from deploy.local.errors import PlaneError


class Helm:
    """Helm for one cluster.

    Args:
        program: the `helm` binary.
        kubeconfig: of the cluster; None for commands that ask none.
        work: folder for Helm's own cache, configuration and data.
    """

    def __init__(self, program: Path, kubeconfig: Path | None, work: Path) -> None:
        self._program, self._kubeconfig, self._work = program, kubeconfig, work

    def run(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Return what Helm answers, whatever its exit code. Errors: PlaneError: no answer in time."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HELM_")}
        environment |= {f"HELM_{k}_HOME": str(self._work / k.lower()) for k in ("CACHE", "CONFIG", "DATA")}
        # Without a kubeconfig no cluster may be reached by chance.
        environment["KUBECONFIG"] = str(self._kubeconfig or os.devnull)
        command = [str(self._program), *arguments]
        try:
            return subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise PlaneError(f"helm {' '.join(arguments)}: no answer within {timeout_s:g} s") from error

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = 300.0) -> str:
        """Helm's standard output. Errors: PlaneError with Helm's own words if it fails."""
        done = self.run(*arguments, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise PlaneError(f"helm {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
