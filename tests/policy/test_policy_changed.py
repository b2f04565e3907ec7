"""A checkpoint that was changed after it had been pinned is not the one evaluated: its eval is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import access_requests
from controller.policy.job import conditions as c
from controller.policy.job.record import Operation
from controller.policy.job.types import AccessView, Page, Retain, RunState, StartAccess
from controller.policy.types import Attempt, EvalPoint
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"


class Rewriting(PolicyWorld):
    """The trainer writes into checkpoints that are there; pins share their data."""

    pace = 5.0

    def __init__(self) -> None:
        super().__init__({"n1": 8})
        self.content: dict[int, str] = {}
        self.log: list[StartAccess] = []
        self.gone = False  # pins go as soon as they are made

    def rewrite(self, *steps: int) -> None:
        self.content |= dict.fromkeys(steps, "changed")

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        self.log.append(ask)
        view = super()._access(job, ask)
        if not view.ok or view.step is None:
            return view
        if ask.operation in (Operation.SECURE, Operation.PIN):
            if self.gone:
                job.pins.clear()
            return replace(view, digest=f"sha256:{view.step}-{self.content.get(view.step, '')}")
        if ask.operation in (Operation.RETAIN, Operation.CHECK):
            assert ask.source is not None
            here = f"sha256:{ask.source.step}-{self.content.get(ask.source.step, '')}"
            if ask.source.digest != here:
                return AccessView(ask.request_id, ask.operation, True, False, "DigestMismatch", "changed")
            return replace(view, digest=here)
        return view


def pinned_best() -> tuple[Rewriting, Job]:
    world = Rewriting()
    job = world.submit(KEY)
    world.settle()
    for score in (0.5, 0.9, 0.7):
        world.scores(KEY, score)
        world.go_on(15.0)
    assert job.record.secured is not None
    assert job.record.secured.step == 20
    return world, job


def asked(world: Rewriting, operation: Operation, step: int) -> int:
    return sum(1 for ask in world.log if (ask.operation, ask.step) == (operation, step))


@pytest.mark.parametrize("retain", list(Retain))
@pytest.mark.parametrize("by", ["its rule", "its user"])
def test_a_changed_best_is_never_kept_under_its_score(by: str, retain: Retain) -> None:
    # D3
    world, job = pinned_best()
    job.wish(retain=retain)
    world.rewrite(20)
    if by == "its user":
        job.wish(run_state=RunState.STOPPED)
    else:
        world.scores(KEY, 0.6)
        world.go_on(10.0)
        world.scores(KEY, 0.5)
    for _ in range(20):
        world.go_on(60.0, every=10.0)
        if job.record.decision is None:  # its stop was taken back: it goes on declining
            world.scores(KEY, 0.5 - world.now / 1e5)
    world.go_on(600.0, every=60.0)
    assert job.observed.workload.suspended
    assert [(kept.step, kept.score) for kept in job.record.retained] == [(30, 0.7)]
    assert asked(world, Operation.SECURE, 20) == 1, "what lies there is not looked for again"
    told = [e.message for e in world.events if e.reason == "BestCheckpointLost"]
    assert len(told) == 1
    assert "step 20 (0.9), was changed after it had been pinned" in told[0]
    assert "is at step 30 (0.7)" in told[0]
    taken_back = [e for e in world.events if e.reason == "StopTakenBack"]
    assert len(taken_back) == (by == "its rule")


def test_the_same_step_is_kept_once_another_process_has_written_and_scored_it_anew() -> None:
    # D3
    world, job = pinned_best()
    world.rewrite(20)
    job.wish(run_state=RunState.STOPPED)
    world.go_on(60.0)
    assert [best.step for best in job.record.changed_bests] == [20]
    job.wish(run_state=RunState.RUN)
    world.go_on(60.0)
    life = Attempt(job.record.attempt, "2")
    points = (EvalPoint(10, 0.5, life), EvalPoint(20, 0.95, life))
    page = Page(job.desired.uid, life)
    world.scrape(KEY, points=points, checkpoint_step=20, page=page, resumed_step=0)
    world.go_on(60.0)
    assert job.record.secured is not None
    assert (job.record.secured.step, job.record.secured.score) == (20, 0.95)


def test_a_store_in_which_everything_is_changed_is_not_asked_for_ever() -> None:
    # D3
    world, job = pinned_best()
    world.slow, world.failing = frozenset({Operation.RETAIN}), "DigestMismatch"
    job.wish(run_state=RunState.STOPPED)
    world.go_on(120.0)
    before = len(world.asked)
    world.go_on(3600.0, every=10.0)
    assert len(world.asked) == before
    assert job.observed.workload.suspended
    assert job.record.condition(c.RETAINED).reason == "NothingRetained"


def test_pins_that_go_again_and_again_are_made_anew_with_a_pause() -> None:
    # D3
    world, job = pinned_best()
    world.gone = True
    job.pins.clear()
    job.wish(run_state=RunState.STOPPED)
    world.go_on(600.0, every=1.0)
    assert asked(world, Operation.SECURE, 20) <= 600 / 5 + 1
    assert job.observed.workload.suspended
    world.gone = False
    world.go_on(60.0)
    assert [kept.step for kept in job.record.retained] == [20]


def test_a_copy_of_a_lost_best_from_an_earlier_stop_starts_no_search() -> None:
    """Its checkpoint is gone from the trainer's folder; of the others the best one is pinned."""
    world, job = pinned_best()
    job.wish(run_state=RunState.STOPPED)
    world.go_on(60.0)
    assert [kept.step for kept in job.record.retained] == [20]
    job.wish(run_state=RunState.RUN)
    world.go_on(60.0)
    world.rewrite(20)
    best = job.record.best
    job.record = replace(job.record, lost_bests=(best,), lost_tried=world.now, secured=None)
    job.checkpoints.discard(20)
    before = len(world.asked)
    world.go_on(200.0, every=1.0)
    assert len(world.asked) - before <= 2
    assert job.record.secured.step == 30


@pytest.mark.parametrize("tries", [1, 2, 100, 1025, 5000])
def test_the_pause_between_tries_has_an_end(tries: int) -> None:
    assert 0.0 < access_requests.retry_delay(tries) <= access_requests.RETRY_MOST


def test_a_pin_that_is_missing_is_asked_for_anew_and_not_let_go() -> None:
    """It may be there again: of a store that was away for a moment nothing is deleted."""
    world, job = pinned_best()
    assert job.record.secured is not None
    path = job.record.secured.path
    job.pins.clear()
    job.desired = replace(job.desired, run_state=RunState.STOPPED)
    world.go_on(60.0)
    anew = [ask for ask in world.log if (ask.operation, ask.step) == (Operation.SECURE, 20)][1:]
    assert anew
    assert all(path not in ask.release for ask in world.log)
