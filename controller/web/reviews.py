"""Authentication and authorization of callers by the API server's reviews, asked for sparingly.

TokenReview says whose a token is, SubjectAccessReview what that user may. A question from outside that leads
to one at the API server is an amplifier: so answers are remembered for a while, a token that cannot be one of
ours by what stands in it is not asked about, and the rest are asked about only so often, for each peer and in
all.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from controller import bounded
from controller.frozen import dataclass
from controller.kube.client import Api
from controller.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Resource

TOKEN_SECONDS = 60.0  # for so long a token that was revoked may still be taken
RIGHTS_SECONDS = 30.0  # for so long a right that was given or taken away may not show
GOOD_SECONDS = 3600.0  # for so long a token that was somebody's is asked about again out of turn
MOST_TOKEN = 16384  # characters; the longest that Kubernetes makes has some two thousand
_REMEMBERED = 10_000  # answers of the API server
_AT_ONCE = 16  # questions to it

T = TypeVar("T")
User = Mapping[str, Any]  # as a TokenReview's status has it


class Unauthenticated(Exception):
    """No token, or one that nobody vouches for."""


class TooMany(Exception):
    """So many tokens that nobody knows were shown that this one is not asked about. ``seconds``: until it
    is worth trying again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many unknown tokens were shown; try again in {seconds:.0f} s")
        self.seconds = seconds


def bearer(request: Request) -> tuple[str, str]:
    """Return the token that a request carries, and the address that it comes from.

    Raises:
        Unauthenticated: it has no header ``Authorization: Bearer``.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated
    return token.strip(), request.client.host if request.client else ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Rate limit on reviews of unknown tokens: ``burst`` at once, then ``rate`` per second."""

    burst: float
    rate: float


PER_PEER = Allowance(burst=20, rate=0.5)
IN_ALL = Allowance(burst=100, rate=5.0)
_PEERS = 4096  # that are told apart; beyond, whoever asked longest ago is forgotten


class Reviews:
    """Asks the API server about tokens and rights.

    Args:
        audience: a token must be made for it (``kubectl create token --audience``); "": for the API server.
    """

    def __init__(
        self,
        api: Api,
        audience: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        *,
        per_peer: Allowance = PER_PEER,
        in_all: Allowance = IN_ALL,
    ) -> None:
        self._api, self._audience, self._now = api, audience, monotonic
        self._users: _Memory[User | None] = _Memory(TOKEN_SECONDS, monotonic)
        self._good: _Memory[bool] = _Memory(GOOD_SECONDS, monotonic)
        self._rights: _Memory[bool] = _Memory(RIGHTS_SECONDS, monotonic)
        self._buckets = _Buckets(per_peer, in_all, monotonic)
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self.held_back = 0  # tokens that were not asked about

    async def user(self, token: str, peer: str) -> User:
        """Return whose token that is; ``peer``: the address that shows it.

        Raises:
            Unauthenticated: nobody's.
            TooMany: not asked about now.
            ApiError: the API server does not answer.
        """
        if not token or len(token) > MOST_TOKEN:
            raise Unauthenticated
        key = hashlib.sha256(token.encode()).hexdigest()  # a dump of this process's memory shows no token
        known, user = self._users.get(key)
        if not known:
            if self._audience and not _may_be_for(token, self._audience, time.time()):
                raise Unauthenticated
            if not self._good.get(key)[0] and (wait := self._buckets.wait(peer)):
                self.held_back += 1
                raise TooMany(wait)
            user = self._users.put(key, await self._review_token(token))
            if user is not None:
                self._good.put(key, True)
        if user is None:
            raise Unauthenticated
        return user

    async def may(self, user: User, attributes: Mapping[str, Any]) -> bool:
        """Return whether a user may do that: ``{"resourceAttributes": …}`` or ``{"nonResourceAttributes":
        …}``.

        Raises:
            ApiError: the API server does not answer.
        """
        subject = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
        }
        key = hashlib.sha256(repr((sorted(subject.items()), sorted(attributes.items()))).encode()).hexdigest()
        known, may = self._rights.get(key)
        if known:
            return bool(may)
        async with self._asking:
            answer = await review(self._api, ACCESS_REVIEWS, {**subject, **attributes})
        return self._rights.put(key, answer.get("allowed") is True)

    async def _review_token(self, token: str) -> User | None:
        audiences = [self._audience] if self._audience else None
        async with self._asking:
            answer = await review(self._api, TOKEN_REVIEWS, {"token": token, "audiences": audiences})
        if answer.get("authenticated") is not True:
            return None
        # An API server that knows nothing of audiences tells none: its word is for itself alone.
        if self._audience and self._audience not in (answer.get("audiences") or ()):
            return None
        return answer.get("user")


async def review(api: Api, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of a review of this spec."""
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {},
        "spec": {k: v for k, v in spec.items() if v not in ("", None)},
    }
    answer = await api.create(resource, body)
    status: Mapping[str, Any] = answer.get("status") or {}
    return status


def _may_be_for(token: str, audience: str, now: float) -> bool:
    """Return whether a token says of itself that it is for this audience, and not over: only then does asking
    make sense. Whether it says the truth is the API server's to tell."""
    parts = token.split(".")
    if len(parts) != 3:
        return False
    try:
        claims = bounded.load(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), "a token")
    except ValueError:
        return False
    if not isinstance(claims, dict):
        return False
    given, ends = claims.get("aud"), claims.get("exp")
    audiences = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return audience in audiences and isinstance(ends, (int, float)) and ends > now - 60.0


class _Buckets:
    """Token buckets (the algorithm's, not Kubernetes' tokens): one for each peer and one for all."""

    def __init__(self, per_peer: Allowance, in_all: Allowance, monotonic: Callable[[], float]) -> None:
        self._per_peer, self._in_all, self._now = per_peer, in_all, monotonic
        self._all = (in_all.burst, monotonic())
        self._peers: dict[str, tuple[float, float]] = {}

    def wait(self, peer: str) -> float:
        """Take one; 0, or seconds until there is one, and then none is taken."""
        now = self._now()
        mine = _filled(self._peers.pop(peer, (self._per_peer.burst, now)), self._per_peer, now)
        every = _filled(self._all, self._in_all, now)
        lacking = max((1 - mine) / self._per_peer.rate, (1 - every) / self._in_all.rate, 0.0)
        take = 0 if lacking else 1
        while len(self._peers) >= _PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[peer] = (mine - take, now)
        self._all = (every - take, now)
        return lacking


def _filled(bucket: tuple[float, float], allowance: Allowance, now: float) -> float:
    held, at = bucket
    return min(allowance.burst, held + (now - at) * allowance.rate)


class _Memory(Generic[T]):
    """Answers for a while, the oldest forgotten first."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds, self._now = seconds, monotonic
        self._held: dict[str, tuple[float, T]] = {}

    def get(self, key: str) -> tuple[bool, T | None]:
        at, value = self._held.get(key, (float("-inf"), None))
        return (True, value) if self._now() - at < self._seconds else (False, None)

    def put(self, key: str, value: T) -> T:
        self._held.pop(key, None)
        while len(self._held) >= _REMEMBERED:
            del self._held[next(iter(self._held))]
        self._held[key] = (self._now(), value)
        return value
