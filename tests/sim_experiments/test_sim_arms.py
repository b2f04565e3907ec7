"""What `bases` and `competitors` run is what they say they run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.types import PolicySpec
from sim import specs
from sim.experiments.executor import Processes
from sim.experiments.registry import EXPERIMENTS, run_experiment
from sim.experiments.setting import Setting

TINY = replace(Setting().but(jobs=20), seeds=2)


def test_bases_holds_a_given_base_with_parameters_of_its_own() -> None:
    las = specs.policy("las:first_threshold=5000")
    plan = EXPERIMENTS["bases"].plan(replace(TINY, base=las))
    assert las in [trial.base for trial in plan]
    assert PolicySpec("las") in [trial.base for trial in plan]
    rows = run_experiment("bases", replace(TINY, base=las), Processes(1)).rows
    assert rows[-1]["base"] == "las:first_threshold=5000"


@pytest.mark.parametrize("base", ["srtfEst", "las", "fifo:backfill=true"])
def test_bases_runs_no_base_twice(base: str) -> None:
    plan = EXPERIMENTS["bases"].plan(replace(TINY, base=specs.policy(base)))
    assert len(plan) == 2 * len({trial.label for trial in plan}) == 2 * 7


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        ("kDeclines:k=4", "EvalStop"),
        ("drawdown", "EvalStop, drawdown"),
        ("drawdown:max_drop=0.3", "EvalStop, drawdown:max_drop=0.3"),
        ("kDeclines:k=2+warmUp:min_evals=5", "EvalStop, kDeclines:k=2+warmUp:min_evals=5"),
    ],
)
def test_competitors_names_the_rule_it_was_given_instead_of_the_papers(rule: str, label: str) -> None:
    trial = EXPERIMENTS["competitors"].plan(replace(TINY, rule=specs.rule(rule)))[0]
    names = [arm.name for arm in trial.arms]
    assert names[0] == label
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "text", ["kDeclines:k=3", "glr:alpha=0.01+warmUp:min_evals=5|safety=drawdown:max_drop=0.1", "drawdown"]
)
def test_a_rule_is_written_as_it_is_read(text: str) -> None:
    assert specs.rule_text(specs.rule(text)) == text


def test_a_base_is_written_as_it_is_read() -> None:
    assert specs.text(specs.policy("fifo:backfill=true")) == "fifo:backfill=true"
