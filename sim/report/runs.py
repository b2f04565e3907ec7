"""One population run again for its plots: who held GPUs when, and what became of every job."""

from __future__ import annotations

from dataclasses import replace

from controller.frozen import dataclass
from sim.cluster import Cluster
from sim.engine import EventLog, Result
from sim.experiments.replay import Plan
from sim.experiments.setting import Setting
from sim.experiments.trial import ORACLE, oracle_workload
from sim.workload import Workload
from sim.workloads import Population, Truth, generate


class Occupancy(EventLog):
    """A event_log that keeps (time, GPUs held from then on) instead of lines."""

    __slots__ = ("_gpus", "_held", "steps")

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self._gpus = {workload.key(row): gpus for row, gpus in enumerate(workload.gpus)}
        self._held = 0
        self.steps: list[tuple[float, int]] = [(0.0, 0)]

    def write(self, now: float, verb: str, key: str, detail: str = "") -> None:
        if verb == "admit":
            self._held += self._gpus[key]
        elif verb in ("end", "free"):
            self._held -= self._gpus[key]
        else:
            return
        if self.steps[-1][0] == now:
            self.steps[-1] = (now, self._held)
        else:
            self.steps.append((now, self._held))


@dataclass(frozen=True, slots=True)
class Shown:
    """A run as plots need it."""

    name: str
    result: Result
    occupancy: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Example:
    """The same workload without and with EvalStop, and under the oracle where the truth is known."""

    workload: Workload
    truth: Truth | None
    gpus: int
    base: Shown
    evalstop: Shown
    oracle: Shown | None


def example(plan: Plan) -> Example:
    """Run a plan in all ways."""
    name = plan.setting.base.name
    oracle = None
    if plan.truth is not None:
        population = Population(plan.workload, plan.truth)
        knowing = Plan(
            oracle_workload(population), plan.truth, plan.cluster, replace(plan.setting, rule=ORACLE.rule)
        )
        oracle = _shown("oracle", knowing, True)
    return Example(
        plan.workload,
        plan.truth,
        plan.cluster.gpus,
        _shown(name, plan, False),
        _shown("EvalStop", plan, True),
        oracle,
    )


def first_run(setting: Setting) -> Example:
    """Return the first of a setting's runs."""
    population = generate(setting.mix, setting.first_seed)
    cluster = Cluster.slots(setting.mix.gpus)
    return example(Plan(population.workload, population.truth, cluster, setting))


def _shown(name: str, plan: Plan, stops: bool) -> Shown:
    event_log = Occupancy(plan.workload)
    result = plan.run(stops=stops, event_log=event_log)
    return Shown(name, result, event_log.steps)
