"""The curve: counts and dispatches, starts, what is kept and what is released, who would come too late."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_world import FORECAST, LAW, settings

from controller.policy.rollout import Dispatch, Forecast, Supply, bound_times, ready_times, rollout_curve

FREE = Supply()


def points(supply: Supply = FREE, **changes: Any) -> dict[int, float]:
    found, _ = rollout_curve(FORECAST, LAW, settings(**{"dispatch": "LongestFirst"} | changes), supply)
    return {point.actors: point.gpu_seconds for point in found}


def test_every_count_and_dispatch_has_a_point() -> None:
    found, late = rollout_curve(FORECAST, LAW, settings(max=4), Supply())
    wanted = {(n, d) for n in range(1, 5) for d in Dispatch if d is not Dispatch.AUTO}
    assert {(p.actors, p.dispatch) for p in found} == wanted
    assert late == []


def test_a_dispatch_that_is_asked_for_is_the_only_one() -> None:
    found, _ = rollout_curve(FORECAST, LAW, settings(dispatch="Even"), Supply())
    assert {p.dispatch for p in found} == {Dispatch.EVEN}


def test_gpu_seconds_count_every_gpu_of_an_actor() -> None:
    one, four = points(), points(gpus_per_actor=4)
    assert four == pytest.approx({count: 4 * cost for count, cost in one.items()})


def test_starts_are_held_and_those_that_are_held_already_cost_none() -> None:
    free, slow = points(when_idle="Release"), points(Supply(start=5.0, lead=5.0), when_idle="Release")
    held = points(Supply(held=2, start=5.0, lead=5.0), when_idle="Release")
    for count in free:
        assert slow[count] == pytest.approx(free[count] + 5.0 * count)
        assert held[count] == pytest.approx(free[count] + 5.0 * max(0, count - 2))


def test_kept_actors_cost_until_the_next_begin() -> None:
    found, _ = rollout_curve(
        FORECAST, LAW, settings(when_idle="Keep", dispatch="LongestFirst"), Supply(between=20.0)
    )
    for point in found:
        assert point.gpu_seconds == pytest.approx(point.actors * (point.seconds + 20.0))


def test_times_of_actors_that_are_started_ahead() -> None:
    supply = Supply(held=1, start=10.0, lead=4.0)
    assert ready_times(supply, 3) == [0.0, 6.0, 6.0]
    assert bound_times(supply, 3) == [0.0, -4.0, -4.0]
    ahead = Supply(held=0, start=3.0, lead=60.0)  # as late as they may
    assert (ready_times(ahead, 1), bound_times(ahead, 1)) == ([0.0], [-3.0])


def test_no_actor_is_planned_that_would_be_ready_too_late() -> None:
    supply = Supply(held=2, start=1000.0)
    found, late = rollout_curve(FORECAST, LAW, settings(dispatch="LongestFirst"), supply)
    assert {point.actors for point in found} == {1, 2}
    assert late == [3, 4, 5, 6, 7, 8]


def test_no_more_actors_than_there_is_room_for_and_never_fewer_than_min() -> None:
    assert set(points(Supply(most=3))) == {1, 2, 3}
    assert set(points(Supply(most=0), min=2, static=3)) == {2}


def test_without_prompts_there_is_no_curve() -> None:
    assert rollout_curve(Forecast((), 4, 0.1, 2048), LAW, settings(), Supply()) == ([], [])


@pytest.mark.parametrize(("when", "more"), [("Release", 2.0), ("Keep", 0.0)])
def test_who_leaves_holds_its_gpus_until_they_are_somebody_elses(when: str, more: float) -> None:
    def cost(recall: float) -> dict[int, float]:
        supply = Supply(start=3.0, lead=3.0, recall=recall, between=20.0)
        points, _ = rollout_curve(FORECAST, LAW, settings(when_idle=when, dispatch="LongestFirst"), supply)
        return {point.actors: point.gpu_seconds for point in points}

    before, after = cost(0.0), cost(2.0)
    gpus = settings().gpus_per_actor
    assert {n: after[n] - before[n] for n in before} == pytest.approx({n: more * n * gpus for n in before})
