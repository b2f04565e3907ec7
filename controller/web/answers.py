"""Reading what another program answers, in bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def body_of(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer, or its first ``most`` bytes. One read of aiohttp brings what has come so
    far, which of a long body is a part.

    Raises:
        aiohttp.ClientError: it broke off.
    """
    found = b""
    while len(found) < most and (more := await answer.content.read(most - len(found))):
        found += more
    return found
