"""What each dispatch takes, actor by actor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollout_world import FORECAST, LAW

from controller.policy.rollout import ActorLaw, Forecast, even, longest_first, ranked
from controller.policy.rollout.sample import MOST, Sample, sample

READY = [0.0] * 4


def test_one_actor_takes_the_same_whatever_the_order_where_slots_are_always_full() -> None:
    drawn, slots = sample(Forecast(((100.0, 160),), 4, 0.0, 2048), 64)
    (queue,) = longest_first.actor_ends(drawn, slots, LAW, [0.0])
    (group,) = ranked.actor_ends(drawn, slots, LAW, [0.0], 1.0)
    (plain,) = even.actor_ends(even.shuffled(drawn, 4), slots, LAW, [0.0])
    # 640 responses of 100 tokens on 64 slots: 1,000 iterations, 64,000 tokens, 160 prefills
    for found in (queue, group, plain):
        assert found == pytest.approx(0.01 * 1000 + 0.0001 * 64_000 + 0.002 * 160)


def test_long_responses_share_an_actor_and_the_others_end_early() -> None:
    drawn, slots = sample(Forecast(((2000.0, 15), (200.0, 150)), 4, 0.0, 2048), LAW.slots)
    first, *others = longest_first.actor_ends(drawn, slots, LAW, READY)
    assert first is not None
    assert first == pytest.approx(2000 * 0.01 + 0.0001 * 64 * 2000, rel=0.2)
    assert max(end for end in others if end is not None) < 0.5 * first


def test_groups_by_rank_end_one_after_the_other() -> None:
    drawn, slots = sample(FORECAST, LAW.slots)
    ends = ranked.actor_ends(drawn, slots, LAW, READY, 1.0)
    assert ends == sorted(ends, key=lambda end: -(end or 0.0))


def test_a_cut_ends_actors_earlier_and_none_before_its_share_is_done() -> None:
    drawn, slots = sample(replace(FORECAST, spread=0.3), 256)
    whole = ranked.actor_ends(drawn, slots, LAW, READY, 1.0)
    cut = ranked.actor_ends(drawn, slots, LAW, READY, 0.5)
    assert sum(end or 0.0 for end in cut) < sum(end or 0.0 for end in whole)
    assert max(end or 0.0 for end in cut) == pytest.approx(max(end or 0.0 for end in whole), rel=0.05)


@pytest.mark.parametrize(
    ("slots", "cut", "end"),
    [
        (8, 0.25, 1.0),
        (8, 0.5, 2.0),
        (8, 0.6, 3.0),  # of four responses three are the first that are 0.6 of them
        (8, 1.0, 4.0),
        (5, 0.5, 3.0),  # one slot is free: who has two to give waits until one of them has ended
        (4, 0.25, 4.0),  # none is, until the long ones end
    ],
)
def test_a_cut_is_at_its_share_and_moves_what_fits_into_free_slots(
    slots: int, cut: float, end: float
) -> None:
    lengths = (8, 8, 8, 8, 4, 3, 2, 1)
    drawn = Sample(lengths, tuple(one * one for one in lengths), 1.0, 8, 8, 42.0, 143.0)
    law = ActorLaw(iteration=1.0, sequence=0.0, slots=slots)
    assert ranked.actor_ends(drawn, slots, law, [0.0, 0.0], cut) == [8.0, end]


@pytest.mark.parametrize(("late", "gets"), [(0.5, True), (1e4, False)])
def test_an_actor_that_is_ready_late_takes_what_is_left(late: float, gets: bool) -> None:
    drawn, slots = sample(FORECAST, LAW.slots)
    ends = longest_first.actor_ends(drawn, slots, LAW, [0.0, 0.0, late])
    assert (ends[2] is not None) is gets


def test_a_group_waits_for_its_actor() -> None:
    drawn, slots = sample(FORECAST, LAW.slots)
    order = even.shuffled(drawn, 4)
    soon = ranked.actor_ends(drawn, slots, LAW, [0.0, 0.0], 1.0)
    late = ranked.actor_ends(drawn, slots, LAW, [0.0, 7.0], 1.0)
    assert late[1] == pytest.approx((soon[1] or 0.0) + 7.0)
    slow = even.actor_ends(order, slots, LAW, [5.0, 5.0])
    fast = even.actor_ends(order, slots, LAW, [0.0, 0.0])
    assert max(e or 0.0 for e in slow) == pytest.approx(max(e or 0.0 for e in fast) + 5.0)


def test_the_order_of_even_is_fixed_and_keeps_copies_together() -> None:
    drawn, _ = sample(Forecast(tuple((float(1000 - i), 1) for i in range(100)), 4, 0.0, 2048), 64)
    order = even.shuffled(drawn, 4)
    assert order == even.shuffled(drawn, 4)
    assert sorted(order.lengths) == sorted(drawn.lengths)
    assert order.lengths != drawn.lengths
    assert all(len(set(order.lengths[i : i + 4])) == 1 for i in range(0, 400, 4))
    assert order.squares == tuple(length * length for length in order.lengths)


bins = st.lists(st.tuples(st.floats(1.0, 3000.0), st.integers(1, 60)), min_size=1, max_size=20).map(
    lambda found: tuple(sorted(found, reverse=True))
)


@settings(max_examples=60, deadline=None)
@example(((2.0, 10), (1.0, 1), (1.0, 1)), 2, 0.5, 5, 16)  # what an actor took it gives away once more
@example(((1.0, 3),), 1, 0.5, 4, 1)  # the first of more actors than responses gets none
@given(bins, st.integers(1, 6), st.floats(0.0, 0.6), st.integers(1, 10), st.sampled_from([1, 3, 16, 64]))
def test_no_dispatch_beats_the_longest_response_or_the_work(
    found: tuple[tuple[float, int], ...], copies: int, spread: float, actors: int, slots: int
) -> None:
    law = ActorLaw(iteration=0.01, sequence=0.0, slots=slots)
    drawn, thinned = sample(Forecast(found, copies, spread, 2048), slots)
    ready = [0.0] * actors
    work = drawn.tokens / (actors * slots)
    longest = drawn.longest
    for ends in (
        longest_first.actor_ends(drawn, thinned, law, ready),
        ranked.actor_ends(drawn, thinned, law, ready, 0.7),
        even.actor_ends(even.shuffled(drawn, copies), thinned, law, ready),
    ):
        seconds = max(end for end in ends if end is not None)
        assert seconds >= 0.0099 * max(longest, min(work, sum(drawn.lengths) / (actors * thinned))) * 0.99


@given(bins, st.integers(1, 8), st.floats(0.0, 0.6), st.sampled_from([1, 7, 16, 48, 64, 100]))
def test_a_sample_stands_for_all_responses(
    found: tuple[tuple[float, int], ...], copies: int, spread: float, slots: int
) -> None:
    forecast = Forecast(found, copies, spread, 4096)
    drawn, thinned = sample(forecast, slots)
    assert slots % thinned == 0
    assert len(drawn.lengths) <= MOST
    if drawn.chained == 1:
        assert len(drawn.lengths) * drawn.thinned == pytest.approx(forecast.responses)
        assert drawn.longest >= max(drawn.lengths)
    assert drawn.longest <= 4096
