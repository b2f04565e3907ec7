"""A GPUPool's stop limits, and what its status remembers of its jobs as a fleet, in the brain's words.

Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.api import values
from controller.api.gpupool import GPUPool
from controller.api.record import StatusError
from controller.policy.fleet import kept_stops, rules_with_e_values, usual, without_e_value
from controller.policy.job import Desired
from controller.policy.types import (
    FleetNoise,
    FleetScope,
    FleetView,
    MetricNoise,
    PastStop,
    ScoredBy,
    SharedFall,
    StopCount,
    StopLimits,
)

Json = dict[str, Any]


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


def precision_problem(desired: Desired, pool: GPUPool) -> tuple[str, str] | None:
    """Return why the job's rules do not go with the precision that its pool promises; None: they do."""
    precision = pool.spec.stop_limits.precision
    if precision is None:
        return None
    judged = {"spec.stopRule": desired.rule}
    judged |= {f"spec.metrics: stopRule of {guard.metric!r}": guard.rule for guard in desired.guardrails}
    for field, rule in judged.items():
        if without_e_value([rule]) is not None:
            return (
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
    try:
        return tuple(
            MetricNoise(
                n["namespace"],
                n["metric"],
                n.get("evaluator", ""),
                FleetNoise(float(n["sigma"]), float(n["freedom"])),
                int(n["jobs"]),
            )
            for n in (status or {}).get("noise") or ()
            if "namespace" in n  # else an earlier version wrote it, of the whole pool
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StatusError(f"status.noise: {error}") from error


def shared_falls(status: Mapping[str, Any] | None) -> tuple[SharedFall, ...]:
    """Return the shared falls in a GPUPool's status, like `noise`."""
    try:
        return tuple(
            SharedFall(
                f["namespace"],
                f.get("metric", ""),
                f.get("evaluator", ""),
                values.seconds(f["after"]),
                values.seconds(f["before"]),
                int(f["fell"]),
                int(f["of"]),
            )
            for f in (status or {}).get("sharedFalls") or ()
            if "namespace" in f
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatusError(f"status.sharedFalls: {error}") from error


def breaker_since(status: Mapping[str, Any] | None) -> float | None:
    """Return since when (s) the breaker has been open; None: it is closed. Like `noise`."""
    try:
        since = ((status or {}).get("stops") or {}).get("breakerSince")
        return None if since is None else values.seconds(since)
    except (TypeError, ValueError, AttributeError) as error:
        raise StatusError(f"status.stops: {error}") from error


def granted(status: Mapping[str, Any] | None) -> tuple[PastStop, ...]:
    """Return the stops that a GPUPool's status remembers, oldest first, like `noise`."""
    try:
        return tuple(
            PastStop(
                values.seconds(s["time"]),
                float(s["eValue"]) if "eValue" in s else None,
                s["job"],
            )
            for s in ((status or {}).get("stops") or {}).get("granted") or ()
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatusError(f"status.stops.granted: {error}") from error


def told(
    status: Mapping[str, Any] | None, scored_by: ScoredBy, scope: FleetScope = FleetScope.NAMESPACE
) -> FleetView:
    """Return what the pool tells a job whose evals are so scored. An unreadable status tells nothing."""
    try:
        known, falls = noise(status), shared_falls(status)
    except StatusError:
        return FleetView()
    newest = max((f for f in falls if f.concerns(scored_by)), key=lambda f: f.before, default=None)
    return FleetView(usual(known, scored_by, scope), newest)


def taught(status: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """By namespace what the status tells its jobs, as it is stored."""
    found: dict[str, list[Any]] = {}
    for field in ("noise", "sharedFalls"):
        for entry in (status or {}).get(field) or ():
            if isinstance(entry, Mapping):  # what does not read back tells nobody anything
                found.setdefault(str(entry.get("namespace", "")), []).append(entry)
    return found


def stored(
    stops: StopCount,
    known: tuple[MetricNoise, ...],
    falls: tuple[SharedFall, ...],
    past: Sequence[PastStop] = (),
) -> Json:
    """Return the fields of a GPUPool's status for these."""
    counts: Json = {}
    if stops.today or stops.last_hour:
        counts = {"lastHour": stops.last_hour, "today": stops.today}
    if stops.breaker_since is not None:
        counts["breakerSince"] = values.timestamp(stops.breaker_since)
    if past:
        counts["granted"] = [_granted(stop) for stop in kept_stops(past)]
    out: Json = {"stops": counts} if counts else {}
    if known:
        out["noise"] = [_noise(n) for n in known]
    if falls:
        out["sharedFalls"] = [_fall(f) for f in falls]
    return out


def _granted(stop: PastStop) -> Json:
    out: Json = {"job": stop.job, "time": values.timestamp(stop.at)}
    e_value = None if stop.e_value is None else values.number(stop.e_value)
    return out if e_value is None else out | {"eValue": e_value}


def _noise(entry: MetricNoise) -> Json:
    out: Json = {"namespace": entry.namespace, "metric": entry.metric}
    out |= {"evaluator": entry.evaluator} if entry.evaluator else {}
    return out | {
        "sigma": values.number(entry.noise.sigma),
        "freedom": values.number(entry.noise.freedom),
        "jobs": entry.jobs,
    }


def _fall(fall: SharedFall) -> Json:
    out: Json = {"namespace": fall.namespace}
    out |= {"metric": fall.metric} if fall.metric else {}
    out |= {"evaluator": fall.evaluator} if fall.evaluator else {}
    return out | {
        "after": values.timestamp(fall.after),
        "before": values.timestamp(fall.before),
        "fell": fall.fell,
        "of": fall.of,
    }
