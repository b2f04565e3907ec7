"""`evalstop export` and `evalstop what-if` as a user runs them, on files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controller.cli.main import app
from controller.cli.what_if import other_nodes
from sim.cluster import Cluster
from sim.rules import history
from sim.traces import read

FOUR = Cluster.of_nodes([8, 8, 8, 4])


def evalstop(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, whole_log: list[str]) -> Path:
    file = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    file.write_text("\n".join(whole_log) + "\n")
    return file


@pytest.fixture(scope="module")
def exported(log: Path) -> Path:
    out = log.with_name("past.jsonl")
    done = evalstop("export", log, "--out", out)
    assert done.exit_code == 0, done.output
    return out


def test_an_export_says_what_it_has_and_reads_as_the_log_does(log: Path, exported: Path) -> None:
    again = evalstop("export", log, "--out", exported)
    assert f"{exported}: 4 jobs (2 complete, 1 running, 1 stopped), 24 evals" in again.stderr
    assert "are repeated and tell nothing." in again.stderr
    trace = read([exported])
    assert trace.format == "evalstop-trace"
    assert [job.past.end for job in trace.jobs if job.past is not None] == [
        "Stopped",
        "Complete",
        "Complete",
        "Running",
    ]
    assert trace.history["left_out_lines"]["repeated"] > 0
    assert trace.latencies is not None
    assert trace.latencies.start_delay == 30.0
    to_stdout = evalstop("export", log)
    assert to_stdout.stdout == exported.read_text()
    assert not list(exported.parent.glob(".*"))


def test_exported_evals_are_read_by_rules_evaluate(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "evals.csv"
    done = evalstop("export", log, "--evals", "--out", out)
    assert done.exit_code == 0, done.output
    series = {one.id: one for one in history.read(out)}
    assert sum(len(one.scores) for one in series.values()) == 24
    judged = evalstop("rules", "evaluate", out, "--json")
    assert judged.exit_code == 0, judged.output
    stopped = next(job for job in read([log]).jobs if job.past is not None and job.past.end == "Stopped")
    assert stopped.evals is not None
    assert stopped.past is not None
    assert list(series[stopped.key].scores) == list(stopped.evals.scores)
    assert series[stopped.key].steps[-1] <= (stopped.past.step or 0)
    assert all(step == int(step) and step % 10 == 0 for step in series[stopped.key].steps)
    assert evalstop("export", log, "--evals").stdout == out.read_text()


@pytest.mark.parametrize("words", [("export",), ("what-if", "--nodes", "+1")])
def test_a_namespace_chooses_among_the_clusters_jobs_and_is_refused_where_none_are_read(
    log: Path, words: tuple[str, ...]
) -> None:
    page = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).stdout
    (line,) = (line for line in page.splitlines() if "--namespace" in line)
    assert "Default: those of all namespaces" in line
    done = evalstop(*words, log, "-n", "team")
    assert done.exit_code == 2
    assert "-n team chooses among the cluster's RLHFJobs, and only files are read" in done.stderr


def test_an_export_is_replayed_as_its_log_is(log: Path, exported: Path) -> None:
    left = json.loads(evalstop("sim", "replay", log, "--json").stdout)
    right = json.loads(evalstop("sim", "replay", exported, "--json").stdout)
    assert left["rows"] == right["rows"]
    assert left["stopped_jobs"] == right["stopped_jobs"]
    one, two = (document(source, "--rule", "none") for source in (log, exported))
    assert one["figures"] == two["figures"]


def document(*words: object) -> dict[str, Any]:
    done = evalstop("what-if", *words, "--json", "--no-plot")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figure(found: dict[str, Any], key: str) -> dict[str, Any]:
    return next(one for one in found["figures"] if one["figure"] == key)


def test_an_export_goes_over_no_log_that_it_reads(log: Path) -> None:
    before = log.read_bytes()
    done = evalstop("export", log, "--out", log)
    assert done.exit_code == 2
    assert f"--out: {log} is among the files that are read" in done.stderr
    assert log.read_bytes() == before


def test_a_trace_without_a_recorded_past_is_not_called_a_record(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    head = '{"format": "evalstop-trace", "version": 1, "cluster": {"nodes": [2]}}\n'
    jobs = ['{"job": "a", "submitted": 0, "gpus": 1, "work": 60}\n']
    file.write_text(head + "".join(jobs))
    done = evalstop("what-if", file, "--rule", "scan", "--no-plot")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("rule scan, against the jobs of the file as they are\n1 of 1 job\n")
    said = " ".join(done.stdout.split())
    assert "Nothing is recorded of 1 of 1 job (they have no `past`; evalstop export writes it)" in said
    assert "1 job is few" in said
    assert "the record" not in said


def test_two_nodes_more(exported: Path) -> None:
    """``ns/next`` need not wait for the GPUs of ``ns/over``, nor ``ns/late`` for both."""
    found = document(exported, "--nodes", "+2")
    assert found["alternative"]["cluster"] == {"nodes": [2, 2, 2, 2]}
    assert found["scenarios"] == ["known"]
    wait = figure(found, "mean_wait")
    assert wait["baseline"] > 1000.0
    assert wait["alternative"]["high"] < wait["baseline"]
    assert figure(found, "stops")["recorded"] == 1
    assert {job["job"] for job in found["most_changed"]} == {"ns/next", "ns/late"}


def test_quotas(exported: Path) -> None:
    """A namespace that may have all there is has no more than without."""
    found = document(exported, "--quota", "ns=0:4", "--quota", "other=2")
    assert found["baseline"]["quotas"] == []
    assert found["alternative"]["quotas"] == [
        {"namespaces": ["ns"], "guaranteed": 0, "limit": 4},
        {"namespaces": ["other"], "guaranteed": 2},
    ]
    assert found["title"].startswith("quotas ns=0:4 other=2")
    assert "No job of the history is in namespace other: its jobs are in ns." in found["notes"]
    assert not any("guarantee" in note for note in found["notes"])
    notes = document(exported, "--quota", "ns=900")["notes"]
    assert any(note.startswith("The quotas guarantee 900 GPUs of 4") for note in notes)


def test_another_rule_that_asks_for_what_nobody_saw(exported: Path) -> None:
    found = document(exported, "--rule", "kDeclines:k=5")
    assert found["scenarios"] == ["least", "most"]
    hours = figure(found, "gpu_hours")["difference"]
    assert hours["low"] == 0.0
    assert hours["high"] == pytest.approx(8780.0 / 2 * 2 / 3600.0, rel=0.02)  # the other half of ns/over
    assert any("Of 1 run that the record stopped, 1 would have gone on" in note for note in found["notes"])
    assert any("4 jobs are few" in note for note in found["notes"])


def test_a_rule_a_policy_and_nodes_in_one_command(log: Path) -> None:
    """Each is at work: with one of them left out, what that one does is gone."""
    words = {
        "rule": ("--rule", "kDeclines:k=1"),  # stops ns/shadow, which was only watched, as well
        "policy": ("--policy", "las:first_threshold=100"),  # preempts, which fifo never does
        "nodes": ("--nodes", "+2"),  # nobody has to wait long
    }
    all_ = document(log, *(word for pair in words.values() for word in pair))
    assert all_["title"].endswith("nodes 4x2, against the record")
    assert all_["title"].startswith("rule kDeclines:k=1, policy las:first_threshold=100")
    assert all_["alternative"]["cluster"] == {"nodes": [2, 2, 2, 2]}
    assert all_["baseline"]["policy"]["name"] != all_["alternative"]["policy"]["name"] == "las"
    without = {
        name: document(log, *(word for other, pair in words.items() if other != name for word in pair))
        for name in words
    }

    def came(found: dict[str, Any], key: str) -> float:
        alternative = figure(found, key)["alternative"]
        assert alternative["low"] == alternative["high"]
        return float(alternative["high"])

    assert (came(all_, "stops"), came(without["rule"], "stops")) == (2, 1)
    assert came(all_, "preemptions") > came(without["policy"], "preemptions") == 0
    assert came(all_, "mean_wait") < 60.0 < came(without["nodes"], "mean_wait")
    assert came(all_, "mean_jct") < min(came(found, "mean_jct") for found in without.values())
    baselines = {figure(found, "mean_jct")["baseline"] for found in (all_, *without.values())}
    assert len(baselines) == 1  # the record, replayed, whatever is asked


def test_a_person_reads_a_table_and_gets_a_picture(log: Path, tmp_path: Path) -> None:
    done = evalstop("what-if", log, "--policy", "las", "--plot", tmp_path / "deep" / "w.svg")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "policy las, against the record"
    assert lines[1].startswith("pool p, 1970-01-01 00:16Z to ")
    assert lines[3].split() == ["recorded", "replayed", "alternative", "difference", "95", "%", "interval"]
    assert any(line.startswith("JCT, mean") for line in lines)
    assert (tmp_path / "deep" / "w.svg").stat().st_size > 1000
    assert f"drawn: {tmp_path / 'deep' / 'w.svg'}" in done.stderr


def test_a_window_by_dates(exported: Path) -> None:
    found = document(exported, "--nodes", "+1", "--from", "1970-01-01T00:17")
    assert (found["jobs_compared"], found["jobs"]) == (2, 4)
    assert document(exported, "--nodes", "+1", "--to", "1970-01-01T00:17:00+00:00")["jobs_compared"] == 2
    assert document(exported, "--nodes", "+1", "--last", "1d")["jobs_compared"] == 4
    assert document(exported, "--nodes", "+1", "--from", 1060)["jobs_compared"] == 1


def test_delays_of_ones_own(exported: Path) -> None:
    usual, slow = (
        figure(document(exported, "--nodes", "+1", *words), "mean_jct")["baseline"]
        for words in ((), ("--set", "start_delay=3000"))
    )
    assert slow > usual


def test_a_trace_of_another_format_is_taken_as_seen_whole(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("job,submitted,gpus,work\n" + "".join(f"j{n},{n * 100},4,1000\n" for n in range(40)))
    refused = evalstop("what-if", file, "--policy", "las", "--no-plot")
    assert refused.exit_code == 2
    assert "--nodes: the history names none" in refused.stderr
    both = document(file, "--policy", "las", "--nodes", "8")
    assert both["baseline"]["cluster"] == both["alternative"]["cluster"] == {"nodes": [8]}
    assert "The history names no nodes: those of --nodes are taken for both sides." in both["notes"]
    file.write_text(file.read_text() + "bad,4000,4,-1\n")
    bad = document(file, "--policy", "las", "--nodes", "8")
    assert any("1 job or row cannot be, and is left out" in note for note in bad["notes"])
    file = tmp_path / "own.jsonl"
    jobs = [json.dumps({"job": f"j{n}", "submitted": n, "gpus": 4, "work": 100 + n}) for n in range(40)]
    head = '{"format": "evalstop-trace", "version": 1, "cluster": {"nodes": [8]}}'
    file.write_text("\n".join([head, *jobs]) + "\n")
    found = document(file, "--nodes", "+1")
    assert figure(found, "mean_jct")["better"] is True
    assert figure(found, "mean_jct")["recorded"] is None


NODES: dict[str, list[int]] = {
    "+2": [8, 8, 8, 4, 8, 8],
    "-1": [8, 8, 4],
    "+1x16": [8, 8, 8, 4, 16],
    "-1x4": [8, 8, 8],
    "3x2": [2, 2, 2],
    "8,4": [8, 4],
    "2x8,4": [8, 8, 4],
}


@pytest.mark.parametrize("text", NODES)
def test_nodes(text: str) -> None:
    assert [gpus for _, gpus in other_nodes(FOUR, text).nodes] == NODES[text]


REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing is other": ([], "nothing is other than it was"),
    "a date that is none": (["--from", "soon"], "--from: 'soon' is not allowed, expected 2026-10-01"),
    "no such rule": (["--rule", "guess"], "stopRule: 'guess' is not allowed, expected one of kDeclines"),
    "no such policy": (["--policy", "guess"], "queuePolicy: 'guess' is not allowed"),
    "nodes that are none": (["--nodes", "two"], "--nodes: 'two' is not allowed, expected +2, -2"),
    "fewer than there are": (
        ["--nodes", "-3"],
        "--nodes: '-3' is not allowed, expected fewer than are there: of 2 nodes 2 have 2 GPUs",
    ),
    "too small": (["--nodes", "1x2"], "--nodes: nodes 1x2 cannot hold ns/late (2x2 GPUs)"),
    "quotas that are none": (["--quota", "ns"], "quota: 'ns' is not allowed, expected NAMESPACE"),
    "a limit that no job fits": (
        ["--quota", "ns=0:1"],
        "quota: 'ns=0:1' is not allowed, expected a limit of",
    ),
    "no such future": (
        ["--rule", "scan", "--future", "sure"],
        "--future: 'sure' is not allowed, expected one of bounds, nearest, recorded",
    ),
    "too few for nearest": (
        ["--rule", "kDeclines:k=9", "--future", "nearest"],
        "--future: nearest is not allowed here, for 2 runs with evals were seen whole, expected at least 3",
    ),
    "no date": (
        ["--nodes", "+1", "--from", "yesterday"],
        "--from: 'yesterday' is not allowed, expected 2026-",
    ),
    "backwards": (["--nodes", "+1", "--from", "200", "--to", "100"], "--to: '100' is not allowed"),
    "no span": (["--nodes", "+1", "--last", "a month"], "--last: 'a month' is not allowed, expected 30d"),
    "two windows": (["--nodes", "+1", "--last", "1d", "--to", "1"], "--last: is not allowed together"),
    "nobody then": (["--nodes", "+1", "--from", "2030-01-01"], "--from, --to: no job was submitted then"),
    "no such delay": (
        ["--nodes", "+1", "--set", "luck=1"],
        "--set luck: '1' is not allowed, expected one of",
    ),
    "a delay below 0": (["--nodes", "+1", "--set", "start_delay=-1"], "start_delay: -1.0 is not allowed"),
    "no such form of picture": (["--nodes", "+1", "--plot", "w.exe"], "--plot: cannot draw w.exe"),
    "another pool": (
        ["--nodes", "+1", "--pool", "q"],
        "history.pool: 'p' is not allowed, expected the pool q",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_what_would_be_right(
    exported: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = REFUSED[name]
    done = evalstop("what-if", exported, *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "next: " in done.stderr
    assert done.stdout == ""


def test_a_log_of_another_version_is_refused_and_no_file_is_left(tmp_path: Path, log: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps({**json.loads(line), "v": 1}) + "\n" for line in log.open()))
    out = tmp_path / "out.jsonl"
    done = evalstop("export", old, "--out", out)
    assert done.exit_code == 2
    assert "line 1, v: 1 is not allowed" in done.stderr
    assert "it is of an older evalstop" in done.stderr
    assert "`evalstop export --cluster`" in done.stderr
    assert list(tmp_path.iterdir()) == [old]


def test_a_file_that_cannot_be_written_is_told(log: Path, tmp_path: Path) -> None:
    done = evalstop("export", log, "--out", tmp_path / "no" / "folder" / "x")
    assert done.exit_code == 2
    assert "--out: cannot write" in done.stderr


def test_the_page_shows_what_the_command_prints(repository: Path) -> None:
    page = (repository / "docs" / "use" / "what-if.md").read_text()
    [words] = re.findall(r"^    evalstop (what-if examples/\S+ --rule none)$", page, re.MULTILINE)
    command, file, *rest = words.split()
    done = evalstop(command, repository / file, *rest, "--no-plot")
    assert done.exit_code == 0, done.output
    shown = "".join(f"    {line}\n" if line else "\n" for line in done.stdout.splitlines())
    assert shown in page
