"""Stop rules by name: the only entrance for operator, simulator and API.

A new rule is one file with its params dataclass and one entry in `RULES`. Schema, CRD, conversion and CLI
follow from the entry (docs/understand/adding-a-stop-rule.md).

May import: nothing of the other rooms.
Tests: tests/policy, tests/sim_rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.policy import params as _params
from controller.policy.params import ParamError, fingerprint
from controller.policy.stopping.base import (
    Bound,
    RuleType,
    State,
    StopRule,
    carry_spent,
    earliest,
    lets_pass,
    reference,
)
from controller.policy.stopping.confirm import Confirm, ConfirmParams
from controller.policy.stopping.contended import OnlyWhenContended, OnlyWhenContendedParams
from controller.policy.stopping.cooldown import Cooldown, CooldownParams
from controller.policy.stopping.cusum import Cusum, CusumParams
from controller.policy.stopping.divergence import Divergence, DivergenceParams
from controller.policy.stopping.drawdown import Drawdown, DrawdownParams
from controller.policy.stopping.eprocess import EProcess, EProcessParams
from controller.policy.stopping.fixedprogress import FixedProgress, FixedProgressParams
from controller.policy.stopping.gate import Gate, GateParams
from controller.policy.stopping.glr import Glr, GlrParams
from controller.policy.stopping.graded import Graded, GradedParams
from controller.policy.stopping.kdeclines import KDeclines, KDeclinesParams
from controller.policy.stopping.lossplateau import LossPlateau, LossPlateauParams
from controller.policy.stopping.medianofpeers import MedianOfPeers, MedianOfPeersParams
from controller.policy.stopping.patience import Patience, PatienceParams
from controller.policy.stopping.scan import Scan, ScanParams
from controller.policy.stopping.warmup import WarmUp, WarmUpParams
from controller.policy.types import PolicySpec

__all__ = [
    "DEFAULT_MODIFIERS",
    "DEFAULT_RULE",
    "MODIFIERS",
    "RULES",
    "Bound",
    "ParamError",
    "RuleType",
    "State",
    "StopRule",
    "carry_spent",
    "earliest",
    "lets_pass",
    "make_rule",
    "reference",
    "rule_fingerprint",
]

RULES: Mapping[str, RuleType] = {
    rule.name: rule
    for rule in (
        RuleType.of(KDeclines, KDeclinesParams, "k consecutive evals, each lower than the one before"),
        RuleType.of(Drawdown, DrawdownParams, "the smoothed score fell too far below its peak"),
        RuleType.of(Scan, ScanParams, "the newest evals lie clearly below the best stretch, by their noise"),
        RuleType.of(
            Glr, GlrParams, "the score fell by more than chance explains, with a bound on false stops"
        ),
        RuleType.of(Cusum, CusumParams, "shortfalls below the best stretch add up, by their noise"),
        RuleType.of(
            EProcess, EProcessParams, "prompt by prompt worse than the best step, by evidence that adds up"
        ),
        RuleType.of(FixedProgress, FixedProgressParams, "a share of the run is done, whatever its scores"),
        RuleType.of(LossPlateau, LossPlateauParams, "the training loss has all but stopped to fall"),
        RuleType.of(MedianOfPeers, MedianOfPeersParams, "its best is below what other runs had by then"),
    )
}

MODIFIERS: Mapping[str, RuleType] = {
    modifier.name: modifier
    for modifier in (
        RuleType.of(Gate, GateParams, "an eval that jumps counts only if the next one bears it out"),
        RuleType.of(WarmUp, WarmUpParams, "no stop before a number of evals"),
        RuleType.of(Patience, PatienceParams, "no stop unless it stands for several evals in a row"),
        RuleType.of(Cooldown, CooldownParams, "no stop just after a declared event"),
        RuleType.of(Confirm, ConfirmParams, "no stop before fresh evals bear it out"),
        RuleType.of(Graded, GradedParams, "warn, then give way to others, then stop"),
        RuleType.of(Divergence, DivergenceParams, "says what the proxy did while the score fell"),
        RuleType.of(OnlyWhenContended, OnlyWhenContendedParams, "no stop while nobody waits for the GPUs"),
    )
}

# What judges a run whose RLHFJob names neither rule nor modifiers (docs/use/stop-rules.md says why, and what
# it was judged on). What is named replaces either as a whole.
DEFAULT_RULE = PolicySpec(Scan.name, {"alpha": 0.04})
DEFAULT_MODIFIERS = (PolicySpec(Gate.name),)


def make_rule(spec: PolicySpec, modifiers: Sequence[PolicySpec] = ()) -> StopRule:
    """Return the rule a spec names, wrapped by its modifiers in their order: the first is the innermost.

    A `Gate` is outermost wherever it stands: it decides which evals all the others are shown.

    Raises:
        ParamError: unknown rule, modifier or parameter, or a value out of bounds; the message names it.
    """
    rule_type = _look_up(RULES, spec.name, "stopRule")
    rule = rule_type.make(_params.build(rule_type.params, spec.params, spec.name))
    if sum(1 for m in modifiers if m.name == Gate.name) > 1:
        raise ParamError("modifiers", Gate.name, "it once: every eval passes it before anything else")
    for modifier in sorted(modifiers, key=lambda m: m.name == Gate.name):  # a stable order
        modifier_type = _look_up(MODIFIERS, modifier.name, "modifiers")
        rule = modifier_type.make(_params.build(modifier_type.params, modifier.params, modifier.name), rule)
    return rule


def rule_fingerprint(spec: PolicySpec, modifiers: Sequence[PolicySpec] = ()) -> str:
    """Return a fingerprint of the rule, its modifiers, their versions and every effective parameter.

    A state is only valid under the fingerprint it was made under.
    """
    make_rule(spec, modifiers)  # refuses what is wrong
    chosen = [(RULES[spec.name], spec), *((MODIFIERS[m.name], m) for m in modifiers)]
    return fingerprint([[t.name, t.version, _params.build(t.params, s.params, t.name)] for t, s in chosen])


def _look_up(registry: Mapping[str, RuleType], name: str, field: str) -> RuleType:
    try:
        return registry[name]
    except KeyError:
        raise ParamError(field, name, "one of " + ", ".join(registry)) from None
