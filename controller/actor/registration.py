"""Register with the step API, again and again: it may be another process by now, with another key."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from controller import bounded, log
from controller.actor.app import ActorIdentity, Sidecar
from controller.actor.engines import EngineError
from controller.bounded import shown

TRIES = 16  # of each address: it may stand for several processes, of which one leads
KEYS_KEPT = 3  # of APIs: tickets of the leader before are good until they end
MOST_ANSWER = 64 << 10  # bytes
_TIMEOUT = aiohttp.ClientTimeout(10.0)

_logger = log.get("evalstop.actor")


class Registration:
    """Tells the step API where this actor is and what it reports, and learns whose actor it is.

    Args:
        sidecar: this one.
        urls: of the step API: one of each process that may lead.
        ca: PEM file of its authority.
        token: file of the projected token, read anew each time as the kubelet renews it.
        address: host and port at which clients reach the sidecar.
        fingerprint: of its certificate.
    """

    def __init__(
        self, sidecar: Sidecar, urls: Sequence[str], ca: str, token: str, address: str, fingerprint: str
    ) -> None:
        self._sidecar, self._urls, self._token = sidecar, list(urls), Path(token)
        self._address, self._fingerprint = address, fingerprint
        self._ca, self._stamp = ca, (0, 0)
        self._context = self._authority()
        self.problem = "not tried yet"

    def _authority(self) -> ssl.SSLContext:
        """Return the context of the authority's file as it is now: the kubelet renews it.

        Raises:
            OSError: it cannot be read, or is none (ssl.SSLError is one).
        """
        stamp = (0, 0)
        if self._ca:
            stat = Path(self._ca).stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._stamp:
                return self._context
        context = ssl.create_default_context(cafile=self._ca or None)
        self._stamp = stamp
        return context

    async def run(self, seconds: float) -> None:
        """Register until cancelled: at once, and again after so many seconds; sooner while it fails."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                problem = await self._once(session)
                if problem and problem != self.problem:
                    _logger.warning("not registered", why=problem)
                self.problem = problem
                await asyncio.sleep(min(1.0, seconds) if problem else seconds)

    async def _once(self, session: aiohttp.ClientSession) -> str:
        """Return what is wrong; "": registered."""
        try:
            report = dict(await self._sidecar.engine.report())
        except EngineError as error:
            return str(error)
        body = {
            "address": self._address,
            "fingerprint": self._fingerprint,
            "slots": report.get("slots"),
            "version": self._sidecar.version,
        }
        if self._ca:
            try:
                self._context = self._authority()
            except OSError as error:
                _logger.warning("the authority cannot be read", file=self._ca, error=str(error))
        problems: dict[str, str] = {}  # by address, of those that are not asked again
        follower = ""
        for url in list(self._urls) * TRIES:
            if url in problems:
                continue
            try:
                status, answer = await self._ask(session, url, body)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                problems[url] = f"{url}: {type(error).__name__}: {shown(str(error), 200)}"
                continue
            if status == 200 and self._take(answer):
                self._urls.remove(url)
                self._urls.insert(0, url)
                return ""
            problem = f"{url}: {status} {shown(answer.get('message') or answer.get('reason'), 200)}"
            if status == 421:
                follower = problem
            else:
                problems[url] = problem
        return "; ".join(problems.values()) or follower

    async def _ask(
        self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        where = f"{url.rstrip('/')}/v1/actors"
        async with session.post(where, json=body, headers=headers, ssl=self._context) as answer:
            text = await answer.content.read(MOST_ANSWER)
            found = bounded.load(text, "the step API's answer") if text else {}
        return answer.status, found if isinstance(found, dict) else {}

    def _take(self, answer: dict[str, Any]) -> bool:
        identity, key = self._sidecar.identity, answer.get("key")
        job, attempt, actor = answer.get("job"), answer.get("attempt"), answer.get("actor")
        if not (
            isinstance(key, str) and isinstance(job, str) and type(attempt) is int and type(actor) is int
        ):
            return False
        keys = (key, *(k for k in identity.keys if k != key))[:KEYS_KEPT]
        self._sidecar.identity = ActorIdentity(job, attempt, actor, keys)
        return True
