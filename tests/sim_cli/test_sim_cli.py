"""`evalstop sim …` as users run it: one JSON document on stdout, tables, pages, errors with exit code 2."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.cli.sim_experiments import COMMANDS
from sim.experiments.registry import EXPERIMENTS

TEN = "job,submitted,gpus,work\n" + "".join(
    f"team/j{i},{60 * i},{1 + i % 4},{600 * (i + 1)}\n" for i in range(10)
)


def run(*args: str | Path, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["sim", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    file = tmp_path / "ten.csv"
    file.write_text(TEN)
    return file


def test_headline_prints_one_json_document_with_its_keys() -> None:
    out, err = run("headline", "--seeds", "3", "--workers", "1", "--set", "jobs=60", "--json")
    document = json.loads(out)
    for key in ("precision", "recall", "fpr", "jct_gain", "waste_gain", "jct_gain_kept", "recall_before_end"):
        assert set(document[key]) == {"value", "low", "high"}
        assert document[key]["low"] <= document[key]["value"] <= document[key]["high"]
    assert 0.0 <= document["p_jct"] <= 1.0
    assert 0.0 <= document["p_waste"] <= 1.0
    assert document["setting"]["workload"]["jobs"] == 60
    assert "headline: 3 trials" in err


def test_commands_are_the_experiments() -> None:
    assert list(COMMANDS) == list(EXPERIMENTS)


def test_the_same_command_prints_the_same() -> None:
    args = ("k", "--seeds", "2", "--workers", "1", "--set", "jobs=30", "--json")
    assert run(*args)[0] == run(*args)[0]


def test_an_experiment_writes_tables_and_a_page_that_needs_no_network(tmp_path: Path) -> None:
    table, page = tmp_path / "k.csv", tmp_path / "k.html"
    size = ("--seeds", "2", "--workers", "1", "--set", "jobs=40")
    out, _ = run("k", *size, "--table", table, "--html", page)
    assert "Declines in a row that stop a run" in out
    assert "100.0" in out
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["k"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert float(rows[0]["recall_low"]) <= float(rows[0]["recall"]) <= float(rows[0]["recall_high"])
    text = page.read_text()
    assert text.count("<svg") == 4  # the sweep; curves, completion times and occupancy of one run
    assert not re.search(r"<(script|link|img|iframe)|(src|href)=.?https?:|@import|url\(.?http", text)


def test_a_report_has_everything_on_one_page(tmp_path: Path) -> None:
    run("report", tmp_path / "r", "--seeds", "2", "--workers", "1", "--set", "jobs=20")
    text = (tmp_path / "r" / "index.html").read_text()
    assert all(f'id="{name}"' in text for name in COMMANDS)
    assert set(json.loads((tmp_path / "r" / "findings.json").read_text())) == set(COMMANDS)
    with (tmp_path / "r" / "figures.csv").open() as lines:
        assert {row["experiment"] for row in csv.DictReader(lines)} == set(COMMANDS)


def test_settings_lists_every_setting_that_can_be_set() -> None:
    out, _ = run("settings")
    assert "hacking_share" in out
    assert "restart_cost" in out
    assert "120.0" in out


def test_replay_says_what_would_have_happened(ten: Path, tmp_path: Path) -> None:
    page = tmp_path / "replay.html"
    out, _ = run("replay", ten, "--gpus", "6", "--html", page)
    assert "fifo + EvalStop" in out
    assert "evalstop-csv, 10 jobs, 6 GPUs" in out
    assert "Evals are drawn: family linear, seed 0; the log has none." in out
    assert page.read_text().count("<svg") == 3
    document = json.loads(run("replay", ten, "--gpus", "6", "--json")[0])
    assert [row["run"] for row in document["rows"]] == ["fifo", "fifo + EvalStop"]
    assert document["rows"][0]["mean_jct"] > document["rows"][1]["mean_jct"]
    assert len(document["stopped_jobs"]) == document["stops"] == document["rows"][1]["stops"] > 0
    setting = document["setting"]
    assert (setting["seeds"], setting["cluster"]) == (1, {"gpus": 6})
    assert (setting["workload"]["jobs"], setting["workload"]["gpus"]) == (10, 6)


def test_replay_on_nodes_with_another_policy_rule_and_family(ten: Path) -> None:
    out, _ = run(
        "replay", ten, "--nodes", "2x4", "--policy", "las:firstThreshold=600,second_threshold=1200",
        "--rule", "drawdown:max_drop=0.02+warmUp:min_evals=4", "--curves", "gao_bon", "--seed", "7", "--json",
    )  # fmt: skip
    setting = json.loads(out)["setting"]
    assert setting["base"] == {"name": "las", "first_threshold": 600.0, "second_threshold": 1200.0}
    assert setting["rule"] == {"name": "drawdown", "max_drop": 0.02}
    assert setting["modifiers"] == [{"name": "warmUp", "min_evals": 4}]
    assert setting["workload"]["family"] == "gao_bon"


def test_bad_rows_are_refused_or_counted(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(TEN + "team/bad,900,1,-1\nteam/huge,901,99,60\n")
    _, err = run("replay", file, code=2)
    assert f"evalstop sim: {file}, line 12, work: -1 is not allowed" in err
    out, _ = run("replay", file, "--skip-bad")
    assert "10 jobs" in out
    assert f"Skipped: 2 bad rows, the first: {file}, line 12, work" in out
    document = json.loads(run("replay", file, "--skip-bad", "--json")[0])
    assert document["skipped"] == 2
    assert [row.split(", ")[1] for row in document["skipped_rows"]] == ["line 12", "line 13"]


def test_record_replay_and_compare(tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    size = ("--set", "jobs=40", "--seed", "2")
    run("record", a, *size)
    run("record", b, *size)
    run("record", c, *size, "--no-evalstop")
    assert a.read_bytes() == b.read_bytes()
    out, _ = run("compare", a, b)
    assert "Every decision is the same." in out
    document = json.loads(run("compare", c, a, "--json")[0])
    assert document["same_decisions"] == 0
    assert document["jct_gain"]["value"] > 0.0
    assert document["rows"][0]["stops"] == 0
    assert document["most_changed"]
    replayed = json.loads(run("replay", a, "--json")[0])
    recorded = [row["mean_jct"] for row in document["rows"]]
    assert [row["mean_jct"] for row in replayed["rows"]] == pytest.approx(recorded)
    assert replayed["precision"] > 0.9
    again = tmp_path / "again.jsonl"
    run("record", again, a)
    assert again.read_text().splitlines()[1:] == a.read_text().splitlines()[1:]


DELAYS = ("restart_cost", "suspend_delay", "eval_delay")


def test_a_recording_goes_over_no_other_file(ten: Path, tmp_path: Path) -> None:
    """Who forgets OUT names a log in its place: it must not be lost."""
    before = ten.read_bytes()
    _, err = run("record", ten, code=2)
    assert "is there already, and is no recorded run; evalstop sim record OUT LOG" in err
    _, err = run("record", ten, ten, code=2)
    assert "is among the logs that are read" in err
    assert ten.read_bytes() == before
    _, err = run("record", tmp_path / "none" / "x.jsonl", ten, code=2)
    assert "expected a file in a folder that exists" in err
    out = tmp_path / "run.jsonl"
    run("record", out, ten, "--gpus", "64")
    run("record", out, ten, "--gpus", "64")  # an earlier recording may go


def test_a_recording_goes_on_under_its_own_delays(tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    sets = [word for name in DELAYS for word in ("--set", f"{name}=700")]
    run("record", a, *sets, "--set", "jobs=40", "--policy", "las", "--seed", "2")
    run("record", b, a)
    assert json.loads(run("compare", a, b, "--json")[0])["same_decisions"] == 1
    assert b.read_text().splitlines()[1:] == a.read_text().splitlines()[1:]
    document = json.loads(run("replay", a, "--set", "restart_cost=1", "--json")[0])
    used = document["setting"]["latencies"]
    assert document["setting"]["workload"] == {"jobs": 40, "gpus": 64}  # nothing else of it was drawn
    assert [used[name] for name in DELAYS] == [1.0, 700.0, 700.0]  # what is set goes before what is recorded
    run("record", c, a, "--set", "restart_cost=1")
    assert json.loads(run("compare", a, c, "--json")[0])["same_decisions"] == 0


def test_a_replay_that_stops_nobody_claims_no_precision(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    run("record", file, "--set", "jobs=20", "--rule", "kDeclines:k=50")
    out, _ = run("replay", file)
    assert "precision not known, since no job was stopped, recall 0.0 %" in out
    assert "nan" not in out
    document = json.loads(run("replay", file, "--json")[0])
    assert (document["stops"], document["stopped_jobs"], document["precision"]) == (0, [], None)


def test_replay_and_record_of_a_large_log_say_how_they_get_on(tmp_path: Path) -> None:
    rows = "".join(f"j{i},{60 * i},1,600\n" for i in range(2000))
    file, out = tmp_path / "large.csv", tmp_path / "out.jsonl"
    file.write_text("job,submitted,gpus,work\n" + rows)
    document, err = run("replay", file, "--json")
    assert re.search(r"^replay: 2 runs in \d+\.\d s$", err, re.MULTILINE)
    assert json.loads(document)["rows"][0]["jobs"] == 2000
    _, err = run("record", out, file)
    assert re.search(r"^record: 1 run in \d+\.\d s$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("headline", "--base", "lottery"),
            "queuePolicy: 'lottery' is not allowed, expected one of fifo, ",
        ),
        (
            ("headline", "--base", "fifo:speed=1"),
            "fifo: 'speed' is not allowed, expected one of its parameters",
        ),
        (
            ("headline", "--rule", "kDeclines:k=two"),
            "kDeclines.k: 'two' is not allowed, expected a whole number",
        ),
        (("headline", "--rule", "kDeclines:k=0"), "kDeclines.k: 0 is not allowed, expected a value >= 1"),
        (
            ("headline", "--set", "nois=0.1"),
            "nois: '0.1' is not allowed, expected one of family, eval_interval",
        ),
        (("headline", "--set", "noise"), "--set: 'noise' is not allowed, expected NAME=VALUE"),
        (("headline", "--set", "noise=-1"), "workload.noise: -1.0 is not allowed, expected a value >= 0"),
        (("headline", "--set", "restart_cost=-1"), "latencies.restart_cost: -1.0 is not allowed"),
        (
            ("headline", "--table", "x.xls"),
            "table: 'x.xls' is not allowed, expected a file name",
        ),
        (("headline", "--html", "no/such/folder.html"), "html: 'no/such/folder.html' is not allowed"),
        (("replay", "no-such-file"), "cannot read no-such-file: No such file or directory; name a file"),
        (("compare", "TEN", "TEN"), "ten.csv, line 2, outcome: is missing: this is no recorded run"),
        (("replay", "TEN", "--nodes", "4xx"), "--nodes: '4xx' is not allowed, expected 16x8, or 8,8,4"),
        (
            ("replay", "TEN", "--gpus", "4", "--nodes", "8"),
            "--gpus: 4 is not allowed together with --nodes 8",
        ),
        (("replay", "TEN", "--gpus", "3"), "line 5, gpus: 4 is not allowed, expected a gang that fits"),
        (
            ("replay", "TEN", "--format", "xml"),
            "format: 'xml' is not allowed, expected one of evalstop-trace",
        ),
        (("replay", "TEN", "--curves", "sine"), "workload.family: 'sine' is not allowed"),
    ],
)
def test_what_cannot_be_used_is_named(ten: Path, args: tuple[str, ...], message: str) -> None:
    out, err = run(*(str(ten) if arg == "TEN" else arg for arg in args), code=2)
    assert message in err
    assert out == ""


def test_parquet_is_refused_before_the_work_where_it_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        _, err = run("headline", "--table", tmp_path / "x.parquet", code=2)
        assert "expected a .csv file, or pyarrow installed" in err
    else:
        run("k", "--seeds", "1", "--workers", "1", "--set", "jobs=20", "--table", tmp_path / "x.parquet")
        assert (tmp_path / "x.parquet").stat().st_size > 0


HEAVY = ("numpy", "scipy", "matplotlib", "rich", "controller.policy.job.plan")


def test_a_small_replay_loads_no_heavy_library(ten: Path) -> None:
    program = (
        "import sys; from controller.cli.main import app\n"
        f"app(['sim', 'replay', {str(ten)!r}, '--json'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["rows"]
