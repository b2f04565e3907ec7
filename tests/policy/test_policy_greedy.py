"""Whose GPUs a gang gets for which somebody must be preempted: those of the last in line."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.pool.placement import NodeRoom
from controller.policy.queueing.greedy import run_best
from controller.policy.types import JobState, JobView, Proposal

STOP = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)
NODES = {"a": 8, "b": 8, "c": 4}


def runs(key: str, *nodes: str, size: int = 4) -> JobView:
    return JobView(key, 0.0, 0, len(nodes), size, state=JobState.ADMITTED, nodes=nodes)


def waits(key: str, replicas: int, size: int) -> JobView:
    return JobView(key, 0.0, 0, replicas, size)


def displaced(order: list[JobView], free: dict[str, int]) -> list[str]:
    running = {job.key: job for job in order if job.state is JobState.ADMITTED}
    decision = run_best(order, running, (), NodeRoom(free), "Why")
    return [job.key for job, _ in decision.preempt]


@pytest.mark.parametrize(
    ("order", "free", "expected"),
    [
        # Node a comes first by name, but the runs on it come before the one on b.
        pytest.param(
            [waits("w", 1, 8), runs("first", "a"), runs("second", "a"), runs("last", "b", size=8)],
            {"a": 0, "b": 0},
            ["last"],
            id="last-in-line-not-first-node",
        ),
        pytest.param(
            [
                waits("w", 2, 4),
                runs("first", "a"),
                runs("second", "b"),
                runs("third", "a"),
                runs("last", "b"),
            ],
            {"a": 0, "b": 0},
            ["third", "last"],
            id="last-two-on-two-nodes",
        ),
        pytest.param(
            [waits("w", 1, 4), runs("first", "a", "b"), runs("last", "b", size=2)],
            {"a": 0, "b": 2},
            ["last"],
            id="what is free counts, too",
        ),
        pytest.param(
            [waits("w", 1, 8), runs("first", "a"), runs("second", "b"), runs("last", "b")],
            {"a": 4, "b": 0},
            ["second", "last"],
            id="two-later-not-one-earlier",
        ),
        pytest.param(
            [waits("w", 2, 4), runs("first", "a"), waits("next", 1, 4), runs("last", "a", "b")],
            {"a": 0, "b": 0},
            ["last"],
            id="no-gpus-left-for-the-next",
        ),
        # Nor does it change whom the next gang preempts.
        pytest.param(
            [waits("big", 3, 8), waits("w", 1, 4), runs("first", "a"), runs("last", "b")],
            {"a": 0, "b": 0},
            ["last"],
            id="oversized-gang-preempts-nobody",
        ),
    ],
)
def test_the_last_in_line_gives_way(order: list[JobView], free: dict[str, int], expected: list[str]) -> None:
    assert displaced(order, free) == expected


def test_a_gang_that_avoids_a_node_has_others_displaced_elsewhere_though_they_come_before() -> None:
    """Where it did not bind the last time it would not now."""
    order = [replace(waits("w", 1, 4), avoid=("a",)), runs("first", "b"), runs("last", "a")]
    assert displaced(order, {"a": 0, "b": 0}) == ["first"]
    # It has to take what it would avoid, where there is nothing else.
    assert displaced([order[0], runs("last", "a")], {"a": 0}) == ["last"]


@pytest.mark.parametrize("asks", [None, STOP])
def test_gpus_that_somebody_keeps_are_nobodys(asks: Proposal | None) -> None:
    """A run that might be stopped, were its GPUs wanted, keeps them, and has them once."""
    order = [replace(runs("first", "a"), proposal=asks), waits("w", 1, 4), runs("last", "b")]
    assert displaced(order, {"a": 0, "b": 0}) == ["last"]


gangs = st.lists(
    st.tuples(st.lists(st.sampled_from("aabbc"), min_size=1, max_size=3), st.sampled_from((1, 2, 4))),
    max_size=8,
)


@settings(max_examples=400, deadline=None)
@given(gangs, st.integers(1, 3), st.sampled_from((1, 2, 4, 8)))
def test_nobody_gives_way_where_those_behind_would_do(
    running: list[tuple[list[str], int]], replicas: int, size: int
) -> None:
    """The GPUs of all who come after the first one preempted are not enough for the one who is first."""
    free, order, number = dict(NODES), [waits("w", replicas, size)], count()
    for nodes, gpus in running:
        if all(free[n] >= gpus * nodes.count(n) for n in nodes):
            order.append(runs(f"r{next(number)}", *nodes, size=gpus))
            for node in nodes:
                free[node] -= gpus
    gone = displaced(order, free)
    fits = NodeRoom(dict(NODES)).take(order[0])
    room = NodeRoom(free)
    if not gone:
        assert room.take(order[0]) or not fits
        return
    assert fits
    worst = [job.key for job in order].index(gone[0])
    for job in order[worst + 1 :]:
        room.give(job)
    assert not room.take(order[0])


kinds = st.sampled_from(["runs", "runs", "asks", "leaves", "waits", "avoids"])


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            kinds, st.lists(st.sampled_from("aabbc"), min_size=1, max_size=3), st.sampled_from((1, 2, 4))
        )
    )
)
def test_what_is_idle_is_coming_is_lent_is_open(jobs: list[tuple[str, list[str], int]]) -> None:
    """On every node, whatever happens in whatever order: nobody's GPUs are counted where they are not."""
    free, order, leaving, number = dict(NODES), [], [], count()
    for kind, nodes, gpus in jobs:
        key = f"j{next(number)}"
        if kind in ("waits", "avoids"):
            order.append(replace(waits(key, len(nodes), gpus), avoid=("a",) if kind == "avoids" else ()))
            continue
        if any(free[n] < gpus * nodes.count(n) for n in nodes):
            continue
        for node in nodes:
            free[node] -= gpus
        job = runs(key, *nodes, size=gpus)
        if kind == "leaves":
            leaving.append(replace(job, state=JobState.STOPPING))
        else:
            order.append(replace(job, proposal=STOP if kind == "asks" else None))
    trial = NodeRoom(free).trial()
    for job in leaving:
        trial.give(job)
    for job in order:
        if job.state is JobState.ADMITTED:
            trial.give(job)
    for job in order:
        if job.state is JobState.ADMITTED:
            trial.keep(job)
        else:
            trial.take(job)
        for node in NODES:
            counts = [room[node] for room in (trial._idle, trial._coming, trial._lent, trial._open)]
            assert counts[-1] >= 0
            assert counts == sorted(counts), f"{node} after {job.key}: idle, coming, lent, open"
