"""Whose turn is next: the order, the cap, and the bound on every wait."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.sharing import TurnQueue, choose, longest_wait


@pytest.mark.parametrize(
    ("waiting", "loaded", "row", "cap", "place"),
    [
        ("ab", None, 0, 1, 0),
        ("ab", "b", 1, 1, 0),  # first come, first served
        ("ab", "b", 1, 2, 1),  # the loaded one needs no switch
        ("ab", "b", 2, 2, 0),  # but not for ever
        ("ab", "c", 1, 3, 0),  # the loaded one does not wait
        ("b", "b", 9, 1, 0),  # nobody else waits
    ],
)
def test_who_is_next(waiting: str, loaded: str | None, row: int, cap: int, place: int) -> None:
    assert choose(list(waiting), loaded, row, cap) == place


def test_a_queue_goes_by_it_and_counts_turns_in_a_row() -> None:
    queue: TurnQueue[str] = TurnQueue(2)
    for who in "ab":
        queue.ask(who)
    order = []
    for _ in range(6):
        who = queue.grant()
        assert who is not None
        order.append(who)
        queue.ask(who)  # a release that asks for the next turn
    assert "".join(order) == "aabbaa"
    assert queue.row == 2


def test_one_request_at_a_time_and_who_leaves_waits_no_longer() -> None:
    queue: TurnQueue[str] = TurnQueue()
    queue.ask("a")
    with pytest.raises(ValueError, match="a waits already"):
        queue.ask("a")
    assert queue.grant() == "a"
    queue.ask("b")
    queue.leave("b")
    queue.leave("a")
    assert queue.grant() is None
    assert (queue.loaded, queue.row) == (None, 0)
    with pytest.raises(ValueError, match="cap: 0 is not allowed"):
        TurnQueue(0)


TURN, SWITCH = 30, 5  # the longest ones


@settings(max_examples=300)
@given(
    st.integers(1, 8).flatmap(
        lambda k: st.tuples(
            st.lists(
                st.lists(st.tuples(st.integers(0, 60), st.integers(1, TURN)), min_size=1, max_size=12),
                min_size=k,
                max_size=k,
            ),
            st.integers(1, 4),
            st.lists(st.integers(0, SWITCH), min_size=1, max_size=7),
        )
    )
)
def test_no_wait_is_longer_than_its_bound(
    drawn: tuple[list[list[tuple[int, int]]], int, list[int]],
) -> None:
    """Any times away (0: the release asks again), turns and switches, for any residents and cap."""
    plans, cap, switches = drawn
    bound = longest_wait(len(plans), cap, TURN, SWITCH)
    queue: TurnQueue[int] = TurnQueue(cap)
    events = [(plan[0][0], i, "asks") for i, plan in enumerate(plans)]
    heapq.heapify(events)
    done, asked = [0] * len(plans), [0] * len(plans)
    holder: int | None = None
    count = 0
    while events:
        now, who, what = heapq.heappop(events)
        if what == "asks":
            queue.ask(who)
            asked[who] = now
        else:
            holder = None
            done[who] += 1
            if done[who] < len(plans[who]):
                away = plans[who][done[who]][0]
                if away == 0:
                    queue.ask(who)
                    asked[who] = now
                else:
                    heapq.heappush(events, (now + away, who, "asks"))
        if holder is None:
            loaded = queue.loaded
            holder = queue.grant()
            if holder is not None:
                count += 1
                begins = now + (0 if loaded == holder else switches[count % len(switches)])
                assert begins - asked[holder] <= bound
                heapq.heappush(events, (begins + plans[holder][done[holder]][1], holder, "releases"))
    assert done == [len(plan) for plan in plans], "everybody had all its turns"


def test_the_bound_is_reached() -> None:
    """Two others ask just before; each has its whole row, with the longest turns and switches."""
    assert longest_wait(3, 1, TURN, SWITCH) == 2 * (TURN + SWITCH) + SWITCH
    queue: TurnQueue[str] = TurnQueue(2)
    queue.ask("a")
    now, order = 0, []
    waits_since: dict[str, int] = {}
    while "c" not in order:
        loaded, who = queue.loaded, queue.grant()
        assert who is not None
        if not order:
            queue.ask("b")
            queue.ask("c")
            waits_since["c"] = now
        order.append(who)
        now += 0 if loaded == who else SWITCH
        if who == "c":
            break
        now += TURN
        queue.ask(who)
    assert order == ["a", "a", "b", "b", "c"]
    assert now - waits_since["c"] == longest_wait(3, 2, TURN, SWITCH)
