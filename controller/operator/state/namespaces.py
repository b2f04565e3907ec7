"""Pod Security levels of namespaces, read only when needed, which is seldom."""

from __future__ import annotations

from controller.checkpoints.pod_security import LABEL
from controller.kube.client import Api
from controller.kube.errors import NotFound, Refused
from controller.kube.resources import NAMESPACES


async def enforced_level(api: Api, namespace: str) -> str:
    """Return the level that a namespace enforces; "": none, or it may not be read."""
    try:
        found = await api.get(NAMESPACES, namespace)
    except (NotFound, Refused):
        return ""
    return str((found["metadata"].get("labels") or {}).get(LABEL) or "")
