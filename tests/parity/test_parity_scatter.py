"""Trials simulated again with other delays: what is moved, by how much, and what is said of the outcomes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_world import CALIBRATED, timeline

from controller.parity.calibration import Calibration, Measured
from controller.parity.compare import compare
from controller.parity.compressed_trace import TraceOnCluster, compress_trace, compressed
from controller.parity.scatter import Scatter, drawn, moved, scatter, shaken
from controller.parity.simulated import simulated
from controller.parity.timeline import How
from controller.policy.types import PolicySpec
from sim.traces import read
from sim.workload import Evals

TRACE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "sixty.jsonl"
FIFO = PolicySpec("fifo")


@pytest.fixture(scope="module")
def sixty() -> TraceOnCluster:
    return compress_trace(read([TRACE]), minutes=20.0)


def scattering(deviation: float, *names: str) -> Calibration:
    kept = (replace(m, deviation=deviation if m.name in names else 0.0) for m in CALIBRATED.measured)
    return Calibration(tuple(kept))


def test_delays_that_do_not_scatter_give_the_one_figure(sixty: TraceOnCluster) -> None:
    calibration = scattering(0.0)
    alone = simulated(sixty, FIFO, calibration.latencies).mean_jct
    assert scatter(sixty, FIFO, calibration, replays=3) == Scatter(3, pytest.approx(alone), alone, alone)


def test_delays_that_scatter_give_a_range_around_their_mean_and_the_same_one_each_time(
    sixty: TraceOnCluster,
) -> None:
    srtf = compressed(PolicySpec("srtf"), sixty.speed)
    found = scatter(sixty, srtf, CALIBRATED, replays=25)
    assert found.low < found.mean < found.high
    assert found == scatter(sixty, srtf, CALIBRATED, replays=25)
    wide = scatter(sixty, srtf, scattering(2.0, "eval_delay", "start_delay"), replays=25)
    assert wide.high - wide.low > found.high - found.low


@pytest.mark.parametrize("name", ["queue_delay", "start_delay", "end_delay", "eval_delay"])
def test_each_delay_moves_what_it_delays_and_every_job_stays_who_it_is(
    sixty: TraceOnCluster, name: str
) -> None:
    before = sixty.workload
    made = shaken(sixty, scattering(0.5, name), random.Random(3))
    after = made.workload
    rows = {after.key(row): row for row in range(len(after))}
    assert list(after.submitted) == sorted(after.submitted)
    changed = {"submitted": 0, "work": 0, "evals": 0}
    for old in range(len(before)):
        new = rows[before.key(old)]
        assert (made.names[new], made.gangs[new]) == (sixty.names[old], sixty.gangs[old])
        assert after.gpus[new] == before.gpus[old]
        assert (after.estimate or [None] * len(after))[new] == (before.estimate or [None] * len(before))[old]
        assert abs(after.submitted[new] - before.submitted[old]) < 3.0
        assert abs(after.work[new] - before.work[old]) < 3.0
        changed["submitted"] += after.submitted[new] != before.submitted[old]
        changed["work"] += after.work[new] != before.work[old]
        (was, now) = (before.evals[old], after.evals[new])
        assert (was is None) == (now is None)
        changed["evals"] += was is not None and list(was.at) != list(now.at)  # type: ignore[union-attr]
    what = {"queue_delay": "submitted", "eval_delay": "evals"}.get(name, "work")
    assert changed[what] > 30
    assert not any(count for column, count in changed.items() if column != what)


def test_what_is_drawn_has_the_mean_and_the_spread_that_were_measured() -> None:
    rng = random.Random(5)
    for mean, deviation in ((0.2, 0.1), (3.0, 2.0), (0.16, 0.9)):
        made = Calibration((Measured("preempt_delay", 9, mean, deviation, ""),))
        took = [mean + drawn(made, rng, "preempt_delay") for _ in range(40_000)]
        assert min(took) >= 0.0
        assert np.mean(took) == pytest.approx(mean, rel=0.1)
        assert np.std(took) == pytest.approx(deviation, rel=0.1)
    alike = Calibration(
        (Measured("preempt_delay", 1, 3.0, 0.0, ""), Measured("retain_time", 0, 0.0, 0.0, ""))
    )
    assert [drawn(alike, rng, m.name) for m in alike.measured] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["retain_time", "suspend_delay", "handover_delay", "preempt_delay"])
def test_what_stops_and_preemptions_take_scatters_as_well(sixty: TraceOnCluster, name: str) -> None:
    srtf = compressed(PolicySpec("srtf"), sixty.speed)
    found = scatter(sixty, srtf, scattering(2.0, name), replays=5)
    assert found.low < found.high


# Thousandths: two shares a rounding error apart would be one after they are moved.
SHARES = st.lists(st.integers(10, 1000).map(lambda n: n / 1000), min_size=1, max_size=6, unique=True)


@given(SHARES, st.floats(-1.5, 1.5))
def test_evals_are_moved_together_and_none_is_heard_out_of_its_run(at: list[float], by: float) -> None:
    at = sorted(at)
    scores = [float(n) for n in range(len(at))]
    found = moved(Evals(at, scores, stderrs=[0.5] * len(at), others={"safety": scores}), by)
    there = [n for n, share in enumerate(at) if 0.0 < share + by <= 1.0]
    assert list(found.scores) == [float(n) for n in there] == list(found.others["safety"])
    assert list(found.at) == [at[n] + by for n in there]
    assert len(found.stderrs) == len(there)
    assert not found.losses


def test_the_cluster_is_held_against_the_mean_of_the_replays_too() -> None:
    one = timeline(a=(0, [(0, 20, How.END)]))
    said = compare("fifo", one, one, [], CALIBRATED, Scatter(9, 19.0, 18.0, 21.0)).as_dict()
    assert said["relative_error"] == 0.0
    assert said["relative_error_scattered"] == pytest.approx(-0.05)
    assert said["jct_sim_scattered"] == {"replays": 9, "mean": 19.0, "low": 18.0, "high": 21.0}
    alone = compare("fifo", one, one, [], CALIBRATED).as_dict()
    assert (alone["jct_sim_scattered"], alone["relative_error_scattered"]) == (None, None)
