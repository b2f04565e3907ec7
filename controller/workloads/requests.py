"""GPUs that one container asks for."""

from __future__ import annotations

from controller.objects import Object, amount


def requested(container: Object, resource: str) -> int:
    """Return GPUs that a container asks for."""
    resources = container.get("resources") or {}
    # Extended resources: request and limit must be equal, and the limit alone sets both.
    for group in ("limits", "requests"):
        found = amount((resources.get(group) or {}).get(resource))
        if found is not None:
            return found
    return 0
