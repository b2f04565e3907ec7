"""The bound on waits: stated in `ageing`, kept by every policy, over any finite runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_policy_world import POLICIES, name

from controller.policy.params import ParamError
from controller.policy.pool.placement import NodeRoom, SlotRoom
from controller.policy.queueing import MAX_WAIT, EvalStop, QueuePolicy, make_policy
from controller.policy.queueing.slaq import add_loss
from controller.policy.types import JobState, JobView, PolicySpec

MOST = 40.0  # s, max_wait of all tests here
BASES = [spec for spec in POLICIES if MAX_WAIT not in spec.params]
every_policy = pytest.mark.parametrize("spec", BASES, ids=name)


def aged(spec: PolicySpec, most: float = MOST) -> QueuePolicy:
    return EvalStop(make_policy(PolicySpec(spec.name, {**spec.params, MAX_WAIT: most})))


def waits(key: str, gpus: int = 1, at: float = 0.0, **more: Any) -> JobView:
    return JobView(key, at, 0, 1, gpus, since=at, **more)


def runs(key: str, gpus: int = 1, at: float = 0.0, **more: Any) -> JobView:
    more.setdefault("since", at)
    return JobView(key, at, 0, 1, gpus, state=JobState.ADMITTED, **more)


def verdict(policy: QueuePolicy, now: float, free: int) -> tuple[list[str], list[str], float | None]:
    decision = policy.decide(now, SlotRoom(free))
    return [j.key for j in decision.admit], [j.key for j, _ in decision.preempt], decision.wake_at


# -- tables -------------------------------------------------------------------------------------------------


def test_an_overdue_job_comes_first_whatever_the_policy_thinks_of_it() -> None:
    policy = aged(PolicySpec("srtf"))
    policy.rebuild([waits("long", at=0.0, remaining=900.0), waits("short", at=30.0, remaining=1.0)], 39.0)
    assert verdict(policy, 39.0, 1) == (["short"], [], 40.0)  # asks to be woken when it is overdue
    assert verdict(policy, 40.0, 1)[0] == ["long"]
    assert [j.key for j in policy.queue()] == ["long", "short"]


def test_priority_does_not_pass_an_overdue_job() -> None:
    policy = aged(PolicySpec("fifo"))
    policy.rebuild([waits("low", at=0.0), waits("high", at=30.0, priority=9)], 40.0)
    assert verdict(policy, 40.0, 1)[0] == ["low"]


def test_nobody_passes_one_that_does_not_fit() -> None:
    policy = aged(PolicySpec("fifo", {"backfill": True}))
    jobs = [waits("big", 4, at=0.0), waits("small", 1, at=1.0), runs("r", 2)]
    policy.rebuild(jobs, 39.0)
    assert verdict(policy, 39.0, 2)[0] == ["small"]
    policy.rebuild(jobs, 40.0)
    assert verdict(policy, 40.0, 2) == ([], [], None)  # r is not preempted: fifo does not


def test_a_preempting_policy_makes_room_at_once_and_only_as_much_as_it_takes() -> None:
    policy = aged(PolicySpec("srtf"))
    served = runs("served", 2, attained=100.0, remaining=1.0)
    fresh = runs("fresh", 2, attained=1.0, remaining=1.0)
    policy.rebuild([waits("big", 2, at=0.0, remaining=900.0), served, fresh], 40.0)
    assert verdict(policy, 40.0, 0) == ([], ["served"], None)
    policy.rebuild(
        [waits("big", 2, at=0.0, remaining=900.0), replace(served, state=JobState.PREEMPTING), fresh], 41.0
    )
    assert verdict(policy, 41.0, 0) == ([], [], None)  # one on its way out is enough


def test_after_such_a_wait_a_run_is_left_alone_for_as_long() -> None:
    """Else the next short job would send it away again before it got anywhere."""
    spec = PolicySpec("srtf")
    policy = aged(spec)
    long_ = runs("long", at=0.0, since=100.0, waited=MOST, remaining=900.0)
    policy.rebuild([long_, waits("short", at=110.0, remaining=1.0)], 110.0)
    assert verdict(policy, 110.0, 0) == ([], [], 140.0)
    assert verdict(policy, 140.0, 0)[1] == ["long"]
    policy.rebuild([replace(long_, waited=MOST - 1), waits("short", at=110.0, remaining=1.0)], 110.0)
    assert verdict(policy, 110.0, 0)[1] == ["long"]


def test_a_demoted_job_has_no_such_right() -> None:
    policy = aged(PolicySpec("fifo"))
    policy.rebuild([waits("demoted", at=0.0, demoted=True, priority=-9), waits("other", at=30.0)], 60.0)
    assert verdict(policy, 60.0, 1)[0] == ["other"]


def test_service_goes_on_being_counted_while_a_run_is_left_alone() -> None:
    """When a run may be preempted again, las knows of all it has had."""
    policy = aged(PolicySpec("las", {"first_threshold": 60.0, "second_threshold": 600.0}))
    policy.rebuild([runs("r", 2, since=100.0, waited=MOST), waits("w", 2, at=120.0)], 100.0)
    assert verdict(policy, 139.0, 0) == ([], [], 140.0)
    assert verdict(policy, 140.0, 0)[1] == ["r"]  # 80 GPU-seconds: in the second queue


@pytest.mark.parametrize("value", [0.0, -1.0, inf, "soon"])
def test_a_bound_that_is_none_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ParamError, match=r"las\.max_wait"):
        make_policy(PolicySpec("las", {MAX_WAIT: value}))


# -- the bound ----------------------------------------------------------------------------------------------


@dataclass
class Stay:
    """One stay in the queue: since when, and how many waited before it."""

    key: str
    since: float
    ahead: int
    until: float = inf


@dataclass
class Pool:
    """Runs jobs to their ends, looking only when something happens or the policy asked to be woken."""

    policy: QueuePolicy
    room: SlotRoom | NodeRoom
    gone_after: float  # s from a preemption to its free GPUs
    now: float = 0.0
    jobs: dict[str, JobView] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    leaves: dict[str, float] = field(default_factory=dict)
    stays: list[Stay] = field(default_factory=list)
    wake_at: float | None = None

    def run(self, arrivals: list[JobView]) -> list[Stay]:
        arrivals = sorted(arrivals, key=lambda j: j.submitted)
        for _ in range(20_000):
            times = [*self.ends.values(), *self.leaves.values()]
            times += [arrivals[0].submitted] if arrivals else []
            if self.wake_at is not None:
                times.append(self.wake_at)
            if not times:
                break
            self.now = max(self.now, min(times))
            for key in [k for k, at in self.ends.items() if at <= self.now]:
                self._end(key)
            for key in [k for k, at in self.leaves.items() if at <= self.now]:
                self._back(key)
            while arrivals and arrivals[0].submitted <= self.now:
                self._enter(arrivals.pop(0))
            self._settle()
        assert not self.jobs, "jobs are left, and nothing will happen any more"
        return self.stays

    def _enter(self, job: JobView) -> None:
        ahead = sum(1 for other in self.jobs.values() if other.state is JobState.QUEUED)
        self.stays.append(Stay(job.key, self.now, ahead))
        self.jobs[job.key] = job
        self.policy.submitted(job, self.now)

    def _end(self, key: str) -> None:
        job = self.jobs.pop(key)
        del self.ends[key]
        self.policy.removed(job, self.now)
        self.room.give(job)

    def _back(self, key: str) -> None:
        job = self.jobs[key]
        del self.leaves[key]
        self.room.give(job)
        self._enter(replace(job, state=JobState.QUEUED, since=self.now, nodes=()))

    def _settle(self) -> None:
        decision = self.policy.decide(self.now, self.room)
        self.wake_at = decision.wake_at
        assert self.wake_at is None or self.wake_at > self.now
        for start in decision.admit:
            job = self.jobs[start.key]
            stay = next(s for s in reversed(self.stays) if s.key == job.key)
            stay.until = self.now
            nodes = self.room.placed.pop(job.key).gang if isinstance(self.room, NodeRoom) else ()
            job = replace(
                job, state=JobState.ADMITTED, since=self.now, nodes=nodes, waited=self.now - stay.since
            )
            self.jobs[job.key] = job
            assert job.remaining is not None
            self.ends[job.key] = self.now + job.remaining
            self.policy.admitted(job, self.now)
        for go, _ in decision.preempt:
            job = self.jobs[go.key]
            left = self.ends.pop(job.key) - self.now
            assert job.remaining is not None
            served = job.attained + (job.remaining - left) * job.gpus
            trend = add_loss(job.loss_trend, 1.0, served)  # flat: for slaq, of no interest any more
            job = replace(job, state=JobState.PREEMPTING, remaining=left, attained=served, loss_trend=trend)
            self.jobs[job.key] = job
            self.leaves[job.key] = self.now + self.gone_after
            self.policy.leaving(job, self.now)


def bound(stay: Stay, preempts: bool, longest: float, gone_after: float) -> float:
    """As stated in `controller.policy.queueing.ageing`."""
    turn = min(longest, MOST) if preempts else longest
    return MOST + (stay.ahead + 1) * (turn + gone_after)


ROOMS = {"slots": lambda: SlotRoom(4), "nodes": lambda: NodeRoom({"a": 2, "b": 2})}
JOBS = st.lists(
    st.tuples(
        st.integers(0, 300),  # when it comes
        st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),  # gang
        st.sampled_from([1.0, 3.0, 10.0, 25.0, 90.0]),  # how long it runs
        st.integers(0, 2),  # namespace, and priority
    ),
    min_size=1,
    max_size=40,
)


def views(rows: list[tuple[int, tuple[int, int], float, int]]) -> list[JobView]:
    return [
        JobView(
            f"tenant{who}/{i}",
            float(at),
            i,
            *gang,
            priority=who,
            since=float(at),
            remaining=length,
            estimate=length,
            progress=0.0,
            weight=1.0 + who,
        )
        for i, (at, gang, length, who) in enumerate(rows)
    ]


@every_policy
@pytest.mark.parametrize("room", ROOMS)
@settings(max_examples=60, deadline=None)
@given(JOBS, st.sampled_from([0.0, 2.0, 7.0]))
def test_no_job_waits_longer_than_the_bound(
    spec: PolicySpec, room: str, rows: list[tuple[int, tuple[int, int], float, int]], gone_after: float
) -> None:
    jobs = views(rows)
    policy = aged(spec)
    longest = max(job.remaining or 0.0 for job in jobs)
    for stay in Pool(policy, ROOMS[room](), gone_after).run(jobs):
        most = bound(stay, make_policy(spec).preempts, longest, gone_after)
        assert stay.until - stay.since <= most, stay


STREAM = [(t, (1, 2), 10.0, 2) for t in range(0, 900, 5)]  # two gangs of two GPUs always run


@pytest.mark.parametrize(
    ("spec", "victim"),
    [
        (PolicySpec("fifo"), (6, (1, 2), 10.0, 0)),  # priority
        (PolicySpec("fifo", {"backfill": True}), (6, (2, 2), 10.0, 2)),  # size
        (PolicySpec("srtf"), (6, (1, 2), 90.0, 2)),  # length
        (PolicySpec("srtfEst"), (6, (1, 2), 90.0, 2)),
        (PolicySpec("las", {"first_threshold": 20.0, "second_threshold": 60.0}), (6, (1, 2), 90.0, 2)),
        (PolicySpec("slaq", {"epoch": 8.0}), (6, (1, 2), 90.0, 0)),
        (PolicySpec("fairShare"), (6, (2, 2), 10.0, 0)),
    ],
    ids=lambda value: name(value) if isinstance(value, PolicySpec) else "",
)
def test_a_stream_that_starves_a_job_for_ever_does_so_no_longer(
    spec: PolicySpec, victim: tuple[int, tuple[int, int], float, int]
) -> None:
    """The base policy leaves it waiting until the stream ends; with the bound it is done long before."""
    jobs = views([victim, *STREAM])

    def longest_wait(policy: QueuePolicy) -> float:
        stays = Pool(policy, SlotRoom(4), 0.0).run(jobs)
        return max(s.until - s.since for s in stays if s.key == jobs[0].key)

    assert longest_wait(EvalStop(make_policy(spec))) > 300.0
    assert longest_wait(aged(spec)) <= MOST + 90.0
