"""Who may see what. Every request for data carries a bearer token; there are no cookies, so no page of
somebody else's can ask in a user's name.

On loopback the token is a key made at the start, and what is seen is what the caller's own kubeconfig could
list. In a cluster it is a Kubernetes token, and the API server is asked who that is and what they may list.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from controller.kube.client import Api
from controller.kube.errors import ApiError, Refused
from controller.kube.resources import (
    ACCESS_REVIEWS,
    GPUPOOLS,
    NAMESPACES,
    RLHFJOBS,
    SELF_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)

TOKEN_SECONDS = 60.0  # for so long a token that was revoked may still be taken
RIGHTS_SECONDS = 30.0  # for so long a right that was given or taken away may not show
_REMEMBERED = 10_000  # answers of the API server
_AT_ONCE = 16  # questions to it

T = TypeVar("T")


class Unauthenticated(Exception):
    """No token, or one that nobody vouches for."""


class Forbidden(Exception):
    """It is known who asks, and they may not see this; the message says what to do."""


class CannotReview(Exception):
    """The API server does not say who asks or what they may see."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks. ``namespaces``: whose RLHFJobs they may list, None: all. ``pools``: GPUPools."""

    name: str
    namespaces: frozenset[str] | None
    pools: bool

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Gate(Protocol):
    """Tells who asks."""

    hint: str  # for people without a token: where to get one

    async def viewer(self, token: str, namespaces: Iterable[str]) -> Viewer:
        """Who that is, and which of ``namespaces`` they may look into.

        Raises:
            Unauthenticated: nobody that is known. CannotReview: that cannot be found out now.
        """
        ...


class KeyGate:
    """One key, one viewer: whoever started the process, and nobody else on this machine."""

    hint = "open the address that `evalstop dashboard` printed: it carries a key made for this run"

    def __init__(self, key: str, viewer: Viewer) -> None:
        self._key, self._viewer = key.encode(), viewer

    async def viewer(self, token: str, namespaces: Iterable[str]) -> Viewer:
        if not hmac.compare_digest(token.encode(), self._key):
            raise Unauthenticated
        return self._viewer


class ReviewGate:
    """Asks the API server: TokenReview for who it is, SubjectAccessReview for what they may list."""

    hint = "kubectl create token <service account> -n <namespace>"

    def __init__(self, api: Api, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._now = api, monotonic
        self._users: _Memory[Mapping[str, Any] | None] = _Memory(TOKEN_SECONDS, monotonic)
        self._rights: _Memory[bool] = _Memory(RIGHTS_SECONDS, monotonic)
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def viewer(self, token: str, namespaces: Iterable[str]) -> Viewer:
        if not token:
            raise Unauthenticated
        try:
            user = await self._user(token)
            if user is None:
                raise Unauthenticated
            everywhere, pools = await asyncio.gather(
                self._may(user, RLHFJOBS, ""), self._may(user, GPUPOOLS, "")
            )
            seen = None
            if not everywhere:
                names = sorted(set(namespaces))
                answers = await asyncio.gather(*(self._may(user, RLHFJOBS, name) for name in names))
                seen = frozenset(name for name, may in zip(names, answers, strict=True) if may)
        except ApiError as error:
            raise CannotReview(str(error)) from error
        return Viewer(str(user.get("username") or ""), seen, pools)

    async def _user(self, token: str) -> Mapping[str, Any] | None:
        key = hashlib.sha256(token.encode()).hexdigest()  # a dump of this process's memory shows no token
        known, user = self._users.get(key)
        if known:
            return user
        answer = await self._review(TOKEN_REVIEWS, {"token": token})
        found = answer.get("user") if answer.get("authenticated") is True else None
        return self._users.put(key, found)

    async def _may(self, user: Mapping[str, Any], resource: Resource, namespace: str) -> bool:
        subject = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
        }
        key = hashlib.sha256(repr((sorted(subject.items()), str(resource), namespace)).encode()).hexdigest()
        known, may = self._rights.get(key)
        if known:
            return bool(may)
        attributes = _attributes(resource, namespace)
        answer = await self._review(ACCESS_REVIEWS, {**subject, "resourceAttributes": attributes})
        return self._rights.put(key, answer.get("allowed") is True)

    async def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._asking:
            return await _review(self._api, resource, spec)


async def own_rights(api: Api, wanted: Iterable[str], usual: str) -> Viewer:
    """What the kubeconfig's own user may see.

    Args:
        wanted: namespaces asked for; none: all that may be listed.
        usual: the kubeconfig's own namespace, looked into where namespaces cannot be listed.

    Raises:
        Forbidden: RLHFJobs can be listed nowhere. ApiError: the API server does not answer.
    """

    async def may(resource: Resource, namespace: str) -> bool:
        answer = await _review(
            api, SELF_ACCESS_REVIEWS, {"resourceAttributes": _attributes(resource, namespace)}
        )
        return answer.get("allowed") is True

    pools = await may(GPUPOOLS, "")
    names = sorted(set(wanted))
    if not names:
        if await may(RLHFJOBS, ""):
            return Viewer("you", None, pools)
        try:
            listed, _ = await api.list(NAMESPACES)
            names = sorted(str(n["metadata"]["name"]) for n in listed)
        except Refused:
            names = [usual]
    seen = frozenset([name for name in names if await may(RLHFJOBS, name)])
    if not seen:
        where = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        raise Forbidden(
            f"you may not list RLHFJobs in {where}; ask an administrator for `kubectl create rolebinding "
            f"evalstop-view -n {names[0]} --clusterrole=view --user=<you>`, or name a namespace that you may "
            "read with -n"
        )
    return Viewer("you", seen, pools)


def _attributes(resource: Resource, namespace: str) -> Mapping[str, str]:
    where = {"namespace": namespace} if namespace else {}
    return {"group": resource.group, "resource": resource.plural, "verb": "list", **where}


async def _review(api: Api, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {},
        "spec": {k: v for k, v in spec.items() if v not in ("", None)},
    }
    answer = await api.create(resource, body)
    status: Mapping[str, Any] = answer.get("status") or {}
    return status


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
