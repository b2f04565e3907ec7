"""The routes that a job's client uses. Each needs the ticket, but for /healthz.

POST /v1/weights    push: the bytes, with X-Weights-Version and X-Weights-Digest; or {"path", "version",
"digest"} POST /v1/generate   {"version": N, "requests": [{"id", "prompt", "tokens", "most", "draw",
"temperature"}]} GET  /v1/frames     ?after=N: lines of JSON, one every 100 ms while something is new
POST /v1/abort      {"ids": […]}, or {"ids": null} for all
GET  /v1/report     slots, what is live, the weights' version and digest, counters of work
GET  /healthz       200 once it takes prompts: the engine answers, and the step API knows whose actor it is
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette  # FastAPI's import is a third of a sidecar's start
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from controller import bounded
from controller.actor.engines import Engine, EngineError, requests_of
from controller.actor.frames import MOST_LIVE, Frames, Gone
from controller.bounded import quoted, shown
from controller.web import tickets

MOST_BODY = 4 << 20  # bytes of a call, weights apart
STREAM_SECONDS = 30.0  # after which the client opens the next stream
RATE, BURST = 200.0, 400.0  # calls per second, and at once
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """An answer instead of the one that was asked for; ``reason`` is a code word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(slots=True)
class ActorIdentity:
    """The job and number of this actor, as the step API said at the registration. ``keys``: the API's,
    newest first."""

    job: str = ""
    attempt: int = -1
    actor: int = -1
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Sidecar:
    """State that the routes share.

    Attributes:
        engine: the engine.
        frames: of its tokens.
        identity: the job and number of this actor.
        scratch: folder in which pushed weights lie until the engine has them.
        shared: folder of weights on a shared volume; None: there is none.
        most_weights: bytes of pushed weights at most.
        clock: s since the epoch.
    """

    engine: Engine
    frames: Frames
    identity: ActorIdentity
    scratch: Path
    shared: Path | None = None
    most_weights: int = 1 << 30
    clock: Callable[[], float] = time.time
    version: int | None = None
    digest: str = ""
    refused: int = 0
    _bucket: tuple[float, float] = field(default=(BURST, 0.0))

    def let_in(self, request: Request) -> None:
        """Raise `Refused` unless the request has a ticket for this actor and calls are not too many."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(
                401, "NoTicket", "expected the header Authorization: Bearer, with the step API's ticket"
            )
        if not self.identity.keys:
            raise Refused(503, "NotRegistered", "this actor is not registered with the step API yet")
        try:
            tickets.check(
                text.strip(), self.identity.keys, job=self.identity.job, attempt=self.identity.attempt,
                actor=self.identity.actor, now=self.clock(),
            )  # fmt: skip
        except tickets.TicketError as error:
            self.refused += 1
            raise Refused(403, "WrongTicket", str(error)) from None
        now = time.monotonic()
        held = min(BURST, self._bucket[0] + (now - self._bucket[1]) * RATE)
        self._bucket = (max(0.0, held - 1.0), now)
        if held < 1.0:
            raise Refused(429, "TooMany", f"more than {RATE:g} calls per second")


def create(sidecar: Sidecar) -> Starlette:
    """Return the app."""
    routes = []

    def route(path: str, method: str, answer: Callable[[Sidecar, Request], Any], free: bool = False) -> None:
        async def handle(request: Request) -> Response:
            try:
                if not free:
                    sidecar.let_in(request)
                found = await answer(sidecar, request)
            except Refused as error:
                return _json({"reason": error.reason, "message": str(error)}, error.status)
            except EngineError as error:
                return _json({"reason": "Engine", "message": str(error)}, error.status)
            except ValueError as error:
                return _json({"reason": "BadRequest", "message": shown(str(error), 300)}, 400)
            return found if isinstance(found, Response) else _json(found)

        routes.append(Route(path, handle, methods=[method]))

    route("/healthz", "GET", _health, free=True)
    route("/v1/weights", "POST", _weights)
    route("/v1/generate", "POST", _generate)
    route("/v1/frames", "GET", _frames)
    route("/v1/abort", "POST", _abort)
    route("/v1/report", "GET", _report)
    return Starlette(routes=routes)


async def _health(sidecar: Sidecar, _: Request) -> object:
    if sidecar.frames.engine_error:
        raise Refused(503, "EngineSilent", sidecar.frames.engine_error)
    if not sidecar.identity.keys:
        raise Refused(503, "NotRegistered", "this actor is not registered with the step API yet")
    return {"actor": sidecar.identity.actor}


async def _generate(sidecar: Sidecar, request: Request) -> object:
    version, wanted = requests_of(await _document(request))
    if version != sidecar.version:
        raise Refused(409, "WrongWeights", f"version: {version} is asked for, {sidecar.version} is served")
    new = [one for one in wanted if one.id not in sidecar.frames.live]
    if len(sidecar.frames.live) + len(new) > MOST_LIVE:
        raise Refused(429, "TooMany", f"requests: more than {MOST_LIVE} responses would be live")
    names = {one.id for one in new}
    sidecar.frames.live |= names
    try:
        await sidecar.engine.generate(version, new)
    except EngineError:
        sidecar.frames.live -= names
        raise
    return {"taken": len(new)}


async def _abort(sidecar: Sidecar, request: Request) -> object:
    document = await _document(request)
    ids = document.get("ids") if isinstance(document, dict) else ()
    if ids is not None and not (isinstance(ids, list) and all(isinstance(i, str) for i in ids)):
        raise ValueError("ids: expected a list of names, or null for all")
    await sidecar.engine.abort(ids)
    return {}


async def _frames(sidecar: Sidecar, request: Request) -> Response:
    given = request.query_params.get("after")
    after = None if given is None else bounded.whole(given)
    if given is not None and after is None:
        raise ValueError(f"after: {quoted(given)} is not allowed, expected the number of a frame")
    try:
        lines = sidecar.frames.read(after, STREAM_SECONDS)
    except Gone:
        raise Refused(410, "FramesGone", f"after: the frames after {after} are not here any more") from None
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _report(sidecar: Sidecar, _: Request) -> object:
    found = dict(await sidecar.engine.report())
    return {**found, "version": sidecar.version, "digest": sidecar.digest, "passedOn": sidecar.frames.tokens}


async def _weights(sidecar: Sidecar, request: Request) -> object:
    if request.headers.get("content-type", "").startswith("application/json"):
        document = await _document(request)
        if not isinstance(document, dict):
            raise ValueError('expected {"path", "version", "digest"}')
        version, digest = _named(document.get("version"), document.get("digest"))
        path = _shared(sidecar, document.get("path"))
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        await _load(sidecar, path, version, digest, found)
    else:
        version, digest = _named(
            request.headers.get("x-weights-version"), request.headers.get("x-weights-digest")
        )
        path, found = await _received(sidecar, request)
        try:
            await _load(sidecar, path, version, digest, found)
        finally:
            os.unlink(path)
    return {"version": version, "digest": digest}


async def _load(sidecar: Sidecar, path: Path, version: int, digest: str, found: str) -> None:
    if found != digest:
        raise Refused(409, "WrongDigest", f"digest: the weights have {found}, expected {digest}")
    if (version, digest) == (sidecar.version, sidecar.digest):
        return  # the answer was lost
    sidecar.version, sidecar.digest = None, ""
    await sidecar.engine.load(path, version, digest)
    sidecar.frames.reset()
    sidecar.version, sidecar.digest = version, digest


async def _received(sidecar: Sidecar, request: Request) -> tuple[Path, str]:
    """Write a pushed body to a file, never to memory, and return it with its SHA-256."""
    descriptor, name = tempfile.mkstemp(dir=sidecar.scratch)
    path, size, seen = Path(name), 0, hashlib.sha256()
    try:
        with os.fdopen(descriptor, "wb") as file:
            async for part in request.stream():
                size += len(part)
                if size > sidecar.most_weights:
                    raise Refused(413, "TooLarge", f"weights: more than {sidecar.most_weights} bytes")
                seen.update(part)
                file.write(part)
    except BaseException:
        os.unlink(path)
        raise
    return path, seen.hexdigest()


def _shared(sidecar: Sidecar, given: object) -> Path:
    if sidecar.shared is None:
        raise ValueError("path: no shared folder of weights was given to this actor (EVALSTOP_ACTOR_WEIGHTS)")
    folder = sidecar.shared.resolve()
    path = (folder / str(given)).resolve()
    if folder not in path.parents or not path.is_file():
        raise ValueError(f"path: {quoted(given)} is no file in the shared folder")
    return path


def _named(version: object, digest: object) -> tuple[int, str]:
    number = bounded.whole(version)
    if number is None:
        raise ValueError(f"version: {quoted(version)} is not allowed, expected a whole number from 0")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest: {quoted(digest)} is not allowed, expected a SHA-256 in hex")
    return number, digest


async def _document(request: Request) -> object:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY:
            raise Refused(413, "TooLarge", f"body: more than {MOST_BODY} bytes")
        parts.append(part)
    return document(b"".join(parts))


def document(body: bytes) -> object:
    """Return the JSON of a call's body.

    Raises:
        ValueError: it is none, or too deep or too large.
    """
    return bounded.load(body, "body", MOST_BODY, values=2_000_000)


def _json(document: object, status: int = 200) -> Response:
    headers = {"Connection": "close"} if status == 413 else {}
    return Response(to_json(document), status, media_type="application/json", headers=headers)
