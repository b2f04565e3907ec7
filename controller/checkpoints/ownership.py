"""Ownership of a checkpoint location: one RLHFJob at a time, recorded in a file on the store itself.

``<location>/.evalstop/owner.json``: ``{"uid": …, "job": "namespace/name", "since": …}``. A location that lies
inside or around one of another RLHFJob is refused too: a rotation or a restart of one would reach the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from controller import names
from controller.checkpoints.errors import (
    UNREADABLE_REASONS,
    AccessError,
    Damaged,
    Reason,
    Vanished,
    suppress_unreadable,
)
from controller.checkpoints.inventory import take_inventory
from controller.checkpoints.judge import Survey
from controller.checkpoints.layouts import Layout
from controller.checkpoints.request import Request, Result
from controller.checkpoints.saves import SHARED, save_records
from controller.checkpoints.store import Store, read_json
from controller.checkpoints.stores import open_store
from controller.frozen import dataclass

OWNER_FILE = f"{names.PINS_FOLDER}/owner.json"
DEPTH = 4  # levels of folders below a location in which another owner is looked for
FOLDERS_LOOKED_AT = 5000
ABOVE = 32  # levels above it


@dataclass(frozen=True, slots=True)
class Owner:
    uid: str
    job: str = ""

    def __str__(self) -> str:
        return f"RLHFJob {self.job or '(not named)'} (uid {self.uid or 'not readable'})"


def claim(store: Store, layout: Layout, request: Request, deferred: bool = False) -> Result:
    """Take the location for an RLHFJob, and write down what lies there now.

    Repeating it is safe. The file of an owner that the request names as deleted is replaced.

    ``deferred``: nothing lies there, and as whom to write is not known: look whether it is another's, and
    write nothing, for the trainer's user could not change what this one makes.

    Raises:
        AccessError: LOCATION_TAKEN naming both, STORE_UNREACHABLE, OUT_OF_SPACE.
    """
    for other, path in _owners_around(store, request.location_within):
        _refuse_unless_over(other, path, request)
    own = read_owner(store)
    if own is not None and own.uid != request.owner:
        _refuse_unless_over(own, store.root, request)
        own = None
    if deferred:
        return Result(step=0, path=store.root, deferred=True)
    store.share(*SHARED)
    for other, folder in _owners_below(store):
        _refuse_unless_over(other, store.path(folder), request)
        store.delete(f"{folder}/{OWNER_FILE}")
    if own is None:
        _write_owner(store, request)
    noted = take_inventory(store, layout, request)
    return Result(
        step=_newest_of_others(store, layout, request),
        path=store.root,
        note=noted,
        other_branch=_began_elsewhere(store, layout, request),
    )


def is_gone(store: Store, request: Request) -> bool:
    """Return whether what the claim on record wrote there is gone: the folder bears nobody's name any more.

    Of a file that is there and cannot be read nothing is said.
    """
    if request.claimed is None or not store.exists():
        return False
    try:
        return read_owner(store) is None
    except Damaged:
        return False
    except AccessError as error:
        if error.reason not in UNREADABLE_REASONS:
            raise
        return False


def claim_again(store: Store, layout: Layout, request: Request) -> None:
    """Write anew what the claim on record had written, for it is gone.

    What has a higher step than all that lay there then has come since: it is not noted as having lain there,
    and is the process's for which the claim was made.

    Raises:
        AccessError: LOCATION_TAKEN, another RLHFJob was faster, STORE_UNREACHABLE, OUT_OF_SPACE.
    """
    assert request.claimed is not None
    store.share(*SHARED)
    _write_owner(store, request)
    made = request.claimed
    take_inventory(store, layout, replace(request, attempt=made.attempt), up_to=made.newest)


def _write_owner(store: Store, request: Request) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {"uid": request.owner, "job": request.job, "since": since}
    store.write(OWNER_FILE, json.dumps(document).encode() + b"\n")
    now = read_owner(store)  # of two that came at the same moment one finds the other's name
    if now is not None and now.uid != request.owner:
        _refuse_unless_over(now, store.root, request)


def _began_elsewhere(store: Store, layout: Layout, request: Request) -> bool:
    """Return whether the process that the location is claimed for is known to have started from a checkpoint
    of another branch."""
    start = next((life.after for life in request.branch if life.attempt == request.attempt), -1)
    if start <= 0:
        return False
    # What lay there when a process was seen is what it went on from; here the question is whose that was.
    *later, oldest = request.branch
    branch = (*(replace(life, base=None) for life in later), oldest)
    survey = Survey(store, layout, request.owner, branch)
    lying = survey.of_step(start)
    if lying:
        return any(survey.of_another_branch(candidate) for candidate in lying)
    # What it started from is gone. Where a process that nobody saw has saved, it was most likely that one's.
    return survey.left_by_none_of(request.known)


def _newest_of_others(store: Store, layout: Layout, request: Request) -> int:
    """Return the highest step that lies there, whole or not, and that no save record says to be of the
    process for which the location is claimed; 0: nothing does."""
    known = save_records(store)
    steps = {candidate.step for candidate in layout.candidates(store)} if store.exists() else set()
    others = (step for step in steps if request.attempt not in known.get(step, {}).values())
    return max(others, default=0)


def check_owner(store: Store, request: Request) -> None:
    """Check that the location still belongs to the RLHFJob of this request.

    Raises:
        AccessError: LOCATION_TAKEN, another RLHFJob has taken the location since.
    """
    own = read_owner(store)
    if own is not None and own.uid != request.owner and own.uid not in request.former:
        raise _taken(own, store.root, request)


def read_owner(store: Store, folder: str = "") -> Owner | None:
    """Return the owner on record of a folder of the store; None: there is none.

    What makes no sense is somebody's: an owner without uid. Raises: Damaged, the file may not be followed.
    """
    try:
        raw = read_json(store, f"{folder}/{OWNER_FILE}".lstrip("/"))
        uid, job = raw["uid"], raw.get("job")
        if isinstance(uid, str) and uid:
            return Owner(uid[:64], job[:320] if isinstance(job, str) else "")
    except Vanished:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return Owner("")


def _refuse_unless_over(other: Owner, path: str, request: Request) -> None:
    if other.uid == request.owner or other.uid in request.former:
        return
    raise _taken(other, path, request)


def _taken(other: Owner, path: str, request: Request) -> AccessError:
    where = request.location if path == request.location else f"{path}, around or inside {request.location}"
    return AccessError(
        Reason.LOCATION_TAKEN,
        f"{where}: the checkpoint folder belongs to {other}, and RLHFJob {request.job or request.owner} "
        f"cannot use it too; give each a folder of its own, or delete {path.rstrip('/')}/{OWNER_FILE} if it "
        "is nobody's",
        holder=(other.uid, other.job),
    )


def _owners_around(store: Store, within: str) -> Iterator[tuple[Owner, str]]:
    """Owners of the folders that this one lies in, as far up as they can be read, or to the mount point."""
    path = store.root
    for _ in range(ABOVE):
        scheme, slashes, rest = path.rpartition("://")
        parent = rest.rstrip("/").rpartition("/")[0]
        if (not parent and (slashes or rest.strip("/") == "")) or path.rstrip("/") == within.rstrip("/"):
            return
        path = f"{scheme}{slashes}{parent}" or "/"
        try:
            found = read_owner(open_store(path, within=within))
        except AccessError as error:
            if error.reason is Reason.INTERRUPTED:
                raise
            continue  # not ours to read
        except Damaged:
            continue
        if found is not None and found.uid:
            yield found, path


def _owners_below(store: Store) -> Iterator[tuple[Owner, str]]:
    looked_at, level = 0, [""]
    for _ in range(DEPTH):
        below: list[str] = []
        for folder in level:
            names: list[str] = []
            with suppress_unreadable() if folder else nullcontext():  # below, not ours to read
                names = _folders(store, folder)
            for name in names:
                if name.startswith("."):
                    continue
                looked_at += 1
                if looked_at > FOLDERS_LOOKED_AT:
                    return
                path = f"{folder}/{name}" if folder else name
                below.append(path)
                found = None
                with suppress_unreadable():
                    found = read_owner(store, path)
                if found is not None:
                    yield found, path
        level = below


def _folders(store: Store, folder: str) -> list[str]:
    try:
        return store.folders(folder)
    except (Vanished, Damaged):
        return []
