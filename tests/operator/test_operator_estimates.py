"""What the operator takes for alike: kinds of jobs, from RLHFJobs as the API server gives them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.operator.reconcile import estimates
from controller.policy.job.estimates import Kind
from controller.policy.job.record import Expected, JobRecord, RunProgress
from controller.policy.job.types import Desired
from controller.policy.queueing import make_policy
from controller.policy.queueing.srtf_est import remaining
from controller.policy.types import JobState, JobView, PolicySpec


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
    assert estimates.kind_of(rlhfjob(model="7b")) == expected


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
    assert estimates.kind_of(obj) == Kind("team", (), 2, 4)


@dataclass
class Thought:
    """As much of a planned job as is looked at."""

    obj: dict[str, Any]
    record: JobRecord
    expected: float | None = None

    key: str = "team/run"

    @property
    def desired(self) -> Desired:
        return Desired("team/run", "u", 1, "gold", 2, 4, PolicySpec("scan"), expected_seconds=self.expected)

    @property
    def gpus(self) -> int:
        return 8


DONE = JobRecord(finished="Complete", attained=800.0 * 8, progress=RunProgress(1000, 1000, 800.0 * 8))


NOW = 1000.0


def seen(job: Thought, jobs: list[Thought], policy: str, state: JobState = JobState.QUEUED) -> JobView:
    """How the job stands before a pool of this queue policy and of these jobs, that one among them."""
    past = estimates.history(jobs, NOW)  # type: ignore[arg-type]
    view = JobView(job.key, 0.0, 0, 2, 4, state=state)
    return estimates.timed(view, job, past, policy, NOW)[0]  # type: ignore[arg-type]


def test_ended_runs_tell_how_long_the_next_will_take() -> None:
    failed = replace(DONE, finished="Failed", attained=8.0)
    past = [Thought(rlhfjob(), DONE), Thought(rlhfjob(), failed)]

    def left(job: Thought) -> float | None:
        view = seen(job, [*past, job], "srtfEst")
        return None if view.estimate is None else remaining(view)

    assert left(Thought(rlhfjob(), JobRecord(), 50.0)) == 800.0
    assert left(Thought(rlhfjob(model="7b"), JobRecord(), 50.0)) == 800.0
    assert left(Thought(rlhfjob("trainer:2"), JobRecord(), 50.0)) == 50.0
    assert left(Thought(rlhfjob("trainer:2"), JobRecord())) is None
    half = JobRecord(attained=100.0 * 8, progress=RunProgress(500, 1000, 100.0 * 8))
    assert left(Thought(rlhfjob(), half)) == pytest.approx(100.0)


def ran(seconds: float, **record: Any) -> JobRecord:
    return JobRecord(attained=seconds * 8, **record)


def order(policy: str, *jobs: Thought, ended: list[Thought] | None = None) -> list[str]:
    """The waiting jobs as the pool ranks them, by what it knows of all."""
    made = make_policy(PolicySpec(policy))
    made.rebuild([seen(job, [*jobs, *(ended or [])], policy) for job in jobs], NOW)
    return [job.key for job in made.queue()]


HONEST = Thought(rlhfjob("honest:1"), JobRecord(), 600.0, key="alice/run")


def mallory(record: JobRecord, stated: float | None, name: str = "run") -> Thought:
    obj = rlhfjob("odd:1")
    obj["metadata"] |= {"namespace": "mallory", "name": name}
    return Thought(obj, record, stated, key=f"mallory/{name}")


@pytest.mark.parametrize("policy", ["srtf", "srtfEst"])
def test_attack_a_run_that_has_outlived_its_stated_second_is_nearly_done_for_ever(policy: str) -> None:
    overdue = mallory(ran(3600.0, expected=Expected(stated=1.0)), 1.0)
    assert order(policy, overdue, HONEST) == ["alice/run", "mallory/run"]
    # Nor does another word help it by now: what it went first by stands.
    edited = mallory(ran(3600.0, expected=Expected(stated=1.0)), 3601.0)
    assert order(policy, edited, HONEST) == ["alice/run", "mallory/run"]
    within = mallory(ran(100.0, expected=Expected(stated=90.0)), 90.0)  # a little late is no lie
    assert order(policy, within, HONEST) == ["mallory/run", "alice/run"]


@pytest.mark.parametrize("policy", ["srtf", "srtfEst"])
@pytest.mark.parametrize("ends", ["Complete", "still running"])
def test_attack_each_new_job_states_a_second(policy: str, ends: str) -> None:
    """What is stated is worth what it was worth in that namespace before: others are still believed."""
    finished = "Complete" if ends == "Complete" else None
    past = [
        mallory(ran(3600.0, expected=Expected(stated=1.0), finished=finished), 1.0, f"past-{i}")
        for i in (1, 2)
    ]
    fresh = mallory(JobRecord(), 1.0)
    assert order(policy, fresh, HONEST) == ["mallory/run", "alice/run"]
    assert order(policy, fresh, HONEST, ended=past) == ["alice/run", "mallory/run"]
    too_long = Thought(
        rlhfjob("honest:1"), ran(60.0, expected=Expected(stated=6e5), finished="Complete"), 6e5
    )
    quick = mallory(JobRecord(), 700.0)  # nobody is taken for quicker than he says
    assert order(policy, quick, HONEST, ended=[replace(too_long, key="mallory/past")]) == [
        "alice/run",
        "mallory/run",
    ]


def test_attack_progress_of_one_in_srtf_est() -> None:
    """It reports all of its steps at once: how fast they go by is not measured."""
    at_once = ran(3600.0, progress=RunProgress(1000, 1000, 8.0, 1000, 8.0))
    assert order("srtfEst", mallory(at_once, None), HONEST) == ["alice/run", "mallory/run"]
    # It creeps on beneath ever more steps, so that a moment is always left; its first word was ten minutes.
    creeping = ran(3600.0, progress=RunProgress(99_999, 100_000, 3600.0 * 8), expected=Expected(paced=600.0))
    assert order("srtfEst", mallory(creeping, None), HONEST) == ["alice/run", "mallory/run"]
    # Its runs before did the same: what the pace of the next one promises is worth as much.
    past = [mallory(replace(creeping, finished="Complete"), None, "past")]
    young = ran(60.0, progress=RunProgress(500, 1000, 60.0 * 8), expected=Expected(paced=120.0))
    assert order("srtfEst", mallory(young, None), HONEST) == ["mallory/run", "alice/run"]
    assert order("srtfEst", mallory(young, None), HONEST, ended=past) == ["alice/run", "mallory/run"]


def test_in_srtf_a_measured_pace_counts_where_it_is_slower_than_the_word() -> None:
    slow = ran(100.0, progress=RunProgress(200, 1000, 100.0 * 8), expected=Expected(stated=150.0))
    assert seen(mallory(slow, 150.0), [], "srtf").remaining == pytest.approx(400.0)
    quick = ran(100.0, progress=RunProgress(900, 1000, 100.0 * 8), expected=Expected(stated=150.0))
    assert seen(mallory(quick, 150.0), [], "srtf").remaining == pytest.approx(50.0)


def test_the_pool_is_told_when_a_run_will_be_overdue() -> None:
    job = mallory(ran(100.0, expected=Expected(stated=90.0)), 90.0)
    past = estimates.history([], NOW)
    for state, at in ((JobState.ADMITTED, NOW + 35.0), (JobState.QUEUED, None)):
        view = JobView(job.key, 0.0, 0, 2, 4, state=state)
        assert estimates.timed(view, job, past, "srtf", NOW)[1] == at  # type: ignore[arg-type]
