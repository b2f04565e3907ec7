"""What a difference in order is put down to: a number of the same sign and of half its size, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from parity_world import CALIBRATED, facts, timeline, told

from controller.parity.compare import Difference, compare
from controller.parity.facts import Facts
from controller.parity.timeline import How, Timeline

END, STOP, PREEMPT = How.END, How.STOP, How.PREEMPT


def found(sim: Timeline, cluster: Timeline, *said: Facts) -> list[Difference]:
    known = {one.key: one for one in (*told(cluster), *said)}
    return list(compare("fifo", sim, cluster, list(known.values()), CALIBRATED).differences)


def decided(one: Facts, at: float) -> Facts:
    one.decided = at
    return one


@dataclass(frozen=True)
class Case:
    """``wanted``: (event, job, kind) of the one difference, or of that whose words are given."""

    sim: Timeline
    cluster: Timeline
    wanted: tuple[str, str, str]
    words: str
    said: tuple[Facts, ...] = ()


ALIKE = timeline(a=(0, [(0, 20, END)]), b=(0, [(0, 16, END)]))
OTHERS = {"b": (2, [(12, 60, END)]), "d": (2, [(14, 61, END)])}
GONE = {"b": (0, [(0, 12, END, None, ("n2",))]), "d": (0, [(0, 13, END, None, ("n2",))])}
CASES = {
    "start-took-longer": Case(
        timeline(a=(0, [(0, 12, END)]), b=(0, [(0, 16, END)])),
        timeline(a=(0, [(0, 20, END)]), b=(0, [(0, 16, END)])),
        ("end", "a", "delay"),
        "8.0 s later, past end of b (0.0 s later): its start took 8.0 s longer than calibrated",
        (facts("a", began=9.0, ended=19.0, seen=20.0),),
    ),
    # The other job's small delay is no cause.
    "partner-hardly-moved": Case(
        timeline(a=(0, [(0, 10, END)]), b=(0, [(0, 16, END)])),
        timeline(a=(0, [(0, 774, END)]), b=(0, [(0, 15.95, END)])),
        ("end", "a", "unexplained"),
        "764.0 s later, past end of b (0.1 s earlier)",
        (facts("b", began=0.8, ended=14.95, seen=15.95),),
    ),
    "start-longer-end-earlier": Case(
        ALIKE,
        timeline(a=(0, [(0, 14, END)]), b=(0, [(0, 16, END)])),
        ("end", "a", "unexplained"),
        "6.0 s earlier, past end of b (0.0 s later)",
        (facts("a", began=5.0, ended=13.0, seen=14.0),),
    ),
    "delay-below-half": Case(
        timeline(a=(0, [(0, 12, END)]), b=(0, [(0, 16, END)])),
        timeline(a=(0, [(0, 20, END)]), b=(0, [(0, 16, END)])),
        ("end", "a", "unexplained"),
        "8.0 s later, past end of b (0.0 s later)",
        (facts("a", began=4.5, ended=19.0, seen=20.0),),
    ),
    "passed-by-another": Case(
        timeline(
            a=(0, [(0, 10, END)]), b=(0, [(0, 10.5, END)]), c=(0, [(0, 11, END)]), d=(0, [(0, 20, END)])
        ),
        timeline(
            a=(0, [(0, 30, END)]), b=(0, [(0, 30.5, END)]), c=(0, [(0, 31, END)]), d=(0, [(0, 20, END)])
        ),
        ("end", "d", "delay"),
        "0.0 s later, passed by end of a (20.0 s later): seeing its end took 20.0 s longer",
        (facts("a", began=1.0, ended=9.0, seen=30.0),),
    ),
    "waited-for-late-leaver": Case(
        timeline(a=(0, [(0, 10, END)]), c=(1, [(10, 50, END)]), **OTHERS),
        timeline(a=(0, [(0, 30, END)]), c=(1, [(30, 55, END)]), **OTHERS),
        ("start", "c", "follows"),
        "it came after a's leaving, which was 20.0 s later",
    ),
    "waited-for-early-leaver": Case(
        timeline(a=(0, [(0, 30, END)]), c=(1, [(30, 50, END)]), **OTHERS),
        timeline(a=(0, [(0, 10, END)]), c=(1, [(10, 50, END)]), **OTHERS),
        ("start", "c", "follows"),
        "it came after a's leaving, which was 20.0 s earlier",
    ),
    "late-leaver-early-start": Case(
        timeline(
            a=(0, [(0, 10, END)]), e=(0, [(0, 40, END)]), c=(1, [(40, 65, END)]), b=(2, [(30, 70, END)])
        ),
        timeline(
            a=(0, [(0, 20, END)]), e=(0, [(0, 40, END)]), c=(1, [(20, 65, END)]), b=(2, [(30, 70, END)])
        ),
        ("start", "c", "order"),
        "in the simulator start of b came 10.0 s before it, in the cluster after it",
    ),
    "leaver-on-another-node": Case(
        timeline(a=(0, [(0, 10, END, None, ("n0",))]), c=(1, [(5, 50, END, None, ("n1",))]), **GONE),
        timeline(a=(0, [(0, 30, END, None, ("n0",))]), c=(1, [(24, 55, END, None, ("n1",))]), **GONE),
        # Its own node was free all the while, in both.
        ("start", "c", "delay"),
        "its admission took 19.0 s longer than in the simulator after c's coming into the queue",
    ),
    # On the cluster others made room before.
    "late-partner-other-room": Case(
        timeline(a=(0, [(0, 10, END)]), e=(0, [(0, 40, END)]), c=(1, [(10, 50, END)]), **GONE),
        timeline(a=(0, [(0, 45, END)]), e=(0, [(0, 30, END)]), c=(1, [(30, 65, END)]), **GONE),
        ("start", "c", "follows"),
        "in the simulator it came after a's leaving, which was 35.0 s later",
    ),
    "gpus-held-by-later-job": Case(
        timeline(c=(1, [(5, 50, END, None, ("n1",))]), e=(6, [(51, 59, END, None, ("n1",))]), **GONE),
        timeline(c=(1, [(24, 55, END, None, ("n1",))]), e=(0, [(0, 22, END, None, ("n1",))]), **GONE),
        ("start", "c", "order"),
        "in the cluster e held GPUs until 22.0 s, in the simulator it had not got any before 5.0 s",
    ),
    "free-gpus-fragmented": Case(
        timeline(
            a=(0, [(0, 10, END, None, ("n0",))]),
            e=(0, [(0, 40, END, None, ("n1",))]),
            c=(1, [(10, 60, END, None, ("n0",))]),
            d=(0, [(0, 13, END, None, ("n2",))]),
        ),
        timeline(
            a=(0, [(0, 11, END, None, ("n1",))]),
            e=(0, [(0, 39, END, None, ("n0",))]),
            c=(1, [(39, 89, END, None, ("n0",))]),
            d=(0, [(0, 13, END, None, ("n2",))]),
        ),
        ("start", "c", "order"),
        "in the cluster it came 0.0 s after e's leaving (simulator: 40.0 s), in the simulator 0.0 s after"
        " a's leaving (cluster: 11.0 s); as many GPUs were free in the cluster by then, but in other pieces",
    ),
    "preemption-after-late-event": Case(
        timeline(a=(0, [(0, 10, PREEMPT, 8), (20, 30, END)]), b=(8, [(10, 19, END)]), d=(0, [(0, 9, END)])),
        timeline(a=(0, [(0, 15, PREEMPT, 13), (24, 34, END)]), b=(13, [(15, 23, END)]), d=(0, [(0, 9, END)])),
        ("preempt", "a", "follows"),
        "it came after b's coming into the queue, which was 5.0 s later",
    ),
    "preemptor-found-other-gpus": Case(
        timeline(a=(0, [(0, 30, END)]), b=(5, [(6.2, 40, END)])),
        timeline(a=(0, [(0, 8, PREEMPT, 6), (8.2, 32, END)]), b=(5, [(6.2, 40, END, None, ("n1",))])),
        ("preempt", "a", "order"),
        "before it had left, start of b had got other GPUs, and it went on",
    ),
    "preempted-job-left-slowly": Case(
        timeline(
            a=(0, [(0, 14, PREEMPT, 10), (30, 40, END)]), b=(10, [(14, 20, END)]), c=(0, [(0, 15.5, END)])
        ),
        timeline(
            a=(0, [(0, 17, PREEMPT, 10), (30, 40, END)]), b=(10, [(17, 22, END)]), c=(0, [(0, 15.5, END)])
        ),
        ("start", "b", "delay"),
        "3.0 s later, past end of c (0.0 s later): a left for it, which took 3.0 s longer than",
    ),
    "last-start-later": Case(
        timeline(a=(0, [(0, 20, END)]), b=(0, [(5, 16, END)])),
        timeline(a=(0, [(0, 20, END)]), b=(0, [(11, 22, END)])),
        ("end", "b", "follows"),
        "6.0 s later, past end of a (0.0 s later): its last start came 6.0 s later",
    ),
    "trained-less-before": Case(
        timeline(a=(0, [(0, 20, PREEMPT, 18), (30, 40, END)]), b=(0, [(0, 44, END)])),
        timeline(a=(0, [(0, 12, PREEMPT, 10), (30, 48, END)]), b=(0, [(0, 44, END)])),
        ("end", "a", "follows"),
        "it had trained 8.0 s less before its last start",
    ),
    "preempted-for-another": Case(
        timeline(
            a=(0, [(0, 12, PREEMPT, 10), (40, 50, END)]),
            b=(9, [(12, 30, END)]),
            c=(3, [(31, 39, END)]),
            d=(0, [(0, 6, END)]),
        ),
        timeline(
            a=(0, [(0, 7, PREEMPT, 4), (40, 50, END)]),
            b=(9, [(13, 30, END)]),
            c=(3, [(7, 39, END)]),
            d=(0, [(0, 6, END)]),
        ),
        ("preempt", "a", "order"),
        "past end of d (0.0 s later): made way for start of c, in the simulator for start of b",
    ),
    "preempted-in-one-run": Case(
        timeline(a=(0, [(0, 30, END)]), b=(5, [(31, 40, END)])),
        timeline(a=(0, [(0, 8, PREEMPT, 6), (20, 42, END)]), b=(5, [(9, 18, END)])),
        ("preempt", "a", "order"),
        "made way for start of b at 9.0 s; in the simulator it never did for that job",
    ),
    "start-needs-preemption": Case(
        timeline(a=(0, [(0, 30, END)]), b=(5, [(31, 40, END)])),
        timeline(a=(0, [(0, 8, PREEMPT, 6), (20, 42, END)]), b=(5, [(9, 18, END)])),
        ("start", "a", "follows"),
        "after preempt of a",
    ),
    "stop-too-late": Case(
        timeline(a=(0, [(0, 10, STOP, 8)])),
        timeline(a=(0, [(0, 10.5, END)])),
        ("stop", "a", "delay"),
        "decided to stop 0.5 s before the training ended by itself",
        (decided(facts("a", ended=9.5, seen=10.5), 9.0),),
    ),
    "simulator-stop-near-end": Case(
        timeline(a=(0, [(0, 10, STOP, 9)])),
        timeline(a=(0, [(0, 10.5, END)])),
        ("end", "a", "tie"),
        "decided in the simulator 0.5 s before the training would have ended",
    ),
    "cluster-stop-near-end": Case(
        timeline(a=(0, [(0, 10.5, END)])),
        timeline(a=(0, [(0, 10, STOP, 9)])),
        ("stop", "a", "tie"),
        "decided in the cluster 0.5 s before the training would have ended",
    ),
    "simulator-stop-long-before-end": Case(
        timeline(a=(0, [(0, 10, STOP, 9)])),
        timeline(a=(0, [(0, 40, END)])),
        ("stop", "a", "unexplained"),
        "not in the cluster",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_one_that_the_numbers_bear_out(name: str) -> None:
    case = CASES[name]
    differences = found(case.sim, case.cluster, *case.said)
    said = [((d.event.kind, d.event.key, d.kind), d.cause) for d in differences]
    assert any(what == case.wanted and case.words in words for what, words in said), said


@pytest.mark.parametrize(("submitted", "kind"), [(1.0, "order"), (2.5, "delay")])
def test_a_smaller_one_was_put_first_only_if_it_waits_in_the_other_run(submitted: float, kind: str) -> None:
    """It may else have had a gap that the larger one could not use."""

    def of(large: float, small: float) -> Timeline:
        made = timeline(
            large=(0, [(large, 60, END)]), small=(submitted, [(small, 50, END)]), c=(0, [(12, 70, END)])
        )
        return Timeline(tuple(replace(job, gpus=16 if job.key == "large" else 8) for job in made.jobs))

    (start,) = (d for d in found(of(14, 3), of(2, 4)) if (d.event.kind, d.event.key) == ("start", "large"))
    assert start.kind == kind, start.cause


def test_the_first_difference_of_two_that_changed_places_in_the_queue_is_named() -> None:
    """On the cluster b was preempted once more before, which put it first."""
    sim = timeline(a=(1, [(20, 40, END)]), b=(0, [(0, 5, PREEMPT, 4), (40, 60, END)]), c=(2, [(35, 90, END)]))
    cluster = timeline(
        a=(1, [(40, 60, END)]),
        b=(0, [(0, 5, PREEMPT, 4), (10, 15, PREEMPT, 13), (18, 38, END)]),
        c=(2, [(35, 90, END)]),
    )
    (start,) = (d for d in found(sim, cluster) if (d.event.kind, d.event.key) == ("start", "a"))
    assert start.kind == "follows"
    words = "in the cluster start of b (number 3) came 22.0 s before it, in the simulator after it; on the"
    words += " cluster b had trained 3.5 s more; first of these two jobs' differences: start of b (number 2)"
    assert words in start.cause


def test_what_is_explained_and_by_how_much_is_in_the_figures() -> None:
    case = CASES["start-took-longer"]
    (difference,) = found(case.sim, case.cluster, *case.said)
    said = difference.as_dict()
    assert (said["kind"], said["moved"], said["by"]) == ("delay", 8.0, 8.0)
