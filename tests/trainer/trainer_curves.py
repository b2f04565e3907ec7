"""How recipes behave over many seeds, and what EvalStop's rule makes of them.

Run it: ``python tests/trainer/trainer_curves.py [--seeds N] [--detail] [--history FILE]``. With
``--history`` the evals are also written as `evalstop rules evaluate` reads them, one family for each
recipe, with each eval's differences to the best one before it (as the operator names the reference). A gold
reward lies between -12.1 and 4.5, so ``eProcess:bound=16.6`` holds.

The figures over many seeds in docs/use/trainer-contract.md are what this program prints.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from controller.policy.stopping import make_rule
from controller.policy.types import EvalPoint, PolicySpec, Verb
from examples.trainer.policy import Parameters
from examples.trainer.task import Floats, Ints
from examples.trainer.training import Evaluation, Recipe, Training
from sim.rules.history import PAIRED

OVER_OPTIMISING = Recipe(preferences=40, kl=0.0)
HEALTHY = Recipe(preferences=5000, kl=0.1)
RECIPES = {
    "40 preferences, no KL penalty": OVER_OPTIMISING,
    "40 preferences, KL penalty 0.1": Recipe(preferences=40, kl=0.1),
    "5000 preferences, no KL penalty": Recipe(preferences=5000, kl=0.0),
    "5000 preferences, KL penalty 0.1": HEALTHY,
}
STEPS, EVAL_EVERY = 400, 10
# What the sample manifests use. min_delta lies below one standard error of a healthy run's eval (0.025):
# noise alone must then fall three times in a row by more than it, and a real fall (0.1 per eval and more)
# still does.
K, MIN_DELTA, MIN_EVALS = 3, 0.02, 5
SHOWN_DELTAS = (0.0, 0.01, MIN_DELTA, 0.05)


@dataclass(frozen=True, slots=True)
class Curves:
    """Evals of R runs: ``steps`` (E,), everything else (E, R).

    ``reference``, ``difference`` and ``variance``: step of the best eval before, mean and variance of the
    per-prompt differences to it; NaN at the first eval, and where they were not asked for.
    """

    steps: tuple[int, ...]
    gold: Floats
    stderr: Floats
    proxy: Floats
    kl: Floats
    reference: Floats
    difference: Floats
    variance: Floats

    @property
    def peak(self) -> Ints:
        """(R,) index of each run's best eval."""
        best: Ints = self.gold.argmax(axis=0)
        return best

    def at(self, values: Floats, index: Ints) -> Floats:
        """(R,): each run's value at its own eval."""
        picked: Floats = values[index, np.arange(values.shape[1])]
        return picked


class _References:
    """The policy of each run's best eval so far, and the differences of later evals to it."""

    def __init__(self, training: Training) -> None:
        self._training = training
        runs = len(training.seeds)
        self._best = np.full(runs, -np.inf)
        self._step = np.full(runs, np.nan)
        self._policy = Parameters.initial(runs)

    def evaluate(self, paired: bool) -> tuple[Evaluation, Floats, Floats, Floats]:
        """One eval of every run, with reference step, mean and variance of the differences (R,)."""
        step, nothing = self._step.copy(), np.full(len(self._best), np.nan)
        known = paired and np.isfinite(step).all()
        found = self._training.evaluate(self._policy if known else None)
        better = found.gold > self._best
        self._best = np.where(better, found.gold, self._best)
        self._step = np.where(better, found.step, self._step)
        now = self._training.parameters
        for kept, new in ((self._policy.transition, now.transition), (self._policy.topic, now.topic)):
            kept[better] = new[better]
        if found.difference is None:
            return found, nothing, nothing, nothing
        return found, step, found.difference.mean(axis=1), found.difference.var(axis=1, ddof=1)


def curves(
    recipe: Recipe,
    seeds: Sequence[int],
    steps: int = STEPS,
    eval_every: int = EVAL_EVERY,
    *,
    paired: bool = False,
) -> Curves:
    """Train one run per seed and evaluate as the trainer process does; ``paired``: with a reference."""
    training = Training(recipe, seeds)
    references = _References(training)
    evals = [references.evaluate(paired)]
    for step in range(1, steps + 1):
        training.advance()
        if step % eval_every == 0 or step == steps:
            evals.append(references.evaluate(paired))
    return Curves(
        tuple(e.step for e, *_ in evals),
        np.array([e.gold for e, *_ in evals]),
        np.array([e.stderr for e, *_ in evals]),
        np.array([e.proxy for e, *_ in evals]),
        np.array([e.kl for e, *_ in evals]),
        *(np.array([numbers[i] for _, *numbers in evals]) for i in range(3)),
    )


def stops(
    found: Curves, k: int = K, min_delta: float = MIN_DELTA, min_evals: int = MIN_EVALS
) -> list[int | None]:
    """Per run, the index of the eval at which the operator's own rule asks for the stop; None: never."""
    rule = make_rule(
        PolicySpec("kDeclines", {"k": k, "min_delta": min_delta}),
        [PolicySpec("warmUp", {"min_evals": min_evals})],
    )
    result: list[int | None] = []
    for scores in found.gold.T:
        state, stopped = rule.initial(), None
        for i, (step, score) in enumerate(zip(found.steps, scores, strict=True)):
            state, verdict = rule.observe(state, EvalPoint(step, float(score)))
            if verdict.verb is Verb.STOP:
                stopped = i
                break
        result.append(stopped)
    return result


def joined(parts: Sequence[Curves]) -> Curves:
    """Runs of several batches side by side."""

    def side_by_side(field: str) -> Floats:
        return np.concatenate([getattr(part, field) for part in parts], axis=1)

    columns = (f.name for f in fields(Curves) if f.name != "steps")
    return Curves(parts[0].steps, *(side_by_side(name) for name in columns))


def report(name: str, found: Curves, seeds: Sequence[int], detail: bool) -> str:
    """The figures of one recipe as text."""
    peak, stopped = found.peak, stops(found)
    fall = found.at(found.gold, peak) - found.gold[-1]
    caught = [i for i, s in enumerate(stopped) if s is not None]
    lag = [(stopped[i] or 0) - int(peak[i]) for i in caught]
    every = max(1, (len(found.steps) - 1) // 10)
    lines = [
        f"{name}: {len(seeds)} runs",
        "  step      " + " ".join(f"{s:6d}" for s in found.steps[::every]),
        *(
            f"  {label:9s} " + " ".join(f"{v:6.2f}" for v in values.mean(axis=1)[::every])
            for label, values in (("gold", found.gold), ("proxy", found.proxy), ("KL", found.kl))
        ),
        f"  best eval at step {_spread(np.array(found.steps)[peak], '.0f')}; fall from it to the end "
        f"{_spread(fall, '.2f')}; standard error of an eval {found.stderr.mean():.3f}",
        f"  kDeclines k={K} minDelta={MIN_DELTA} warmUp={MIN_EVALS}: stops {len(caught)} of {len(seeds)}"
        + (f", {np.median(lag):.0f} evals after the best (median), {min(lag)} at least" if lag else ""),
    ]
    counts = {delta: sum(s is not None for s in stops(found, min_delta=delta)) for delta in SHOWN_DELTAS}
    lines.append("  stopped by minDelta: " + ", ".join(f"{delta:g}: {n}" for delta, n in counts.items()))
    if detail:
        lines.append("   seed  best step   gold   proxy | last gold   proxy | stopped at")
        for i, seed in enumerate(seeds):
            p, s = int(peak[i]), stopped[i]
            lines.append(
                f"  {seed:5d} {found.steps[p]:10d} {found.gold[p, i]:6.2f} {found.proxy[p, i]:7.2f} | "
                f"{found.gold[-1, i]:9.2f} {found.proxy[-1, i]:7.2f} | {'-' if s is None else found.steps[s]}"
            )
    return "\n".join(lines)


COLUMNS = ("series_id", "family", "step", "eval", "stderr", "proxy", "kl", *PAIRED)


def history(
    name: str, found: Curves, seeds: Sequence[int], samples: int = Recipe().eval_samples
) -> list[tuple[object, ...]]:
    """Rows of one recipe's runs, as `COLUMNS` names their cells."""
    rows: list[tuple[object, ...]] = []
    for run, seed in enumerate(seeds):
        for e, step in enumerate(found.steps):
            scores = (float(v[e, run]) for v in (found.gold, found.stderr, found.proxy, found.kl))
            pair: tuple[object, ...] = ("",) * len(PAIRED)
            if np.isfinite(found.reference[e, run]):
                mean, variance = (float(v[e, run]) for v in (found.difference, found.variance))
                pair = (int(found.reference[e, run]), samples, repr(mean), repr(variance))
            rows.append((f"{name} #{seed}", name, step, *map(repr, scores), *pair))
    return rows


def _spread(values: Floats, form: str) -> str:
    low, middle, high = np.quantile(values, (0.0, 0.5, 1.0))
    return f"{middle:{form}} (median; {low:{form}} to {high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Curves of the example trainer over many seeds.")
    parser.add_argument("--seeds", type=int, default=20, help="runs per recipe")
    parser.add_argument("--first-seed", type=int, default=400)
    parser.add_argument("--detail", action="store_true", help="one line per run as well")
    parser.add_argument("--history", type=Path, help="CSV file to write the evals to")
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for name, recipe in RECIPES.items():
        paired = args.history is not None
        found = joined([curves(recipe, seeds[i : i + 20], paired=paired) for i in range(0, len(seeds), 20)])
        print(report(name, found, seeds, args.detail), flush=True)
        rows += history(name, found, seeds)
    if args.history is not None:
        with args.history.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)


if __name__ == "__main__":
    main()
