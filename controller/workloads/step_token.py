"""A pod's token for the step API of rollouts: projected, of its own audience, renewed by the kubelet."""

from __future__ import annotations

from typing import Any

from controller import names


def token_source() -> dict[str, Any]:
    """Return the source of a projected volume with the pod's token."""
    seconds = names.STEPS_TOKEN_SECONDS
    asked = {"audience": names.STEPS_AUDIENCE, "expirationSeconds": seconds, "path": "token"}
    return {"serviceAccountToken": asked}


def put_token(pod: dict[str, Any]) -> None:
    """Give the token to all containers of a pod that trains."""
    volume = {"name": names.STEPS_TOKEN_VOLUME, "projected": {"sources": [token_source()]}}
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    mount = {"name": names.STEPS_TOKEN_VOLUME, "mountPath": names.STEPS_TOKEN_DIR, "readOnly": True}
    for group in ("initContainers", "containers"):
        for container in pod.get(group) or ():
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
