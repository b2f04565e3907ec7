"""The setting an experiment runs in: mix, base policy, stop rule, delays, seeds.

The defaults are the documented setting of the headline, a calibration to the paper's figures: the paper
leaves k, the eval interval, the noise and the depth of the decline open (docs/reports/reproduction.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any

from controller.frozen import dataclass
from controller.policy.params import ParamError, describe
from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec, Quota
from sim.experiments.trial import Arm, ExperimentTrial
from sim.foresight import RuleSpec
from sim.latencies import PREEMPTION, Latencies
from sim.quotas import entry as quota_entries
from sim.specs import number
from sim.traces.own import guardrails_entry
from sim.workloads import MixSettings

EVALSTOP = "EvalStop"


@dataclass(frozen=True, slots=True)
class Setting:
    """One point in the space of settings; ``seeds`` runs, from ``first_seed`` on."""

    mix: MixSettings = field(default_factory=MixSettings)
    base: PolicySpec = field(default_factory=lambda: PolicySpec("srtfEst"))
    rule: RuleSpec = field(default_factory=lambda: RuleSpec(PolicySpec("kDeclines", {"k": 3})))
    latencies: Latencies = field(default_factory=lambda: Latencies(restart_cost=PREEMPTION))
    seeds: int = 60
    first_seed: int = 0
    quotas: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ParamError("seeds", self.seeds, "at least 1")
        make_policy(self.base)
        self.rule.make()

    def but(self, **mix: Any) -> Setting:
        """With some settings of the mix changed."""
        return replace(self, mix=self.mix.but(**mix))

    def with_rule(self, **params: Any) -> Setting:
        """With some parameters of the rule changed."""
        changed = PolicySpec(self.rule.rule.name, {**self.rule.rule.params, **params})
        return replace(self, rule=self.rule._replace(rule=changed))

    def changed(self, values: Mapping[str, str]) -> Setting:
        """With named settings of the mix or of the delays set from text.

        Raises:
            ParamError: there is no such setting, or its value is of the wrong type or out of bounds.
        """
        mix = {info.name: info for info in describe(MixSettings)}
        delays = {info.name: info for info in describe(Latencies)}
        changes: dict[str, dict[str, Any]] = {"mix": {}, "latencies": {}}
        for name, text in values.items():
            if name not in mix and name not in delays:
                raise ParamError(name, text, "one of " + ", ".join([*mix, *delays]))
            part, info = ("mix", mix[name]) if name in mix else ("latencies", delays[name])
            changes[part][name] = number(info, text, name)
        return replace(
            self,
            mix=self.mix.but(**changes["mix"]),
            latencies=replace(self.latencies, **changes["latencies"]),
        )

    def trials(self, arms: tuple[Arm, ...] | None = None, label: str = "") -> list[ExperimentTrial]:
        """Return a trial for each seed; without ``arms``, of the rule in EvalStop."""
        arms = (Arm(EVALSTOP, self.rule),) if arms is None else arms
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return [ExperimentTrial(self.mix, seed, self.base, arms, self.latencies, label) for seed in seeds]

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, as JSON values."""
        return {
            "base": {"name": self.base.name, **self.base.params},
            **({"quotas": quota_entries(self.quotas)} if self.quotas else {}),
            "rule": {"name": self.rule.rule.name, **self.rule.rule.params},
            "modifiers": [{"name": m.name, **m.params} for m in self.rule.modifiers],
            **guardrails_entry(self.rule),
            "workload": self.mix.as_dict(),
            "latencies": asdict(self.latencies),
            "seeds": self.seeds,
            "first_seed": self.first_seed,
        }
