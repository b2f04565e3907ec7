"""A member's side of its connection to member 0: opened again and again, with the certificate that its ticket
names."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from controller import log
from controller.bounded import shown, whole
from controller.group.links import SILENCE, Outbox, frame_of
from controller.group.registration import Admitted
from controller.group.supervisor import MemberMessage, Supervisor
from controller.group.wire import ENVELOPE, Frames, Refused, envelope, framed, packed, unpacked
from controller.policy.sharing import ToMember

_RETRY = 0.2  # s

_logger = log.get("evalstop.group")


class Exchange:
    """Carries what a member and member 0 tell each other.

    Args:
        most: bytes of a frame.
        address: at which this member's states can be read; fingerprint: of its certificate.
    """

    def __init__(self, most: int, address: str, fingerprint: str) -> None:
        self._most, self._address, self._fingerprint = most, address, fingerprint
        self._outbox, self._life, self._start = Outbox(), secrets.token_hex(8), 0
        self.supervisor: Supervisor | None = None
        self.connected = False

    def send(self, sent: MemberMessage) -> None:
        """Have something told to member 0."""
        self._outbox.put({**packed(sent.message), "more": dict(sent.more)}, sent.body)

    async def run(self, admitted: Callable[[], Admitted | None]) -> None:
        """Keep the connection until cancelled."""
        problem = ""
        # No limit on the whole, none on silence in the transport: signs of life are frames.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                here = admitted()
                if here is None:
                    await asyncio.sleep(_RETRY)
                    continue
                try:
                    await self._connection(session, here)
                    found = "the connection ended"
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError, Refused) as error:
                    found = f"{type(error).__name__}: {shown(str(error), 200)}"
                self.connected = False
                if found != problem:
                    _logger.warning("not connected to member 0", address=here.ticket.address, why=found)
                problem = found
                await asyncio.sleep(_RETRY)

    async def _connection(self, session: aiohttp.ClientSession, here: Admitted) -> None:
        url = f"https://{here.ticket.address}/v1/members/exchange"
        headers = {"Authorization": f"Bearer {here.text}", "Content-Type": ENVELOPE}
        pinned = aiohttp.Fingerprint(bytes.fromhex(here.ticket.fingerprint))
        greeted = asyncio.Event()
        async with session.post(url, data=self._outgoing(greeted), headers=headers, ssl=pinned) as answer:
            if answer.status != 200:
                raise OSError(f"{answer.status} {shown(await answer.content.read(2000), 300)}")
            frames = Frames(self._most)
            while True:
                async with asyncio.timeout(SILENCE):
                    part = await answer.content.readany()
                if not part:
                    return
                for frame in frames.feed(part):
                    self._take(frame, greeted, here)

    async def _outgoing(self, greeted: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"".join(framed(envelope({"n": 0, "have": self._outbox.had, "message": self._hello()})))
        await greeted.wait()
        async for parts in self._outbox.frames():
            yield b"".join(parts)

    def _hello(self) -> dict[str, Any]:
        assert self.supervisor is not None
        memory = self.supervisor.memory
        return {
            "is": "Hello", "life": self._life, "newest": list(self.supervisor.state.newest),
            "regions": {name: memory.regions(name, version) or {} for name, version in memory.versions()},
            "address": self._address, "fingerprint": self._fingerprint,
        }  # fmt: skip

    def _take(self, frame: bytes, greeted: asyncio.Event, here: Admitted) -> None:
        number, have, message, body = frame_of(frame)
        if message is not None and message.get("is") == "Hello":
            start = whole(message.get("start")) or 0
            if start != self._start:
                self._start = start
                self._outbox.new_peer()  # it has another coordinator to talk to, which knows nothing
            else:
                self._outbox.confirmed(have)
                self._outbox.again()
            self.connected = True
            greeted.set()
            return
        self._outbox.confirmed(have)
        if message is None or not self._outbox.takes(number):
            return
        received: ToMember = unpacked(message)  # type: ignore[assignment]
        more = message.get("more")
        assert self.supervisor is not None
        # The peer is the one whose certificate the ticket names: member 0 of this admission.
        self.supervisor.receive(
            here.ticket.pods[0],
            received,
            None if body is None else bytes(body),
            more if isinstance(more, dict) else {},
        )
