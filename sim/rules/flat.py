"""Stops of runs that stay flat, by the run's length: what a rule can promise of any healthy run.

For rules whose statistic compares later means with earlier ones by fixed weights (scan, GLR, drawdown in
sigmas, CUSUM) and independent noise of known size, no run whose true score never falls is stopped oftener
than the flat one: at each eval the rise can only lower the statistic (`controller.policy.stopping.windows`).
So what is measured on flat runs bounds all of them.

Noise is reported with every eval, alike or not (``uneven``), or estimated. Uneven is the bad case of evals on
fewer prompts from some eval on: a rule that took an average of the errors would take noise for a fall.

With ``smoothed`` scores are running means, which is how trainers log their training reward, and their noise
is estimated: their second differences show a fraction of it, so no rule that estimates it keeps its promise.

With ``prompts`` scores are shares of so many prompts that are answered right, drawn anew for each eval,
fixed, or of a policy that wanders over them (`twin`). The noise is bounded by their number (`noise.error`).
With ``pairs`` the differences by prompt are told too, to the best eval before and to the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.frozen import dataclass
from controller.policy.stopping import noise
from controller.policy.types import EvalInContext, EvalPoint
from sim.foresight import RuleSpec
from sim.rules import vector
from sim.rules.evaluate import exact_interval, upper_bound
from sim.rules.vector import Matrix
from sim.rules.vector_spending import PromptPairs
from sim.twin import Prompts, chances

LENGTHS = (10, 20, 50, 100, 200, 500)
BATCH = 1000  # runs drawn at a time
QUIET, LOUDER = 25, 5.0  # uneven noise: evals before it grows, and how many times
WRONG = 5.0  # factor by which a total is wrong


class Total(StrEnum):
    """A trainer's word on the length of its run."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    TOO_SMALL = "too-small"  # a fifth of it
    TOO_LARGE = "too-large"  # five times as much
    CHANGING = "changing"  # by turns a fifth of it, itself and five times as much


@dataclass(frozen=True, slots=True)
class FlatRow:
    """Count of the flat runs of one kind that a rule stops.

    Attributes:
        stopped: share of the runs stopped within ``evals``.
        bound: its one-sided 95 % upper bound.
    """

    rule: str
    noise: str  # reported | uneven | estimated | smoothed N | prompts | fixed | wandering N; and pairs
    total: str  # of `Total`
    evals: int
    runs: int
    stopped: float
    bound: float
    interval: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rates(
    name: str,
    spec: RuleSpec,
    *,
    runs: int,
    seed: int,
    lengths: Sequence[int] = LENGTHS,
    reported_times: float = 1.0,
    total: Total = Total.UNKNOWN,
    prompts: int | None = None,
    score: float = 0.5,
    how: Prompts = Prompts.FRESH,
    wander: float = 0.0,
    pairs: bool = False,
    smoothed: int = 0,
) -> Iterator[FlatRow]:
    """Yield how often a rule stops flat runs, the same for every length; by default of Gaussian noise.

    Args:
        name: of the rule, in the rows.
        spec: of the rule.
        runs: flat ones.
        seed: of all that is drawn.
        lengths: of runs, in evals.
        reported_times: standard errors are reported as so many times what they are.
        total: what is said of a run's length.
        prompts: of each eval; None: Gaussian noise.
        score: true share of the prompts that are answered right, 0 to 1.
        how: the prompts are chosen.
        wander: of a prompt's difficulty, logits an eval, where they wander.
        pairs: differences by prompt are told, of prompts that stay.
        smoothed: each score is the mean of so many newest evals; 0: they are evals.

    Raises:
        ValueError: the rule has no vectorised form, or there are pairs of prompts that do not stay.
    """
    if pairs and (prompts is None or how is Prompts.FRESH):
        raise ValueError(
            "--pairs: prompts that stay have them, expected --prompts and --how fixed, wandering"
        )
    if not vector.covers(spec):
        raise ValueError(
            f"--rule: {name!r} has no vectorised form, expected one of {', '.join(vector.FORMS)}"
        )
    named = "prompts" if how is Prompts.FRESH else f"{how} {wander:g}" if wander else str(how)
    named += ", pairs" if pairs else ""
    kinds: tuple[str, ...] = ("reported", "uneven", "estimated") if prompts is None else (named,)
    if smoothed:
        kinds = (f"smoothed {smoothed}",)
    for kind in kinds:
        hits = dict.fromkeys(lengths, 0)
        known = None if prompts is None else errors(prompts)
        random = np.random.default_rng(seed)
        for start in range(0, runs, BATCH):
            shape = (min(BATCH, runs - start), max(lengths))
            if prompts is None or known is None:
                shown = vector.Evals(*_gaussian(kind, shape, reported_times, random))
                if smoothed:
                    shown = vector.Evals(_running_means(shown.scores, smoothed), np.full(shape, np.nan))
            else:
                right, best, last = _answered(prompts, score, shape, how, wander, pairs, random)
                shown = vector.Evals(right / prompts, known[right], prompts=np.ones(shape, dtype=bool))
                shown = shown._replace(prompt_pairs=best, last_pairs=last)
            for evals, stopped in _stopped(spec, shown, lengths, total):
                hits[evals] += stopped
        for evals, n in hits.items():
            yield FlatRow(
                name, kind, total, evals, runs, n / runs, upper_bound(n, runs), exact_interval(n, runs)
            )


def _answered(
    prompts: int,
    score: float,
    shape: tuple[int, int],
    how: Prompts,
    wander: float,
    pairs: bool,
    random: np.random.Generator,
) -> tuple[npt.NDArray[np.int64], PromptPairs | None, PromptPairs | None]:
    """Return how many prompts are answered right at each eval, and if asked for the differences by prompt to
    the best before (the first of these) and to the last."""
    if how is Prompts.FRESH:
        return random.binomial(prompts, score, shape), None, None
    found, means = np.empty(shape, dtype=np.int64), np.full(shape[1], score)
    best, last = _no_pairs(shape, prompts), _no_pairs(shape, prompts)
    for row in range(shape[0]):
        chance = chances(means, prompts, how, wander, random)
        results = random.random(chance.shape) < chance
        found[row] = results.sum(axis=1)
        if pairs:
            highest = np.maximum.accumulate(found[row])[:-1]
            new = np.concatenate([[True], found[row, 1:-1] > highest[:-1]])
            at = np.maximum.accumulate(np.where(new, np.arange(len(highest)), 0))
            for compared, earlier in ((best, at), (last, np.arange(len(highest)))):
                compared.against[row, 1:] = earlier + 1.0
                compared.variance[row, 1:] = variances(results, earlier)
    return (found, best, last) if pairs else (found, None, None)


def variances(results: npt.NDArray[np.bool_], earlier: npt.NDArray[np.int64]) -> Matrix:
    """Return the sample variance of one prompt's difference between each eval but the first and an earlier
    one: shape (evals - 1,), of results of shape (evals, prompts)."""
    prompts, then = results.shape[1], results[earlier]
    mean = (results[1:].sum(axis=1) - then.sum(axis=1)) / prompts
    found: Matrix = ((results[1:] != then).sum(axis=1) - prompts * np.square(mean)) / (prompts - 1)
    return found


def _no_pairs(shape: tuple[int, int], prompts: int) -> PromptPairs:
    """Return pairs of right and wrong answers to so many prompts, of which none is known yet."""
    like = np.ones(shape)
    return PromptPairs(np.nan * like, prompts * like, np.nan * like, like)


def errors(prompts: int) -> Matrix:
    """Return the standard error that is known of an eval of so many prompts, by how many were right.

    Shape (prompts + 1,).
    """
    found = []
    for right in range(prompts + 1):
        plain = EvalPoint(1, right / prompts, prompts=prompts)
        known = noise.error(EvalInContext.of(plain, range=(0.0, 1.0)))
        found.append(np.nan if known is None else known)
    return np.array(found)


def progress(total: Total, evals: int) -> Matrix | None:
    """Return the share of a run of ``evals`` that seems done at each of them; None: nothing is said."""
    if total is Total.UNKNOWN:
        return None
    times = {
        Total.KNOWN: (1.0,),
        Total.TOO_SMALL: (1.0 / WRONG,),
        Total.TOO_LARGE: (WRONG,),
        Total.CHANGING: (1.0 / WRONG, 1.0, WRONG),
    }[total]
    expected = np.resize(np.array(times), evals) * evals
    shown: Matrix = np.arange(1.0, evals + 1.0) / expected
    return shown


def _gaussian(
    kind: str, shape: tuple[int, int], reported_times: float, random: np.random.Generator
) -> tuple[Matrix, Matrix]:
    scores = random.standard_normal(shape)
    if kind == "estimated":
        return scores, np.full(shape, np.nan)
    sizes = np.ones(shape[1])
    if kind == "uneven":
        sizes = np.where(np.arange(shape[1]) < QUIET, 1.0, LOUDER)
    return scores * sizes, np.broadcast_to(sizes * reported_times, shape)


def _running_means(scores: Matrix, over: int) -> Matrix:
    """Return the mean of the newest so many evals, of all so far where they are fewer."""
    sums = np.cumsum(np.pad(scores, ((0, 0), (over, 0))), axis=1)
    found: Matrix = (sums[:, over:] - sums[:, :-over]) / np.minimum(np.arange(1, scores.shape[1] + 1), over)
    return found


def _stopped(
    spec: RuleSpec, shown: vector.Evals, lengths: Sequence[int], total: Total
) -> Iterator[tuple[int, int]]:
    """Yield how many of the runs are stopped within each length."""
    if total is Total.UNKNOWN:  # then the beginning of a long run is a short one
        first = vector.first_stops(spec, shown)
        for evals in lengths:
            yield evals, int(((first >= 0) & (first < evals)).sum())
        return
    for evals in lengths:
        part = _beginning(shown, evals)
        share = progress(total, evals)
        done = None if share is None else np.broadcast_to(share, part.scores.shape)
        yield evals, int((vector.first_stops(spec, part._replace(progress=done)) >= 0).sum())


def _beginning(shown: vector.Evals, evals: int) -> vector.Evals:
    """Return the first evals of each run."""
    pairs = [
        None if one is None else PromptPairs(*(field[:, :evals] for field in one))
        for one in (shown.prompt_pairs, shown.last_pairs)
    ]
    named = None if shown.prompts is None else shown.prompts[:, :evals]
    part = vector.Evals(shown.scores[:, :evals], shown.stderrs[:, :evals], prompts=named)
    return part._replace(prompt_pairs=pairs[0], last_pairs=pairs[1])
