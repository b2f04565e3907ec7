"""Errors of store work, in codes the operator acts on, and the flag that ends it early."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum


class Reason(StrEnum):
    """Codes of a failed access (docs/use/checkpoints.md says what each means for the run)."""

    MISSING = "CheckpointMissing"
    INCOMPLETE = "CheckpointIncomplete"
    DIGEST_MISMATCH = "DigestMismatch"
    COPY_DAMAGED = "CopyDamaged"  # what was written does not read back: the source is not to blame
    STORE_UNREACHABLE = "StoreUnreachable"
    PERMISSION_DENIED = "PermissionDenied"  # owner and mode of a file or folder do not let this user do it
    OTHER_OWNER = "OtherOwner"  # the files are another user's: the Job is made anew as that one
    OUT_OF_SPACE = "OutOfSpace"
    BAD_REQUEST = "BadRequest"
    LAYOUT_AMBIGUOUS = "LayoutAmbiguous"  # Auto, and the files of more than one layout are there
    LOCATION_TAKEN = "LocationTaken"  # another RLHFJob has the folder, or one around or inside it
    INTERRUPTED = "Interrupted"  # told to leave (SIGTERM) before the end; nothing half-done was published
    FAILED = "AccessFailed"  # the access Job ended without a readable result


class AccessError(Exception):
    """Store work that failed.

    Args:
        available: steps of complete checkpoints seen, ascending.
        lowest: the lowest step of which any file lies there; None: nobody looked, or nothing lies there.
        holder: uid and namespace/name of the RLHFJob that has the location, with LOCATION_TAKEN.
        file_owner: user, group and the file or folder that they own, with OTHER_OWNER.
        changed: paths of pins that were found changed, whatever else went wrong.
        gone: what the claim on record had written at the location was there no more.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        available: Sequence[int] = (),
        holder: tuple[str, str] | None = None,
        file_owner: tuple[int, int, str] | None = None,
        lowest: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.gone = False
        self.message = message
        self.available = tuple(available)
        self.holder = holder
        self.file_owner = file_owner
        self.lowest = lowest
        self.changed: tuple[str, ...] = ()


class Vanished(Exception):
    """A file or folder went away while it was being read: the trainer's rotation was faster."""


class Damaged(Exception):
    """Something in a checkpoint makes it unusable; the message says what."""


_interrupted = threading.Event()


def interrupt() -> None:
    """Ask all store work of this process to end at its next chunk (safe in a signal handler)."""
    _interrupted.set()


def check_interrupted() -> None:
    """Do nothing while the process may go on, and raise once it was interrupted.

    Raises:
        AccessError: INTERRUPTED, `interrupt` was called.
    """
    if _interrupted.is_set():
        raise AccessError(Reason.INTERRUPTED, "told to leave before the end; nothing half-done was published")


# What is true of one file or folder, where others can be looked at instead.
UNREADABLE_REASONS = (Reason.STORE_UNREACHABLE, Reason.PERMISSION_DENIED)


@contextmanager
def suppress_unreadable() -> Iterator[None]:
    """Pass over what cannot be read (`UNREADABLE_REASONS`), where others can be looked at instead."""
    try:
        yield
    except AccessError as error:
        if error.reason not in UNREADABLE_REASONS:
            raise


@contextmanager
def store_errors(where: str, foreign: bool = False) -> Iterator[None]:
    """Turn the I/O failures raised inside the block into `AccessError`.

    Full disks and quotas become OUT_OF_SPACE, rights that are missing PERMISSION_DENIED, every other I/O
    failure STORE_UNREACHABLE; all name ``where``. ``foreign``: the failures of a client library, which raises
    types of its own; they are no word about users and modes.
    """
    try:
        yield
    except (AccessError, Vanished, Damaged):
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AccessError(Reason.OUT_OF_SPACE, f"{where}: no space left ({error})") from error
        if error.errno in (errno.EACCES, errno.EPERM) and not foreign:
            raise AccessError(Reason.PERMISSION_DENIED, f"{where}: {error}; {_who(where)}") from error
        raise AccessError(Reason.STORE_UNREACHABLE, f"{where}: {error}") from error
    except Exception as error:
        if not foreign:
            raise
        text = f"{type(error).__name__}: {error}"
        raise AccessError(Reason.STORE_UNREACHABLE, f"{where}: {text[:500]}") from error


def _who(path: str) -> str:
    """Return whose a file is, or the first folder above it that can be seen, and as whom this process
    runs."""
    own = f"this access Job runs as user {os.geteuid()}, group {os.getegid()}"
    while path:
        with suppress(OSError):
            found = os.stat(path)
            of = f"{found.st_uid}:{found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}"
            return f"{path} is of {of}; {own}"
        path = path.rpartition("/")[0]
    return own
