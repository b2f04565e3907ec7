"""API objects that volumes show: single objects kept fresh by a shared watch, and tokens renewed in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from controller.kube.client import Api, Object
from controller.kube.resources import CONFIGMAPS, SECRETS
from deploy.local.agent.follow import follow
from deploy.local.agent.resources import SERVICE_ACCOUNTS

KINDS = {kind.plural: kind for kind in (CONFIGMAPS, SECRETS)}
_FIRST_ANSWER = 10.0  # s
_RENEW_AT = 0.8  # of a token's life, as kubelet does
_RENEW_LATEST = 24 * 3600.0  # s


@dataclass
class _Watched:
    task: asyncio.Task[None] | None = None
    item: Object | None = None
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    callbacks: list[Callable[[], None]] = field(default_factory=list)


class Objects:
    """Single ConfigMaps and Secrets, watched while somebody subscribes (no other watch is a node's right)."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watched: dict[tuple[str, str, str], _Watched] = {}

    def subscribe(self, resource: str, namespace: str, name: str, callback: Callable[[], None]) -> None:
        """Have `callback` called after each change, until `unsubscribe` with the same arguments."""
        key = (resource, namespace, name)
        if key not in self._watched:
            watched = self._watched[key] = _Watched()
            watched.task = asyncio.create_task(self._follow(key, watched), name=f"watch {key}")
        self._watched[key].callbacks.append(callback)

    def unsubscribe(self, resource: str, namespace: str, name: str, callback: Callable[[], None]) -> None:
        key = (resource, namespace, name)
        watched = self._watched[key]
        watched.callbacks.remove(callback)
        if not watched.callbacks:
            del self._watched[key]
            if watched.task is not None:
                watched.task.cancel()

    async def current(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return the subscribed object, or None when there is none. Raises TimeoutError if the API does not
        say."""
        watched = self._watched[(resource, namespace, name)]
        await asyncio.wait_for(watched.listed.wait(), _FIRST_ANSWER)
        return watched.item

    async def _follow(self, key: tuple[str, str, str], watched: _Watched) -> None:
        resource, namespace, name = key
        async for change in follow(self._api, KINDS[resource], namespace, f"metadata.name={name}"):
            watched.item = change.items[0] if change.items and change.kind != "DELETED" else None
            watched.listed.set()
            for callback in list(watched.callbacks):
                callback()


class Token:
    """A service account token bound to a pod, renewed at 80 % of its life (or a day)."""

    def __init__(self, api: Api, pod: Object, audience: str, seconds: int) -> None:
        self._api = api
        self._pod = pod
        self._audience = audience
        self._seconds = seconds
        self._token = ""
        self.renew_at = 0.0  # s since the epoch

    async def current(self) -> str:
        """Return a fresh token. Raises ApiError; then the one in the volume, if any, is still good for a
        while."""
        now = time.time()
        if now < self.renew_at:
            return self._token
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {
                "namespace": metadata["namespace"],
                "name": spec.get("serviceAccountName") or "default",
            },
            "spec": {
                "audiences": [self._audience] if self._audience else [],
                "expirationSeconds": self._seconds,
                "boundObjectRef": bound,
            },
        }
        answer = await self._api.create(SERVICE_ACCOUNTS, request, subresource="token")
        self._token = str(answer["status"]["token"])
        expires = datetime.fromisoformat(answer["status"]["expirationTimestamp"]).timestamp()
        self.renew_at = now + min(_RENEW_AT * (expires - now), _RENEW_LATEST)
        return self._token
