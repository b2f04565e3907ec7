"""A better eval than the best that counts for nothing, since later evals did not bear it out: told to people.

The gate drops such an eval, or refutes it (`stopping.gate`), and its Event is gone after an hour. Nothing is
decided here: it is read from the evals that are kept one by one, and for older ones from the curve's buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from controller.policy.job import imprecise, step_counts
from controller.policy.job.curve import Bucket, curve_branches, rounded
from controller.policy.job.gone_copies import found_gone
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import better
from controller.policy.job.types import Direction
from controller.policy.stopping import gate
from controller.policy.types import Attempt, EvalPoint, PolicySpec
from controller.policy.wording import counted, percent

NOT_KEPT = "not kept"


class LonePeak(NamedTuple):
    """The best of the evals that are better than the best and count for nothing.

    Attributes:
        score: in the trainer's own orientation; of an older eval, as the curve has it: of five digits.
        step, last: of the eval; of an older one, first and last step of its bucket.
        others: how many more there are, of older ones at least.
        reason: why it does not count, a clause.
        path: where a checkpoint of it is that is kept, or that is to be released; "": nothing keeps one.
        checkpoint: the same as a clause.
    """

    score: float
    step: int
    last: int
    others: int
    reason: str
    path: str
    checkpoint: str

    def sentence(self, direction: Direction) -> str:
        """Return all of it, without a full stop. ``direction``: of the Primary metric."""
        where = f"step {self.step}" if self.step == self.last else f"a step of {self.step} to {self.last}"
        far = "higher" if direction is Direction.MAXIMIZE else "lower"
        more = f" (so {'is' if self.others == 1 else 'are'} {counted(self.others, 'other')})"
        return (
            f"{self.score:.4g} at {where} is {far} than the best{more if self.others else ''}: "
            f"{self.reason}; its checkpoint: {self.checkpoint}"
        )


def lone_peak(
    record: JobRecord, modifiers: Iterable[PolicySpec], direction: Direction, job: str
) -> LonePeak | None:
    """Return the best eval that is better than the best and counts for nothing; None: there is none.

    One that still waits to be borne out is none.

    Args:
        record: the run's.
        modifiers: of its rule; without a gate every eval counts.
        direction: of its Primary metric.
        job: its name and namespace as arguments of a command: ``run -n team``.
    """
    params = next((one.params for one in modifiers if one.name == gate.Gate.name), None)
    best = record.best
    if params is None or best is None:
        return None
    open_ = _waiting(record)
    if record.awaiting is not None:
        open_.add(record.awaiting.step)
    found = [
        (point.score, point.step, point.step)
        for point in record.evals
        if better(direction, point.score, best.score) and point.step not in open_
    ]
    found += [
        (score, first, last)
        for score, first, last in _older(record, direction)
        if better(direction, score, rounded(best.score)) and not any(first <= s <= last for s in open_)
    ]
    if not found:
        return None
    sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
    score, step, last = max(found, key=lambda one: sign * one[0])
    at = next((i for i, point in enumerate(record.evals) if step == last == point.step), None)
    reason = "the evals after it did not bear it out"
    share = params.get("borne_out", gate.GateParams().borne_out)
    if at is not None and _fell_back(record.evals, at, float(share), sign):
        part = "half" if share == 0.5 else percent(float(share))
        side, way = ("below", "rise") if sign > 0 else ("above", "fall")
        reason = f"the eval after it lay {side} {part} of its {way}"
    if at is not None:
        times = float(params.get("imprecise", gate.GateParams().imprecise))
        reason = imprecise.clause(record.evals, step, times) or reason
    attempt = record.evals[at].attempt if at is not None else None
    path, checkpoint = _checkpoint(record, attempt, step, last, job)
    return LonePeak(score, step, last, len(found) - 1, reason, path, checkpoint)


def _waiting(record: JobRecord) -> set[int]:
    """Return steps of the evals that wait until others bear them out."""
    try:
        return {*gate.waiting(record.rule.state)} if record.rule is not None else set()
    except (TypeError, LookupError):
        return set()  # another rule's memory: the operator has not yet seen that there is a gate


def _fell_back(evals: tuple[EvalPoint, ...], at: int, share: float, sign: float) -> bool:
    """Return whether the eval after one lies less than a share of the way from the eval before to that."""
    if not 0 < at < len(evals) - 1:
        return False
    before, peak, after = (sign * evals[i].score for i in (at - 1, at, at + 1))
    return peak > before and after - before < share * (peak - before)


def _older(record: JobRecord, direction: Direction) -> Iterator[tuple[float, int, int]]:
    """Yield best score, first and last step of each bucket with evals that are no longer kept one by one.

    None of a run that went back before some of its evals: buckets have those that were left, too.
    """
    curve = record.curve
    if curve is None or record.abandoned_step or not record.evals:
        return
    again = [life.resumed for life in record.lives[1:] if life.resumed is not None]
    for bucket in (curve_branches(curve) or ((),))[-1]:  # a branch before it: of scores of another scale
        first = bucket.place * curve.width
        last = first + curve.width - 1
        kept = [p.score for p in record.evals if first <= p.step <= last]
        if first > record.evals[-1].step or any(first <= step <= last for step in again):
            continue  # where a process went on, an eval may have been measured again
        score = _best_of(bucket, direction)
        if all(better(direction, score, rounded(one)) for one in kept) and first < record.evals[0].step:
            yield score, first, last


def _best_of(bucket: Bucket, direction: Direction) -> float:
    return bucket.high if direction is Direction.MAXIMIZE else bucket.low


def _checkpoint(
    record: JobRecord, attempt: Attempt | None, step: int, last: int, job: str
) -> tuple[str, str]:
    """Return where a checkpoint of an eval is ("": nothing keeps one), and the same as a clause."""
    gone = found_gone(record)
    kept = (
        *(("retained", one) for one in reversed(record.retained) if one not in gone),
        *(("pinned", one) for one in (*record.pinned, record.secured, record.beside) if one is not None),
    )
    if step != last or step_counts.disagree(record):  # a checkpoint of that number is none of the eval's
        return "", NOT_KEPT
    for word, one in kept:
        if one.best_step == step and attempt in (None, one.attempt):
            return one.path, f"{word} at {one.path}"
    for path in record.to_release:
        if attempt is not None and path.rpartition("/")[2] == f"{attempt}-{step}":
            return path, f"{path}, released once the next one is pinned; {_rescue(record, step, job)}"
    return "", f"{NOT_KEPT}; {_rescue(record, step, job)}"


def _rescue(record: JobRecord, step: int, job: str) -> str:
    """Return the command that helps while the trainer still has the checkpoint of a step."""
    decision = record.decision
    if record.finished is not None:
        return "the trainer's own may still be there"
    if decision is not None and decision.suspended_at is not None:
        return f"evalstop resume {job} --step {step} --yes goes on from it while the trainer's own is there"
    return f"evalstop pin {job} {step} keeps it while the trainer's own is there"
