"""The command as it is run without a cluster at hand: calibrated, and two policies played at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.parity import calibration
from controller.parity.compressed_trace import TraceOnCluster
from deploy.local.acquire import Found
from sim.cluster import Cluster
from sim.workload import Evals

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HEAD = {"format": "evalstop-trace", "version": 1, "rule": {"name": "kDeclines", "k": 2}}
JOBS = [
    {"job": "my run", "submitted": 0, "gpus": 4, "work": 4},
    {"job": "next", "submitted": 0, "gpus": 2, "work": 3},
]
FALLING = Evals([0.06, 0.12, 0.18, 0.9], [0.8, 0.6, 0.4, 0.2])


def short(cluster: Cluster, waves: int) -> TraceOnCluster:
    """Every delay once, in about a minute: a long run, which by then trains on a busy machine too, makes way
    for one that ends and one that is stopped, and goes on."""
    rows: list[calibration.Row] = [(0.0, 4, 38.0, None), (14.0, 2, 2.0, None), (14.0, 2, 22.0, FALLING)]
    return calibration.made(cluster, rows)


def test_it_is_calibrated_and_all_policies_are_played_at_once(
    tools: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "run", short)
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in [HEAD, *JOBS]))
    options = ["--nodes", "1x4", "--speed", "1", "--policy", "fifo", "--policy", "srtf", "--at-once"]
    done = CliRunner().invoke(app, ["parity", str(trace), *options, "--json", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["policy"], one["jobs"]) for one in found["policies"]] == [("fifo", 2), ("srtf", 2)]
    assert found["load"] is None  # both come at once
    assert all(one["jct_cluster"] > 0.0 for one in found["policies"])
    assert (found["decision_log"]["different"], found["decision_log"]["problem"]) == (0, "")
    # Every delay was seen, and is one that a local cluster takes.
    overheads = {one["name"]: one for one in found["overheads"]}
    assert overheads["preempt_delay"]["count"] >= 1
    assert overheads["eval_delay"]["count"] >= 1
    assert all(0.0 <= one["mean"] < 15.0 for one in overheads.values())
    document = json.loads((out / "parity.json").read_text())
    assert len(document["calibration"]) == 2
    # The two were played at the same time, each on nodes of its own.
    spans, nodes = [], []
    for run in document["runs"]:
        admissions = [a for facts in run["facts"] for a in facts["admissions"].values()]
        over = [facts["ended"] or facts["pods_gone"] for facts in run["facts"]]  # by itself, or stopped
        spans.append((min(a["at"] for a in admissions), max(over)))
        nodes.append({node for a in admissions for node in a["nodes"]})
    assert max(began for began, _ in spans) < min(ended for _, ended in spans)
    assert all(nodes)
    assert nodes[0].isdisjoint(nodes[1])
    assert all(stay[4] for run in document["runs"] for job in run["cluster"] for stay in job["stays"])
