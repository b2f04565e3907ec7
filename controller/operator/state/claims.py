"""The PersistentVolumeClaims of RLHFJobs' checkpoints, read only when needed, which is seldom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.kube.client import Api
from controller.kube.errors import NotFound
from controller.kube.resources import CLAIMS


async def claims_of(api: Api, obj: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Claims by name, those that exist, of ``spec.checkpoints.location`` and ``.retention``."""
    checkpoints = (obj.get("spec") or {}).get("checkpoints") or {}
    wanted = {
        str(claim["claimName"])
        for place in (checkpoints.get("location"), checkpoints.get("retention"))
        if (claim := (place or {}).get("volumeClaim")) is not None
    }
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(wanted):
        try:
            found[name] = await api.get(CLAIMS, name, obj["metadata"]["namespace"])
        except NotFound:
            continue
    return found
