"""Whole runs: the planner against the engine, what is learned, what is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.policy.rollout import ActorLaw, RolloutSettings, Supply, forecast, plan_rollout
from sim.rollout import schemes
from sim.rollout.hindsight import run_hindsight
from sim.rollout.registry import changed
from sim.rollout.run import Job, generate, run
from sim.rollout.setting import Predictor, RolloutSetting, Scheme
from sim.rollout.shared import ActorPool, SharedTrial, run_shared
from sim.rollout.workload import GSM8K, batches

SMALL = RolloutSetting(prompts=96, per_epoch=1, slots=32, most=6)


@pytest.mark.parametrize("dispatch", ["LongestFirst", "Ranked"])
@pytest.mark.parametrize("actors", [1, 3, 6])
def test_the_estimate_is_what_the_engine_takes(dispatch: str, actors: int) -> None:
    errors, cost_errors = [], []
    law, prompt = SMALL.law, GSM8K.prompt
    exact = ActorLaw(
        iteration=law.iteration, sequence=law.sequence + law.context * prompt, growth=law.context,
        prefill=law.prefill * prompt, slots=64,
    )  # fmt: skip
    for seed in range(3):
        (batch,) = batches(GSM8K, 256, 4, per_epoch=1, epochs=1, seed=seed)
        means = tuple(sum(lengths) / 4 for lengths in batch.lengths)
        settings = RolloutSettings(min=actors, max=actors, static=actors, dispatch=dispatch)
        plan = plan_rollout(forecast(means, 4, GSM8K.copies, GSM8K.cap), exact, settings, Supply())
        assert plan.seconds is not None
        assert plan.gpu_seconds is not None
        scheme = Scheme("fixed", dispatch=dispatch, cut=0.7)
        report = generate(
            replace(SMALL, slots=64), scheme, batch.prompts(means), None, Supply(),
            count=actors, release=(True,) * actors,
        )  # fmt: skip
        errors.append(plan.seconds / report.seconds - 1.0)
        cost_errors.append(plan.gpu_seconds / report.held - 1.0)
    assert abs(sum(errors) / 3) < 0.05, errors
    assert abs(sum(cost_errors) / 3) < 0.05, cost_errors


def test_a_run_is_the_same_again_and_another_seed_is_another_run() -> None:
    assert run(SMALL, schemes.AUTO, 3) == run(SMALL, schemes.AUTO, 3)
    assert run(SMALL, schemes.AUTO, 3) != run(SMALL, schemes.AUTO, 4)


def test_the_planner_learns_the_law_and_the_spread() -> None:
    job = Job(replace(SMALL, epochs=8), schemes.AUTO, 0)
    first = job.law
    job.play()
    law, prompt = SMALL.law, SMALL.profile.prompt
    assert first.iteration == pytest.approx(1.15 * law.iteration)
    assert job.law.iteration == pytest.approx(law.iteration, rel=0.05)
    full = job.law.iteration + SMALL.slots * job.law.sequence
    assert full == pytest.approx(
        law.iteration + SMALL.slots * (law.sequence + law.context * prompt), rel=0.03
    )
    assert job.history.spread == pytest.approx(SMALL.profile.copies, rel=0.15)


def test_random_predictions_end_at_static_within_three_steps() -> None:
    steps = run(replace(SMALL, epochs=6), schemes.AUTO_RANDOM, 0)
    assert {step.reason for step in steps[3:]} == {"PredictionsPoor"}
    assert {step.actors for step in steps[3:]} == {SMALL.static}
    good = run(replace(SMALL, epochs=6), schemes.AUTO, 0)
    assert "PredictionsPoor" not in {step.reason for step in good}


@pytest.mark.parametrize(("start", "kept"), [(0.0, False), (60.0, True)])
def test_idle_actors_are_kept_where_starts_are_slow(start: float, kept: bool) -> None:
    steps = run(replace(SMALL, start=start, between=20.0), schemes.AUTO, 0)
    assert all((step.kept > 0) is kept for step in steps)


def test_kept_actors_are_held_over_the_whole_step() -> None:
    for step in run(SMALL, schemes.LONGEST_FIRST, 0):
        assert step.held == pytest.approx(3 * SMALL.gpus_per_actor * step.step)
        assert step.generating == pytest.approx(3 * SMALL.gpus_per_actor * step.seconds)


def test_hindsight_is_never_worse_by_its_own_objective() -> None:
    ours, best = run_hindsight(SMALL, schemes.AUTO, 1)
    for mine, other in zip(ours, best, strict=True):
        assert other.held <= mine.held + 1e-9 or other.seconds < mine.seconds


def test_lengths_drift_as_the_paper_says() -> None:
    one = batches(replace(GSM8K, copies=0.0), 2000, 1, per_epoch=1, epochs=2, seed=0)
    before = dict(zip(one[0].keys, one[0].lengths, strict=True))
    moves = [abs(new[0] - before[key][0]) for key, new in zip(one[1].keys, one[1].lengths, strict=True)]
    assert sum(m <= 50 for m in moves) / 2000 == pytest.approx(0.76, abs=0.06)  # the paper: about .70
    assert sum(m <= 100 for m in moves) / 2000 == pytest.approx(0.94, abs=0.05)  # about .90


def test_settings_are_changed_by_name() -> None:
    found = changed(RolloutSetting(), {"slots": "48", "lengths.mean": "500", "start": "0"})
    assert (found.slots, found.profile.mean, found.start) == (48, 500.0, 0.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"slot": "3"}, "'slot' is not allowed, expected one of .*slots"),
        ({"slots": "many"}, "slots: 'many' is not allowed, expected a number"),
        ({"slots": "0"}, "slots: '0' is not allowed"),
        ({"lengths.mean": "nan"}, "lengths.mean: 'nan' is not allowed"),
        ({"static": "9"}, "static: 9 is not allowed, expected at most most, 8"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(RolloutSetting(), values)


def test_an_unknown_predictor_is_refused() -> None:
    with pytest.raises(ValueError, match="predictor: 'psychic'"):
        run(SMALL, replace(schemes.AUTO, predictor=Predictor("psychic")), 0)


@pytest.mark.parametrize(("places", "start"), [(4, 3.0), (3, 3.0), (2, 10.0)])
def test_two_jobs_share_places_and_no_place_is_held_twice(
    places: int, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    settle = ActorPool.settle

    def watched(pool: ActorPool, now: float = 0.0) -> None:
        settle(pool, now)
        nodes = [entry.node for job in pool.jobs for entry in job.entries.values()]
        taken.append(len(nodes))
        assert len(set(nodes)) == len(nodes) <= places

    monkeypatch.setattr(ActorPool, "settle", watched)
    seconds, held = run_shared(SharedTrial(replace(SMALL, start=start, per_epoch=2), places, 0))
    assert max(taken) == places
    assert 0.0 < held <= places * SMALL.gpus_per_actor * seconds
