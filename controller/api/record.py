"""JobRecord to status and back, exactly: ``record(status(r)) == r``. No decision is made here.

What equals its default is left out. Only what is for people is ever shortened (messages, and the curve that
nothing is judged by), and only when the status would otherwise not stay below `STATUS_MAX`; a status that was
shortened once is not shortened again.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from controller.api import codec, paths
from controller.api.codec import StatusError
from controller.policy.job import JobRecord
from controller.policy.stored import MESSAGE_MAX
from controller.policy.wording import statistic

if TYPE_CHECKING:
    from controller.api.status import Printed
    from controller.policy.job import Desired, EvalCurve

__all__ = ["StatusError", "field", "is_whole", "record", "size", "status"]

STATUS_MAX = 9150  # bytes of compact JSON; an RLHFJob of usual size stays under 10 kB with it
MESSAGE_FLOOR = 32  # characters that are left of a message in any case
MESSAGE_READABLE = 160  # that are left of one as long as the curve can be made coarser
CURVE_FLOOR = 8  # buckets, up to which it is

Json = dict[str, Any]


def status(record: JobRecord, desired: Desired, now: float) -> Json:
    """Return the status to store for a record.

    ``desired`` gives the generation looked at and the GPUs wanted; ``now`` (s) is not stored, so that a pass
    in which nothing happened gives the same status.

    Raises:
        ValueError: a rule's state is longer than what a status may hold.
    """
    from controller.api.status import JobStatus
    from controller.policy.job import summary

    del now
    whole = JobStatus(
        record,
        observed_generation=desired.generation,
        summary=summary(record.conditions),
        printed=_printed(record, desired),
    )
    found = paths.gathered(codec.encode(whole))
    if size(found) <= STATUS_MAX:
        return found
    drawn = record.curve
    while drawn is not None and len(drawn.buckets) > CURVE_FLOOR and _least(found) > STATUS_MAX:
        drawn = _coarser(drawn)
        found["curve"] = codec.encode(drawn)
    return _shorten(found)


def is_whole(status: Json, record: JobRecord) -> bool:
    """Return whether nothing was shortened in the status of a record: it reads back as that very record."""
    curve, decision = record.curve, record.decision
    stored = [one.get("message", "") for one in _carriers(status)]
    meant = [one.message for one in (*record.conditions, *([decision] if decision is not None else ()))]
    buckets = (status.get("curve") or {}).get("buckets") or ()
    return stored == meant and len(buckets) == (len(curve.buckets) if curve is not None else 0)


def _coarser(curve: EvalCurve) -> EvalCurve:
    from controller.policy.job import coarser

    return coarser(curve)


def _least(status: Json) -> int:
    """Return the bytes that a status takes with messages of `MESSAGE_READABLE` characters at most."""
    whole = size(status)
    if whole <= STATUS_MAX:
        return whole
    short = copy.deepcopy(status)
    carriers = _carriers(short)
    _cut(carriers, [c["message"] for c in carriers], MESSAGE_READABLE)
    return size(short)


def record(status: Mapping[str, Any] | None) -> JobRecord:
    """Return the record a stored status stands for; of an empty one, the empty record.

    Raises:
        StatusError: a field is missing or does not read back.
    """
    if not status:
        return JobRecord()
    try:
        whole = paths.spread(status)
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = status  # what is wrong with it is told below, with the field's name
    return codec.decode(JobRecord, whole)


def field(status: Mapping[str, Any] | None, name: str) -> Any:
    """Return one field of the record that a stored status stands for, for who needs it many times a second.

    Args:
        status: a stored status.
        name: of the field in `JobRecord`; none that holds paths of pins.

    Raises:
        StatusError: it does not read back.
    """
    return codec.decode_field(JobRecord, status, name)


def _printed(record: JobRecord, desired: Desired) -> Printed:
    from controller.api.status import Printed
    from controller.policy.job import state_reason

    wanted = desired.gpus
    released = record.decision is not None and record.decision.pods_gone_at is not None
    held = wanted if record.admission is not None and not released and record.finished is None else 0
    newest = record.evals[-1] if record.evals else None
    verdict = record.rule.verdict if record.rule is not None else None
    compared = (verdict.statistic, verdict.threshold) if verdict is not None else (math.nan, math.nan)
    best = f"{record.best.score:.4g}" if record.best is not None else None
    return Printed(
        reason=state_reason(record) or None,
        gpus=f"{held}/{wanted}",
        step=newest.step if newest is not None else None,
        eval=f"{newest.score:.4g}" if newest is not None else None,
        best=f"{best} (lost)" if record.best_is_lost else f"{best} (alone)" if record.best_is_alone else best,
        streak=f"{statistic(*compared)}/{compared[1]:.4g}" if all(map(math.isfinite, compared)) else None,
    )


def size(status: Json) -> int:
    """Bytes of a status as the API server stores it: compact JSON in UTF-8."""
    return len(json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode())


def _shorten(status: Json) -> Json:
    """Cut the messages to the greatest common length at which the whole fits."""
    if size(status) <= STATUS_MAX:
        return status
    carriers = _carriers(status)
    texts = [c["message"] for c in carriers]
    low, high = MESSAGE_FLOOR, MESSAGE_MAX
    while low < high:
        middle = (low + high + 1) // 2
        _cut(carriers, texts, middle)
        low, high = (middle, high) if size(status) <= STATUS_MAX else (low, middle - 1)
    _cut(carriers, texts, low)
    return status


def _carriers(status: Json) -> list[Json]:
    """Return the parts of a status that have a message for people."""
    return [*status.get("conditions", ()), *([status["decision"]] if "decision" in status else ())]


def _cut(carriers: Sequence[Json], texts: Sequence[str], most: int) -> None:
    for carrier, text in zip(carriers, texts, strict=True):
        carrier["message"] = text if len(text) <= most else text[: most - 1] + "…"
