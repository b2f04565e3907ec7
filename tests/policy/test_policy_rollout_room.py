"""Room for actors, when they are asked for, and the largest step that is planned."""

from __future__ import annotations

import pytest

from controller.policy.params import ParamError
from controller.policy.rollout import (
    CHANGING_HANDS,
    Forecast,
    actor_room,
    actors_due,
    check_size,
    lasting_room,
    lead_seconds,
)


@pytest.mark.parametrize(
    ("at_hand", "base", "spare", "gpus", "room"),
    [
        (3, 2, 0, 1, 3),
        (1, 2, 0, 1, 2),  # base actors are its own, lent or not
        (1, 2, 5, 2, 3),  # five GPUs of others are two actors of two
        (0, 0, 1, 2, 0),
    ],
)
def test_spare_actors_of_others_are_room(at_hand: int, base: int, spare: int, gpus: int, room: int) -> None:
    assert actor_room(at_hand, base, spare, gpus) == room


def test_gpus_that_change_hands_are_room_for_a_moment() -> None:
    rooms = lasting_room((), 0.0, 6)
    rooms = lasting_room(rooms, 1.0, 2)
    assert rooms[0][1] == 6, "four of them are in nobody's account"
    rooms = lasting_room(rooms, 2.0, 3)
    assert [room for _, room in rooms] == [6, 3]
    rooms = lasting_room(rooms, CHANGING_HANDS, 3)
    assert [room for _, room in rooms] == [3]
    assert lasting_room(rooms, CHANGING_HANDS, 8) == ((CHANGING_HANDS, 8),)


def test_lent_base_actors_are_asked_for_a_recall_sooner() -> None:
    ways = (12.0, 14.0, 13.0)
    start, recall = 10.0, 6.0
    lead = lead_seconds(start, ways)
    cases = ((2, 4, False), (2, 2, False), (2, 1, True), (2, None, False))
    for base, at_hand, lent in cases:
        due = actors_due(start, recall, ways, base, at_hand)
        assert (due.seconds, due.lent) == (lead + (recall if lent else 0.0), lent)


def test_a_step_that_would_take_a_planner_seconds_is_refused_by_name() -> None:
    most = Forecast(((100.0, 4096),), 4, 0.0, 512)
    check_size(most, 1)
    check_size(Forecast(((100.0, 4096 * 8),), 4, 0.0, 512), 8)
    with pytest.raises(ParamError, match=r"forecast\.bins: 4097 .*at most 4096 prompts.*1 slots"):
        check_size(Forecast(((100.0, 4097),), 4, 0.0, 512), 1)
    with pytest.raises(ValueError, match="262144"):
        Forecast(((100.0, 10**9),), 4, 0.0, 512)
