"""`competitors` and `bases`: other stop rules on the same base, EvalStop on other bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.policy.queueing import POLICIES
from controller.policy.stopping import RULES as STOP_RULES
from controller.policy.types import PolicySpec
from sim import specs
from sim.experiments.experiment import Experiment, by_label
from sim.experiments.figures import figures
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.paper import COMPETITORS
from sim.experiments.setting import EVALSTOP, Setting
from sim.experiments.statistics import holm, paired_p
from sim.experiments.trial import ORACLE, Arm, ExperimentTrial, Outcome
from sim.foresight import RuleSpec
from sim.workloads.kinds import Kind

DETECTION = (
    Column("precision", "precision"),
    Column("recall", "recall"),
    Column("recall_before_end", "… before end"),
    Column("premature", "premature"),
    Column("fpr", "FPR"),
)
SAVINGS = (
    Column("jct_gain", "JCT saved"),
    Column("jct_gain_kept", "… never stopped"),
    Column("waste_gain", "waste saved"),
)
_RLHF = (str(Kind.RLHF),)
# The fall of the loss over three evals below which LossPlateau fires on 38 % of RLHF runs, which is what the
# paper's figures for it come to. The only constant that was fitted for a competitor.
LOSS_PLATEAU = 0.092
RULES = (
    Arm("StopAt-0.65", RuleSpec(PolicySpec("fixedProgress", {"share": 0.65}), groups=_RLHF)),
    Arm(
        "LossPlateau",
        RuleSpec(PolicySpec("lossPlateau", {"window": 3, "min_improvement": LOSS_PLATEAU}), groups=_RLHF),
    ),
    Arm("median of peers", RuleSpec(PolicySpec("medianOfPeers", {}), groups=_RLHF)),
    # Rules of our own that look at scores alone, with their defaults.
    *(
        Arm(name, RuleSpec(PolicySpec(name, {})))
        for name, kind in STOP_RULES.items()
        if name != "kDeclines" and not kind.needs
    ),
    ORACLE,
)


def _plan_competitors(setting: Setting) -> list[ExperimentTrial]:
    return setting.trials((Arm(evalstop_with(setting.rule), setting.rule), *RULES))


def evalstop_with(rule: RuleSpec) -> str:
    """Return what EvalStop is called beside other rules: the paper's rule goes unnamed, any other is
    named."""
    if rule.rule.name == "kDeclines" and not rule.modifiers and not rule.guardrails:
        return EVALSTOP
    return f"{EVALSTOP}, {specs.rule_text(rule)}"


def _conclude_competitors(setting: Setting, outcomes: Sequence[Outcome]) -> Findings:
    rows: list[dict[str, Value]] = []
    for name in outcomes[0].arms:
        reported = COMPETITORS.get(name, {})
        paper = ", ".join(f"{key} {value.text}" for key, value in reported.items())
        rows.append({"rule": name, "paper": paper, **figures([o.arms[name] for o in outcomes])})
    columns = (Column("rule", "stop rule", "text"), *DETECTION, *SAVINGS, Column("paper", "paper", "text"))
    notes = [
        "StopAt-0.65, LossPlateau and median of peers judge RLHF jobs only, which is how the paper's figures"
        " for the first two close; the others judge all.",
        f"LossPlateau's threshold, {LOSS_PLATEAU}, is fitted to fire on 38 % of RLHF runs, as in the paper.",
        "The paper counts a premature stop of a hacking job as a detection; so do precision and recall here.",
        "Rules that the paper does not have are ours, with their defaults, and not tuned to this workload.",
    ]
    title = f"Stop rules on {setting.base.name}"
    return Findings("competitors", title, setting.as_dict(), columns, rows, notes=notes)


def _plan_bases(setting: Setting) -> list[ExperimentTrial]:
    trials = []
    for base in every_base(setting.base):
        name = specs.text(base)
        trials += replace(setting, base=base).trials((Arm(EVALSTOP, setting.rule), ORACLE), name)
    return trials


def every_base(given: PolicySpec) -> list[PolicySpec]:
    """Return all queue policies with their defaults, FIFO with backfill, and the given one if it has
    parameters."""
    bases = []
    for name in POLICIES:
        bases.append(PolicySpec(name))
        if name == "fifo":
            bases.append(PolicySpec(name, {"backfill": True}))
    return bases if given in bases else [*bases, given]


def _conclude_bases(setting: Setting, outcomes: Sequence[Outcome]) -> Findings:
    rows: list[dict[str, Value]] = []
    p_values = {}
    for name, group in by_label(outcomes).items():
        tallies = [outcome.arms[EVALSTOP] for outcome in group]
        found = figures(tallies)
        p_values[name] = paired_p([t.jct for t in tallies], [t.jct_base for t in tallies])
        jobs = sum(t.jobs for t in tallies)
        oracle = figures([outcome.arms[ORACLE.name] for outcome in group])
        rows.append(
            {
                "base": name,
                "jct_base": sum(t.jct_base for t in tallies) / jobs,
                "jct": sum(t.jct for t in tallies) / jobs,
                **found,
                "oracle_jct_gain": oracle["jct_gain"],
                "oracle_waste_gain": oracle["waste_gain"],
            }
        )
    for row, p in zip(rows, holm(p_values).values(), strict=True):
        row["p_jct"] = p
    columns = (
        Column("base", "base policy", "text"),
        Column("jct_base", "mean JCT", "seconds"),
        Column("jct", "… with EvalStop", "seconds"),
        *SAVINGS,
        Column("jct_gain_mechanical", "mechanical"),
        Column("oracle_jct_gain", "oracle's JCT saved"),
        Column("p_jct", "p (Holm)", "p"),
    )
    notes = ["The paper reports 9 to 25 % JCT saved over all base policies, which it does not list."]
    title = "EvalStop on every base policy"
    return Findings("bases", title, setting.as_dict(), columns, rows, notes=notes)


COMPETITORS_EXPERIMENT = Experiment(
    "competitors", "other stop rules on the same base", _plan_competitors, _conclude_competitors
)
BASES_EXPERIMENT = Experiment("bases", "EvalStop on every base policy", _plan_bases, _conclude_bases)
