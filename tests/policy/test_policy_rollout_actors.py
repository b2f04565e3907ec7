"""A job's rollout actors in its plan: what steps want, what is written and when, who waits for their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.actor_types import (
    Actor,
    ActorStart,
    ActorState,
    LendingPlan,
    Recall,
    RolloutTerms,
)
from controller.policy.job.actors import ActorSeen
from controller.policy.job.marks import Mark, health
from controller.policy.job.plan import plan_job
from controller.policy.job.record import (
    AdmissionRecord,
    Decision,
    JobRecord,
    PodTrouble,
    Preempting,
    RunFile,
)
from controller.policy.job.rollout_actors import let_go, wanted, with_entries
from controller.policy.job.rollout_record import RolloutRecord, StepAside, StepMeasured, StepPlan
from controller.policy.job.service import attained
from controller.policy.job.types import (
    DeleteActor,
    Desired,
    MakeActor,
    Observed,
    Plan,
    PodView,
    RolloutView,
    SuspendWorkload,
    WorkloadView,
    WriteRun,
)
from controller.policy.job.view import job_view
from controller.policy.pool.job_outcomes import Verb, after, outcomes
from controller.policy.types import Admission, JobState, Mode, PolicySpec, PoolPlan, Proposal

NOW = 1000.0
TERMS = RolloutTerms(base=1, gpus=2, recall_seconds=10.0, start_seconds=600.0)
DESIRED = Desired("ns/a", "uid", 1, "gold", 2, 4, PolicySpec("kDeclines"), mode=Mode.OFF, rollout=TERMS)
RUNS = WorkloadView("child", suspended=False)
RESTS = WorkloadView("child", suspended=True, settled=True)
PODS = tuple(PodView(f"p{i}", "n1", 4, terminal=False, ready=True, admission=1) for i in range(2))
ADMISSION = AdmissionRecord(1, ("n1", "n1"), 900.0, running_since=900.0)
ENTRY = Actor(0, "n2", 2, since=900.0)
RECORD = JobRecord(
    attempt=1, admission=ADMISSION, actors=(ENTRY,), actor_starts=1, run=RunFile(1, uid="uid"), attained=0.0
)
PLAN = StepPlan(3, 2, "LongestFirst", "Planned", "the cheapest", 20.0, 90.0)
ENDED = StepMeasured(2, 21.0, 30.0, 900, 2, 120.0)


def planned(
    record: JobRecord = RECORD,
    *seen: ActorSeen,
    workload: WorkloadView | None = RUNS,
    desired: Desired = DESIRED,
    now: float = NOW,
    pods: tuple[PodView, ...] = PODS,
    **view: object,
) -> Plan:
    observed = Observed(
        workload,
        pods,
        run_written=record.run,
        rollout=RolloutView(seen, **view),  # type: ignore[arg-type]
    )
    return plan_job(desired, observed, record, now)


def settled(record: JobRecord = RECORD, *seen: ActorSeen, **more: object) -> JobRecord:
    """The record once nothing more is to be written but what is seen of actors."""
    return planned(record, *seen, **more).record  # type: ignore[arg-type]


def actions(plan: Plan) -> list[object]:
    return [one for one in plan.actions if isinstance(one, MakeActor | DeleteActor)]


def test_an_entry_without_a_job_has_it_made_and_nothing_is_written_for_it() -> None:
    record = settled()
    plan = planned(record)
    assert actions(plan) == [MakeActor(ENTRY, 1)]
    assert plan.record == record
    assert plan.minor is None


def test_what_is_seen_of_an_actor_is_no_reason_to_write() -> None:
    record = settled()
    plan = planned(record, ActorSeen(0, ready=True, bound=905.0), ended=ENDED)
    assert plan.minor
    (actor,) = plan.record.actors
    assert (actor.state, actor.bound) == (ActorState.RUNNING, 905.0)
    assert plan.record.rollout is not None
    assert plan.record.rollout.measured == ENDED
    # It comes along with the next step's plan: one write a step.
    plan = planned(record, ActorSeen(0, ready=True, bound=905.0), ended=ENDED, planned=PLAN)
    assert plan.minor is None
    assert plan.record.rollout is not None
    assert (plan.record.rollout.plan, plan.record.rollout.measured) == (PLAN, ENDED)
    assert plan.record.actors[0].bound == 905.0
    again = planned(plan.record, ActorSeen(0, ready=True, bound=905.0), ended=ENDED, planned=PLAN)
    assert again.record == plan.record


@pytest.mark.parametrize(
    ("view", "wants", "goes"),
    [
        (RolloutView(), 1, ()),  # nobody knows a plan: its base actors, and nobody is let go
        (RolloutView(planned=PLAN, generating=True), 2, ()),
        (RolloutView(planned=PLAN, generating=True, released=(1,)), 1, (1,)),
        (RolloutView(planned=PLAN, generating=True, released=(0, 1)), 0, (0, 1)),
        (RolloutView(planned=replace(PLAN, actors=1), generating=True), 1, ()),  # not while they work
        (RolloutView(planned=replace(PLAN, actors=1), ended=ENDED), 1, (1, 2)),  # the newest, between steps
        (
            RolloutView(planned=PLAN, ended=replace(ENDED, step=3)),
            2,
            (),
        ),  # that step is over, none is planned
        (RolloutView(planned=replace(PLAN, actors=5), ended=ENDED), 5, ()),
        # Announced, and not so near that actors have to start: nobody comes, and who is beyond it goes.
        (RolloutView(planned=replace(PLAN, actors=5), ended=ENDED, due=False), 0, ()),
        (RolloutView(planned=PLAN, ended=ENDED, due=False), 0, (2,)),
    ],
)
def test_what_steps_want(view: RolloutView, wants: int, goes: tuple[int, ...]) -> None:
    actors = tuple(Actor(number, "n2", 2) for number in range(3))
    assert wanted(TERMS, view) == wants
    assert let_go(TERMS, view, actors) == goes
    assert wanted(replace(TERMS, shadow=True, base=2), view) == 2
    assert let_go(replace(TERMS, shadow=True, base=2), view, actors) == ()
    if not view.released:
        assert let_go(replace(TERMS, keeps=True), view, actors) == ()


@pytest.mark.parametrize(
    "view",
    [RolloutView((ActorSeen(0, deleting=True),), planned=PLAN), RolloutView(planned=PLAN, going=(0,))],
)
def test_one_that_is_on_its_way_out_makes_no_other_go(view: RolloutView) -> None:
    """kind: one that was let go on a lost node never ended, and each actor that started in its place was let
    go at once, one every five seconds."""
    actors = tuple(Actor(number, "n2", 2) for number in range(3))
    assert let_go(TERMS, view, actors) == ()


def test_an_actor_that_is_let_go_takes_two_writes() -> None:
    actor = replace(ENTRY, state=ActorState.RUNNING, bound=905.0)
    record = settled(replace(RECORD, actors=(actor,)), ActorSeen(0, ready=True, bound=905.0), planned=PLAN)
    seen = ActorSeen(0, ready=True, bound=905.0)
    plan = planned(record, seen, planned=PLAN, generating=True, released=(0,))
    assert actions(plan) == [DeleteActor(0, 10.0)]
    assert plan.record == record, "its Job is deleted: one write"
    plan = planned(record, replace(seen, deleting=True), planned=PLAN, generating=True, released=(0,))
    assert (actions(plan), plan.record) == ([], record)
    plan = planned(record, planned=PLAN, generating=True, released=(0,), now=1005.0)
    assert plan.record.actors == ()
    assert plan.record.rollout is not None
    assert plan.record.rollout.held == 2 * (1005.0 - 905.0), "from its binding to its end"
    assert plan.record.rollout.failed == 0
    assert plan.record.actor_starts == 1, "its number is not used again"


def test_when_an_actor_was_bound_is_known_without_a_write() -> None:
    record = settled()
    going = {"planned": PLAN, "generating": True, "released": (0,), "going": (0,), "bound": ((0, 905.0),)}
    gone = planned(record, now=1005.0, **going)
    assert gone.record.actors == ()
    assert gone.record.rollout is not None
    assert gone.record.rollout.held == 2 * 100.0
    assert gone.record.rollout.failed == 0


def test_base_actors_that_were_let_go_are_lent() -> None:
    record = with_entries(RECORD, (), TERMS, 950.0)
    assert record.rollout == RolloutRecord(lent_until=950.0)
    back = with_entries(record, (Actor(1, "n2", 2),), TERMS, 980.0)
    assert back.rollout is not None
    assert back.rollout.lent == 2 * 30.0
    assert with_entries(back, (), TERMS, 990.0).rollout.lent == 60.0  # type: ignore[union-attr]


SEEN = ActorSeen(0, ready=True, bound=905.0)
STOP = Decision("User", Mode.ENFORCE, Proposal(1, 1, "UserRequest", 0.0, 0.0), "", 990.0, 991.0, 992.0)


@pytest.mark.parametrize(
    ("leaving", "waits"),
    [
        ({"decision": STOP}, JobState.STOPPING),
        ({"preempting": Preempting("Fair", 990.0, lost=0.0)}, JobState.PREEMPTING),
        (
            {
                "preempting": Preempting("GangTimedOut", 990.0, lost=0.0),
                "admission": replace(ADMISSION, withdrawn=990.0),
            },
            JobState.PREEMPTING,
        ),
        ({"finished": "Complete"}, JobState.STOPPING),
    ],
)
def test_released_means_that_actors_are_gone_too(leaving: dict[str, object], waits: JobState) -> None:
    record = replace(RECORD, **leaving)  # type: ignore[arg-type]
    workload = RESTS if "finished" not in leaving else replace(RESTS, suspended=False, finished="Complete")
    plan = planned(record, SEEN, workload=workload, pods=())
    assert DeleteActor(0, 10.0) in plan.actions
    assert plan.queue is waits
    assert plan.record.admission is not None
    still = planned(plan.record, replace(SEEN, deleting=True), workload=workload, pods=(), now=1001.0)
    assert still.queue is waits
    gone = planned(still.record, workload=workload, pods=(), now=1002.0)
    assert gone.record.admission is None
    assert gone.record.actors == ()
    assert gone.queue in (None, JobState.QUEUED)


TROUBLE = PodTrouble("p", exit_code=1, message="no such weights")


@pytest.mark.parametrize(
    ("actor", "seen", "now", "why"),
    [
        (
            ENTRY,
            (ActorSeen(0, over=True, trouble=TROUBLE),),
            NOW,
            "its pod ended, exit code 1: no such weights",
        ),
        (ENTRY, (ActorSeen(0, bound=905.0),), 1500.0, "it took no prompts within 600 s"),
        (
            ENTRY,
            (ActorSeen(0, bound=905.0, trouble=PodTrouble("p", waits="ImagePullBackOff")),),
            1500.0,
            "it took no prompts within 600 s, ImagePullBackOff",
        ),
        (ENTRY, (ActorSeen(0),), 1500.0, "its pod had no node within 600 s"),
        (ENTRY, (), 1500.0, "its Job could not be made within 600 s"),
        (replace(ENTRY, state=ActorState.RUNNING), (), NOW, "its Job and pod are gone"),
        (
            replace(ENTRY, state=ActorState.RUNNING),
            (ActorSeen(0, bound=905.0, away=True),),
            NOW,
            "the node is down, or cut off from the cluster",
        ),
    ],
)
def test_an_actor_that_fails_is_counted_and_told_once(
    actor: Actor, seen: tuple[ActorSeen, ...], now: float, why: str
) -> None:
    plan = planned(replace(RECORD, actors=(actor,)), *seen, now=now)
    (event,) = [one for one in plan.events if one.reason == "ActorFailed"]
    assert event.warning
    assert event.message == f"rollout actor 0 on node n2: {why}; it is put aside and counted"
    assert plan.record.rollout is not None
    assert plan.record.rollout.failed == 1
    again = planned(plan.record, *seen, now=now + 1.0)
    assert not any(one.reason == "ActorFailed" for one in again.events)
    assert again.record.rollout is not None
    assert again.record.rollout.failed == 1


def test_actors_that_a_step_put_aside_are_told_once_and_written_for_it() -> None:
    record = settled()
    failed = replace(
        ENDED, failed=2, failures="actor 0 faulty: it has weights 3, expected 4; actor 1 lost: gone"
    )
    plan = planned(record, ActorSeen(0, ready=True), ended=failed)
    assert plan.minor is None, "an Event is posted once: what it tells of has to be written"
    (event,) = [one for one in plan.events if one.reason == "ActorPutAside"]
    assert event.message == f"step 2: its trainer lost or put aside 2 rollout actors: {failed.failures}"
    again = planned(plan.record, ActorSeen(0, ready=True), ended=failed)
    assert not again.events
    assert not planned(record, ActorSeen(0, ready=True), ended=ENDED).events


def test_what_keeps_a_pod_from_running_is_written_once_and_told() -> None:
    record = settled()
    trouble = PodTrouble("run-actor-0", waits="ErrImageNeverPull", message="is not present")
    plan = planned(record, ActorSeen(0, trouble=trouble))
    assert plan.minor is None, "nothing else may ever be written"
    assert plan.record.actors[0].waits == "ErrImageNeverPull"
    (mark,) = [one for one in health(plan.record, NOW) if one.reason == "ActorNotReady"]
    assert mark.message == "actor 0 on node n2 is not ready yet: its pod waits, ErrImageNeverPull"
    again = planned(plan.record, ActorSeen(0, trouble=trouble))
    assert again.record == plan.record
    other = planned(plan.record, ActorSeen(0, trouble=replace(trouble, waits="ImagePullBackOff")))
    assert other.minor, "these take turns"
    ready = planned(plan.record, ActorSeen(0, ready=True))
    assert ready.minor
    assert ready.record.actors[0].waits == ""


def test_actors_that_a_step_put_aside_are_told_before_it_ends() -> None:
    """It may never end. Its end tells them again only if there are more."""
    record, ready = settled(), ActorSeen(0, ready=True)
    lost = StepAside(2, 990.0, 1, "actor 0 lost: no token for 120 s")
    plan = planned(record, ready, aside=lost)
    assert plan.minor is None, "an Event is posted once: what it tells of has to be written"
    (event,) = [one for one in plan.events if one.reason == "ActorPutAside"]
    assert event.message == "step 2: its trainer lost or put aside 1 rollout actor: " + lost.failures
    (mark,) = [one for one in health(plan.record, NOW) if one.reason == "ActorsFail"]
    assert (mark.mark, mark.warning) == (Mark.STARVED, False)
    assert mark.message == f"no rollout actor is left to its step; step 2: {lost.failures}"
    assert not planned(plan.record, ready, aside=lost).events
    more = replace(lost, count=2, failures=f"{lost.failures}; actor 1 lost: gone")
    assert [one.reason for one in planned(plan.record, ready, aside=more).events] == ["ActorPutAside"]
    ended = planned(plan.record, ready, ended=replace(ENDED, failed=1, failures=lost.failures))
    assert not ended.events, "all of it was told"
    assert ended.record.rollout is not None
    assert ended.record.rollout.aside is None
    assert not [one for one in health(ended.record, NOW) if one.reason == "ActorsFail"]
    worse = planned(plan.record, ready, ended=replace(ENDED, failed=2, failures=more.failures))
    assert [one.reason for one in worse.events] == ["ActorPutAside"]


def test_a_step_with_an_actor_left_needs_no_hand() -> None:
    record = settled(replace(RECORD, actors=(ENTRY, replace(ENTRY, number=1)), actor_starts=2))
    seen = (ActorSeen(0, ready=True), ActorSeen(1, ready=True))
    plan = planned(record, *seen, aside=StepAside(2, 990.0, 1, "actor 0 lost: gone"))
    assert [one.reason for one in plan.events] == ["ActorPutAside"]
    assert not [one for one in health(plan.record, NOW) if one.reason == "ActorsFail"]


def test_a_run_file_that_is_not_as_it_would_be_written_now_is_written_again() -> None:
    """The authority of the step API's certificate stands in it, and may be renewed."""
    observed = Observed(RUNS, PODS, run_written=None, rollout=RolloutView())
    assert WriteRun(RECORD.run) in plan_job(DESIRED, observed, RECORD, NOW).actions
    told = replace(observed, run_written=RECORD.run)
    assert WriteRun(RECORD.run) not in plan_job(DESIRED, told, RECORD, NOW).actions
    without = replace(DESIRED, rollout=None)
    bare = replace(RECORD, actors=())
    assert WriteRun(RECORD.run) not in plan_job(without, replace(observed, rollout=None), bare, NOW).actions


def test_a_run_that_goes_on_to_its_next_checkpoint_keeps_its_actors_so_long() -> None:
    record = replace(RECORD, preempting=Preempting("Fair", 999.0))
    plan = planned(record, SEEN, desired=replace(DESIRED, mode=Mode.ENFORCE))
    assert not actions(plan)
    assert not any(isinstance(one, SuspendWorkload) for one in plan.actions)


def test_an_actor_that_cannot_be_made_keeps_nothing_else_from_being_done() -> None:
    plan = planned(replace(RECORD, preempting=Preempting("Fair", 1.0)))
    assert [type(one) for one in plan.actions] == [SuspendWorkload, MakeActor]


def test_the_gang_and_base_actors_count_as_held_whatever_is_lent() -> None:
    assert DESIRED.gpus == 2 * 4 + 2
    assert attained(DESIRED, RECORD, NOW) == 100.0 * 10
    spare = tuple(Actor(number, "n2", 2) for number in range(4))
    assert attained(DESIRED, replace(RECORD, actors=spare), NOW) == 100.0 * 10
    assert attained(DESIRED, replace(RECORD, actors=()), NOW) == 100.0 * 10


def test_the_pool_sees_actors_and_what_is_wanted() -> None:
    plan = planned(RECORD, SEEN, planned=PLAN, generating=True, gain=1.5)
    view = job_view(
        DESIRED,
        Observed(RUNS, PODS, rollout=RolloutView((SEEN,), PLAN, True, gain=1.5)),
        plan.record,
        plan,
        submitted=1.0,
        priority=0,
        now=NOW,
    )
    assert view is not None
    assert view.rollout is not None
    assert (view.rollout.base, view.rollout.gpus, view.rollout.wants) == (1, 2, 2)
    assert (view.rollout.gain, view.rollout.next) == (1.5, 1)
    assert view.rollout.actors == plan.record.actors


class Job:
    """A job as the pool's outcomes read it."""

    def __init__(self, record: JobRecord) -> None:
        self.desired, self.record = DESIRED, record


def test_an_admission_writes_the_entries_of_its_base_actors() -> None:
    record = JobRecord(attempt=3, actor_starts=7)
    plan = PoolPlan(admissions=(Admission("ns/a", ("n1", "n1"), actors=("n2",)),))
    (write,) = outcomes(plan, {"ns/a": Job(record)}, NOW)
    made = after(write, record, DESIRED, NOW)
    assert made.actors == (Actor(7, "n2", 2, since=NOW),)
    assert (made.attempt, made.actor_starts) == (4, 8)


def test_recalls_and_starts_are_one_write_for_each_job() -> None:
    lent = LendingPlan(
        starts=(ActorStart("ns/a", 1, "n1", 2), ActorStart("ns/a", 2, "n1", 2)),
        recalls=(Recall("ns/b", 0, "ns/a", 1010.0),),
    )
    jobs = {"ns/a": Job(RECORD), "ns/b": Job(RECORD)}
    writes = list(outcomes(PoolPlan(lending=lent), jobs, NOW))
    assert [(w.key, w.verb) for w in writes] == [("ns/b", Verb.RECALL), ("ns/a", Verb.ACTOR_START)]
    assert all(w.verb.moves_gpus for w in writes)
    recalled, started = (after(w, RECORD, DESIRED, NOW) for w in writes)
    assert recalled.actors == (replace(ENTRY, state=ActorState.RECALLED, for_whom="ns/a", until=1010.0),)
    assert [actor.number for actor in started.actors] == [0, 1, 2]
    assert started.actor_starts == 3
    assert after(writes[0], recalled, DESIRED, NOW) is recalled, "the first recall is the one that counts"


def test_a_job_that_has_left_starts_no_actors() -> None:
    record = replace(RECORD, admission=None, actors=())
    lent = LendingPlan(starts=(ActorStart("ns/a", 1, "n1", 2),))
    (write,) = outcomes(PoolPlan(lending=lent), {"ns/a": Job(record)}, NOW)
    assert after(write, record, DESIRED, NOW) is record
