"""Findings about a job's rollouts that need a hand, from its record alone: for `marks.health`.

A step never waits for its actors' sake, so none of this stops a run: it trains with fewer actors, or with the
static count, and is slower or dearer than it need be. Only a run without any actor ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from controller.policy.actor_types import ActorState
from controller.policy.job.record import JobRecord
from controller.policy.job.rollout_record import StepAside, StepRow

READY_AFTER = 300.0  # s from an actor's entry until it is a warning that it is not ready: models are large
UNPLANNED_AFTER = 900.0  # s for which no step may be announced, or planned
SEVERAL = 3  # steps in a row: one may be the first of a run, or have lost an actor with its node
UNPLANNED = frozenset({"", "NoForecast"})  # reasons of plans without a forecast; "": no plan at all


class Trouble(NamedTuple):
    """Of a mark its reason, message, since when (s), and from when on it is a warning (s)."""

    reason: str
    message: str
    since: float
    due: float


def troubles(record: JobRecord) -> Iterator[Trouble]:
    """Yield what is amiss with the rollouts of a job that has its GPUs."""
    account = record.rollout
    yield from _starving(record)
    rows = account.recent if account is not None else ()
    # Actors start with many steps: one is told of once two steps have ended without it.
    before = rows[-2].at if len(rows) > 1 else math.inf
    starting = [a for a in record.actors if a.state is ActorState.STARTING and a.since < before]
    if starting:
        first = min(starting, key=lambda actor: (not actor.waits, actor.since))
        text = f"actor {first.number} on node {first.node} is not ready yet"
        text += f": its pod waits, {first.waits}" if first.waits else ""
        text += f", and {len(starting) - 1} more" if len(starting) > 1 else ""
        since = min(actor.since for actor in starting)
        yield Trouble("ActorNotReady", text, since, since + READY_AFTER)
    if account is None or account.plan is None:
        begun = record.admission.running_since if record.admission is not None else None
        if record.actors and not starting and begun is not None:
            text = "it has rollout actors, and its trainer has announced no step"
            yield Trouble("StepsUnplanned", text, begun, begun + UNPLANNED_AFTER)
        return
    failing = _last(rows, lambda row: row.failed > 0)
    if len(failing) >= SEVERAL:
        count = sum(row.failed for row in failing)
        text = f"{count} actors were lost or put aside in the last {len(failing)} steps"
        yield Trouble("ActorsFail", text, failing[0].at, failing[0].at)
    unplanned = _last(rows, lambda row: row.reason in UNPLANNED)
    if len(unplanned) >= SEVERAL:
        text = (
            f"the last {len(unplanned)} steps had no forecast of lengths, and so the static count of actors"
        )
        since = unplanned[0].at
        yield Trouble("StepsUnplanned", text, since, since + UNPLANNED_AFTER)


def _starving(record: JobRecord) -> Iterator[Trouble]:
    """Yield that no actor is left to a run, or was left to its attempt before: until a step ends, nothing
    says that this one has what that lacked."""
    account, admission = record.rollout, record.admission
    if account is None or admission is None:
        return
    aside = account.aside
    lost = f"step {aside.step}: {aside.failures}" if aside is not None else ""
    if account.starved:
        often = "" if account.starved == 1 else f" {account.starved} times in a row"
        text = f"its trainer had no rollout actor left{often}, and no step has ended since"
        text += f"; {lost}" if lost else ""
        yield Trouble("RolloutStarved", text, admission.at, admission.at)
    elif aside is not None and _leaves_none(record, aside):
        # Quiet: others may start, and the learner may generate.
        yield Trouble("ActorsFail", f"no rollout actor is left to its step; {lost}", aside.at, math.inf)


def _leaves_none(record: JobRecord, aside: StepAside) -> bool:
    """Return whether a step of this attempt, the newest one, has put aside as many actors as there are."""
    admission, plan = record.admission, record.rollout.plan if record.rollout is not None else None
    if admission is None or aside.at < admission.at or (plan is not None and plan.step != aside.step):
        return False
    return aside.count >= sum(actor.stays for actor in record.actors)


def _last(rows: tuple[StepRow, ...], such: Callable[[StepRow], bool]) -> list[StepRow]:
    """Return the newest rows that are all such, oldest first."""
    return list(takewhile(such, reversed(rows)))[::-1]
