"""vLLM as an engine. UNPROVEN: written from vLLM's source, never run, as there is no GPU here.

Source read: vLLM's repository, ``vllm/entrypoints/serve/dev/rlhf/api_router.py`` at commit 6fbea117
(``/pause``, ``/resume``) and ``vllm/v1/worker/gpu_worker.py`` at commit 35d5cda1 (``update_config``,
``reload_weights``, called through ``/collective_rpc``); completions with ``return_token_ids``, as in the
0.11 to 0.14 series. It has to be started with ``--uds`` (a Unix socket) and ``VLLM_SERVER_DEV_MODE=1``.
Weights are a folder on a shared volume that ``from_pretrained`` could read; the sidecar is given one file in
it. vLLM's random numbers depend on a request's seed, so a response that moves goes on differently from one
that did not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from controller import bounded
from controller.actor.engines import EngineError, News, Request
from controller.bounded import shown
from controller.web.answers import body_of

MOST_LINE = 1 << 20  # bytes of an event
_REASONS = {"stop": "stop", "length": "length"}


class VllmEngine:
    """Speaks to a vLLM server behind a socket: a streamed completion for each response.

    Args:
        socket: the Unix socket's path.
        model: the name that the server gives its model; "" asks it.
    """

    def __init__(self, socket: str, model: str = "") -> None:
        self._socket, self._model = socket, model
        self._session: aiohttp.ClientSession | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._news = News()
        self._some = asyncio.Event()
        self._version: int | None = None
        self._tokens = 0

    async def generate(self, version: int, requests: Sequence[Request]) -> None:
        """See `Engine`."""
        if version != self._version:
            raise EngineError(f"version: {version} is asked for, {self._version} is served", 409)
        if not self._model:
            listed = await self._call("GET", "/v1/models")
            self._model = str(listed["data"][0]["id"])
        for request in requests:
            self._running[request.id] = asyncio.create_task(self._one(request))

    async def _one(self, request: Request) -> None:
        seed = hashlib.sha256(repr((request.draw, len(request.tokens))).encode()).digest()
        body = {
            "model": self._model,
            "prompt": [*request.prompt, *request.tokens],
            "stream": True,
            "max_tokens": request.most - len(request.tokens),
            "temperature": request.temperature,
            "seed": int.from_bytes(seed[:4], "big"),
            "return_token_ids": True,
        }
        why = "abort"
        try:
            async with self._open().post("http://vllm/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise EngineError(f"vLLM: {answer.status} {shown(await answer.text(), 200)}")
                async for line in answer.content:
                    text = line.strip()
                    if not text.startswith(b"data:") or text == b"data: [DONE]":
                        continue
                    event = bounded.load(text[5:].strip(), "vLLM's event", MOST_LINE)
                    choice = event["choices"][0]
                    if tokens := choice.get("token_ids"):
                        self._news.tokens.setdefault(request.id, []).extend(tokens)
                        self._tokens += len(tokens)
                        self._some.set()
                    why = _REASONS.get(choice.get("finish_reason") or "", why)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, EngineError):
            why = "abort"  # the client asks for the rest elsewhere
        finally:
            self._running.pop(request.id, None)
            self._news.ended[request.id] = why
            self._some.set()

    async def take(self, wait: float) -> News:
        """See `Engine`."""
        try:
            await asyncio.wait_for(self._some.wait(), wait)
        except TimeoutError:
            await self._call("GET", "/health", empty=True)
        self._some.clear()
        news, self._news = self._news, News()
        news.version = self._version
        return news

    async def abort(self, ids: Sequence[str] | None) -> None:
        """See `Engine`. A connection that closes ends its request."""
        for name in list(self._running) if ids is None else ids:
            if (task := self._running.get(name)) is not None:
                task.cancel()

    async def load(self, path: Path, version: int, digest: str) -> None:
        """See `Engine`."""
        await self.abort(None)
        await self._call("POST", "/pause?mode=abort", empty=True)
        try:
            await self._rpc("update_config", {"overrides": {"model_config": {"model": str(path.parent)}}})
            await self._rpc("reload_weights", {})
        finally:
            await self._call("POST", "/resume", empty=True)
        self._version = version

    async def report(self) -> Mapping[str, Any]:
        """See `Engine`. vLLM has no counters of iterations by these names: a and c come from `doctor
        --engine`."""
        await self._call("GET", "/health", empty=True)
        return {
            "engine": "vLLM",
            "slots": None,
            "live": len(self._running),
            "waiting": 0,
            "version": self._version,
            "tokens": self._tokens,
        }

    async def close(self) -> None:
        """See `Engine`."""
        await self.abort(None)
        if self._session is not None:
            await self._session.close()

    async def _rpc(self, method: str, arguments: Mapping[str, Any]) -> None:
        body = json.dumps({"method": method, "kwargs": arguments, "timeout": 600}).encode()
        await self._call(
            "POST", "/collective_rpc", data=body, headers={"Content-Type": "application/json"}, empty=True
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.UnixConnector(self._socket, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None))
        return self._session

    async def _call(self, method: str, path: str, *, empty: bool = False, **arguments: Any) -> Any:
        try:
            limit = aiohttp.ClientTimeout(700.0)
            async with self._open().request(
                method, f"http://vllm{path}", timeout=limit, **arguments
            ) as answer:
                body = await body_of(answer, MOST_LINE)
                if answer.status >= 400:
                    raise EngineError(f"vLLM: {path}: {answer.status} {shown(body, 200)}")
                return None if empty else bounded.load(body, "vLLM's answer", MOST_LINE)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EngineError(
                f"vLLM does not answer {path}: {type(error).__name__}: {shown(str(error), 200)}"
            ) from None
