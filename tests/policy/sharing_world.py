"""Residents, groups and families for the tests of sharing."""

from __future__ import annotations

from typing import Any

from controller.policy.sharing import (
    SECOND,
    Family,
    GroupSupply,
    Profile,
    RecordedTurn,
    Resident,
    WorkerGroup,
)

GB = 10**9
FAMILY = Family("7b", gpus=16, device_bytes=80 * GB, residual_bytes=2 * GB, host_bytes=100 * GB)


def profile(kind: str = "a", away: float = 80.0, held: float = 20.0, steps: int = 20, **more: Any) -> Profile:
    """Return a profile of steps that vary a little, so that two residents do not run in step."""
    turns = tuple(
        RecordedTurn(
            round(away * SECOND * (0.8 + 0.4 * ((7 * n) % steps) / max(1, steps - 1))), round(held * SECOND)
        )
        for n in range(steps)
    )
    more.setdefault("loads", (SECOND,))
    more.setdefault("offloads", (SECOND,))
    return Profile(kind, turns, **more)


def resident(key: str = "job-1", of: Profile | None = None, **more: Any) -> Resident:
    more = {"family": "7b", "namespace": "research", "state_bytes": 8 * GB, **more}
    return Resident(key, profile=of, **more)


def group(*residents: Resident, name: str = "wg-3", **more: Any) -> WorkerGroup:
    return WorkerGroup(name, "7b", residents, **more)


def supply(*groups: WorkerGroup, free: int = 0, private: int | None = None, **more: Any) -> GroupSupply:
    return GroupSupply(groups, {"7b": FAMILY}, free, private, **more)
