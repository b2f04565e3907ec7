"""The trace that comes with the repository is one on which parity means something."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.parity.compressed_trace import TraceOnCluster, compress_trace, compressed
from controller.parity.simulated import simulated
from sim import specs
from sim.latencies import Latencies
from sim.traces import read

TRACE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "sixty.jsonl"
POLICIES = {"fifo": 0, "srtf": 5, "las:first_threshold=60000,second_threshold=180000": 5}
# As a local cluster took them in a run of that length.
DELAYS = Latencies(
    queue_delay=0.19,
    start_delay=0.63,
    eval_delay=1.76,
    retain_time=0.84,
    preempt_delay=3.16,
    suspend_delay=0.74,
    end_delay=0.08,
    handover_delay=0.08,
)


@pytest.fixture(scope="module")
def sixty() -> TraceOnCluster:
    return compress_trace(read([TRACE]), minutes=25.0)


def test_it_has_sixty_jobs_that_want_more_than_there_is(sixty: TraceOnCluster) -> None:
    assert len(sixty.workload) >= 60
    assert sixty.load is not None
    assert sixty.load >= 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_are_stopped_and_preempted(sixty: TraceOnCluster, policy: str) -> None:
    found = simulated(sixty, compressed(specs.policy(policy), sixty.speed), DELAYS)
    assert found.stops >= 5
    assert found.preemptions >= POLICIES[policy]
