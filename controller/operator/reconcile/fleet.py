"""A pool's jobs as a fleet: input of the pool's plan, and messages about its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from controller import names
from controller.operator.reconcile.planned_job import PlannedJob
from controller.policy.fleet import ASKS_OTHERS, ASKS_POOL, HOUR, day_start
from controller.policy.job import COMPLETED, FAILED, Event, JobRecord
from controller.policy.types import (
    Ended,
    JobKey,
    Mode,
    PastStop,
    PoolPlan,
    PoolSnapshot,
    SharedFall,
    namespace_of,
)

ASK_AGAIN = 5.0  # s


class PoolCondition(NamedTuple):
    """Status, reason and message wanted for a condition of a GPUPool."""

    type: str
    status: bool
    reason: str
    message: str


def past_stops(
    records: Iterable[tuple[JobKey, JobRecord]], known: Iterable[PastStop], now: float
) -> tuple[PastStop, ...]:
    """Return the stops by rules of the last hour and of the day (UTC) of ``now`` (s), oldest first.

    A stop that was taken back counts for nothing. ``records``: of the pool's RLHFJobs, as written.
    ``known``: the stops that its status remembers, for a job that was resumed or deleted since tells of its
    stop no more.
    """
    found = {(stop.job, stop.at): stop for stop in known}
    for key, record in records:
        if record.taken_back is not None:
            found.pop((key, record.taken_back.decided), None)
        d = record.decision
        if d is not None and d.mode is Mode.ENFORCE and d.by != "User":
            found[key, d.at] = PastStop(d.at, d.proposal.e_value, key)
    counted = (stop for stop in found.values() if stop.at > now - HOUR or stop.at >= day_start(now))
    return tuple(sorted(counted, key=lambda stop: (stop.at, stop.job)))


def ended_today(planned_jobs: Iterable[PlannedJob], now: float) -> tuple[Ended, ...]:
    """Return jobs whose run ended by itself, or by a user's stop, on the day (UTC) of ``now`` (s), by
    namespace."""
    counts = Counter(namespace_of(t.key) for t in planned_jobs if _ended(t.record) >= day_start(now))
    return tuple(Ended(name, counts[name]) for name in sorted(counts))


def _ended(record: JobRecord) -> float:
    if record.decision is not None and record.decision.by == "User":
        return record.decision.at
    ends = (c.since for c in record.conditions if c.type in (COMPLETED, FAILED) and c.status)
    return max(ends, default=0.0) if record.finished is not None else 0.0


def held_back(obj: Mapping[str, Any], plan: PoolPlan) -> PoolCondition | None:
    """Return the pool's condition `names.HELD_BACK`; None while there never was a reason for one.

    The numbers in the message are those of the first time: they change at every pass.
    """
    stops = plan.stops
    conditions = (obj.get("status") or {}).get("conditions") or ()
    known = next((c for c in conditions if c["type"] == names.HELD_BACK), None)
    if not stops.reason:
        nothing = PoolCondition(names.HELD_BACK, False, "NothingHeldBack", "no stop is held back")
        return nothing if known is not None else None
    if known is not None and (known["status"], known["reason"]) == ("True", stops.reason):
        return PoolCondition(names.HELD_BACK, True, stops.reason, known["message"])
    return PoolCondition(names.HELD_BACK, True, stops.reason, stops.message)


def ask_again_at(plan: PoolPlan, now: float) -> float | None:
    """Return when (s) to look whether the others have had evals, for which a stop waits; None: no stop
    does."""
    waits = any(held.reason in (ASKS_OTHERS, ASKS_POOL) for held in plan.held_back)
    return now + ASK_AGAIN if waits else None


def breaker_open(pool: Mapping[str, Any]) -> bool:
    """Return whether a GPUPool's status says so."""
    return bool(((pool.get("status") or {}).get("stops") or {}).get("breakerSince"))


def events(snapshot: PoolSnapshot, plan: PoolPlan, now: float) -> list[Event]:
    """Return what is new at ``now`` (s) since the pool's status, of which the snapshot was made, was
    written."""
    found = [_fell(fall) for fall in plan.falls if fall not in snapshot.falls]
    before, since = snapshot.breaker_since, plan.stops.breaker_since
    if since is not None and before is None:
        found.append(Event("BreakerOpen", f"no run is stopped: {plan.stops.message}", warning=True))
    if since is None and before is not None:
        found.append(Event("BreakerClosed", f"runs may be stopped again, after {now - before:.0f} s"))
    return found


def _fell(fall: SharedFall) -> Event:
    of = f"jobs of metric {fall.metric!r}" if fall.metric else "jobs"
    message = (
        f"{fall.fell} of {fall.of} {of} of namespace {fall.namespace} fell at the same moment: a cause that "
        "they share, such as another evaluator, is likelier than as many declines; their rules begin anew "
        "behind it"
    )
    return Event("SharedFall", message, warning=True)
