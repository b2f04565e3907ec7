"""Member 0's side of the connections to the other members: frames that come in order, each once, as long as
neither side starts anew. What was not had when a connection broke is sent again on the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from controller.bounded import whole
from controller.group.wire import Frames, Refused, body_of, envelope, framed, header_of

BEAT = 2.0  # s between signs of life
SILENCE = 10.0  # s without one after which a connection is given up
Parts = list[bytes | memoryview]


class Outbox:
    """Messages to one peer, numbered, kept until it has them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, dict[str, Any], bytes | memoryview | None]] = deque()
        self._number = 0
        self._sent = 0  # on the present connection
        self._connection = 0
        self._news = asyncio.Event()
        self.had = 0  # newest number that came from the peer

    def put(self, message: Mapping[str, Any], body: bytes | memoryview | None = None) -> None:
        """Have a message sent."""
        self._number += 1
        self._kept.append((self._number, dict(message), body))
        self._news.set()

    def again(self) -> None:
        """Begin a new connection: what the peer has not confirmed is sent again."""
        self._sent = 0
        self._connection += 1
        self._news.set()

    def new_peer(self) -> None:
        """Begin anew with a peer that has: whatever was not delivered is void."""
        self._kept.clear()
        self._number = self.had = 0
        self.again()

    def confirmed(self, number: int) -> None:
        """Forget what the peer has."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def takes(self, number: int) -> bool:
        """Return whether the peer's message of this number is new, and take it as had."""
        if number <= self.had:
            return False
        self.had = number
        return True

    async def frames(self) -> AsyncIterator[Parts]:
        """Return frames as they are to be sent: messages, and signs of life in between; until `again`."""
        mine = self._connection
        while mine == self._connection:
            self._news.clear()
            due = [one for one in self._kept if one[0] > self._sent]
            for number, message, body in due:
                if mine != self._connection:
                    return
                self._sent = number
                yield framed(envelope({"n": number, "have": self.had, "message": message}, body))
            if due:
                continue
            try:
                async with asyncio.timeout(BEAT):
                    await self._news.wait()
            except TimeoutError:
                yield framed(envelope({"n": 0, "have": self.had, "message": None}))


def frame_of(frame: bytes) -> tuple[int, int, dict[str, Any] | None, memoryview | None]:
    """Return number, confirmed number, message and body of a frame.

    Raises:
        Refused: it is none.
    """
    header = header_of(frame, "frame")
    number, have, message = whole(header.get("n")), whole(header.get("have")), header.get("message")
    if number is None or have is None or not (message is None or isinstance(message, dict)):
        raise Refused(400, "BadRequest", "frame: expected n, have and message")
    return number, have, message, body_of(frame) if header.get("arrays") else None


class Link:
    """One member, as member 0 sees it.

    Args:
        uid: of its pod.
        start: of this coordinator, which the member is told first.
        most: bytes of a frame.
        hello: called with (uid, message, whether its supervisor is another process than before).
        receive: called with (uid, message, body).
    """

    def __init__(
        self,
        uid: str,
        start: int,
        most: int,
        hello: Callable[[str, Mapping[str, Any], bool], None],
        receive: Callable[[str, Mapping[str, Any], memoryview | None], None],
    ) -> None:
        self.uid, self.connected = uid, False
        self.outbox = Outbox()
        self._start, self._most, self._hello, self._receive = start, most, hello, receive
        self._life = ""
        self._connection = 0

    def send(self, message: Mapping[str, Any], body: bytes | memoryview | None = None) -> None:
        """Have a message sent, on this connection or the next."""
        self.outbox.put(message, body)

    async def serve(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Take what the member sends, and return what is sent to it, until the connection breaks."""
        frames, ready = Frames(self._most), asyncio.Event()
        self._connection += 1
        mine = self._connection

        async def read() -> None:
            while True:
                async with asyncio.timeout(SILENCE):
                    part = await anext(stream, b"")
                if not part or mine != self._connection:
                    return
                for frame in frames.feed(part):
                    self._take(frame, ready)

        reader = asyncio.create_task(read())
        try:
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({reader, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not ready.is_set():
                reader.result()
                return
            yield _joined(
                framed(
                    envelope(
                        {"n": 0, "have": self.outbox.had, "message": {"is": "Hello", "start": self._start}}
                    )
                )
            )
            outgoing = self.outbox.frames()
            sending = asyncio.ensure_future(anext(outgoing, None))
            try:
                while True:
                    await asyncio.wait({reader, sending}, return_when=asyncio.FIRST_COMPLETED)
                    if reader.done() or (parts := sending.result()) is None:
                        return
                    yield _joined(parts)
                    sending = asyncio.ensure_future(anext(outgoing, None))
            finally:
                sending.cancel()
        finally:
            reader.cancel()
            if mine == self._connection:
                self.connected = False

    def _take(self, frame: bytes, ready: asyncio.Event) -> None:
        number, have, message, body = frame_of(frame)
        if message is not None and message.get("is") == "Hello":
            life = str(message.get("life"))
            new, self._life = life != self._life, life
            if new:
                self.outbox.new_peer()
            else:
                self.outbox.confirmed(have)
                self.outbox.again()
            self.connected = True
            ready.set()
            self._hello(self.uid, message, new)
            return
        self.outbox.confirmed(have)
        if message is not None and self.outbox.takes(number):
            self._receive(self.uid, message, body)


def _joined(parts: Parts) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)  # type: ignore[return-value]
