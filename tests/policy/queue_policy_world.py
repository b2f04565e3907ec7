"""A pool in miniature that tells a queue policy what happens, and can show the same as a snapshot.

Times and amounts are whole numbers or fractions and GPUs are powers of two, so that a policy told of events
and one rebuilt from views compute with exactly the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from controller.policy.pool.placement import NodeRoom, SlotRoom
from controller.policy.queueing import POLICIES as REGISTERED
from controller.policy.queueing import EvalStop, QueueDecision, QueuePolicy, make_policy
from controller.policy.queueing.slaq import add_loss
from controller.policy.types import JobState, JobView, PolicySpec, Proposal

_VARIANTS = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("srtf"),
    PolicySpec("srtfEst"),
    PolicySpec("las"),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0}),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0, "variant": "Tiresias"}),
    PolicySpec("slaq", {"epoch": 0.0}),
    PolicySpec("slaq", {"epoch": 8.0}),
    PolicySpec("fairShare"),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0}),
    PolicySpec("fifo", {"max_wait": 12.0}),
    PolicySpec("srtf", {"max_wait": 12.0}),
    PolicySpec("srtfEst", {"max_wait": 12.0}),
    PolicySpec("las", {"first_threshold": 16.0, "second_threshold": 64.0, "max_wait": 12.0}),
    PolicySpec("slaq", {"epoch": 8.0, "max_wait": 12.0}),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0, "max_wait": 12.0}),
]
# Every registered policy: in these variants, or as it is by default.
POLICIES = [*_VARIANTS, *(PolicySpec(one) for one in REGISTERED if one not in {v.name for v in _VARIANTS})]
STOP = Proposal(60, 30, "ConsecutiveDeclines", 3, 3)


def name(spec: PolicySpec) -> str:
    return spec.name + "".join(f",{k}={v}" for k, v in spec.params.items())


class HiddenSlots:
    """A room of slots that does not let on: policies take the general way, by `run_best`."""

    slots = None

    def __init__(self, slots: int) -> None:
        self._room = SlotRoom(slots)
        self.take, self.give, self.trial = self._room.take, self._room.give, self._room.trial
        self.bars = self._room.bars


@dataclass(frozen=True)
class Op:
    """One thing that happens; the numbers choose whom it happens to and how."""

    kind: str
    a: int
    b: int


ops = st.lists(
    st.builds(
        Op,
        st.sampled_from(
            ["submit", "submit", "finish", "free", "report", "propose", "reprioritise", "decide", "decide"]
        ),
        st.integers(0, 63),
        st.integers(0, 63),
    ),
    max_size=60,
)


class QueuePolicyWorld:
    """Jobs, their states, and a policy that is told of everything by events."""

    def __init__(self, policy: QueuePolicy, room: SlotRoom | NodeRoom | HiddenSlots) -> None:
        self.policy, self.room, self.now = policy, room, 0
        self.jobs: dict[str, JobView] = {}
        self.heard: dict[str, int] = {}  # until when attained and remaining are counted
        self.count = 0
        self.decisions: list[tuple[Any, ...]] = []

    def views(self) -> list[JobView]:
        """All jobs as they are now."""
        return [
            replace(self.as_of_now(job), policy_state=self.policy.policy_state(job.key))
            for job in self.jobs.values()
        ]

    def as_of_now(self, job: JobView) -> JobView:
        """A running job's service and remaining time go on by the second; its progress is as reported."""
        ran = self.now - self.heard[job.key]
        if job.state is not JobState.ADMITTED or not ran:
            return job
        assert job.remaining is not None
        return replace(job, attained=job.attained + ran * job.gpus, remaining=job.remaining - ran)

    def put(self, job: JobView) -> JobView:
        self.jobs[job.key] = job
        self.heard[job.key] = self.now
        return job

    def pick(self, state: JobState, number: int) -> JobView | None:
        some = [job for job in self.jobs.values() if job.state is state]
        return some[number % len(some)] if some else None

    def happen(self, op: Op) -> None:
        self.now += 1 + op.b % 3
        self.end_due()
        getattr(self, op.kind)(op)

    def end_due(self) -> None:
        """Whoever has reached its end by now ends now, before anything else is told."""
        for job in list(self.jobs.values()):
            if job.state is JobState.ADMITTED and job.remaining <= self.now - self.heard[job.key]:  # type: ignore[operator]
                self.leave(job)

    def leave(self, job: JobView) -> None:
        self.policy.removed(job, self.now)
        self.room.give(job)
        del self.jobs[job.key]

    def submit(self, op: Op) -> None:
        self.count += 1
        length = 8 + 8 * op.b
        job = JobView(
            key=f"tenant{op.a % 3}/{self.count}",
            submitted=self.now - op.a % 2,
            sequence=self.count,
            replicas=1,
            gpus_per_replica=1 << op.a % 4,
            priority=op.b % 2 if op.a > 48 else 0,
            since=self.now,
            remaining=Fraction(length),  # type: ignore[arg-type]
            estimate=Fraction(length * (1 + op.a % 4), 2) if op.a % 5 else None,  # type: ignore[arg-type]
            progress=Fraction(0),  # type: ignore[arg-type]
            attained=Fraction(0),  # type: ignore[arg-type]
            weight=1.0 + op.a % 3,
        )
        self.policy.submitted(self.put(job), self.now)

    def finish(self, op: Op) -> None:
        job = self.pick(JobState.ADMITTED, op.a)
        if job is not None:
            self.leave(job)

    def free(self, op: Op) -> None:
        """A preempted job is off its GPUs and waits again; a stopped one is gone."""
        job = self.pick(JobState.PREEMPTING, op.a)
        if job is None:
            job = self.pick(JobState.STOPPING, op.a)
            if job is not None:
                self.leave(job)
            return
        self.room.give(job)
        again = self.put(replace(job, state=JobState.QUEUED, since=self.now, nodes=()))
        self.policy.submitted(again, self.now)

    def report(self, op: Op) -> None:
        job = self.pick(JobState.ADMITTED, op.a)
        if job is None:
            return
        job = self.as_of_now(job)
        assert job.remaining is not None
        ran = job.attained / job.gpus
        job = replace(job, progress=ran / (ran + job.remaining))
        if op.b % 2:
            job = replace(job, loss_trend=add_loss(job.loss_trend, op.b / 4, job.attained))
        self.policy.updated(self.put(job), self.now)

    def propose(self, op: Op) -> None:
        job = self.pick(JobState.ADMITTED, op.a)
        if job is not None and op.b % 3 == 0:
            self.policy.updated(self.put(replace(self.as_of_now(job), proposal=STOP)), self.now)

    def reprioritise(self, op: Op) -> None:
        job = self.pick(JobState.QUEUED, op.a)
        if job is not None:
            self.policy.updated(self.put(replace(job, priority=op.b % 3)), self.now)

    def decide(self, op: Op) -> QueueDecision:
        decision = self.policy.decide(self.now, self.room)
        self.decisions.append(plain(decision))
        for job in decision.admit:
            nodes = self.room.placed.pop(job.key).gang if isinstance(self.room, NodeRoom) else ()
            view = self.jobs[job.key]
            assert view.since is not None
            waited = self.now - view.since
            view = replace(view, state=JobState.ADMITTED, since=self.now, nodes=nodes, waited=waited)
            self.policy.admitted(self.put(view), self.now)
        for job, _ in decision.preempt:
            view = replace(self.as_of_now(self.jobs[job.key]), state=JobState.PREEMPTING)
            self.policy.leaving(self.put(view), self.now)
        for job in decision.release:
            view = replace(self.as_of_now(self.jobs[job.key]), state=JobState.STOPPING)
            self.policy.leaving(self.put(view), self.now)
        return decision


def plain(decision: QueueDecision) -> tuple[Any, ...]:
    """A decision by names, comparable between policies that hold different views of the same jobs."""
    return (
        [job.key for job in decision.admit],
        [(job.key, why) for job, why in decision.preempt],
        [job.key for job in decision.release],
        decision.wake_at,
    )


def make(spec: PolicySpec) -> QueuePolicy:
    return EvalStop(make_policy(spec))
