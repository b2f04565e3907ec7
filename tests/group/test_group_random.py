"""Thirty random faults; `python -m tests.bench group-faults --runs 1000` is the same machine for longer."""

from __future__ import annotations

from tests.group.random_faults import possible, run


def test_no_released_turn_is_lost_or_doubled_and_never_are_two_workers_on_a_device() -> None:
    outcome = run(30, seed=1)
    assert outcome.wrong == []
    assert set(outcome.faults) == set(possible())
    assert outcome.lost  # the faults did something
    assert outcome.turns > 30 * 3
    assert outcome.opens > outcome.turns / 2
    assert outcome.calls > outcome.turns  # each has one to three, on two members
