"""A small API server of RLHFJobs and GPUPools for kopf, and a cache that takes in what kopf hands on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Set
from typing import Any

from aiohttp import web

from controller import names
from controller.kube.cache import Cache, version_of
from controller.kube.connection import Connection, NoCredentials
from controller.kube.informer import Taker, informers
from controller.kube.kopf_session import KopfSession
from controller.kube.resources import GPUPOOLS, RLHFJOBS, Resource
from controller.operator import handlers
from controller.operator.process.kopf_thread import KopfThread

Object = dict[str, Any]
KINDS = (RLHFJOBS, GPUPOOLS)
GROUP = f"/apis/{names.API_VERSION}"


def rlhfjob(name: str, version: int, namespace: str = "ns", **spec: Any) -> Object:
    return _object(RLHFJOBS, name, version, spec) | {
        "metadata": _metadata(name, version) | {"namespace": namespace}
    }


def gpupool(name: str, version: int, **spec: Any) -> Object:
    return _object(GPUPOOLS, name, version, spec)


def _object(resource: Resource, name: str, version: int, spec: Object) -> Object:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return head | {"metadata": _metadata(name, version), "spec": spec}


def _metadata(name: str, version: int) -> Object:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}


class Server:
    """LIST in pages, watch from a version; ``refuse`` and ``edit`` make faults."""

    def __init__(self) -> None:
        self.objects: dict[Resource, dict[str, Object]] = {kind: {} for kind in KINDS}
        self.version = 100
        self.installed = True
        self.methods: list[str] = []  # of each request
        self.tokens: list[str] = []
        self.refused: list[tuple[str, str]] = []  # (verb, path)
        self.lists: list[tuple[str, int]] = []  # (path, limit) of each first page
        self.watches: list[tuple[str, int]] = []  # (path, version)
        self.refuse: Callable[[str, str], int] = lambda verb, path: 200  # a status instead
        self.edit: Callable[[bytes], bytes] = lambda body: body  # of a page
        self.open: list[tuple[Resource, asyncio.Queue[bytes | None]]] = []  # watches
        self._log: list[tuple[Resource, str, Object]] = []

    async def __aenter__(self) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._runner.cleanup()

    def put(self, resource: Resource, obj: Object) -> None:
        """Create or change an object; its resourceVersion is the server's next."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        known = self.objects[resource]
        key = "{}/{}".format(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self._tell(resource, "MODIFIED" if key in known else "ADDED", obj)
        known[key] = obj

    def remove(self, resource: Resource, key: str, silently: bool = False) -> None:
        self.version += 1
        obj = self.objects[resource].pop(key)
        deleted = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        if not silently:
            self._tell(resource, "DELETED", deleted)

    def _tell(self, resource: Resource, kind: str, obj: Object) -> None:
        self._log.append((resource, kind, json.loads(json.dumps(obj))))
        for _, stream in self.open:
            stream.put_nowait(b"")

    def say(self, line: bytes, about: Resource = RLHFJOBS) -> None:
        """Write into the watches of a kind."""
        for resource, stream in self.open:
            if resource == about:
                stream.put_nowait(line + b"\n")

    def cut(self) -> None:
        """End all watches."""
        for _, stream in self.open:
            stream.put_nowait(None)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.methods.append(request.method)
        self.tokens.append(request.headers.get("Authorization", ""))
        if path == "/apis":
            version = {"groupVersion": names.API_VERSION, "version": names.VERSION}
            group = {"name": names.GROUP, "versions": [version], "preferredVersion": version}
            return web.json_response({"groups": [group] if self.installed else []})
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/api/v1":
            core = {"name": "namespaces", "singularName": "", "kind": "Namespace", "namespaced": False}
            found = [core | {"verbs": ["list", "watch"]}]
            return web.json_response({"resources": found})
        if path == GROUP:
            if not self.installed:
                return web.json_response({}, status=404)
            found = [
                {
                    "name": k.plural,
                    "singularName": k.kind.lower(),
                    "kind": k.kind,
                    "namespaced": k.namespaced,
                    "verbs": ["list", "watch", "patch"],
                }
                for k in KINDS
            ]
            return web.json_response({"resources": found})
        verb = "watch" if "watch" in request.query else "list"
        status = self.refuse(verb, path)
        if status != 200:
            self.refused.append((verb, path))
            return web.json_response({"kind": "Status", "code": status}, status=status)
        resource = RLHFJOBS if path.endswith(RLHFJOBS.plural) else GPUPOOLS
        namespace = path.split("/")[5] if "/namespaces/" in path else ""
        if verb == "watch":
            return await self._watch(request, resource, namespace)
        return self._list(request, resource, namespace)

    def _list(self, request: web.Request, resource: Resource, namespace: str) -> web.Response:
        limit, begin = int(request.query["limit"]), int(request.query.get("continue") or 0)
        if not begin:
            self.lists.append((request.path, limit))
        there = [
            o for k, o in self.objects[resource].items() if not namespace or k.partition("/")[0] == namespace
        ]
        rest = str(begin + limit) if begin + limit < len(there) else ""
        metadata = {"resourceVersion": str(self.version), "continue": rest}
        body = json.dumps({"metadata": metadata, "items": there[begin : begin + limit]}).encode()
        return web.Response(body=self.edit(body), content_type="application/json")

    async def _watch(self, request: web.Request, resource: Resource, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        self.watches.append((request.path, since))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.open.append((resource, stream))  # first: who has the answer's head counts on it
        stream.put_nowait(b"")
        told = 0
        try:
            await response.prepare(request)
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while (line := await stream.get()) is not None:
                    if line:
                        await response.write(line)
                    for kind, type_, obj in self._log[told:]:
                        mine = namespace in ("", obj["metadata"].get("namespace"))
                        if kind == resource and mine and version_of(obj) > since:
                            await response.write(json.dumps({"type": type_, "object": obj}).encode() + b"\n")
                    told = len(self._log)
        except TimeoutError:
            pass
        finally:
            self.open.remove((resource, stream))
        return response


class World:
    """A cache that kopf feeds, and what it was told."""

    def __init__(self, server: Server, namespaces: tuple[str, ...] = (), relist: float = 300.0) -> None:
        self.cache = Cache(KINDS)
        if namespaces:
            self.cache.stores[RLHFJOBS].spread(namespaces)
        self.events: list[tuple[str, bool]] = []  # (name, gone)
        self.listed: list[tuple[Resource, str, int]] = []  # (kind, namespace, news)
        self.token, self.without_token = "first", 0
        connection = Connection(server.url, "a test", self._authorization)
        loop = asyncio.get_running_loop()
        taker = Taker(loop, self.cache.knows, self._event, self._listed)
        found = tuple(informers(KINDS, namespaces, taker, relist))
        self.calls: list[tuple[str, str, str]] = []
        self.session = KopfSession(connection, found, lambda *call: self.calls.append(call), relist)
        self.thread = KopfThread(handlers.registry, self.session, namespaces, loop)

    def _authorization(self) -> str:
        if not self.token:
            self.without_token += 1
            raise NoCredentials("the token file is empty")
        return f"Bearer {self.token}"

    def _event(self, resource: Resource, obj: Any, deleted: bool) -> None:
        self.events.append((obj["metadata"]["name"], deleted))
        if deleted:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    def _listed(self, resource: Resource, keys: Set[str], version: str, namespace: str, news: int) -> None:
        self.listed.append((resource, namespace, news))
        found = (self.cache.find(resource, key) for key in keys)
        self.cache.replace(resource, [o for o in found if o is not None], version, namespace)

    async def until(self, check: Callable[[], Any], what: str = "it to come true") -> None:
        await until(check, what, made=self)

    def names(self) -> list[str]:
        """Of the RLHFJobs."""
        return sorted(obj["metadata"]["name"] for obj in self.cache.values(RLHFJOBS))


async def until(
    check: Callable[[], Any], what: str = "it to come true", seconds: float = 60.0, made: World | None = None
) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not check():
                assert made is None or not made.thread.ended.is_set(), "kopf has ended"
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s for {what}") from None


@contextlib.asynccontextmanager
async def world(server: Server, **given: Any) -> AsyncIterator[World]:
    """Kopf at work on the server, until the block ends."""
    made = World(server, **given)
    made.thread.start()
    try:
        yield made
    finally:
        given_up = made.thread.ended.is_set()
        await made.thread.stop(0.0 if given_up else 30.0)
        assert made.thread.ended.is_set()
