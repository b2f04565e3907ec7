"""`standard-errors`: rules that ask how noisy an eval is, where evals say so and where they do not."""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.params import describe
from controller.policy.stopping import RULES
from controller.policy.types import PolicySpec
from sim.experiments.arms import DETECTION, SAVINGS
from sim.experiments.experiment import Experiment, by_label
from sim.experiments.figures import figures
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.setting import Setting
from sim.experiments.trial import Arm, ExperimentTrial, Outcome
from sim.foresight import RuleSpec

_SOURCES = {False: "from the scores", True: "reported"}  # setting `stderr` -> where the noise is known from


def _arms(setting: Setting) -> tuple[Arm, ...]:
    """Return the rules that take a usual noise, with their defaults; the setting's own rule does not look at
    it."""
    return tuple(
        Arm(name, RuleSpec(PolicySpec(name)))
        for name, kind in RULES.items()
        if "usual_noise" in {info.name for info in describe(kind.params)}
        and name != setting.rule.rule.name
        and not kind.needs
    )


def _plan(setting: Setting) -> list[ExperimentTrial]:
    arms = _arms(setting)
    return [t for stderr, source in _SOURCES.items() for t in setting.but(stderr=stderr).trials(arms, source)]


def _conclude(setting: Setting, outcomes: Sequence[Outcome]) -> Findings:
    groups = by_label(outcomes)
    rows: list[dict[str, Value]] = [
        {"rule": name, "noise": source, **figures([outcome.arms[name] for outcome in groups[source]])}
        for name in outcomes[0].arms
        for source in _SOURCES.values()
    ]
    columns = (
        Column("rule", "stop rule", "text"),
        Column("noise", "noise of an eval", "text"),
        *DETECTION,
        *SAVINGS,
    )
    notes = [
        "Reported: each eval carries its standard error, as the example trainer's do (setting stderr). From"
        " the scores: rules estimate the noise, and say nothing while there are too few evals for it.",
        "Rules with their defaults, not tuned to this workload.",
    ]
    title = "Stop rules that ask for the noise, with and without standard errors"
    return Findings("standard-errors", title, setting.as_dict(), columns, rows, notes=notes)


STANDARD_ERRORS_EXPERIMENT = Experiment(
    "standard-errors", "rules that ask for the noise, with and without standard errors", _plan, _conclude
)
