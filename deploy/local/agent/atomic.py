"""Files of a volume replaced all at once, the way kubelet does it, so that no reader sees half a change.

Layout: the files live in a folder ``..<time>_<number>``, ``..data`` is a symbolic link to it, and each
visible name is a link to ``..data/<name>``. Replacing ``..data`` by rename changes every file at one moment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_DATA = "..data"


class File(NamedTuple):
    content: bytes
    mode: int = 0o644
    user: int | None = None  # None: the agent's own
    group: int | None = None


def write(folder: Path, files: Mapping[str, File]) -> bool:
    """Make `folder` show exactly `files` (relative path -> file); False if it did already.

    Raises ValueError for a path that leaves the folder or begins with two dots.
    """
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or parts[0].startswith(".."):
            raise ValueError(f"path {name!r}: must be relative, without '..' and not begin with '..'")
    current = _current(folder)
    if current is not None and _read(current) == {name: _plain(file) for name, file in files.items()}:
        return False
    fresh = Path(tempfile.mkdtemp(prefix=time.strftime("..%Y_%m_%d_%H_%M_%S."), dir=folder))
    fresh.chmod(0o755)
    for name, file in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        if (file.user, file.group) != (None, None):
            os.chown(path, *(-1 if owner is None else owner for owner in (file.user, file.group)))
        path.chmod(file.mode)  # last: a change of owner takes bits of it away
    link = folder / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
    link.replace(folder / _DATA)
    shown = {PurePosixPath(name).parts[0] for name in files}
    for name in shown:
        path = folder / name
        if not path.is_symlink():
            path.symlink_to(f"{_DATA}/{name}")
    for path in folder.iterdir():
        if path.is_symlink() and not path.name.startswith("..") and path.name not in shown:
            path.unlink()
    if current is not None:
        shutil.rmtree(current, ignore_errors=True)
    return True


def _current(folder: Path) -> Path | None:
    link = folder / _DATA
    return folder / os.readlink(link) if link.is_symlink() else None


def _read(folder: Path) -> dict[str, File]:
    return {str(path.relative_to(folder)): _file(path) for path in folder.rglob("*") if path.is_file()}


def _file(path: Path) -> File:
    status = path.stat()
    return _plain(File(path.read_bytes(), status.st_mode & 0o7777, status.st_uid, status.st_gid))


def _plain(file: File) -> File:
    """Return a file without the owners that it has anyway."""
    user = None if file.user == os.geteuid() else file.user
    group = None if file.group == os.getegid() else file.group
    return file._replace(user=user, group=group)
