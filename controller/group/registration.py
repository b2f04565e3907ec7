"""Ask the operator for this pod's ticket. It lies on the disk volume then, so a restart needs no answer to go
on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from controller import bounded
from controller.bounded import whole
from controller.frozen import dataclass
from controller.web import group_tickets
from controller.web.group_tickets import MEMBER, SECONDS, GroupTicket
from controller.web.registration import MOST_ANSWER, Registrar
from controller.web.tickets import TicketError

MOST_EARLIER = 64  # keys of before


@dataclass(frozen=True, slots=True)
class Admitted:
    """The operator's answer: a member's ticket, as text and read, its index, and keys of operators: of those
    that lead, and of those that led within the life of a ticket."""

    text: str
    ticket: GroupTicket
    index: int
    keys: tuple[str, ...]


class Registration(Registrar):
    """Tells the operator where this member is, and learns what it is admitted to.

    Args:
        pod: uid of this pod.
        urls, ca, token: as `Registrar` takes them.
        address: host and port at which this member is reached.
        fingerprint: of its certificate.
        kept: file in which what the operator said lies.
        admitted: called with it whenever it is news.
        clock: seconds since the epoch.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(urls, "/v1/groups/members", ca, token, "evalstop.group")
        self._pod, self._kept, self._admitted, self._clock = pod, kept, admitted, clock
        self._keys: list[str] = []  # as answered last
        self._earlier: dict[str, float] = {}  # keys of before, and until when (s) their tickets count
        self._body = {"address": address, "fingerprint": fingerprint}
        self.now: Admitted | None = None

    def recall(self) -> None:
        """Take what an earlier start of this pod was told, if it was."""
        try:
            found = bounded.load(self._kept.read_bytes(), str(self._kept), MOST_ANSWER)
            found = found if isinstance(found, dict) else {}
            earlier = found.get("earlier")
            if isinstance(earlier, dict):
                self._earlier = {k: float(t) for k, t in earlier.items() if isinstance(t, int | float)}
            self._take(found, keep=False)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                self._logger.warning("the kept ticket is of no use", why=str(error))

    async def body(self) -> Mapping[str, Any]:
        return self._body

    def take(self, answer: Mapping[str, Any]) -> None:
        self._take(answer, keep=True)

    def pause(self, seconds: float) -> float:
        return min(0.5, seconds) if self.problem and self.now is None else seconds

    def _take(self, answer: Mapping[str, Any], *, keep: bool) -> None:
        """Take an answer.

        Raises:
            TicketError: it is none (a ValueError).
        """
        text, keys, index = answer.get("ticket"), answer.get("keys"), whole(answer.get("index"))
        if not isinstance(text, str) or not isinstance(keys, list) or index is None:
            raise TicketError("the operator's answer: expected ticket, keys and index")
        keys = [key for key in keys if isinstance(key, str)]
        ticket = group_tickets.read(text, keys)
        if ticket.kind != MEMBER or ticket.pod != self._pod or ticket.pods[index : index + 1] != (self._pod,):
            raise TicketError("the ticket is not this pod's")
        if self.now is not None and ticket.admission != self.now.ticket.admission:
            raise TicketError(f"admission {ticket.admission}: this pod is of {self.now.ticket.admission}")
        # Whoever led before has given out tickets that are good for a day: the turns of jobs that have one go
        # on, whether the operator that leads now knows their job yet or not.
        now = self._clock()
        earlier = {**self._earlier, **dict.fromkeys(self._keys, now + SECONDS)}
        left = [(key, until) for key, until in earlier.items() if until > now and key not in keys]
        self._earlier = dict(left[-MOST_EARLIER:])
        self._keys = keys
        found = Admitted(text, ticket, index, (*keys, *self._earlier))
        if keep and (self.now is None or found.keys != self.now.keys):
            beside = self._kept.with_suffix(".part")
            beside.touch(0o600)
            told = {"ticket": text, "keys": keys, "earlier": self._earlier, "index": index}
            beside.write_bytes(to_json(told))
            beside.replace(self._kept)
        new = self.now is None or found != self.now
        self.now = found
        if new:
            self._admitted(found)
