"""What an access Job is asked and what it answers, plain JSON both ways (docs/contracts.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.checkpoints.digest import DIGEST_PATTERN
from controller.checkpoints.errors import AccessError, Reason

REQUEST_ENV = "EVALSTOP_REQUEST"
OPERATIONS = ("secure", "retain", "restore")
MESSAGE_LIMIT = 4096  # bytes of a termination message
STEP_LIMIT = 10**12
AVAILABLE_LIMIT = 50  # steps an answer lists

_UID = re.compile(r"[0-9A-Za-z-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint in safety: ``path`` absolute or URI, ``digest`` as recorded when it was secured."""

    path: str
    digest: str
    step: int


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of store work. ``location`` and ``destination`` are absolute paths or URIs."""

    operation: str
    layout: str
    owner: str  # uid of the RLHFJob
    location: str
    step: int
    max_step_lag: int = 0  # secure: steps the checkpoint may lie before ``step``
    release: tuple[int, ...] = ()  # secure: former pins to let go once the new one is verified
    source: Source | None = None
    destination: str = ""  # retain: where to; restore: where the source must lie
    keep_latest: bool = False  # retain: the latest checkpoint too

    @staticmethod
    def parse(text: str) -> Request:
        """A request from its JSON.

        Raises:
            AccessError: BAD_REQUEST, naming field, value and what is expected.
        """
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise AccessError(Reason.BAD_REQUEST, f"{REQUEST_ENV} is not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise AccessError(Reason.BAD_REQUEST, f"{REQUEST_ENV} is not a JSON object")
        source = raw.get("source")
        request = Request(
            operation=_text(raw, "operation"),
            layout=_text(raw, "layout"),
            owner=_text(raw, "owner"),
            location=_text(raw, "location").rstrip("/") or "/",
            step=_step(raw, "step"),
            max_step_lag=_step(raw, "maxStepLag", 0),
            release=tuple(_step({"release": step}, "release") for step in raw.get("release") or ()),
            source=None if source is None else _source(source),
            destination=_text(raw, "destination", "").rstrip("/"),
            keep_latest=raw.get("keepLatest", False) is True,
        )
        request._check()
        return request

    def _check(self) -> None:
        if self.operation not in OPERATIONS:
            raise _bad("operation", self.operation, f"one of {', '.join(OPERATIONS)}")
        if not _UID.match(self.owner):
            raise _bad("owner", self.owner, "the uid of an RLHFJob")
        if self.operation == "retain" and self.source is None:
            raise _bad("source", None, "the secured checkpoint to retain")
        if self.source is not None and not self.destination:
            raise _bad("destination", self.destination, "the retention folder")

    def to_json(self) -> str:
        """The request as JSON with sorted keys, the same text for the same request."""
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
        }
        if self.source is not None:
            source = self.source
            document["source"] = {"path": source.path, "digest": source.digest, "step": source.step}
        return json.dumps(document, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Result:
    """A success. ``source_digest`` is of what was read, ``digest`` of what was written and read back."""

    step: int
    path: str
    digest: str
    source_digest: str
    bytes: int
    files: int
    method: str = ""  # "link", "copy", or "" where it was there already
    note: str = ""  # what a person should know, such as a fallback taken
    latest: Mapping[str, Any] = field(default_factory=dict)  # retain with keepLatest: step, path, digest

    def to_json(self) -> str:
        """The termination message, within its limit."""
        document: dict[str, Any] = {
            "ok": True,
            "step": self.step,
            "path": self.path,
            "digest": self.digest,
            "sourceDigest": self.source_digest,
            "bytes": self.bytes,
            "files": self.files,
        }
        if self.method:
            document["method"] = self.method
        if self.latest:
            document["latest"] = dict(self.latest)
        return _fit(document, "note", self.note)


def failure(error: AccessError) -> str:
    """The termination message of a failed access, within its limit."""
    document: dict[str, Any] = {"ok": False, "reason": str(error.reason)}
    if error.available:
        document["available"] = list(error.available[-AVAILABLE_LIMIT:])
    return _fit(document, "message", error.message or str(error.reason))


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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= STEP_LIMIT:
        raise _bad(name, value, f"a whole number from 0 to {STEP_LIMIT}")
    return value


def _source(raw: object) -> Source:
    if not isinstance(raw, dict):
        raise _bad("source", raw, "an object with path, digest and step")
    digest = _text(raw, "digest")
    if not DIGEST_PATTERN.match(digest):
        raise _bad("source.digest", digest, "'sha256:' and 64 hex digits")
    return Source(_text(raw, "path").rstrip("/"), digest, _step(raw, "step"))
