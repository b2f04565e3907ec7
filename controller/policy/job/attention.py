"""Condition NeedsAttention and its Events: what the job's health says, once it is a warning.

A quiet note sets nothing here: the condition that it comes from says it. So a job that never had a warning
never has the condition, and one whose evals are away for a moment does not change it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.event import Event
from controller.policy.job.marks import Finding, Mark, blind_reason, health, next_due
from controller.policy.job.past_losses import unsaved
from controller.policy.job.record import Condition, JobRecord
from controller.policy.job.types import Desired, Plan

MAX_MESSAGE = 240  # characters: the condition that it comes from has all of it
# Their own conditions are told with an Event of type Warning; a second one would say the same.
OWN_WARNINGS = frozenset({Mark.REFUSED, Mark.FAILED, Mark.UNSAFE, Mark.HELD_UP})


def with_attention(plan: Plan, desired: Desired, now: float) -> Plan:
    """Return the plan with what its record's health says: condition, Event, and when to look again."""
    record = _noted(plan.record, desired, now)
    found = health(record, now)
    known = record.condition(c.ATTENTION)
    due = next_due(record, now)
    wake = plan.requeue_after
    if due is not None:
        wake = due + 1.0 if wake is None else min(wake, due + 1.0)
    warnings = [one for one in found if one.warning]
    conditions = c.Conditions(record.conditions, desired.generation, now)
    events: tuple[Event, ...] = ()
    if warnings:
        worst = warnings[0]
        conditions.set(c.ATTENTION, True, str(worst.mark), _message(worst), warning=True)
        if worst.mark not in OWN_WARNINGS:
            events = tuple(conditions.events)
    elif known is not None and known.status and not _borne(known, found) and record.gang_backoff is None:
        # (A gang that is tried again after a time-out is well once it is bound whole.)
        over = "it is over, and nothing of it can be saved any more" if unsaved(record) else ""
        conditions.set(c.ATTENTION, False, "Recovered", over or "nothing needs a hand any more")
        events = tuple(conditions.events)
    after = conditions.result()
    if after != record.conditions:
        record = replace(record, conditions=after)
    return replace(plan, record=record, events=(*plan.events, *events), requeue_after=wake)


def _noted(record: JobRecord, desired: Desired, now: float) -> JobRecord:
    """Return the record with what the health is read from: how long evals may be away, and since when its
    rule has been blind."""
    if record.first_eval != desired.first_eval:
        record = replace(record, first_eval=desired.first_eval)
    blind = bool(blind_reason(record))
    if blind != (record.blind_since is not None):
        record = replace(record, blind_since=now if blind else None)
    return record


def _borne(known: Condition, found: tuple[Finding, ...]) -> bool:
    """Return whether the job bears the mark on that it was warned of; a quiet note of another kind must not
    keep it in its STATE, as that of a model that loads once its image is there; nor must a note for good."""
    return any(one.mark == known.reason and math.isfinite(one.due) for one in found)


def _message(one: Finding) -> str:
    text = f"{one.reason}: {one.message}"
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
