"""A small asynchronous client of the API server: one identity, JSON in and out, self-healing watches."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

log = logging.getLogger(__name__)

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=330)
_WATCH_SECONDS = 300


class ApiError(Exception):
    """The API server refused a request: HTTP status, reason and message are its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Change:
    """One step of a followed collection.

    ``kind`` LISTED carries the whole collection in ``items`` (first, and after each gap); ADDED, MODIFIED and
    DELETED carry one object in ``items``.
    """

    kind: str
    items: list[Object]


class Api:
    """Requests under the identity of one kubeconfig (client certificate or token; files or inline data)."""

    def __init__(self, kubeconfig: Path) -> None:
        raw = yaml.safe_load(kubeconfig.read_text())
        context = {c["name"]: c["context"] for c in raw["contexts"]}[raw["current-context"]]
        cluster = {c["name"]: c["cluster"] for c in raw["clusters"]}[context["cluster"]]
        user = {u["name"]: u["user"] for u in raw["users"]}[context["user"]]
        self.url = str(cluster["server"]).rstrip("/")
        self.ca = _data(cluster, "certificate-authority", kubeconfig.parent)
        if self.ca is None:
            raise ValueError(f"{kubeconfig}: the cluster has no certificate-authority")
        self._tls = ssl.create_default_context(cadata=self.ca.decode())
        certificate = _data(user, "client-certificate", kubeconfig.parent)
        key = _data(user, "client-key", kubeconfig.parent)
        if certificate and key:
            with tempfile.NamedTemporaryFile("wb") as pair:  # ssl loads only from files
                pair.write(key + b"\n" + certificate)
                pair.flush()
                self._tls.load_cert_chain(pair.name)
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 443

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, timeout=_TIMEOUT
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request and return the answer.

        Raises:
            ApiError: the answer is not 2xx.
            aiohttp.ClientError: there is no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if body is not None else {}
        async with self.session.request(
            method, self.url + path, data=data, headers=headers, params=params
        ) as response:
            payload = await response.read()
            if response.status >= 300:
                raise _refusal(response.status, payload)
            return json.loads(payload) if payload else {}

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def update(self, path: str, body: Object) -> Object:
        return await self.request("PUT", path, body)

    async def patch(self, path: str, body: Object, content_type: str = STRATEGIC) -> Object:
        return await self.request("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        return await self.request("DELETE", path, body)

    async def follow(self, path: str, field_selector: str = "") -> AsyncIterator[Change]:
        """List a collection, then watch it, for ever: after an error or a gap it is listed anew.

        Refusals and lost connections are waited out (0.2 s doubling to 10 s); one that lasts is logged once.
        """
        selector = {"fieldSelector": field_selector} if field_selector else {}
        pause = 0.0
        version = ""
        while True:
            try:
                if not version:
                    listed = await self.request("GET", path, params=selector)
                    version = listed["metadata"]["resourceVersion"]
                    yield Change("LISTED", listed.get("items") or [])
                    pause = 0.0
                async for event in self._watch(path, {**selector, "resourceVersion": version}):
                    item = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiError(item.get("code", 500), item.get("reason", ""), item.get("message", ""))
                    version = item["metadata"]["resourceVersion"]
                    pause = 0.0
                    if event["type"] != "BOOKMARK":
                        yield Change(event["type"], [item])
            except (ApiError, aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError) as error:
                version = ""
                if isinstance(error, ApiError) and error.status == 410:
                    continue
                if 1 <= pause < 2:
                    log.warning("watch of %s %s: %s", path, field_selector, error)
                pause = min(max(pause * 2, 0.2), 10.0)
                await asyncio.sleep(pause)

    async def _watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Object]:
        query = {**params, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        async with self.session.get(self.url + path, params=query, timeout=_WATCH_TIMEOUT) as response:
            if response.status != 200:
                raise _refusal(response.status, await response.read())
            rest = b""
            async for chunk in response.content.iter_any():  # objects may be longer than readline allows
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)


def _refusal(status: int, payload: bytes) -> ApiError:
    try:
        answer = json.loads(payload)
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", payload[:200].decode(errors="replace"))


def _data(section: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    if inline := section.get(f"{name}-data"):
        return base64.b64decode(inline)
    if path := section.get(name):
        return (folder / str(path)).read_bytes()
    return None


def core(resource: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    """Path of a core/v1 resource: ``core("pods", "ns", "p", "status")``."""
    return path("/api/v1", resource, namespace, name, sub)


def path(root: str, resource: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    """Path of a resource under an API root such as ``/apis/storage.k8s.io/v1``."""
    parts = [root]
    if namespace:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource, name, sub) if part]
    return "/".join(parts)
