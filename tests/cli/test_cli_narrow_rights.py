"""What commands say to a user who may look into one namespace alone, or names one that is not there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controller.cli import forward
from controller.cli.failure import Exit, Failure
from controller.cli.main import app
from tests.support import cli_world as w
from tests.support.stub_api import stub_api


def run(folder: Path, *words: str, only: str = "", objects: list[dict[str, Any]] | None = None) -> Result:
    jobs = [
        w.whole(name, record, namespace)
        for namespace in ("team", "lab")
        for name, record in w.records().items()
    ]
    pool = {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": "a100"},
        "spec": {},
    }
    with stub_api(folder, [*jobs, pool] if objects is None else objects, only=only) as kubeconfig:
        return CliRunner().invoke(app, words, env={"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"})


def test_a_namespace_that_is_not_there_is_told_with_the_one_that_may_be_meant(tmp_path: Path) -> None:
    for form in ([], ["-o", "json"]):
        told = run(tmp_path, "list", "-n", "tema", *form)
        assert (told.exit_code, told.stdout) == (Exit.NOT_FOUND, "")
        assert "there is no namespace 'tema'" in told.stderr
        assert "did you mean team?" in told.stderr


def test_an_empty_namespace_and_one_that_cannot_be_asked_for_are_no_fault(tmp_path: Path) -> None:
    assert run(tmp_path, "list", objects=[]).exit_code == 0
    hidden = run(tmp_path, "list", only="team", objects=[])
    assert (hidden.exit_code, "No RLHFJobs in namespace team" in hidden.stderr) == (0, True)


def test_all_namespaces_without_the_right_offers_the_own_one_first(tmp_path: Path) -> None:
    told = run(tmp_path, "list", "-A", only="team")
    assert told.exit_code == Exit.FORBIDDEN
    offered = [line for line in told.stderr.splitlines() if "next: " in line]
    assert "evalstop list -n team" in offered[0]
    assert any("clusterrolebinding" in line for line in offered[1:])


def test_a_queue_that_is_seen_in_part_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # there is no kubectl
    told = run(tmp_path, "queue", "a100", only="team")
    assert told.exit_code == 0, told.output
    last = told.stdout.splitlines()[-1]
    assert last == "2 that you may see, those of namespace team, waiting in pool a100"
    document = json.loads(run(tmp_path, "queue", "a100", "-o", "json", only="team").stdout)
    assert document["ofNamespace"] == "team"
    whole = run(tmp_path, "queue", "a100")
    assert "that you may see" not in whole.stdout
    last = whole.stdout.splitlines()[-1]
    assert last.startswith("4 waiting in pool a100"), "those that nobody has looked at yet, too"


def test_who_may_read_neither_queue_nor_statuses_is_told_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may view a namespace other than the context's was told of the port-forward alone."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'Error from server (Forbidden): it is forbidden' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    told = run(tmp_path, "queue", "a100", only="lab")
    assert told.exit_code == Exit.FORBIDDEN
    assert "nor may you list the RLHFJobs" in told.stderr
    offered = [line for line in told.stderr.splitlines() if "next: " in line]
    assert "evalstop queue a100 -n NAMESPACE" in offered[0]
    assert "pods/portforward" in offered[1]
    named = run(tmp_path, "queue", "a100", "-n", "lab", only="lab")
    assert (named.exit_code, named.stdout.splitlines()[-1]) == (
        0,
        "2 of namespace lab waiting in pool a100",
    )


def test_no_port_is_forwarded_to_an_operator_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward.subprocess, "Popen", lambda *_, **__: pytest.fail("kubectl waits for a pod"))
    lease = {
        "kind": "Lease", "metadata": {"name": "evalstop-operator", "namespace": "evalstop-system"},
        "spec": {"holderIdentity": "", "renewTime": w.timestamp(time.time() - 90.0)},
    }  # fmt: skip
    pool = {"kind": "GPUPool", "metadata": {"name": "a100"}, "spec": {}}
    waiting = [w.whole("fresh", None), w.whole("waits", w.queued())]
    told = run(tmp_path, "queue", "a100", objects=[pool, *waiting, lease])
    assert "no operator has renewed its Lease for 90s" in told.stderr
    assert told.stdout.splitlines()[-1].startswith("2 waiting in pool a100")


def test_a_node_that_takes_no_port_forward_is_told_in_a_plain_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local plane each look at a queue ended with kubectl's words about upgrading connections."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'error: error upgrading connection: EOF' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(Failure) as told, forward.forwarded("ns", "pod/op-1", 8083):
        pytest.fail("nothing is forwarded")
    assert "the node of pod/op-1 in namespace ns takes no port-forward" in told.value.message
    assert "upgrading" not in told.value.message


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("over", "is stopped already, since 2025-11-13 02:18:22Z, by kDeclines"),
        ("healthy", "is to be stopped"),
    ],
)
def test_a_second_stop_says_since_when_it_stands(tmp_path: Path, job: str, said: str) -> None:
    told = run(tmp_path, "stop", job)
    assert told.exit_code == 0
    assert f"rlhfjob.evalstop.dev/{job} {said}" in told.stdout


def test_top_draws_with_ascii_alone_if_asked(tmp_path: Path) -> None:
    status = {"capacity": 8, "free": 2}
    pool = {"kind": "GPUPool", "metadata": {"name": "a100"}, "spec": {}, "status": status}
    told = run(tmp_path, "top", "--once", "--ascii", objects=[pool])
    assert (told.exit_code, told.stdout.isascii(), "[###############.....]" in told.stdout) == (0, True, True)
