"""One planner serves all jobs: a plan costs about the same whatever the step, and is about as good."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from controller.policy.rollout import (
    ActorLaw,
    Forecast,
    RolloutSettings,
    Supply,
    check_size,
    even,
    forecast,
    longest_first,
    plan_rollout,
    ranked,
)
from controller.policy.rollout.sample import LARGEST_CHAIN, MOST, MOST_RANKED, sample

# Slots, prompts, copies: the largest steps that are let in, for actors of few slots and of many.
DEAR = [
    (1, 4096, 4),
    (1, 16, 1024),
    (2, 8192, 4),
    (3, 16_384, 3),
    (7, 28_672, 4),
    (16, 16_384, 16),
    (16, 256, 1024),
    (64, 16_384, 16),
    (257, 16_384, 16),
]
ALL = 10**6


def lengths(prompts: int, copies: int, spread: float = 0.3) -> Forecast:
    """A few responses are forty times as long as the mean."""
    drawn = random.Random(prompts)
    means = [min(8192.0, drawn.lognormvariate(math.log(150.0), 1.0)) for _ in range(prompts)]
    return forecast(means, copies, spread, 8192)


def law(slots: int) -> ActorLaw:
    return ActorLaw(iteration=0.01, sequence=1e-4, growth=1e-7, prefill=0.002, slots=slots)


def seconds(seen: Forecast, slots: int) -> float:
    used = []
    for _ in range(2):
        before = time.process_time()
        plan_rollout(seen, law(slots), RolloutSettings(min=1, max=64, static=3), Supply(held=1))
        used.append(time.process_time() - before)
    return min(used)


@pytest.mark.parametrize(("slots", "prompts", "copies"), DEAR)
def test_a_sample_is_of_bounded_size(slots: int, prompts: int, copies: int) -> None:
    seen = lengths(prompts, copies)
    check_size(seen, slots)
    for most, equal in ((MOST, False), (MOST, True), (MOST_RANKED, True)):
        drawn, thinned = sample(seen, slots, most, equal)
        assert len(drawn.lengths) <= most * (1.0 if equal or drawn.chained == 1 else 1.5)
        assert len(drawn.squares) == len(drawn.lengths)
        assert slots % thinned == 0
        assert sum(drawn.lengths) * drawn.thinned == pytest.approx(drawn.tokens, rel=0.01)
        assert sum(drawn.squares) * drawn.thinned == pytest.approx(2.0 * drawn.grown, rel=0.01)


def test_a_plan_costs_about_as_much_whatever_the_step() -> None:
    usual = seconds(lengths(1000, 4), 64)
    for slots, prompts, copies in ((1, 4096, 4), (2, 8192, 4), (16, 16_384, 16)):
        assert seconds(lengths(prompts, copies), slots) < 4.0 * usual


@pytest.mark.parametrize(
    ("slots", "prompts", "copies"), [(1, 4096, 4), (1, 16_384, 1), (2, 4096, 4), (4, 4096, 4)]
)
@pytest.mark.parametrize("actors", [1, 5, 64])
def test_chains_take_what_their_responses_would_take(
    slots: int, prompts: int, copies: int, actors: int
) -> None:
    seen, ready = lengths(prompts, copies), [0.0] * actors
    whole, all_slots = sample(seen, slots, ALL)
    assert (len(whole.lengths), whole.chained, all_slots) == (prompts * copies, 1, slots)
    for name, most, equal in (("queue", MOST, False), ("groups", MOST_RANKED, True), ("order", MOST, True)):
        drawn, thinned = sample(seen, slots, most, equal)
        assert drawn.chained > 1

        def ends(of: tuple, name: str = name) -> list[float]:
            part, here = of
            if name == "queue":
                found = longest_first.actor_ends(part, here, law(slots), ready)
            elif name == "groups":
                found = ranked.actor_ends(part, here, law(slots), ready, 1.0)
            else:
                stands = part.thinned * part.chained / copies
                order = even.shuffled(part, max(1, round(1.0 / stands)))
                found = even.actor_ends(order, here, law(slots), ready, stands)
            return [end for end in found if end is not None]

        exact, short = ends((whole, all_slots)), ends((drawn, thinned))
        near = 0.1 if name == "order" else 0.03
        assert max(short) == pytest.approx(max(exact), rel=near), name
        assert sum(short) == pytest.approx(sum(exact), rel=0.03), name


def test_a_queues_chains_hold_up_nobody() -> None:
    """The longest response of a step may be longer than all that an actor has to do otherwise."""
    seen = Forecast(((8000.0, 2), (20.0, 4000)), 4, 0.0, 8192)
    drawn, _ = sample(seen, 1, equal=False)
    assert drawn.lengths[0] == 8000
    mean = sum(drawn.lengths) / MOST
    assert max(length for length in drawn.lengths if length != 8000) <= LARGEST_CHAIN * mean
    ends = longest_first.actor_ends(drawn, 1, replace(law(1), growth=0.0), [0.0] * 64)
    longest = law(1).seconds(8000, 8000, 0.0, 1.0)
    assert max(end or 0.0 for end in ends) == pytest.approx(longest, rel=0.01)
