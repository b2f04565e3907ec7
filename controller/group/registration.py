"""Ask the operator for this pod's ticket. It lies on the disk volume then, so a restart needs no answer to go
on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from controller import bounded
from controller.bounded import whole
from controller.web import group_tickets
from controller.web.group_tickets import MEMBER, GroupTicket
from controller.web.registration import MOST_ANSWER, Registrar
from controller.web.tickets import TicketError


@dataclass(frozen=True, slots=True)
class Admitted:
    """The operator's answer: a member's ticket, as text and read, its index, and keys of operators."""

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
        super().__init__(urls, "/v1/groups/members", ca, token, "evalstop.group")
        self._pod, self._kept, self._admitted = pod, kept, admitted
        self._body = {"address": address, "fingerprint": fingerprint}
        self.now: Admitted | None = None

    def recall(self) -> None:
        """Take what an earlier start of this pod was told, if it was."""
        try:
            found = bounded.load(self._kept.read_bytes(), str(self._kept), MOST_ANSWER)
            self._take(found if isinstance(found, dict) else {}, keep=False)
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
