"""A pod's volumes as folders on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from controller.kube.client import Object
from deploy.local.agent.claims import ClaimError, folder_of
from deploy.local.agent.context import Node
from deploy.local.agent.projection import Projection, VolumeError, sources_of

#: Volume kinds that this node can serve; a pod with any other is refused.
KINDS = frozenset(
    {
        "emptyDir",
        "hostPath",
        "configMap",
        "secret",
        "downwardAPI",
        "projected",
        "persistentVolumeClaim",
        "ephemeral",
    }
)
_FILE_TYPES: dict[str, Callable[[int], bool]] = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


class PodVolumes:
    """The volumes of one pod: made by `mount`, kept fresh until `close`."""

    def __init__(self, node: Node, pod: Object, folder: Path) -> None:
        self._node = node
        self._pod = pod
        self._folder = folder
        self._paths: dict[str, Path] = {}
        self._read_only: set[str] = set()
        self._projections: list[Projection] = []

    async def mount(self) -> None:
        """Make every volume. Raises VolumeError; what was made stays, so that it can be called again."""
        for volume in self._pod["spec"].get("volumes") or []:
            name = volume["name"]
            if name in self._paths:
                continue
            try:
                self._paths[name] = await self._make(volume)
            except (VolumeError, ClaimError, OSError, ValueError) as error:
                raise VolumeError(f"MountVolume.SetUp failed for volume {name!r}: {error}") from error

    async def _make(self, volume: Object) -> Path:
        makers: dict[str, Callable[[str, Object], Awaitable[Path]]] = {
            "emptyDir": self._empty_dir,
            "hostPath": self._host_path,
            "persistentVolumeClaim": self._claim,
            "ephemeral": self._ephemeral,
        }
        name = volume["name"]
        for kind, make in makers.items():
            if volume.get(kind) is not None:
                return await make(name, volume[kind])
        for kind in volume.keys() & KINDS:
            return await self._projected(name, kind, volume[kind])
        return await self._empty_dir(name, {})  # no source at all means emptyDir

    async def _empty_dir(self, name: str, _: Object) -> Path:
        folder = self._folder / "empty-dir" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    async def _host_path(self, _: str, source: Object) -> Path:
        return _checked(source)

    async def _claim(self, name: str, source: Object) -> Path:
        return await self._bound(name, source["claimName"], "", bool(source.get("readOnly")))

    async def _ephemeral(self, name: str, _: Object) -> Path:
        metadata = self._pod["metadata"]
        return await self._bound(name, f"{metadata['name']}-{name}", metadata["uid"], False)

    async def _bound(self, name: str, claim: str, owner: str, read_only: bool) -> Path:
        metadata, node = self._pod["metadata"], self._node
        folder, volume = await folder_of(node.api, metadata["namespace"], claim, owner)
        modes = volume["spec"].get("accessModes") or []
        node.attachments.attach(volume["metadata"]["name"], modes, node.name, metadata["uid"])
        if read_only or modes == ["ReadOnlyMany"]:
            self._read_only.add(name)
        return folder

    async def _projected(self, name: str, kind: str, source: Object) -> Path:
        folder = self._folder / kind / name
        folder.mkdir(parents=True, exist_ok=True)
        projection = Projection(
            self._node, self._pod, folder, sources_of(kind, source), source.get("defaultMode")
        )
        try:
            await projection.start()
        except BaseException:
            projection.close()
            raise
        self._projections.append(projection)
        self._read_only.add(name)
        return folder

    def pod_changed(self, pod: Object) -> None:
        """Write the downward API files again, after new labels, annotations or status."""
        self._pod = pod
        for projection in self._projections:
            projection.pod_changed(pod)

    def read_only(self, volume: str) -> bool:
        return volume in self._read_only

    def source(self, volume: str, sub_path: str = "") -> str:
        """Return the path on this machine of a volume, or of `sub_path` in it (made as a folder if missing).

        Raises VolumeError for a path that leaves the volume.
        """
        root = self._paths[volume]
        if not sub_path:
            return str(root)
        path = Path(os.path.realpath(root / sub_path))
        if (
            ".." in Path(sub_path).parts
            or sub_path.startswith("/")
            or not path.is_relative_to(os.path.realpath(root))
        ):
            raise VolumeError(f"subPath {sub_path!r} leads out of volume {volume!r}")
        if not path.exists():
            path.mkdir(parents=True, mode=0o755)
        return str(path)

    async def close(self) -> None:
        """Stop keeping them fresh, let claims go, remove what was the pod's own."""
        self.stop()
        self._node.attachments.release(self._pod["metadata"]["uid"])
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Stop keeping them fresh; the files stay."""
        for projection in self._projections:
            projection.close()
        self._projections.clear()


def _checked(source: Object) -> Path:
    """Return a hostPath volume's path, made and checked as its type says. Raises VolumeError."""
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        kind = "Directory"
    elif kind == "FileOrCreate":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o644)
        kind = "File"
    if not path.exists():
        raise VolumeError(f"hostPath {str(path)!r} does not exist")
    if kind and not _FILE_TYPES[kind](path.stat().st_mode):
        raise VolumeError(f"hostPath {str(path)!r} is not a {kind}")
    return path
