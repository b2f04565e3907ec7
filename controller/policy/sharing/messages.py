"""Messages between jobs, the coordinator and the members of a worker group, and the token that guards a turn.

A resident is known by its residency, not by its job: one that comes back has another name, so that nothing
that was said about the first can be taken for the second.
"""

from __future__ import annotations

from typing import NamedTuple


class Token(NamedTuple):
    """The right to one turn. It must equal the present one; being newer or older is not asked.

    Args:
        admission: of the group: its Job's.
        start: how often member 0 has started, kept on its disk.
        random: drawn at each start, so that a disk that was lost cannot bring a token back.
        sequence: of turns since the start.
    """

    admission: int
    start: int
    random: str
    sequence: int


def same(present: Token | None, given: Token) -> bool:
    """Return whether a token is the present one."""
    return present == given


# The coordinator to a member.


class Load(NamedTuple):
    """Have this state on the device, and nobody else's; version 0 is a fresh one. Answer: Loaded, Missing.

    ``counting``: the versions that count, of all residents: others are of no use any more.
    """

    token: Token
    resident: str
    version: int
    counting: tuple[tuple[str, int], ...] = ()


class Run(NamedTuple):
    """Call a function, once for each number. Answer: Ran."""

    token: Token
    number: int
    function: str


class Write(NamedTuple):
    """Keep the state on the device as this version, beside the one before. Answer: Written."""

    token: Token
    version: int


class Kill(NamedTuple):
    """End the worker of a turn that is over."""

    token: Token


class Forget(NamedTuple):
    """End a resident's worker and drop all its states. Answer: Gone."""

    admission: int
    start: int
    resident: str


# A member to the coordinator.


class Loaded(NamedTuple):
    token: Token


class Missing(NamedTuple):
    """The version is not there: the resident's state is lost."""

    token: Token


class Ran(NamedTuple):
    token: Token
    number: int
    answer: str


class Written(NamedTuple):
    token: Token
    version: int


class Died(NamedTuple):
    """The turn's worker is gone, by itself or with its supervisor."""

    token: Token


class Gone(NamedTuple):
    """Nothing of a resident is left on this member."""

    resident: str


ToMember = Load | Run | Write | Kill | Forget
FromMember = Loaded | Missing | Ran | Written | Died | Gone

# The coordinator to a job.


class Granted(NamedTuple):
    """The turn is yours, with the state of this version."""

    token: Token
    version: int


class Answer(NamedTuple):
    token: Token
    number: int
    answer: str


class Released(NamedTuple):
    """The turn's calls count: they are in this version."""

    token: Token
    version: int


class TurnOver(NamedTuple):
    """HTTP 409. The turn of this token is over; the newest version that counts."""

    token: Token
    version: int


class Refused(NamedTuple):
    """HTTP ``status``, and why."""

    status: int
    message: str


ToJob = Granted | Answer | Released | TurnOver | Refused
