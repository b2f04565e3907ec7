"""All experiments by name, and the one way to run them.

Add a new experiment here and to `COMMANDS` of the CLI (controller/cli/sim_experiments.py), in the same order;
tests/sim_cli/test_sim_cli.py holds it. Names are unique.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.experiments import trial
from sim.experiments.arms import BASES_EXPERIMENT, COMPETITORS_EXPERIMENT
from sim.experiments.executor import Executor
from sim.experiments.experiment import Experiment
from sim.experiments.findings import Findings
from sim.experiments.headline import HEADLINE_EXPERIMENT
from sim.experiments.setting import Setting
from sim.experiments.standard_errors import STANDARD_ERRORS_EXPERIMENT
from sim.experiments.sweeps import GRID_EXPERIMENT, SWEEPS

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        HEADLINE_EXPERIMENT,
        BASES_EXPERIMENT,
        COMPETITORS_EXPERIMENT,
        STANDARD_ERRORS_EXPERIMENT,
        *(sweep.experiment() for sweep in SWEEPS),
        GRID_EXPERIMENT,
    )
}

Progress = Callable[[int, int], None]  # trials done, trials in all


def run_experiment(
    name: str, setting: Setting, executor: Executor, progress: Progress | None = None
) -> Findings:
    """Run all trials of an experiment and summarize them.

    Raises:
        KeyError: there is no experiment of that name.
    """
    experiment = EXPERIMENTS[name]
    trials = experiment.plan(setting)
    outcomes = []
    for outcome in executor.map(trial.run, trials):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(trials))
    return experiment.conclude(setting, outcomes)
