"""Registers a pod with the operator again and again: another process may lead by now, with another key."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from controller import bounded, log
from controller.bounded import shown
from controller.web.answers import body_of

TRIES = 16  # of each address: it may stand for several processes, of which one leads
MOST_ANSWER = 256 << 10  # bytes
_TIMEOUT = aiohttp.ClientTimeout(10.0)
_SOON = 0.2  # s until it is asked again for what is to be registered: nobody else is asked for that


class NotReady(Exception):
    """There is nothing to register yet; the message says why."""


class Registrar(ABC):
    """Tells the operator where this pod is, and takes what it answers.

    Args:
        urls: of the operator's step port: one of each process that may lead.
        path: of what is asked.
        ca: PEM file of its authority; "": the system's.
        token: file of the projected token, read anew each time as the kubelet renews it.
        logger: name of the log.
    """

    def __init__(self, urls: Sequence[str], path: str, ca: str, token: str, logger: str) -> None:
        self._urls, self._path, self._token = list(urls), path, Path(token)
        self._ca, self._stamp = ca, (0, 0)
        self._context = self._authority()
        self._logger = log.get(logger)
        self.problem = "not tried yet"
        self._waits = False  # for what is to be registered

    @abstractmethod
    async def body(self) -> Mapping[str, Any]:
        """Return what is registered.

        Raises:
            NotReady: nothing can be registered now.
        """

    @abstractmethod
    def take(self, answer: Mapping[str, Any]) -> None:
        """Take the operator's answer.

        Raises:
            ValueError: it is none.
        """

    def session(self) -> aiohttp.ClientSession:
        """Return a session to ask with."""
        return aiohttp.ClientSession(timeout=_TIMEOUT)

    def pause(self, seconds: float) -> float:
        """Return s until the next try: ``seconds``, and less while the last one failed."""
        if self._waits:
            return min(_SOON, seconds)
        return min(1.0, seconds) if self.problem else seconds

    async def run(self, seconds: float) -> None:
        """Register until cancelled: at once, and again after so many seconds; sooner while it fails."""
        async with self.session() as session:
            while True:
                problem = await self._once(session)
                if problem and problem != self.problem:
                    self._logger.warning("not registered", why=problem)
                self.problem = problem
                await asyncio.sleep(self.pause(seconds))

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

    async def _once(self, session: aiohttp.ClientSession) -> str:
        """Return what is wrong; "": registered."""
        try:
            body = await self.body()
        except NotReady as error:
            self._waits = True
            return str(error)
        self._waits = False
        if self._ca:
            try:
                self._context = self._authority()
            except OSError as error:
                self._logger.warning("the authority cannot be read", file=self._ca, error=str(error))
        problems: dict[str, str] = {}  # by address, of those that are not asked again
        follower = ""
        for url in list(self._urls) * TRIES:
            if url in problems:
                continue
            try:
                status, answer = await self._ask(session, url, body)
                if status == 200:
                    self.take(answer)
                    self._urls.remove(url)
                    self._urls.insert(0, url)
                    return ""
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                problems[url] = f"{url}: {type(error).__name__}: {shown(str(error), 200)}"
                continue
            problem = f"{url}: {status} {shown(answer.get('message') or answer.get('reason'), 200)}"
            if status == 421:
                follower = problem
            else:
                problems[url] = problem
        return "; ".join(problems.values()) or follower

    async def _ask(
        self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        where = f"{url.rstrip('/')}{self._path}"
        async with session.post(where, json=dict(body), headers=headers, ssl=self._context) as answer:
            text = await body_of(answer, MOST_ANSWER)
            found = bounded.load(text, "the operator's answer", MOST_ANSWER) if text else {}
        return answer.status, found if isinstance(found, dict) else {}
