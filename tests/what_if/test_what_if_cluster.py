"""RLHFJobs as a history, without a cluster: what cannot be read is counted, what is not known stays so."""

from __future__ import annotations

from typing import Any

import pytest

from controller.api import convert
from controller.cli import history_input
from controller.policy.job.record import AdmissionRecord, Best, JobRecord, RunProgress
from controller.policy.types import Attempt, EvalPoint
from sim.traces import TraceError
from sim.traces.past import End
from sim.traces.past_files import read_past
from sim.traces.trace import Trace

CREATED = "2026-11-01T10:00:00Z"
AT = 1793527200.0  # that moment


def job(name: str, *, pool: str = "research", record: JobRecord | None = None, **spec: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": name,
            "generation": 1,
            "creationTimestamp": CREATED,
        },
        "spec": {
            "pool": pool,
            "gang": {"replicas": 2, "gpusPerReplica": 4},
            "workload": {"template": {}},
            "metrics": [{"name": "gold"}],
            "stopRule": {"kDeclines": {"k": 3}},
            "modifiers": [],
            "checkpoints": {
                "location": {"objectStore": {"uri": "s3://work/run"}},
                "layout": "Plain",
                "retention": {"objectStore": {"uri": "s3://kept"}},
            },
            **spec,
        },
    }
    if record is not None:
        obj["status"] = convert.status(record, convert.desired(obj, None), 0.0)
    return obj


def pool(name: str = "research", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {
            "nodeSelector": [{"key": "pool", "value": name}],
            "allowedNamespaces": [{"name": "ns", "maxPriority": 10, "weight": 3}],
            "queuePolicy": {"srtfEst": {}},
        },
        "status": {"nodeSizes": [{"gpus": 8, "nodes": 2}], **status},
    }


def running(**changes: Any) -> JobRecord:
    found = {
        "attempt": 3,
        "evals": tuple(EvalPoint(10 * n, 0.1 * n, Attempt(3, "1")) for n in (3, 4, 5)),
        "evals_seen": 5,
        "best": Best(50, 0.5),
        "admission": AdmissionRecord(3, ("8-0", "8-1"), AT + 500.0, running_since=AT + 600.0),
        "progress": RunProgress(50, 100, 800.0),
        "attained": 1000.0,
        "lost": 200.0,
        "preemptions": 2,
    }
    return JobRecord(**{**found, **changes})


def history(
    jobs: list[dict[str, Any]], pools: list[dict[str, Any]] | None, name: str = ""
) -> tuple[Trace, list[str]]:
    notes: list[str] = []
    trace = read_past([], more=history_input._adder(jobs, pools, name, notes))
    return trace, notes + trace.notes


def test_a_running_job_tells_what_its_status_remembers() -> None:
    trace, notes = history([job("runs", record=running(), priority=20)], [pool()])
    assert trace.policy is not None
    assert trace.policy.name == "srtfEst"
    assert trace.cluster is not None
    assert [gpus for _, gpus in trace.cluster.nodes] == [8, 8]
    [found] = trace.jobs
    assert (found.key, found.submitted, found.gpus, found.gpus_per_replica) == ("ns/runs", AT, 8, 4)
    assert (found.priority, found.weight) == (10, 3.0)  # at most the pool's ceiling
    assert found.past is not None
    assert found.past.end is End.RUNNING
    assert (found.past.seen, found.past.attempts, found.past.preempted) == (0.5, 3, 2)
    assert (found.past.started, found.past.missed) == (None, 2)
    assert found.past.service > 1000.0  # what it had, and since its pods are ready
    assert found.work == pytest.approx(2.0 * (found.past.service - 200.0) / 8)
    assert "2 evals of 1 job were made and are not here." in notes
    assert "Of 1 job the first attempts are not here; their service is counted all the same." in notes
    assert trace.history["from"] == AT
    assert not any("before the log begins" in note for note in notes)  # there is no log
    assert trace.latencies is not None
    assert trace.latencies.start_delay == 100.0
    assert trace.latencies.restart_cost == 200.0 / 8 / 2


def test_a_waiting_job_counts_if_its_length_was_estimated() -> None:
    waits = job("waits", record=JobRecord(), expectedDurationSeconds=3600)
    trace, notes = history([job("runs", record=running()), waits, job("new")], [pool()])
    [found] = [one for one in trace.jobs if one.key == "ns/waits"]
    assert found.past is not None
    assert (found.work, found.past.end, found.past.length, found.past.seen) == (
        3600.0,
        End.WAITING,
        "estimate",
        0.0,
    )
    assert "1 job is left out: never had GPUs." in notes


def test_what_cannot_be_read_is_counted() -> None:
    damaged = job("damaged", record=running())
    damaged["status"]["evals"] = ["what"]
    empty = job("empty", record=running(), gang={"replicas": 0, "gpusPerReplica": 0})
    trace, notes = history([job("runs", record=running()), damaged, empty], [pool()])
    assert [one.key for one in trace.jobs] == ["ns/runs"]
    assert "1 RLHFJob is left out: the status is of another version, or damaged." in notes
    assert "1 RLHFJob is left out: the spec cannot be used." in notes


@pytest.mark.parametrize(
    ("pools", "why"), [(None, "cannot be read by you"), ([], "is not there, or cannot be used")]
)
def test_a_pool_that_is_not_known_is_told(pools: list[dict[str, Any]] | None, why: str) -> None:
    trace, notes = history([job("runs", record=running())], pools)
    assert f"GPUPool research {why}: its nodes and queue policy are not known from it." in notes
    assert trace.cluster is None


def test_one_of_several_pools_is_named() -> None:
    jobs = [job("a", record=running()), job("b", pool="other", record=running())]
    with pytest.raises(
        ValueError, match="--pool: the RLHFJobs are of the pools other, research, expected one"
    ):
        history(jobs, [pool()])
    trace, _ = history(jobs, [pool(), pool("other")], "other")
    assert [one.key for one in trace.jobs] == ["ns/b"]
    with pytest.raises(
        ValueError, match=r"no GPUPool 'reserch', expected one of research; did you mean 'res"
    ):
        history(jobs, [pool()], "reserch")
    with pytest.raises(TraceError, match="no job in it that had GPUs"):
        history(jobs, None, "third")
    with pytest.raises(ValueError, match="the cluster has no RLHFJob"):
        history([], [pool()])
