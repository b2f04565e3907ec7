"""An experiment: which trials it takes, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.frozen import dataclass
from sim.experiments.findings import Findings
from sim.experiments.setting import Setting
from sim.experiments.trial import ExperimentTrial, Outcome


@dataclass(frozen=True, slots=True)
class Experiment:
    """``plan`` names the trials of a setting, ``conclude`` reads their outcomes, which keep their order."""

    name: str
    doc: str
    plan: Callable[[Setting], list[ExperimentTrial]]
    conclude: Callable[[Setting, Sequence[Outcome]], Findings]


def by_label(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by the label of their trials, in the order in which labels come."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.label, []).append(outcome)
    return groups
