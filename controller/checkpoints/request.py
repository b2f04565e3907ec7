"""Requests to access Jobs and their answers, plain JSON both ways (docs/understand/contracts.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from controller import bounded
from controller.checkpoints.digest import DIGEST_PATTERN
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.pins import ATTEMPT_PATTERN, pin_folder
from controller.frozen import dataclass
from controller.names import STEP_MAX

REQUEST_ENV = "EVALSTOP_REQUEST"
OPERATIONS = ("claim", "secure", "retain", "restore", "check", "detach")
LAYOUT_BY_MAX = 256  # characters of a file's name in an answer
MESSAGE_LIMIT = 4096  # bytes of a termination message
REQUEST_LIMIT = 1 << 20  # bytes, of a thousand lives and as many pins
AVAILABLE_LIMIT = 50  # steps an answer lists
CHANGED_LIMIT = 8  # paths of changed pins an answer lists
BRANCH_LIMIT = 1000  # lives a request names

_NO_STEP = ("claim", "check", "detach")  # about a pin or a folder, whatever their step

_UID = re.compile(r"[0-9A-Za-z-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Source:
    """A secured checkpoint: ``path`` absolute or URI, ``digest`` as recorded when it was secured."""

    path: str
    digest: str
    step: int


@dataclass(frozen=True, slots=True)
class BranchLife:
    """A trainer process, and from which step on its checkpoints count: those after ``after``.

    ``base``: the step it resumed from, where that checkpoint lay there before the RLHFJob's first start.
    """

    attempt: str
    after: int = -1
    base: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimMade:
    """The claim on record, which wrote the owner's file and an inventory at the location.

    ``attempt``: for which it was made; ``newest``: highest step of a checkpoint that lay there then, and was
    not of the process it was made for.
    """

    attempt: str
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of store work. ``location`` and ``destination`` are absolute paths or URIs.

    Attempts are texts, ``3-9f2c41d0`` or, where the life is not known, ``3``.
    """

    operation: str
    layout: str
    owner: str  # uid of the RLHFJob
    location: str
    step: int = 0
    max_step_lag: int = 0  # secure: steps the checkpoint may lie before ``step``
    release: tuple[str, ...] = ()  # exact paths of former pins, let go once the work is done and verified
    source: Source | None = None
    destination: str = ""  # retain: where to; restore: where the source must lie
    keep_latest: bool = False  # retain: the latest checkpoint too
    id: str = ""  # of the request
    job: str = ""  # namespace/name of the RLHFJob, for people
    branch: tuple[BranchLife, ...] = ()  # whose checkpoints count, newest life first; empty: anybody's
    later: tuple[str, ...] = ()  # processes after those: none of those went on from what these saved
    known: tuple[str, ...] = ()  # claim: all processes on record
    attempt: str = ""  # of the eval; claim: the number that is to start, and the life if one began within it
    former: tuple[str, ...] = ()  # claim: uids of deleted RLHFJobs that may be followed
    # Mount points that location and destination lie below: what is on the way from there is a tenant's.
    location_within: str = ""
    destination_within: str = ""
    find_owner: bool = False  # as whom to work is not known: whose the files are is to be answered
    empty_at: str = ""  # attempt before which nothing lay there, where no inventory says so yet
    claimed: ClaimMade | None = None  # None: no claim is on record, or it has written nothing

    @staticmethod
    def parse(text: str) -> Request:
        """Return a request from its JSON.

        Raises:
            AccessError: BAD_REQUEST, naming field, value and what is expected.
        """
        try:
            raw = bounded.load(text, REQUEST_ENV, REQUEST_LIMIT)
        except bounded.Unbounded as error:
            raise AccessError(Reason.BAD_REQUEST, str(error)) from error
        if not isinstance(raw, dict):
            raise AccessError(Reason.BAD_REQUEST, f"{REQUEST_ENV} is not a JSON object")
        source, claimed = raw.get("source"), raw.get("claimed")
        request = Request(
            operation=_text(raw, "operation"),
            layout=_text(raw, "layout"),
            owner=_text(raw, "owner"),
            location=_text(raw, "location").rstrip("/") or "/",
            step=_step(raw, "step", 0 if raw.get("operation") in _NO_STEP else None),
            max_step_lag=_step(raw, "maxStepLag", 0),
            release=_texts(raw, "release"),
            source=None if source is None else _source(source),
            destination=_text(raw, "destination", "").rstrip("/"),
            keep_latest=raw.get("keepLatest", False) is True,
            id=_text(raw, "id", ""),
            job=_text(raw, "job", ""),
            branch=_branch(raw),
            later=tuple(_attempt(value, "later") for value in _texts(raw, "later")),
            known=tuple(_attempt(value, "known") for value in _texts(raw, "known")),
            attempt=_attempt(_unended(raw.get("attempt", "")), "attempt", needed=False),
            former=_texts(raw, "former"),
            location_within=_text(raw, "locationWithin", ""),
            destination_within=_text(raw, "destinationWithin", ""),
            find_owner=raw.get("findOwner", False) is True,
            empty_at=_attempt(_unended(raw.get("emptyAt", "")), "emptyAt", needed=False),
            claimed=None if claimed is None else _claimed(claimed),
        )
        request._check()
        return request

    def _check(self) -> None:
        if self.operation not in OPERATIONS:
            raise _bad("operation", self.operation, f"one of {', '.join(OPERATIONS)}")
        if not _UID.match(self.owner):
            raise _bad("owner", self.owner, "the uid of an RLHFJob")
        if self.operation in ("retain", "check", "detach") and self.source is None:
            raise _bad("source", None, f"the pinned checkpoint to {self.operation}")
        if self.source is not None and not self.destination and self.operation not in _NO_STEP:
            raise _bad("destination", self.destination, "the retention folder")
        for path in self.release:
            pin_folder(self.location, self.owner, path)

    def to_json(self) -> str:
        """Return the request as JSON with sorted keys, the same text for the same request."""
        document: dict[str, Any] = {
            "operation": self.operation,
            "layout": self.layout,
            "owner": self.owner,
            "location": self.location,
            "step": self.step,
            "maxStepLag": self.max_step_lag,
            "release": list(self.release),
            "destination": self.destination,
            "keepLatest": self.keep_latest,
            "id": self.id,
            "job": self.job,
            "branch": [_life(life) for life in self.branch],
            "attempt": self.attempt,
            "locationWithin": self.location_within,
            "destinationWithin": self.destination_within,
            "findOwner": self.find_owner,
            "emptyAt": self.empty_at,
        }
        if self.later:
            document["later"] = list(self.later)
        if self.known:
            document["known"] = list(self.known)
        if self.claimed is not None:
            document["claimed"] = {"attempt": self.claimed.attempt, "newest": self.claimed.newest}
        if self.operation == "claim":
            document["former"] = list(self.former)
        if self.source is not None:
            source = self.source
            document["source"] = {"path": source.path, "digest": source.digest, "step": source.step}
        return json.dumps(document, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Result:
    """A success. ``source_digest`` is of what was read, ``digest`` of what was written and read back.

    Attributes:
        step: of the checkpoint; of a claim: the highest that lies there and is not of the process it is for.
        attempt: the life that wrote the checkpoint.
        evidence: by what it is known to be whole.
    """

    step: int
    path: str
    digest: str = ""  # "" of a claim, which has none
    source_digest: str = ""
    bytes: int = 0
    files: int = 0
    method: str = ""  # how the pin was made: "clone", "link", "copy", joined by "+" where files differ
    note: str = ""  # what a person should know, such as a fallback taken
    latest: Mapping[str, Any] = field(default_factory=dict)  # retain with keepLatest: step, path, digest
    attempt: str = ""
    evidence: str = ""
    changed: tuple[str, ...] = ()  # paths of other pins that were found changed
    layout: tuple[str, str] | None = None  # found, where Auto was asked for: its name, and by which file
    file_owner: tuple[int, int, str] | None = None  # where it was asked for: user, group, of which file
    deferred: bool = False  # claim: nothing lies there, and nothing was written, for as whom is not known
    other_branch: bool = False  # claim: its process started from a checkpoint of none on its branch
    gone: bool = False  # what the claim on record had written at the location was there no more

    def to_json(self) -> str:
        """Return the termination message, within its limit."""
        document: dict[str, Any] = {
            "ok": True,
            "step": self.step,
            "path": self.path,
            "digest": self.digest,
            "sourceDigest": self.source_digest,
            "bytes": self.bytes,
            "files": self.files,
        }
        for key, text in (
            ("method", self.method),
            ("attempt", self.attempt),
            ("evidence", self.evidence),
        ):
            if text:
                document[key] = text
        if self.layout is not None:
            document["layout"] = {"name": self.layout[0], "by": self.layout[1][:LAYOUT_BY_MAX]}
        if self.file_owner is not None:
            document["fileOwner"] = _owner(self.file_owner)
        if self.deferred:
            document["deferred"] = True
        if self.other_branch:
            document["otherBranch"] = True
        if self.gone:
            document["gone"] = True
        if self.changed:
            document["changed"] = list(self.changed[:CHANGED_LIMIT])
        if self.latest:
            document["latest"] = dict(self.latest)
        return _fit(document, "note", self.note)


def failure(error: AccessError) -> str:
    """Return the termination message of a failed access, within its limit."""
    document: dict[str, Any] = {"ok": False, "reason": str(error.reason)}
    if error.available:
        document["available"] = list(error.available[-AVAILABLE_LIMIT:])
    if error.lowest is not None:
        document["lowest"] = error.lowest
    if error.changed:
        document["changed"] = list(error.changed[:CHANGED_LIMIT])
    if error.holder is not None:
        document["holder"] = {"uid": error.holder[0], "job": error.holder[1]}
    if error.file_owner is not None:
        document["fileOwner"] = _owner(error.file_owner)
    if error.gone:
        document["gone"] = True
    return _fit(document, "message", error.message or str(error.reason))


def _owner(found: tuple[int, int, str]) -> dict[str, object]:
    user, group, by = found
    return {"user": user, "group": group, "by": by[:LAYOUT_BY_MAX]}


def _fit(document: dict[str, Any], key: str, text: str) -> str:
    """``document`` as JSON with ``text`` cut so that the whole stays within `MESSAGE_LIMIT` bytes."""
    if not text:
        return json.dumps(document)
    spare = MESSAGE_LIMIT - len(json.dumps({**document, key: ""}).encode())
    while len(json.dumps(text).encode()) - 2 > spare:
        text = text[: max(0, len(text) * 9 // 10 - 1)] + "…" if len(text) > 1 else ""
    return json.dumps({**document, key: text})


def _bad(name: str, value: object, expected: str) -> AccessError:
    return AccessError(Reason.BAD_REQUEST, f"{name}: {value!r}, expected {expected}")


def _text(raw: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = raw.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise _bad(name, value, "a text")
    return value


def _step(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= STEP_MAX:
        raise _bad(name, value, f"a whole number from 0 to {STEP_MAX}")
    return value


def _texts(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = raw.get(name) or ()
    if not isinstance(values, list | tuple):
        raise _bad(name, values, "a list of texts")
    return tuple(_text({name: value}, name) for value in values)


def _attempt(value: object, name: str, needed: bool = True) -> str:
    if not isinstance(value, str) or (not ATTEMPT_PATTERN.match(value) if value else needed):
        raise _bad(name, value, "an attempt, as in '3-9f2c41d0' or '3'")
    return value


def _unended(value: object) -> object:
    """``3-``, an attempt whose life is to come, is ``3``."""
    return value.removesuffix("-") if isinstance(value, str) else value


def _branch(raw: Mapping[str, Any]) -> tuple[BranchLife, ...]:
    entries = raw.get("branch") or ()
    if not isinstance(entries, list | tuple) or len(entries) > BRANCH_LIMIT:
        raise _bad("branch", entries, f"a list of at most {BRANCH_LIMIT} lives")
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise _bad("branch", entry, "objects with attempt and after")
        after = entry.get("after", -1)
        found.append(
            BranchLife(
                _attempt(entry.get("attempt"), "branch.attempt"),
                after if after == -1 else _step(entry, "after"),
                None if entry.get("base") is None else _step(entry, "base"),
            )
        )
    return tuple(found)


def _life(life: BranchLife) -> dict[str, object]:
    document: dict[str, object] = {"attempt": life.attempt, "after": life.after}
    return document if life.base is None else {**document, "base": life.base}


def _claimed(raw: object) -> ClaimMade:
    if not isinstance(raw, dict):
        raise _bad("claimed", raw, "an object with attempt and newest")
    attempt = _attempt(_unended(raw.get("attempt")), "claimed.attempt")
    return ClaimMade(attempt, _step(raw, "newest", 0))


def _source(raw: object) -> Source:
    if not isinstance(raw, dict):
        raise _bad("source", raw, "an object with path, digest and step")
    digest = _text(raw, "digest")
    if not DIGEST_PATTERN.match(digest):
        raise _bad("source.digest", digest, "'sha256:' and 64 hex digits")
    return Source(_text(raw, "path").rstrip("/"), digest, _step(raw, "step"))
