"""One trial: one workload under a base policy alone, and under the same with something that stops jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from controller.frozen import dataclass
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import Result, simulate
from sim.experiments.measures import Tally, compare, tally_base
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload
from sim.workloads import MixSettings, Population, Truth, generate


@dataclass(frozen=True, slots=True)
class Arm:
    """Something that stops jobs, by the name it has in tables.

    ``oracle``: the rule is shown the truth, a score that falls once the peak has passed, instead of evals.
    """

    name: str
    rule: RuleSpec
    oracle: bool = False


ORACLE = Arm("oracle", RuleSpec(PolicySpec("kDeclines", {"k": 1})), oracle=True)


@dataclass(frozen=True, slots=True)
class ExperimentTrial:
    """Everything that a trial depends on; ``label`` says what of it a sweep varies."""

    mix: MixSettings
    seed: int
    base: PolicySpec
    arms: tuple[Arm, ...]
    latencies: Latencies = field(default_factory=Latencies)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a trial: sums by arm, to be added up over seeds. ``base``: of the base policy alone."""

    label: str
    seed: int
    base: Tally
    arms: dict[str, Tally]


def run(trial: ExperimentTrial) -> Outcome:
    """Run a trial; the same trial always gives the same outcome."""
    population = generate(trial.mix, trial.seed)
    alone = run_arm(population, trial, None)
    tallies = {arm.name: compare(population, alone, run_arm(population, trial, arm)) for arm in trial.arms}
    return Outcome(trial.label, trial.seed, tally_base(population, alone), tallies)


def run_arm(population: Population, trial: ExperimentTrial, arm: Arm | None) -> Result:
    """Simulate the base policy with an arm around it, or alone, and return the result."""
    cluster = Cluster.slots(trial.mix.gpus)
    base = make_policy(trial.base)
    if arm is None:
        return simulate(population.workload, cluster, base, latencies=trial.latencies)
    workload = oracle_workload(population) if arm.oracle else population.workload
    return simulate(workload, cluster, EvalStop(base), rule=arm.rule, latencies=trial.latencies)


def oracle_workload(population: Population) -> Workload:
    """Return the workload with the truth for scores: rising up to each run's peak, falling from there on."""
    workload, truth = population.workload, population.truth
    evals = [
        e and Evals(e.at, _falling_after(e.at, truth, row), e.losses) for row, e in enumerate(workload.evals)
    ]
    return replace(workload, evals=evals)


def _falling_after(at: Sequence[float], truth: Truth, row: int) -> list[float]:
    peak = truth.peak[row] if truth.hacks[row] else 1.0
    return [share if share <= peak else peak - share for share in at]
