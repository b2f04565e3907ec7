"""The routes of a member (docs/understand/groups-wire.md); all but /healthz and /metrics need a ticket.

Member 0:
POST /v1/turns                        a job asks for a turn, and waits
POST /v1/turns/{token}/calls/{n}      a function
POST /v1/turns/{token}/release        its calls count, once this is answered
GET  /v1/state                        where the newest version can be read
POST /v1/residents  /v1/residents/{name}/leave   GET /v1/report     the operator's
POST /v1/members/exchange             a member's connection
Each member:
GET  /v1/states/{version}/{region}    a region's bytes
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from controller.bounded import quoted, whole
from controller.group.coordination import Coordination
from controller.group.memory import HostMemory
from controller.group.metrics import GroupMetrics
from controller.group.registration import Admitted
from controller.group.report import report
from controller.group.wire import ENVELOPE, MOST_JSON, Refused, call_of, document, token_of
from controller.web import group_tickets
from controller.web.bare_app import bare_app
from controller.web.group_tickets import JOB, MEMBER, OPERATOR, GroupTicket
from controller.web.tickets import TicketError

MOST_WAIT = 30.0  # s
RATE, BURST = 200.0, 400.0  # calls of one ticket: per second, and at once
_MOST_PODS = 1000
_PIECE = 4 << 20  # bytes of one read of a region


@dataclass(slots=True)
class Door:
    """State that the routes share.

    Attributes:
        admitted: what the operator said; None: nothing yet.
        coordination: on member 0, once it is admitted.
        memory: of this member.
        metrics: of this member.
        body_bytes: of a call at most.
        failed: why the process ends.
    """

    memory: HostMemory
    metrics: GroupMetrics
    body_bytes: int
    admitted: Admitted | None = None
    coordination: Coordination | None = None
    clock: Callable[[], float] = time.time
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    _checked: dict[str, GroupTicket] = field(default_factory=dict)  # tickets whose signature was good
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)

    def let_in(self, request: Request, kinds: tuple[str, ...]) -> GroupTicket:
        """Return the ticket of a request.

        Raises:
            Refused: 401, 403, 429 or 503.
        """
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(
                401, "NoTicket", "expected the header Authorization: Bearer, with an operator's ticket"
            )
        if self.admitted is None:
            raise Refused(503, "NotReady", "this member has no ticket from the operator yet")
        here = self.admitted.ticket
        try:
            ticket = self._checked.get(text)
            if ticket is None or not self.clock() < ticket.ends or ticket.kind not in kinds:
                ticket = group_tickets.check(
                    text, self.admitted.keys, kinds=kinds, group=here.group, admission=here.admission,
                    now=self.clock(),
                )  # fmt: skip
                if len(self._checked) >= _MOST_PODS:
                    self._checked.clear()
                self._checked[text] = ticket
        except TicketError as error:
            raise Refused(403, "WrongTicket", str(error)) from None
        self._count(f"{ticket.kind}/{ticket.pod}")
        return ticket

    def keys_changed(self) -> None:
        """Check every ticket again: other keys count."""
        self._checked.clear()

    def _count(self, who: str) -> None:
        now = time.monotonic()
        held, at = self._buckets.pop(who, (BURST, now))
        held = min(BURST, held + (now - at) * RATE)
        while len(self._buckets) >= _MOST_PODS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[who] = (max(0.0, held - 1.0), now)
        if held < 1.0:
            raise Refused(429, "TooMany", f"more than {RATE:g} calls per second with one ticket")

    def group(self) -> Coordination:
        """Return the coordinator.

        Raises:
            Refused: 503: it is not this member, or not yet.
        """
        if self.coordination is None:
            raise Refused(503, "NotReady", "this is not member 0, or it is not ready yet")
        return self.coordination


Answer = Callable[[Door, GroupTicket, Request], Awaitable[Any]]


def create(door: Door) -> FastAPI:
    """Return the app."""
    app = bare_app()

    def route(method: str, path: str, answer: Answer, *kinds: str) -> None:
        async def handle(request: Request) -> Response:
            try:
                found = await answer(door, door.let_in(request, kinds), request)
            except Refused as error:
                door.refused[error.reason] = door.refused.get(error.reason, 0) + 1
                return _json(error.document(), error.status)
            return found if isinstance(found, Response) else _json(found)

        app.add_api_route(path, handle, methods=[method], response_model=None)

    async def healthz() -> Response:
        group = door.coordination
        ready = door.admitted is not None and (
            group is None or all(one.connected for one in group.links.values())
        )
        return _json({"ready": ready}, 200 if ready else 503)

    async def metrics() -> Response:
        return Response(door.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_api_route("/healthz", healthz, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    route("POST", "/v1/turns", _turn, JOB)
    route("POST", "/v1/turns/{token}/calls/{number}", _call, JOB)
    route("POST", "/v1/turns/{token}/release", _release, JOB)
    route("GET", "/v1/state", _state, JOB)
    route("GET", "/v1/states/{version}/{region}", _region, JOB)
    route("POST", "/v1/residents", _join, OPERATOR)
    route("POST", "/v1/residents/{name}/leave", _leave, OPERATOR)
    route("GET", "/v1/report", _report, OPERATOR)
    route("POST", "/v1/members/exchange", _exchange, MEMBER)
    return app


async def _turn(door: Door, ticket: GroupTicket, request: Request) -> Any:
    group, given = door.group(), await _document(request)
    wait, step = given.get("wait", MOST_WAIT), given.get("step")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MOST_WAIT:
        raise Refused(
            400, "BadRequest", f"wait: {quoted(wait)} is not allowed, expected 0 to {MOST_WAIT:g} s"
        )
    if step is not None and whole(step) is None:
        raise Refused(
            400, "BadRequest", f"step: {quoted(step)} is not allowed, expected a whole number or null"
        )
    number = whole(step)
    found = await group.turn(ticket.resident, float(wait), -1 if number is None else number)
    if found is None:
        return _json({"ahead": group.ahead(ticket.resident)}, 202)
    return found


async def _call(door: Door, ticket: GroupTicket, request: Request) -> Any:
    group, token = door.group(), token_of(request.path_params["token"])
    number = whole(request.path_params["number"])
    if not number:
        raise Refused(400, "BadRequest", "the calls of a turn are numbered from 1")
    body = await _body(request, door.body_bytes)
    function = call_of(body, door.body_bytes)
    answer = await group.call(ticket.resident, token, number, function, body)
    return Response(answer, media_type=ENVELOPE)


async def _release(door: Door, ticket: GroupTicket, request: Request) -> Any:
    group, token = door.group(), token_of(request.path_params["token"])
    given = await _document(request)
    again, discard = given.get("again", False), given.get("discard", False)
    if not isinstance(again, bool) or not isinstance(discard, bool):
        raise Refused(400, "BadRequest", "again and discard: expected true or false")
    if discard:
        return {"version": group.discard(ticket.resident, token)}
    return {"version": await group.release(ticket.resident, token, again)}


async def _state(door: Door, ticket: GroupTicket, _: Request) -> Any:
    return door.group().state_of(ticket.resident)


async def _region(door: Door, ticket: GroupTicket, request: Request) -> Any:
    version, region = whole(request.path_params["version"]), request.path_params["region"]
    sizes = door.memory.regions(ticket.resident, version or 0) if ticket.resident else None
    if sizes is None:
        newest = max((v for name, v in door.memory.versions() if name == ticket.resident), default=0)
        raise Refused(409, "StateMoved", f"version {version} is not kept", version=newest)
    if region not in sizes:
        raise Refused(
            404, "NoSuchRegion", f"no region {quoted(region)}; there are {', '.join(sorted(sizes))}"
        )
    try:
        file = (door.memory.folder(ticket.resident, version or 0) / region).open("rb")
    except FileNotFoundError:
        raise Refused(
            409, "StateMoved", f"version {version} is not kept", version=(version or 0) + 1
        ) from None
    first, last, part = _range(request.headers.get("range"), sizes[region])

    async def pieces() -> AsyncIterator[bytes]:
        with file:
            file.seek(first)
            left = last + 1 - first
            while left > 0 and (piece := await asyncio.to_thread(file.read, min(_PIECE, left))):
                left -= len(piece)
                yield piece

    headers = {"content-length": str(last + 1 - first)}
    if part:
        headers["content-range"] = f"bytes {first}-{last}/{sizes[region]}"
    return Streamed(pieces(), 206 if part else 200, headers)


def _range(given: str | None, size: int) -> tuple[int, int, bool]:
    """Return first and last byte that are asked for, and whether that is a part only."""
    if given is None:
        return 0, size - 1, False
    first, dash, last = given.removeprefix("bytes=").partition("-")
    begin, end = whole(first), whole(last) if last else size - 1
    if (
        not given.startswith("bytes=")
        or not dash
        or begin is None
        or end is None
        or not begin <= end
        or begin >= size
    ):
        raise Refused(
            416, "BadRange", f"range: {quoted(given)} is not allowed, expected bytes=a-b in {size} bytes"
        )
    return begin, min(end, size - 1), True


async def _join(door: Door, _: GroupTicket, request: Request) -> Any:
    group, given = door.group(), await _document(request)
    name, job, size, kind = (given.get(field) for field in ("name", "job", "stateBytes", "kind"))
    if not isinstance(name, str) or not isinstance(job, str) or not 0 < len(job) <= 64:
        raise Refused(400, "BadRequest", "expected name and job as text")
    number = whole(size)
    if not number:
        raise Refused(400, "BadRequest", f"stateBytes: {quoted(size)} is not allowed, expected bytes from 1")
    if kind is not None and (not isinstance(kind, str) or len(kind) > 253):
        raise Refused(400, "BadRequest", "kind: expected text of at most 253 characters")
    await group.join(name, job, number, kind or "")
    return report(group)


async def _leave(door: Door, _: GroupTicket, request: Request) -> Any:
    group = door.group()
    await group.leave(str(request.path_params["name"]))
    return report(group)


async def _report(door: Door, _: GroupTicket, request: Request) -> Any:
    return report(door.group())


async def _exchange(door: Door, ticket: GroupTicket, request: Request) -> Any:
    link = door.group().links.get(ticket.pod)
    if link is None:
        raise Refused(
            403, "WrongTicket", f"pod {quoted(ticket.pod)} is none of this admission's other members"
        )
    return Streamed(link.serve(request.stream()), 200, {"content-type": ENVELOPE})


class Streamed(Response):
    """An answer that is written while the request may still be read: starlette's own reads the request, too,
    to see whether the client is gone."""

    def __init__(self, parts: AsyncIterator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(status_code=status)
        headers.setdefault("content-type", "application/octet-stream")
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._parts = parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, "TooLarge", f"body: more than {most} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _document(request: Request) -> dict[str, Any]:
    return document(await _body(request, MOST_JSON))


def _json(document: object, status: int = 200) -> Response:
    headers = {"Connection": "close"} if status == 413 else {}
    return Response(to_json(document), status, media_type="application/json", headers=headers)
