"""The simulator's peers are the operator's: `policy.job.peers` on steps, whatever grids runs have."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job.peers import PeerCurve, standings
from controller.policy.job.types import Direction
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.engine.peers import STEPS, PeerBoard
from sim.foresight import RuleSpec
from sim.workload import Evals, Workload

# (row, group): who reports next. Few rows, so that runs overtake each other and steps are asked about again.
turns = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "rlhf"])), max_size=60)
grids = st.lists(st.sampled_from([4, 5, 8, 10, 20]), min_size=5, max_size=5)


@settings(max_examples=300, deadline=None)
@given(turns, grids, st.integers(0, 1000))
def test_the_board_is_the_operators_standings_after_any_reports(
    turns: list[tuple[int, str]], grids: list[int], seed: int
) -> None:
    draw, board = Random(seed), PeerBoard()
    curves: dict[tuple[int, str], tuple[list[int], list[float]]] = {}
    for row, group in turns:
        steps, scores = curves.setdefault((row, group), ([], []))
        if len(steps) == grids[row]:
            continue
        # A sum of intervals, as a generator may have it: off by rounding from the share it stands for.
        at = min(1.0, sum([1 / grids[row]] * (len(steps) + 1)))
        score, step = draw.gauss(0, 1), round(at * STEPS)
        others = [
            PeerCurve(tuple(theirs), tuple(sum(values[: n + 1]) for n in range(len(values))), 0)
            for (other, kind), (theirs, values) in curves.items()
            if kind == group and other != row and theirs
        ]
        expected = standings(others, (step,), Direction.MAXIMIZE)
        found = board.report(row + 10 * (group == ""), ("ns", group), at, score)
        if expected:
            assert found is not None
            assert (found.runs, found.median) == (expected[0].runs, pytest.approx(expected[0].median))
        else:
            assert found is None
        steps.append(step)
        scores.append(score)


def test_peers_are_others_at_the_same_step() -> None:
    board = PeerBoard()
    assert board.report(0, ("ns", "rlhf"), 0.25, 1.0) is None
    assert board.report(1, ("ns", "rlhf"), 0.25, 5.0) == (1, 1.0)
    assert board.report(2, ("ns", "lora"), 0.25, 5.0) is None
    assert board.report(3, ("ns", "rlhf"), 0.25, 3.0) == (2, 3.0)  # median of 1 and 5
    assert board.report(0, ("ns", "rlhf"), 0.5, 3.0) is None  # nobody else is that far
    assert board.report(1, ("ns", "rlhf"), 0.5, 0.0) == (1, 2.0)  # job 0's mean of 1 and 3


def test_evals_count_where_they_are_in_the_training_not_by_their_number() -> None:
    """One run evaluates every fifth of its training, the others every tenth: at .4 they stood at 4, not 2."""
    tenths, fifths = [n / 10 for n in range(1, 11)], [n / 5 for n in range(1, 6)]
    rising = Evals(tenths, [float(n) for n in range(1, 11)])
    slow = Evals(fifths, [1.0, 1.9, 2.4, 2.9, 3.4])  # by number ahead of the others' means, by step behind
    workload = Workload([0, 0, 0, 1], [1] * 4, [60] * 4, evals=[rising, rising, rising, slow])
    result = simulate(
        workload,
        Cluster.slots(4),
        EvalStop(make_policy(PolicySpec("fifo"))),
        rule=RuleSpec(PolicySpec("medianOfPeers", {"min_peers": 3, "grace": 2})),
    )
    assert result.stopped == {3}
    assert result.stops[3].eval == 1
