"""Who gets an actor place that several jobs could use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.rollout import ActorDemand, share_actors


def falling(first: float) -> Callable[[int], float]:
    return lambda count: first - count


def demand(job: str, has: int, wants: int, base: int = 1, gain: float = 10.0) -> ActorDemand:
    return ActorDemand(job, has, wants, base, falling(gain))


@pytest.mark.parametrize(
    ("free", "demands", "grants", "recalls"),
    [
        (0, [demand("a", 1, 1)], {}, {}),
        (3, [demand("a", 0, 2)], {"a": 2}, {}),  # no more than it wants
        (3, [demand("a", 0, 0)], {}, {}),  # it does not generate: it has no right now
        (1, [demand("a", 3, 4), demand("b", 0, 4)], {"b": 1}, {}),  # its base comes first
        (0, [demand("a", 4, 4, 2), demand("b", 0, 4, 2)], {}, {"a": 2}),
        (1, [demand("a", 3, 4, 2), demand("b", 0, 4, 2)], {"b": 1}, {"a": 1}),
        (0, [demand("a", 2, 4, 2), demand("b", 0, 4, 2)], {}, {}),  # nobody has a spare one
        (0, [demand("a", 2, 4), demand("b", 3, 4), demand("c", 0, 4)], {}, {"b": 1}),
        (2, [demand("a", 1, 4, gain=5.0), demand("b", 1, 4, gain=9.0)], {"b": 2}, {}),  # who gains the most
        (2, [demand("a", 1, 4, gain=1.0)], {}, {}),  # it would gain nothing
    ],
)
def test_shares(
    free: int, demands: list[ActorDemand], grants: dict[str, int], recalls: dict[str, int]
) -> None:
    found = share_actors(free, demands)
    assert (found.grants, found.recalls) == (grants, recalls)


def test_what_was_recalled_is_not_recalled_again() -> None:
    jobs = [demand("a", 3, 4, 2), demand("b", 1, 4, 2)]
    assert share_actors(0, jobs).recalls == {"a": 1}
    assert share_actors(0, jobs, coming=1).recalls == {}


jobs = st.lists(
    st.builds(
        ActorDemand,
        job=st.uuids().map(str),
        has=st.integers(0, 6),
        wants=st.integers(0, 6),
        base=st.integers(0, 3),
        gain=st.integers(-3, 9).map(falling),
    ),
    max_size=5,
)


@given(st.integers(0, 8), jobs)
def test_no_place_is_given_twice_and_no_base_is_taken(free: int, demands: list[ActorDemand]) -> None:
    found = share_actors(free, demands)
    assert sum(found.grants.values()) <= free
    for one in demands:
        right = min(one.base, one.wants)
        assert one.has - found.recalls.get(one.job, 0) >= min(one.has, right)
        assert one.has + found.grants.get(one.job, 0) <= max(one.has, one.wants)
        assert not (one.job in found.grants and one.job in found.recalls)
    short = sum(max(0, min(d.base, d.wants) - d.has - found.grants.get(d.job, 0)) for d in demands)
    assert sum(found.recalls.values()) <= short, "no more is recalled than a right needs"
