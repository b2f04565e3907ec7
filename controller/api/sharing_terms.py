"""Between what objects say of sharing worker groups and the brain's values. Nothing is decided here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from controller.api.codec import decode_field
from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJobSpec
from controller.api.sharing import EMPTY_SECONDS, MAX_RESIDENTS, JobSharing, SharingBackfill
from controller.api.status import KindMeasured, PoolStatus
from controller.policy.group_types import FamilyTerms, GroupView, KindProfile, PoolSharing, ResidencyTerms
from controller.policy.types import Problem


def sharing_problem(spec: RLHFJobSpec, pool: GPUPool | None) -> Problem | None:
    """Return why a pool gives no residency."""
    asked = spec.sharing
    if asked is None or pool is None:
        return None
    offered = pool.spec.sharing
    if offered is None:
        return Problem(
            "SharingNotOffered",
            f"spec.sharing: GPUPool {spec.pool!r} offers no worker groups: use a pool with spec.sharing, or "
            "leave sharing out",
        )
    family = next((family for family in offered.families if family.name == asked.family), None)
    if family is None:
        known = ", ".join(family.name for family in offered.families)
        return Problem(
            "FamilyNotFound",
            f"spec.sharing.family: GPUPool {spec.pool!r} has no family {asked.family!r}; it has: {known}",
        )
    most = min(family.device_bytes, family.host_bytes // 2)
    if asked.state_bytes > most:
        return Problem(
            "StateTooLarge",
            f"spec.sharing.stateBytes: {asked.state_bytes} is more than a member of family {family.name!r} "
            f"holds: {family.device_bytes} bytes of device memory, and twice the state in "
            f"{family.host_bytes} bytes of host memory; at most {most} is right",
        )
    return None


def residency_terms(obj: Mapping[str, Any], asked: JobSharing) -> ResidencyTerms:
    """Return a job's wish for a residency. ``obj``: the RLHFJob."""
    return ResidencyTerms(
        asked.family, asked.state_bytes, asked.max_slowdown_percent, sharing_kind(obj, asked.family)
    )


def sharing_kind(obj: Mapping[str, Any], family: str) -> str:
    """Return the kind of a job by which its turns were measured: jobs of one namespace and family, with the
    same labels and the same template, are alike."""
    metadata, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    terms_by_name = {
        "labels": metadata.get("labels") or {},
        "workload": spec.get("workload"),
        "rollout": spec.get("rollout"),
    }
    text = json.dumps(terms_by_name, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{metadata.get('namespace', '')}/{family}/{digest}"


def sharing(
    pool: GPUPool,
    groups: tuple[GroupView, ...] = (),
    profiles: tuple[KindProfile, ...] = (),
    next_group: int = 1,
) -> PoolSharing | None:
    """Return how a pool shares worker groups; None: it does not, and has no groups left.

    Args:
        pool: the pool.
        groups: that it has.
        profiles: what was measured of kinds of jobs.
        next_group: number of the next group.
    """
    offered = pool.spec.sharing
    if offered is None:
        return PoolSharing((), groups=groups, next_group=next_group) if groups else None
    return PoolSharing(
        tuple(
            FamilyTerms(
                family.name,
                family.replicas,
                family.gpus_per_replica,
                family.device_bytes,
                family.residual_bytes,
                family.host_bytes,
            )
            for family in offered.families
        ),
        offered.placement.value,
        offered.backfill is SharingBackfill.ENABLED,
        offered.max_residents,
        offered.max_duty_percent,
        idle_seconds=float(EMPTY_SECONDS),
        gang_seconds=float(pool.spec.gang_timeout_seconds),
        groups=groups,
        profiles=profiles,
        next_group=next_group,
    )


def most_residents(pool: Any) -> int:
    """Return how many jobs a group of a pool may have; of one that is gone, invalid or shares nothing any
    more: the default."""
    offered = pool.spec.sharing if isinstance(pool, GPUPool) else None
    return offered.max_residents if offered is not None else MAX_RESIDENTS


def next_group(status: Mapping[str, Any] | None) -> int:
    """Return the number of the next worker group by a GPUPool's status.

    Raises:
        StatusError: it does not read back.
    """
    found: int | None = decode_field(PoolStatus, status, "next_group")
    return found or 1


def profiles(status: Mapping[str, Any] | None) -> tuple[KindProfile, ...]:
    """Return the profiles of kinds in a GPUPool's status, like `next_group`."""
    found: tuple[KindMeasured, ...] = decode_field(PoolStatus, status, "profiles")
    return tuple(
        KindProfile(
            one.kind,
            tuple(zip(one.turns[::2], one.turns[1::2], strict=False)),
            one.per_step,
            one.lag,
            one.loads,
            one.offloads,
        )
        for one in found
    )


def stored_profiles(found: Iterable[KindProfile]) -> tuple[KindMeasured, ...]:
    """Return profiles of kinds as a GPUPool's status has them."""
    return tuple(
        KindMeasured(
            one.kind,
            tuple(time for turn in one.turns for time in turn),
            one.per_step,
            one.lag,
            one.loads,
            one.offloads,
        )
        for one in found
    )
