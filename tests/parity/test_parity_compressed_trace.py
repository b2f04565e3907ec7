"""A trace made ready: compressed in time, as RLHFJobs the API takes, and as the simulator runs it."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from parity_world import calibration_facts
from typer.testing import CliRunner

from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.cli import parity
from controller.cli.main import app
from controller.parity import calibration, manifests, parity_run
from controller.parity.calibration import measure
from controller.parity.compressed_trace import NAME_MOST, TraceOnCluster, compress_trace, compressed
from controller.parity.facts import Facts
from controller.parity.manifests import ClusterTarget
from controller.parity.report import Report
from controller.parity.simulated import simulated
from controller.parity.timeline import How, Timeline
from controller.policy.job.record import JobRecord
from controller.policy.job.service import remaining_seconds
from controller.policy.params import ParamError
from controller.policy.types import PolicySpec
from sim import specs
from sim.cluster import Cluster
from sim.engine.training import Training
from sim.latencies import Latencies
from sim.traces import read

HEAD = {
    "format": "evalstop-trace",
    "version": 1,
    "cluster": {"nodes": [4, 4]},
    "rule": {"name": "kDeclines", "k": 2},
}
EVALS = {"at": [0.2, 0.4, 0.6, 1.0], "scores": [0.9, 0.8, 0.7, 0.1], "stderrs": [0.1, None, 0.1, 0.1]}
PLACE = ClusterTarget("here", ("gpus", "many"))


def made(
    tmp_path: Path, jobs: list[dict[str, Any]], head: dict[str, Any] = HEAD, **given: Any
) -> TraceOnCluster:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, [head, *jobs])) + "\n")
    return compress_trace(read([file]), **given)


def job(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"job": name, "submitted": 0, "gpus": 4, "work": 3600, "evals": EVALS, **more}


def test_time_passes_faster_and_nothing_else_changes(tmp_path: Path) -> None:
    jobs = [job(), job("b", submitted=90, work=1805, gpus=8, estimate=900)]
    found = made(tmp_path, jobs, speed=60.0)
    assert list(found.workload.submitted) == [0.0, 1.5]
    assert list(found.workload.work) == [60, 30]  # whole seconds: users state them so
    assert list(found.workload.estimate) == [None, 15]
    assert found.gangs == ((1, 4), (2, 4))
    assert found.workload.evals[0].at == EVALS["at"]  # type: ignore[union-attr]
    assert found.load == pytest.approx((4 * 60 + 8 * 30) / (8 * 1.5))


@pytest.mark.parametrize("jobs", [[job()], [job(), job("b"), job("c")]])
def test_jobs_that_all_come_at_once_have_no_load_and_figures_that_json_takes(
    tmp_path: Path, jobs: list[dict[str, Any]]
) -> None:
    found = made(tmp_path, jobs)
    assert found.load is None
    about = parity._about(tmp_path / "trace.jsonl", found)
    keep = Report(about, measure([calibration_facts()]), ())
    parity._keep_figures(keep, tmp_path)
    assert json.loads((tmp_path / "parity.json").read_text())["load"] is None


def test_a_job_s_name_may_have_blanks_in_it(tmp_path: Path) -> None:
    found = made(tmp_path, [job("my run"), job("team a/my run\n2", work=600)], speed=60.0)
    lived = simulated(found, PolicySpec("srtf"), Latencies())
    assert [job.key for job in lived.jobs] == ["trace/my run", "team a/my run\n2"]
    assert all(job.stays for job in lived.jobs)
    json.dumps({"jct": lived.mean_jct}, allow_nan=False)


def test_the_speed_follows_from_the_minutes(tmp_path: Path) -> None:
    found = made(tmp_path, [job(), job("b")], minutes=5.0)  # 2 x 4 x 3600 GPU-s on 8 GPUs: an hour
    assert found.speed == pytest.approx(12.0)


def test_names_are_ones_that_kubernetes_takes(tmp_path: Path) -> None:
    found = made(tmp_path, [job("team/Run_7"), job("x" * 90), job("__")])
    assert found.names[0] == "run-7-0"
    assert found.names[2] == "job-2"
    assert all(len(name) <= NAME_MOST for name in found.names)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("fifo", {}),
        ("srtf", {}),
        ("las", {"first_threshold": 32.5, "second_threshold": 72.0}),  # defaults are the trace's, too
        ("las:first_threshold=100,second_threshold=900", {"first_threshold": 1.0, "second_threshold": 9.0}),
        ("fifo:max_wait=360000", {"max_wait": 3600.0}),
        ("fifo:max_wait=600", {"max_wait": 60.0}),  # a pool takes no less
    ],
)
def test_a_policy_s_times_are_compressed_with_the_trace(text: str, params: dict[str, float]) -> None:
    found = compressed(specs.policy(text), 100.0)
    assert {name: found.params[name] for name in params} == params


@pytest.mark.parametrize(
    ("policy", "rule", "words"),
    [
        ("slaq", "kDeclines", "policy: 'slaq' is not allowed, expected fifo, srtf or las"),
        ("srtfEst", "kDeclines", "policy: 'srtfEst' is not allowed, expected fifo, srtf or las"),
        ("fifo", "medianOfPeers", "a played run does not report peers"),
        ("fifo", "kDeclines|safety=drawdown", "a played run reports one metric"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(tmp_path: Path, policy: str, rule: str, words: str) -> None:
    with pytest.raises(ParamError, match=words.replace("(", r"\(")):
        compressed(specs.policy(policy), made(tmp_path, [job()], rule=specs.rule(rule)).speed)


def test_a_trace_without_nodes_asks_for_them(tmp_path: Path) -> None:
    head = {"format": "evalstop-trace", "version": 1, "cluster": {"gpus": 8}}
    with pytest.raises(ParamError, match="the trace does not name any"):
        made(tmp_path, [job()], head)


@pytest.mark.parametrize("rule", ["kDeclines:k=4,min_delta=0.02", "glr:alpha=0.05+warmUp:min_evals=6"])
def test_the_operator_reads_of_the_manifests_what_the_simulator_runs(tmp_path: Path, rule: str) -> None:
    found = made(tmp_path, [job(priority=3), job("b")], rule=specs.rule(rule))
    policy = compressed(specs.policy("las"), 10.0)
    pool = convert.parse_pool(manifests.pool(PLACE, policy, found.max_priority))
    assert isinstance(pool, GPUPool)
    read_back = convert.policy(pool)
    assert read_back.name == "las"
    assert {k: read_back.params[k] for k in policy.params} == dict(policy.params)
    wanted = convert.desired(manifests.rlhfjob(found, 0, PLACE), pool)
    assert wanted.problem is None
    assert (wanted.replicas, wanted.gpus_per_replica, wanted.expected_seconds) == (
        1,
        4,
        found.workload.work[0],
    )
    assert wanted.rule.name == found.rule.rule.name
    assert {k: wanted.rule.params[k] for k in found.rule.rule.params} == dict(found.rule.rule.params)
    assert [m.name for m in wanted.modifiers] == [m.name for m in found.rule.modifiers]


@pytest.mark.parametrize("estimate", [900, 9000])
def test_srtf_knows_on_the_cluster_what_it_knows_in_the_simulator(tmp_path: Path, estimate: int) -> None:
    found = made(tmp_path, [job(work=3600, estimate=estimate)], speed=60.0)
    pool = convert.parse_pool(manifests.pool(PLACE, PolicySpec("srtf"), 0))
    assert isinstance(pool, GPUPool)
    wanted = convert.desired(manifests.rlhfjob(found, 0, PLACE), pool)
    assert remaining_seconds(wanted, JobRecord(), 0.0) == Training(
        found.workload, Latencies(start_delay=3.0)
    ).left(0, False)


def test_missing_scores_and_errors_are_handed_to_the_pod_as_such(tmp_path: Path) -> None:
    evals = {"at": [0.5, 1.0], "scores": [None, 0.5], "stderrs": [0.25, None]}
    found = made(tmp_path, [job(evals=evals)])
    template = manifests.rlhfjob(found, 0, PLACE)["spec"]["workload"]["template"]["spec"]["template"]
    arguments = template["spec"]["containers"][0]["args"]
    assert "--scores=nan,0.5" in arguments
    assert "--stderrs=0.25,nan" in arguments


def test_the_simulator_s_stays_are_those_of_its_journal(tmp_path: Path) -> None:
    jobs = [
        job("a", gpus=8, work=100, evals=None),
        job("b", submitted=10, gpus=8, work=20, evals=None),
        job("c", submitted=11, gpus=4, work=500),  # falls from the start: stopped
    ]
    for entry in jobs:
        if entry["evals"] is None:
            del entry["evals"]
    found = made(tmp_path, jobs, speed=1.0)
    lived = simulated(found, PolicySpec("srtf"), Latencies(preempt_delay=2.0, suspend_delay=1.0))
    a, b, c = lived.jobs
    assert [(s.admitted, s.decided, s.freed, s.how) for s in a.stays] == [
        (0.0, 10.0, 13.0, How.PREEMPT),
        (33.0, None, 121.0, How.END),  # it trained on until 12
    ]
    assert [(s.admitted, s.freed, s.how) for s in b.stays] == [(13.0, 33.0, How.END)]
    assert c.stopped
    assert (lived.stops, lived.preemptions) == (1, 1)
    assert [e.kind for e in lived.events()][:3] == ["start", "preempt", "start"]


@pytest.mark.parametrize("waves", [1, 2, 3])
def test_falling_evals_of_the_calibration_come_at_all_times_between_two_scrapes(waves: int) -> None:
    """Of a run that is scraped from when it is ready on, every 5 s."""
    made = calibration.run(Cluster.of_nodes([8] * 4), waves).workload
    thirds = sorted(
        evals.at[2] * work % 5.0
        for evals, work in zip(made.evals, made.work, strict=True)
        if evals is not None and evals.scores[-1] < evals.scores[0]
    )
    assert len(thirds) == 4 * waves
    apart = [after - before for before, after in pairwise([*thirds, thirds[0] + 5.0])]
    assert apart == pytest.approx([5.0 / len(thirds)] * len(thirds))


def test_the_help_says_how_long_a_wave_is() -> None:
    """Wide terminals only: the words are not to be broken."""
    said = CliRunner().invoke(app, ["parity", "--help"], env={"COLUMNS": "300"}).stdout
    assert f"Of the calibration run, {calibration.WAVE:.0f} s each." in said


def test_runs_at_once_do_not_begin_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "STEP", 0.6)
    began: list[float] = []

    async def played() -> tuple[Timeline, list[Facts]]:
        began.append(time.monotonic())
        await asyncio.sleep(0.0)
        return Timeline(()), []

    called = time.monotonic()
    assert len(asyncio.run(parity_run._all([played] * 3))) == 3
    # Each no earlier than its own time: a busy machine may be late with one of them.
    assert [at - called >= 0.2 * n - 0.01 for n, at in enumerate(began)] == [True, True, True]


def test_the_calibration_run_has_stops_and_preemptions_to_measure() -> None:
    for nodes in ([4, 4], [8, 8, 8, 8]):
        own = calibration.run(Cluster.of_nodes(nodes), waves=1)
        lived = simulated(
            own, calibration.POLICY, Latencies(start_delay=2.0, eval_delay=3.0, preempt_delay=3.0)
        )
        assert lived.stops >= 3
        assert lived.preemptions >= 4
