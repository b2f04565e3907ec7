"""Sign that the Primary metric is no eval on held-out prompts, but the reward of the training batches.

A training reward is scored on another batch each time, so it scatters by more than the prompts of an eval
allow. Of healthy public accuracy runs the scatter is up to 1.4 times the bound on an eval's noise (95th
percentile), so from twice on it is told. One eval is left out, since a dip is no scatter. It is a warning:
nothing is decided by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controller.policy.stopping import noise
from controller.policy.types import EvalPoint, EvalScale

LEAST_EVALS = 8  # from which scatter is judged
LEAST_EQUAL = 4  # evals with a proxy reward from which it is compared with their scores
LEAST_SHARES = 4  # different scores from which a number of prompts is proposed
TIMES = 2.0  # the bound on an eval's noise: a scatter from which it is told
PROMPTS_GUESSED = 1024  # most that are proposed
_MULTIPLE = 1e-6  # how near to a multiple of 1/n a score has to be, in answers


def suspicion(metric: str, points: Sequence[EvalPoint], scale: EvalScale) -> str | None:
    """Return why the scores do not look like those of an eval, a sentence; None: they may be.

    Args:
        metric: its name.
        points: evals of one attempt, by step.
        scale: what is declared of them, as far as it holds.
    """
    finite = [p for p in points if math.isfinite(p.score)]
    return _is_the_proxy(metric, finite) or _scatters(metric, finite, scale)


def prompts_fitting(points: Sequence[EvalPoint]) -> int | None:
    """Return the fewest prompts n <= `PROMPTS_GUESSED` of which all scores can be shares; None: no such n.

    A proposal for people, never a fact for a rule: n may be a part of the true number, or luck.
    """
    scores = sorted({p.score for p in points if 0.0 < p.score < 1.0})
    if len(scores) < LEAST_SHARES:
        return None
    for n in range(2, PROMPTS_GUESSED + 1):
        if all(abs(score * n - round(score * n)) <= _MULTIPLE for score in scores):
            return n
    return None


def _is_the_proxy(metric: str, points: Sequence[EvalPoint]) -> str | None:
    both = [p for p in points if p.proxy is not None and math.isfinite(p.proxy)]
    same = all(math.isclose(p.score, p.proxy or 0.0, rel_tol=1e-9, abs_tol=1e-12) for p in both)
    if len(both) < LEAST_EQUAL or not same or len({p.score for p in both}) == 1:
        return None
    return (
        f"{metric!r} is the reward that the run optimises: equal to its proxy in all of {len(both)} evals. "
        "It rises while quality falls; name a score on held-out prompts as Primary"
    )


def _scatters(metric: str, points: Sequence[EvalPoint], scale: EvalScale) -> str | None:
    newest = points[-noise.ROBUST_MOST :]
    bounds = [b for p in newest if (b := noise.bound(scale.known_of(p))) is not None]
    if len(newest) < LEAST_EVALS or len(bounds) < len(newest):
        return None
    scores, most, sigma = [p.score for p in newest], max(bounds), math.inf
    for n in range(len(scores)):
        found = noise.robust([*scores[:n], *scores[n + 1 :]])
        if found is None or found <= TIMES * most:
            return None  # of an eval it is the first answer: this is asked of every job at every look
        sigma = min(sigma, found)
    return (
        f"{metric!r} scatters by {sigma:.3g} from eval to eval, more than {TIMES:g} times the {most:.3g} "
        "that its prompts allow. If it is the reward of training batches, name a score on held-out prompts "
        "as Primary; else correct spec.metrics[].prompts, or the prompts on the page"
    )
