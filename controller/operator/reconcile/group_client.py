"""Questions to a group's member 0, whose certificate is pinned (docs/understand/groups-wire.md).

Nothing here decides; what is not answered is asked again in a later pass.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from controller import bounded
from controller.bounded import shown
from controller.steps.groups import Server
from controller.web.answers import body_of
from controller.web.group_report import BYTES, GroupReport, read_report

if TYPE_CHECKING:
    import aiohttp

SECONDS = 5.0  # for an answer
KEPT_OPEN = 50.0  # s that a connection waits for the next question; member 0 closes it after 60
MOST = BYTES + 1  # bytes that are read: one more than a report may have


class NoAnswer(Exception):
    """Member 0 does not answer, or refuses; the message says why."""


def report_of(status: int, text: bytes) -> GroupReport:
    """Return the report that an answer holds. The group's image is its users': the text is read in bounds.

    Raises:
        NoAnswer: it holds none, or its status is another than 200.
    """
    try:
        if status == 200:
            return read_report(text)
        found = bounded.load(text or b"{}", "the group's answer")
    except ValueError as error:
        raise NoAnswer(f"{status} {error}") from None
    given = found if isinstance(found, dict) else {}
    raise NoAnswer(f"{status} {shown(str(given.get('message') or given.get('reason')), 200)}")


@lru_cache(maxsize=1024)
def _pinned(fingerprint: str) -> aiohttp.Fingerprint:
    """Return what a connection's certificate is compared with. aiohttp keeps connections by this object, and
    two of the same bytes are not equal to it."""
    import aiohttp

    return aiohttp.Fingerprint(bytes.fromhex(fingerprint))


class GroupClient:
    """Asks member 0 of groups; connections stay open from one question to the next."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, server: Server, ticket: str, method: str, path: str, body: Any = None) -> GroupReport:
        """Return the report that is the answer.

        Raises:
            NoAnswer: there is none, or another status than 200.
        """
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(SECONDS),
                connector=aiohttp.TCPConnector(keepalive_timeout=KEPT_OPEN),
                trust_env=False,
            )
        pinned = _pinned(server.fingerprint)
        headers = {"Authorization": f"Bearer {ticket}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"https://{server.address}{path}"
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, ssl=pinned, allow_redirects=False
            ) as answer:
                text = await body_of(answer, MOST)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # aiohttp puts the pinned certificate into it, as an object at an address.
            words = re.sub(r" ssl:<[^>]*>", "", str(error))
            raise NoAnswer(f"{type(error).__name__}: {shown(words, 200)}") from None
        return report_of(answer.status, text)

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
