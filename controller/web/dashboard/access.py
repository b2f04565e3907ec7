"""Access rights of viewers. Every request for data carries a bearer token; there are no cookies, so no page
of somebody else's can ask in a user's name.

On loopback the token is a key made at the start, and what is seen is what the caller's own kubeconfig could
list. In a cluster it is a Kubernetes token made for the dashboard and good for nothing else, and the API
server is asked who that is and what they may list.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Mapping
from typing import Protocol

from controller.frozen import dataclass
from controller.kube.client import Api
from controller.kube.errors import ApiError, Refused
from controller.kube.resources import GPUPOOLS, NAMESPACES, RLHFJOBS, SELF_ACCESS_REVIEWS, Resource
from controller.web.reviews import Reviews, Unauthenticated, review

# What tokens are made for that are shown here: with one for the API server, whoever reads it on its way, or
# in this process's memory, could do there all that its owner may.
AUDIENCE = "evalstop-dashboard"


class Forbidden(Exception):
    """It is known who asks, and they may not see this; the message says what to do."""


class CannotReview(Exception):
    """The API server does not say who asks or what they may see."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks.

    Attributes:
        namespaces: whose RLHFJobs they may list, None: all.
        pools: GPUPools.
    """

    name: str
    namespaces: frozenset[str] | None
    pools: bool

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Gate(Protocol):
    """Tells who asks."""

    hint: str  # for people without a token: where to get one

    async def viewer(self, token: str, namespaces: Iterable[str], peer: str) -> Viewer:
        """Return who that is, and which of ``namespaces`` they may look into; ``peer``: the address that
        asks.

        Raises:
            Unauthenticated: nobody that is known.
            CannotReview: that cannot be found out now.
            TooMany: too many tokens that nobody knows came before it.
        """
        ...


class KeyGate:
    """One key, one viewer: whoever started the process, and nobody else on this machine."""

    hint = "open the address that `evalstop dashboard` printed: it carries a key made for this run"

    def __init__(self, key: str, viewer: Viewer) -> None:
        self._key, self._viewer = key.encode(), viewer

    async def viewer(self, token: str, namespaces: Iterable[str], peer: str) -> Viewer:
        if not hmac.compare_digest(token.encode(), self._key):
            raise Unauthenticated
        return self._viewer


class ReviewGate:
    """Asks the API server: TokenReview for who it is, SubjectAccessReview for what they may list."""

    def __init__(self, reviews: Reviews, audience: str = AUDIENCE) -> None:
        """``audience``: what tokens must be made for, as ``reviews`` hold them to it; "": the API server."""
        self._reviews = reviews
        made_for = f" --audience {audience}" if audience else ""
        self.hint = f"kubectl create token <service account> -n <namespace>{made_for}"

    async def viewer(self, token: str, namespaces: Iterable[str], peer: str) -> Viewer:
        may = self._reviews.may
        try:
            user = await self._reviews.user(token, peer)
            everywhere, pools = await asyncio.gather(
                may(user, _attributes(RLHFJOBS, "")), may(user, _attributes(GPUPOOLS, ""))
            )
            seen = None
            if not everywhere:
                names = sorted(set(namespaces))
                answers = await asyncio.gather(*(may(user, _attributes(RLHFJOBS, name)) for name in names))
                seen = frozenset(name for name, yes in zip(names, answers, strict=True) if yes)
        except ApiError as error:
            raise CannotReview(str(error)) from error
        return Viewer(str(user.get("username") or ""), seen, pools)


async def own_rights(api: Api, wanted: Iterable[str], default_namespace: str) -> Viewer:
    """Return what the kubeconfig's own user may see.

    Args:
        api: client of the cluster.
        wanted: namespaces asked for; none: all that may be listed.
        default_namespace: the kubeconfig's own namespace, looked into where namespaces cannot be listed.

    Raises:
        Forbidden: RLHFJobs can be listed nowhere.
        ApiError: the API server does not answer.
    """

    async def may(resource: Resource, namespace: str) -> bool:
        answer = await review(api, SELF_ACCESS_REVIEWS, _attributes(resource, namespace))
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
            names = [default_namespace]
    seen = frozenset([name for name in names if await may(RLHFJOBS, name)])
    if not seen:
        where = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        raise Forbidden(
            f"you may not list RLHFJobs in {where}; ask an administrator for `kubectl create rolebinding "
            f"evalstop-view -n {names[0]} --clusterrole=view --user=<you>`, or name a namespace that you may "
            "read with -n"
        )
    return Viewer("you", seen, pools)


def _attributes(resource: Resource, namespace: str) -> Mapping[str, Mapping[str, str]]:
    where = {"namespace": namespace} if namespace else {}
    asked = {"group": resource.group, "resource": resource.plural, "verb": "list", **where}
    return {"resourceAttributes": asked}
