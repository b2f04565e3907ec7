"""The engine `Plain` (examples/engine): JSON over HTTP on a Unix socket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from controller import bounded
from controller.actor.engines import EngineError, News, Request
from controller.bounded import shown
from controller.web.answers import body_of

MOST_ANSWER = 16 << 20  # bytes


class PlainEngine:
    """Speaks to the engine behind a socket.

    Args:
        socket: the Unix socket's path.
        timeout: s for one call; loading weights may take ten times as long.
    """

    def __init__(self, socket: str, timeout: float = 30.0) -> None:
        self._socket, self._timeout = socket, timeout
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, version: int, requests: Sequence[Request]) -> None:
        """See `Engine`."""
        given = [
            {"id": r.id, "prompt": r.prompt, "tokens": r.tokens, "most": r.most, "draw": r.draw,
             "temperature": r.temperature}
            for r in requests
        ]  # fmt: skip
        await self._post("/generate", {"version": version, "requests": given})

    async def take(self, wait: float) -> News:
        """See `Engine`."""
        found = await self._post("/take", {"wait": wait})
        return News(dict(found.get("tokens") or {}), dict(found.get("ended") or {}), found.get("version"))

    async def abort(self, ids: Sequence[str] | None) -> None:
        """See `Engine`."""
        await self._post("/abort", {"ids": None if ids is None else list(ids)})

    async def load(self, path: Path, version: int, digest: str) -> None:
        """See `Engine`."""
        headers = {"X-Weights-Version": str(version), "X-Weights-Digest": digest}
        with path.open("rb") as file:
            await self._call("POST", "/weights", data=file, headers=headers, seconds=10 * self._timeout)

    async def report(self) -> Mapping[str, Any]:
        """See `Engine`."""
        return await self._call("GET", "/report")

    async def close(self) -> None:
        """See `Engine`."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._call("POST", path, data=json.dumps(document, separators=(",", ":")).encode())

    async def _call(
        self, method: str, path: str, *, seconds: float | None = None, **arguments: Any
    ) -> Mapping[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket, limit=16))
        limit = aiohttp.ClientTimeout(seconds or self._timeout)
        try:
            async with self._session.request(
                method, f"http://engine{path}", timeout=limit, **arguments
            ) as answer:
                body = await body_of(answer, MOST_ANSWER + 1)
                document = bounded.load(body, f"the engine's answer to {path}", MOST_ANSWER, values=4_000_000)
                if answer.status >= 400:
                    raise EngineError(
                        f"the engine: {shown(document.get('message'), 300)}", min(answer.status, 502)
                    )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError) as error:
            raise EngineError(
                f"the engine does not answer {path}: {type(error).__name__}: {shown(str(error), 200)}"
            ) from None
        if not isinstance(document, dict):
            raise EngineError(f"the engine's answer to {path} is no object")
        return document
