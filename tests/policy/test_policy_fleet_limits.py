"""The pool's own questions before it releases anybody: a budget of stops, a breaker for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.codec import decode, encode
from controller.policy.fleet.ebh import DAY
from controller.policy.fleet.limits import HOUR, limit_stops
from controller.policy.job import conditions
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Desired
from controller.policy.pool import job_outcomes
from controller.policy.pool.plan import plan_pool
from controller.policy.types import (
    HeldBack,
    JobState,
    JobView,
    NodeView,
    PastStop,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    StopCount,
    StopLimits,
)

NOW = 100_000.0

ASKS = Proposal(10, 5, "Fell", 3.0, 2.0)


def running(number: int, *, asks: bool, priority: int = 0) -> JobView:
    return JobView(
        f"ns/j{number}",
        submitted=float(number),
        sequence=number,
        replicas=1,
        gpus_per_replica=1,
        priority=priority,
        state=JobState.ADMITTED,
        bound=(("n0", 1),),
        proposal=ASKS if asks else None,
    )


def fleet(limits: StopLimits, stopped: Sequence[float] = ()) -> PoolSnapshot:
    return PoolSnapshot("p", PolicySpec("fifo"), (), (), limits=limits, stopped=past(*stopped))


def past(*times: float) -> tuple[PastStop, ...]:
    return tuple(PastStop(at, None, "ns/gone") for at in times)


def jobs(asking: int, quiet: int) -> list[JobView]:
    return [running(i, asks=i < asking) for i in range(asking + quiet)]


@pytest.mark.parametrize(
    ("asking", "quiet", "limits", "stopped", "granted", "reason", "wake"),
    [
        (0, 3, StopLimits(0, 1), [], 0, None, None),
        (3, 0, StopLimits(), [], 3, None, None),  # no limit
        (3, 5, StopLimits(per_hour=5), [NOW - 10], 3, None, NOW - 10 + HOUR),
        (3, 5, StopLimits(per_hour=2), [], 2, "StopBudgetSpent", None),
        (3, 5, StopLimits(per_hour=2), [NOW - 10, NOW - 600], 0, "StopBudgetSpent", NOW - 600 + HOUR),
        (3, 5, StopLimits(per_hour=2), [NOW - HOUR, NOW - 10], 1, "StopBudgetSpent", NOW - 10 + HOUR),
        (3, 5, StopLimits(per_hour=0), [], 0, "StopBudgetSpent", None),
        (2, 0, StopLimits(breaker_percent=50), [], 2, None, None),  # two are no crowd
        (3, 3, StopLimits(breaker_percent=50), [], 0, "ManyAtOnce", None),
        (3, 4, StopLimits(breaker_percent=50), [], 3, None, None),
        # in drops; it closes when the older of the two stops is an hour old
        (1, 1, StopLimits(breaker_percent=60), [NOW - 10, NOW - 20], 0, "ManyAtOnce", NOW - 20 + HOUR),
        (1, 1, StopLimits(breaker_percent=60), [NOW - HOUR, NOW - 20], 1, None, NOW - 20 + HOUR),
        (3, 3, StopLimits(1, 50), [], 0, "ManyAtOnce", None),  # the breaker comes first
    ],
)
def test_sift(asking, quiet, limits, stopped, granted, reason, wake) -> None:
    found = limit_stops(jobs(asking, quiet), fleet(limits, stopped), NOW)
    assert [j.key for j in found.grant] == [f"ns/j{i}" for i in range(granted)]
    assert {h.reason for h in found.held} == ({reason} if reason else set())
    assert len(found.grant) + len(found.held) == asking
    assert found.wake_at == wake


def test_the_budget_goes_in_the_queues_order() -> None:
    found = limit_stops([running(0, asks=True), running(1, asks=True, priority=5)], fleet(StopLimits(1)), NOW)
    assert [j.key for j in found.grant] == ["ns/j1"]


@given(
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 4), st.lists(st.floats(NOW - 9000, NOW), max_size=6)
)
def test_the_budget_holds_over_any_hour(asking: int, quiet: int, per_hour: int, stopped: list[float]) -> None:
    found = limit_stops(jobs(asking, quiet), fleet(StopLimits(per_hour), stopped), NOW)
    recent = sum(1 for at in stopped if at > NOW - HOUR)
    assert len(found.grant) + min(recent, per_hour) <= max(per_hour, 0)


def snapshot(limits: StopLimits, stopped: Sequence[float] = ()) -> PoolSnapshot:
    nodes = (NodeView("n0", 8),)
    return replace(fleet(limits, stopped), nodes=nodes, jobs=tuple(jobs(3, 1)))


def test_the_pools_plan_releases_only_what_is_let_through() -> None:
    free = plan_pool(snapshot(StopLimits()), NOW)
    assert [g.key for g in free.grants] == ["ns/j0", "ns/j1", "ns/j2"]
    assert free.held_back == ()
    crowd = plan_pool(snapshot(StopLimits(breaker_percent=70)), NOW)
    assert crowd.grants == ()
    assert [h.key for h in crowd.held_back] == ["ns/j0", "ns/j1", "ns/j2"]
    spent = plan_pool(snapshot(StopLimits(per_hour=2), (NOW - 100,)), NOW)
    assert [g.key for g in spent.grants] == ["ns/j0"]
    assert spent.wake_at == NOW - 100 + HOUR
    assert "1 stops in the last hour, 1 more are allowed; 3 jobs ask" in spent.held_back[0].message


def test_the_snapshot_goes_through_the_decision_log() -> None:
    one = snapshot(StopLimits(3, 50), (1.0, 2.0))
    assert decode(PoolSnapshot, encode(one)) == one


def test_the_job_says_why_it_was_held_back_once() -> None:
    desired = Desired("ns/j0", "u", 1, "m", 1, 1, PolicySpec("scan"))
    why = HeldBack("ns/j0", "ManyAtOnce", "3 of 4 jobs")
    record = job_outcomes.held_back(JobRecord(), desired, why, NOW)
    said = record.condition(conditions.TERMINATION)
    assert said is not None
    assert (said.status, said.reason) == (False, "ManyAtOnce")
    assert said.message == "to be stopped, but held back by the pool: 3 of 4 jobs"
    again = HeldBack("ns/j0", "ManyAtOnce", "4 of 5 jobs")
    assert job_outcomes.held_back(record, desired, again, NOW + 1) is record


def test_the_breaker_says_since_when_it_is_open_and_closes_by_itself() -> None:
    limits = StopLimits(breaker_percent=50)
    opened = limit_stops(jobs(3, 3), fleet(limits), NOW).stops
    assert (opened.breaker_since, opened.held, opened.reason) == (NOW, 3, "ManyAtOnce")
    assert "3 of 6 jobs" in opened.message
    still = limit_stops(jobs(3, 3), replace(fleet(limits), breaker_since=NOW - 99), NOW).stops
    assert still.breaker_since == NOW - 99
    calm = limit_stops(jobs(2, 3), replace(fleet(limits), breaker_since=NOW - 99), NOW)
    assert (calm.stops.breaker_since, len(calm.grant)) == (None, 2)
    # Stops that were granted keep it open though nobody asks any more, until they are an hour old.
    drops = fleet(limits, [NOW - 30, NOW - 20, NOW - 10])
    found = limit_stops(jobs(0, 3), drops, NOW).stops
    assert found == StopCount(3, 3, NOW, 0, "ManyAtOnce", found.message)
    assert limit_stops(jobs(0, 3), drops, NOW + HOUR).stops.breaker_since is None


def test_who_asks_only_if_others_wait_takes_nobodys_turn_and_opens_no_breaker() -> None:
    patient = [replace(j, proposal=replace(ASKS, when_contended=True)) for j in jobs(3, 0)]
    urgent = running(9, asks=True)
    found = limit_stops([*patient, urgent], fleet(StopLimits(per_hour=1)), NOW)
    assert [j.key for j in found.grant] == ["ns/j9"]
    calm = limit_stops([*patient, urgent], fleet(StopLimits(breaker_percent=50)), NOW)
    assert (len(calm.grant), calm.stops.breaker_since) == (4, None)
    urgent_ones = [running(20 + i, asks=True) for i in range(3)]
    crowd = limit_stops([*patient, *urgent_ones], fleet(StopLimits(breaker_percent=50)), NOW)
    assert (len(crowd.held), crowd.grant) == (6, ())


def test_the_counts_are_of_the_hour_and_of_the_day() -> None:
    day = NOW - NOW % DAY
    found = limit_stops(jobs(0, 1), fleet(StopLimits(), [day - 1.0, day, NOW - HOUR, NOW - 1.0]), NOW).stops
    assert (found.last_hour, found.today, found.held) == (1, 3, 0)
