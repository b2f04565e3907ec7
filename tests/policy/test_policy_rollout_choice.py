"""What is chosen: the objective, hysteresis, and whether idle actors are kept."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_world import settings

from controller.policy.rollout import (
    CurvePoint,
    Dispatch,
    Supply,
    WhenIdle,
    best_point,
    hysteresis,
    idle,
    releases,
)

LF, EVEN, RANKED = Dispatch.LONGEST_FIRST, Dispatch.EVEN, Dispatch.RANKED


def point(actors: int, seconds: float, cost: float, dispatch: Dispatch = LF) -> CurvePoint:
    return CurvePoint(actors, dispatch, seconds, cost)


CURVE = [point(1, 60.0, 60.0), point(2, 31.0, 62.0), point(3, 22.0, 66.0), point(4, 20.0, 80.0)]


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, 3),  # 22 is within 10 % of 20, and cheaper
        ({"within": 0.0}, 4),
        ({"within": 0.6}, 2),
        ({"within": 10.0}, 1),
        ({"objective": "weighted", "time_weight": 1.0}, 4),
        ({"objective": "weighted", "time_weight": 0.0}, 1),
        ({"objective": "weighted", "time_weight": 0.7}, 3),
    ],
)
def test_the_objective_chooses(changes: dict[str, Any], chosen: int) -> None:
    assert best_point(CURVE, settings(**changes)).actors == chosen


def test_ties_go_to_fewer_actors_then_to_one_queue() -> None:
    same = [
        point(3, 9.0, 9.0, EVEN),
        point(2, 9.0, 9.0, EVEN),
        point(2, 9.0, 9.0, RANKED),
        point(2, 9.0, 9.0),
    ]
    assert best_point(same, settings()) is same[3]


def test_the_weighted_sum_hangs_on_the_ends_of_the_curve() -> None:
    longer = [*CURVE, point(5, 19.9, 200.0)]
    weighted = settings(objective="weighted", time_weight=0.8)
    assert best_point(CURVE, weighted).actors == 3
    assert best_point(longer, weighted).actors == 4


@pytest.mark.parametrize(
    ("before", "changes", "kept"),
    [
        (None, {}, None),
        ((3, LF), {}, None),  # it is the best
        ((4, LF), {}, None),  # 66 against 80 is a gain
        ((4, LF), {"least_gain": 0.2}, 4),
        ((2, LF), {"least_gain": 0.5}, None),  # too slow, whatever it would gain
        ((4, EVEN), {"least_gain": 0.5}, None),  # that dispatch is not on the curve
        ((2, LF), {"objective": "weighted", "least_gain": 0.3}, 2),
        ((2, LF), {"objective": "weighted", "least_gain": 0.01}, None),
    ],
)
def test_hysteresis(before: tuple[int, Dispatch] | None, changes: dict[str, Any], kept: int | None) -> None:
    chosen = settings(**changes)
    found = hysteresis.keep(best_point(CURVE, chosen), before, CURVE, chosen)
    assert (None if found is None else found.actors) == kept


@pytest.mark.parametrize(
    ("when", "seconds", "start", "recall", "gone"),
    [
        (WhenIdle.AUTO, 12.0, 10.0, 1.0, True),
        (WhenIdle.AUTO, 11.0, 10.0, 1.0, False),
        (WhenIdle.AUTO, 59.0, 60.0, 0.0, False),
        (WhenIdle.AUTO, 0.0, 0.0, 0.0, False),
        (WhenIdle.KEEP, 1e5, 0.0, 0.0, False),
        (WhenIdle.RELEASE, 0.0, 60.0, 10.0, True),
    ],
)
def test_idle_actors_are_kept_or_released(
    when: WhenIdle, seconds: float, start: float, recall: float, gone: bool
) -> None:
    supply = Supply(start=start, recall=recall)
    assert releases(when, seconds, supply) is gone
    words = idle.explain(when, seconds, supply)
    assert (when.value in words) if when is not WhenIdle.AUTO else (f"{seconds:.1f} s" in words)
