"""Continuous batching in iterations, against a loop that gives a token at a time."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.rollout import ActorLaw, batching
from controller.policy.rollout.sample import Sample


def token_by_token(lengths: list[int], slots: int) -> list[int]:
    waiting, live, done, iteration = deque(lengths), [], [], 0
    while waiting or live:
        while waiting and len(live) < slots:
            live.append(waiting.popleft())
        iteration += 1
        live = [left - 1 for left in live]
        done += [iteration] * live.count(0)
        live = [left for left in live if left]
    return done


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 9))
def test_ends_are_those_of_a_loop_over_single_tokens(lengths: list[int], slots: int) -> None:
    assert batching.ends(lengths, slots) == token_by_token(lengths, slots)


def test_seconds_of_a_group_are_the_laws() -> None:
    law = ActorLaw(iteration=1.0, sequence=0.1, growth=0.01, prefill=2.0, slots=2)
    drawn = Sample((4, 2), (16, 4), 1.0, 4, 2, 6.0, 10.0)
    # 4 iterations, 6 tokens, half the squares of 4 and 2, one of two groups' prompts
    assert batching.group_seconds(law, (4, 2), (16, 4), 4, drawn, 2) == pytest.approx(4.0 + 0.6 + 0.1 + 2.0)
