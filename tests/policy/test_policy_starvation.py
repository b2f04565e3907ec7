"""A trainer that starved goes back into the queue: by its exit code, with a pause that doubles, told once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.names import EXIT_STARVED
from controller.policy.actor_types import RolloutTerms
from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.plan import plan_job
from controller.policy.job.record import (
    AdmissionRecord,
    Decision,
    GangBackoff,
    JobRecord,
    PodTrouble,
    Preempting,
    RunFile,
)
from controller.policy.job.rollout_record import RolloutRecord, StepAside, StepMeasured
from controller.policy.job.starvation import FIRST, MOST, REASON, backoff_seconds
from controller.policy.job.types import (
    Desired,
    Observed,
    Plan,
    PodView,
    RolloutView,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.types import JobState, Mode, PolicySpec, Proposal

NOW = 1000.0
TERMS = RolloutTerms(base=0, gpus=1)
DESIRED = Desired("ns/a", "uid", 1, "gold", 1, 4, PolicySpec("kDeclines"), mode=Mode.OFF, rollout=TERMS)
RUNS = WorkloadView("child", suspended=False)
RESTS = WorkloadView("child", suspended=True, settled=True)
RECORD = JobRecord(
    attempt=1,
    admission=AdmissionRecord(1, ("n1",), 900.0, running_since=900.0),
    run=RunFile(1, uid="uid"),
    actor_starts=3,
)


def pod(code: int = EXIT_STARVED, admission: int = 1) -> PodView:
    trouble = PodTrouble("p0", exit_code=code, message="RolloutStarved: step 4", since=990.0, container="x")
    return PodView("p0", "n1", 4, terminal=True, admission=admission, trouble=trouble)


def planned(
    record: JobRecord = RECORD,
    *pods: PodView,
    workload: WorkloadView = RUNS,
    desired: Desired = DESIRED,
    now: float = NOW,
    ended: StepMeasured | None = None,
) -> Plan:
    observed = Observed(workload, pods, run_written=record.run, rollout=RolloutView(ended=ended))
    return plan_job(desired, observed, record, now)


def starved(record: JobRecord = RECORD, now: float = NOW) -> Plan:
    """The plan of the pass that has it back in the queue."""
    asked = planned(record, pod(admission=record.attempt), now=now)
    return planned(asked.record, pod(admission=record.attempt), workload=RESTS, now=now)


@pytest.mark.parametrize("mode", list(Mode))
def test_it_is_suspended_at_once_and_waits_in_the_queue_again(mode: Mode) -> None:
    asked = planned(RECORD, pod(), desired=replace(DESIRED, mode=mode))
    assert any(isinstance(one, SuspendWorkload) for one in asked.actions), "nothing is left to wait for"
    assert asked.record.preempting is not None
    assert asked.record.preempting.reason == REASON
    plan = planned(asked.record, pod(), workload=RESTS, desired=replace(DESIRED, mode=mode))
    assert plan.queue is JobState.QUEUED
    record = plan.record
    assert (record.admission, record.preempting, record.preemptions) == (None, None, 0)
    assert record.gang_backoff == GangBackoff(1, NOW + FIRST)
    assert record.queued_at == NOW
    condition = record.condition(c.RUNNING)
    assert condition is not None
    assert (condition.status, condition.reason) == (False, REASON)
    assert f"exit code {EXIT_STARVED}" in condition.message
    (event,) = [one for one in plan.events if one.reason == REASON]
    assert event.warning
    assert event.message == condition.message
    marks = [(one.mark, one.reason) for one in health(record, NOW)]
    assert (Mark.STARVED, REASON) in marks
    assert health(record, NOW)[0].cure().command
    waits = planned(record, workload=RESTS)
    assert waits.record.condition(c.RUNNING) == condition, "it is told as long as it waits"
    assert not any(one.reason == REASON for one in waits.events)


def test_each_time_in_a_row_it_waits_twice_as_long_and_a_step_that_ends_forgives() -> None:
    record, now, pauses = RECORD, NOW, []
    for _ in range(9):
        plan = starved(record, now)
        backoff = plan.record.gang_backoff
        assert backoff is not None
        pauses.append(backoff.until - now)
        now = backoff.until
        number = plan.record.attempt + 1
        record = replace(
            plan.record,
            attempt=number,
            admission=AdmissionRecord(number, ("n1",), now, running_since=now),
            gang_backoff=None,  # as once a gang was bound whole
            run=replace(RECORD.run, attempt=number),
        )
    assert pauses == [min(MOST, FIRST * 2**n) for n in range(9)]
    assert pauses[-1] == MOST
    went_on = planned(record, now=now, ended=StepMeasured(4, 9.0)).record
    assert went_on.rollout is not None
    assert went_on.rollout.starved == 0
    last = starved(went_on, now).record.gang_backoff
    assert last is not None
    assert last.until == now + FIRST


LOST = StepAside(4, 950.0, 1, "actor 2 lost: no token for 120 s")


@pytest.mark.parametrize(
    ("aside", "told"),
    [(LOST, True), (None, False), (replace(LOST, at=890.0), False)],  # of an attempt before
)
def test_it_is_told_what_became_of_its_actors(aside: StepAside | None, told: bool) -> None:
    condition = starved(replace(RECORD, rollout=RolloutRecord(aside=aside))).record.condition(c.RUNNING)
    assert condition is not None
    assert ("left (step 4: actor 2 lost: no token for 120 s), and ended" in condition.message) is told


def test_it_has_not_recovered_until_a_step_ends() -> None:
    waits = starved(replace(RECORD, rollout=RolloutRecord(aside=LOST))).record
    known = waits.condition(c.ATTENTION)
    assert known is not None
    assert known.status
    again = replace(
        waits,
        attempt=2,
        admission=AdmissionRecord(2, ("n1",), 1100.0, running_since=1100.0),
        gang_backoff=None,  # as once a gang was bound whole
        run=replace(RECORD.run, attempt=2),
    )
    pods = (PodView("p0", "n1", 4, terminal=False, ready=True, admission=2),)
    plan = planned(again, *pods, now=1200.0)
    assert not [one for one in plan.events if one.reason == "Recovered"]
    found = plan.record.condition(c.ATTENTION)
    assert found is not None
    assert (found.status, found.reason) == (True, str(Mark.STARVED))
    assert [(one.mark, one.reason, one.warning) for one in health(plan.record, 1200.0)] == [
        (Mark.STARVED, REASON, True)
    ]
    assert "no step has ended since; step 4: actor 2 lost" in health(plan.record, 1200.0)[0].message
    went_on = planned(plan.record, *pods, now=1300.0, ended=StepMeasured(4, 9.0))
    after = planned(went_on.record, *pods, now=1301.0, ended=StepMeasured(4, 9.0))
    told = [one.reason for one in (*went_on.events, *after.events)]
    assert told == ["Recovered"]


def test_a_step_that_had_ended_before_it_starved_does_not_hide_it() -> None:
    plan = planned(RECORD, pod(), ended=StepMeasured(3, 9.0))
    assert plan.record.rollout is not None
    assert (plan.record.rollout.starved, plan.record.rollout.measured) == (1, StepMeasured(3, 9.0))
    again = planned(plan.record, pod(), ended=StepMeasured(3, 9.0))
    assert again.record.rollout == plan.record.rollout, "it is counted once"


STOP = Decision("User", Mode.ENFORCE, Proposal(1, 1, "UserRequest", 0.0, 0.0), "", 990.0)


@pytest.mark.parametrize(
    ("record", "seen", "desired", "workload"),
    [
        (RECORD, pod(1), DESIRED, RUNS),  # it crashed
        (RECORD, pod(admission=0), DESIRED, RUNS),  # in an earlier attempt
        (RECORD, pod(), replace(DESIRED, rollout=None), RUNS),  # it has no actors: the code is its own
        (RECORD, replace(pod(), deleting_since=995.0), DESIRED, RUNS),  # told to end
        (replace(RECORD, decision=STOP), pod(), DESIRED, RUNS),  # it is being stopped
        (RECORD, pod(), DESIRED, replace(RUNS, finished="Failed")),  # its Job says that it is over
    ],
)
def test_what_is_no_starving(
    record: JobRecord, seen: PodView, desired: Desired, workload: WorkloadView
) -> None:
    plan = planned(record, seen, desired=desired, workload=workload)
    assert plan.record.preempting is None
    assert plan.record.rollout is None or plan.record.rollout.starved == 0


def test_one_that_starved_did_not_crash() -> None:
    assert planned(RECORD, pod()).record.pod_trouble is None
    assert planned(RECORD, pod(1)).record.pod_trouble is not None


def test_who_is_on_the_way_out_already_is_not_counted() -> None:
    going = replace(RECORD, preempting=Preempting("Fair", 980.0))
    plan = planned(going, pod())
    assert plan.record.preempting is not None
    assert plan.record.preempting.reason == "Fair"
    assert (plan.record.rollout or RolloutRecord()).starved == 0


@pytest.mark.parametrize(
    ("times", "seconds"), [(1, 60.0), (2, 120.0), (6, 1920.0), (7, 3600.0), (10**6, 3600.0)]
)
def test_the_pause(times: int, seconds: float) -> None:
    assert backoff_seconds(times) == seconds


def test_no_pause_without_a_time() -> None:
    with pytest.raises(ValueError, match="times: 0, expected at least 1"):
        backoff_seconds(0)
