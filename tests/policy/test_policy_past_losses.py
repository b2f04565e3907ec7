"""Losses of a run that is over: a fault while something may still be saved, then a fact."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from controller.cli.explanation import explain
from controller.cli.job_view import read
from controller.policy.job import conditions as c
from controller.policy.job.cures import CURES
from controller.policy.job.marks import Mark, health, state_reason
from controller.policy.job.past_losses import NOTHING_RETAINED, losses, unsaved
from controller.policy.job.record import (
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    InFlight,
    JobRecord,
    Operation,
    ProtectedCheckpoint,
)
from controller.policy.job.types import RunState
from controller.policy.job.verdict_words import lost_best
from controller.policy.types import Attempt, Mode, Proposal
from tests.support import cli_world
from tests.support.policy_world import Job, PolicyWorld

T = 1_000_000.0
LATE = T + 1e7
KEY = "ns/a"


def condition(type_: str, status: bool, reason: str) -> Condition:
    return Condition(type_, status, reason, f"{type_} says {reason}", T, 1)


LOST = condition(c.SECURED, False, "BestCheckpointLost")
COPIED = condition(c.RETAINED, True, "Retained")
NONE = condition(c.RETAINED, False, NOTHING_RETAINED)
STOPPED = Decision("scan", Mode.ENFORCE, Proposal(60, 30, "Drop", 4.0, 3.0), "4 of 3", T)
GONE = replace(STOPPED, suspended_at=T, pods_gone_at=T)
KEPT = ProtectedCheckpoint(20, 20, "/c/20", "sha256:ab", T, score=0.2, attempt=Attempt(1, "9f"))
BEST = Best(30, 0.3, Attempt(1, "9f"))
FAILED, COMPLETED = condition(c.FAILED, True, "EndUnknown"), condition(c.COMPLETED, True, "Complete")


def waiting(operation: Operation) -> InFlight:
    return InFlight(operation, 30, 1, attempt=BEST.attempt, score=BEST.score)


def marked(record: JobRecord) -> list[str]:
    return [one.reason for one in health(record, LATE) if one.mark is Mark.UNSAFE]


OVER = JobRecord(attempt=1, conditions=(LOST, COPIED), decision=replace(GONE, retained_at=T))
ENDED = JobRecord(attempt=1, conditions=(LOST,), finished="Complete")


@pytest.mark.parametrize(
    ("record", "unsafe"),
    [
        (OVER, []),
        (ENDED, []),
        (replace(ENDED, finished="Failed"), []),
        # Its GPUs are not free yet: whatever comes, comes still.
        (replace(OVER, decision=replace(STOPPED, retained_at=T, suspended_at=T)), ["BestCheckpointLost"]),
        (replace(ENDED, admission=AdmissionRecord(1, ("n1",), T, None, T)), ["BestCheckpointLost"]),
        # A stop in Shadow is none, and a queued run goes on.
        (replace(OVER, decision=replace(GONE, mode=Mode.SHADOW)), ["BestCheckpointLost"]),
        (replace(OVER, decision=None), ["BestCheckpointLost"]),
        # The copy that was put off until the suspend is owed.
        (replace(OVER, decision=replace(GONE, deferred_at=T)), ["BestCheckpointLost"]),
        (replace(ENDED, decision=replace(GONE, deferred_at=T)), ["BestCheckpointLost"]),
        (replace(OVER, decision=replace(GONE, deferred_at=T), conditions=(NONE,)), []),
        (
            replace(
                OVER,
                decision=replace(GONE, deferred_at=T),
                conditions=(NONE,),
                access=waiting(Operation.SECURE),
            ),
            [NOTHING_RETAINED],
        ),
        (replace(OVER, decision=replace(GONE, deferred_at=T, retained_at=T)), []),
        # The best of a run that ended by itself is looked for still, whatever else is asked for.
        (replace(ENDED, access=waiting(Operation.SECURE)), ["BestCheckpointLost"]),
        (replace(ENDED, access=waiting(Operation.PIN)), []),
        # Its user's pins are tried for as long as the spec names them.
        (
            replace(OVER, conditions=(LOST, COPIED, condition(c.PINNED, False, "CheckpointMissing"))),
            ["CheckpointMissing"],
        ),
        (replace(ENDED, conditions=(condition(c.PINNED, False, "DigestMismatch"),)), ["DigestMismatch"]),
        # The folder is nothing to a run that is over.
        (replace(OVER, conditions=(condition(c.CLAIMED, False, "LocationTaken"),)), []),
        (replace(ENDED, conditions=(condition(c.CLAIMED, False, "EvalStopFolderGone"),)), []),
        (replace(ENDED, conditions=(condition(c.SECURED, False, "StepsDisagree"),)), []),
        # A resume that finds no copy is told by another mark.
        (replace(OVER, conditions=(condition(c.RESUMED, False, "CheckpointMissing"),)), []),
    ],
)
def test_a_run_that_is_over_is_unsafe_while_something_of_it_may_be_saved(
    record: JobRecord, unsafe: list[str]
) -> None:
    assert marked(record) == unsafe


def test_over_all_combinations_what_is_no_fault_any_more_is_told_as_a_fact() -> None:
    stops = (
        None,
        STOPPED,
        *(replace(GONE, deferred_at=d, retained_at=r) for d, r in product((None, T), (None, T))),
    )
    asked = (None, *map(waiting, Operation))
    reasons = [r for r in ("OutOfSpace", "StoreUnreachable", NOTHING_RETAINED) if r in CURES]
    seen = set()
    for stop, waited, end, type_, reason in product(
        stops, asked, (None, "Failed", "Complete"), (c.SECURED, c.RETAINED, c.CLAIMED, c.PINNED), reasons
    ):
        told = condition(type_, False, reason)
        record = JobRecord(
            attempt=1, conditions=(told,), decision=stop, access=waited, finished=end, best=BEST
        )
        fault, fact = told.reason in marked(record), told in unsaved(record)
        assert fault != fact, record
        assert (f"{reason}: {told.message}" in losses(record)) == fact
        over = end is not None or (stop is not None and stop.pods_gone_at is not None)
        assert over or fault
        seen.add((fault, over))
    assert seen == {(True, True), (False, True), (True, False)}


def test_a_stopped_run_says_what_it_was_stopped_for_and_what_was_lost() -> None:
    record = replace(
        OVER,
        conditions=(
            *OVER.conditions,
            condition(c.TERMINATION, True, "Drop"),
            condition(c.RELEASED, True, "PodsGone"),
        ),
        best=BEST,
        lost_bests=(BEST,),
        retained=(KEPT,),
    )
    assert state_reason(record) == "Drop"
    assert lost_best(record).endswith("step 30 (0.3): in safety is that of step 20 (0.2)")
    assert losses(record) == (), "it is said once"


# -- as it comes about ---------------------------------------------------------------------------------------


def running() -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n1": 8})
    job = world.submit(KEY)
    world.settle()
    return world, job


def lose_the_best(world: PolicyWorld, job: Job) -> None:
    """Step 20 is in safety; then come better ones, whose checkpoints are not there."""
    world.scores(KEY, 0.1, 0.2)
    world.settle()
    world.scores(KEY, 0.5, 0.4)
    job.checkpoints -= {30, 40}
    for _ in range(30):
        world.step(KEY, seconds=10)
    assert job.record.best_is_lost
    assert c.summary(job.record.conditions) == "Unsafe"
    assert marked(job.record) == ["BestCheckpointLost"]


def test_a_run_that_was_stopped_without_its_best_is_not_unsafe_once_it_is_off() -> None:
    """r-half of try-out 57: EvalStopCheckpointsNotSecured fired until its RLHFJob was deleted."""
    world, job = running()
    lose_the_best(world, job)
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert job.record.decision.pods_gone_at is not None
    assert job.kept == {20}
    assert c.summary(job.record.conditions) == "Stopped"
    assert health(job.record, world.now + 1e6) == ()
    attention = job.record.condition(c.ATTENTION)
    assert (attention.status, attention.reason) == (False, "Recovered")
    assert attention.message == "it is over, and nothing of it can be saved any more"
    assert job.record.condition(c.SECURED) in unsaved(job.record)
    assert "in safety is that of step 20 (0.2)" in lost_best(job.record)


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_run_that_ended_without_its_best_is_not_unsafe_once_nothing_is_looked_for(end: str) -> None:
    """k-3 of try-out 57."""
    world, job = running()
    lose_the_best(world, job)
    world.finish(KEY)
    ended = replace(job.observed.workload, finished=end, message=end)
    job.observed = replace(job.observed, workload=ended)
    for _ in range(60):
        world.step(KEY, seconds=10)
    assert job.record.finished == end
    assert [one.mark for one in health(job.record, world.now)] == [Mark.FAILED][: end == "Failed"]


def test_a_copy_that_is_still_tried_after_the_suspend_is_told_until_it_is_made() -> None:
    world, job = running()
    world.scores(KEY, 0.1, 0.2)
    world.settle()
    world.slow, world.failing = frozenset({Operation.RETAIN}), "StoreUnreachable"
    job.wish(run_state=RunState.STOPPED)
    for _ in range(120):
        world.step(KEY, seconds=10)
        world._cluster(job)
    assert job.record.decision.pods_gone_at is not None
    assert marked(job.record) == ["StoreUnreachable"]
    world.slow, world.failing = frozenset(), None
    for _ in range(30):
        world.step(KEY, seconds=10)
    assert job.kept == {20}
    assert marked(job.record) == []


def test_an_ended_run_whose_store_does_not_answer_is_told_until_its_workload_is_gone() -> None:
    """Nobody can reach the store then, so nothing is asked for any more."""
    world, job = running()
    world.slow, world.failing = frozenset({Operation.SECURE}), "StoreUnreachable"
    world.scores(KEY, 0.1, 0.2)
    for _ in range(5):
        world.step(KEY, seconds=10)
    world.finish(KEY)
    for _ in range(200):
        world.step(KEY, seconds=10)
    assert marked(job.record) == ["StoreUnreachable"]
    job.observed = replace(job.observed, workload=None, access=())
    world.step(KEY, seconds=10)
    assert job.record.access is None
    assert marked(job.record) == []
    (told,) = losses(job.record)
    assert told.startswith("StoreUnreachable: ")
    found = explain(read(cli_world.whole("a", job.record)), world.now)
    assert ("lost", told) in found.facts
    assert found.marks == ()
