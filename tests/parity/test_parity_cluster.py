"""A small parity run to its end: a real operator, real pods, and the command as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from parity_world import known_overheads

from controller.parity.local_cluster import start_local_cluster
from deploy.local.acquire import Found

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HEAD = {"format": "evalstop-trace", "version": 1, "rule": {"name": "kDeclines", "k": 2}}
# The third is enough; where the pod was put back before that was read (a busy machine), later ones tell.
FALLS = {"at": [0.01, 0.02, 0.03, 0.06, 0.09], "scores": [5, 4, 3, 2, 1]}
JOBS = [
    {"job": "falls", "submitted": 0, "gpus": 4, "work": 240, "evals": FALLS},
    {"job": "short", "submitted": 3, "gpus": 2, "gpus_per_replica": 1, "work": 3},
    {"job": "next", "submitted": 4, "gpus": 4, "work": 3, "evals": {"at": [0.5, 1.0], "scores": [1, 2]}},
]


def test_a_small_trace_on_a_cluster_that_is_named(tools: dict[str, Found], tmp_path: Path) -> None:
    """SRTF puts the falling run back for the short ones; it goes on, and is stopped by its evals."""
    trace, overheads, out = tmp_path / "trace.jsonl", tmp_path / "overheads.json", tmp_path / "out"
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in [HEAD, *JOBS]))
    overheads.write_text(known_overheads())
    with start_local_cluster(tmp_path / "cluster", [4], 1, print) as cluster:
        (key, value) = cluster.selectors[0]
        command = [
            *(sys.executable, "-m", "controller.cli", "parity", str(trace), "--json", "--out", str(out)),
            *("--nodes", "1x4", "--speed", "1", "--policy", "srtf", "--overheads", str(overheads)),
            *("--kubeconfig", str(cluster.kubeconfig), "--nodes-of", f"{key}={value}"),
            *("--scheduler-name", cluster.scheduler, "--decision-log", str(cluster.decision_log)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (srtf,) = found["policies"]
    assert (srtf["policy"], srtf["jobs"]) == ("srtf", 3)
    assert (srtf["stops"], srtf["stops_sim"]) == (1, 1)
    assert srtf["preemptions"] >= 1
    assert srtf["preemptions_sim"] >= 1
    assert srtf["jct_cluster"] > 0.0
    assert srtf["jct_sim"] > 0.0
    assert all(difference["cause"] for difference in srtf["order_differences"])
    log = found["decision_log"]
    assert log["decisions"] > 20
    assert (log["different"], log["problem"]) == (0, "")
    # How far it is was said while it ran.
    assert "of 3 jobs over" in done.stderr
    page = (out / "parity.html").read_text()
    assert page.count("<svg") == 1
    document = json.loads((out / "parity.json").read_text())
    (run,) = document["runs"]
    falls = next(job for job in run["cluster"] if job["job"] == "trace/falls")
    assert [how for _, _, _, how, _ in falls["stays"]] == ["preempt"] * (len(falls["stays"]) - 1) + ["stop"]
    told = next(facts for facts in run["facts"] if facts["key"] == "trace/falls")
    # It went on from where it had been put back, not from the start.
    words = [told["words"][number] for number in sorted(told["words"], key=int)]
    assert [w["start"] for w in words[1:]] == [pytest.approx(w["to"], abs=0.5) for w in words[:-1]]
