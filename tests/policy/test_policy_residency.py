"""A job's residency: written with the admission, waited for, ended by the group's word alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.group_types import (
    LosesTurns,
    MeasuredSlowness,
    NotReady,
    ResidencyTerms,
    SharedTraining,
)
from controller.policy.job.cures import cure_of
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.plan import plan_job
from controller.policy.job.pod_words import node_away
from controller.policy.job.record import (
    AdmissionRecord,
    Condition,
    JobRecord,
    PodTrouble,
    Preempting,
    ResidencyRecord,
    RunFile,
)
from controller.policy.job.residency import HELD, NO_ANSWER, NOT_TAKEN_IN, name_of, slowed_others
from controller.policy.job.service import attained
from controller.policy.job.types import (
    Desired,
    GroupSeen,
    Observed,
    Plan,
    PodView,
    StartWorkload,
    WorkloadView,
)
from controller.policy.job.view import job_view
from controller.policy.pool.groups import SLOWS_OTHERS
from controller.policy.pool.job_outcomes import after, outcomes
from controller.policy.types import Admission, JobState, Mode, PolicySpec, PoolPlan, Preemption

NOW = 1000.0
TERMS = ResidencyTerms("dense", 39, 10, "ns/dense/1")
DESIRED = Desired("ns/a", "uid", 1, "gold", 1, 0, PolicySpec("kDeclines"), mode=Mode.ENFORCE, sharing=TERMS)
RUNS = WorkloadView("child", suspended=False)
RESTS = WorkloadView("child", suspended=True, settled=True)
PODS = (PodView("p0", "n9", 0, terminal=False, ready=True, admission=4),)
HOME = ResidencyRecord("wg-3", 4, 900.0, joined=True)
RUN = RunFile(4, uid="uid")
RECORD = JobRecord(
    attempt=4, admission=AdmissionRecord(4, (), 900.0, running_since=900.0), run=RUN, residency=HOME
)


class Job:
    """A job as the pool's outcomes read it."""

    def __init__(self, record: JobRecord) -> None:
        self.desired, self.record = DESIRED, record


def planned(record: JobRecord, group: GroupSeen | None, workload: WorkloadView = RUNS, pods=PODS) -> Plan:
    seen = Observed(workload, pods, run_written=RUN, group=group)
    return plan_job(DESIRED, seen, record, NOW)


def test_an_admission_writes_the_residency() -> None:
    record = JobRecord(attempt=3)
    plan = PoolPlan(admissions=(Admission("ns/a", (), group="wg-3"),))
    (write,) = outcomes(plan, {"ns/a": Job(record)}, NOW)
    made = after(write, record, DESIRED, NOW)
    assert made.residency == ResidencyRecord("wg-3", 4, NOW)
    assert name_of("uid", made.residency.number) == "uid-4"


def test_pods_start_once_the_group_has_taken_the_job_in() -> None:
    record = replace(RECORD, admission=AdmissionRecord(4, (), 900.0), residency=replace(HOME, joined=False))
    for group in (None, GroupSeen("wg-3"), GroupSeen("wg-2", joined=True)):
        plan = planned(record, group, RESTS, ())
        assert not any(isinstance(action, StartWorkload) for action in plan.actions)
        running = plan.record.condition("Running")
        assert (running.reason, "wg-3" in running.message) == ("WaitingForGroup", True)
    plan = planned(record, GroupSeen("wg-3", joined=True), RESTS, ())
    assert StartWorkload(4, ()) in plan.actions
    assert plan.record.residency.joined


def test_residency_ends_by_the_groups_word_alone() -> None:
    left = replace(RECORD, admission=None)
    plan = planned(left, GroupSeen("wg-3", joined=True, charged=7.0), RESTS, ())
    assert (plan.queue, plan.record.residency.leaving) == (JobState.QUEUED, True)
    assert plan.record.residency.charged == 7.0  # figures of one that leaves are written, too
    assert planned(plan.record, None, RESTS, ()).record.residency == plan.record.residency
    plan = planned(plan.record, GroupSeen("wg-3", gone=True, charged=8.0), RESTS, ())
    assert plan.record.residency is None
    assert plan.record.charged == 8.0


SILENT = GroupSeen("wg-3", unanswered=60.0, problem="TimeoutError")


@pytest.mark.parametrize(
    ("group", "home", "at", "reason"),
    [
        (SILENT, False, 700.0, NO_ANSWER),
        (SILENT, False, 700.1, None),  # there is time left
        (SILENT, True, 100.0, None),  # it was taken in before
        (GroupSeen("wg-3"), False, 700.0, NOT_TAKEN_IN),
        (None, False, 700.0, NOT_TAKEN_IN),
        (GroupSeen("wg-3", joined=True, unanswered=60.0), False, 700.0, None),
    ],
)
def test_a_job_that_is_not_taken_in_gives_its_residency_up_at_the_gangs_time_out(
    group: GroupSeen | None, home: bool, at: float, reason: str | None
) -> None:
    record = replace(RECORD, admission=AdmissionRecord(4, (), at), residency=replace(HOME, joined=home))
    plan = planned(record, group, RESTS, ())
    assert plan.queue is (JobState.ADMITTED if reason is None else JobState.PREEMPTING)
    if reason is None:
        assert plan.record.admission.withdrawn is None
        assert plan.requeue_after is None or plan.requeue_after > 0
        return
    told = plan.record.condition("Running")
    assert (told.reason, plan.record.condition("Admitted").reason) == (reason, reason)
    assert "wg-3" in told.message
    assert "within 300 s" in told.message
    assert ("since 00:01:00 UTC (TimeoutError)" in told.message) is (reason == NO_ANSWER)
    # In the next pass it is in the queue, out of it for a while first, and still says why.
    plan = planned(plan.record, group, RESTS, ())
    assert (plan.queue, plan.record.admission) == (JobState.QUEUED, None)
    assert plan.record.gang_backoff.failures == 1
    again = planned(plan.record, group, RESTS, ())
    assert again.record.condition("Running").reason == reason


@pytest.mark.parametrize(
    ("group", "joined", "pods", "ends"),
    [
        (SILENT, False, (), True),
        (SILENT, True, (), False),  # its worker may live on, and work for it
        (SILENT, False, PODS, False),  # its pods are to go first
        (replace(SILENT, joined=True), False, (), False),  # taken in just now
        (GroupSeen("wg-3"), False, (), False),  # it answers: it is told, and says when
    ],
)
def test_silence_ends_only_a_residency_that_no_call_was_made_in(
    group: GroupSeen, joined: bool, pods: tuple[PodView, ...], ends: bool
) -> None:
    record = replace(RECORD, admission=None, residency=replace(HOME, joined=joined, leaving=True))
    plan = planned(record, group, RESTS, pods)
    assert (plan.record.residency is None) is ends


def test_a_residency_that_silence_keeps_is_a_mark_with_its_cure() -> None:
    left = replace(RECORD, admission=None, residency=replace(HOME, leaving=True))
    quiet = planned(left, SILENT, RESTS, ()).record
    assert quiet.residency.unanswered == 60.0
    (one,) = health(quiet, 60.0)
    assert (one.mark, one.reason, one.since, one.warning) == (Mark.STUCK, HELD, 60.0, False)
    assert one.message.startswith("worker group wg-3: it has not answered since 00:01:00 UTC; ")
    assert [found.warning for found in health(quiet, NOW)] == [True]
    told = quiet.condition("NeedsAttention")
    assert (told.status, told.reason) == (True, "Stuck")
    cure = one.cure().filled("a", "ns", "gold", "", one.message)
    assert cure.command == "kubectl delete jobs -n evalstop-workers -l evalstop.dev/group=wg-3"
    # Told at once, and a warning only once that has lasted; gone as soon as the group answers, or is gone.
    soon = planned(left, replace(SILENT, unanswered=NOW - 1.0), RESTS, ())
    assert soon.record.condition("NeedsAttention") is None
    assert soon.requeue_after is not None
    assert soon.requeue_after <= 600.0
    for seen in (GroupSeen("wg-3"), GroupSeen("wg-3", gone=True)):
        after = planned(quiet, seen, RESTS, ()).record
        assert health(after, NOW) == ()
        assert after.condition("NeedsAttention").status is False


def test_silence_of_the_group_of_one_that_stays_is_no_mark() -> None:
    plan = planned(RECORD, replace(SILENT, joined=True))
    assert plan.record.residency == HOME
    assert all(one.reason != HELD for one in health(plan.record, NOW))


def test_a_job_says_that_its_group_does_not_answer_while_it_waits() -> None:
    record = replace(RECORD, admission=AdmissionRecord(4, (), 900.0), residency=replace(HOME, joined=False))
    running = planned(record, SILENT, RESTS, ()).record.condition("Running")
    assert running.message.endswith("is ready; it has not answered since 00:01:00 UTC (TimeoutError)")


def test_figures_are_not_written_with_turns() -> None:
    seen = GroupSeen("wg-3", joined=True, charged=500.0, slowness=MeasuredSlowness(3.0, 2.0, 4))
    assert planned(RECORD, seen).record.residency == HOME


@pytest.mark.parametrize(
    ("known", "seen", "written"),
    [
        (19, 20, True),  # somebody has to leave: the next eval may be hundreds of steps away, or never come
        (20, 21, False),
        (24, 19, True),  # that one has left, and the steps of before count no more
        (24, 0, True),
        (0, 19, False),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_figures_are_written_once_they_decide_who_leaves(
    known: int, seen: int, written: bool, mode: Mode
) -> None:
    record = replace(RECORD, residency=replace(HOME, took=1.0, alone=1.0, above=known))
    group = GroupSeen("wg-3", joined=True, slowness=MeasuredSlowness(3.0, 2.0, seen))
    observed = Observed(RUNS, PODS, run_written=RUN, group=group)
    plan = plan_job(replace(DESIRED, mode=mode), observed, record, NOW)
    assert plan.record.residency.above == (seen if written else known)
    assert plan.record.residency.slowdown == (1.5 if written else None)


def test_charges_count_as_service() -> None:
    record = replace(RECORD, charged=100.0, residency=replace(HOME, charged=11.0), attained=5.0)
    assert attained(DESIRED, record, NOW) == 5.0 + 111.0  # its pods have no GPUs
    assert attained(replace(DESIRED, gpus_per_replica=2), record, NOW) == 5.0 + 200.0 + 111.0


def test_what_a_group_charged_counts_once_also_after_the_attempt_has_ended() -> None:
    going = Preempting("Preempted", NOW - 20.0)
    home = replace(HOME, charged=11.0)
    record = replace(RECORD, charged=100.0, residency=home, attained=5.0, preempting=going)
    plan = planned(record, GroupSeen("wg-3", gone=True, charged=11.0), RESTS, ())
    assert plan.record.admission is None
    assert attained(DESIRED, plan.record, NOW) == attained(DESIRED, record, NOW)


def test_pool_sees_the_wish_and_the_residency() -> None:
    record = replace(RECORD, residency=replace(HOME, not_in=("wg-1",), took=3.0, alone=2.0, above=4))
    plan = planned(record, GroupSeen("wg-3", joined=True))
    view = job_view(DESIRED, Observed(RUNS, PODS), record, plan, submitted=0.0, priority=0, now=NOW)
    assert view.sharing == SharedTraining(
        "dense", 39, "ns/dense/1", 10, "wg-3", 4, HOME.since, ("wg-1",), MeasuredSlowness(3.0, 2.0, 4)
    )
    assert view.gpus == 0


def test_who_slowed_others_does_not_come_back_into_that_group() -> None:
    made = after(
        next(
            iter(
                outcomes(
                    PoolPlan(preemptions=(Preemption("ns/a", SLOWS_OTHERS),)), {"ns/a": Job(RECORD)}, NOW
                )
            )
        ),
        RECORD,
        DESIRED,
        NOW,
    )
    assert made.residency.not_in == ("wg-3",)
    plan = planned(replace(made, admission=None, preempting=None), GroupSeen("wg-3", gone=True), RESTS, ())
    assert (plan.record.residency.group, plan.record.residency.not_in) == ("", ("wg-3",))
    assert slowed_others(replace(RECORD, residency=None)).residency is None


def test_who_stays_slower_than_it_allows_is_told_so_quietly() -> None:
    """The one that came last should have left: it may not be preempted, and nobody was told but the pool."""

    def told(**figures: float) -> list[tuple[str, bool, str]]:
        record = replace(RECORD, residency=replace(HOME, joined=True, **figures))
        found = [one for one in health(record, NOW + 1e6) if one.mark is Mark.STARVED]
        return [(one.reason, one.warning, one.message) for one in found]

    assert told(slowdown=8.574, above=24) == [
        (
            "SlowedInGroup",
            False,
            "worker group wg-3: its steps take 8.57 times as long as alone, which is longer than it allows, "
            "for 24 steps now",
        )
    ]
    assert told(slowdown=8.574, above=19) == []
    assert told(slowdown=8.574, above=24, leaving=True) == []
    cure = cure_of("SlowedInGroup").filled("a", "ns", "gold", "", "worker group wg-3: slow")
    assert cure.command == "evalstop groups wg-3"


def test_turns_that_are_all_lost_are_a_mark_with_the_reason_and_its_cure() -> None:
    lost = GroupSeen("wg-3", joined=True, loses=LosesTurns(60.0, "start: ValueError: family: no functions"))
    plan = planned(RECORD, lost)
    (one,) = (found for found in health(plan.record, NOW) if found.mark is Mark.CRASHING)
    assert (one.reason, one.since, one.warning) == ("TurnsLost", 60.0, True)
    assert one.message == (
        "worker group wg-3: each turn since 00:01:00 UTC is lost: start: ValueError: family: no functions"
    )
    assert one.whose == "the pool's owner"
    long = replace(lost, loses=LosesTurns(60.0, "it lasted longer than 20 s (Held)"))
    (one,) = (found for found in health(planned(RECORD, long).record, NOW) if found.mark is Mark.CRASHING)
    assert "raise turnSeconds" in one.cure().text
    cure = one.cure().filled("a", "ns", "gold", "", one.message)
    assert cure.command == (
        "kubectl edit gpupool gold; kubectl delete jobs -n evalstop-workers -l evalstop.dev/group=wg-3"
    )
    attention = plan.record.condition("NeedsAttention")
    assert (attention.status, attention.reason) == (True, "Crashing")
    assert any(event.warning and "start: ValueError" in event.message for event in plan.events)
    # It is written once: neither later turns that are lost, nor other reasons of them, are news.
    later = replace(lost, loses=LosesTurns(61.0, "another"))
    assert planned(plan.record, later).record.residency == plan.record.residency
    # What is not known of the group takes nothing back; a turn that counted does.
    assert planned(plan.record, None).record.residency == plan.record.residency
    after = planned(plan.record, replace(lost, loses=None)).record
    assert after.residency == HOME
    assert after.condition("NeedsAttention").status is False


ENDED = PodTrouble(
    "wg-3-1-0", exit_code=1, message="NVML does not answer", count=1, since=70.0, container="a"
)
STARTS = replace(RECORD, admission=AdmissionRecord(4, (), 900.0), residency=replace(HOME, joined=False))


def test_a_job_tells_how_pods_of_the_group_end_that_it_waits_for() -> None:
    plan = planned(STARTS, GroupSeen("wg-3", trouble=ENDED), RESTS, ())
    (one,) = health(plan.record, NOW)
    assert (one.mark, one.reason, one.since, one.warning) == (Mark.CRASHING, "GroupCrashes", 70.0, True)
    assert one.message == "worker group wg-3: pod wg-3-1-0 ended with exit code 1: NVML does not answer"
    cure = one.cure().filled("a", "ns", "gold", "", one.message)
    assert cure.command == (
        "kubectl edit gpupool gold; kubectl delete jobs -n evalstop-workers -l evalstop.dev/group=wg-3"
    )
    assert plan.record.condition("NeedsAttention").reason == "Crashing"
    assert plan.record.condition("Running").message.endswith(
        "; pod wg-3-1-0 ended with exit code 1: NVML does not answer"
    )
    again = planned(
        plan.record, GroupSeen("wg-3", trouble=replace(ENDED, since=90.0, container="b")), RESTS, ()
    )
    assert (again.record.residency.trouble.count, again.record.residency.trouble.since) == (2, 70.0)
    same = planned(again.record, GroupSeen("wg-3", trouble=replace(ENDED, container="b")), RESTS, ())
    assert same.record.residency == again.record.residency
    taken = planned(again.record, GroupSeen("wg-3", joined=True), RESTS, ()).record
    assert taken.residency == HOME
    assert taken.condition("NeedsAttention").status is False


def test_a_resident_tells_how_pods_of_its_group_end_that_does_not_come_up_again() -> None:
    """It was told only that it waits for its group."""
    down = GroupSeen("wg-3", joined=True, unready=NotReady(80.0))
    waits = planned(RECORD, down).record
    assert [one.reason for one in health(waits, NOW) if one.mark is Mark.NOT_STARTING] == ["WaitingForGroup"]
    once = planned(waits, replace(down, trouble=ENDED)).record
    (one,) = (one for one in health(once, NOW) if one.mark in (Mark.CRASHING, Mark.NOT_STARTING))
    assert (one.reason, one.warning) == ("GroupCrashes", not RECORD.evals_seen)
    assert "NVML does not answer" in one.message
    twice = planned(once, replace(down, trouble=replace(ENDED, since=90.0, container="b"))).record
    assert [one.warning for one in health(twice, NOW) if one.reason == "GroupCrashes"] == [True]
    assert planned(twice, GroupSeen("wg-3", joined=True)).record.residency == HOME
    gone = planned(twice, GroupSeen("wg-3", gone=True)).record.residency
    assert gone is None or gone.trouble is None, "the next group has done nothing"


def test_a_resident_tells_that_a_node_of_its_group_is_not_heard_of() -> None:
    """kind: it ran on in silence, on a group whose node was gone."""
    lost = GroupSeen("wg-3", joined=True, trouble=replace(node_away("wg-3-1-0", "n1"), since=NOW - 90.0))
    record = planned(RECORD, lost).record
    (one,) = (one for one in health(record, NOW) if one.mark is Mark.STUCK)
    assert (one.reason, one.due, one.warning) == ("NodeNotReady", NOW - 30.0, True)
    cure = one.cure().filled("a", "ns", "gold", "", one.message)
    assert cure.command == "kubectl describe node n1"
    assert not any(one.mark is Mark.UNWATCHED for one in health(record, NOW))
    assert planned(record, GroupSeen("wg-3", joined=True)).record.residency == HOME


def test_the_ends_of_a_groups_pods_are_told_on_in_the_queue_and_in_the_next_group() -> None:
    known = replace(STARTS, residency=replace(HOME, joined=False, trouble=ENDED), admission=None)
    left = planned(known, GroupSeen("wg-3", gone=True), RESTS, ()).record
    (one,) = health(left, NOW)
    assert one.message.startswith("the worker group that it had: pod wg-3-1-0 ended with exit code 1")
    assert left.condition("NeedsAttention").status
    plan = PoolPlan(admissions=(Admission("ns/a", (), group="wg-4"),))
    (write,) = outcomes(plan, {"ns/a": Job(left)}, NOW)
    given = after(write, left, DESIRED, NOW)
    assert given.residency.trouble == ENDED
    assert [found.warning for found in health(given, NOW)] == [True]
    other = replace(ENDED, pod="wg-4-1-0", container="c", since=400.0)
    then = planned(given, GroupSeen("wg-4", trouble=other), RESTS, ()).record
    assert (then.residency.trouble.count, then.residency.trouble.pod) == (2, "wg-4-1-0")


def test_what_a_groups_pods_wait_for_is_a_warning_after_the_time_of_own_pods_over_all_groups() -> None:
    waits = PodTrouble("wg-3-1-0", waits="ImagePullBackOff", since=900.0)
    first = planned(STARTS, GroupSeen("wg-3", trouble=waits), RESTS, ()).record
    (one,) = health(first, NOW)
    assert (one.mark, one.reason, one.warning) == (Mark.NOT_STARTING, "GroupPodWaits", False)
    next_group = replace(waits, pod="wg-4-1-0", since=NOW)
    then = planned(first, GroupSeen("wg-3", trouble=next_group), RESTS, ()).record
    assert (then.residency.trouble.pod, then.residency.trouble.since) == ("wg-4-1-0", 900.0)
    assert [found.warning for found in health(then, 1200.0)] == [True]


def test_a_job_that_gives_its_residency_up_says_how_the_groups_pods_ended() -> None:
    late = replace(STARTS, admission=AdmissionRecord(4, (), NOW - DESIRED.gang_timeout))
    plan = planned(late, GroupSeen("wg-3", trouble=ENDED), RESTS, ())
    assert plan.record.residency.trouble == ENDED
    text = "queues again; pod wg-3-1-0 ended with exit code 1: NVML does not answer"
    assert any(text in event.message for event in plan.events)


NO_FAMILY = "FamilyNotFound: GPUPool 'gold' has no family 'dense' any more of 1 member with 1 GPU each"
COLD = RESTS, ()


@pytest.mark.parametrize(
    ("record", "unready", "reason", "warned_after", "command"),
    [
        (RECORD, NotReady(960.0, NO_FAMILY), "GroupCannotStart", 0.0, "kubectl edit gpupool gold"),
        (STARTS, NotReady(960.0, NO_FAMILY), "GroupCannotStart", 0.0, "kubectl edit gpupool gold"),
        (RECORD, NotReady(960.0), "WaitingForGroup", 300.0, "evalstop groups wg-3"),
        (STARTS, NotReady(960.0), None, 0.0, ""),  # condition Running says so
    ],
)
def test_a_resident_tells_that_its_group_is_not_ready_and_why_it_cannot_start(
    record: JobRecord, unready: NotReady, reason: str | None, warned_after: float, command: str
) -> None:
    given = (RUNS, PODS) if record is RECORD else COLD
    seen = GroupSeen("wg-3", unready=unready)
    plan = planned(record, seen, *given)
    found = [one for one in health(plan.record, 960.0) if one.mark is Mark.NOT_STARTING]
    assert [(one.reason, one.since, one.due - one.since) for one in found] == (
        [(reason, 960.0, warned_after)] if reason is not None else []
    )
    if reason is None:
        return
    (one,) = found
    assert one.message.startswith("worker group wg-3: ")
    assert one.message.endswith(unready.why)
    assert one.cure().filled("a", "ns", "gold", "", one.message).command == command
    assert state_reason(plan.record) == reason
    if record is STARTS:
        assert plan.record.condition("Running").message.endswith("; " + unready.why)
    # It is written once; what is not known of the group takes nothing back, and its being ready does.
    again = planned(plan.record, replace(seen, unready=unready._replace(since=970.0)), *given).record
    assert again.residency == plan.record.residency
    assert planned(plan.record, None, *given).record.residency == plan.record.residency
    after = planned(plan.record, GroupSeen("wg-3", joined=True), *given).record
    assert after.residency == HOME
    assert not [one for one in health(after, NOW) if one.mark is Mark.NOT_STARTING]


def test_a_run_whose_group_is_not_ready_is_not_told_to_see_after_its_evals() -> None:
    read = Condition("MetricsAvailable", False, "NoNewEvals", "none for 300 s", 900.0)
    record = replace(RECORD, conditions=(read,))
    assert [one.reason for one in health(record, NOW)] == ["NoNewEvals"]
    waits = replace(record, residency=replace(HOME, waits_since=960.0, waits_why=NO_FAMILY))
    assert [one.reason for one in health(waits, NOW)] == ["GroupCannotStart"]
