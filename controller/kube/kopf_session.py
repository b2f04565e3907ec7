"""HTTP session through which kopf reaches the API server; it reads what `Informer` lets it.

kopf's own session reads an answer as `json.loads` does, so that one RLHFJob nested thousands of levels deep
would end the watch of all namespaces, and it keeps the credentials that it began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, cast
from urllib.parse import urlsplit

import aiohttp
import kopf
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.hdrs import AUTHORIZATION

from controller import log
from controller.kube.backoffs import JitteredBackoffs
from controller.kube.client import PAGE, AnswerHook, CallHook, decoded, read
from controller.kube.connection import Connection, NoCredentials
from controller.kube.errors import TooLarge
from controller.kube.informer import Informer, Object
from controller.kube.resources import Resource

_logger = log.get("evalstop.kube.kopf")

_GONE = 410
_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)


class _Answer(aiohttp.ClientResponse):
    """An answer as kopf reads it: a page of a LIST by `json`, a watch by the pieces of ``content``."""

    page: Callable[[], Awaitable[Object]] | None = None

    async def json(self, **options: Any) -> Any:
        if self.page is None or self.status != 200:
            return await super().json(**options)
        return await self.page()

    def stream(self, lines: AsyncIterator[bytes]) -> None:
        """Be the answer to a watch that goes on, with these lines."""
        self.status = 200
        self.content = cast(Any, _Lines(self.content, lines))


class _Lines:
    """The content of an answer, but for what kopf reads of it."""

    def __init__(self, content: aiohttp.StreamReader, lines: AsyncIterator[bytes]) -> None:
        self._content, self._lines = content, lines

    def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        return self._lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class KopfSession:
    """The memo of kopf's handlers: the way to the API server, and from the handlers to the engine.

    kopf copies a memo for each object; this one stays itself.

    Args:
        connection: to the API server.
        informers: of the kinds that kopf watches.
        hook: called after each LIST, and at the beginning of each watch.
        relist: s after which an informer lists anew.
        on_answer: told of each answer to them, in kopf's thread.
    """

    def __init__(
        self,
        connection: Connection,
        informers: tuple[Informer, ...],
        hook: CallHook,
        relist: float,
        on_answer: AnswerHook = lambda verb, resource, namespace, status, message: None,
    ) -> None:
        self._connection, self._hook, self._on_answer = connection, hook, on_answer
        self.informers = informers
        root = urlsplit(connection.server).path.rstrip("/")
        self._by_path = {root + i.resource.path(i.namespace or None): i for i in informers}
        self._by_namespace = {(i.resource, i.namespace): i for i in informers}
        self._session: aiohttp.ClientSession | None = None
        self._pauses = iter(JitteredBackoffs())
        # s after which the API server ends a watch; then, if it is time, all is listed anew.
        self.stream_seconds = max(1, int(min(300.0, relist)))
        self.closed: Callable[[], None] = lambda: None  # called by `close`
        # kopf's own, once it has started: a LIST whose pages are too large goes on with smaller ones.
        self.watching: Any = None

    def __copy__(self) -> Self:
        return self

    def hand_on(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Give the engine an object that kopf was told of."""
        found = self._by_namespace.get((resource, "")) or self._by_namespace[resource, namespace or ""]
        found.hand_on(f"{namespace}/{name}" if namespace else name)

    async def credentials(self) -> kopf.AiohttpSession:
        """Return what kopf is to call the API server with; after a pause, where that was refused before."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(next(self._pauses))
        self._session = self._open()
        return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=self._session)

    async def close(self) -> None:
        """End all connections; what kopf was told stays where it is."""
        self.closed()
        if self._session is not None:
            await self._session.close()

    async def served(self) -> None:
        """Wait until the API server serves the informers' kinds: kopf asks once which there are."""
        wanted = {informer.resource for informer in self.informers}
        async with self._open() as session:
            for pause in JitteredBackoffs(cap=15.0):
                missing = {kind for kind in wanted if kind.plural not in await self._plurals(session, kind)}
                if not missing:
                    return
                await asyncio.sleep(pause)

    async def _plurals(self, session: aiohttp.ClientSession, kind: Resource) -> set[str]:
        """Return the plurals of the kinds that are served beside this one; none: they cannot be had."""
        url = f"{self._connection.server}/apis/{kind.api_version}"
        try:
            async with session.get(url, timeout=_TIMEOUT) as answer:
                if answer.status == 404:
                    _logger.error("the kind is not installed: kubectl apply -f crds/", resource=str(kind))
                answer.raise_for_status()
                return {found["name"] for found in (await answer.json())["resources"]}
        except (aiohttp.ClientError, OSError, ValueError) as error:
            _logger.warning("cannot see which kinds are served", error=f"{type(error).__name__}: {error}")
            return set()

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._connection.tls or True),
            headers={"User-Agent": "evalstop-operator"},
            response_class=_Answer,
            middlewares=(self._through,),
            trust_env=False,
        )

    async def _through(
        self, request: aiohttp.ClientRequest, handler: ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request with the token as it is now; connect the answer with the informer it is for."""
        try:
            authorization = self._connection.authorization()
        except (OSError, NoCredentials) as error:  # it is being replaced: kopf asks again
            raise aiohttp.ClientConnectionError(f"no token: {error}") from error
        if authorization:
            request.headers[AUTHORIZATION] = authorization
        informer = self._by_path.get(request.url.path)
        if informer is None:
            return await handler(request)
        query, outcome = request.url.query, "broken"
        verb = "watch" if "watch" in query else "list"
        try:
            answer = cast(_Answer, await handler(request))
            outcome = str(answer.status)
        finally:
            self._hook(verb, informer.resource.plural, outcome)
        self._on_answer(verb, informer.resource, informer.namespace, answer.status, "")
        if answer.status == 200:
            self._pauses = iter(JitteredBackoffs())
        else:
            informer.problem = f"{verb}: {answer.status} {answer.reason}"
        if verb == "list" and answer.status == _GONE:
            answer.close()
            await informer.failed("LIST: the rest of it is not to be had any more")
            raise aiohttp.ClientPayloadError(informer.problem)
        if verb == "list":
            answer.page = lambda: self._page(answer, informer, "continue" not in query)
        elif answer.status == _GONE:
            answer.stream(informer.refused(answer.close))
        elif answer.status == 200:
            answer.stream(informer.lines(answer.content, answer.close))
        return answer

    async def _page(self, answer: aiohttp.ClientResponse, informer: Informer, first: bool) -> Object:
        """Return what kopf is told of a page of a LIST. Raises ClientPayloadError: kopf lists anew."""
        try:
            page = await decoded(await read(answer.content.iter_any(), f"LIST {informer}"))
        except TooLarge as error:
            self.watching.chunk_size = max(1, self.watching.chunk_size // 2)
            raise aiohttp.ClientPayloadError(str(error)) from error
        except ValueError as error:
            await informer.failed(f"LIST: {error}")
            raise aiohttp.ClientPayloadError(str(error)) from error
        read_page = await informer.page(page, first)
        if not read_page["metadata"].get("continue"):
            self.watching.chunk_size = min(PAGE, 2 * self.watching.chunk_size)
        return read_page
