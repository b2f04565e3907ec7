"""One setting varied, all else equal: noise, hacking share, k, interval, load, curve family; and a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from controller.frozen import dataclass
from sim.experiments.arms import DETECTION, SAVINGS
from sim.experiments.experiment import Experiment, by_label
from sim.experiments.figures import figures
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.setting import EVALSTOP, Setting
from sim.experiments.trial import ORACLE, Arm, ExperimentTrial, Outcome
from sim.workloads import FAMILIES


@dataclass(frozen=True, slots=True)
class Sweep:
    """``vary(setting, value)`` is the setting with the swept one at ``value``."""

    name: str
    doc: str
    column: Column
    values: tuple[Any, ...]
    vary: Callable[[Setting, Any], Setting]
    notes: tuple[str, ...] = ()

    def experiment(self) -> Experiment:
        return Experiment(self.name, self.doc, self._plan, self._conclude)

    def _plan(self, setting: Setting) -> list[ExperimentTrial]:
        trials = []
        for value in self.values:
            varied = self.vary(setting, value)
            trials += varied.trials((Arm(EVALSTOP, varied.rule), ORACLE), repr(value))
        return trials

    def _conclude(self, setting: Setting, outcomes: Sequence[Outcome]) -> Findings:
        rows: list[dict[str, Value]] = []
        groups = by_label(outcomes)
        for value in self.values:
            group = groups[repr(value)]
            oracle = figures([outcome.arms[ORACLE.name] for outcome in group])
            rows.append(
                {
                    self.column.key: value,
                    **figures([outcome.arms[EVALSTOP] for outcome in group]),
                    "oracle_jct_gain": oracle["jct_gain"],
                    "oracle_waste_gain": oracle["waste_gain"],
                }
            )
        columns = (self.column, *DETECTION, *SAVINGS, Column("oracle_jct_gain", "oracle's JCT saved"))
        notes = list(self.notes)
        return Findings(self.name, self.doc, setting.as_dict(), columns, rows, notes=notes)


SWEEPS = (
    Sweep(
        "noise",
        "Noise of evals",
        Column("noise", "noise (std)", "number"),
        (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.10),
        lambda setting, value: setting.but(noise=value),
        (
            "The paper promises precision of at least 91 % for noise up to .05. It does not report recall,"
            " which is what noise takes away from a run-of-k rule.",
        ),
    ),
    Sweep(
        "base-rate",
        "Share of RLHF runs that hack",
        Column("hacking_share", "hacking share"),
        (0.2, 0.4, 0.6, 0.8),
        lambda setting, value: setting.but(hacking_share=value),
        ("The paper promises precision of at least 89 % for hacking shares of 20 to 80 %.",),
    ),
    Sweep(
        "k",
        "Declines in a row that stop a run",
        Column("k", "k", "count"),
        (1, 2, 3, 4, 5),
        lambda setting, value: setting.with_rule(k=value),
    ),
    Sweep(
        "eval-interval",
        "Share of training between evals",
        Column("eval_interval", "interval"),
        (0.02, 0.04, 0.05, 0.10, 0.20),
        lambda setting, value: setting.but(eval_interval=value),
        ("On evals that do not fall, k declines in a row come by chance: the more evals, the surer.",),
    ),
    Sweep(
        "load",
        "GPU-time that arrives, of what there is",
        Column("load", "load", "number"),
        (0.5, 0.7, 0.85, 1.0, 1.15, 1.3),
        lambda setting, value: setting.but(load=value),
    ),
    Sweep(
        "families",
        "Shape of RLHF curves",
        Column("family", "family", "text"),
        tuple(FAMILIES),
        lambda setting, value: setting.but(family=value),
        tuple(f"{family.name}: {family.doc}." for family in FAMILIES.values()),
    ),
)

INTERVALS, KS, DEPTHS = (0.02, 0.04, 0.05, 0.10, 0.20), (2, 3, 4, 5), (0.15, 0.32, 0.45)


def _cell(setting: Setting, interval: float, k: int, depth: float) -> Setting:
    return setting.but(eval_interval=interval, depth=depth).with_rule(k=k)


def _plan_grid(setting: Setting) -> list[ExperimentTrial]:
    trials = []
    for depth in DEPTHS:
        for interval in INTERVALS:
            # The base's runs are the same for every k, so that they are made once.
            arms = tuple(Arm(str(k), _cell(setting, interval, k, depth).rule) for k in KS)
            trials += setting.but(eval_interval=interval, depth=depth).trials(arms, f"{depth} {interval}")
    return trials


def _conclude_grid(setting: Setting, outcomes: Sequence[Outcome]) -> Findings:
    rows: list[dict[str, Value]] = []
    groups = by_label(outcomes)
    for depth in DEPTHS:
        for interval in INTERVALS:
            for k in KS:
                tallies = [outcome.arms[str(k)] for outcome in groups[f"{depth} {interval}"]]
                rows.append({"depth": depth, "eval_interval": interval, "k": k, **figures(tallies)})
    columns = (
        Column("depth", "depth", "number"),
        Column("eval_interval", "interval"),
        Column("k", "k", "count"),
        *DETECTION,
        *SAVINGS,
    )
    notes = ["The headline's own cell is depth 0.32, interval 10 %, k 3."]
    title = "The headline's figures over depth of the decline, eval interval and k"
    return Findings("grid", title, setting.as_dict(), columns, rows, notes=notes)


GRID_EXPERIMENT = Experiment(
    "grid", "the headline over depth of the decline, eval interval and k", _plan_grid, _conclude_grid
)
