"""The whole curve of a run in little room: at most 64 buckets of equal step width, for people to look at.

Evals of steps ``n * width`` to ``(n + 1) * width - 1`` are in bucket n. A new curve has buckets of one step;
when there are too many of them, or they take too much room, the width is doubled and neighbours are joined.
So no bucket is ever empty, and a run of few evals keeps each of them.

Where a run goes back to an earlier step a new *branch* of the curve begins: what was left stays beside it.
The steps at which it stopped, would have stopped, and went on are kept as they are (`curve_marks`), and the
buckets get the room that is left; so is the best eval, which is in the record itself.

Nothing is judged by this: rules and what-if take the evals that are kept one by one (`JobRecord.evals`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from controller.names import STEP_MAX
from controller.policy.job.record import CURVE_BUCKETS, CURVE_MARKS, EvalCurve, JobRecord
from controller.policy.job.types import Plan
from controller.policy.types import Attempt, EvalPoint, Mode, Verdict

ROOM = 2750  # bytes of all lines, as JSON; with the rest a curve takes at most 3 kB
MARKS_ROOM = 1200  # of these for marks: 42 of the longest, some 60 of usual ones
BRANCHES = 8
ANEW = "anew"  # ends the line of a bucket with which a branch begins
DIGITS, DIGITS_OF_KL = 5, 3
SHARE_MAX = 999  # percent
STOPPED, WOULD_STOP, RESUMED, NEW_BASELINE = "Stopped", "WouldStop", "Resumed", "NewBaseline"
KINDS = (STOPPED, WOULD_STOP, RESUMED, NEW_BASELINE)
_NONE = "-"


class Bucket(NamedTuple):
    """Evals of ``width`` steps.

    Attributes:
        place: its number: its first step is ``place * width``.
        last, low, high: newest, lowest and highest score, rounded, in the trainer's own orientation.
        share: largest statistic of the rule as a share of its threshold then; None: there was none.
        proxy: newest proxy; None: there was none.
        kl: newest KL divergence to the initial policy (nats per response); None: there was none.
        anew: whether a branch begins with it.
    """

    place: int
    last: float
    low: float
    high: float
    share: float | None = None
    proxy: float | None = None
    kl: float | None = None
    anew: bool = False


class CurveMark(NamedTuple):
    """Something that happened at a step.

    Attributes:
        kind: `STOPPED`, `WOULD_STOP`, `RESUMED` (from a checkpoint of that step) or `NEW_BASELINE`.
        step: where.
        attempt: number of the attempt that began there; None: none did.
    """

    kind: str
    step: int
    attempt: int | None = None


def with_eval(
    record: JobRecord, point: EvalPoint, verdict: Verdict | None, kl: float | None = None
) -> EvalCurve:
    """Return the record's curve with one eval more.

    Args:
        record: the record without it.
        point: the eval.
        verdict: what the rule said to it.
        kl: KL divergence to the initial policy then (nats per response); None: it is not known.
    """
    known = record.curve
    bucket = Bucket(
        point.step,
        point.score,
        point.score,
        point.score,
        share_of(verdict),
        _finite(point.proxy),
        _finite(kl),
    )
    if known is None:
        first = (_line(bucket._replace(anew=True)),)
        return EvalCurve(1, point.step, point.attempt, record.baseline_number, first)
    marks, anew = _began(known, record, point)
    marks = _newest(marks)
    width = max(1, known.width)
    bucket = bucket._replace(place=point.step // width, anew=anew)
    newest = next(iter(_buckets(known.buckets[-1:])), None)
    lines: tuple[str, ...]
    if newest is not None and not anew and newest.place == bucket.place:
        lines = (*known.buckets[:-1], _line(_joined(newest, bucket)))
    else:
        lines = (*known.buckets, _line(bucket))
    width, lines = _fitted(width, lines, ROOM - _bytes(marks))
    return EvalCurve(width, point.step, point.attempt, record.baseline_number, lines, marks)


def _began(known: EvalCurve, record: JobRecord, point: EvalPoint) -> tuple[tuple[str, ...], bool]:
    """Return the marks of a curve once an eval follows, and whether a branch begins with that."""
    marks, back = known.marks, point.step < known.step
    if point.attempt != known.attempt and (back or point.attempt.number != known.attempt.number):
        resumed = record.lives[-1].resumed if record.lives else None
        step = point.step if resumed is None else resumed
        marks = _added(marks, f"{RESUMED} {step} {point.attempt.number}")
    if record.baseline_number != known.baseline:
        return _added(marks, f"{NEW_BASELINE} {point.step}"), True
    return marks, back


def marked(plan: Plan) -> Plan:
    """Return the plan with its record's stop marked in the curve, once it was carried out or Shadow noted it.

    Written with what the record has to say of that stop anyway.
    """
    record = plan.record
    decision, curve = record.decision, record.curve
    if decision is None or curve is None:
        return plan
    if decision.mode is not Mode.SHADOW and decision.suspended_at is None:
        return plan
    word = WOULD_STOP if decision.mode is Mode.SHADOW else STOPPED
    marks = _newest(_added(curve.marks, f"{word} {decision.proposal.step}"))
    if marks == curve.marks:
        return plan
    width, lines = _fitted(curve.width, curve.buckets, ROOM - _bytes(marks))
    return replace(
        plan, record=replace(record, curve=replace(curve, width=width, buckets=lines, marks=marks))
    )


def _added(marks: tuple[str, ...], mark: str) -> tuple[str, ...]:
    return marks if mark in marks else (*marks, mark)


def share_of(verdict: Verdict | None) -> float | None:
    """Return how much of its threshold a rule's statistic is, at least 0; None: there are no such numbers."""
    if verdict is None or not (math.isfinite(verdict.statistic) and math.isfinite(verdict.threshold)):
        return None
    if verdict.threshold <= 0.0:
        return None
    return min(SHARE_MAX / 100, max(0.0, verdict.statistic / verdict.threshold))


def curve_branches(curve: EvalCurve | None) -> tuple[tuple[Bucket, ...], ...]:
    """Return the curve's branches, oldest first, each by rising steps; the newest is the present run's."""
    return tuple(map(tuple, _split(_buckets(curve.buckets)))) if curve is not None else ()


def curve_marks(curve: EvalCurve | None) -> tuple[CurveMark, ...]:
    """Return what happened on the way, oldest first."""
    found = []
    for line in curve.marks if curve is not None else ():
        try:
            kind, step, *attempt = line.split(" ")
            mark = CurveMark(kind, int(step), int(attempt[0]) if attempt else None)
        except ValueError:
            continue  # none of ours wrote it
        if kind in KINDS and mark.step >= 0:
            found.append(mark)
    return tuple(found)


def coarser(curve: EvalCurve) -> EvalCurve:
    """Return the curve in buckets of twice the width."""
    return replace(curve, width=2 * curve.width, buckets=_lines(_halved(_buckets(curve.buckets))))


# -- in little room --------------------


def _newest(marks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the marks without the oldest of more than there is room for."""
    kept = marks[-CURVE_MARKS:]
    while _bytes(kept) > MARKS_ROOM:
        kept = kept[1:]
    return kept


def _fitted(width: int, lines: tuple[str, ...], room: int) -> tuple[int, tuple[str, ...]]:
    """Return width and lines, within all bounds; ``room``: bytes that the lines may take."""
    if _fits(lines, room) and sum(line.endswith(ANEW) for line in lines) <= BRANCHES:
        return width, lines
    buckets = _buckets(lines)
    while len(parts := _split(buckets)) > BRANCHES:
        buckets = _without_oldest(parts)
    while not _fits(_lines(buckets), room):  # it ends: one bucket for each of eight branches fits
        width, buckets = min(2 * width, STEP_MAX), _halved(buckets)
    return width, _lines(buckets)


def _fits(lines: Sequence[str], room: int) -> bool:
    return len(lines) <= CURVE_BUCKETS and _bytes(lines) <= room


def _bytes(lines: Sequence[str]) -> int:
    return sum(map(len, lines)) + 3 * len(lines)  # each with its quotes and a comma


def _without_oldest(parts: Sequence[Sequence[Bucket]]) -> list[Bucket]:
    """Return the buckets without what the oldest branch has beyond the step to which the run went back."""
    oldest, following, *rest = parts
    trunk = [b for b in oldest if b.place < following[0].place]
    joined = [*trunk, *following]
    ends = [b._replace(anew=at == 0) for at, b in enumerate(joined)]
    return [*ends, *(b for part in rest for b in part)]


def _halved(buckets: Sequence[Bucket]) -> list[Bucket]:
    found: list[Bucket] = []
    for one in buckets:
        half = one._replace(place=one.place // 2)
        if found and not half.anew and found[-1].place == half.place:
            found[-1] = _joined(found[-1], half)
        else:
            found.append(half)
    return found


def _joined(former: Bucket, later: Bucket) -> Bucket:
    shares = [one for one in (former.share, later.share) if one is not None]
    return Bucket(
        former.place,
        later.last,
        min(former.low, later.low),
        max(former.high, later.high),
        max(shares) if shares else None,
        former.proxy if later.proxy is None else later.proxy,
        former.kl if later.kl is None else later.kl,
        former.anew,
    )


def _split(buckets: Sequence[Bucket]) -> list[list[Bucket]]:
    found: list[list[Bucket]] = []
    for one in buckets:
        if one.anew or not found:
            found.append([])
        found[-1].append(one)
    return found


# -- as lines --------------------


def _lines(buckets: Sequence[Bucket]) -> tuple[str, ...]:
    return tuple(map(_line, buckets))


def _line(one: Bucket) -> str:
    last, low, high = map(_rounded, (one.last, one.low, one.high))
    words = [str(one.place), last]
    tail = [
        _NONE if one.share is None else str(round(100 * one.share)),
        _NONE if one.proxy is None else _rounded(one.proxy),
        _NONE if one.kl is None else _rounded(one.kl, DIGITS_OF_KL),
    ]
    spread = [] if low == high else [low, high]
    words += spread or [_NONE, _NONE]
    words += tail
    while words[-1] == _NONE:
        words.pop()
    return " ".join([*words, ANEW] if one.anew else words)


def _buckets(lines: Iterable[str]) -> list[Bucket]:
    """Return the inverse of `_lines`. A line that none of ours wrote is passed over: it is there to be looked
    at, and no reason to leave a job alone."""
    found = []
    for line in lines:
        try:
            one = _bucket(line)
        except ValueError:
            continue
        if (
            0 <= one.place <= STEP_MAX
            and all(map(math.isfinite, one[1:4]))
            and one.low <= one.last <= one.high
        ):
            found.append(one)
    return found


def _bucket(line: str) -> Bucket:
    anew = line.endswith(f" {ANEW}")
    words = line.removesuffix(f" {ANEW}").split(" ")
    if not 2 <= len(words) <= 7:
        raise ValueError(line)
    place, last = int(words[0]), float(words[1])
    low, high, share, proxy, kl = (*map(_number, words[2:]), None, None, None, None, None)[:5]
    return Bucket(
        place,
        last,
        last if low is None else low,
        last if high is None else high,
        None if share is None else _finite(share / 100),
        _finite(proxy),
        _finite(kl),
        anew,
    )


def _number(word: str) -> float | None:
    return None if word == _NONE else float(word)


def rounded(score: float) -> float:
    """Return a score as the curve has it."""
    return float(_rounded(score))


def _rounded(value: float, digits: int = DIGITS) -> str:
    text = f"{value:.{digits}g}"
    if not math.isfinite(float(text)):  # the largest numbers there are would be rounded beyond them
        text = f"{math.nextafter(value, 0.0) * (1 - 10.0 ** (1 - digits)):.{digits}g}"
    return text.replace("e+", "e").replace("0.", ".", 1) if abs(value) < 1.0 else text.replace("e+", "e")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# -- to be drawn --------------------


class CurvePoint(NamedTuple):
    """One point of a run's course: an eval, or a bucket of evals that are no longer kept one by one.

    Attributes:
        step: of the eval; of a bucket: its middle.
        low, high: of a bucket: lowest and highest score; of an eval: one standard error around it.
        stderr, attempt: of an eval, where they are known.
        bucket: whether it stands for several evals.
    """

    step: int
    score: float
    low: float
    high: float
    proxy: float | None = None
    stderr: float | None = None
    attempt: Attempt | None = None
    bucket: bool = False


class Course(NamedTuple):
    """A run from its first eval to its newest, as far as is kept.

    Attributes:
        points: by rising steps; evals that are kept one by one come last.
        left: what the run has gone back before, each by rising steps, oldest first.
        shares: (step, largest statistic of the rule as a share of its threshold).
        kls: (step, KL divergence to the initial policy in nats per response).
        width: steps of a bucket.
        first: step of the first eval that is kept one by one; None: none is.
    """

    points: tuple[CurvePoint, ...]
    left: tuple[tuple[CurvePoint, ...], ...]
    shares: tuple[tuple[int, float], ...]
    kls: tuple[tuple[int, float], ...]
    width: int
    first: int | None


def course(record: JobRecord) -> Course:
    """Return how the run went, from its buckets and from the evals that are kept."""
    width = record.curve.width if record.curve is not None else 1
    *former, line = map(list, curve_branches(record.curve) or ((),))
    left: list[list[Bucket]] = []
    for branch in reversed(former):
        if not line:
            break
        left.append([b for b in branch if b.place >= line[0].place])
        line = [*(b for b in branch if b.place < line[0].place), *line]
    first = record.evals[0].step if record.evals else None
    until = record.curve.step if record.curve is not None else 0
    old = [b for b in line if first is None or b.place * width < first]
    last = until if first is None else first - 1
    points = [_point(b, width, last) for b in old]
    points += [_exact(p) for p in record.evals]
    shares = [(_middle(b, width, until), b.share) for b in line if b.share is not None]
    kls = [(_middle(b, width, until), b.kl) for b in line if b.kl is not None]
    lost = tuple(tuple(_point(b, width, None) for b in part) for part in reversed(left) if part)
    return Course(tuple(points), lost, tuple(shares), tuple(kls), width, first)


def _middle(one: Bucket, width: int, last: int | None) -> int:
    middle = one.place * width + (width - 1) // 2
    return middle if last is None else max(one.place * width, min(middle, last))


def _point(one: Bucket, width: int, last: int | None) -> CurvePoint:
    step = _middle(one, width, last)
    return CurvePoint(step, one.last, one.low, one.high, one.proxy, bucket=width > 1)


def _exact(point: EvalPoint) -> CurvePoint:
    error = _finite(point.stderr) or 0.0
    low, high = point.score - error, point.score + error
    if not (math.isfinite(low) and math.isfinite(high)):
        low = high = point.score
    proxy = _finite(point.proxy)
    return CurvePoint(point.step, point.score, low, high, proxy, _finite(point.stderr), point.attempt)
