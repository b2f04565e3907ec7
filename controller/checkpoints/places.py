"""Resolve a storage location of an RLHFJob's spec, for the pod of an access Job: volumes, mounts, root path.

The trainer's location is mounted exactly where the trainer has it, so that a path means the same to both
and can be handed to the trainer to resume from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.frozen import dataclass
from controller.policy.wording import did_you_mean, nearest

Object = Mapping[str, Any]

RETENTION_MOUNT = "/retained"
CLAIM_TERMINATING = "ClaimTerminating"
ONE_POD = "ReadWriteOncePod"
ONE_NODE = "ReadWriteOnce"


class PlaceProblem(Exception):
    """A place that cannot be worked on: a CamelCase reason and a sentence with field, value and remedy."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class MountedLocation:
    """A resolved place. ``root`` is an absolute path in the container, or a URI.

    ``within``: the mount point of its volume, which no tenant can exchange as the folders below it; "": none.
    """

    root: str
    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()
    one_node: bool = False  # only pods on one node may mount it at a time
    credentials: bool = False  # reached with the trainer's credentials
    within: str = ""

    def read_only(self) -> MountedLocation:
        """Return the same place, mounted so that nothing can be written there."""
        return replace(self, mounts=tuple({**mount, "readOnly": True} for mount in self.mounts))


def resolve(
    field: str,
    place: object,
    pod_template: Object,
    claims: Mapping[str, Object],
    mount: str | None = None,
    kept_apart: str = "",
) -> MountedLocation:
    """Return the place that ``spec.checkpoints.location`` or ``.retention`` names.

    Args:
        field: its name in the spec, for messages.
        place: its value: ``{"volumeClaim": …}`` or ``{"objectStore": …}``.
        pod_template: of the workload.
        claims: PersistentVolumeClaims of the namespace by name.
        mount: where to mount a claim; None: where the trainer mounts it.
        kept_apart: the claim that the spec names for copies: it is never what was meant here.

    Raises:
        PlaceProblem: claim missing, claim for one pod only, claim not mounted by the trainer, path outside
            what the trainer sees, or neither of the two kinds.
    """
    if not isinstance(place, Mapping):
        raise PlaceProblem("PlaceMissing", f"{field}: not set, expected volumeClaim or objectStore")
    store, claim = place.get("objectStore"), place.get("volumeClaim")
    if store:
        return MountedLocation(str(store["uri"]).rstrip("/"), credentials=True)
    if not claim:
        kinds = ", ".join(sorted(k for k, v in place.items() if v)) or "empty"
        raise PlaceProblem("PlaceMissing", f"{field}: {kinds}, expected volumeClaim or objectStore")
    name, path = str(claim["claimName"]), normal_path(str(claim.get("path") or "/"))
    mounted_claims = [] if mount is not None else [c for c in _claims_of(pod_template) if c != kept_apart]
    one_node = _check_claim(f"{field}.volumeClaim.claimName", name, claims, mounted_claims)
    volume_name = "retention" if mount else "location"
    volume = {"name": volume_name, "persistentVolumeClaim": {"claimName": name}}
    if mount is not None:
        root = f"{mount}{path}".rstrip("/")
        mounted = {"name": volume_name, "mountPath": mount}
        return MountedLocation(root, (volume,), (mounted,), one_node, within=mount)
    trainers = _trainer_mount(field, name, path, pod_template, mounted_claims)
    at = {"name": volume_name, "mountPath": trainers["mountPath"]}
    inside = path
    if trainers.get("subPath"):
        at["subPath"] = trainers["subPath"]
        inside = path[len(normal_path(trainers["subPath"])) :]
    within = str(trainers["mountPath"]).rstrip("/") or "/"
    root = f"{within.rstrip('/')}{inside}".rstrip("/") or "/"
    return MountedLocation(root, (volume,), (at,), one_node, within=within)


def check_stays(places: Iterable[MountedLocation], claims: Mapping[str, Object]) -> None:
    """Check that pods may still mount the claims of these places.

    Raises:
        PlaceProblem: CLAIM_TERMINATING, somebody has deleted one. It is there for as long as pods that run
            have it mounted, and no new pod is let in.
    """
    for volume in (volume for place in places for volume in place.volumes):
        name = str(volume["persistentVolumeClaim"]["claimName"])
        claim = claims.get(name) or {}
        if (claim.get("metadata") or {}).get("deletionTimestamp"):
            of = str((claim.get("spec") or {}).get("volumeName") or "not bound")
            raise PlaceProblem(
                CLAIM_TERMINATING,
                f"claim {name} (volume {of}) is being deleted: no pod may mount it any more, so nothing is "
                "secured or copied, and no stop is carried out; with the last pod that has it mounted the "
                "claim is gone, and unless its volume is kept all checkpoints and pins with it",
            )


def _claims_of(pod_template: Object) -> list[str]:
    """Return the claims that the trainer's pods mount."""
    volumes = (pod_template.get("spec") or {}).get("volumes") or ()
    found = ((volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes)
    return sorted({str(name) for name in found if name})


def _question(name: str, mounted: Collection[str]) -> str:
    """Return which of the claims that the trainer mounts may have been meant, a clause; "": none."""
    others = [other for other in mounted if other != name]
    close = nearest(name, others)
    return f"; the trainer mounts {', '.join(others[:3])}: {did_you_mean(close)}" if close else ""


def _check_claim(field: str, name: str, claims: Mapping[str, Object], mounted: Collection[str]) -> bool:
    """Return whether only one node may mount the claim at a time. ``mounted``: claims of the trainer's."""
    claim = claims.get(name)
    if claim is None:
        message = f"{field}: {name!r}, but the namespace has no such claim"
        raise PlaceProblem("ClaimMissing", message + _question(name, mounted))
    modes = set((claim.get("spec") or {}).get("accessModes") or ())
    if ONE_POD in modes:
        raise PlaceProblem(
            "ClaimForOnePod",
            f"{field}: {name!r} has access mode {ONE_POD}, so nothing but the trainer's pod can reach its "
            f"checkpoints; expected {ONE_NODE} or ReadWriteMany",
        )
    return ONE_NODE in modes and "ReadWriteMany" not in modes


def _trainer_mount(
    field: str, claim: str, path: str, pod_template: Object, mounted: Collection[str]
) -> Object:
    """Return the mount through which a container of the trainer sees the folder. ``mounted``: claims of the
    trainer's that may have been meant."""
    spec = pod_template.get("spec") or {}
    volumes = {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
    }
    mounts = [
        mount
        for container in spec.get("containers") or ()
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") in volumes
    ]
    if not mounts:
        raise PlaceProblem(
            "LocationNotMounted",
            f"{field}.volumeClaim.claimName: {claim!r} is mounted by no container of the workload; expected "
            f"the claim the trainer writes its checkpoints to{_question(claim, mounted)}",
        )
    for mount in mounts:
        below = normal_path(str(mount.get("subPath") or "/")).rstrip("/")
        if not mount.get("subPathExpr") and (path == below or path.startswith(f"{below}/")):
            return dict(mount)
    seen = ", ".join(str(m.get("subPathExpr") or m.get("subPath")) for m in mounts)
    raise PlaceProblem(
        "LocationNotMounted",
        f"{field}.volumeClaim.path: {path!r} is not inside what the trainer mounts of {claim!r} "
        f"(subPath {seen})",
    )


def normal_path(path: str) -> str:
    """Return a path with one slash between its parts: ``/a/b`` for ``a//b/``, ``/`` for the volume's root."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
