"""Start a temporary local cluster in a subprocess and stop it after the run.

The program is `deploy.local.temporary_cluster`, of this repository; where it is not installed, a kubeconfig
is needed. It is only named by a string, as import-linter forbids that `controller` imports `deploy`. It
prints one line of JSON when the cluster is ready: ``kubeconfig`` (path), ``selectors`` (a node label
``key=value`` for each node group), ``decisionLog`` (path) and ``schedulerName``. The
cluster ends when the program's stdin is closed.

Tests: tests/parity/test_parity_cli.py (no such program), tests/parity/test_parity_cluster.py (a cluster).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from controller.frozen import dataclass

_PROGRAM = "deploy.local.temporary_cluster"
_END_S = 60.0


class NoLocalCluster(Exception):
    """No local cluster is available; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running cluster.

    Attributes:
        kubeconfig: with which it is reached.
        selectors: (key, value) of node labels: node groups, one label each.
        decision_log: the operator's.
        scheduler: `schedulerName` of the kube-scheduler that asks the extender.
    """

    kubeconfig: Path
    selectors: tuple[tuple[str, str], ...]
    decision_log: Path
    scheduler: str


@contextlib.contextmanager
def start_local_cluster(
    folder: Path, nodes: Sequence[int], sets: int, report_line: Callable[[str], None]
) -> Iterator[LocalCluster]:
    """Start a cluster with ``sets`` equal node groups; it is stopped when the `with` block exits.

    Args:
        folder: for all files of the cluster.
        nodes: GPUs of each node of a group.
        sets: how many groups.
        report_line: called with each line that the program prints to stderr.

    Raises:
        NoLocalCluster: the program is not installed, or the cluster did not start.
    """
    try:
        known = importlib.util.find_spec(_PROGRAM)
    except ModuleNotFoundError:
        known = None
    if known is None:
        raise NoLocalCluster("no local cluster comes with this installation; name one with --kubeconfig")
    sizes = ",".join(map(str, nodes))
    command = [sys.executable, "-m", _PROGRAM, str(folder), "--nodes", sizes, "--sets", str(sets)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            report_line(lines[-1])

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait()
            listening.join(1.0)
            raise NoLocalCluster(f"the local cluster did not come up: {lines[-1] if lines else 'no output'}")
        answer = json.loads(line)
        pairs = (text.partition("=") for text in answer["selectors"])
        selectors = tuple((key, value) for key, _, value in pairs)
        yield LocalCluster(
            Path(answer["kubeconfig"]), selectors, Path(answer["decisionLog"]), answer["schedulerName"]
        )
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
