"""Worker groups as people see them: who has the turn, who waits, what each resident is charged.

Made when asked, from the WorkerGroup, its residents' RLHFJobs and the group's newest report, which the
operator keeps in memory: turns are in no status. Without a report turns are not known, and all else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median_high
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.api import codec
from controller.api.workergroup import group_record
from controller.frozen import dataclass
from controller.policy.group_types import slowdown_limit, times_allowed
from controller.policy.job import LAST_WORDS, ResidencyRecord
from controller.policy.pool import ANSWERS, COUNTS, ENDS, GroupRecord, GroupResident
from controller.policy.sharing import gpu_seconds
from controller.untrusted_text import one_line
from controller.web.group_report import GroupReport, ReportedResident

Object = Mapping[str, Any]
SECOND = 1e6  # microseconds
STATES = ("Opening", "Ready", "NoAnswer", "NotReady", "Closing")
OPENING, READY, NO_ANSWER, NOT_READY, CLOSING = STATES
JOINING, JOINED, LEAVING = RESIDENT_STATES = ("Joining", "Joined", "Leaving")
NEVER_ASKED = "no report of it is here"


@dataclass(frozen=True, slots=True)
class LatestReport:
    """A group's newest report.

    Attributes:
        report: None: there was none yet.
        at: s since the epoch, when it was got.
        problem: why the newest question brought none; "": it did.
        unanswered: s since the epoch, since when questions to a group that was ready bring none; None: the
            newest did.
    """

    report: GroupReport | None = None
    at: float = 0.0
    problem: str = NEVER_ASKED
    unanswered: float | None = None


NO_REPORT = LatestReport()


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Turn(_Answer):
    """The present turn of a group."""

    job: str = Field(description="Who has it, namespace/name.")
    phase: str = Field(description="Loading, Held, Calling, Writing or Recording.")
    function: str = Field(description="That runs now; empty: none does.")
    sequence: int = Field(description="Number of the turn.")
    seconds: float = Field(description="Since it began, with its switch, as of the report.")


class Wait(_Answer):
    """A resident that waits for a turn."""

    job: str
    seconds: float = Field(description="For how long, as of the report.")


class PastTurn(_Answer):
    """A turn that is over. Times are s since the epoch."""

    job: str
    began: float = Field(description="With its switch.")
    granted: float = Field(description="Once the state was loaded; never: when it ended.")
    ended: float
    counted: bool = Field(description="It was released; False: it was lost.")


class Resident(_Answer):
    """One resident. What is null is not known."""

    job: str = Field(description="namespace/name.")
    state: str = Field(description="Joining, Joined or Leaving.")
    since: float = Field(description="When it was given, s since the epoch.")
    state_bytes: int = Field(description="Of its state on each member.")
    turns: int | None = Field(description="Released.")
    lost: int | None = Field(description="Turns that did not count.")
    lost_in_row: int | None = Field(
        description="Turns that the group lost since the newest that counted; 0: none, or it does not tell."
    )
    why_lost: str = Field(description="How it lost the newest of these; empty: it lost none.")
    step: int | None = Field(description="Of its newest turn, if it tells.")
    duty: float | None = Field(description="Share of its own time, waits left out, that it holds the group.")
    held_seconds: float | None = Field(description="Of a turn, the mean of the newest.")
    away_seconds: float | None = Field(description="Between two turns, the mean of the newest.")
    switch_seconds: float | None = Field(description="To load its state and take it off again, medians.")
    longest_wait_seconds: float | None
    charged_gpu_seconds: float | None = Field(alias="chargedGPUSeconds", description="By this group.")
    slowdown: float | None = Field(description="Its steps take so many times as long as alone.")
    max_slowdown: float | None = Field(description="That it allows.")
    profiled: bool | None = Field(description="Enough steps of its kind were measured alone.")


class Member(_Answer):
    """One member."""

    index: int
    node: str = Field(description="Planned; empty: none.")
    connected: bool | None
    host_bytes: int | None = Field(description="Of states that it keeps.")


class Group(_Answer):
    """A worker group."""

    name: str
    pool: str
    family: str
    namespace: str = Field(description="Of its residents; empty: it has none.")
    state: str = Field(description="Opening, Ready, NoAnswer, NotReady or Closing.")
    reason: str = Field(description="Why it is not Ready, in CamelCase.")
    message: str = Field(description="The same as a sentence.")
    gpus: int = Field(description="Of all members.")
    start: int = Field(description="Number of its newest start.")
    opened: float = Field(description="When that start was admitted, s since the epoch.")
    overdue: str = Field(description="The overdue job for which it takes nobody now; empty: none.")
    most_residents: int | None
    device_bytes: int | None = Field(description="Of a member.")
    host_bytes: int | None = Field(description="For sleeping states, of a member.")
    residents: tuple[Resident, ...]
    members: tuple[Member, ...]
    reported: float | None = Field(description="When its newest report was got, s since the epoch.")
    problem: str = Field(description="Why nothing newer is known of its turns; empty: nothing is wrong.")
    unanswered: float | None = Field(
        description="Since when it does not answer the operator, s since the epoch; null: it does."
    )
    turn: Turn | None
    waiting: tuple[Wait, ...]
    loaded: str = Field(description="Whose state is on the devices; empty: nobody's.")
    recent: tuple[PastTurn, ...] = Field(description="The newest turns that are over, in their order.")
    calls: int | None
    switches: int | None
    lost: int | None = Field(description="Turns that did not count.")
    vacant_gpu_seconds: float | None = Field(alias="vacantGPUSeconds", description="Without residents.")


class Groups(_Answer):
    """All worker groups, by name."""

    items: tuple[Group, ...]


class GroupSource(Protocol):
    """Source of worker groups; the operator is one."""

    def names(self) -> list[str]:
        """Return names of all WorkerGroups there are, in order."""
        ...

    def group(self, name: str) -> Group | str:
        """Return one that is there; a text: why it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Around:
    """Things known beside the WorkerGroup.

    Attributes:
        job: the RLHFJob of a key; None: it is not there, or may not be read.
        pool: its GPUPool; None: likewise.
        latest: the newest report.
        overdue: the job for which its pool has closed it; "": none.
    """

    job: Callable[[str], Object | None]
    pool: Object | None = None
    latest: LatestReport = NO_REPORT
    overdue: str = ""


def group(obj: Object, around: Around, record: GroupRecord | None = None) -> Group:
    """Return a group as it is shown. ``record``: what its status holds, if that was read already.

    Raises:
        ValueError: its status cannot be read.
    """
    spec, record = obj.get("spec") or {}, record or group_record(obj)
    latest, name = around.latest, str(obj["metadata"]["name"])
    report, whose = latest.report, {one.name: one.job for one in record.residents}
    family = _family(around.pool, str(spec.get("family")))
    state, reason, message = _state(record)
    turn = report.turn if report is not None else None
    sharing = ((around.pool or {}).get("spec") or {}).get("sharing") or {}

    def job_of(residency: str) -> str:
        return whose.get(residency, residency)

    def ago(at: int) -> float:
        return max(0, report.now - at) / SECOND if report is not None else 0.0

    return Group(
        name=name,
        pool=str(spec.get("pool", "")),
        family=str(spec.get("family", "")),
        namespace=next((one.job.partition("/")[0] for one in record.residents), ""),
        state=state,
        reason=reason,
        message=message,
        gpus=int(spec.get("replicas") or 0) * int(spec.get("gpusPerReplica") or 0),
        start=record.number,
        opened=record.opened,
        overdue=around.overdue,
        most_residents=sharing.get("maxResidents"),
        device_bytes=family.get("deviceBytes"),
        host_bytes=family.get("hostBytes"),
        residents=tuple(_resident(one, name, around, report) for one in record.residents),
        members=tuple(_members(record, int(spec.get("replicas") or 0), report)),
        reported=latest.at if report is not None else None,
        problem=latest.problem,
        unanswered=latest.unanswered if report is not None else latest.unanswered or record.unanswered,
        turn=None if turn is None else Turn(
            job=job_of(turn.resident), phase=turn.phase, function=turn.function, sequence=turn.sequence,
            seconds=ago(turn.began),
        ),
        waiting=tuple(Wait(job=job_of(one.resident), seconds=ago(one.since)) for one in report.waiting)
        if report is not None else (),
        loaded=job_of(report.loaded) if report is not None and report.loaded else "",
        recent=tuple(
            PastTurn(
                job=job_of(who), began=latest.at - ago(began), granted=latest.at - ago(granted),
                ended=latest.at - ago(ended), counted=counted,
            )
            for who, began, granted, ended, counted in report.recent
        ) if report is not None else (),
        calls=report.calls if report is not None else None,
        switches=report.switches if report is not None else None,
        lost=report.expired if report is not None else None,
        vacantGPUSeconds=float(gpu_seconds(report.vacant)) if report is not None else None,
    )  # fmt: skip


def groups_of_jobs(jobs: Iterable[Object]) -> tuple[Group, ...]:
    """Return groups as far as their residents' RLHFJobs tell: for those who may not read WorkerGroups.

    A group's residents are of one namespace, so whoever may list its jobs sees all of them.
    """
    found: dict[str, list[tuple[Object, ResidencyRecord]]] = {}
    for obj in jobs:
        known = residency(obj)
        if known is not None and known.group:
            found.setdefault(known.group, []).append((obj, known))
    return tuple(_by_jobs(name, members) for name, members in sorted(found.items()))


def residency(job: Object | None) -> ResidencyRecord | None:
    """Return an RLHFJob's residency; None: it has none, or its status cannot be read."""
    stored = ((job or {}).get("status") or {}).get("residency")
    if not isinstance(stored, Mapping):
        return None
    try:
        return codec.decode(ResidencyRecord, stored, "status.residency")
    except ValueError:
        return None


def _state(record: GroupRecord) -> tuple[str, str, str]:
    if record.closing:
        return CLOSING, record.closing, record.closing_message
    found = record.condition("Ready")
    if found is not None and found.status:
        answers = record.condition(ANSWERS)
        if answers is None or answers.status:
            lost = record.condition(COUNTS)
            return (READY, "", "") if lost is None else (READY, lost.reason, lost.message)
        told = record.condition(ENDS) or answers  # what somebody waits for is more than that it is silent
        return NO_ANSWER, told.reason, told.message
    why = (found.reason, found.message) if found is not None else ("", "")
    return (OPENING if record.bound_at is None else NOT_READY), *why


def _resident(one: GroupResident, group: str, around: Around, report: GroupReport | None) -> Resident:
    job = around.job(one.job)
    known, asked = residency(job), ((job or {}).get("spec") or {}).get("sharing") or {}
    if known is not None and known.group != group:
        known = None
    seen = report.resident(one.name) if report is not None else None
    return Resident(
        job=one.job,
        state=LEAVING if one.leaving else JOINED if one.joined else JOINING,
        since=one.since,
        state_bytes=one.state_bytes,
        max_slowdown=times_allowed(slowdown_limit(asked)) if asked else None,
        **_figures(known, seen, one.charged),
    )


def _figures(
    known: ResidencyRecord | None, seen: ReportedResident | None, before: float = 0.0
) -> dict[str, Any]:
    """Return what was measured: of turns by the report, of slow-downs by the job's record. ``before``:
    GPU-seconds charged in earlier starts of the group."""
    out: dict[str, Any] = {"why_lost": known.lost_why if known is not None else ""} | dict.fromkeys(
        ("turns", "lost", "lost_in_row", "step", "duty", "held_seconds", "away_seconds", "switch_seconds",
         "longest_wait_seconds", "charged_gpu_seconds", "slowdown", "profiled")
    )  # fmt: skip
    if known is not None:
        out |= {
            "charged_gpu_seconds": known.charged,
            "slowdown": known.slowdown,
            "profiled": known.kind_measured,
        }
    if seen is None:
        return out
    out |= {
        "turns": seen.released,
        "lost": seen.lost,
        "lost_in_row": seen.lost_in_row,
        "why_lost": one_line(seen.why_lost, LAST_WORDS),
        "longest_wait_seconds": seen.longest_wait / SECOND,
        "charged_gpu_seconds": before + float(gpu_seconds(seen.charge)),
    }
    if seen.loads:
        out["switch_seconds"] = (median_high(seen.loads) + median_high(seen.offloads or (0,))) / SECOND
    if seen.turns:
        away, held = (sum(turn[i] for turn in seen.turns) for i in (0, 1))
        count, step = len(seen.turns), seen.turns[-1][2]
        out |= {
            "step": step if step >= 0 else None,
            "duty": held / (away + held) if away + held else None,
            "held_seconds": held / count / SECOND,
            "away_seconds": away / count / SECOND,
        }
    return out


def _members(record: GroupRecord, replicas: int, report: GroupReport | None) -> Iterable[Member]:
    seen = {one.index: one for one in report.members} if report is not None else {}
    for index in range(replicas):
        one = seen.get(index)
        yield Member(
            index=index,
            node=record.nodes[index] if index < len(record.nodes) else "",
            connected=None if one is None else one.connected,
            host_bytes=None if one is None else one.host_bytes,
        )


def _family(pool: Object | None, name: str) -> Mapping[str, Any]:
    sharing = ((pool or {}).get("spec") or {}).get("sharing") or {}
    return next((one for one in sharing.get("families") or [] if one.get("name") == name), {})


def _by_jobs(name: str, members: list[tuple[Object, ResidencyRecord]]) -> Group:
    spec = members[0][0].get("spec") or {}
    residents = tuple(
        Resident(
            job=f"{obj['metadata']['namespace']}/{obj['metadata']['name']}",
            state=LEAVING if known.leaving else JOINED if known.joined else JOINING,
            since=known.since,
            state_bytes=int(((obj.get("spec") or {}).get("sharing") or {}).get("stateBytes") or 0),
            max_slowdown=times_allowed(slowdown_limit((obj.get("spec") or {}).get("sharing") or {})),
            **_figures(known, None),
        )
        for obj, known in members
    )
    return Group(
        name=name, pool=str(spec.get("pool", "")), family=str((spec.get("sharing") or {}).get("family", "")),
        namespace=str(members[0][0]["metadata"]["namespace"]),
        state=READY if any(known.joined for _, known in members) else OPENING,
        reason="", message="", gpus=0, start=0, opened=min(known.since for _, known in members),
        overdue="", most_residents=None, device_bytes=None, host_bytes=None, residents=residents, members=(),
        reported=None, problem=NEVER_ASKED, unanswered=None, turn=None, waiting=(), loaded="", recent=(),
        calls=None, switches=None, lost=None, vacantGPUSeconds=None,
    )  # fmt: skip
