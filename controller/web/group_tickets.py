"""Tickets of worker groups: who may ask a group's member 0, and what a member may hold for its group.

Signed by the operator (`tickets.Signer`), checked by the group alone: group pods have no right to the API
server. The list of pod UIDs in a member's ticket is of one admission; a pod that was made again is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.bounded import whole
from controller.frozen import dataclass
from controller.web.tickets import TicketError, opened

MOST_CHARACTERS = 64 << 10  # a member's names all pods of its group: 1,000 UIDs are 52 kB
SECONDS = 86_400.0  # that a ticket is good for
JOB, MEMBER, OPERATOR = KINDS = ("job", "member", "operator")


@dataclass(frozen=True, slots=True)
class GroupTicket:
    """One pod's right, as the operator signs it.

    Args:
        kind: `JOB`, `MEMBER` or `OPERATOR`.
        group: name of the WorkerGroup.
        admission: of its Job.
        pod: uid of the pod that shows it; of an operator "".
        ends: s since the epoch.
        resident: of a job: its residency.
        pods: of a member: UIDs that were admitted, by index.
        address, fingerprint: of member 0; of member 0 itself "".
    """

    kind: str
    group: str
    admission: int
    pod: str
    ends: float
    resident: str = ""
    pods: tuple[str, ...] = ()
    address: str = ""
    fingerprint: str = ""


def read(text: str, keys: Iterable[str]) -> GroupTicket:
    """Return the ticket that a text carries, if one of these keys has signed it.

    Raises:
        TicketError: none has, or a field is missing or of another type.
    """
    found = opened(text, keys, MOST_CHARACTERS, "this group")
    texts = {name: found.get(name) for name in ("kind", "group", "pod", "resident", "address", "fingerprint")}
    admission, pods, ends = whole(found.get("admission")), found.get("pods"), found.get("ends")
    if (
        not all(isinstance(text, str) for text in texts.values())
        or texts["kind"] not in KINDS
        or admission is None
        or not isinstance(pods, list)
        or not all(isinstance(pod, str) for pod in pods)
        or not isinstance(ends, int | float)
    ):
        raise TicketError("no ticket of a worker group")
    return GroupTicket(admission=admission, pods=tuple(pods), ends=float(ends), **texts)  # type: ignore[arg-type]


def check(
    text: str, keys: Iterable[str], *, kinds: Iterable[str], group: str, admission: int, now: float
) -> GroupTicket:
    """Return the ticket that a text carries, if it opens this group now.

    Args:
        text: the ticket.
        keys: of operators whose tickets count.
        kinds: that are let in.
        group: this one.
        admission: this one.
        now: s since the epoch.

    Raises:
        TicketError: it does not; the message says why.
    """
    ticket = read(text, keys)
    if ticket.kind not in (wanted := tuple(kinds)):
        raise TicketError(f"a ticket of kind {ticket.kind}, expected {' or '.join(wanted)}")
    if ticket.group != group:
        raise TicketError(f"the ticket is for group {ticket.group}, this is {group}")
    if ticket.admission != admission:
        raise TicketError(f"the ticket is of admission {ticket.admission}, this is {admission}")
    if not now < ticket.ends:
        raise TicketError("the ticket has ended; the operator's step port gives a new one")
    return ticket
