"""A slow-down that stays above the limit, and who leaves for it."""

from __future__ import annotations

from controller.policy.group_types import STAYS
from controller.policy.sharing import Slowness, too_slow
from tests.policy.sharing_world import resident

ROOM = (resident("a", came=1), resident("b", came=3), resident("c", came=2))


def after(*slowdowns: float) -> Slowness:
    found = Slowness()
    for one in slowdowns:
        found = found.step(round(1000 * one), 1000, 10)
    return found


def test_a_few_slow_steps_are_nothing() -> None:
    assert too_slow(ROOM, {"a": after(*[1.5] * (STAYS - 1))}) is None
    assert too_slow(ROOM, {"a": after(*[1.2] * (STAYS - 1), *[1.0] * 20)}) is None
    assert too_slow(ROOM, {}) is None


def test_one_that_stays_slow_makes_the_last_who_came_leave() -> None:
    found = too_slow(ROOM, {"a": after(*[1.27] * STAYS), "b": after(1.0)})
    assert found is not None
    assert (found.leaves, found.slow) == ("b", "a")
    assert "a has been 1.27 times as slow as alone after each of 20 steps, 1.10 is allowed" in found.message


def test_the_last_may_be_the_slow_one_itself() -> None:
    found = too_slow(ROOM, {"b": after(*[2.0] * STAYS)})
    assert found is not None
    assert found.leaves == "b"


def test_exactly_the_limit_is_allowed_and_a_job_alone_is_left_alone() -> None:
    assert too_slow(ROOM, {"a": after(*[1.1] * 50)}) is None
    assert too_slow(ROOM[:1], {"a": after(*[3.0] * 50)}) is None


def test_the_mean_is_of_about_twenty_steps() -> None:
    assert after(*[1.0] * 100).slowdown == 1.0
    assert 1.3 < after(*[1.0] * 100, *[1.5] * 20).slowdown < 1.35
    assert Slowness().slowdown == 1.0
