"""Lists and watches of one kind, between kopf and the cache: read with limits, and a page at a time.

kopf is told of each object its name and resourceVersion, nothing else. The object waits here until kopf calls
the handler of its kind, which hands it on by its key (`Informer.hand_on`). So kopf holds no object that is
large or nested too deep, and no more objects wait than a page of a LIST or a piece of a watch has: before the
next piece all of the last one has been handed on, and was taken in.

Everything that breaks a watch is answered as kopf understands it best: as 410 Gone in the stream, whereupon
it lists anew. By itself it ends the process on any other error of a watch, and asks again at once where a
stream broke.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from typing import Any

import aiohttp

from controller import log
from controller.frozen import dataclass
from controller.kube.backoffs import AGAIN, JitteredBackoffs
from controller.kube.client import ANSWER_MOST, decoded
from controller.kube.packed import Key, key_of
from controller.kube.resources import Resource

_logger = log.get("evalstop.kube.informer")

Object = dict[str, Any]

# s for which kopf may not call the handler of an object that it was told of: it never will.
PATIENCE = 60.0
_GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"list anew"}}\n'


@dataclass(frozen=True, slots=True)
class Taker:
    """Receiver of the objects that an `Informer` reads, in an event loop of its own.

    Attributes:
        loop: where ``event`` and ``listed`` are called.
        knows: whether a state of an object is no news; asked in kopf's thread.
        event: takes in (kind, object, gone).
        listed: takes in the end of a LIST: (kind, keys of all there is, resourceVersion, namespace or "",
            how many objects of it were news).
    """

    loop: asyncio.AbstractEventLoop
    knows: Callable[[Resource, Mapping[str, Any]], bool]
    event: Callable[[Resource, Mapping[str, Any], bool], None]
    listed: Callable[[Resource, Set[Key], str, str, int], None]


class Informer:
    """Feeds one kind, in one namespace or in all, to a taker; lives in kopf's event loop.

    ``last_answer`` is the monotonic time of the API server's last answer. ``problem`` is why the last
    LIST or watch failed; "": it did not.

    Args:
        resource: the kind.
        namespace: only this one; "": all.
        taker: who takes the objects in.
        relist: s after which all is listed anew even though nothing seems wrong.
    """

    def __init__(self, resource: Resource, namespace: str, taker: Taker, relist: float) -> None:
        self.resource, self.namespace = resource, namespace
        self._taker, self._relist = taker, relist
        # What kopf has yet to call the handler of: by key the object's states, each with whether it is gone.
        self._waiting: dict[Key, list[tuple[Object, bool]]] = {}
        self._handed_on = asyncio.Event()  # nothing waits
        self._handed_on.set()
        self._untaken = False  # something was handed on that the taker may not have come to yet
        self._seen: set[Key] = set()  # in the LIST under way
        self._news = 0  # objects of it that were not known
        self._version = ""  # of a LIST that is read but not yet told of
        self._due = 0.0  # monotonic time of the next LIST
        self._pauses = iter(JitteredBackoffs())
        self.last_answer = time.monotonic()
        self.problem = ""

    def __str__(self) -> str:
        return f"{self.resource} in {self.namespace}" if self.namespace else str(self.resource)

    def hand_on(self, key: Key) -> None:
        """Give the taker what waits under this key, if anything does: one call may serve several events."""
        for state in self._waiting.pop(key, ()):
            self._untaken = True
            self._taker.loop.call_soon_threadsafe(self._taker.event, self.resource, *state)
        if not self._waiting:
            self._handed_on.set()

    async def page(self, page: Object, first: bool) -> Object:
        """Take in a page of a LIST, the first one or another; return what kopf is told of it."""
        if first:
            self._seen, self._news, self._version = set(), 0, ""
        await self._taken_in()
        self._answered()
        kind = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        items = [{**kind, **item} for item in page.get("items") or ()]
        self._seen.update(map(key_of, items))
        news = [item for item in items if not self._taker.knows(self.resource, item)]
        self._news += len(news)
        for item in news:
            self._wait(item, deleted=False)
        metadata = page["metadata"]
        if not metadata.get("continue"):
            self._version = metadata["resourceVersion"]
            self._due = time.monotonic() + self._relist * random.uniform(0.9, 1.1)
        return {"metadata": metadata, "items": [self._identity(item) for item in news]}

    async def lines(self, content: aiohttp.StreamReader, close: Callable[[], None]) -> AsyncIterator[bytes]:
        """Take in a watch; yield what kopf is told of it, as lines.

        Args:
            content: of the API server's answer.
            close: ends that answer.
        """
        if self._version:
            await self._end_list()
        rest = b""
        try:
            async for piece in content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield await self._take_event(line)
                if len(rest) > ANSWER_MOST:
                    raise ValueError(f"an event of more than {ANSWER_MOST} bytes")
                self._answered()
                await self._taken_in()
                if time.monotonic() >= self._due:
                    break
            await asyncio.sleep(AGAIN)
        except ValueError as error:  # unreadable, or the API server's word that it cannot go on
            self._due = 0.0
            await self.failed(str(error))
        except (aiohttp.ClientError, OSError) as error:
            await self.failed(f"{type(error).__name__}: {error}")
        if time.monotonic() >= self._due:
            close()
            yield _GONE

    async def refused(self, close: Callable[[], None]) -> AsyncIterator[bytes]:
        """Yield what kopf is told of a watch that is refused as 410, Gone: in the answer itself it ends
        the process."""
        close()
        await self.failed("the version to watch from is too old")
        yield _GONE

    async def failed(self, problem: str) -> None:
        """Note that a LIST or a watch failed, and wait: longer each time until the API server is heard."""
        self.problem = problem
        _logger.info("the watch broke", resource=str(self), error=problem)
        await asyncio.sleep(next(self._pauses))

    def _answered(self) -> None:
        self.last_answer = time.monotonic()
        if self.problem:
            self.problem, self._pauses = "", iter(JitteredBackoffs())

    async def _take_event(self, line: bytes) -> bytes:
        """Take in an event; return the line that kopf is told. Raises ValueError: the watch is broken."""
        event = await decoded(line)
        kind, obj = event.get("type"), event.get("object")
        if not isinstance(obj, dict):
            raise ValueError("an event of no object")
        if kind == "ERROR":
            raise ValueError(f"{obj.get('code')} {obj.get('reason')}: {obj.get('message')}")
        deleted = kind == "DELETED"
        if kind == "BOOKMARK" or (not deleted and self._taker.knows(self.resource, obj)):
            # What is no news, the operator's own writes most of all, only moves the version on.
            version = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}}
            return _line({"type": "BOOKMARK", "object": version})
        self._wait(obj, deleted)
        return _line({"type": kind, "object": self._identity(obj)})

    def _wait(self, obj: Object, deleted: bool) -> None:
        self._waiting.setdefault(key_of(obj), []).append((obj, deleted))
        self._handed_on.clear()

    def _identity(self, obj: Mapping[str, Any]) -> Object:
        """Return what kopf is told of an object.

        Without a uid: by it kopf would keep a memory of each object for as long as that is there.
        """
        known = {name: obj["metadata"].get(name) for name in ("namespace", "name", "resourceVersion")}
        metadata = {name: value for name, value in known.items() if value is not None}
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}

    async def _end_list(self) -> None:
        await self._taken_in()
        keys, version, news = self._seen, self._version, self._news
        self._seen, self._version = set(), ""

        async def end_list() -> None:
            self._taker.listed(self.resource, keys, version, self.namespace, news)

        await self._in_takers_loop(end_list)

    async def _taken_in(self) -> None:
        """Wait until nothing waits here, and the taker has come to the last that it was handed."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._handed_on.wait()
        except TimeoutError:
            first = next(iter(self._waiting), "")
            raise RuntimeError(
                f"kopf has called no handler of {self.resource} {first} for {PATIENCE:g} s"
            ) from None
        if self._untaken:
            self._untaken = False
            await self._in_takers_loop(_nothing)

    async def _in_takers_loop(self, call: Callable[[], Any]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._taker.loop))


def informers(
    resources: tuple[Resource, ...], namespaces: tuple[str, ...], taker: Taker, relist: float
) -> Iterator[Informer]:
    """Yield one for each kind: in these namespaces if it is in any, else, or without names, everywhere."""
    for resource in resources:
        for namespace in (namespaces if resource.namespaced else ()) or ("",):
            yield Informer(resource, namespace, taker, relist)


async def _nothing() -> None: ...


def _line(event: Object) -> bytes:
    return json.dumps(event).encode() + b"\n"
