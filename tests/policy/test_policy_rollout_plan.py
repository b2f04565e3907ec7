"""A step's plan: which reason, which numbers, and what happens where nothing can be planned."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from rollout_world import FORECAST, LAW, settings

from controller.policy import decision_log
from controller.policy.params import ParamError
from controller.policy.rollout import (
    ActorLaw,
    Dispatch,
    Forecast,
    Reason,
    RolloutSettings,
    StepQuestion,
    Supply,
    Trust,
    plan_rollout,
    planned,
)


def test_a_plan_names_its_point_and_the_fastest() -> None:
    plan = plan_rollout(FORECAST, LAW, settings(), Supply())
    assert plan.reason is Reason.PLANNED
    chosen = next(p for p in plan.curve if (p.actors, p.dispatch) == (plan.actors, plan.dispatch))
    assert (plan.seconds, plan.gpu_seconds) == (chosen.seconds, chosen.gpu_seconds)
    fastest = min(p.seconds for p in plan.curve)
    assert chosen.seconds <= 1.1 * fastest
    assert all(p.gpu_seconds >= chosen.gpu_seconds for p in plan.curve if p.seconds <= 1.1 * fastest)
    assert f"{plan.seconds:.1f} s" in plan.message
    assert f"{fastest:.1f} s" in plan.message
    assert len(plan.release) == plan.actors


def test_the_same_question_has_the_same_answer() -> None:
    assert plan_rollout(FORECAST, LAW, settings(), Supply()) == plan_rollout(
        FORECAST, LAW, settings(), Supply()
    )


def test_the_step_befores_count_is_kept_and_that_is_said() -> None:
    free = plan_rollout(FORECAST, LAW, settings(within=0.5), Supply())
    other = next(p for p in free.curve if p.seconds <= 1.5 * min(q.seconds for q in free.curve)
                 and (p.actors, p.dispatch) != (free.actors, free.dispatch))  # fmt: skip
    plan = plan_rollout(
        FORECAST, LAW, settings(within=0.5, least_gain=0.99), Supply(), before=(other.actors, other.dispatch)
    )
    assert (plan.actors, plan.dispatch, plan.reason) == (other.actors, other.dispatch, Reason.KEPT_COUNT)
    assert "of the step before" in plan.message


@pytest.mark.parametrize("forecast", [None, Forecast((), 4, 0.1, 2048)])
def test_without_lengths_there_is_one_queue_at_static(forecast: Forecast | None) -> None:
    plan = plan_rollout(forecast, LAW, settings(), Supply())
    assert (plan.actors, plan.dispatch, plan.reason) == (3, Dispatch.LONGEST_FIRST, Reason.NO_FORECAST)
    assert plan.seconds is None
    assert len(plan.release) == 3


@pytest.mark.parametrize(
    ("trust", "reason", "words"),
    [
        (
            Trust(0.1, 0.05, ranks_poor=True),
            Reason.PREDICTIONS_POOR,
            "correlation 0.10: once below 0.25, 0.35 is needed",
        ),
        (Trust(0.9, 0.41, times_poor=True), Reason.TIMES_POOR, "by 0.41 .* once above 0.3, at most 0.2 "),
    ],
)
def test_poor_predictions_fall_back_and_say_so(trust: Trust, reason: Reason, words: str) -> None:
    plan = plan_rollout(FORECAST, LAW, settings(dispatch="Ranked"), Supply(), trust=trust)
    assert (plan.actors, plan.dispatch, plan.reason) == (3, Dispatch.LONGEST_FIRST, reason)
    assert plan.seconds is not None, "it is planned still, so that the error can be told from now on"
    assert re.search(words, plan.message)


@pytest.mark.parametrize("trust", [Trust(), Trust(0.9, 0.41, times_poor=True)])
@pytest.mark.parametrize("forecast", [None, FORECAST])
def test_who_has_chosen_equal_groups_has_them_whatever_is_predicted(
    trust: Trust, forecast: Forecast | None
) -> None:
    one = settings(min=3, max=3, static=3, dispatch="Even")
    assert plan_rollout(forecast, LAW, one, Supply(), trust=trust).dispatch is Dispatch.EVEN


def test_static_is_cut_to_what_there_is_room_for() -> None:
    assert plan_rollout(None, LAW, settings(), Supply(most=2)).actors == 2
    assert plan_rollout(None, LAW, settings(min=2), Supply(most=0)).actors == 2


def test_idle_actors_are_kept_where_starts_are_slow() -> None:
    quick = plan_rollout(FORECAST, LAW, settings(), Supply(start=2.0, lead=20.0, between=20.0))
    slow = plan_rollout(FORECAST, LAW, settings(), Supply(held=8, start=120.0, between=20.0))
    assert all(quick.release)
    assert not any(slow.release)
    assert "released: idle for" in quick.message
    assert "kept: idle for" in slow.message


def test_counts_that_come_too_late_are_named() -> None:
    plan = plan_rollout(FORECAST, LAW, settings(dispatch="LongestFirst"), Supply(held=2, start=1000.0))
    assert plan.too_late == (3, 4, 5, 6, 7, 8)
    assert "counts from 3 would start actors that get nothing to do" in plan.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"min": 4, "static": 4, "max": 3}, "rollout.min"),
        ({"static": 9}, "rollout.static"),
        ({"min": 4}, "rollout.static"),
        ({"min": 0}, "rollout.min"),
        ({"max": 65}, "rollout.max"),
        ({"dispatch": "Random"}, "rollout.dispatch"),
        ({"objective": "fastest"}, "rollout.objective"),
        ({"when_idle": "Sleep"}, "rollout.when_idle"),
        ({"within": -0.1}, "rollout.within"),
        ({"within": math.nan}, "rollout.within"),
        ({"cut": 0.0}, "rollout.cut"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ParamError, match=field):
        settings(**changes)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ActorLaw(iteration=math.nan), "law.iteration"),
        (lambda: ActorLaw(iteration=-1.0), "law.iteration"),
        (lambda: ActorLaw(iteration=0.0, sequence=0.0), "law.iteration"),
        (lambda: ActorLaw(slots=0), "law.slots"),
        (lambda: Supply(start=math.inf), "supply.start"),
        (lambda: Supply(between=-1.0), "supply.between"),
        (lambda: Supply(held=-1), "supply.held"),
        (lambda: Supply(most=-1), "supply.most"),
    ],
)
def test_laws_and_supplies_that_cannot_be_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ParamError, match=field):
        make()


def test_defaults_are_a_valid_job() -> None:
    assert RolloutSettings().static == 3


@pytest.mark.parametrize("before", [None, (3, Dispatch.LONGEST_FIRST)])
@pytest.mark.parametrize("trust", [None, Trust(0.9, 0.41, times_poor=True)])
@pytest.mark.parametrize("forecast", [None, FORECAST])
def test_a_steps_plan_replays_from_the_decision_log(
    forecast: Forecast | None, trust: Trust | None, before: tuple[int, Dispatch] | None
) -> None:
    asked = StepQuestion("team/run", 7, forecast, LAW, settings(), Supply(held=1, start=3.0), trust, before)
    line = decision_log.step_line(asked, 12.5, planned(asked))
    (found,) = decision_log.replay([line])
    assert (found.kind, found.subject, found.now, found.same) == ("step", "team/run step 7", 12.5, True)
    (other,) = decision_log.replay([line.replace('"actors":', '"actors":9', 1)])
    assert not other.same


def test_a_steps_line_is_bounded_by_its_histogram() -> None:
    bins = tuple((1234.56789012345 - i / 7.0, 4) for i in range(256))
    asked = StepQuestion(
        "n" * 63 + "/" + "m" * 253, 10**12, Forecast(bins, 4, 0.123456789012345, 32768), LAW,
        settings(max=64), Supply(held=1, start=3.0, most=64),
    )  # fmt: skip
    assert len(decision_log.step_line(asked, 1.7e9 + 0.123456, planned(asked))) < 16_384
