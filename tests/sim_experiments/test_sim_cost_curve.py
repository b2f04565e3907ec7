"""The curve of the simulator's cost is drawn from the rows that its benchmark prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROWS: list[dict[str, object]] = [
    {"name": "sim: fifo, twin of 1000 jobs, 64 GPUs", "value": 2.5},
    {"name": "sim: fifo, twin of 10000 jobs, 64 GPUs", "value": 3.0},
    {"name": "sim: fifo, twin of 10000 jobs, 256 GPUs", "value": 4.0},
    {"name": "sim: running at a time, twin of 10000 jobs, 64 GPUs", "value": 16.0},
    {"name": "sim: running at a time, twin of 10000 jobs, 256 GPUs", "value": 70.0},
    {"name": "sim: srtf, twin of 3000 jobs, 8 nodes of 8", "value": 9.0},  # placed: another curve
    {"name": "scrape: 100 jobs", "value": 1.0},
]


def run(folder: Path, rows: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    source = folder / "bench.json"
    source.write_text(json.dumps(rows))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench.cost_curve",
            "--rows",
            source,
            "--out",
            folder / "out" / "cost.svg",
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_drawing_has_a_panel_for_jobs_gpus_and_running_jobs(tmp_path: Path) -> None:
    done = run(tmp_path, ROWS)
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "out" / "cost.svg").read_text()
    assert svg.startswith("<svg")
    for label in ("jobs, on 64 GPUs", "GPUs, 10,000 jobs", "jobs running at a time", "fifo"):
        assert f">{label}<" in svg
    assert "srtf" not in svg


def test_rows_without_the_simulator_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, ROWS[-1:])
    assert done.returncode == 2
    assert "expected one of `python -m tests.bench sim`" in done.stderr
