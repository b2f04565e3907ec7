"""Until its members are ready a run has had no service: the rule of the operator, held against its code."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policy.job.record import AdmissionRecord, JobRecord
from controller.policy.job.service import attained, remaining_seconds
from controller.policy.job.types import Desired
from controller.policy.queueing import make_policy
from controller.policy.queueing.base import QueueJob, QueuePolicy
from controller.policy.queueing.las import Las, LasParams
from controller.policy.queueing.srtf import Srtf, SrtfParams
from controller.policy.types import JobState, PolicySpec
from sim.cluster import Cluster
from sim.engine import EventLog, Result, simulate
from sim.latencies import Latencies
from sim.workload import Workload

START = 5.0


def run(
    policy: QueuePolicy, workload: Workload, cluster: Cluster | None = None, **delays: Any
) -> tuple[Result, list[list[str]]]:
    event_log = EventLog()
    latencies = Latencies(**{"start_delay": START, **delays})
    result = simulate(workload, cluster or Cluster.slots(1), policy, latencies=latencies, event_log=event_log)
    return result, [line.split(" ") for line in event_log.lines]


def told(lines: list[list[str]], verb: str, key: str) -> list[float]:
    return [float(time) for time, what, who, *_ in lines if (what, who) == (verb, key)]


@pytest.mark.parametrize("variant", ["Plain", "Tiresias"])
@pytest.mark.parametrize("arrivals", [[0, 1], [0, 1, 2, 3, 4, 22, 23]])
def test_las_demotes_a_run_once_it_has_run_for_so_long_however_long_it_took_to_start(
    variant: str, arrivals: list[float]
) -> None:
    spec = PolicySpec("las", {"first_threshold": 20.0, "second_threshold": 80.0, "variant": variant})
    _, lines = run(make_policy(spec), Workload(arrivals, [1] * len(arrivals), [100] * len(arrivals)))
    assert told(lines, "preempt", "sim/0")[0] == START + 20
    assert told(lines, "admit", "sim/1")[0] == START + 20


def test_las_does_not_demote_a_run_that_starts_again_near_its_threshold_before_it_is_ready() -> None:
    # At 23 the first has had 18 s of 20, when one with priority comes and goes; back at 38, it is ready at
    # 43 and reaches its threshold at 45, though an arrival at 39 has the policy look again.
    spec = PolicySpec("las", {"first_threshold": 20.0, "second_threshold": 80.0})
    workload = Workload([0, 23, 39], [1, 1, 1], [100, 10, 10], priority=[0, 1, 0])
    _, lines = run(make_policy(spec), workload)
    assert told(lines, "admit", "sim/0")[:2] == [0, 38]
    assert told(lines, "preempt", "sim/0") == [23, 45]
    assert told(lines, "admit", "sim/2") == [45]


@pytest.mark.parametrize(("work", "preempts"), [(31, 1), (30, 0), (26, 0)])
def test_srtf_compares_what_is_left_of_the_training_without_the_start(work: float, preempts: int) -> None:
    # At 10 s the first has 25 s of its 30 left: its start is over, and not to be held against it. The other
    # starts then, too: its own start is not held against it either.
    workload = Workload([0, 10], [1, 1], [work, 25], keys=["a", "b"])
    result, _ = run(make_policy(PolicySpec("srtf")), workload)
    assert result.preemptions == preempts


@pytest.mark.parametrize("at", [1, 4])
def test_what_is_left_of_a_run_that_starts_does_not_fall_before_it_is_ready(at: float) -> None:
    # If its expected end were taken from the admission it would have less left than one of 29.5 s.
    workload = Workload([0, at], [1, 1], [30, 29.5])
    result, lines = run(make_policy(PolicySpec("srtf")), workload)
    assert told(lines, "preempt", "sim/0") == [at]
    assert result.preemptions == 1


@pytest.mark.parametrize(("at", "freed"), [(3, 3 + 2), (5, 5 + 10 + 2), (7, 7 + 10 + 2)])
def test_who_is_preempted_before_it_is_ready_leaves_at_once(at: float, freed: float) -> None:
    workload = Workload([0, at], [1, 1], [100, 10], priority=[0, 1])
    delays = {"preempt_delay": 10.0, "checkpoint_time": 0.0, "suspend_delay": 2.0}
    result, lines = run(make_policy(PolicySpec("srtf")), workload, **delays)
    assert told(lines, "free", "sim/0") == [freed]
    assert result.service[0] == freed + (result.ended[0] - told(lines, "admit", "sim/0")[1])  # as held
    assert result.lost == [0, 0]


def test_who_was_not_ready_has_no_checkpoint_to_write() -> None:
    workload = Workload([0, 3], [1, 1], [100, 10], priority=[0, 1])
    _, lines = run(make_policy(PolicySpec("srtf")), workload, checkpoint_time=7.0, suspend_delay=2.0)
    assert told(lines, "free", "sim/0") == [3 + 2]


class _Noting:
    """What a policy is shown of each job whenever it decides, and what the operator would show it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.jobs: dict[str, QueueJob] = {}
        self.records: dict[str, JobRecord] = {}
        self.compared = 0

    def desired(self, job: QueueJob) -> Desired:
        seconds = float(self.workload.work[job.sequence])
        rule = PolicySpec("kDeclines")
        return Desired(
            job.key, "u", 1, "m", job.replicas, job.gpus_per_replica, rule, expected_seconds=seconds
        )

    def heard(self, job: QueueJob, now: float) -> None:
        self.jobs[job.key] = job
        record = self.records.get(job.key, JobRecord())
        if job.state is JobState.QUEUED:  # off its GPUs: `preempting` writes its service down
            record = JobRecord(attained=attained(self.desired(job), record, now), attempt=record.attempt)
        elif job.state is JobState.ADMITTED and record.admission is None:
            admission = AdmissionRecord(record.attempt + 1, job.nodes, now)
            record = JobRecord(attained=record.attained, attempt=admission.number, admission=admission)
        admission = record.admission  # type: ignore[assignment]
        if admission is not None and admission.running_since is None and now >= admission.at + START:
            ready = AdmissionRecord(admission.number, admission.nodes, admission.at, running_since=now)
            record = JobRecord(attained=record.attained, attempt=record.attempt, admission=ready)
        self.records[job.key] = record
        if job.state is not JobState.ADMITTED and job.state is not JobState.QUEUED:
            return
        desired = self.desired(job)
        assert job.attained == pytest.approx(attained(desired, record, now))
        assert job.remaining == pytest.approx(remaining_seconds(desired, record, now))
        running = record.admission is not None and record.admission.running_since
        assert job.state is JobState.QUEUED or job.since == (running or record.admission.at)  # type: ignore[union-attr]
        self.compared += 1


def _noting(base: type, params: Any, notes: _Noting) -> QueuePolicy:
    class Noting(base):  # type: ignore[misc]
        def submitted(self, job: QueueJob, now: float) -> None:
            super().submitted(job, now)
            notes.heard(job, now)

        def admitted(self, job: QueueJob, now: float) -> None:
            super().admitted(job, now)
            notes.heard(job, now)

    made: QueuePolicy = Noting(params)
    return made


@pytest.mark.parametrize(
    ("base", "params"),
    [(Srtf, SrtfParams()), (Las, LasParams(first_threshold=60.0, second_threshold=150.0))],
    ids=["srtf", "las"],
)
def test_a_policy_is_shown_the_service_that_the_operator_would_show_it(base: type, params: Any) -> None:
    workload = Workload(
        [0, 2, 9, 11, 30, 31, 33, 60], [4, 2, 2, 1, 4, 2, 1, 2], [50, 40, 12, 7, 20, 3, 60, 9]
    )
    notes = _Noting(workload)
    result, _ = run(_noting(base, params, notes), workload, Cluster.slots(4))
    assert result.preemptions
    assert notes.compared > 3 * len(workload)
