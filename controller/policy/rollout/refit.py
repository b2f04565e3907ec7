"""The actors' law, fitted again from what actors report: ridge regression towards the law so far.

An actor reports iterations, tokens and seconds of decoding, and prompts and seconds of prefill. Decoding is
``a iterations + c tokens`` (what responses grow dearer by is taken off); a and c are told apart only by
actors that were full and actors that were nearly empty, so what reports cannot tell stays as it was: the
law so far counts as `PRIOR` reports of its own. Reports that cannot be (more tokens than slots allow, no
time) are left out, and no step changes a time by more than `MOST`. A law that no report has shaped yet is
first brought to their scale as a whole (`scaled_law`), so that the second step can be planned by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.rollout.types import ActorLaw

PRIOR = 0.5  # weight of the law so far, in reports
MOST = 3.0  # times that a step changes a time


@dataclass(frozen=True, slots=True)
class WorkReport:
    """Work of one actor in a step: tokens over all iterations, prompts that it prefilled, s of each."""

    iterations: int
    tokens: int
    decode_seconds: float
    grown: float = 0.0  # tokens that live responses had so far, summed over iterations
    prompts: float = 0.0
    prefill_seconds: float = 0.0


def scaled_law(law: ActorLaw, reports: Iterable[WorkReport]) -> ActorLaw:
    """Return a law that is a guess, with its times multiplied by what reports took of what it says."""
    used = [r for r in reports if _believable(r, law.slots)]
    guessed = sum(law.seconds(r.iterations, r.tokens, r.grown, 0.0) for r in used)
    times = sum(r.decode_seconds for r in used) / guessed if guessed > 0.0 else 1.0
    return replace(
        law,
        iteration=times * law.iteration,
        sequence=times * law.sequence,
        growth=times * law.growth,
        prefill=_prefill(law, used),
    )


def refit_law(law: ActorLaw, reports: Iterable[WorkReport]) -> tuple[ActorLaw, int]:
    """Return the law that reports fit best, and how many of them were used."""
    used = [r for r in reports if _believable(r, law.slots)]
    if not used:
        return law, 0
    # In seconds per iteration over mean batch: y = a + c b, weighted by iterations.
    total = sum(r.iterations for r in used)
    rows = [
        (
            r.iterations / total,
            r.tokens / r.iterations,
            max(0.0, r.decode_seconds - law.growth * r.grown) / r.iterations,
        )
        for r in used
    ]
    half, full = 0.25 * law.slots, float(law.slots)
    for b in (half, full):
        rows.append((PRIOR / len(used) / 2.0, b, law.iteration + law.sequence * b))
    weight = sum(w for w, _, _ in rows)
    b_mean = sum(w * b for w, b, _ in rows) / weight
    y_mean = sum(w * y for w, _, y in rows) / weight
    above = sum(w * (b - b_mean) * (y - y_mean) for w, b, y in rows)
    below = sum(w * (b - b_mean) ** 2 for w, b, _ in rows)
    sequence = max(0.0, above / below) if below > 0.0 else law.sequence
    iteration = max(0.0, y_mean - sequence * b_mean)
    if iteration == 0.0:
        sequence = y_mean / b_mean if b_mean > 0.0 else sequence
    return (
        replace(
            law,
            iteration=_bounded(iteration, law.iteration),
            sequence=_bounded(sequence, law.sequence),
            prefill=_bounded(_prefill(law, used), law.prefill),
        ),
        len(used),
    )


def _prefill(law: ActorLaw, used: Sequence[WorkReport]) -> float:
    """Return s that a prompt's prefill took; the law's where none was reported."""
    prompts = sum(r.prompts for r in used)
    return sum(r.prefill_seconds for r in used) / prompts if prompts > 0.0 else law.prefill


def _believable(report: WorkReport, slots: int) -> bool:
    return (
        report.iterations > 0
        and 0 < report.tokens <= slots * report.iterations
        and 0.0 < report.decode_seconds < math.inf
        and 0.0 <= report.grown < math.inf
        and 0.0 <= report.prompts < math.inf
        and 0.0 <= report.prefill_seconds < math.inf
    )


def _bounded(value: float, before: float) -> float:
    return value if before == 0.0 else min(MOST * before, max(before / MOST, value))
