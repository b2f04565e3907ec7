"""`evalstop replay`: the same decisions, a first difference, an unreadable log."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from controller.cli.main import app
from controller.cli.replay import differences
from controller.policy import decision_log
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Desired, Observed, PodView, ScrapeOutcome, ScrapeView, WorkloadView
from controller.policy.pool import job_outcomes
from controller.policy.pool.plan import plan_pool
from controller.policy.stopping import RULES
from controller.policy.types import Admission, Attempt, EvalPoint, JobView, NodeView, PolicySpec, PoolSnapshot

DESIRED = Desired(
    key="team/run",
    uid="u1",
    generation=1,
    metric="gold",
    replicas=1,
    gpus_per_replica=2,
    rule=PolicySpec("kDeclines", {"k": 3}),
)


def log_lines() -> list[str]:
    """A run that is accepted, evaluated (one score is NaN) and a pool that admits one job of two."""
    lines, observed = [], Observed()
    record = job_outcomes.admitted(JobRecord(), Admission("team/run", ("n0",)), 1000.0)
    for i in range(6):
        planned = plan_job(DESIRED, observed, record, 1000.5 + i)
        lines.append(decision_log.job_line(DESIRED, observed, record, 1000.5 + i, planned))
        record = planned.record
        scores = [1.0 - 0.1 * step if step != 2 else math.nan for step in range(i + 1)]
        points = tuple(EvalPoint(step, score, Attempt(1, "5")) for step, score in enumerate(scores))
        observed = Observed(
            WorkloadView("w", suspended=False),
            pods=(PodView("p", "n0", 2, terminal=False, ready=True),),
            scrape=ScrapeView(ScrapeOutcome.OK, at=1000.5 + i, metrics_seen=("gold",), points=points),
        )
    jobs = tuple(JobView(f"team/j{i}", 1.0 * i, i, 1, 2) for i in range(2))
    snapshot = PoolSnapshot("a100", PolicySpec("fifo"), (NodeView("n0", 2),), jobs)
    lines.append(decision_log.pool_line(snapshot, 1010.0, plan_pool(snapshot, 1010.0)))
    return lines


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_log_that_the_code_reproduces(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", log_lines())
    result = run("replay", log)
    assert result.output == f"{log}: 7 decisions (6 job, 1 pool) replayed, none different\n"
    assert result.exit_code == 0


def test_a_log_without_a_decision_is_no_log_whose_decisions_are_the_same(tmp_path: Path) -> None:
    result = run("replay", write(tmp_path / "log", []))
    assert (result.exit_code, "no decision in it: is it a decision log?" in result.output) == (2, True)


def test_the_first_difference_is_shown_with_its_place(tmp_path: Path) -> None:
    lines = log_lines()
    for i in (3, 6):
        entry = json.loads(lines[i])
        if i == 6:
            entry["decision"]["admissions"][0]["nodes"] = ["n9"]
        else:
            entry["decision"]["record"]["evals_seen"] = 77
        lines[i] = json.dumps(entry)
    result = run("replay", write(tmp_path / "log", lines))
    assert result.exit_code == 1
    assert "first difference: line 4, job team/run, 1970-01-01T00:16:43.500+00:00" in result.output
    assert "$.record.evals_seen\n    recorded 77\n    replayed 2\n" in result.output
    assert result.output.endswith("7 decisions (6 job, 1 pool) replayed, 2 different\n")
    narrow = CliRunner().invoke(app, ["replay", str(tmp_path / "log")], env={"COLUMNS": "60"})
    assert max(map(len, narrow.output.splitlines())) <= 60, "it is folded where a screen is narrow"


def test_a_pools_difference_is_found_too(tmp_path: Path) -> None:
    lines = log_lines()
    entry = json.loads(lines[6])
    del entry["decision"]["admissions"][0]
    result = run("replay", write(tmp_path / "log", [json.dumps(entry)]))
    assert result.exit_code == 1
    assert "line 1, pool a100" in result.output
    assert "$.admissions[0]\n    recorded (absent)\n    replayed {" in result.output


DAMAGE = [
    pytest.param(lambda line: line[:50], "line 3: not JSON", id="cut off"),
    pytest.param(
        lambda line: line.replace('"v":5', '"v":99'),
        "version 99, this evalstop reads version 5: it is of a newer evalstop; replay it with",
        id="version",
    ),
    pytest.param(lambda line: "[]", "line 3: version None", id="no object"),
    pytest.param(lambda line: line.replace('"kind":"job"', '"kind":"jo"'), "line 3: KeyError", id="kind"),
    pytest.param(lambda line: line.replace('"generation":1', '"generation":"x"'), "line 3: ", id="field"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_an_unreadable_line_is_named(tmp_path: Path, damage: object, words: str) -> None:
    lines = log_lines()
    assert callable(damage)
    damaged = damage(lines[2])
    assert damaged != lines[2]
    lines[2] = damaged
    result = run("replay", write(tmp_path / "log", lines))
    assert result.exit_code == 2
    assert words in result.output
    assert "stopped there, after 2 decisions (2 job), 0 different" in result.output


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n")
    result = run("replay", log)
    assert result.exit_code == 2
    assert "it is no UTF-8 text; is it packed?" in result.output


def test_no_such_log(tmp_path: Path) -> None:
    assert run("replay", tmp_path / "none").exit_code == 2
    assert run("replay", tmp_path).exit_code == 2


def test_differences_are_few_and_short() -> None:
    recorded = {"a": [1, 2, {"b": "x" * 500}], "same": 1.0, **{f"k{i}": i for i in range(9)}}
    replayed = {"a": [1, 3, {"b": ""}, 4], "same": 1.0}
    found = differences(recorded, replayed)
    assert [where for where, _, _ in found] == ["$.a[1]", "$.a[2].b", "$.a[3]", "$.k0", "$.k1"]
    assert found[0] == ("$.a[1]", "2", "3")
    assert len(found[1][1]) == 160
    assert found[3] == ("$.k0", "0", "(absent)")
    assert differences({"a": 1}, {"a": 1.0}) == [("$.a", "1", "1.0")]  # not byte for byte the same


def test_version_names_what_decisions_depend_on() -> None:
    output = run("version").output
    assert "evalstop 0." in output
    assert "evalstop.dev/v1alpha1, decision log 5, stop rules: " in output
    for rule in RULES:
        assert re.search(rf"\b{rule} [1-9]", output), f"no version of {rule}"


def test_the_command_runs_as_a_program_and_does_not_drag_in_the_cluster(tmp_path: Path) -> None:
    log = write(tmp_path / "log", log_lines())
    script = (
        "import sys\nsys.argv = ['evalstop', 'replay', sys.argv[1]]\n"
        "from controller.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'kubernetes', 'kopf', 'aiohttp', 'numpy'} & set(sys.modules), sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "7 decisions" in done.stdout
