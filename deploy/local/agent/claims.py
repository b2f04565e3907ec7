"""Volumes behind claims: which folder a bound claim means, and who may use it at the same time."""

from __future__ import annotations

from pathlib import Path

from controller.kube.client import Api, Object
from controller.kube.errors import ApiError
from controller.kube.resources import CLAIMS
from deploy.local.agent.resources import PERSISTENT_VOLUMES


class ClaimError(Exception):
    """A claim cannot be used (yet); the message says why."""


class Attachments:
    """Volumes in use, by pod and node: what attaching does on a real cluster, for folders.

    ReadWriteOnce holds per node, ReadWriteOncePod per pod; the others do not restrict.
    """

    def __init__(self) -> None:
        self._users: dict[str, dict[str, str]] = {}  # volume -> pod uid -> node

    def attach(self, volume: str, modes: list[str], node: str, uid: str) -> None:
        """Record that a pod on ``node`` uses the volume.

        Raises:
            ClaimError: another pod uses it in a way that the volume's access modes exclude.
        """
        users = self._users.setdefault(volume, {})
        others = {pod: where for pod, where in users.items() if pod != uid}
        if "ReadWriteOncePod" in modes and others:
            raise ClaimError(f"volume {volume!r} is ReadWriteOncePod and in use by another pod")
        elsewhere = sorted({where for where in others.values() if where != node})
        if elsewhere and not {"ReadWriteMany", "ReadOnlyMany"} & {*modes}:
            raise ClaimError(
                f"Multi-Attach error for volume {volume!r}: "
                f"it is ReadWriteOnce and in use by pods on {', '.join(elsewhere)}"
            )
        users[uid] = node

    def release(self, uid: str) -> None:
        """Record that a pod is gone from all its volumes."""
        for users in self._users.values():
            users.pop(uid, None)


async def folder_of(api: Api, namespace: str, claim: str, owner_uid: str = "") -> tuple[Path, Object]:
    """Return the folder behind a bound claim, and its PersistentVolume.

    `owner_uid`: the pod that must own the claim (generic ephemeral volumes). Raises ClaimError.
    """
    try:
        pvc = await api.get(CLAIMS, claim, namespace)
    except ApiError as error:
        raise ClaimError(f"persistentvolumeclaim {claim!r}: {error.message}") from error
    owners = pvc["metadata"].get("ownerReferences") or []
    if owner_uid and not any(owner["uid"] == owner_uid for owner in owners):
        raise ClaimError(f"persistentvolumeclaim {claim!r} exists but does not belong to the pod")
    name = pvc["spec"].get("volumeName")
    if not name or (pvc.get("status") or {}).get("phase") != "Bound":
        raise ClaimError(f"persistentvolumeclaim {claim!r} is not bound yet")
    try:
        volume = await api.get(PERSISTENT_VOLUMES, name)
    except ApiError as error:
        raise ClaimError(f"persistentvolume {name!r}: {error.message}") from error
    if (volume["spec"].get("claimRef") or {}).get("uid") != pvc["metadata"]["uid"]:
        raise ClaimError(f"persistentvolume {name!r} is not bound to claim {claim!r}")
    if volume["spec"].get("volumeMode") == "Block":
        raise ClaimError(f"persistentvolume {name!r}: block volumes do not exist on this node")
    source = volume["spec"].get("hostPath") or volume["spec"].get("local")
    if source is None:
        raise ClaimError(f"persistentvolume {name!r}: this node knows hostPath and local volumes only")
    return _existing(name, source), volume


def _existing(volume: str, source: Object) -> Path:
    folder = Path(source["path"])
    if source.get("type") == "DirectoryOrCreate":
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise ClaimError(f"persistentvolume {volume!r}: {folder} is not a folder")
    return folder
