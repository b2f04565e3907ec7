"""A GPUPool's stop limits, and what its status remembers of its jobs as a fleet, in the brain's words.

Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.api.codec import StatusError, decode_field
from controller.api.gpupool import GPUPool
from controller.api.status import PoolStatus, Stops
from controller.policy.fleet import (
    kept_stops,
    rules_with_e_values,
    usual,
    usual_of_guardrails,
    without_e_value,
)
from controller.policy.job import Desired
from controller.policy.types import (
    FleetScope,
    FleetView,
    MetricNoise,
    PastStop,
    Problem,
    ScoredBy,
    SharedFall,
    StopCount,
    StopLimits,
)


def stop_limits(pool: GPUPool) -> StopLimits:
    """Return what the pool allows its jobs' stop rules together."""
    limits = pool.spec.stop_limits
    return StopLimits(
        limits.per_hour,
        limits.breaker_percent,
        limits.shared_fall_percent or None,
        float(limits.shared_fall_wait_seconds),
        None if limits.precision is None else float(limits.precision),
        limits.precision_jobs,
        pool.spec.fleet.scope,
    )


def precision_problem(desired: Desired, pool: GPUPool) -> Problem | None:
    """Return why the job's rules do not go with the precision that its pool promises; None: they do."""
    precision = pool.spec.stop_limits.precision
    if precision is None:
        return None
    judged = {"spec.stopRule": desired.rule}
    judged |= {f"spec.metrics: stopRule of {guard.metric!r}": guard.rule for guard in desired.guardrails}
    for field, rule in judged.items():
        if without_e_value([rule]) is not None:
            return Problem(
                "RuleWithoutEValue",
                f"{field}: {rule.name!r} yields no e-values, by which GPUPool {pool.metadata.name!r} keeps "
                f"its stopLimits.precision of {precision}; expected {' or '.join(rules_with_e_values())}",
            )
    return None


def noise(status: Mapping[str, Any] | None) -> tuple[MetricNoise, ...]:
    """Return the noise in a GPUPool's status.

    Raises:
        StatusError: an entry does not read back.
    """
    found: tuple[MetricNoise, ...] = decode_field(PoolStatus, status, "noise")
    return found


def shared_falls(status: Mapping[str, Any] | None) -> tuple[SharedFall, ...]:
    """Return the shared falls in a GPUPool's status, like `noise`."""
    found: tuple[SharedFall, ...] = decode_field(PoolStatus, status, "shared_falls")
    return found


def stops(status: Mapping[str, Any] | None) -> Stops:
    """Return the stops that a GPUPool's status remembers, oldest first, like `noise`."""
    return decode_field(PoolStatus, status, "stops") or Stops()


def view_for(
    status: Mapping[str, Any] | None,
    scored_by: ScoredBy,
    scope: FleetScope = FleetScope.NAMESPACE,
    guardrails: Iterable[str] = (),
) -> FleetView:
    """Return what a pool's status says to a job whose evals are so scored; unreadable: nothing.

    ``guardrails``: its guardrail metrics.
    """
    try:
        known, falls = noise(status), shared_falls(status)
    except StatusError:
        return FleetView()
    newest = max((f for f in falls if f.concerns(scored_by)), key=lambda f: f.before, default=None)
    guards = usual_of_guardrails(known, scored_by, scope, guardrails)
    return FleetView(usual(known, scored_by, scope), newest, guardrails=guards)


def taught(status: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """By namespace what the status tells its jobs, as it is stored."""
    found: dict[str, list[Any]] = {}
    for field in ("noise", "sharedFalls"):
        stored = (status or {}).get(field)
        for entry in stored if isinstance(stored, list) else ():
            if isinstance(entry, Mapping):  # what does not read back tells nobody anything
                found.setdefault(str(entry.get("namespace", "")), []).append(entry)
    return found


def stored_stops(count: StopCount, past: Sequence[PastStop] = ()) -> Stops | None:
    """Return what a GPUPool's status says of its stops; None: there is nothing to say."""
    some = bool(count.today or count.last_hour)
    found = Stops(
        count.last_hour if some else None,
        count.today if some else None,
        count.breaker_since,
        tuple(kept_stops(past)),
    )
    return None if found == Stops() else found
