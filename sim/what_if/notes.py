"""Notes that a reader needs to believe the figures of a what-if: what was not seen, and what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.types import namespace_of
from controller.policy.wording import agreeing, counted
from sim.latencies import PREEMPTION
from sim.traces.past import End, Past
from sim.traces.trace import Trace
from sim.what_if import futures
from sim.what_if.arms import Setting, cluster_text

if TYPE_CHECKING:
    from sim.what_if.compare import Comparison

_EXACT = 0.02  # by how much a replay may miss the record before a reader is warned
_FEW = 20  # jobs
_NAMED = 8  # namespaces


def reader_notes(made: Comparison, trace: Trace) -> list[str]:
    """Return one sentence or two each, the most important first."""
    jobs, notes = made.given.jobs, [*left_out(made.given), *_unrecorded(made.given), *made.given.notes]
    if len(made.chosen) < len(jobs):
        notes.append(
            f"{len(made.chosen)} of {counted(len(jobs), 'job')} {agreeing(len(made.chosen), 'was', 'were')} "
            "submitted in the window; the others run along."
        )
    notes += _guaranteed(made) + _nobody(made)
    return notes + _fidelity(made) + _unseen(made) + _lengths(made) + _assumed(made) + _capacity(trace)


def _unrecorded(given: Setting) -> list[str]:
    """Return that of jobs nothing was recorded that the replay could be held against."""
    without = sum(1 for job in given.jobs if job.past is None)
    if not without:
        return []
    return [
        f"Nothing is recorded of {without} of {counted(len(given.jobs), 'job')} (they have no `past`; "
        "evalstop export writes it): both sides are simulated, and no stop of a real run is in them."
    ]


def _guaranteed(made: Comparison) -> list[str]:
    """Return that the quotas asked for guarantee more GPUs than there are."""
    total = sum(quota.guaranteed for quota in made.other.quotas or ())
    there = (made.other.cluster or made.given.cluster).gpus
    if total <= there:
        return []
    return [
        f"The quotas guarantee {counted(total, 'GPU')} of {there}: who comes first by the queue policy gets "
        "them."
    ]


def _nobody(made: Comparison) -> list[str]:
    """Return that a quota is for namespaces of which the history has no job: perhaps misspelt."""
    there = {namespace_of(job.key) for job in made.given.jobs}
    strangers = sorted({name for quota in made.other.quotas or () for name in quota.namespaces} - there)
    if not strangers:
        return []
    namespaces = ", ".join(sorted(there)[:_NAMED]) + (", …" if len(there) > _NAMED else "")
    return [f"No job of the history is in namespace {', '.join(strangers)}: its jobs are in {namespaces}."]


def left_out(given: Setting) -> list[str]:
    """Return how many jobs are in neither arm, and why."""
    if not given.left_out:
        return []
    largest = max(given.left_out, key=lambda job: (job.gpus, job.gpus_per_replica or 0))
    each = largest.gpus_per_replica
    gang = f"{largest.gpus // each}x{each}" if each else f"{largest.gpus}"
    are, gangs = ("is", "its gang does") if len(given.left_out) == 1 else ("are", "their gangs do")
    return [
        f"{len(given.left_out)} of {counted(given.every, 'job')} {are} left out of both sides, for {gangs} "
        f"not fit into what is replayed, {cluster_text(given.cluster)}; the largest: {largest.key}, {gang} "
        f"{agreeing(largest.gpus, 'GPU', 'GPUs')}."
    ]


def _pasts(made: Comparison) -> list[Past]:
    return [job.past for job in made.given.jobs if job.past is not None]


def _fidelity(made: Comparison) -> list[str]:
    """Return how near the replay of the record comes to the record."""
    real = ours = 0.0
    ended = 0
    for n in map(int, made.chosen):
        job = made.given.jobs[n]
        if job.past is not None and job.past.ended is not None:
            real += job.past.ended - job.submitted
            ours += float(made.base.columns["jct"][n])
            ended += 1
    if real <= 0.0:
        return []
    off = ours / real - 1.0
    if abs(off) < 0.0005:
        return [
            f"The record replayed as it was gives the mean JCT that was recorded ({counted(ended, 'job')} "
            "ended)."
        ]
    where = "above" if off > 0 else "below"
    warn = "" if abs(off) <= _EXACT else " Differences smaller than that mean little."
    return [
        f"The record replayed as it was gives a mean JCT {abs(off):.1%} {where} what was recorded, over the "
        f"{counted(ended, 'job')} that ended.{warn}"
    ]


def _unseen(made: Comparison) -> list[str]:
    """Return what the alternative asks of runs that the record cut short."""
    if made.other.rule is None and made.other.stops:
        return []
    stopped = [n for n, job in enumerate(made.given.jobs) if job.past is not None and job.past.censored]
    if not stopped:
        return []
    open_ = sum(1 for n in stopped if not made.known_stop(n))
    if not open_:
        return [
            f"Every run that was stopped ({len(stopped)}) the other rule would have stopped by then, too."
        ]
    notes = [
        f"Of {counted(len(stopped), 'run')} that the record stopped, {open_} would have gone on; what would "
        "have come then was never seen."
    ]
    if made.future == "bounds" and made.other.stops:
        notes.append(
            "From: they would have been stopped where they were. To: they train their whole length, and"
            " nothing of it is of use. `--future nearest` draws their curves from runs that were seen whole."
        )
    if made.future == "bounds" and not made.other.stops:
        notes.append("From: what they train unseen is of use. To: nothing of it is.")
    if made.future == "recorded":
        notes.append("They are taken to be stopped where they were: the least that the alternative costs.")
    if made.future == "nearest":
        notes.append(futures.donors(made.given.jobs, made.given.rule).note)
    return notes


def _lengths(made: Comparison) -> list[str]:
    pasts, notes = _pasts(made), []
    unknown = sum(1 for past in pasts if past.end is End.STOPPED and past.length == "unknown")
    if unknown:
        notes.append(
            f"{counted(unknown, 'run')} that {agreeing(unknown, 'was', 'were')} stopped never said how many "
            f"steps there were: taken to end where {agreeing(unknown, 'it was', 'they were')} stopped, which "
            "makes an alternative that lets them run look better than it is."
        )
    estimated = sum(1 for past in pasts if past.end is End.STOPPED and past.length == "estimate")
    if estimated:
        notes.append(
            f"Of {counted(estimated, 'run')} that {agreeing(estimated, 'was', 'were')} stopped the length is "
            f"{agreeing(estimated, 'its', 'their')} submitter's estimate."
        )
    going = sum(1 for past in pasts if past.end in (End.RUNNING, End.WAITING))
    if going:
        notes.append(
            f"{counted(going, 'job')} {agreeing(going, 'was', 'were')} not over when the history ended; in "
            f"both arms {agreeing(going, 'it runs', 'they run')} to the length that "
            f"{agreeing(going, 'its', 'their')} progress, or an estimate, makes of "
            f"{agreeing(going, 'it', 'them')}."
        )
    return notes


def _assumed(made: Comparison) -> list[str]:
    notes, other = [], made.other
    if other.judges_as_it_runs:
        notes.append("This rule hangs on what other jobs do: it is judged while all of them run.")
    if other.policy is not None and other.policy.name == "srtf":
        notes.append("srtf is told each job's true length, which nobody knows in a cluster.")
    if other.policy is not None and other.policy.name == "srtfEst" and not made.given.workload.estimate:
        notes.append("The history has no estimates of running times: they are drawn around the true ones.")
    preempted = made.base.result.preemptions + sum(arm.result.preemptions for arm in made.arms)
    if preempted and made.given.latencies.restart_cost == PREEMPTION:
        notes.append(
            f"The record does not say what a preemption costs: {PREEMPTION:.0f} s of GPU-time at each resume;"
            " --set restart_cost=… says otherwise."
        )
    gaps = [past.missed for past in _pasts(made) if past.missed]
    if gaps and other.rule is not None:
        notes.append(
            f"{counted(sum(gaps), 'eval')} of {counted(len(gaps), 'job')} "
            f"{agreeing(sum(gaps), 'was', 'were')} made and {agreeing(sum(gaps), 'is', 'are')} not here; the "
            "rule sees gaps there."
        )
    if len(made.chosen) < _FEW:
        notes.append(
            f"{counted(len(made.chosen), 'job')} {agreeing(len(made.chosen), 'is', 'are')} few: another few "
            "may differ by more than the intervals say."
        )
    return notes


def _capacity(trace: Trace) -> list[str]:
    notes = []
    sums = [sum(nodes) for _, nodes in trace.history.get("capacity") or ()]
    if len(set(sums)) > 1 and trace.cluster is not None:
        notes.append(
            f"The pool had from {min(sums)} to {counted(max(sums), 'GPU')}; it is replayed with "
            f"{trace.cluster.gpus}, which it had the longest."
        )
    foreign = trace.history.get("foreign_gpus")
    if isinstance(foreign, int | float) and foreign >= 0.05:
        notes.append(f"On average {foreign:.1f} GPUs were used by pods of nobody here; that is not replayed.")
    return notes
