"""Remark that a run ended by itself long before its last step, by the total that its trainer told.

It may be meant so. But a shell without `pipefail` ends with 0 too where the trainer crashed, and a loop over
a data set that is short by mistake ends well. Said where most steps are left. That its
last part was not read is another thing (`unread.end_unseen`).
"""

from __future__ import annotations

from controller.policy.job.record import JobRecord, RunProgress
from controller.policy.wording import how_far

ENDED_EARLY = "EndedEarly"
SHARE = 0.5  # of its steps: a fast trainer may make many between the last look at its page and its end


def ended_by_itself(record: JobRecord) -> RunProgress | None:
    """Return how far a run was seen that completed, and that nobody stopped; None: there is none of that."""
    return record.progress if record.finished == "Complete" and record.decision is None else None


def complaint(record: JobRecord) -> str:
    """Return in a sentence how far a run had come that completed early; "": it did not, or nobody knows."""
    far = ended_by_itself(record)
    if far is None:
        return ""
    step = max(far.step, record.evals[-1].step if record.evals else 0)
    if step > SHARE * far.total_steps:
        return ""
    return f"it ended by itself, without an error, at {how_far(step, far.total_steps)} when it was last read"
