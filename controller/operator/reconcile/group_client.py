"""Questions to a group's member 0, whose certificate is pinned (docs/understand/groups-wire.md).

Nothing here decides; what is not answered is asked again in a later pass.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from controller import bounded
from controller.bounded import shown
from controller.steps.groups import Server

if TYPE_CHECKING:
    import aiohttp

SECONDS = 5.0  # for an answer
MOST = 4 << 20  # bytes of a report


class NoAnswer(Exception):
    """Member 0 does not answer, or refuses; the message says why."""


class GroupClient:
    """Asks member 0 of groups; connections stay open from one question to the next."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, server: Server, ticket: str, method: str, path: str, body: Any = None
    ) -> dict[str, Any]:
        """Return the answer's object.

        Raises:
            NoAnswer: there is none, or another status than 200.
        """
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        pinned = aiohttp.Fingerprint(bytes.fromhex(server.fingerprint))
        headers = {"Authorization": f"Bearer {ticket}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"https://{server.address}{path}"
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, ssl=pinned, allow_redirects=False
            ) as answer:
                text = await answer.content.read(MOST)
                while len(text) < MOST and (more := await answer.content.read(MOST - len(text))):
                    text += more
                found = bounded.load(text or b"{}", "the group's answer", MOST)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {shown(str(error), 200)}") from None
        if answer.status != 200 or not isinstance(found, dict):
            given = found if isinstance(found, dict) else {}
            why = given.get("message") or given.get("reason")
            raise NoAnswer(f"{answer.status} {shown(str(why), 200)}")
        return found

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
