"""kubectl's habits: twenty of its calls beside ours, each run against the same API server.

What is compared is what somebody who knows kubectl relies on: the exit code, which objects come, and whole
documents where both print them.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from cli_shell import Shell

pytestmark = pytest.mark.cluster

# (kubectl's words, ours, how they are compared); {ns}, {pool} and {config} are filled in.
CALLS = (
    ("get rlhfjobs", "list", "names"),
    ("get rlhfjobs -n {ns}", "list -n {ns}", "names"),
    ("-n {ns} get rlhfjobs", "-n {ns} list", "names"),
    ("get rlhfjobs --namespace={ns}", "list --namespace={ns}", "names"),
    ("get rlhfjobs -A", "list -A", "names"),
    ("get rlhfjobs --no-headers", "list --no-headers", "names"),
    ("get rlhfjobs -o wide", "list -o wide", "names"),
    ("get rlhfjobs -l team=a", "list -l team=a", "names"),
    ("get rlhfjobs -l team=nobody", "list -l team=nobody", "names"),
    ("get rlhfjobs -o name", "list -o name", "text"),
    ("get rlhfjobs -o json", "list -o json", "json"),
    ("get rlhfjobs -o yaml", "list -o yaml", "yaml"),
    ("get rlhfjob over -o json", "get over -o json", "json"),
    ("get rlhfjob over -o name", "get over -o name", "text"),
    ("get rlhfjob over healthy -o name", "get over healthy -o name", "text"),
    ("get rlhfjob nowhere", "get nowhere", "code"),
    ("get gpupools", "pools", "names"),
    ("get gpupool {pool} -o yaml", "pools {pool} -o yaml", "yaml"),
    (
        "--kubeconfig {config} get rlhfjobs --request-timeout 5",
        "--kubeconfig {config} list --request-timeout 5",
        "names",
    ),
    ("--context nowhere get rlhfjobs", "--context nowhere list", "code"),
    ("get rlhfjobs -o nonsense", "list -o nonsense", "code"),
)


def kubectl(shell: Shell, words: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [shell.plane.work / "bin" / "kubectl", *words],
        env={"KUBECONFIG": str(shell.kubeconfig), **shell.plane.kubectl_environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def plain(document: Any) -> Any:
    """A document without what every write changes, and what kubectl leaves out of it."""
    for one in document.get("items", [document]):
        one["metadata"].pop("managedFields", None)
    document.get("metadata", {}).pop("resourceVersion", None) if "items" in document else None
    return document


def names(shell: Shell, printed: str) -> set[str]:
    """What a table is of: words of its lines that are names of objects here."""
    known = {"over", "healthy", "done", "waits", "refused", "shadow", "fresh", shell.pool}
    return {word for line in printed.splitlines() for word in line.split() if word in known}


@pytest.mark.parametrize(("theirs", "ours", "how"), CALLS, ids=[call[1] for call in CALLS])
def test_a_call_of_kubectl_s_beside_ours(shell: Shell, theirs: str, ours: str, how: str) -> None:
    filled = {"ns": shell.namespace, "pool": shell.pool, "config": str(shell.kubeconfig)}
    code, printed = kubectl(shell, theirs.format(**filled).split())
    result = shell.any(*ours.format(**filled).split())
    assert (result.exit_code == 0) == (code == 0), f"{printed}\n{result.stdout}{result.stderr}"
    if how == "names":
        assert names(shell, result.stdout) == names(shell, printed)
        assert names(shell, printed) or "nobody" in theirs
    elif how == "text":
        assert result.stdout == printed
    elif how in ("json", "yaml"):
        load = json.loads if how == "json" else yaml.safe_load
        assert plain(load(result.stdout)) == plain(load(printed))


def test_versions_and_a_change_that_is_only_tried(shell: Shell) -> None:
    assert kubectl(shell, ["version", "--client"])[0] == shell.any("--version").exit_code == 0
    before = shell.spec("healthy")
    patch = [
        "patch",
        "rlhfjob",
        "healthy",
        "--type=merge",
        "-p",
        '{"spec": {"mode": "Shadow"}}',
        "--dry-run=server",
    ]
    code, told = kubectl(shell, patch)
    assert (code, "healthy" in told) == (0, True)
    assert "healthy" in shell.out("mode", "healthy", "Shadow", "--dry-run")
    assert shell.spec("healthy") == before
