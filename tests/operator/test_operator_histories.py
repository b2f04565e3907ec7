"""What the operator takes for alike: kinds of jobs, from RLHFJobs as the API server gives them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.operator import histories
from controller.policy.estimates import Kind
from controller.policy.jobs import Desired, JobRecord, RunProgress
from controller.policy.types import PolicySpec


def rlhfjob(image: str = "trainer:1", **labels: str) -> dict[str, Any]:
    containers = [{"name": "trainer", "image": image}, {"name": "side", "image": "exporter:2"}]
    template = {"spec": {"template": {"spec": {"containers": containers}}}}
    return {
        "metadata": {"namespace": "team", "name": "run", "labels": labels},
        "spec": {
            "gang": {"replicas": 2, "gpusPerReplica": 4},
            "workload": {"template": template},
        },
    }


def test_the_kind_of_a_job() -> None:
    expected = Kind("team", ("exporter:2", "trainer:1"), 2, 4, (("model", "7b"),))
    assert histories.kind_of(rlhfjob(model="7b")) == expected


@pytest.mark.parametrize(
    "workload",
    [
        {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}},
        {"template": {"spec": {}}},
        {"template": {"spec": {"template": {"spec": {"containers": ["odd"]}}}}},
        {},
    ],
)
def test_a_job_without_images_of_its_own(workload: dict[str, Any]) -> None:
    obj = rlhfjob()
    obj["spec"]["workload"] = workload
    assert histories.kind_of(obj) == Kind("team", (), 2, 4)


@dataclass
class Thought:
    """As much of a thought as is looked at."""

    obj: dict[str, Any]
    record: JobRecord
    expected: float | None = None

    @property
    def desired(self) -> Desired:
        return Desired("team/run", "u", 1, "gold", 2, 4, PolicySpec("scan"), expected_seconds=self.expected)

    @property
    def gpus(self) -> int:
        return 8


DONE = JobRecord(finished="Complete", attained=800.0 * 8, progress=RunProgress(1000, 1000, 800.0 * 8))


def test_ended_runs_tell_how_long_the_next_will_take() -> None:
    failed = replace(DONE, finished="Failed", attained=8.0)
    past = histories.history([Thought(rlhfjob(), DONE), Thought(rlhfjob(), failed)])  # type: ignore[list-item]

    def estimate(job: Thought) -> float | None:
        return histories.estimate(job, past)  # type: ignore[arg-type]

    assert estimate(Thought(rlhfjob(), JobRecord(), 50.0)) == 800.0
    assert estimate(Thought(rlhfjob(model="7b"), JobRecord(), 50.0)) == 800.0
    assert estimate(Thought(rlhfjob("trainer:2"), JobRecord(), 50.0)) == 50.0
    assert estimate(Thought(rlhfjob("trainer:2"), JobRecord())) is None
    half = JobRecord(attained=100.0 * 8, progress=RunProgress(500, 1000, 100.0 * 8))
    assert estimate(Thought(rlhfjob(), half)) == pytest.approx(200.0)
