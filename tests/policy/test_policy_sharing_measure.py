"""Profiles and slow-downs by what groups report."""

from __future__ import annotations

import pytest

from controller.policy.group_types import STAYS
from controller.policy.sharing import (
    LOOK_AGAIN,
    Look,
    Pace,
    Paces,
    ReportedTurn,
    TurnsOf,
    due,
    look,
    measured,
    outdated,
)


def turns(steps: int, per_step: int = 1, away: int = 90, held: int = 10) -> list[ReportedTurn]:
    return [ReportedTurn(away, held, step, 0) for step in range(steps) for _ in range(per_step)]


def test_five_whole_steps_are_enough_if_they_are_alike() -> None:
    assert measured("k", turns(6)) is None, "the first and the newest step do not count"
    found = measured("k", turns(7), loads=[3] * 30)
    assert found is not None
    assert (found.steps, found.duty, found.per_step, len(found.loads)) == (5, 0.1, 1, 20)


def test_the_load_that_starts_the_worker_is_no_switch() -> None:
    found = measured("k", turns(7), loads=[900, 3, 4])
    assert found is not None
    assert found.loads == (3, 4)


def test_steps_that_vary_are_measured_twenty_times() -> None:
    wild = [ReportedTurn(90, 10 if step % 2 else 60, step, 0) for step in range(21)]
    assert measured("k", wild) is None
    found = measured("k", [*wild, ReportedTurn(90, 10, 21, 0)])
    assert found is not None
    assert found.steps == 20


def test_turns_of_one_step_belong_together_and_odd_steps_are_left_out() -> None:
    found = measured("k", [*turns(4, 2), ReportedTurn(1, 1, 99, 0), *turns(5, 2)])
    assert found is not None
    assert (found.per_step, found.steps) == (2, 7)
    untold = measured("k", [ReportedTurn(90, 10, -1, 0)] * 7)
    assert untold is not None
    assert untold.per_step == 1


def pace(*waits: int) -> Pace:
    found = Pace()
    for step, waited in enumerate(waits):
        found = found.after(ReportedTurn(90, 10, step, waited), 10)
    return found


def test_a_step_counts_once_it_is_done_and_began_after_the_newest_came() -> None:
    assert pace(500, 0).slowness.took == 0.0, "the first was under way"
    assert (pace(500, 0, 0).slowness.took, pace(500, 0, 0).slowness.alone) == (100.0, 100.0)
    assert pace(0, 30, 0).slowness.slowdown == 1.3


def test_waits_make_it_slow_and_enough_of_them_too_slow() -> None:
    assert pace(*[5] * (STAYS + 5)).slowness.above == 0
    assert pace(*[30] * (STAYS + 2)).slowness.above == STAYS


def test_each_turn_counts_once_and_none_after_somebody_came() -> None:
    def told(name: str, released: int) -> TurnsOf:
        return TurnsOf(name, released, [(90, 10, step, 30) for step in range(released)][-3:], 10)

    def of(*steps: int) -> Pace:
        found = Pace()
        for step in steps:
            found = found.after(ReportedTurn(90, 10, step, 30), 10)
        return found

    paces = Paces("a")
    for released in (0, 2, 2, 4, 5):  # of the three that a report has some were looked at before
        paces = paces.after([told("a", released)])
    assert paces.of == {"a": of(0, 1, 2, 3, 4)}
    joined = paces.after([told("a", 6), told("b", 0)])
    assert joined.of == {"a": of(5), "b": Pace()}, "no step counts that began before b came"
    assert joined.after([told("a", 9), told("b", 2)]).of == {"a": of(5, 6, 7, 8), "b": of(0, 1)}


@pytest.mark.parametrize(
    ("newer", "old"),
    [
        (turns(22), False),
        (turns(22, away=105, held=11), False),
        (turns(22, away=125), True),
        (turns(22, away=87, held=13), True),  # the same cycle, and other turns
        (turns(22, 2), True),
    ],
)
def test_a_kind_is_outdated_once_its_steps_are_others(newer: list[ReportedTurn], old: bool) -> None:
    known, found = measured("k", turns(22)), measured("k", newer)
    assert known is not None
    assert found is not None
    assert outdated(known, found) is old


def test_switches_count_as_much_as_they_are_of_a_cycle() -> None:
    known = measured("k", turns(22))
    assert known is not None
    assert known.loads == (), "nobody who is alone switches"
    for load, old in ((4, False), (6, True)):
        newer = measured("k", turns(22), loads=[900, load, load], offloads=[1, 1])
        assert newer is not None
        assert outdated(known, newer) is old
        assert not outdated(newer, newer)


@pytest.mark.parametrize(
    ("known", "alone", "looked", "now", "is_due"),
    [
        (False, True, None, 0.0, True),
        (False, False, None, 0.0, False),  # beside others it is not measured for the first time
        (True, False, None, 0.0, True),  # after a restart nobody knows when that was
        (True, True, 100.0, 99.0 + LOOK_AGAIN, False),
        (True, False, 100.0, 100.0 + LOOK_AGAIN, True),
    ],
)
def test_a_kind_is_measured_alone_and_looked_at_again(
    known: bool, alone: bool, looked: float | None, now: float, is_due: bool
) -> None:
    assert due(known, alone, looked, now) is is_due


def test_a_look_brings_a_profile_if_there_was_none_or_it_is_outdated() -> None:
    known = measured("k", turns(22))
    assert look("k", None, turns(6)) == Look(False)
    assert look("k", known, turns(6)) == Look(False)
    assert look("k", None, turns(22)) == Look(True, known)
    assert look("k", known, turns(22, held=11)) == Look(True), "the difference may be one of measuring"
    assert look("k", known, turns(22, held=30)) == Look(True, measured("k", turns(22, held=30)))
