"""Carriers of requests to the API server and of its answers.

Two carry: `controller.kube.pooled` for processes that run for days, by aiohttp; `controller.kube.direct` for
commands, which end before aiohttp would be loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol


class BrokenConnection(ConnectionError):
    """The connection broke, or what came over it is no HTTP: whether the call took effect is unknown."""


class Limits(NamedTuple):
    """Limits of the time that a request may take.

    Attributes:
        connect: s until the connection is there.
        quiet: s without a byte of the answer; None: no bound.
    """

    connect: float
    quiet: float | None = None


class Answer(Protocol):
    """An answer whose head is read. Leave its ``async with``, and the connection is free again.

    Attributes:
        status: HTTP status.
        headers: by name, whatever their case.
        came_over: both ends' addresses, which tell one connection from another; "": unknown.
    """

    status: int
    headers: Mapping[str, str]
    came_over: str

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> None: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises OSError (`BrokenConnection`), TimeoutError."""
        ...


class Transport(Protocol):
    """Connections to one API server."""

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: Limits
    ) -> Answer:
        """Send a request and return its answer's head.

        Args:
            method: such as "GET".
            target: path and query, after the server's address.
            headers: all but Host, Content-Length and who asks.
            body: None: none.
            limits: how long it may take.

        Raises:
            OSError: no connection, or it broke.
            TimeoutError: not within the limits.
            NoCredentials: the token is just being replaced.
        """
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
