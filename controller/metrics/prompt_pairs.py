"""Differences between evals on the same prompts, as a trainer's page has them (`policy.types.PromptPair`).

A trainer that keeps the result of each prompt compares an eval with up to three before it, and publishes of
each comparison its size, mean and variance. The prompts themselves are known by a digest of their set alone.
A comparison that is not whole is left out and named: a gap, and a gap never stops a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import pairwise

from controller import names
from controller.metrics.identity import enter, identity, short, step_of
from controller.metrics.samples import Sample, count
from controller.policy.job import PROMPTS_MAX
from controller.policy.types import Attempt, PromptPair

SET = "prompt_set"  # label: digest of the set of an eval's prompts
_DIGEST = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
_MOST = 1e100  # of a mean or a variance: what is computed from them stays finite
_DIGITS = 5  # three pairs of each of 32 evals are kept in a status

_Eval = tuple[Attempt, int]

# Why a trainer's client published no comparison, by its own word for it (docs/use/trainer-contract.md).
DROPPED = {
    "MeanDiffers": "the mean over its prompts is not the difference of the two scores",
    "OtherPromptSet": "its prompts are not those of the eval before",
    "NoResults": "the results of the best eval are gone: a restart without its volume, or another branch",
    "DirectionChanged": "the metric's direction was corrected, so the best so far was none",
    "TooLarge": "its results take more than 1 MB",
}


def of(samples: list[Sample], metric: str, notes: list[str]) -> dict[_Eval, tuple[PromptPair, ...]]:
    """Return the comparisons of each eval of ``metric``, by the step that it is compared with.

    What is left out is named in ``notes``, and so is a change of the prompts.
    """
    mine = [s for s in samples if s.labels.get("metric") == metric]
    sets = _sets(mine)
    _note_unpaired(metric, mine, sets, notes)
    columns: dict[str, dict[tuple[Attempt, int, int], float | None]] = {
        names.METRIC_PROMPT_PAIR_PROMPTS: {},
        names.METRIC_PROMPT_PAIR_MEAN: {},
        names.METRIC_PROMPT_PAIR_VARIANCE: {},
    }
    digests: dict[tuple[Attempt, int, int], str] = {}
    for sample in mine:
        column = columns.get(sample.name)
        if column is not None:
            key = (*identity(sample), step_of(sample, "reference"))
            enter(column, key, sample.value)
            if sample.name == names.METRIC_PROMPT_PAIR_PROMPTS:
                digests[key] = sample.labels.get(SET, "")
    prompts, means, variances = columns.values()
    found: dict[_Eval, list[PromptPair | None]] = {}
    for key in sorted(prompts.keys() | means.keys() | variances.keys()):
        attempt, step, reference = key
        same_set = sets.get((attempt, step), "") == digests.get(key) != ""
        pair = _pair(reference, prompts.get(key), means.get(key), variances.get(key))
        found.setdefault((attempt, step), []).append(pair if same_set and reference < step else None)
    out: dict[_Eval, tuple[PromptPair, ...]] = {}
    for (attempt, step), pairs in found.items():
        whole = tuple(pair for pair in pairs if pair is not None)
        if len(whole) == len(pairs) <= names.PROMPT_PAIRS_MAX:
            out[attempt, step] = whole
        else:
            notes.append(
                f"{metric} at step {step}: its evals are not paired, expected at most "
                f"{names.PROMPT_PAIRS_MAX} earlier steps with prompts (2 or more, of the same {SET} as the "
                "eval), mean and variance"
            )
    return out


def _pair(
    reference: int, prompts: float | None, mean: float | None, variance: float | None
) -> PromptPair | None:
    number = count(prompts)
    if number is None or not 2 <= number <= PROMPTS_MAX or mean is None or variance is None:
        return None
    if not (math.isfinite(mean) and abs(mean) <= _MOST and 0.0 <= variance <= _MOST):
        return None
    return PromptPair(reference, number, short(mean, _DIGITS), short(variance, _DIGITS))


def _sets(samples: Iterable[Sample]) -> dict[_Eval, str]:
    """Return the digest of each eval's prompts, in the page's order; "": it has none that could be one."""
    found: dict[_Eval, str] = {}
    for sample in samples:
        if sample.name == names.METRIC_EVAL_PROMPTS:
            digest = sample.labels.get(SET, "")
            known = found.setdefault(identity(sample), digest)
            if known != digest or not _DIGEST.fullmatch(digest):
                found[identity(sample)] = ""
    return found


def _note_unpaired(metric: str, samples: Iterable[Sample], sets: dict[_Eval, str], notes: list[str]) -> None:
    """Note the newest change of the prompts, and why the client compared nothing."""
    changed = [(a, b) for a, b in pairwise(sets) if sets[a] and sets[b] and sets[a] != sets[b]]
    if changed:
        (_, before), (_, after) = changed[-1]
        notes.append(f"{metric}: the prompts of step {after} are not those of step {before}: not paired")
    dropped = [s for s in samples if s.name == names.METRIC_PROMPT_PAIRS_DROPPED and s.value == 1]
    for (_, step), reason in sorted((identity(s), s.labels.get("reason", "")) for s in dropped)[-1:]:
        why = DROPPED.get(reason, "its client gives a reason that is not known here")
        notes.append(f"{metric} at step {step} is not paired: {why}")
