"""Ask the operator for this pod's ticket, again and again: another process of it may lead by now, with
another key. What it gave lies on the disk volume, so a restart needs no answer to go on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from pydantic_core import to_json

from controller import bounded, log
from controller.bounded import shown, whole
from controller.web import group_tickets
from controller.web.group_tickets import MEMBER, GroupTicket
from controller.web.tickets import TicketError

TRIES = 16  # of each address: it may stand for several processes, of which one leads
MOST_ANSWER = 256 << 10  # bytes
_TIMEOUT = aiohttp.ClientTimeout(10.0)

_logger = log.get("evalstop.group")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The operator's answer: a member's ticket, as text and read, its index, and keys of operators."""

    text: str
    ticket: GroupTicket
    index: int
    keys: tuple[str, ...]


class Registration:
    """Tells the operator where this member is, and learns what it is admitted to.

    Args:
        pod: uid of this pod.
        urls: of the operator's step port: one of each process that may lead.
        ca: PEM file of its authority.
        token: file of the projected token, read anew each time as the kubelet renews it.
        address: host and port at which this member is reached.
        fingerprint: of its certificate.
        kept: file in which what the operator said lies.
        admitted: called with it whenever it is news.
    """

    def __init__(
        self,
        pod: str,
        urls: Sequence[str],
        ca: str,
        token: str,
        address: str,
        fingerprint: str,
        kept: Path,
        admitted: Callable[[Admitted], None],
    ) -> None:
        self._pod, self._urls, self._token, self._kept = pod, list(urls), Path(token), kept
        self._body = {"address": address, "fingerprint": fingerprint}
        self._context = ssl.create_default_context(cafile=ca or None)
        self._admitted = admitted
        self.now: Admitted | None = None
        self.problem = "not tried yet"

    def recall(self) -> None:
        """Take what an earlier start of this pod was told, if it was."""
        try:
            found = bounded.load(self._kept.read_bytes(), str(self._kept), MOST_ANSWER)
            self._take(found, keep=False)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                _logger.warning("the kept ticket is of no use", why=str(error))

    async def run(self, seconds: float) -> None:
        """Register until cancelled: at once, and again after so many seconds; sooner while it fails."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                problem = await self._once(session)
                if problem and problem != self.problem:
                    _logger.warning("not registered", why=problem)
                self.problem = problem
                await asyncio.sleep(min(0.5, seconds) if problem and self.now is None else seconds)

    async def _once(self, session: aiohttp.ClientSession) -> str:
        """Return what is wrong; "": registered."""
        problems: dict[str, str] = {}  # by address, of those that are not asked again
        follower = ""
        for url in list(self._urls) * TRIES:
            if url in problems:
                continue
            try:
                status, answer = await self._ask(session, url)
                if status == 200:
                    self._take(answer, keep=True)
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

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        where = f"{url.rstrip('/')}/v1/groups/members"
        async with session.post(where, json=self._body, headers=headers, ssl=self._context) as answer:
            text = await answer.content.read(MOST_ANSWER)
            found = bounded.load(text, "the operator's answer", MOST_ANSWER) if text else {}
        return answer.status, found if isinstance(found, dict) else {}

    def _take(self, answer: Any, *, keep: bool) -> None:
        """Take an answer.

        Raises:
            TicketError: it is none (a ValueError).
        """
        given = answer if isinstance(answer, dict) else {}
        text, keys, index = given.get("ticket"), given.get("keys"), whole(given.get("index"))
        if not isinstance(text, str) or not isinstance(keys, list) or index is None:
            raise TicketError("the operator's answer: expected ticket, keys and index")
        keys = [key for key in keys if isinstance(key, str)]
        ticket = group_tickets.read(text, keys)
        if ticket.kind != MEMBER or ticket.pod != self._pod or ticket.pods[index : index + 1] != (self._pod,):
            raise TicketError("the ticket is not this pod's")
        if self.now is not None and ticket.admission != self.now.ticket.admission:
            raise TicketError(f"admission {ticket.admission}: this pod is of {self.now.ticket.admission}")
        found = Admitted(text, ticket, index, tuple(keys))
        if keep and (self.now is None or found.keys != self.now.keys):
            beside = self._kept.with_suffix(".part")
            beside.touch(0o600)
            beside.write_bytes(to_json({"ticket": text, "keys": keys, "index": index}))
            beside.replace(self._kept)
        new = self.now is None or found != self.now
        self.now = found
        if new:
            self._admitted(found)
