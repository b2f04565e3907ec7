"""A small API client: plain dicts in and out, one exception tree, counted calls.

Every patch names its content type: what it means for lists differs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self
from urllib.parse import urlencode

from controller import names
from controller.kube import wire
from controller.kube.connection import Connection, NoCredentials
from controller.kube.errors import Gone, NotLeading, TooLarge, Unavailable, from_response, from_status
from controller.kube.resources import Resource
from controller.kube.transport import Answer, Limits, Transport

Object = dict[str, Any]
Page = tuple[list[Object], str]  # some of a LIST's objects, and the resourceVersion of the whole
CallHook = Callable[[str, str, str], None]  # (verb, resource, outcome), after each call
# (verb, resource, namespace or "", HTTP status, message of a refusal or ""), after each answer
AnswerHook = Callable[[str, Resource, str, int, str], None]
Permit = Callable[[], None]  # raises NotLeading where no write may be sent now

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # lists by their keys; built-in kinds only
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
PAGE = 100  # objects a LIST asks for at a time: what a page takes as objects stays with the process
# Bytes of one answer. An object has 1.5 MB in etcd, as text at most six times that; of a page that is larger
# fewer objects are asked for.
ANSWER_MOST = 16 << 20


class Api:
    """Calls to one API server. Close it when done (or use it as an async context manager).

    Every method raises a subclass of ``ApiError``; ``Unavailable`` means the effect is unknown, so callers
    must be able to repeat the call: creates use deterministic names, patches carry a resourceVersion or are
    idempotent.
    """

    def __init__(
        self,
        connection: Connection,
        timeout: float = 30.0,
        hook: CallHook | None = None,
        *,
        permit: Permit | None = None,
        user_agent: str = "evalstop-operator",
        manager: str = names.FIELD_MANAGER,
        transport: Transport | None = None,
    ) -> None:
        """``permit``: asked right before each write, dry runs among them. ``manager``: the field manager that
        its writes are recorded under. ``transport``: carries the requests; None: aiohttp."""
        self._transport = transport or _pooled(connection)
        self._user_agent = user_agent
        self._manager = manager
        self._timeout = timeout
        self._limits = Limits(connect=min(5.0, timeout))
        self._hook = hook or (lambda verb, resource, outcome: None)
        self._permit = permit or (lambda: None)
        # Of each answer: its headers, and what tells one connection from another ("": unknown).
        self.on_headers: Callable[[Mapping[str, str], str], None] = lambda headers, connection: None
        self.on_answer: AnswerHook = lambda verb, resource, namespace, status, message: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    # -- reading ---------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return await self._call("get", "GET", resource, resource.path(namespace, name))

    async def discover(self, resource: Resource) -> Object:
        """Return what the server says of the kind's group, which everybody may ask. Raises NotFound: not
        served."""
        return await self._call("discover", "GET", resource, f"/apis/{resource.api_version}")

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """Return all objects and the resourceVersion at which they were all true. Raises like `pages`."""
        pages = [page async for page in self.pages(resource, namespace, labels=labels, fields=fields)]
        return [item for items, _ in pages for item in items], pages[-1][1]

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """Yield a LIST page by page, each with the resourceVersion at which all pages are true: for who keeps
        but little of each object, so that thousands of them are never there in full at once.

        Items of a LIST carry no kind of their own; it is put back. ``Gone`` (a page token that expired) is
        left to the caller, who starts anew. A page with more than `ANSWER_MOST` bytes is asked for in halves.
        """
        query = {"labelSelector": labels, "fieldSelector": fields}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        limit = PAGE
        while True:
            query["limit"] = str(limit)
            try:
                page = await self._call("list", "GET", resource, resource.path(namespace), query)
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2
                continue
            limit = min(PAGE, 2 * limit)
            metadata = page["metadata"]
            yield [{**kind, **item} for item in page.get("items") or ()], metadata["resourceVersion"]
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(
        self,
        resource: Resource,
        version: str,
        *,
        labels: str = "",
        fields: str = "",
        seconds: int = 300,
        quiet: float = 120.0,
        namespace: str | None = None,
    ) -> AsyncIterator[Object]:
        """Watch events ``{"type", "object"}`` after ``version``, bookmarks among them, until the server ends
        the stream, after ``seconds`` at the latest.

        ``quiet``: a stream that brings nothing for so long (s), not even a bookmark, counts as broken.
        Raises ``Gone`` if ``version`` is too old, ``Unavailable`` if the stream breaks.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        path = resource.path(namespace)
        limits = self._limits._replace(quiet=quiet)
        outcome = "cancelled"
        try:
            answer = await self._send("GET", path, query, None, "application/json", limits)
            outcome = str(answer.status)
            rest = b""
            async with answer:
                if answer.status != 200:
                    error = from_response(answer.status, await read(answer.chunks(), path), answer.headers)
                    self.on_answer("watch", resource, namespace or "", answer.status, error.message)
                    raise error
                self.on_answer("watch", resource, namespace or "", answer.status, "")
                async for chunk in answer.chunks():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _event(await self._decoded(line))
                    if len(rest) > ANSWER_MOST:
                        raise Gone(0, "TooLarge", f"watch {path}: an event of more than {ANSWER_MOST} bytes")
        except (OSError, ValueError, NoCredentials) as error:
            outcome = "broken"
            raise Unavailable(
                0, "ConnectionBroken", f"watch {path}: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._hook("watch", resource.plural, outcome)

    # -- writing ---------------------------------------------------------------------------------------

    async def create(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str = "",
        dry_run: bool = False,
        strict: bool = False,
    ) -> Object:
        """Create an object; with ``subresource``, one of the object that ``body`` names (a token, say).
        ``strict``: refused if it has a field that the server does not know."""
        metadata = body["metadata"]
        path = resource.path(
            metadata.get("namespace"), metadata["name"] if subresource else None, subresource
        )
        query = {"fieldManager": self._manager}
        query |= _asked(dry_run, strict)
        verb = "dry-run" if dry_run else "create"
        return await self._call(verb, "POST", resource, path, query, body)

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
        version: str | None = None,
        uid: str | None = None,
        dry_run: bool = False,
        strict: bool = False,
        by_keys: bool = False,
    ) -> Object:
        """Patch an object. With ``version``: only if it is still at that resourceVersion, else ``Conflict``;
        with ``uid``: only if it is still that object and not a namesake. ``strict``: refused if the patch has
        a field that the server does not know. ``by_keys``: lists such as conditions are merged by their keys
        and not replaced (built-in kinds only)."""
        body = dict(patch)
        metadata = dict(body.get("metadata") or {})
        if version is not None:
            metadata["resourceVersion"] = version
        if uid is not None:
            metadata["uid"] = uid
        if metadata:
            body["metadata"] = metadata
        query = {"fieldManager": self._manager}
        query |= _asked(dry_run, strict)
        path = resource.path(namespace, name, subresource)
        verb = f"patch-{subresource}" if subresource else "patch"
        how = STRATEGIC_PATCH if by_keys else MERGE_PATCH
        return await self._call(verb, "PATCH", resource, path, query, body, how)

    async def apply(
        self, resource: Resource, body: Object, *, dry_run: bool = False, strict: bool = False
    ) -> Object:
        """Apply on the server: make the object, or take over the fields that ``body`` names. ``strict``: as
        in `create`."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": self._manager, "force": "true", **_asked(dry_run, strict)}
        return await self._call("apply", "PATCH", resource, path, query, body, APPLY_PATCH)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        uid: str,
        version: str | None = None,
        *,
        grace: int | None = None,
        foreground: bool = False,
    ) -> None:
        """Delete exactly the object of that uid, its dependents in the background; with ``version``: only if
        it is still at that resourceVersion, else ``Conflict``. ``grace``: seconds instead of the object's
        own; 0 removes a pod at once. ``foreground``: it stays until its dependents are gone."""
        how = "Foreground" if foreground else "Background"
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": how}
        conditions = {"uid": uid} | ({"resourceVersion": version} if version is not None else {})
        options: Object = {**body, "preconditions": conditions}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self._call("delete", "DELETE", resource, resource.path(namespace, name), None, options)

    # -- the one call ----------------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        outcome = "cancelled"
        try:
            if method != "GET":
                self._permit()
            status, data, headers = await self._request(method, path, query, body, content_type)
            outcome = str(status)
            if 200 <= status <= 299:
                self.on_answer(verb, resource, _namespace(path), status, "")
                return await self._decoded(data)
            refused = from_response(status, data, headers)
            self.on_answer(verb, resource, _namespace(path), status, refused.message)
            raise refused
        except NotLeading:
            outcome = "not-leading"
            raise
        except TimeoutError as error:
            outcome = "timeout"
            raise Unavailable(
                0, "Timeout", f"{method} {path}: no answer within {self._timeout:g} s"
            ) from error
        except (OSError, ValueError, NoCredentials) as error:
            outcome = "broken"
            raise Unavailable(
                0, "ConnectionBroken", f"{method} {path}: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._hook(verb, resource.plural, outcome)

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None, content_type: str
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Bytes over the wire; tests wrap this to inject faults."""
        async with asyncio.timeout(self._timeout):
            answer = await self._send(method, path, query, body, content_type, self._limits)
            async with answer:
                data = await read(answer.chunks(), f"{method} {path}")
        return answer.status, data, answer.headers

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        content_type: str,
        limits: Limits,
    ) -> Answer:
        given = {key: value for key, value in (query or {}).items() if value}
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type,
            "User-Agent": self._user_agent,
        }
        target = path + (f"?{urlencode(given)}" if given else "")
        sent = None if body is None else json.dumps(body).encode()
        answer = await self._transport.send(method, target, headers, sent, limits)
        self.on_headers(answer.headers, answer.came_over)
        return answer

    async def _decoded(self, data: bytes) -> Object:
        return await decoded(data)


def _namespace(path: str) -> str:
    """Return the namespace that a path goes into; "": none."""
    _, _, inside = path.partition("/namespaces/")
    return inside.partition("/")[0] if "/" in inside else ""


def _asked(dry_run: bool, strict: bool) -> dict[str, str]:
    """Return what of a write's query says that nothing is to be stored, and that unknown fields are
    refused."""
    query = {"dryRun": "All"} if dry_run else {}
    return {**query, "fieldValidation": "Strict"} if strict else query


def _pooled(connection: Connection) -> Transport:
    from controller.kube.pooled import PooledTransport  # loads aiohttp, which commands do without

    return PooledTransport(connection)


async def read(chunks: AsyncIterator[bytes], what: str) -> bytes:
    """Return all of an answer. Raises TooLarge, with ``what``: it has more than `ANSWER_MOST` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in chunks:
        parts.append(part)
        size += len(part)
        if size > ANSWER_MOST:
            raise TooLarge(0, "TooLarge", f"{what}: an answer of more than {ANSWER_MOST} bytes")
    return b"".join(parts)


async def decoded(data: bytes) -> Object:
    """Return what an answer, or an event of a watch, says. Raises ValueError."""
    if len(data) > wire.SMALL:  # if it is too deep as well, a thread reads it
        try:
            return wire.decode_plain(data)
        except ValueError:
            return await asyncio.to_thread(wire.decode, data)
    return wire.decode(data)


def _event(event: Object) -> Object:
    """Return an event of a watch. An error in the stream is raised as the exception that its code
    stands for."""
    if event["type"] == "ERROR":
        status = event["object"]
        raise from_status(int(status.get("code") or 500), status, {})
    return event
