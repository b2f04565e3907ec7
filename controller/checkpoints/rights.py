"""Tell by owners and modes alone if a process of a given user could pin a checkpoint.

An access Job runs as one user and its groups, without any capability: also as root it may read only what the
mode of a file lets its owner, its group or others read. It reads every file for the digest, and gives each a
second name below ``.evalstop``. A kernel with ``fs.protected_hardlinks`` (the default) lets it link only what
it owns, or may both read and write; what it may only read is copied.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping

from controller import names
from controller.frozen import dataclass

READ, WRITE, ENTER = 4, 2, 1
LINK, COPY = "link", "copy"


@dataclass(frozen=True, slots=True)
class User:
    """A user with its groups, and no capabilities."""

    uid: int
    gids: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> User:
        """Return the user of ``UID``, ``UID:GID`` or ``UID:GID,GID``. Raises: ValueError."""
        uid, colon, gids = text.partition(":")
        numbers = [uid, *(gids.split(",") if colon else ())]
        if not all(number.isdecimal() and number.isascii() and len(number) <= 10 for number in numbers):
            raise ValueError(
                f"--as: {text!r}, expected a user's number, as in 1000, 1000:1000 or 1000:1000,2000"
            )
        return cls(int(uid), tuple(map(int, numbers[1:])))

    def may(self, status: os.stat_result, what: int) -> bool:
        """Return whether the mode gives this user all bits of ``what``."""
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return (status.st_mode >> shift) & what == what


@dataclass(frozen=True, slots=True)
class Pinning:
    """Way to pin a checkpoint: ``link`` or ``copy``; "" where it cannot be pinned, and why."""

    method: str
    problem: str = ""


def pinning(root: str, files: Mapping[str, str], user: User) -> Pinning:
    """Return how a user could pin a checkpoint.

    Args:
        root: the location, an absolute path.
        files: the checkpoint's files by any name: paths below ``root``.
        user: who would do it.
    """
    problems = [_place(root, user), next(_unreadable(root, files.values(), user), "")]
    if any(problems):
        return Pinning("", "; ".join(filter(None, problems)))
    own = all(_linkable(os.stat(f"{root}/{path}"), user) for path in files.values())
    return Pinning(LINK if own else COPY)


def _place(root: str, user: User) -> str:
    """Return why nothing can be written to the place of the pins; "": it can."""
    place = f"{root}/{names.PINS_FOLDER}"
    folder = place if os.path.isdir(place) else root
    status = os.stat(folder)
    if user.may(status, WRITE | ENTER):
        return ""
    made = "write to it" if folder == place else f"make {names.PINS_FOLDER} in it"
    return f"{folder} {_owned(status)}: user {user.uid} cannot {made}"


def _unreadable(root: str, paths: Iterable[str], user: User) -> Iterator[str]:
    seen: set[str] = set()
    for path in sorted(paths):
        parts = path.split("/")
        for folder in (root, *(f"{root}/{'/'.join(parts[:end])}" for end in range(1, len(parts)))):
            if folder not in seen:
                seen.add(folder)
                status = os.stat(folder)
                if not user.may(status, READ | ENTER):
                    yield f"{folder} {_owned(status)}: user {user.uid} cannot look into it"
        status = os.stat(f"{root}/{path}")
        if not user.may(status, READ):
            yield f"{path} {_owned(status)}: user {user.uid} cannot read it"


def _linkable(status: os.stat_result, user: User) -> bool:
    return status.st_uid == user.uid or user.may(status, READ | WRITE)


def _owned(status: os.stat_result) -> str:
    return f"has mode {stat.S_IMODE(status.st_mode):04o} and is of {status.st_uid}:{status.st_gid}"
