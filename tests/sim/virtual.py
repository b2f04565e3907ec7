"""Workloads, policies and settings for the engine's tests."""

from __future__ import annotations

from hypothesis import strategies as st

from controller.policy.queueing import EvalStop, QueuePolicy, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload

POLICIES = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("srtf"),
    PolicySpec("srtfEst"),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0, "variant": "Tiresias"}),
    PolicySpec("slaq", {"epoch": 10.0}),
    PolicySpec("fairShare"),
    PolicySpec("fairShare", {"preempt": True, "epoch": 10.0}),
]
K3 = RuleSpec(PolicySpec("kDeclines", {"k": 2}))
NEVER = RuleSpec(PolicySpec("kDeclines", {"k": 100}))
CLUSTERS = [Cluster.slots(8), Cluster.of_nodes([4, 4]), Cluster.of_nodes([8])]


def stopping(spec: PolicySpec) -> QueuePolicy:
    return EvalStop(make_policy(spec))


def _delays(bits: int) -> Latencies:
    """Each bit switches one of them on; half of all have none."""
    on = [bits >> number & 1 for number in range(13)]
    return Latencies(
        start_delay=2.5 * on[0],
        restart_cost=3.0 * on[1],
        suspend_delay=1.5 * on[2],
        retain_time=2.0 * on[3],
        eval_cost=0.75 * on[4],
        eval_delay=2.25 * on[5],
        checkpoint_interval=4.0 * on[6],
        checkpoint_on_preempt=not on[7],
        checkpoint_time=1.0 * on[8],
        queue_delay=0.5 * on[9],
        end_delay=1.25 * on[10],
        handover_delay=0.25 * on[11],
        preempt_delay=1.75 * on[12],
    )


latencies = st.integers(0, 2**14 - 1).map(lambda bits: _delays(bits if bits < 2**13 else 0))


def _workload(numbers: list[int]) -> Workload:
    """A job of each number: whole seconds, odd shares, some without evals."""
    numbers = sorted(numbers, key=lambda n: (n & 127) % 81)
    evals = []
    for n in numbers:
        count, seed = (n >> 15) % 7, n >> 18
        at = [(number + 1) / count for number in range(count)]
        scores = [float((seed >> 3 * number) % 8) for number in range(count)]
        losses = [8.0 / (number + 1) + (seed >> number) % 3 for number in range(count)]
        evals.append(Evals(at, scores, losses) if count else None)
    work = [1 + (n >> 9) % 60 for n in numbers]
    return Workload(
        submitted=[(n & 127) % 81 for n in numbers],
        gpus=[(1, 2, 4, 2)[n >> 7 & 3] for n in numbers],
        work=work,
        keys=[f"tenant{n % 3}/{row}" for row, n in enumerate(numbers)],
        priority=[(n >> 20) % 2 for n in numbers],
        weight=[1.0 + (n >> 21) % 2 for n in numbers],
        estimate=[seconds * (1 + (n >> 22) % 5) / 2 for n, seconds in zip(numbers, work, strict=True)],
        evals=evals,
    )


# One number per job: drawn fast, and shrunk well enough.
workloads = st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=14).map(_workload)
specs = st.sampled_from(POLICIES)
clusters = st.sampled_from(CLUSTERS)
