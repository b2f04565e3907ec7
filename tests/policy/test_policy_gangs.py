"""Gang admission: whole or not at all, in bounded time, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gang_world import TICK, GangWorld, run_all
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job import gang_timeout
from controller.policy.job.plan import plan_job
from controller.policy.job.record import (
    AdmissionRecord,
    Claim,
    GangBackoff,
    JobRecord,
    ProtectedCheckpoint,
    RunFile,
)
from controller.policy.job.types import (
    Desired,
    Observed,
    PodView,
    ScrapeOutcome,
    ScrapeView,
    StartWorkload,
    SuspendWorkload,
    WorkloadView,
)
from controller.policy.types import Delegate, JobState, Mode, PolicySpec

SLACK = 3 * TICK  # passes until a time-out is seen, carried out, and its pods are gone


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (8, 600), (10**6, 600)]
)
def test_the_back_off_doubles_up_to_ten_minutes(failures: int, seconds: float) -> None:
    assert gang_timeout.backoff_seconds(failures) == seconds


def test_a_back_off_without_a_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="failures: 0, expected at least 1"):
        gang_timeout.backoff_seconds(0)


def desired(replicas: int = 2, **more) -> Desired:
    return Desired("ns/a", "u", 1, "gold", replicas, 1, PolicySpec("kDeclines", {"k": 3}), **more)


def pod(name: str, node: str | None = None, **more) -> PodView:
    return PodView(name, node, 1, terminal=more.pop("terminal", False), **more)


@pytest.mark.parametrize(
    ("pods", "missing"),
    [
        ((), 2),
        ((pod("a"), pod("b")), 2),
        ((pod("a", "n"),), 1),
        ((pod("a", "n"), pod("b")), 1),
        ((pod("a", "n"), pod("b", "n")), 0),
        ((pod("a", "n"), pod("b", "n", terminal=True)), 0),  # it had a node; its Job may be pausing
        ((pod("a", "n"), pod("b", "n", terminal=True), pod("c")), 1),  # made again, and waits
        ((pod("a", "n", terminal=True, admission=6), pod("b", "n", admission=7)), 1),  # of the last attempt
        ((pod("a", "n", admission=6), pod("b", admission=6), pod("c", "n", admission=7)), 1),
    ],
)
def test_members_without_a_node(pods: tuple[PodView, ...], missing: int) -> None:
    assert gang_timeout.unplaced(desired(), Observed(pods=pods), AdmissionRecord(7, (), 0.0)) == missing


def test_a_gang_without_room_gives_back_what_it_has_and_backs_off() -> None:
    world = GangWorld({f"n{i}": 1 for i in range(8)}, timeout=30.0)
    gang = world.submit("ns/a", 8)
    world.hidden = {"n3": 1}
    seen = []
    world.tick()
    late = world.submit("ns/b", 4)
    while gang.record.gang_backoff is None:
        world.tick()
        seen.append((world.now, len([p for p in gang.pods if p.node])))
        assert world.now < 100
    assert max(bound for _, bound in seen) == 7
    backoff = gang.record.gang_backoff
    assert (backoff.failures, backoff.until) == (1, world.now + 10)
    assert (gang.pods, gang.record.admission, gang.suspended) == ([], None, True)
    told = gang.record.condition(c.ADMITTED)
    assert told is not None
    assert (told.status, told.reason) == (False, "GangTimedOut")
    assert "1 of 8 pods had no node 30 s after the gang was admitted or lost one" in told.message
    # While it is out, the next in the queue has its turn, though it came later.
    assert late.record.admission is not None
    assert late.record.admission.at == world.now
    world.hidden = {}
    world.until_all_ended(60)
    assert gang.record.gang_backoff is None
    assert gang.record.attempt > 1


@pytest.mark.parametrize("spec", [PolicySpec("fifo"), PolicySpec("srtf")])
def test_a_gang_is_not_planned_for_ever_onto_a_node_that_never_has_it(spec: PolicySpec) -> None:
    """n1 and n2 look free to the pool and are ruled out by the cluster; n3 and n4 would do."""
    world = GangWorld({f"n{i}": 2 for i in range(1, 5)}, spread=False, timeout=10.0, policy=spec)
    world.hidden = {"n1": 2, "n2": 2}
    gang = world.submit("ns/a", 2, 2)
    planned, avoided = [], []
    while gang.ended is None:
        world.tick()
        if gang.record.admission is not None:
            planned.append(gang.record.admission.nodes)
        if gang.record.gang_backoff is not None:
            avoided.append(gang.record.gang_backoff.avoid)
        assert world.now < 200
    assert list(dict.fromkeys(planned)) == [("n1", "n2"), ("n3", "n4")]
    assert set(avoided) == {("n1", "n2")}
    assert gang.record.gang_backoff is None, "bound whole, it holds nothing against any node"


def test_what_is_held_against_nodes_adds_up_newest_first_and_is_bounded() -> None:
    """A node that had one of its pods is cleared, one that was not tried again is not."""
    many = tuple(f"old{i}" for i in range(gang_timeout.AVOIDED_MAX))
    for known, avoid in (
        (("n2", "n9"), ("n1", "n9")),
        (many, ("n1", *many[:-1])),
    ):
        admission = AdmissionRecord(3, ("n1", "n2", "n1"), 0.0, unbound_since=0.0)
        record = JobRecord(attempt=3, admission=admission, gang_backoff=GangBackoff(2, 0.0, known))
        pods = (pod("a", "n2", admission=3), pod("b", "n1", admission=2), pod("c", admission=3))
        first = plan_job(desired(3), Observed(WorkloadView("w", suspended=False), pods), record, 300.0)
        gone = Observed(WorkloadView("w", suspended=True, settled=True), ())
        second = plan_job(desired(3), gone, first.record, 310.0)
        assert second.record.gang_backoff == GangBackoff(3, 310.0 + 40.0, avoid)


def test_the_time_a_gang_has_does_not_run_while_the_operator_is_away_before_the_start() -> None:
    admission = AdmissionRecord(3, ("n1", "n2"), 0.0, unbound_since=0.0)
    record = JobRecord(attempt=3, admission=admission, run=RunFile(attempt=3), claim=Claim(3, 0.0))
    there = Observed(
        WorkloadView("w", suspended=True, settled=True), (), run_written=RunFile(attempt=3, uid=desired().uid)
    )
    back = plan_job(desired(), there, record, 10_000.0)
    assert [type(a) for a in back.actions if isinstance(a, (StartWorkload, SuspendWorkload))] == [
        StartWorkload
    ]
    assert back.record.admission == replace(admission, unbound_since=10_000.0)
    bound = Observed(WorkloadView("w", suspended=False), (pod("a", admission=3), pod("b", admission=3)))
    assert plan_job(desired(), bound, back.record, 10_299.0).record.admission == back.record.admission
    late = plan_job(desired(), bound, back.record, 10_300.0).record.admission
    assert late is not None
    assert late.withdrawn == 10_300.0
    # Started in the next pass, as usual: the time is that of the admission, and the status does not change.
    usual = plan_job(desired(), there, record, 0.5)
    assert usual.record.admission == admission


def test_what_somebody_starts_before_its_attempt_is_ready_is_started_anew() -> None:
    """Its pods have the run.json of the attempt before: nothing that they show would count."""
    admission = AdmissionRecord(3, ("n1",), 0.0, unbound_since=0.0)
    record = JobRecord(attempt=3, admission=admission, run=RunFile(attempt=3), claim=Claim(3, 0.0))
    early = Observed(WorkloadView("w", suspended=False), (pod("a", "n1", admission=2),))
    first = plan_job(desired(1), early, record, 1.0)
    assert [a for a in first.actions if isinstance(a, SuspendWorkload)] == [SuspendWorkload("NotAdmitted")]
    told = first.record.condition("Running")
    assert told is not None
    assert (told.status, told.reason) == (False, "Restarting")
    written = RunFile(attempt=3, uid=desired().uid)
    gone = Observed(WorkloadView("w", suspended=True, settled=True), (), run_written=written)
    second = plan_job(desired(1), gone, first.record, 10.0)
    assert [a for a in second.actions if isinstance(a, StartWorkload)] == [StartWorkload(3, ("n1",))]
    right = Observed(WorkloadView("w", suspended=False), (pod("b", "n1", admission=3),))
    third = plan_job(desired(1), right, second.record, 20.0)
    assert not [a for a in third.actions if isinstance(a, SuspendWorkload)]


def test_each_failure_in_a_row_waits_twice_as_long() -> None:
    world = GangWorld({"n1": 2}, timeout=10.0)
    gang = world.submit("ns/a", 2)
    world.hidden = {"n1": 1}
    pauses = []
    while len(pauses) < 4:
        before = gang.record.gang_backoff
        world.tick()
        after = gang.record.gang_backoff
        if after is not None and after != before:
            pauses.append(after.until - world.now)
        assert world.now < 1000
    assert pauses == [10, 20, 40, 80]


def test_the_checkpoint_to_resume_from_is_kept_when_the_gang_never_ran() -> None:
    kept = ProtectedCheckpoint(10, 10, "/restored/10", "sha256:x", 1.0)
    pods = (pod("a", "n1", admission=3), pod("b", admission=3))
    for running_since, left in ((None, kept), (5.0, None)):
        admission = AdmissionRecord(3, ("n1", "n2"), 0.0, None, running_since, unbound_since=0.0)
        record = JobRecord(attempt=3, admission=admission, restored=kept)
        seen = Observed(WorkloadView("w", suspended=False), pods)
        first = plan_job(desired(), seen, record, 300.0)
        assert any(isinstance(a, SuspendWorkload) for a in first.actions)
        assert first.queue is JobState.PREEMPTING
        gone = Observed(WorkloadView("w", suspended=True, settled=True), ())
        second = plan_job(desired(), gone, first.record, 310.0)
        assert second.record.restored == left
        assert second.queue is JobState.QUEUED
        assert second.record.gang_backoff is not None


def test_a_run_that_lost_a_node_is_charged_for_the_work_since_its_checkpoint() -> None:
    admission = AdmissionRecord(1, ("n1", "n2"), 0.0, None, running_since=0.0, unbound_since=700.0)
    record = JobRecord(attempt=1, admission=admission)
    scrape = ScrapeView(ScrapeOutcome.OK, step=100, checkpoint_step=80, resumed_step=0, total_steps=400)
    seen = Observed(WorkloadView("w", suspended=False), (pod("a", "n1"), pod("b")), scrape)
    first = plan_job(desired(), seen, record, 1000.0)
    assert first.record.admission is not None
    assert first.record.admission.withdrawn == 1000.0
    gone = Observed(WorkloadView("w", suspended=True, settled=True), (), scrape)
    second = plan_job(desired(), gone, first.record, 1010.0)
    assert second.record.lost == pytest.approx(2 * 1000 * 20 / 100)
    assert (second.record.admission, second.record.preempting) == (None, None)
    assert second.record.queued_at == 1010.0


def test_pods_of_a_withdrawn_gang_that_do_not_go_are_named_with_their_age() -> None:
    admission = AdmissionRecord(1, ("n1", "n2"), 0.0, unbound_since=0.0, withdrawn=300.0)
    record = JobRecord(attempt=1, admission=admission)
    left = (pod("run-0", "n1", deleting_since=310.0),)
    seen = Observed(WorkloadView("w", suspended=True), left)
    told = plan_job(desired(), seen, record, 320.0).record.condition(c.RELEASED)
    assert told is not None
    assert (told.reason, told.message) == ("PodsTerminating", "1 pods still hold their GPUs")
    later = plan_job(desired(), seen, record, 500.0)
    told = later.record.condition(c.RELEASED)
    assert told is not None
    assert (told.reason, told.message) == ("PodsStuck", "still terminating: run-0 (190 s)")
    gone = Observed(WorkloadView("w", suspended=True, settled=True), ())
    assert plan_job(desired(), gone, later.record, 510.0).record.condition(c.RELEASED) is None


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_in_shadow_and_off_a_run_that_once_had_all_its_nodes_is_left_alone(mode: Mode) -> None:
    record = JobRecord(attempt=1, admission=AdmissionRecord(1, ("n1", "n2"), 0.0))
    seen = Observed(WorkloadView("w", suspended=False), (pod("a", "n1"), pod("b")))
    wish = desired(mode=mode)
    first = plan_job(wish, seen, record, 10.0)
    later = plan_job(wish, seen, first.record, 10_000.0)
    assert later.actions == ()
    assert later.record.admission is not None
    assert later.record.admission.withdrawn is None


def test_a_gang_that_loses_a_node_for_good_gives_the_others_back() -> None:
    """Partial placement must not last later either: a member that was evicted and finds no node again."""
    world = GangWorld({"n1": 1, "n2": 1}, timeout=30.0)
    gang = world.submit("ns/a", 2, takes=10_000.0)
    for _ in range(4):
        world.tick()
    assert all(p.node for p in gang.pods)
    assert gang.record.admission is not None
    assert gang.record.admission.unbound_since is None
    world.hidden = {"n2": 1}
    lost = next(i for i, p in enumerate(gang.pods) if p.node == "n2")
    gang.pods[lost] = replace(gang.pods[lost], node=None, ready=False)
    began = world.now
    while gang.record.gang_backoff is None:
        world.tick()
        assert world.now <= began + 30 + SLACK
    assert not gang.pods


GANGS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 2)), min_size=1, max_size=7)


@settings(max_examples=40)
@given(GANGS, st.integers(0, 2**32), st.booleans())
def test_no_partial_placement_lasts_and_every_gang_runs(gangs_, seed: int, spread: bool) -> None:
    """Whatever the scheduler does, and with GPUs taken unseen for the first minutes."""
    world = GangWorld({f"n{i}": 2 for i in range(8)}, spread=spread, seed=seed)
    for i, (replicas, gpus) in enumerate(gangs_):
        world.submit(f"ns/{i:02d}", replicas, gpus)
    for _ in range(40):
        if world.random.random() < 0.3:
            world.hidden = {
                n: world.random.randint(0, min(2, world.free(n) + world.hidden.get(n, 0)))
                for n in world.nodes
            }
        world.tick()
    world.hidden = {}
    world.until_all_ended(600)
    for job in world.jobs.values():
        assert job.longest_partial <= world.timeout + SLACK, job.desired.key


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([Delegate.BUILTIN, Delegate.NONE]))
def test_two_gangs_that_each_need_every_node_never_deadlock(seed: int, delegate: Delegate) -> None:
    """With nobody to queue, too: after both failed at the same time, one is tried after the other."""
    world = GangWorld({f"n{i}": 1 for i in range(8)}, delegate=delegate, seed=seed)
    run_all(world, [(8, 1), (8, 1)], 200)
    if delegate is Delegate.BUILTIN:
        assert all(job.record.attempt == 1 for job in world.jobs.values()), "one after the other, at once"
    for job in world.jobs.values():
        assert job.longest_partial <= world.timeout + SLACK


@pytest.mark.parametrize("delegate", [Delegate.BUILTIN, Delegate.NONE])
def test_many_gangs_at_once_all_run(delegate: Delegate) -> None:
    world = GangWorld({f"n{i:02d}": 1 for i in range(16)}, delegate=delegate, seed=7)
    run_all(world, [(8, 1)] * 12 + [(16, 1)] * 3 + [(3, 1)] * 10, 3000)
