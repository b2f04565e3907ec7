"""Owner of a checkpoint's files, found by a stat, which needs no right to read them.

Trainer images run as any user, and safetensors writes weights with mode 0600. Where nothing in the spec names
the user, the first access Job runs as its image's and answers whose the newest checkpoint's files are; the
operator makes the Job anew as that owner (docs/use/checkpoints.md).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished
from controller.checkpoints.layouts import LAYOUTS, Candidate
from controller.checkpoints.request import Request
from controller.checkpoints.store import Store, relative
from controller.checkpoints.volume import Volume
from controller.frozen import dataclass


@dataclass(frozen=True, slots=True)
class FileOwner:
    """User and group of a file or folder, and its name in the store."""

    user: int
    group: int
    by: str


def as_owner(location: Store, retention: Store | None, request: Request) -> FileOwner | None:
    """Return the owner of the files that a request is about, who is the user of this process; None: it is not
    asked for, or nothing lies there.

    Raises:
        AccessError: OTHER_OWNER, naming the owner: they are another user's.
    """
    if not request.find_owner:
        return None
    found = _of_source(location, retention, request) or newest(location, request.layout)
    if found is None or found.user == os.geteuid():
        return found
    raise AccessError(
        Reason.OTHER_OWNER,
        f"{location.path(found.by)} is of user {found.user}, group {found.group}; this access Job "
        f"runs as user {os.geteuid()}",
        file_owner=(found.user, found.group, found.by),
    )


def newest(store: Store, layout: str) -> FileOwner | None:
    """Return the owner of the newest checkpoint's files; None: none lies there, or the store has no owners.

    Args:
        store: the location.
        layout: by which checkpoints are found; one that is not known: by every layout.
    """
    if not isinstance(store, Volume) or not store.exists():
        return None
    layouts = [LAYOUTS[layout]] if layout in LAYOUTS else LAYOUTS.values()
    found: list[Candidate] = []
    denied = False
    for one in layouts:
        try:
            found += one.candidates(store)
        except AccessError as error:
            if error.reason is not Reason.PERMISSION_DENIED:
                raise
            denied = True
    for candidate in sorted(found, key=lambda c: -c.step):
        owner = _of_files(store, [name for _, name in (*candidate.parts, *candidate.files)])
        if owner is not None:
            return owner
    # Nobody else may list the folder, or read the file that says which checkpoint is the newest.
    return _of_newest_entry(store) if denied else None


def is_own(store: Store) -> bool:
    """Return whether the folder, or where it is not there yet the one that it will be made in, is of the user
    of this process. An object store has no owners: it is anybody's."""
    if not isinstance(store, Volume):
        return True
    path = store.root
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return os.stat(path).st_uid == os.geteuid()


def _of_source(location: Store, retention: Store | None, request: Request) -> FileOwner | None:
    """Return the owner of the pin or the retained copy that the request names."""
    if request.source is None:
        return None
    store = retention if request.operation == "restore" and retention is not None else location
    if not isinstance(store, Volume):
        return None
    return _of_files(store, [relative(store.root, request.source.path)])


def _of_files(store: Volume, places: Iterable[str]) -> FileOwner | None:
    """Return the owner of the file that fewest may read: with its rights the others can be read as well."""
    found: list[tuple[bool, str, os.stat_result]] = []
    for place in places:
        try:
            status = store.status(place)
        except (Vanished, Damaged):
            continue
        found.append((True, place, status))
        try:
            below = store.statuses(place) if stat.S_ISDIR(status.st_mode) else {}
        except (Vanished, Damaged, AccessError):
            continue  # only its owner may look into it
        found += [(bool(of.st_mode & stat.S_IROTH), f"{place}/{name}", of) for name, of in below.items()]
    if not found:
        return None
    _, name, status = min(found, key=lambda one: one[:2])
    return FileOwner(status.st_uid, status.st_gid, name)


def _of_newest_entry(store: Volume) -> FileOwner:
    """Return the owner of what was written last into the location; of the location where it cannot be
    listed."""
    try:
        entries = {name: store.status(name) for name in store.names("") if not name.startswith(".")}
    except (Vanished, AccessError):
        entries = {}
    name = max(entries, key=lambda one: entries[one].st_mtime_ns, default="")
    status = entries.get(name) or store.status("")
    return FileOwner(status.st_uid, status.st_gid, name)
