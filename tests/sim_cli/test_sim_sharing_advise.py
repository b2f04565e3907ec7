"""`evalstop sim sharing advise`: measured jobs in, what sharing would bring out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.cli.main import app

PAGE = ({"other": 150.0, "training": 40.0}, {"other": 170.0, "training": 40.0})


def job(name: str, away: float, held: float, **more: Any) -> dict[str, Any]:
    steps = [[away * (0.8 + 0.4 * (7 * n % 20) / 19), held] for n in range(20)]
    return {
        "job": name,
        "trainingGpus": 16,
        "rolloutGpus": 8,
        "stateBytes": 8_600_000_000,
        "steps": steps,
        **more,
    }


def advise(tmp_path: Path, *jobs: Any, code: int = 0, options: tuple[str, ...] = ("--json",)) -> Any:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in jobs))
    result = CliRunner().invoke(app, ["sim", "sharing", "advise", str(path), *options])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 and "--json" in options else result.output


def test_two_light_jobs_share_and_a_heavy_one_does_not(tmp_path: Path) -> None:
    document = advise(tmp_path, job("a", 160, 40), job("b", 170, 30), job("c", 60, 140))
    rows = {(row["what"], row["how"]): row for row in document["rows"]}
    shared = rows["a + b", "one group"]
    assert shared["allowed"] == "yes"
    assert 0.28 < shared["saving"] < 1 / 3, "at most T / (2 (T + R))"
    assert rows["a + c", "one group"]["allowed"] == "no: duty 0.90 > 0.80"
    assert rows["a + b + c", "one group"]["allowed"].startswith("no: duty 1.05 > 0.80")
    assert document["notes"][0].startswith("Best of what is allowed")
    assert "a + b on one group" in document["notes"][0]


def test_with_a_step_of_lag_half_of_the_gpus_do(tmp_path: Path) -> None:
    document = advise(tmp_path, job("sync", 160, 40), job("lag", 160, 40, lag=1))
    rows = {row["what"]: row for row in document["rows"] if row["how"].startswith("half")}
    assert rows["lag"]["saving"] == pytest.approx(1 / 3, abs=0.01)
    assert rows["lag"]["allowed"] == "yes"
    assert rows["sync"]["allowed"] == "no: 1.20 times as slow"
    assert "without sharing: lag." in document["notes"][1]


def test_slow_switches_are_told(tmp_path: Path) -> None:
    document = advise(tmp_path, job("a", 80, 20, switchSeconds=80), job("b", 80, 20, switchSeconds=80))
    shared = next(row for row in document["rows"] if row["how"] == "one group")
    assert shared["saving"] < 0
    assert document["notes"][0] == "No two of these jobs may share a group."


def test_only_jobs_of_one_size_are_tried_together(tmp_path: Path) -> None:
    document = advise(tmp_path, job("a", 160, 40), job("b", 160, 40, trainingGpus=8))
    assert [row["what"] for row in document["rows"]] == ["a", "b"]
    plot = tmp_path / "advice.svg"
    out = advise(tmp_path, job("a", 160, 40), job("b", 160, 40), options=("--plot", str(plot)))
    assert "a + b" in out
    assert "<svg" in plot.read_text()


def test_a_metrics_page_beside_the_file_gives_the_steps(tmp_path: Path) -> None:
    page = [
        f'rlhf_step_seconds{{step="{n}",gpus="{gpus}"}} {s}'
        for n in range(20)
        for gpus, s in PAGE[n % 2].items()
    ]
    (tmp_path / "a.txt").write_text("\n".join(page) + "\n")
    (tmp_path / "b.txt").write_text(
        'rlhf_phase_seconds_total{phase="rollout",gpus="other"} 8500\n'
        'rlhf_phase_seconds_total{phase="train",gpus="training"} 1500\nrlhf_step 50\n'
    )
    a, b = ({**job(name, 1, 1), "page": f"{name}.txt"} for name in "ab")
    for one in (a, b):
        del one["steps"]
    document = advise(tmp_path, a, b)
    shared = next(row for row in document["rows"] if row["what"] == "a + b")
    assert shared["duty"] == pytest.approx(40 / 200 + 30 / 200)
    assert shared["allowed"] == "yes"
    assert any(note.startswith("Of b only the means of phases are known") for note in document["notes"])
    out = advise(tmp_path, {**a, "page": "none.txt"}, code=2)
    assert "none.txt" in out
    assert "page: 3, expected the name of a file" in advise(tmp_path, {**a, "page": 3}, code=2)
    (tmp_path / "a.txt").write_text("rlhf_step 3\n")
    assert "expected at least 5 steps of a trainer that counts its phases" in advise(tmp_path, a, code=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": [[1, 1]] * 4}, "steps: 4, expected at least 5 pairs of seconds"),
        ({"steps": [[1, 0]] * 5}, "steps[0]: 0.0, expected more than 0 s on the training GPUs"),
        ({"steps": [[1]] * 5}, "steps[0]: [1], expected [seconds away, seconds on the training GPUs]"),
        ({"steps": [[-1, 1]] * 5}, "steps[0]: -1, expected 0 to 86400 s"),
        ({"steps": 3}, "steps: 3, expected at least 5 pairs"),
        ({"trainingGpus": 0}, "trainingGpus: 0, expected a whole number from 1"),
        ({"trainingGpus": True}, "trainingGpus: True, expected a whole number from 1"),
        ({"lag": 2}, "lag: 2, expected a whole number from 0 to 1"),
        ({"switchSeconds": "x"}, "switchSeconds: 'x', expected 0 to 86400 s"),
        ({"job": ""}, "job: '', expected a name of 1 to 63 characters"),
        ({"more": 1}, ":2: more not known: expected the fields job, trainingGpus"),
    ],
)
def test_what_is_no_measured_job_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    out = advise(tmp_path, job("a", 160, 40), {**job("b", 160, 40), **change}, code=2)
    assert "steps.jsonl:2" in out
    assert words in out


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    """It listed the fields that were there, and those it expected, as if the first were wrong."""
    of = {key: value for key, value in job("a", 160, 40).items() if key not in ("stateBytes", "steps")}
    assert ":1: stateBytes, steps missing; gpus not known: expected the fields" in advise(
        tmp_path, {**of, "gpus": 3}, code=2
    )


def test_a_file_without_jobs_or_with_one_twice_is_refused(tmp_path: Path) -> None:
    assert "no job in it" in advise(tmp_path, code=2)
    assert "a job is there twice" in advise(tmp_path, job("a", 160, 40), job("a", 160, 40), code=2)
    assert "expected an object" in advise(tmp_path, [1], code=2)
    assert "more than 16 jobs" in advise(tmp_path, *(job(f"j{n}", 160, 40) for n in range(17)), code=2)
