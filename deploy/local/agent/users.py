"""Users that containers run as, and owners of the files that a pod's volumes show."""

from __future__ import annotations

from dataclasses import dataclass

from controller.kube.client import Object


@dataclass(frozen=True)
class User:
    """User that a container runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # besides gid


def user_of(pod: Object, container: Object) -> User | None:
    """Return as whom the securityContexts of a container and its pod have it run; None: they do not say."""
    of_pod, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    uid, gid = (own.get(name, of_pod.get(name)) for name in ("runAsUser", "runAsGroup"))
    if uid is None and gid is None:
        return None
    groups = [*(of_pod.get("supplementalGroups") or ()), of_pod.get("fsGroup")]
    return User(uid or 0, gid or 0, tuple(group for group in groups if group is not None))


def token_user(pod: Object) -> int | None:
    """Return the user that a pod's tokens belong to: the one that all its containers ask for; None: there is
    no such one (kubelet's `FsUserFrom`)."""
    spec = pod["spec"]
    users = {
        (container.get("securityContext") or {}).get(
            "runAsUser", (spec.get("securityContext") or {}).get("runAsUser")
        )
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]
    }
    return users.pop() if len(users) == 1 else None


def volume_group(pod: Object) -> int | None:
    """Return the group that may read what a pod's volumes show of the API; None: none besides everybody."""
    group: int | None = (pod["spec"].get("securityContext") or {}).get("fsGroup")
    return group
