"""Sign that a metric is no eval score: it never moved in all evals of a run.

A judge that falls back to a default, a stub, or a setting that is exported by the metric's name scores each
eval the same, and nothing else shows it. Only a note: a success rate may be 0 for a while, or 1 from the
start.
"""

from __future__ import annotations

from controller.policy.job.curve import curve_branches, rounded
from controller.policy.job.record import JobRecord

CONSTANT = "ScoreConstant"
LEAST = 20  # evals, exactly alike


def complaint(record: JobRecord) -> str:
    """Return in a sentence that no eval of the run differs from another; "": one does, or they are few."""
    evals = record.evals
    if len(evals) < LEAST or any(one.score != evals[0].score for one in evals):
        return ""
    # Of those before the ones that are kept the curve tells.
    level = rounded(evals[0].score)
    buckets = (one for branch in curve_branches(record.curve) for one in branch)
    if any((one.low, one.high) != (level, level) for one in buckets):
        return ""
    count = max(record.evals_seen, len(evals))
    return (
        f"all {count} evals are exactly {evals[0].score:g}: a metric that never moves is probably not the "
        "eval score"
    )
