"""The routes, each for a pod with a projected token; errors are sentences with a reason code.

POST /v1/announce  /v1/begin  /v1/done  /v1/end    of member 0 of a job's child, in its present attempt
GET  /v1/watch?attempt=N&step=N&after=N             the same, answered when something changed
POST /v1/actors                                     of an actor's sidecar
POST /v1/groups/members                             of a worker group's member
POST /v1/groups/ticket                              of a pod of a job that shares a group
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from controller import names
from controller.bounded import shown, whole
from controller.kube.errors import ApiError
from controller.steps import wire
from controller.steps.directory import Directory, RolloutJob
from controller.steps.groups import GroupDirectory
from controller.steps.groups import Refusal as GroupRefusal
from controller.steps.sessions import Conflict, Session, Sessions
from controller.web.bare_app import bare_app
from controller.web.reviews import Reviews, TooMany, Unauthenticated, bearer

AUDIENCE = names.STEPS_AUDIENCE
WATCH_SECONDS = 25.0
RATE, BURST = 10.0, 60.0  # calls of one pod: per second, and at once
_MOST_PODS = 10_000
_POD = "authentication.kubernetes.io/pod-uid"


class Refused(Exception):
    """An answer instead of the one that was asked for."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Identity(Protocol):
    """Says whose pod a token is."""

    async def pod(self, token: str, peer: str) -> str:
        """Return the pod's uid.

        Raises:
            Unauthenticated, TooMany, ApiError: see `Reviews`.
        """
        ...


class ReviewedTokens:
    """Identity by TokenReview for the audience ``evalstop.dev/steps``, remembered for a minute."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

    async def pod(self, token: str, peer: str) -> str:
        """See `Identity`. A token that is bound to no pod is nobody's."""
        user = await self._reviews.user(token, peer)
        extra = user.get("extra") or {}
        found: list[object] = list(extra.get(_POD) or [])
        if len(found) != 1 or not isinstance(found[0], str):
            raise Unauthenticated
        return found[0]


class StepApi:
    """State that the routes share."""

    def __init__(
        self,
        directory: Directory,
        sessions: Sessions,
        identity: Identity,
        monotonic: Callable[[], float] = time.monotonic,
        groups: GroupDirectory | None = None,
    ) -> None:
        self.directory, self.sessions, self._identity, self._now = directory, sessions, identity, monotonic
        self.groups = groups or GroupDirectory()
        self._buckets: dict[str, tuple[float, float]] = {}
        self.refused: dict[str, int] = {}  # by reason

    async def pod(self, request: Request) -> str:
        """Return the uid of the pod that asks."""
        if not self.directory.leads():
            raise Refused(421, "NotLeading", "another process of the operator leads; ask that one")
        try:
            token, peer = bearer(request)
            pod = await self._identity.pod(token, peer)
        except Unauthenticated:
            raise Refused(
                401, "Unauthenticated", f"expected a pod's projected token with audience {AUDIENCE}"
            ) from None
        except TooMany as error:
            raise Refused(429, "TooMany", str(error)) from None
        except ApiError as error:
            raise Refused(
                503, "NoReview", f"the API server does not say whose token it is: {error}"
            ) from None
        self._count(pod)
        return pod

    def _count(self, pod: str) -> None:
        now = self._now()
        held, at = self._buckets.pop(pod, (BURST, now))
        held = min(BURST, held + (now - at) * RATE)
        while len(self._buckets) >= _MOST_PODS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[pod] = (max(0.0, held - 1.0), now)
        if held < 1.0:
            raise Refused(429, "TooMany", f"more than {RATE:g} calls per second of one pod")

    def session(self, pod: str, attempt: int) -> tuple[RolloutJob, Session]:
        """Return the job that a pod speaks for, and its session."""
        job = self.directory.job_of_speaker(pod)
        if job is None:
            raise Refused(
                403,
                "NotTheSpeaker",
                "this pod is not member 0 of a child with rollouts in its present attempt",
            )
        if attempt != job.attempt:
            raise Refused(409, "OldAttempt", f"attempt: {attempt} asks, {job.attempt} is the present one")
        return job, self.sessions.of(job)


Answer = Callable[[StepApi, str, dict[str, Any]], Awaitable[Any]]


def create(api: StepApi) -> FastAPI:
    """Return the app."""
    app = bare_app()

    def route(path: str, answer: Answer, method: str = "POST") -> None:
        async def handle(request: Request) -> Response:
            try:
                pod = await api.pod(request)
                given = await _given(request)
                return _json(await answer(api, pod, given))
            except (Refused, Conflict, GroupRefusal) as error:
                status, reason, message = error.status, error.reason, str(error)
            except wire.BadRequest as error:
                status, reason, message = 400, "BadRequest", shown(str(error), 300)
            api.refused[reason] = api.refused.get(reason, 0) + 1
            return _json({"reason": reason, "message": message}, status)

        app.add_api_route(path, handle, methods=[method], response_model=None)

    async def healthz() -> Response:
        return _json({"leads": api.directory.leads()})

    app.add_api_route("/healthz", healthz, methods=["GET"], response_model=None)
    route("/v1/announce", _announce)
    route("/v1/begin", _begin)
    route("/v1/watch", _watch, "GET")
    route("/v1/done", _done)
    route("/v1/end", _end)
    route("/v1/actors", _register)
    route("/v1/groups/members", _member)
    route("/v1/groups/ticket", _ticket)
    return app


async def _announce(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    job, session = api.session(pod, wire.whole(given, "attempt"))
    session.announce(job, wire.announcement(given))
    return {}


async def _begin(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    job, session = api.session(pod, wire.whole(given, "attempt"))
    return session.begin(job, wire.whole(given, "step"))


async def _watch(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    job, session = api.session(pod, wire.whole(given, "attempt"))
    found = await session.watch(job, wire.whole(given, "step"), wire.whole(given, "after"), WATCH_SECONDS)
    if found is None:
        raise Refused(409, "OldAttempt", "attempt: the job is in another one now, or has ended")
    return found


async def _done(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    job, session = api.session(pod, wire.whole(given, "attempt"))
    session.done(job, wire.done(given))
    return {}


async def _end(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    job, session = api.session(pod, wire.whole(given, "attempt"))
    session.end(job, wire.ended(given))
    return {}


async def _register(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    registered = wire.registered(given)
    found = api.directory.actor_of(pod)
    if found is None:
        raise Refused(403, "NotAnActor", "this pod is no rollout actor of a job in its present attempt")
    job, actor = found
    if actor.ip and registered.address.rpartition(":")[0].strip("[]") != actor.ip:
        raise Refused(
            400,
            "WrongAddress",
            f"address: {registered.address!r} is not allowed, expected the pod's, {actor.ip}",
        )
    return api.sessions.of(job).register(job, actor.number, pod, registered)


async def _member(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    asked = wire.registered(given)
    return api.groups.register(pod, asked.address, asked.fingerprint)


async def _ticket(api: StepApi, pod: str, given: dict[str, Any]) -> Any:
    return api.groups.admit(pod, wire.whole(given, "attempt"))


async def _given(request: Request) -> dict[str, Any]:
    if request.method == "GET":
        return {name: whole(text) for name, text in request.query_params.items()}
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > wire.MOST_BODY:
            raise Refused(413, "TooLarge", f"body: more than {wire.MOST_BODY} bytes")
        parts.append(part)
    return wire.document(b"".join(parts))


def _json(document: object, status: int = 200) -> Response:
    # 421: the next connection to this address may reach the process that leads.
    headers = {"Connection": "close"} if status in (413, 421) else {}
    return Response(to_json(document), status, media_type="application/json", headers=headers)
