"""What standard errors of different sizes, or of some evals only, do to the rates of false stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.stopping import noise
from controller.policy.types import EvalPoint
from sim import specs
from sim.rules import vector
from sim.rules.evaluate import upper_bound

RUNS, HALF = 2000, 25
QUIET, LOUD = 0.02, 0.1


@pytest.mark.parametrize(("before", "after"), [(QUIET, LOUD), (LOUD, QUIET)], ids=["louder", "quieter"])
@pytest.mark.parametrize(("name", "limit"), [("glr", 0.025), ("scan", 0.1)])
def test_flat_runs_keep_their_bound_when_evals_become_noisier(
    name: str, limit: float, before: float, after: float
) -> None:
    """25 evals on many prompts, 25 on few, or the other way round: what the rule promises of flat runs."""
    stderrs = np.repeat([before, after], HALF) * np.ones((RUNS, 1))
    scores = 0.5 + stderrs * np.random.default_rng(7).standard_normal(stderrs.shape)
    stops = vector.first_stops(specs.rule(name), vector.Evals(scores, stderrs))
    assert upper_bound(int((stops >= 0).sum()), RUNS) <= limit


@given(seed=st.integers(0, 2**32 - 1), evals=st.integers(1, 40), usual=st.sampled_from([0.0, 0.05]))
@settings(max_examples=40, deadline=None)
def test_the_noise_of_a_matrix_is_that_of_its_rows(seed: int, evals: int, usual: float) -> None:
    """None, some, all but a late one, a zero, and all of different sizes."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(0.0, 0.05, (5, evals))
    stderrs = draw.uniform(0.01, 0.2, scores.shape)
    stderrs[0] = np.nan
    stderrs[1, draw.random(evals) < 0.5] = np.nan
    stderrs[2, draw.integers(evals) :] = np.nan
    stderrs[3, draw.integers(evals)] = 0.0
    levels = vector.noise_levels(vector.Evals(scores, stderrs), usual, 16.0)
    for row in range(len(scores)):
        state = noise.initial()
        for t in range(evals):
            error = float(stderrs[row, t])
            point = EvalPoint(t, float(scores[row, t]), stderr=None if np.isnan(error) else error)
            state = noise.observe(state, point)
            known = noise.estimate(state, usual, 16.0)
            if known is None:
                assert np.isnan(levels.sigma[row, t])
            else:
                assert levels.sigma[row, t] == pytest.approx(known.sigma, rel=1e-12)
                assert levels.freedom[row, t] == pytest.approx(known.freedom)
