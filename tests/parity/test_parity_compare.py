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


def test_a_run_whose_own_start_took_longer_is_put_down_to_that() -> None:
    """a ends after b because it took 9 s to start, and not the calibrated 1 s."""
    sim = timeline(a=(0, [(0, 12, END)]), b=(0, [(0, 16, END)]))
    cluster = timeline(a=(0, [(0, 20, END)]), b=(0, [(0, 16, END)]))
    slow = facts("a", at=0.0, began=9.0, ended=19.0, seen=20.0)
    (found,) = compare("fifo", sim, cluster, [slow, facts("b")], CALIBRATED).differences
    assert found.kind == "delay"
    assert "its start took 8.0 s longer than calibrated" in found.cause


def test_a_start_that_waited_for_somebody_late_is_put_down_to_whom_it_waited_for() -> None:
    """c's GPUs are those of a, which was free 20 s later than simulated; b and d, elsewhere, came first."""
    sim = timeline(
        a=(0, [(0, 10, END)]), c=(1, [(10, 50, END)]), b=(2, [(12, 60, END)]), d=(2, [(14, 61, END)])
    )
    cluster = timeline(
        a=(0, [(0, 30, END)]), c=(1, [(30, 55, END)]), b=(2, [(12, 60, END)]), d=(2, [(14, 61, END)])
    )
    late = facts("a", at=0.0, began=1.0, ended=10.0, seen=30.0)
    told = [late, facts("c", at=30.0), facts("b", at=12.0), facts("d", at=14.0)]
    end, start = compare("fifo", sim, cluster, told, CALIBRATED).differences
    assert (end.event.kind, end.event.key, end.kind) == ("end", "a", "delay")
    assert "seeing its end took 19.0 s longer than calibrated" in end.cause
    assert (start.event.kind, start.event.key, start.kind) == ("start", "c", "carried")
    assert "the GPUs of a, free 20.0 s later (" in start.cause


def test_a_stop_that_came_too_late_is_told_as_such() -> None:
    """Stopped in the simulator; on the cluster the training ended a moment after the decision."""
    sim = timeline(a=(0, [(0, 10, STOP, 8)]))
    cluster = timeline(a=(0, [(0, 10.5, END)]))
    told = facts("a", ended=9.5, seen=10.5)
    told.decided = 9.0
    assert kinds(sim, cluster, told) == [("stop", "a", "delay"), ("end", "a", "delay")]


def test_a_preemption_of_one_alone_counts_and_what_follows_from_it_too() -> None:
    sim = timeline(a=(0, [(0, 30, END)]), b=(5, [(31, 40, END)]))
    cluster = timeline(a=(0, [(0, 8, PREEMPT, 6), (20, 42, END)]), b=(5, [(9, 18, END)]))
    told = facts("a", at=0.0)
    told.admissions[2] = told.admissions[1]
    found = kinds(sim, cluster, told)
    assert ("preempt", "a", "carried") in found or ("preempt", "a", "unexplained") in found
    assert ("start", "a", "follows") in found


def test_the_figures_are_those_that_json_promises() -> None:
    sim = timeline(a=(0, [(0, 10, END)]), b=(0, [(0, 21, STOP, 20)]))
    cluster = timeline(a=(0, [(0, 12, PREEMPT, 11), (13, 20, END)]), b=(0, [(0, 20, STOP, 19)]))
    said = compare("las", sim, cluster, [facts("a"), facts("b")], CALIBRATED).as_dict()
    assert said["jct_sim"] == 15.5
    assert said["jct_cluster"] == 20.0
    assert said["relative_error"] == pytest.approx(-0.225)
    assert (said["stops"], said["preemptions"]) == (1, 1)
    assert {d["in"] for d in said["order_differences"]} >= {"cluster"}
