"""What a job's record keeps of its progress and its training loss, for queue policies that go by them.

Noted when an eval comes in, which is a write of the status anyway, and else only when a twentieth of the run
has passed: a step alone is no reason to write.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from statistics import median

from controller.policy.draft import Draft
from controller.policy.jobs import RunProgress, ScrapeOutcome
from controller.policy.queueing.slaq import add_loss
from controller.policy.service import attained

COARSE = 0.05  # share of the run
EVALS_TO_TELL = 4  # evals from whose times the eval interval is told


def total_steps(draft: Draft) -> int | None:
    """How many steps the whole run has, as its trainer says or last said; None: it never did."""
    scrape, known = draft.observed.scrape, draft.record.progress
    if scrape is not None and scrape.outcome is ScrapeOutcome.OK and scrape.total_steps:
        return scrape.total_steps
    return known.total_steps if known is not None else None


def note(draft: Draft, *, news: bool) -> None:
    """Take progress and loss of the newest scrape into the record. ``news``: an eval came with it."""
    record, scrape = draft.record, draft.observed.scrape
    if record.admission is None or record.admission.running_since is None:
        return
    if scrape is None or scrape.outcome is not ScrapeOutcome.OK:
        return
    served = attained(draft.desired, record, draft.now)
    if scrape.step is not None and scrape.total_steps:
        seen = RunProgress(scrape.step, scrape.total_steps, served - record.lost)
        known = record.progress
        if known is None or news or abs(seen.share - known.share) >= COARSE:
            draft.update(progress=seen)
    if news and scrape.loss is not None and isfinite(scrape.loss):
        draft.update(loss_trend=add_loss(record.loss_trend, scrape.loss, served))


QUIET_INTERVALS = 4.0  # eval intervals without a new eval after which a page is said to bring nothing
QUIET_LEAST = 300.0  # s


def without_evals(draft: Draft) -> str:
    """That the page has brought no new eval for a few eval intervals, in words; "": it has, or none is known
    to be due."""
    times = draft.record.eval_times
    if len(times) < EVALS_TO_TELL:
        return ""
    usual = median(b - a for a, b in pairwise(times))
    quiet, most = draft.now - times[-1], max(QUIET_LEAST, QUIET_INTERVALS * usual)
    if quiet <= most:
        draft.wake_in(most - quiet + 1.0)
        return ""
    return (
        f"no new eval of {draft.desired.metric!r} for {quiet / 60.0:.0f} min, though they came every "
        f"{usual / 60.0:.1f} min"
    )
