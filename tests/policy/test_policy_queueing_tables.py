"""Queue policies as tables: who runs, who waits, who may start next."""

from __future__ import annotations

from typing import Any

import pytest

from controller.policy.params import ParamError
from controller.policy.pool.placement import NodeRoom, SlotRoom
from controller.policy.queueing import QueueDecision, make_policy
from controller.policy.queueing.slaq import add_loss, predicted_gain
from controller.policy.types import JobState, JobView, LossTrend, PolicySpec


def waits(key: str, gpus: int = 1, at: float = 0.0, **more: Any) -> JobView:
    return JobView(key, at, 0, 1, gpus, **more)


def runs(key: str, gpus: int = 1, at: float = 0.0, **more: Any) -> JobView:
    more.setdefault("since", 0.0)
    return JobView(key, at, 0, 1, gpus, state=JobState.ADMITTED, **more)


def decide(spec: PolicySpec, jobs: list[JobView], free: int, now: float = 1000.0) -> QueueDecision:
    policy = make_policy(spec)
    policy.rebuild(jobs, now)
    return policy.decide(now, SlotRoom(free))


def verdict(decision: QueueDecision) -> tuple[list[str], list[str]]:
    return [j.key for j in decision.admit], [j.key for j, _ in decision.preempt]


@pytest.mark.parametrize(
    ("jobs", "free", "admit", "preempt"),
    [
        ([waits("a", remaining=9.0), waits("b", remaining=5.0)], 1, ["b"], []),
        (
            [waits("a", at=2, remaining=5.0), waits("b", at=1, remaining=5.0)],
            1,
            ["b"],
            [],
        ),  # first come
        ([waits("a"), waits("b", remaining=5.0)], 1, ["b"], []),  # unknown comes last
        ([waits("a", remaining=9.0, priority=1), waits("b", remaining=5.0)], 1, ["a"], []),
        ([runs("r", remaining=9.0), waits("a", remaining=5.0)], 0, [], ["r"]),  # a starts once r is gone
        ([runs("r", remaining=5.0), waits("a", remaining=5.0)], 0, [], []),  # ties: who runs
        (
            [runs("r", 2, remaining=9.0), runs("s", 1, remaining=8.0), waits("a", 1, remaining=5.0)],
            0,
            [],
            ["r"],
        ),
        (
            [waits("a", 4, remaining=1.0), waits("b", 1, remaining=9.0)],
            2,
            ["b"],
            [],
        ),  # passed over
        (
            [runs("r", 3, remaining=9.0), waits("a", 2, remaining=5.0), waits("b", 1, remaining=6.0)],
            1,
            ["b"],
            ["r"],
        ),
    ],
)
def test_srtf(jobs: list[JobView], free: int, admit: list[str], preempt: list[str]) -> None:
    assert verdict(decide(PolicySpec("srtf"), jobs, free)) == (admit, preempt)


@pytest.mark.parametrize(
    ("jobs", "admit", "preempt"),
    [
        ([waits("a", estimate=90.0), waits("b", estimate=50.0)], ["b"], []),
        ([waits("a", estimate=90.0, progress=0.9), waits("b", estimate=50.0, progress=0.0)], ["a"], []),
        ([waits("a"), waits("b", estimate=50.0)], ["b"], []),
        ([waits("a", remaining=1.0, estimate=90.0), waits("b", remaining=99.0, estimate=50.0)], ["b"], []),
    ],
)
def test_srtf_est_goes_by_estimate_and_progress_alone(
    jobs: list[JobView], admit: list[str], preempt: list[str]
) -> None:
    assert verdict(decide(PolicySpec("srtfEst"), jobs, 1)) == (admit, preempt)


LAS = PolicySpec("las", {"first_threshold": 100.0, "second_threshold": 1000.0})


@pytest.mark.parametrize(
    ("jobs", "free", "admit", "preempt"),
    [
        ([waits("a", attained=100.0), waits("b", attained=99.0, at=5)], 1, ["b"], []),  # queues in order
        (
            [waits("a", attained=5.0, at=2), waits("b", attained=99.0, at=1)],
            1,
            ["b"],
            [],
        ),  # first in, first out
        ([runs("r", attained=100.0), waits("a")], 0, [], ["r"]),
        ([runs("r", attained=99.0, at=9), waits("a")], 0, [], []),  # in one queue, who runs
        ([runs("r", 2, attained=1000.0), runs("s", 1, attained=500.0), waits("a", 1)], 0, [], ["r"]),
        ([waits("a", since=5.0), waits("b", at=1, since=1.0)], 1, ["b"], []),  # who waits the longest
    ],
)
def test_las(jobs: list[JobView], free: int, admit: list[str], preempt: list[str]) -> None:
    assert verdict(decide(LAS, jobs, free)) == (admit, preempt)


def test_las_asks_to_be_woken_when_a_threshold_is_reached() -> None:
    policy = make_policy(LAS)
    policy.rebuild([runs("r", 4, attained=20.0), waits("a", 4)], 10.0)
    assert policy.decide(10.0, SlotRoom(0)).wake_at == 30.0  # (100 - 20) / 4 later
    decision = policy.decide(30.0, SlotRoom(0))
    assert verdict(decision) == ([], ["r"])
    late = make_policy(PolicySpec("las", {**LAS.params, "variant": "Tiresias"}))
    late.rebuild([runs("r", 4, attained=20.0), waits("a", 4)], 10.0)
    assert late.decide(10.0, SlotRoom(0)).wake_at == 34.0  # (100 - 5 s run) / 4 later, rounded up


def test_las_thresholds_must_be_in_order() -> None:
    with pytest.raises(ParamError, match=r"las\.second_threshold: 5\.0 .*first_threshold = 3250"):
        make_policy(PolicySpec("las", {"second_threshold": 5.0}))


@pytest.mark.parametrize(
    ("losses", "gain"),
    [
        ([], float("-inf")),
        ([1.0], float("-inf")),
        ([1.0, 1.5], float("-inf")),  # it never fell: nothing is known of it
        ([1e308, -1e308], float("-inf")),  # nor of what is no number any more
        ([4.0, 3.0], 1.0),
        ([4.0, 3.0, 2.5], 0.25),  # half as much as before, and half of that is to come
        ([4.0, 3.0, 3.0], 0.0),
        ([4.0, 3.5, 2.5], 1.0),  # it is not predicted to fall faster and faster
    ],
)
def test_the_gain_is_the_predicted_share_of_a_job_s_largest_fall(losses: list[float], gain: float) -> None:
    trend: LossTrend | None = None
    for number, loss in enumerate(losses):
        trend = add_loss(trend, loss, 10.0 * number)
    assert predicted_gain(trend) == gain
    if trend is not None:
        assert add_loss(trend, 0.0, trend.service) == trend  # no service, no news


def test_slaq_gives_gpus_where_the_loss_falls_and_leaves_young_runs_alone() -> None:
    flat = LossTrend(1.0, 10.0, drop=0.0, before=1.0, largest=1.0)
    falls = LossTrend(1.0, 10.0, drop=1.0, before=1.0, largest=1.0)
    jobs = [runs("r", loss_trend=flat, since=900.0), waits("a", loss_trend=falls)]
    assert verdict(decide(PolicySpec("slaq", {"epoch": 100.0}), jobs, 0)) == ([], ["r"])
    young = decide(PolicySpec("slaq", {"epoch": 101.0}), jobs, 0)
    assert (verdict(young), young.wake_at) == (([], []), 1001.0)


@pytest.mark.parametrize(
    ("jobs", "free", "admit"),
    [
        ([waits("x/1", at=1), waits("x/2", at=2), waits("y/1", at=3)], 2, ["x/1", "y/1"]),
        ([runs("x/0"), waits("x/1", at=1), waits("y/1", at=3)], 1, ["y/1"]),
        (
            [waits("x/1", at=1, weight=3.0), waits("x/2", at=2, weight=3.0), waits("y/1", at=3)],
            2,
            ["x/1", "x/2"],
        ),
        ([waits("x/1", 4, at=1), waits("y/1", 1, at=2), waits("y/2", 1, at=3)], 2, ["y/1", "y/2"]),
        ([waits("x/1", at=1), waits("x/2", at=2)], 2, ["x/1", "x/2"]),  # what others do not use
    ],
)
def test_fair_share(jobs: list[JobView], free: int, admit: list[str]) -> None:
    assert verdict(decide(PolicySpec("fairShare"), jobs, free)) == (admit, [])


def test_fair_share_preempts_only_if_told_to_and_only_above_the_share() -> None:
    jobs = [runs("x/1"), runs("x/2", at=1), waits("y/1", at=9)]
    assert verdict(decide(PolicySpec("fairShare"), jobs, 0)) == ([], [])
    told = PolicySpec("fairShare", {"preempt": True})
    assert verdict(decide(told, jobs, 0)) == ([], ["x/2"])
    assert verdict(decide(told, [runs("x/1"), runs("z/1"), waits("y/1", at=9)], 0)) == ([], ["z/1"])
    assert verdict(decide(told, [*jobs[:2], waits("x/3", at=9)], 0)) == ([], [])


def test_on_nodes_gangs_stay_where_they_are_and_free_gpus_go_first() -> None:
    """A shorter job takes a free node if there is one; only else is a longer run sent away."""
    policy = make_policy(PolicySpec("srtf"))
    long_ = runs("long", 4, remaining=900.0, nodes=("a",))
    short = runs("short", 2, remaining=5.0, nodes=("b",))
    jobs = [long_, short, waits("w", 4, remaining=50.0)]
    policy.rebuild(jobs, 10.0)
    room = NodeRoom({"a": 0, "b": 2, "c": 4})
    assert verdict(policy.decide(10.0, room)) == (["w"], [])
    assert room.placed["w"].gang == ("c",)
    policy.rebuild(jobs, 10.0)
    assert verdict(policy.decide(10.0, NodeRoom({"a": 0, "b": 2}))) == ([], ["long"])


def test_gpus_of_a_job_on_its_way_out_are_counted_on_but_not_given_out() -> None:
    """While a preempted job winds up nobody else is preempted for the same waiting one."""
    for spec in (PolicySpec("srtf"), LAS):
        policy = make_policy(spec)
        going = JobView("g", 0.0, 0, 1, 2, state=JobState.PREEMPTING, attained=5000.0, remaining=99.0)
        others = [runs("r", 2, attained=5000.0, remaining=90.0), waits("a", 2, at=1, remaining=5.0)]
        policy.rebuild([going, *others], 10.0)
        assert verdict(policy.decide(10.0, SlotRoom(0))) == ([], [])


def test_attack_who_reports_no_loss_goes_first_in_slaq() -> None:
    falls = LossTrend(1.0, 10.0, drop=0.2, before=1.0, largest=1.0)
    jobs = [runs("honest", loss_trend=falls), waits("silent")]
    assert verdict(decide(PolicySpec("slaq", {"epoch": 1.0}), jobs, 0)) == ([], [])
    one = add_loss(None, 1.0, 5.0)  # a single report tells nothing either
    jobs = [runs("honest", loss_trend=falls), waits("silent", loss_trend=one)]
    assert verdict(decide(PolicySpec("slaq", {"epoch": 1.0}), jobs, 0)) == ([], [])
    policy = make_policy(PolicySpec("slaq"))
    policy.rebuild([waits("silent", at=1.0), waits("honest", at=2.0, loss_trend=falls)])
    assert [job.key for job in policy.queue()] == ["honest", "silent"]


def test_attack_a_run_that_says_it_is_done_goes_first_in_srtf_est() -> None:
    jobs = [runs("odd", estimate=1e6, progress=1.0), waits("honest", estimate=60.0, progress=0.0)]
    assert verdict(decide(PolicySpec("srtfEst"), jobs, 0)) == ([], ["odd"])
