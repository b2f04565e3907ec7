"""Order and causes: the fewest events that changed places, and what each of them is put down to."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_world import CALIBRATED, facts, timeline

from controller.parity.compare import compare, in_order
from controller.parity.facts import Facts
from controller.parity.timeline import How, Timeline

END, STOP, PREEMPT = How.END, How.STOP, How.PREEMPT


@given(st.permutations(range(7)))
def test_what_stays_is_in_order_and_nothing_more_could_stay(places: list[int]) -> None:
    kept = sorted(in_order(places))
    assert all(places[a] < places[b] for a, b in pairwise(kept))
    longer = combinations(range(len(places)), len(kept) + 1)
    assert not any(all(places[a] < places[b] for a, b in pairwise(some)) for some in longer)


def kinds(sim: Timeline, cluster: Timeline, *told: Facts) -> list[tuple[str, str, str]]:
    """(event, job, kind of cause) of every difference."""
    known = {one.key: one for one in told}
    all_facts = [known.get(job.key) or facts(job.key) for job in cluster.jobs]
    found = compare("fifo", sim, cluster, all_facts, CALIBRATED).differences
    return [(d.event.kind, d.event.key, d.kind) for d in found]


def test_equal_orders_differ_in_nothing_however_late() -> None:
    sim = timeline(a=(0, [(0, 10, END)]), b=(1, [(10, 20, END)]))
    late = timeline(a=(0, [(0, 30, END)]), b=(1, [(30, 90, END)]))
    assert kinds(sim, late) == []


def test_a_change_of_places_within_a_second_is_a_tie() -> None:
    sim = timeline(a=(0, [(0.0, 10, END)]), b=(0, [(0.6, 20, END)]))
    cluster = timeline(a=(0, [(0.9, 10, END)]), b=(0, [(0.4, 20, END)]))
    assert [kind for _, _, kind in kinds(sim, cluster)] == ["tie"]


def test_the_figures_are_those_that_json_promises() -> None:
    sim = timeline(a=(0, [(0, 10, END)]), b=(0, [(0, 21, STOP, 20)]))
    cluster = timeline(a=(0, [(0, 12, PREEMPT, 11), (13, 20, END)]), b=(0, [(0, 20, STOP, 19)]))
    said = compare("las", sim, cluster, [facts("a"), facts("b")], CALIBRATED).as_dict()
    assert said["jct_sim"] == 15.5
    assert said["jct_cluster"] == 20.0
    assert said["relative_error"] == pytest.approx(-0.225)
    assert (said["stops"], said["preemptions"]) == (1, 1)
    assert {d["in"] for d in said["order_differences"]} >= {"cluster"}
