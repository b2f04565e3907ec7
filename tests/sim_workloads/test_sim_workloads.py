"""Generated workloads: what comes out is what the settings say, and different settings give paired runs."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.params import ParamError
from sim.workloads import FAMILIES, CurveSettings, MixSettings, curves_for, generate
from sim.workloads.curves import AFTER_MEAN_PEAK
from sim.workloads.kinds import Kind

MANY = MixSettings(jobs=3000)


def test_shares_sizes_and_peaks_are_those_of_the_settings() -> None:
    population = generate(MANY, 5)
    truth, workload = population.truth, population.workload
    rlhf = [row for row, kind in enumerate(truth.kind) if kind is Kind.RLHF]
    assert len(rlhf) / 3000 == pytest.approx(0.8, abs=0.03)
    assert sum(kind is Kind.LORA for kind in truth.kind) / 3000 == pytest.approx(0.1, abs=0.02)
    assert sum(truth.hacks[row] for row in rlhf) / len(rlhf) == pytest.approx(0.6, abs=0.03)
    assert all(truth.kind[row] is Kind.RLHF for row, hacks in enumerate(truth.hacks) if hacks)
    peaks = [peak for peak, hacks in zip(truth.peak, truth.hacks, strict=True) if hacks]
    assert 0.55 <= min(peaks) < 0.56
    assert 0.74 < max(peaks) <= 0.75
    assert {workload.gpus[row] for row in rlhf} == {4, 8, 16}
    assert all(3 * 3600 <= workload.work[row] <= 10 * 3600 for row in rlhf)
    assert len({key.partition("/")[0] for key in workload.keys}) == 4


@pytest.mark.parametrize("load", [0.5, 1.0, 1.3])
def test_the_load_is_the_share_of_the_cluster_that_is_asked_for(load: float) -> None:
    workload = generate(MANY.but(load=load), 2).workload
    asked = sum(gpus * work for gpus, work in zip(workload.gpus, workload.work, strict=True))
    assert asked / (workload.submitted[-1] * MANY.gpus) == pytest.approx(load, rel=0.08)


def test_estimates_spread_around_the_truth() -> None:
    workload = generate(MANY, 1).workload
    ratios = [estimate / work for estimate, work in zip(workload.estimate, workload.work, strict=True)]
    assert fmean(ratios) == pytest.approx(1.02, abs=0.03)  # of a log-normal with sigma .2
    assert fmean(abs(ratio - 1.0) for ratio in ratios) == pytest.approx(0.16, abs=0.02)
    exact = generate(MANY.but(estimate_spread=0.0), 1).workload
    assert list(exact.estimate) == list(exact.work)


def test_one_setting_changes_one_thing_only() -> None:
    base = generate(MixSettings(), 7)
    noisy = generate(MixSettings(noise=0.05), 7)
    assert noisy.truth == base.truth
    assert (noisy.workload.submitted, noisy.workload.gpus) == (base.workload.submitted, base.workload.gpus)
    for quiet, loud in zip(base.workload.evals, noisy.workload.evals, strict=True):
        assert quiet is not None
        assert loud is not None
        assert quiet.losses == loud.losses
        assert quiet.scores != loud.scores
    loaded = generate(MixSettings(load=2.0), 7)
    assert [2.0 * t for t in loaded.workload.submitted] == pytest.approx(base.workload.submitted)
    assert loaded.workload.evals == base.workload.evals
    fewer = generate(MixSettings(hacking_share=0.2), 7)
    assert {row for row, hacks in enumerate(fewer.truth.hacks) if hacks} < {
        row for row, hacks in enumerate(base.truth.hacks) if hacks
    }


def test_the_same_seed_gives_the_same_and_another_one_does_not() -> None:
    assert generate(MixSettings(), 3) == generate(MixSettings(), 3)
    assert generate(MixSettings(), 3).workload.submitted != generate(MixSettings(), 4).workload.submitted


@pytest.mark.parametrize(
    ("family", "peak", "end"),
    [  # shares of the gain at the end, for Gao's laws as derived from d = progress / peak
        ("gao_rl", 0.55, 0.731),
        ("gao_rl", 0.65, 0.876),
        ("gao_rl", 0.75, 0.950),
        ("gao_bon", 0.55, 0.331),
        ("gao_bon", 0.65, 0.710),
        ("gao_bon", 0.75, 0.889),
        ("linear", 0.65, 1.0 - AFTER_MEAN_PEAK),
    ],
)
def test_hacking_curves_end_where_their_law_says(family: str, peak: float, end: float) -> None:
    shape = FAMILIES[family].hacking
    assert shape(1.0, peak, 1.0, 3.0) == pytest.approx(end, abs=0.001)
    assert shape(peak, peak, 1.0, 3.0) == pytest.approx(1.0)
    assert max(shape(p / 200, peak, 1.0, 3.0) for p in range(1, 201)) == pytest.approx(1.0, abs=0.001)


def test_healthy_curves_end_at_their_best_even_those_that_look_ill() -> None:
    for family in FAMILIES.values():
        scores = [family.healthy(p / 100, 0.6, 1.0, 3.0) for p in range(1, 101)]
        assert scores[-1] == pytest.approx(1.0)
        assert max(scores) == pytest.approx(scores[-1])
    flat = [FAMILIES["plateau"].healthy(p / 100, 0.6, 1.0, 3.0) for p in range(60, 101)]
    assert flat == [pytest.approx(1.0)] * len(flat)
    dip = [FAMILIES["dip_recover"].healthy(p / 100, 0.6, 1.0, 3.0) for p in range(60, 101)]
    assert min(dip) < dip[0] - 0.1


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.floats(0.005, 1.0),
    st.floats(0.0, 0.3),
    st.sampled_from(list(Kind)),
    st.integers(0, 1000),
)
def test_evals_are_in_order_end_at_the_end_and_stay_in_range(
    family: str, interval: float, noise: float, kind: Kind, seed: int
) -> None:
    wanted = CurveSettings(family=family, eval_interval=interval, noise=noise)
    [evals], truth = curves_for([kind], wanted, seed)
    assert evals.at[-1] == 1.0
    assert all(b - a <= interval * 1.02 for a, b in zip((0.0, *evals.at), evals.at, strict=False))
    assert all(0.0 <= score <= 1.0 for score in evals.scores)
    assert len(evals.losses) == len(evals.at)
    assert truth.hacks[0] <= (kind is Kind.RLHF)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load": 0.0}, "workload.load: 0.0 is not allowed, expected a value > 0"),
        ({"family": "sine"}, "workload.family: 'sine' is not allowed, expected one of linear, gao_rl"),
        ({"peak_low": 0.8}, "workload.peak_low: 0.8 is not allowed, expected at most peak_high = 0.75"),
        ({"rlhf_share": 0.95}, "workload.lora_share: 0.1 is not allowed"),
        ({"noise": float("nan")}, "workload.noise: nan is not allowed, expected a finite number"),
        ({"hackers": 0.5}, "workload.hackers: 0.5 is not allowed, expected one of family, eval_interval"),
        ({"jobs": 1.5}, "workload.jobs: 1.5 is not allowed, expected a whole number"),
    ],
)
def test_settings_that_cannot_be_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ParamError, match="^" + message.replace("(", r"\(")):
        MixSettings().but(**changes)


def test_whole_numbers_do_for_settings_that_are_numbers() -> None:
    assert MixSettings(load=1, noise=0).load == 1.0
