"""Checkpoints that a user pins: kept from rotation while the spec names them, let go afterwards."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import conditions as c
from controller.policy.job.cures import cure_of, key_of
from controller.policy.job.record import Operation
from controller.policy.job.types import ResumeFrom, ResumeRequest, RunState, StartAccess
from controller.policy.types import Mode
from tests.support.policy_world import PolicyWorld

KEY = "ns/a"


def world(*scores: float, **spec) -> PolicyWorld:
    made = PolicyWorld({"n1": 2})
    made.submit(KEY, gpus=2, **spec)
    made.settle()
    if scores:
        made.scores(KEY, *scores)
        made.settle()
    return made


def name_pins(made: PolicyWorld, *steps: int) -> None:
    job = made.jobs[KEY]
    job.wish(pins=steps, generation=job.desired.generation + 1)


def pinned(made: PolicyWorld) -> tuple[int, ...]:
    return tuple(kept.step for kept in made.jobs[KEY].record.pinned)


def told(made: PolicyWorld):
    return made.jobs[KEY].record.condition(c.PINNED)


def rotate(made: PolicyWorld, *left: int) -> None:
    made.jobs[KEY].checkpoints = set(left)


def test_a_pinned_step_outlives_rotation_and_every_later_best() -> None:
    made = world(0.1, 0.2)
    name_pins(made, 10)
    made.settle()
    assert pinned(made) == (10,)
    assert told(made).status
    for score in (0.3, 0.4, 0.5):
        made.scores(KEY, score)
        rotate(made, *sorted(made.jobs[KEY].checkpoints)[-1:])
        made.settle()
    job = made.jobs[KEY]
    assert job.pins == {10, 40, 50}, "the pin, the best, and the one before, which goes with the next request"
    assert job.record.to_release == ("/pins/40",)
    assert job.record.pinned[0].score == 0.1


def test_the_best_one_that_is_pinned_too_is_not_let_go_with_its_successor() -> None:
    made = world(0.1, 0.5)
    name_pins(made, 20)
    made.settle()
    made.scores(KEY, 0.6)
    made.settle()
    assert made.jobs[KEY].pins == {20, 30}


def test_a_pin_that_is_taken_back_goes_with_the_next_one_that_is_secured() -> None:
    made = world(0.1, 0.2)
    name_pins(made, 10)
    made.settle()
    name_pins(made)
    made.settle()
    job = made.jobs[KEY]
    assert (pinned(made), job.pins, told(made)) == ((), {10, 20}, None)
    made.scores(KEY, 0.3)
    made.settle()
    assert (job.pins, job.record.to_release) == ({20, 30}, ("/pins/20",))


def test_a_pin_that_is_taken_back_and_named_again_is_kept() -> None:
    made = world(0.1, 0.2)
    name_pins(made, 10)
    made.settle()
    name_pins(made)
    made.settle()
    name_pins(made, 10)
    made.settle()
    made.scores(KEY, 0.3)
    made.settle()
    assert pinned(made) == (10,)
    assert made.jobs[KEY].pins == {10, 20, 30}
    assert made.jobs[KEY].record.to_release == ("/pins/20",)


def test_a_pin_that_is_the_best_one_as_well_stays_when_it_is_taken_back() -> None:
    made = world(0.1, 0.5)
    name_pins(made, 10, 20)
    made.settle()
    name_pins(made, 10)
    made.settle()
    made.scores(KEY, 0.4)
    made.settle()
    job = made.jobs[KEY]
    assert job.record.secured is not None
    assert job.record.secured.step == 20
    assert 20 in job.pins


def test_a_step_that_is_still_to_come_is_waited_for_without_asking_the_store() -> None:
    made = world(0.1)
    name_pins(made, 30)
    made.settle()
    assert (told(made).status, told(made).reason) == (False, "WaitingForCheckpoint")
    serial = made.jobs[KEY].record.access_serial
    made.step(KEY, seconds=3600.0)
    assert made.jobs[KEY].record.access_serial == serial
    made.scores(KEY, 0.2, 0.3)
    made.settle()
    assert pinned(made) == (30,)


def test_a_step_that_was_never_saved_is_told_asked_for_ever_more_rarely_and_keeps_nobody_waiting() -> None:
    made = world(0.1, 0.2)
    name_pins(made, 15, 20)
    for _ in range(4):
        made.step(KEY, seconds=0.0)
    asked, at = [], made.now
    while made.now < at + 7200.0:
        planned = made.step(KEY, seconds=1.0)
        asked += [made.now for a in planned.actions if isinstance(a, StartAccess) and a.step == 15]
    assert pinned(made) == (20,)
    assert told(made).reason == "CheckpointMissing"
    assert "step 15" in told(made).message
    cure = cure_of(key_of(told(made).reason, told(made).message))
    filled = cure.filled("run", "team", "a100", "", told(made).message)
    assert filled.command == "evalstop pin run -n team --remove 15", (
        "rotation and maxStepLag cure nothing here"
    )
    assert "maxStepLag" not in told(made).message
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert max(gaps) == pytest.approx(600.0, abs=5.0)
    assert gaps == sorted(gaps)
    made.scores(KEY, 0.3)  # a new best goes first, whatever the pin waits for
    for _ in range(4):
        made.step(KEY, seconds=0.0)
    assert made.jobs[KEY].record.secured.step == 30


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_a_pin_is_its_users_wish_and_is_carried_out_in_every_mode(mode: Mode) -> None:
    made = world(0.1, mode=mode)
    name_pins(made, 10)
    made.settle()
    assert pinned(made) == (10,)


def test_pins_outlive_a_stop_and_a_run_can_go_on_from_one() -> None:
    made = world(0.1, 0.3, 0.5)
    name_pins(made, 10)
    made.settle()
    made.scores(KEY, 0.4, 0.35, 0.3)
    rotate(made)
    made.settle()
    job = made.jobs[KEY]
    assert job.record.decision is not None
    assert job.pins >= {10}
    name_pins(made, 10, 60)
    job.checkpoints.add(60)
    made.settle()
    assert pinned(made) == (10, 60), "a stopped run's checkpoints can be pinned too"
    wish = ResumeRequest("again", ResumeFrom.STEP, 10)
    job.wish(resume=wish, run_state=RunState.RUN)
    made.settle()
    assert job.record.run.resume_step == 10


def test_pins_of_a_stopped_run_whose_workload_was_deleted_are_told() -> None:
    made = world(0.1, 0.2)
    job = made.jobs[KEY]
    job.wish(run_state=RunState.STOPPED)
    made.settle()
    assert job.record.decision.pods_gone_at is not None
    job.observed = replace(job.observed, workload=None)
    name_pins(made, 10)
    made.step(KEY)
    assert (told(made).status, told(made).reason) == (False, "WorkloadGone")
    assert told(made).message.startswith("step 10: cannot be pinned, for the run is off")


def test_pins_of_a_run_that_has_ended() -> None:
    made = world(0.1, 0.2)
    made.finish(KEY)
    made.settle()
    name_pins(made, 10)
    made.settle()
    assert pinned(made) == (10,)


@given(
    wishes=st.lists(st.sets(st.sampled_from((10, 20, 30, 40)), max_size=3), min_size=1, max_size=6),
    acts=st.lists(st.sampled_from((0, None)), min_size=6, max_size=6),
)
def test_whatever_is_wished_and_whenever_the_operator_dies(
    wishes: list[set[int]], acts: list[int | None]
) -> None:
    """In the end exactly what is named is recorded as pinned, and what is recorded is there."""
    made = world(0.1, 0.2, 0.3, 0.4)
    job = made.jobs[KEY]
    for wish, survive in zip(wishes, acts, strict=False):
        name_pins(made, *sorted(wish))
        made.step(KEY, acts=survive)
        assert {kept.step for kept in job.record.pinned} <= job.pins
        made.step(KEY)
        assert {kept.step for kept in job.record.pinned} <= job.pins
    made.settle()
    assert set(pinned(made)) == wishes[len(list(zip(wishes, acts, strict=False))) - 1] <= job.pins
    made.scores(KEY, 0.5)
    made.settle()
    made.scores(KEY, 0.6)  # what nothing wants any more rides on the next request
    made.settle()
    assert job.pins == set(pinned(made)) | {50, 60}
    assert job.record.to_release == ("/pins/50",)
    assert all(a.operation is not Operation.PIN for a in job.observed.access)


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW])
def test_a_best_that_is_no_longer_to_be_secured_keeps_no_pin_waiting(mode: Mode) -> None:
    """Its access Job failed and is to be tried again when the mode changes: it is asked for no more."""
    made = world()
    job = made.jobs[KEY]
    made.slow, made.failing = frozenset({Operation.SECURE}), "StoreUnreachable"
    made.scores(KEY, 0.1, 0.3)
    made.step(KEY)
    made.step(KEY, acts=0)
    assert job.record.access is not None
    assert job.record.access.operation is Operation.SECURE
    job.wish(mode=mode)
    name_pins(made, 10)
    for _ in range(4):
        made.step(KEY)
    assert job.record.access is None
    assert pinned(made) == (10,)
