"""Happenings of a run, read from its status alone: the same status always tells the same.

Each happening has an id that is made of what it is, so that whoever is told twice can see it. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from controller.policy.job import (
    ATTENTION,
    JobRecord,
    Outcome,
    health,
    was_right,
)
from controller.policy.job import conditions as c
from controller.policy.types import Mode

MARKED, RECOVERED, STOPPED, WOULD_STOP, RESUMED, OUTCOME = (
    "marked",
    "recovered",
    "stopped",
    "wouldStop",
    "resumed",
    "outcome",
)
KINDS = (MARKED, RECOVERED, STOPPED, WOULD_STOP, RESUMED, OUTCOME)


class Happening(NamedTuple):
    """Something that happened to a run.

    Attributes:
        id: the same whenever it is told, and of nothing else.
        kind: one of `KINDS`.
        at: when (s since 1970).
        reason: CamelCase code.
        message: for people.
        more: further fields of the event's data.
    """

    id: str
    kind: str
    at: float
    reason: str
    message: str
    more: dict[str, Any]


def happenings(uid: str, record: JobRecord, now: float) -> list[Happening]:
    """Return all that a status tells, oldest first. ``uid``: of the RLHFJob; ``now``: s."""

    def made(kind: str, at: float, what: object, reason: str, message: str, **more: Any) -> Happening:
        text = "\n".join((uid, kind, str(what)))
        return Happening(hashlib.sha256(text.encode()).hexdigest()[:32], kind, at, reason, message, more)

    found = [*_marks(record, now, made), *_stops(record, made), *_resumes(record, made)]
    if (was := record.outcome) is not None and was.verdict is not Outcome.OPEN:
        at = float(record.eval_times[-1]) if record.eval_times else was.decided
        what = f"{was.decided} {was.verdict}"
        found.append(
            made(OUTCOME, max(at, was.decided), what, str(was.verdict), was_right(was), step=was.step)
        )
    return sorted(found, key=lambda one: one.at)


def _marks(record: JobRecord, now: float, made: Any) -> Iterator[Happening]:
    for one in health(record, now):
        if one.warning:
            at = max(one.since, min(one.due, now))
            cure = one.cure()
            yield made(
                MARKED,
                at,
                f"{one.mark} {one.reason} {one.since}",
                one.reason,
                one.message,
                mark=str(one.mark),
                cure=cure.text,
            )
    known = record.condition(ATTENTION)
    if known is not None and not known.status:
        yield made(RECOVERED, known.since, known.since, known.reason, known.message)


def _stops(record: JobRecord, made: Any) -> Iterator[Happening]:
    decision = record.decision
    if decision is None:
        return
    asked = decision.proposal
    more = {"by": decision.by, "step": asked.step, "bestStep": asked.best_step}
    if decision.mode is Mode.SHADOW:
        yield made(WOULD_STOP, decision.at, decision.at, asked.reason, decision.message, **more)
    elif decision.suspended_at is not None:
        yield made(STOPPED, decision.suspended_at, decision.at, asked.reason, decision.message, **more)


def _resumes(record: JobRecord, made: Any) -> Iterator[Happening]:
    known = record.condition(c.RESUMED)
    if known is not None and known.status and record.resume_id:
        at = record.queued_at if record.queued_at is not None else known.since
        yield made(RESUMED, at, record.resume_id, known.reason, known.message, request=record.resume_id)
