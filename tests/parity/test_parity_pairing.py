"""Which start and preemption of the one run is which of the other's, where a job was preempted more often."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st
from parity_world import timeline

from controller.parity.pairing import Turn, paired, places
from controller.parity.timeline import How

END, PREEMPT = How.END, How.PREEMPT


def taking_turns(times: list[float]) -> list[Turn]:
    return [(place % 2 == 0, time) for place, time in enumerate(sorted(times))]


rows = st.lists(st.floats(0, 100), min_size=1, max_size=4).map(lambda t: taking_turns([*t, *t[1:]]))


@given(rows, rows)
def test_all_of_the_shorter_row_is_paired_in_order_and_with_the_least_distance(
    one: list[Turn], other: list[Turn]
) -> None:
    found = places(one, other)
    if len(one) >= len(other):
        assert found == list(range(len(one)))
        return
    assert all(a < b for a, b in pairwise(found))

    def distance(chosen: tuple[int, ...]) -> float:
        return sum(abs(time - other[place][1]) for (_, time), place in zip(one, chosen, strict=True))

    allowed = [
        chosen
        for chosen in combinations(range(len(other)), len(one))
        if all(other[place][0] is start for place, (start, _) in zip(chosen, one, strict=True))
    ]
    assert tuple(found) in allowed
    assert distance(tuple(found)) <= min(map(distance, allowed)) + 1e-9


def names(run: object) -> list[tuple[str, int, float]]:
    return [(event.kind, event.nth, event.time) for event in run.events()]  # type: ignore[attr-defined]


def test_a_preemption_in_vain_is_what_only_the_one_run_has() -> None:
    """And not whatever came after it, counted one further."""
    sim, cluster = paired(
        timeline(a=(0, [(99, 117, PREEMPT, 115.8), (139, 160, END)])),
        timeline(a=(0, [(99.5, 103, PREEMPT, 102.3), (104, 117, PREEMPT, 115.8), (139.1, 160, END)])),
    )
    assert names(sim) == [("start", 1, 99), ("preempt", 2, 115.8), ("start", 3, 139), ("end", 1, 160)]
    assert names(cluster) == [
        ("start", 1, 99.5),
        ("preempt", 1, 102.3),
        ("start", 2, 104),
        ("preempt", 2, 115.8),
        ("start", 3, 139.1),
        ("end", 1, 160),
    ]


def test_jobs_of_one_run_only_keep_their_numbers() -> None:
    sim, cluster = paired(
        timeline(a=(0, [(1, 9, PREEMPT, 8), (10, 20, END)])), timeline(b=(0, [(1, 2, END)]))
    )
    assert names(sim) == [("start", 1, 1), ("preempt", 1, 8), ("start", 2, 10), ("end", 1, 20)]
    assert names(cluster) == [("start", 1, 1), ("end", 1, 2)]
