"""FIFO, SRTF and LAS give the golden answers, and those of brute force on any workload."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from brute import Job, fifo, las, srtf
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import Result, simulate
from sim.workload import Workload

SPECS = {
    "fifo": PolicySpec("fifo"),
    "srtf_greedy_skip": PolicySpec("srtf"),
    "tiresias_dlas_gpu": PolicySpec("las", {"variant": "Tiresias"}),
}
ANSWERS = [
    *((name, "fifo") for name in ("w1k_512", "w10k_64", "w10k_512", "w10k_1024", "w100k_512")),
    *((name, "srtf_greedy_skip") for name in ("w1k_512", "w10k_64", "w10k_512", "w10k_1024", "w100k_512")),
    *((name, "tiresias_dlas_gpu") for name in ("w10k_64", "w10k_512")),
]


def run(jobs: list[Job], gpus: int, spec: PolicySpec) -> Result:
    return simulate(Workload.of(jobs), Cluster.slots(gpus), make_policy(spec))


def load(path: Path) -> list[Job]:
    with gzip.open(path, "rt") as lines:
        return [(int(r["submit_time"]), int(r["num_gpu"]), int(r["duration"])) for r in csv.DictReader(lines)]


@pytest.mark.parametrize(("name", "policy"), ANSWERS)
def test_golden(golden: Path, name: str, policy: str) -> None:
    answers = json.loads((golden / "golden.json").read_text())[name]
    gpus, spec = answers["G"], SPECS[policy]
    jobs, answer = load(golden / f"{name}.csv.gz"), answers[policy]
    result = run(jobs, gpus, spec)
    assert round(result.mean_jct, 4) == round(answer["mean_jct"], 4)
    assert result.makespan == answer["makespan"]
    if "sum_jct" in answer:
        assert sum(result.jct) == answer["sum_jct"]
    if "sum_wait" in answer:
        assert sum(s - t for s, t in zip(result.started, result.submitted, strict=True)) == answer["sum_wait"]
    assert result.preemptions == answer.get("preemptions", 0)


jobs = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 2, 3, 4, 8]), st.integers(1, 60)),
    min_size=1,
    max_size=40,
).map(sorted)


@settings(max_examples=300, deadline=None)
@given(jobs, st.sampled_from([8, 12]), st.booleans())
def test_fifo_is_brute_force_s(jobs: list[Job], gpus: int, backfill: bool) -> None:
    ends, _ = fifo(jobs, gpus, backfill=backfill)
    result = run(jobs, gpus, PolicySpec("fifo", {"backfill": backfill}))
    assert result.ended == ends
    assert result.preemptions == 0


@settings(max_examples=300, deadline=None)
@given(jobs, st.sampled_from([8, 12]))
def test_srtf_is_brute_force_s(jobs: list[Job], gpus: int) -> None:
    ends, preemptions = srtf(jobs, gpus)
    result = run(jobs, gpus, PolicySpec("srtf"))
    assert (result.ended, result.preemptions) == (ends, preemptions)


@settings(max_examples=300, deadline=None)
@given(jobs, st.sampled_from([8, 12]), st.sampled_from([(16, 64), (40, 100)]))
def test_las_is_brute_force_s(jobs: list[Job], gpus: int, limits: tuple[int, int]) -> None:
    ends, preemptions = las(jobs, gpus, limits)
    params = {
        "first_threshold": float(limits[0]),
        "second_threshold": float(limits[1]),
        "variant": "Tiresias",
    }
    result = run(jobs, gpus, PolicySpec("las", params))
    assert (result.ended, result.preemptions) == (ends, preemptions)


@settings(max_examples=100, deadline=None)
@given(jobs)
def test_srtf_with_room_for_all_is_fifo(jobs: list[Job]) -> None:
    assert run(jobs, 400, PolicySpec("srtf")).ended == run(jobs, 400, PolicySpec("fifo")).ended
