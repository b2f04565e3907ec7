"""`evalstop parity` refuses before it starts anything, and draws a recorded run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parity_world import calibration_facts
from typer.testing import CliRunner

from controller.cli.main import app
from controller.parity import local_cluster
from controller.parity.calibration import measure
from controller.parity.local_cluster import NoLocalCluster, start_local_cluster
from controller.parity.report import Report

TRACE = {"format": "evalstop-trace", "version": 1, "cluster": {"nodes": [4]}}
JOB = {"job": "a", "submitted": 0, "gpus": 1, "work": 60}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path, TRACE, JOB)


def written(folder: Path, *entries: object) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


def run(*arguments: str | Path) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["parity", *map(str, arguments)])
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([TRACE, {**JOB, "work": -1}], "trace.jsonl, line 2, work: -1 is not allowed"),
        ([TRACE, {**JOB, "gpus": 8}], "line 2, gpus"),  # larger than the cluster
        ([{**TRACE, "cluster": {"gpus": 4}}, JOB], "the trace does not name any"),
        ([TRACE, JOB, JOB], "line 3, job"),
    ],
)
def test_a_bad_trace_is_told_by_line_and_field(tmp_path: Path, entries: list[object], words: str) -> None:
    code, out, err = run(written(tmp_path, *entries), "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "lottery"], "queuePolicy"),
        (["--policy", "slaq"], "expected fifo, srtf or las"),
        (["--rule", "kDeclines:k=0"], "kDeclines.k"),
        (["--nodes", "many"], "--nodes: 'many' is not allowed"),
        (["--kubeconfig", "k"], "--nodes-of: is missing"),
        (["--nodes-of", "a=b"], "given cluster, expected --kubeconfig or --context too"),
        (["--image", "a"], "--image: is about a given cluster"),
        (["--image-pull-secret", "a/b"], "--image-pull-secret: is about a given cluster"),
        (["--storage-class", "a"], "--storage-class: is about a given cluster"),
        (["--scheduler-name", "a"], "--scheduler-name: is about a given cluster"),
        (["--decision-log", "a"], "--decision-log: is about a given cluster"),
        (
            ["--kubeconfig", "k", "--nodes-of", "a=b", "--at-once"],
            "--at-once: is about the local cluster, expected no --kubeconfig",
        ),
        (["--kubeconfig", "k", "--nodes-of", "gpus"], "expected LABEL=VALUE"),
        (
            ["--kubeconfig", "k", "--nodes-of", "a=b", "--image-pull-secret", "pulls"],
            "--image-pull-secret: 'pulls' is not allowed, expected NAMESPACE/NAME",
        ),
        (["--recorded"], "trace.jsonl: Extra data"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(
    tmp_path: Path, trace: Path, options: list[str], words: str
) -> None:
    code, out, err = run(trace, *options, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert words in err


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, trace: Path) -> None:
    code, _, err = run(
        trace, "--kubeconfig", tmp_path / "none", "--nodes-of", "a=b", "--out", tmp_path / "out"
    )
    assert code == 5
    assert "no such file" in err


def test_without_a_local_cluster_at_hand_it_says_what_would_do(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "_PROGRAM", "nowhere.at.all")
    with (
        pytest.raises(NoLocalCluster, match="name one with --kubeconfig"),
        start_local_cluster(tmp_path, [4], 1, print),
    ):
        pass
    code, _, err = run(trace, "--out", tmp_path / "out")
    assert code == 5
    assert "--kubeconfig FILE --nodes-of LABEL=VALUE" in err


def test_a_recorded_run_is_drawn_again(tmp_path: Path) -> None:
    about = {"trace": "t", "jobs": 0, "gpus": 4, "nodes": "1x4", "speed": 1.0, "load": 1.0, "rule": "r"}
    report = Report({**about, "command": "c", "notes": []}, measure([calibration_facts()]), ())
    (tmp_path / "parity.json").write_text(json.dumps(report.document()))
    code, out, _ = run(tmp_path / "parity.json", "--recorded", "--out", tmp_path / "again", "--json")
    assert code == 0
    assert json.loads(out)["overheads"][0]["name"] == "queue_delay"
    assert (tmp_path / "again" / "parity.html").is_file()
