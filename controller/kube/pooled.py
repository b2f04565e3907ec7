"""Requests by aiohttp, for processes that run for days: it keeps connections and knows proxies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import aiohttp
from aiohttp.connector import Connection as Wire

from controller.kube.connection import Connection
from controller.kube.transport import BrokenConnection, Limits

_BUFFER = 2**21  # bytes of an answer that are read ahead: an event of a watch may be long


class PooledTransport:
    """Connections of an aiohttp session, opened with the first request."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: Limits
    ) -> PooledAnswer:
        """Send a request and return its answer's head. Raises as `Transport.send`."""
        if self._session is None:
            self._session = self._open()
        given = dict(headers)
        if authorization := self._connection.authorization():
            given["Authorization"] = authorization
        options: dict[str, Any] = {}
        if self._connection.server_name:
            options["server_hostname"] = self._connection.server_name
        if self._connection.proxy:
            options["proxy"] = self._connection.proxy
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect, sock_read=limits.quiet)
        url = self._connection.server + target
        try:
            answer = await self._session.request(
                method, url, headers=given, data=body, timeout=timeout, **options
            )
        except TimeoutError:
            raise
        except aiohttp.ClientError as error:
            raise BrokenConnection(f"{type(error).__name__}: {error}") from error
        assert isinstance(answer, _Response)
        return PooledAnswer(answer)

    def _open(self) -> aiohttp.ClientSession:
        # No bound: each watch keeps its connection, and with a hundred of them nothing else would get one.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._connection.tls or True)
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=self._connection.environment,
            response_class=_Response,
            read_bufsize=_BUFFER,
        )


class _Response(aiohttp.ClientResponse):
    """An HTTP response that knows over which connection it came, also when that is already given back."""

    came_over = ""  # both ends' addresses

    async def start(self, connection: Wire) -> aiohttp.ClientResponse:
        transport = connection.transport
        if transport is not None:
            ends = (transport.get_extra_info(end) for end in ("sockname", "peername"))
            self.came_over = " ".join(map(str, ends))
        return await super().start(connection)


class PooledAnswer:
    """An answer of aiohttp's as `Answer` says it."""

    def __init__(self, response: _Response) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.came_over = response.came_over

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._response.release()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        try:
            async for part in self._response.content.iter_any():
                yield part
        except TimeoutError:
            raise
        except aiohttp.ClientError as error:
            raise BrokenConnection(f"{type(error).__name__}: {error}") from error
