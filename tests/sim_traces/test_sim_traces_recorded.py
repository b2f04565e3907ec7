"""Our own recordings: the trace format's round trip, the example trainer's evals, the operator's log."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job.types import Desired, Direction, Guardrail, MetricPoints
from controller.policy.stopping import RULES
from controller.policy.stopping.guardrails import shared
from controller.policy.types import EvalPoint, EvalScale, Paired, PolicySpec
from sim.traces import TraceError, TraceJob, read
from sim.traces.facts import JobFacts
from sim.traces.lifetimes import evals_of
from sim.traces.own import guardrails_entry, spec_entry, write_own
from sim.workload import Evals
from tests.support.policy_world import PolicyWorld, logged_plans

seconds = st.one_of(st.integers(0, 10**7), st.floats(0.0, 1e7))


@st.composite
def jobs(draw: st.DrawFn) -> list[TraceJob]:
    made = []
    for number, submitted in enumerate(sorted(draw(st.lists(seconds, min_size=1, max_size=6)))):
        at = sorted(draw(st.sets(st.floats(0.01, 1.0), max_size=4)))
        scores = [draw(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))) for _ in at]
        losses = draw(st.sampled_from([[], [0.5] * len(at)]))
        proxies = draw(st.sampled_from([[], [None] * len(at), [0.25] * len(at)]))
        paired = draw(st.sampled_from([[], [None] * len(at), [Paired(1, 64, -0.125, 0.5)] * len(at)]))
        stderrs = draw(st.sampled_from([[], [None] * len(at), [0.02] * len(at)]))
        each, replicas = draw(st.integers(1, 8)), draw(st.integers(1, 4))
        made.append(
            TraceJob(
                f"team-{draw(st.integers(0, 3))}/run {number} ü",
                submitted,
                each * replicas,
                draw(seconds),
                gpus_per_replica=draw(st.sampled_from([None, each])),
                priority=draw(st.integers(-3, 3)),
                weight=draw(st.floats(0.1, 9.0)),
                estimate=draw(st.one_of(st.none(), seconds)),
                group=draw(st.sampled_from(["", "RLHF"])),
                evals=Evals(at, scores, losses, proxies, paired, stderrs=stderrs) if at else None,
                truth=draw(st.sampled_from([None, (True, 0.6), (False, 1.0)])),
            )
        )
    return made


@given(jobs())
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[TraceJob]
) -> None:
    file = tmp_path_factory.mktemp("own") / "trace.jsonl"
    write_own(file, wanted, {"cluster": {"nodes": [8, 8, 4]}, "rule": {"name": "kDeclines", "k": 4}})
    trace = read([file])
    assert trace.cluster is not None
    assert trace.cluster.gpus == 20
    assert trace.rule is not None
    assert trace.rule.rule == PolicySpec("kDeclines", {"k": 4})
    for line, (job, found) in enumerate(zip(wanted, trace.jobs, strict=True), start=2):
        evals = found.evals
        assert replace(found, line=0, evals=None) == replace(job, evals=None)
        assert found.line == line
        assert (evals is None) == (job.evals is None)
        if evals is not None and job.evals is not None:
            assert list(evals.at) == list(job.evals.at)
            assert repr(list(evals.scores)) == repr(list(job.evals.scores))
            assert list(evals.losses) == list(job.evals.losses)
            assert list(evals.proxies) == list(job.evals.proxies)
            assert list(evals.paired) == list(job.evals.paired)
            assert list(evals.stderrs) == list(job.evals.stderrs)


def test_a_real_recording_of_the_example_trainer(tmp_path: Path) -> None:
    file = tmp_path / "run-a.jsonl"
    subprocess.run(
        f"{sys.executable} -m examples.trainer --steps 40 --eval-every 10 --seed 3 --preferences 200".split()
        + f"--port 0 --linger-seconds 0 --record {file}".split(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    [job] = read([file]).jobs
    assert job.key == "trainer/run-a"
    assert job.evals is not None
    assert list(job.evals.at) == [0.25, 0.5, 0.75, 1.0]
    assert list(job.evals.scores) == [line["gold"] for line in lines if line["step"]]
    assert list(job.evals.stderrs) == [line["stderr"] for line in lines if line["step"]]
    assert min(job.evals.stderrs) > 0.0  # type: ignore[type-var]
    took = [after["time"] - before["time"] for before, after in pairwise(lines)]
    assert len(took) * min(took) <= job.work <= len(took) * max(took)


def test_a_recordings_proxy_and_differences_come_along(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"step": step, "gold": 0.5, "proxy": proxy, "time": float(step), "attempt": "1-0"}
        for step, proxy in ((0, 0.1), (10, 0.2), (20, math.nan), (30, 0.4), (40, 0.5))
    ]
    for line, reference in ((lines[2], 10), (lines[3], 10), (lines[4], 0)):
        line["differences"] = {"reference": reference, "prompts": 64, "mean": -0.25, "variance": 0.5}
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [job] = read([file]).jobs
    assert job.evals is not None
    assert list(job.evals.proxies) == [0.2, None, 0.4, 0.5]
    pair = Paired(1, 64, -0.25, 0.5)  # to the first eval of the trace; step 0 is none of it
    assert list(job.evals.paired) == [None, pair, pair, None]


def test_a_resumed_trainer_takes_back_what_it_does_again(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    first = [(0, 0.0, 0), (10, 0.1, 20), (20, 0.2, 40), (30, 0.3, 60)]
    second = [(20, 0.9, 1000), (30, math.nan, 1020), (40, 0.8, 1040)]
    lines = [{"step": s, "gold": g, "time": t, "attempt": "1-0"} for s, g, t in first]
    lines += [{"step": s, "gold": g, "time": t, "attempt": "2-990"} for s, g, t in second]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [job] = read([file]).jobs
    assert job.evals is not None
    assert list(job.evals.at) == [0.25, 0.5, 0.75, 1.0]
    assert repr(list(job.evals.scores)) == "[0.1, 0.9, nan, 0.8]"
    assert job.work == 80.0  # 2 s a step; the pause between the attempts is no training


def decision_log(*, total_steps: int = 0, **changes: Any) -> list[str]:
    """a falls and is stopped, b gets its GPUs and runs on, c waits to the end: as the operator logs it.

    ``changes``: of every job's `Desired`.
    """
    with logged_plans() as lines:
        world = PolicyWorld({"n1": 2, "n2": 2})
        world.submit("ns/a", 2, 2)
        world.submit("ns/b", 2, 2)
        world.submit("ns/c", 1, 1)
        for job in world.jobs.values():
            job.desired = replace(job.desired, **changes)
        world.settle()
        for score in (0.1, 0.3, 0.5, math.nan, 0.45, 0.4, 0.35):
            world.now += 600
            world.scores("ns/a", score)
            view = world.jobs["ns/a"].observed.scrape
            safety = [p._replace(score=-2.0 * p.score) for p in view.points]
            world.jobs["ns/a"].observed = replace(
                world.jobs["ns/a"].observed,
                scrape=replace(
                    view,
                    step=view.points[-1].step,
                    total_steps=total_steps or None,
                    loss=1.0 / view.points[-1].step,
                    others=(MetricPoints("safety", tuple(safety)), MetricPoints("unused", tuple(safety))),
                ),
            )
            world.settle()
        world.now += 3600
        world.settle()
    return lines


def test_a_decision_log_is_a_trace_of_its_cluster(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_text("\n".join(decision_log()) + "\n")
    trace = read([file])
    assert trace.format == "decision-log"
    assert trace.policy == PolicySpec("fifo")
    assert trace.rule is not None
    assert trace.rule.rule == PolicySpec("kDeclines", {"k": 3})
    assert trace.cluster is not None
    assert dict(trace.cluster.nodes) == {"n0": 2, "n1": 2}
    assert trace.left_out == {"never had GPUs": 1}
    by_key = {job.key: job for job in trace.jobs}
    assert set(by_key) == {"ns/a", "ns/b"}
    a = by_key["ns/a"]
    assert (a.gpus, a.gpus_per_replica) == (4, 2)
    assert a.evals is not None
    assert [score for score in a.evals.scores if score == score] == [0.1, 0.3, 0.5, 0.45, 0.4, 0.35]
    assert a.work == pytest.approx(7 * 600, rel=0.1)
    assert any("did not come to their end" in note for note in trace.notes)


def test_progress_says_how_long_a_stopped_run_would_have_been(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    whole = decision_log(total_steps=140)
    file.write_text("\n".join(whole) + "\n")
    a = next(job for job in read([file]).jobs if job.key == "ns/a")
    assert a.work == pytest.approx(14 * 600, rel=0.1)  # half of its steps were done
    assert a.evals is not None
    assert a.evals.at[-1] == pytest.approx(0.5)


def test_a_logs_differences_are_turned_as_its_scores_are() -> None:
    """Lower is better there, higher here; an eval whose reference is not in the log comes without."""
    desired = Desired("ns/a", "u", 1, "loss", 1, 1, PolicySpec("eProcess"), direction=Direction.MINIMIZE)
    points = [
        EvalPoint(10, 2.0, proxy=0.5),
        EvalPoint(20, 3.0, stderr=0.25, proxy=0.75, paired=Paired(10, 64, 1.0, 0.5)),
        EvalPoint(30, 4.0, paired=Paired(5, 64, 2.0, 0.5)),
    ]
    facts = JobFacts(Path("log"), 1, desired=desired, points=points)
    found, _ = evals_of(facts, 40)
    assert found is not None
    assert list(found.scores) == [-2.0, -3.0, -4.0]
    assert list(found.paired) == [None, Paired(1, 64, -1.0, 0.5), None]
    assert list(found.proxies) == [0.5, 0.75, None]
    assert list(found.stderrs) == [None, 0.25, None]


def test_how_noisy_a_logs_evals_are_follows_from_what_the_job_declares() -> None:
    scale = EvalScale(100, (0.0, 1.0))
    desired = Desired("ns/a", "u", 1, "acc", 1, 1, PolicySpec("scan"), scale=scale)
    points = [EvalPoint(10, 0.5), EvalPoint(20, 0.5, prompts=400), EvalPoint(30, 0.5, stderr=0.04)]
    found, _ = evals_of(JobFacts(Path("log"), 1, desired=desired, points=points), 40)
    assert found is not None
    assert list(found.stderrs) == [0.05, 0.025, 0.04]


def test_a_log_brings_guardrails_and_training_losses(tmp_path: Path) -> None:
    """Rules are logged at their share of the budget of false alarms, and shared again when they are made."""
    primary = shared(PolicySpec("glr", {"alpha": 0.05}), 2, RULES)
    guard = shared(PolicySpec("eProcess"), 2, RULES)
    guardrails = (Guardrail("safety", guard, Direction.MINIMIZE),)
    file = tmp_path / "decisions.jsonl"
    lines = decision_log(total_steps=140, rule=primary, guardrails=guardrails)
    file.write_text("\n".join(lines) + "\n")
    trace = read([file])
    assert trace.rule is not None
    assert trace.rule.rule.params["alpha"] == pytest.approx(0.05)
    [(metric, rule)] = trace.rule.guardrails
    assert (metric, rule.name) == ("safety", "eProcess")
    assert shared(rule, 2, RULES).params == guard.params
    evals = next(job.evals for job in trace.jobs if job.key == "ns/a")
    assert evals is not None
    assert list(evals.others) == ["safety"]  # nobody judges the other one
    scores = [score for score in evals.scores if score == score]
    others = [other for other in evals.others["safety"] if other is not None and other == other]
    assert others == [2.0 * score for score in scores]  # lower is better there, higher here
    assert list(evals.losses) == [pytest.approx(1.0 / (140 * share)) for share in evals.at]
    run = tmp_path / "run.jsonl"
    write_own(run, trace.jobs, {"rule": spec_entry(trace.rule.rule), **guardrails_entry(trace.rule)})
    assert read([run]).rule == trace.rule


def test_a_job_whose_losses_are_not_all_known_is_replayed_without_and_that_is_said(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in decision_log(total_steps=140)]
    scrapes = [
        scrape
        for line in lines
        if line["kind"] == "job" and (scrape := (line["input"]["observed"] or {}).get("scrape"))
    ]
    newest = max(len(scrape["points"]) for scrape in scrapes)
    for scrape in scrapes:
        if len(scrape["points"]) == newest:
            scrape["loss"] = None
    file = tmp_path / "decisions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = read([file])
    evals = next(job.evals for job in trace.jobs if job.key == "ns/a")
    assert evals is not None
    assert list(evals.losses) == []
    assert any("1 of 2 jobs had evals at which their training loss was not seen" in n for n in trace.notes)


def test_a_weight_of_nothing_in_a_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    lines = [json.loads(line) for line in decision_log()]
    for line in lines:
        for view in line["input"].get("jobs", ()):
            view["weight"] = 0.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TraceError, match=r"decisions.jsonl, line \d+, weight: 0.0 is not allowed"):
        read([file])
