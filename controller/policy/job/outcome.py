"""Was a stop right? What a run shows after its rule stopped it, or after Shadow would have.

    Refuted     an eval since then beats the best that the stop would have kept, by more than noise explains
    BorneOut    `WINDOW` evals more, or the run's own end, and none does
    Open        neither yet: it was not gone on with, or not for long, or the noise is not known

Only evals say so: that somebody resumes a run proves nothing. It is judged anew with each eval, so an eval
that comes late may still refute what was borne out. The comparison is `noise.beyond`, by which `evalstop
what-if` says that a stop has cost quality.

A user's own stop is not judged, nor one by a guardrail: it kept the best of another metric than the one that
fell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from controller.policy.job.record import Best, JobRecord, Outcome, StopOutcome
from controller.policy.stopping import noise
from controller.policy.types import EvalPoint, Mode

if TYPE_CHECKING:
    from controller.policy.job.types import Desired, Plan

WINDOW = 8  # evals after a stop that bear it out if none beats its best
USER = "User"
COMPLETE = "Complete"


def followed(plan: Plan, desired: Desired) -> Plan:
    """Return the plan with what its record's evals say about the newest stop by its rule."""
    known = plan.record.outcome
    found = _judged(_begun(plan.record), plan.record, -1.0 if desired.minimizes else 1.0)
    return plan if found == known else replace(plan, record=replace(plan.record, outcome=found))


def _begun(record: JobRecord) -> StopOutcome | None:
    """Return the outcome of the newest stop as it is known, Open where it was decided just now."""
    known, decision, back = record.outcome, record.decision, record.taken_back
    if known is not None and back is not None and back.decided == known.decided:
        known = None  # nothing was stopped
    if decision is None or decision.by == USER or decision.proposal.metric:
        return known
    if known is not None and known.decided == decision.at:
        return known
    if known is not None and known.mode is decision.mode is Mode.SHADOW and known.verdict is Outcome.REFUTED:
        return known  # in Enforce it would have been stopped there, and have come to no other
    asked, best = decision.proposal.step, record.best
    upto = next((p for p in reversed(record.evals) if p.step == asked), None)
    if upto is None or best is None:
        return known
    kept = next((p for p in record.evals if (p.step, p.attempt) == (best.step, best.attempt)), None)
    return StopOutcome(
        decided=decision.at,
        mode=decision.mode,
        step=asked,
        attempt=upto.attempt,
        best=best,
        best_stderr=kept.stderr if kept is not None else None,
        baseline=record.baseline_number,
        former=was_right(known) if known is not None else "",
    )


def _judged(known: StopOutcome | None, record: JobRecord, sign: float) -> StopOutcome | None:
    if known is None or known.baseline != record.baseline_number:
        return known  # other scores cannot be compared with its best
    new = _since(record.evals, known)
    later, stderr = known.later, known.later_stderr
    for point in new:
        if later is None or sign * (point.score - later.score) > 0.0:
            later, stderr = Best(point.step, point.score, point.attempt), point.stderr
    if new:
        known = replace(
            known,
            later=later,
            later_stderr=stderr,
            evals=known.evals + len(new),
            seen_attempt=new[-1].attempt,
            seen_step=new[-1].step,
        )
    beats = False if later is None else noise.beyond(record.evals, *_pair(known, later), sign)
    ended = record.finished == COMPLETE
    verdict = Outcome.OPEN
    if beats:
        verdict = Outcome.REFUTED
    elif beats is False and (ended or known.evals >= WINDOW):
        verdict = Outcome.BORNE_OUT
    return replace(known, verdict=verdict)


def _since(evals: Sequence[EvalPoint], known: StopOutcome) -> Sequence[EvalPoint]:
    """Return the evals after the last one that is known, in the order in which they were read.

    Where that one is no longer there, for the run has gone back before it, a later process has the newest.
    """
    attempt = known.seen_attempt or known.attempt
    step = known.seen_step if known.seen_attempt is not None else known.step
    places = [place for place, p in enumerate(evals) if (p.attempt, p.step) == (attempt, step)]
    if places:
        return evals[places[-1] + 1 :]
    if not evals:
        return ()
    newest = evals[-1].attempt
    return [p for p in evals if p.attempt == newest and (newest != attempt or p.step > step)]


def _pair(known: StopOutcome, later: Best) -> tuple[EvalPoint, EvalPoint]:
    kept = known.best
    return (
        EvalPoint(kept.step, kept.score, stderr=known.best_stderr),
        EvalPoint(later.step, later.score, stderr=known.later_stderr),
    )


def beaten_by(found: StopOutcome) -> float:
    """Return by how much the best eval since the stop beats the one that was kept, in score units."""
    return 0.0 if found.later is None else abs(found.later.score - found.best.score)


class Tally(NamedTuple):
    """Outcomes of several runs' stops.

    Attributes:
        borne_out, refuted, open: numbers of stops.
        worst: by how much the worst of the refuted was beaten, in score units; None: none was refuted.
        hours: GPU-hours that runs in Shadow used after they would have been stopped.
    """

    borne_out: int = 0
    refuted: int = 0
    open: int = 0
    worst: float | None = None
    hours: float = 0.0

    @property
    def stops(self) -> int:
        return self.borne_out + self.refuted + self.open


def tally(records: Iterable[JobRecord], mode: Mode) -> Tally:
    """Return how many stops of a mode were right; of each run the newest counts."""
    counts = dict.fromkeys(Outcome, 0)
    worst: float | None = None
    seconds = 0.0
    for record in records:
        found = record.outcome
        if found is None or found.mode is not mode:
            continue
        counts[found.verdict] += 1
        if found.verdict is Outcome.REFUTED:
            worst = max(worst or 0.0, beaten_by(found))
        if mode is Mode.SHADOW and record.past_grades is not None:
            seconds += record.past_grades.stopped
    return Tally(
        counts[Outcome.BORNE_OUT], counts[Outcome.REFUTED], counts[Outcome.OPEN], worst, seconds / 3600.0
    )


def was_right(found: StopOutcome) -> str:
    """Return whether a stop was right, in a sentence with its numbers."""
    stop = f"the stop at step {found.step}"
    if found.mode is Mode.SHADOW:
        stop = f"step {found.step}, where it would have been stopped"
    best = f"the best, {found.best.score:.4g} at step {found.best.step}"
    later, evals = found.later, f"{found.evals} eval{'' if found.evals == 1 else 's'}"
    if found.verdict is Outcome.REFUTED and later is not None:
        by = f"{beaten_by(found):.2g}"
        return f"refuted: after {stop}, step {later.step} scored {later.score:.4g}, {by} better than {best}"
    if found.verdict is Outcome.BORNE_OUT:
        seen = f"{evals} since {stop}" if found.evals else f"the run ended after {stop}"
        return f"borne out: {seen}, and none beats {best} by more than noise explains"
    if not found.evals:
        return f"open: no eval has been seen since {stop}"
    return f"open: {evals} since {stop}; {WINDOW} or the run's end are to show it"


def were_right(found: StopOutcome | None) -> str:
    """Return whether a run's newest stop was right, and what was known at last of the one before; "": it was
    not stopped."""
    if found is None:
        return ""
    return was_right(found) + (f"; the stop before it: {found.former}" if found.former else "")


def shadow_record(records: Iterable[JobRecord]) -> str:
    """Return what the Shadow of some runs has to show: ``14 would-be stops: 12 borne out, 1 refuted by 0.02,
    1 open; 38 GPU-hours``; "": it would have stopped nobody.

    The hours are those that the runs went on for after they would have been stopped.
    """
    found = tally(records, Mode.SHADOW)
    if not found.stops:
        return ""
    parts = [f"{found.borne_out} borne out"] if found.borne_out else []
    if found.refuted:
        parts.append(f"{found.refuted} refuted by {'up to ' if found.refuted > 1 else ''}{found.worst:.2g}")
    parts += [f"{found.open} open"] if found.open else []
    hours = f"{found.hours:.0f}" if found.hours >= 10.0 else f"{found.hours:.2g}"
    return (
        f"{found.stops} would-be stop{'' if found.stops == 1 else 's'}: {', '.join(parts)}; "
        f"{hours} GPU-hour{'' if hours == '1' else 's'}"
    )
