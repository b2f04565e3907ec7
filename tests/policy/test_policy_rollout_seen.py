"""The last steps of a job's rollouts in its record, and the marks that they and its actors make."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.actor_types import Actor, ActorState, RolloutTerms
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import AdmissionRecord, JobRecord
from controller.policy.job.rollout_actors import noted
from controller.policy.job.rollout_health import READY_AFTER, UNPLANNED_AFTER, troubles
from controller.policy.job.rollout_history import with_step
from controller.policy.job.rollout_record import STEPS_KEPT, RolloutRecord, StepMeasured, StepPlan, StepRow
from controller.policy.job.types import Observed, Plan, RolloutView

T = 1_000_000.0
PLAN = StepPlan(5, 3, "LongestFirst", "Planned", "why", 12.0, 36.0)
MEASURED = StepMeasured(5, 13.0, 22.0, 9000, 4, 40.0, moved=2, failed=1)


def row(step: int, at: float = T, **more) -> StepRow:
    return StepRow(step, at, 10.0, planned_actors=3, dispatch="LongestFirst", **{"reason": "Planned", **more})


def test_a_row_has_the_plan_beside_what_the_step_took() -> None:
    (found,) = with_step((), PLAN, MEASURED, T, 4.5)
    assert found == StepRow(
        5, T, 13.0, 12.0, 22.0, 4, 3, 40.0, 36.0, 2, 1, 4.5, "LongestFirst", "Planned"
    )  # fmt: skip


@pytest.mark.parametrize("plan", [None, replace(PLAN, step=6)])
def test_another_steps_plan_is_not_this_ones(plan: StepPlan | None) -> None:
    (found,) = with_step((), plan, MEASURED, T, None)
    assert (found.planned_seconds, found.planned_actors, found.reason) == (None, None, "")
    assert (found.seconds, found.actors, found.moved) == (13.0, 4, 2)


@given(st.lists(st.integers(0, 40), max_size=40))
def test_rows_are_bounded_and_rise_whatever_the_trainer_does(steps: list[int]) -> None:
    """After a resume a trainer goes back: later steps of the attempt before are no part of this history."""
    rows: tuple[StepRow, ...] = ()
    for step in steps:
        rows = with_step(rows, None, replace(MEASURED, step=step), T, None)
        assert rows[-1].step == step
    numbers = [one.step for one in rows]
    assert numbers == sorted(set(numbers))
    assert len(rows) <= STEPS_KEPT


RUNS = JobRecord(attempt=1, admission=AdmissionRecord(1, ("n1",), T - 5.0, None, T))


def starting(since: float = T, number: int = 0) -> Actor:
    return Actor(number, "n1", 1, ActorState.STARTING, since)


def account(*rows: StepRow) -> RolloutRecord:
    return RolloutRecord(PLAN, recent=rows)


@pytest.mark.parametrize(
    ("record", "reason", "since", "wait"),
    [
        (replace(RUNS, actors=(starting(),)), "ActorNotReady", T, READY_AFTER),
        (
            replace(RUNS, actors=(starting(T + 1.0), starting(T, 1)), rollout=account(row(1, T + 50.0))),
            "ActorNotReady",
            T,
            READY_AFTER,
        ),
        (
            replace(RUNS, actors=(starting(),), rollout=account(row(1, T + 9.0), row(2, T + 20.0))),
            "ActorNotReady",
            T,
            READY_AFTER,
        ),
        (
            replace(RUNS, actors=(replace(starting(), state=ActorState.RUNNING),)),
            "StepsUnplanned",
            T,
            UNPLANNED_AFTER,
        ),
        (
            replace(RUNS, rollout=account(row(1), *(row(n, T + n, reason="NoForecast") for n in (2, 3, 4)))),
            "StepsUnplanned",
            T + 2.0,
            UNPLANNED_AFTER,
        ),
        (
            replace(RUNS, rollout=account(*(row(n, T + n, failed=1) for n in (1, 2, 3)))),
            "ActorsFail",
            T + 1.0,
            0.0,
        ),
    ],
)
def test_what_is_amiss_and_when_it_is_a_warning(
    record: JobRecord, reason: str, since: float, wait: float
) -> None:
    (found,) = health(record, T)
    assert (found.mark, found.reason, found.since) == (Mark.STARVED, reason, since)
    assert found.due == since + wait
    assert found.cure().command


@pytest.mark.parametrize(
    "record",
    [
        RUNS,
        replace(RUNS, rollout=account(row(1), row(2), row(3))),
        # One starts with the newest step: so actors do.
        replace(RUNS, actors=(starting(T + 15.0),), rollout=account(row(1, T + 9.0), row(2, T + 20.0))),
        # Predictions are poor at first, and one step may lose an actor with its node.
        replace(RUNS, rollout=account(*(row(n, reason="PredictionsPoor") for n in (1, 2, 3)))),
        replace(RUNS, rollout=account(row(1, failed=1), row(2, failed=2))),
        replace(RUNS, rollout=account(*(row(n, failed=1) for n in (1, 2, 3)), row(4))),
    ],
)
def test_nothing_is_amiss(record: JobRecord) -> None:
    assert list(troubles(record)) == []


def test_a_job_without_gpus_has_no_such_trouble() -> None:
    waits = replace(RUNS, admission=None, actors=(starting(),))
    assert health(waits, T + 1e6) == ()


def test_a_step_that_ended_has_its_own_plan_and_what_was_lent_since_the_one_before() -> None:
    """The next step is announced as soon as one has ended: in that pass its plan stands there already."""
    known = RolloutRecord(PLAN, lent=10.0, lent_until=T, lent_seen=4.0)
    before = replace(RUNS, rollout=known)
    made = Plan(replace(before, rollout=replace(known, plan=replace(PLAN, step=6, actors=9))))
    view = RolloutView(ended=replace(MEASURED, at=T + 10.0))
    seen = noted(made, Observed(rollout=view), before, RolloutTerms(base=2, gpus=3))
    account = seen.record.rollout
    assert account is not None
    (found,) = account.recent
    assert (found.step, found.planned_actors, found.at) == (5, 3, T + 10.0)
    assert found.lent == pytest.approx(10.0 + 2 * 3 * 10.0 - 4.0)
    assert account.lent_seen == pytest.approx(70.0)
    assert account.lent_until == T, "the account itself goes on with the next entries"
    again = noted(seen, Observed(rollout=view), seen.record, RolloutTerms(base=2, gpus=3))
    assert again.record == seen.record, "a step is told once"
