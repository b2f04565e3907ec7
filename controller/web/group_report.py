"""A worker group's report as the operator reads it (docs/understand/groups-wire.md, "The operator's routes").

The group's image is its users': the text is read within bounds, and every number in it is a whole one that a
clock or a counter can have.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from controller import bounded
from controller.policy.sharing import MOST_RESIDENTS

BYTES = 1 << 20  # of a report: eight residents' 160 turns are 60 kB, 1,000 members 150 kB
MEMBERS, ENDED, TURNS, SWITCHES, RECENT = 1024, 256, 160, 20, 60

Whole = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
# 1,000 GPUs charge 18 digits in two weeks.
Charge = Annotated[int, Field(strict=True, ge=0, lt=1 << 128)]
Step = Annotated[int, Field(strict=True, ge=-1, lt=1 << 62)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=128)]
Word = Annotated[str, Field(strict=True, max_length=253)]
Reason = Annotated[str, Field(strict=True, max_length=1000)]
Yes = Annotated[bool, Field(strict=True)]
Names = Annotated[tuple[Name, ...], Field(max_length=ENDED)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class ReportedMember(_Part):
    """One member; ``host_bytes``: of states that it keeps."""

    uid: Name
    index: Whole
    connected: Yes
    host_bytes: Whole


class ReportedTurn(_Part):
    """The present turn. ``since``: of its phase; ``began``: with its switch; ``function``: that runs, or
    ""."""

    resident: Name
    sequence: Whole
    phase: Word
    since: Whole
    began: Whole
    function: Word


class ReportedWait(_Part):
    """A resident that waits for a turn, since when."""

    resident: Name
    since: Whole


class ReportedResident(_Part):
    """One resident.

    Attributes:
        job: uid of its RLHFJob.
        turns: the newest, (away, held, step; -1: not told, waited).
        loads, offloads: of the newest switches.
        charge: in parts of `charging.UNITS`.
        released, lost: turns by how they ended.
        lost_in_row: turns lost since the newest that was released, those left out that their holder gave up
            or let lapse; 0 of an image that does not tell it.
        failing: when the first of these was.
        why_lost: how the newest of these was lost.
    """

    name: Name
    job: Word
    kind: Word
    version: Whole
    turns: Annotated[tuple[tuple[Whole, Whole, Step, Whole], ...], Field(max_length=TURNS)]
    loads: Annotated[tuple[Whole, ...], Field(max_length=SWITCHES)]
    offloads: Annotated[tuple[Whole, ...], Field(max_length=SWITCHES)]
    charge: Charge
    released: Whole
    lost: Whole
    longest_wait: Whole
    lost_in_row: Whole = 0
    failing: Whole = 0
    why_lost: Reason = ""


class GroupReport(_Part):
    """One report of a group's member 0. Times are whole microseconds of the group's own clock, ``now`` is its
    present time. ``recent``: the newest turns, (resident, began, granted, ended, whether it counted)."""

    group: Name
    admission: Whole
    start: Whole
    now: Whole
    opened: Whole
    ready: Yes
    members: Annotated[tuple[ReportedMember, ...], Field(max_length=MEMBERS)]
    turn: ReportedTurn | None
    waiting: Annotated[tuple[ReportedWait, ...], Field(max_length=MOST_RESIDENTS)]
    loaded: Name | None
    residents: Annotated[tuple[ReportedResident, ...], Field(max_length=MOST_RESIDENTS)]
    leaving: Names
    gone: Names
    lost: Names
    vacant: Charge
    calls: Whole
    switches: Whole
    expired: Whole
    recent: Annotated[tuple[tuple[Name, Whole, Whole, Whole, Yes], ...], Field(max_length=RECENT)]

    def resident(self, name: str) -> ReportedResident | None:
        return next((one for one in self.residents if one.name == name), None)


def read_report(body: bytes) -> GroupReport:
    """Return the report that a text holds.

    Raises:
        ValueError: it is too large or no report; the message names the field.
    """
    return checked(bounded.load(body, "the group's report", BYTES, python=True))


def checked(values: Any) -> GroupReport:
    """Return the report that JSON values are.

    Raises:
        ValueError: they are none; the message names the field.
    """
    try:
        return GroupReport.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "it"
        value = bounded.quoted(first.get("input"))
        raise ValueError(f"the group's report: {field}: {value} is not allowed: {first['msg']}") from None
