"""Volumes as a container sees them: by mounts where there are namespaces, else by rewritten paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.kube.client import Object
from deploy.local.agent.env import expand
from deploy.local.agent.process import Mount
from deploy.local.agent.volumes import PodVolumes

TERMINATION_PATH = "/dev/termination-log"


def container_mounts(
    container: Object,
    volumes: PodVolumes,
    variables: Mapping[str, str],
    termination_log: Path,
    hosts: Path | None,
) -> list[Mount]:
    """Return the mounts of a container: its volumeMounts, its termination log, /etc/hosts. Raises
    VolumeError."""
    mounts = []
    for entry in container.get("volumeMounts") or []:
        sub_path = entry.get("subPath") or expand(entry.get("subPathExpr") or "", variables)
        source = volumes.source(entry["name"], sub_path)
        read_only = bool(entry.get("readOnly")) or volumes.read_only(entry["name"])
        mounts.append(Mount(source, "/" + entry["mountPath"].strip("/"), read_only))
    taken = {mount.target for mount in mounts}
    extra = [Mount(str(termination_log), container.get("terminationMessagePath") or TERMINATION_PATH)]
    if hosts is not None:
        extra.append(Mount(str(hosts), "/etc/hosts"))
    return mounts + [mount for mount in extra if mount.target not in taken]


def missing_folder(cwd: str, mounts: Sequence[Mount]) -> list[Mount]:
    """Return the mount that makes the working directory, if neither the machine nor a volume has it.

    It is made in the container's root only. Empty: the directory is there.
    """
    if os.path.isdir(cwd) or any(cwd == m.target or cwd.startswith(m.target + "/") for m in mounts):
        return []
    return [Mount(None, cwd)]


def uncovered(mounts: Sequence[Mount], folders: Sequence[str]) -> list[Mount]:
    """Mounts that show again what volumes would hide of an image's own folders.

    A volume on /tmp must not hide a repository that was cloned below /tmp: an image has it elsewhere.
    """

    def below(path: str, folder: str) -> bool:
        return path == folder or path.startswith(folder.rstrip("/") + "/")

    hidden = [f for f in folders if any(below(f, m.target) for m in mounts) and os.path.isdir(f)]
    return [Mount(f, f) for f in hidden if not any(below(f, other) and f != other for other in hidden)]


class Rewriter:
    """Without namespaces: mount paths in texts become the volumes' own paths on this machine."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._sources = {mount.target: mount.source for mount in mounts if mount.source is not None}
        longest_first = sorted(self._sources, key=len, reverse=True)
        alternatives = "|".join(re.escape(target) for target in longest_first)
        # A path starts after anything that cannot belong to one, and ends at a slash or such.
        self._pattern = re.compile(rf"(?<![\w./-])({alternatives})(?![\w.-])") if alternatives else None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: str(self._sources[found.group(1)]), text)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self.text(value) for name, value in variables.items()}
