"""The tables of docs/stop-rules.md: rules at their best, and as they come, on generated runs."""

from __future__ import annotations

from collections.abc import Iterator

from controller.policy.types import PolicySpec
from sim.foresight import RuleSpec
from sim.rules import evaluate, families, tune
from sim.rules.evaluate import Row

RULES = ("kDeclines", "drawdown", "cusum", "scan", "glr")
FALLING = ("linear", "gao_rl", "gao_bon")
CELLS = ((10, 0.02), (20, 0.05), (50, 0.02), (50, 0.05), (50, 0.1), (100, 0.05))  # (evals, noise)
FALSE_ALARM = 0.025


def tuned(runs: int, seed: int) -> Iterator[str]:
    """Each rule at its best at 2.5 % false stops of rising runs: 50 evals, noise .05, not reported.

    Parameters are chosen on one half of the runs of each family, the row is about the other half.
    """
    yield "| family (oracle) | rule, tuned | false stops (95 %) | of flat runs | caught | saved | premature |"
    yield "|---|---|---|---|---|---|---|"
    for family in FALLING:
        drawn = families.draw(family, evals=50, noise=0.05, runs=runs, seed=seed)
        chosen_on, judged_on = tune.halves(evaluate.judge(drawn.series))
        for name in RULES:
            found = tune.tune(name, chosen_on, FALSE_ALARM)
            (row,) = evaluate.rows(name, judged_on, evaluate.first_stops(found.spec, judged_on))
            high = row.intervals["false_stops"][1]
            yield (
                f"| `{family}` ({families.oracle(drawn, 0.05):.2f}) | `{tune.named(found)}` "
                f"| {row.false_stops:.3f} (at most {high:.3f}) "
                f"| {row.plateau_stops:.2f} | {row.caught:.3f} | {row.saved:.3f} "
                f"| {row.premature:.3f} |"
            )


def defaults(runs: int, seed: int) -> Iterator[str]:
    """Every rule as it comes, over evals and noise, noise reported by the trainer and estimated."""
    yield (
        "| evals, noise | rule | stops of rising | of flat | of `dip_recover` | `linear` caught / saved "
        "| `gao_rl` | `gao_bon` |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for evals, noise in CELLS:
        for reported in (True, False):
            rows: dict[str, dict[str, Row]] = {name: {} for name in RULES}
            for family in (*FALLING, "dip_recover"):
                drawn = families.draw(
                    family, evals=evals, noise=noise, runs=runs, seed=seed, reported=reported
                )
                judged = evaluate.judge(drawn.series)
                for name in RULES:
                    stops = evaluate.first_stops(RuleSpec(PolicySpec(name)), judged)
                    (rows[name][family],) = evaluate.rows(name, judged, stops)
            for name in RULES:
                linear = rows[name]["linear"]
                caught = " | ".join(
                    f"{rows[name][f].caught:.2f} / {rows[name][f].saved:.2f}" for f in FALLING
                )
                yield (
                    f"| {evals}, {noise:g}{'' if reported else ' estimated'} | `{name}` "
                    f"| {linear.false_stops:.3f} "
                    f"| {linear.plateau_stops:.3f} | {rows[name]['dip_recover'].false_stops:.3f} | {caught} |"
                )
