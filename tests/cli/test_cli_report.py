"""`evalstop report`: from a cluster or a log, into a file or onto stdout; what is not there is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from controller.cli.main import app
from controller.policy import decision_log
from controller.policy.job import Observed, Plan
from controller.web.dashboard.feed import read_job
from tests.support import cli_world as w
from tests.support.dashboard_world import (
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
)
from tests.support.stub_api import stub_api

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    with stub_api(tmp_path_factory.mktemp("stub"), jobs) as path:
        yield path


def test_a_job_becomes_a_file(kubeconfig: Path, tmp_path: Path) -> None:
    into = tmp_path / "over.html"
    done = CliRunner().invoke(
        app, ["report", "over", "--html", "--out", str(into)], env={"KUBECONFIG": str(kubeconfig)}
    )
    assert done.exit_code == 0, done.output
    assert f"{into}: " in done.stderr
    text = into.read_text()
    assert "<title>Run team/over" in text
    assert "3 evals in a row fell, limit 3; 16 % worse than the best." in text
    assert text.count("<svg") == 1


def test_a_log_is_read_without_a_cluster(tmp_path: Path) -> None:
    pool, obj = pool_object(), job_object("team", "gone", created=NOW - 9000)
    record = stopped(judged(obj, until_stop(obj, over_optimising(104), pool), NOW, pool), NOW)
    desired = read_job(obj, {"research": pool}).desired
    log = tmp_path / "decisions.jsonl"
    plan = Plan(record, (), (), None, None, None)
    log.write_text(decision_log.job_line(desired, Observed(), record, NOW, plan) + "\n")
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    done = CliRunner().invoke(app, ["report", "gone", "--log", str(log), "--out", "-"], env=nowhere)
    assert done.exit_code == 0, done.output
    assert "Run team/gone" in done.stdout
    other = CliRunner().invoke(app, ["report", "other", "--log", str(log), "--out", "-"], env=nowhere)
    assert other.exit_code == 3
    assert "decisions.jsonl tells of no run and no pool 'other'" in other.stderr
    assert "runs in it: team/gone" in other.stderr


def test_a_namespace_chooses_among_a_logs_runs(tmp_path: Path) -> None:
    pool, lines = pool_object(), []
    for namespace in ("team", "other"):
        obj = job_object(namespace, "gone", created=NOW - 9000)
        record = stopped(judged(obj, until_stop(obj, over_optimising(104), pool), NOW, pool), NOW)
        desired = read_job(obj, {"research": pool}).desired
        lines.append(
            decision_log.job_line(desired, Observed(), record, NOW, Plan(record, (), (), None, None, None))
        )
    log = tmp_path / "decisions.jsonl"
    log.write_text("\n".join(lines) + "\n")

    def told(*words: str) -> Result:
        return CliRunner().invoke(app, ["report", *words, "--log", str(log), "--out", "-"])

    assert "'gone' is the name of several runs" in told("gone").stderr
    for namespace in ("team", "other"):
        done = told("gone", "-n", namespace)
        assert done.exit_code == 0, done.output
        assert f"Run {namespace}/gone" in done.stdout
    elsewhere = told("gone", "-n", "nobody")
    assert elsewhere.exit_code == 3
    assert "of namespace nobody it tells of no run" in elsewhere.stderr
    no_pool = told("gone", "--pool")
    assert no_pool.exit_code == 3
    assert "tells of no pool 'gone'" in no_pool.stderr
    assert "runs in it: other/gone, team/gone" in no_pool.stderr
    words = ["report", "gone", "-n", "team", "--log", str(log), "--out", str(log)]
    assert f"--out: {log} is the log itself" in CliRunner().invoke(app, words).stderr
    assert log.read_text().count("\n") == 2


def test_a_file_that_cannot_be_written_is_named(kubeconfig: Path, tmp_path: Path) -> None:
    into = tmp_path / "none" / "over.html"
    done = CliRunner().invoke(
        app, ["report", "over", "--html", "--out", str(into)], env={"KUBECONFIG": str(kubeconfig)}
    )
    assert done.exit_code == 2
    assert f"--out: cannot write {into}" in done.stderr
