"""The tables of docs/reports/stop-rule-tables.md: rules at their best, and as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE
from sim import specs
from sim.foresight import RuleSpec
from sim.rules import evaluate, families, tune
from sim.rules.evaluate import Row

RULES = ("kDeclines", "drawdown", "cusum", "scan", "glr")
# What a job gets that names neither rule nor modifiers.
DEFAULT = specs.rule_text(RuleSpec(DEFAULT_RULE, DEFAULT_MODIFIERS))
IN_NOISE = ("cusum", "scan", "glr", DEFAULT)  # of those: the ones that ask how noisy an eval is
PAIRED = "eProcess"
FALLING = ("linear", "gao_rl", "gao_bon")
CELLS = (  # (evals, noise)
    (10, 0.0),
    (10, 0.02),
    (20, 0.05),
    (50, 0.0),
    (50, 0.02),
    (50, 0.05),
    (50, 0.1),
    (100, 0.02),
    (100, 0.05),
    (100, 0.1),
)
FALSE_ALARM = 0.025
RIGHT = 0.7  # share of prompts that are right: noise and number of prompts follow from each other


def prompts_for(noise: float) -> int:
    """Prompts whose mean score has this standard deviation."""
    return round(RIGHT * (1.0 - RIGHT) / noise**2) if noise > 0.0 else 0


def tuned(runs: int, seed: int) -> Iterator[str]:
    """Yield each rule at its best at 2.5 % false stops of rising runs: 50 evals, noise .05, not reported.

    Parameters are chosen on one half of the runs of each family, the row is about the other half.
    """
    yield (
        "| family (oracle) | rule, tuned | false stops (95 % bound) | of flat runs | caught "
        "| of the oracle's | saved | premature |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for family in FALLING:
        drawn = families.draw(family, evals=50, noise=0.05, runs=runs, seed=seed, prompts=prompts_for(0.05))
        power = families.oracle(drawn, 0.05)
        chosen_on, judged_on = tune.halves(evaluate.judge(drawn.series))
        for name in (*RULES, PAIRED):
            found = tune.tune(name, chosen_on, FALSE_ALARM)
            if found is None:
                continue
            (row,) = evaluate.rows(name, judged_on, evaluate.first_stops(found.spec, judged_on))
            yield (
                f"| `{family}` ({power:.2f}) | `{tune.named(found)}` "
                f"| {row.false_stops:.3f} (at most {row.false_stops_bound:.3f}) "
                f"| {row.plateau_stops:.2f} | {row.caught:.3f} | {row.caught / power:.2f} | {row.saved:.3f} "
                f"| {row.premature:.3f} |"
            )


def defaults(runs: int, seed: int) -> Iterator[str]:
    """Yield every rule as it comes, over evals and noise, noise reported by the trainer and estimated.

    The e-process compares each eval with the best before it on as many prompts as make up the noise.
    """
    yield (
        "| evals, noise | rule | stops of rising (95 % bound) | of flat | of `dip_recover` "
        "| `linear` caught / saved | `gao_rl` | `gao_bon` |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for evals, noise in CELLS:
        groups: list[tuple[Sequence[str], bool, int]] = [((*RULES, DEFAULT), noise > 0.0, 0)]
        if noise > 0.0:
            groups += [(IN_NOISE, False, 0), ((PAIRED,), True, prompts_for(noise))]
        for names, reported, prompts in groups:
            rows: dict[str, dict[str, Row]] = {name: {} for name in names}
            for family in (*FALLING, "dip_recover"):
                drawn = families.draw(
                    family,
                    evals=evals,
                    noise=noise,
                    runs=runs,
                    seed=seed,
                    reported=reported,
                    prompts=prompts,
                )
                judged = evaluate.judge(drawn.series)
                for name in names:
                    stops = evaluate.first_stops(specs.rule(name), judged)
                    (rows[name][family],) = evaluate.rows(name, judged, stops)
            note = " estimated" if noise and not reported else ""
            for name in names:
                yield _line(f"{evals}, {noise:g}", name, note, rows[name])


def _line(cell: str, name: str, note: str, rows: dict[str, Row]) -> str:
    linear = rows["linear"]
    caught = " | ".join(f"{rows[f].caught:.2f} / {rows[f].saved:.2f}" for f in FALLING)
    return (
        f"| {cell} | `{name}`{note} | {linear.false_stops:.3f} ({linear.false_stops_bound:.3f}) "
        f"| {linear.plateau_stops:.3f} | {rows['dip_recover'].false_stops:.3f} | {caught} |"
    )
