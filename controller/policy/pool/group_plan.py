"""The next step of a worker group, from what was seen of its Jobs, pods, residents and newest report.

A start has one Job. Once all of its pods have their nodes, they are its members; when one of them is gone,
or another pod is in its place, the group starts under the next number, after every pod of the start before
is gone. A group that closes loses its Jobs, and ends when the last pod is gone: its GPUs are its own till
then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.group_types import SILENT, NotReady
from controller.policy.job import NODE_NOT_READY, Condition, PodTrouble, pod_sentence, residency
from controller.policy.pool.group_record import (
    ANSWERS,
    COUNTS,
    ENDS,
    GroupRecord,
    GroupResident,
    closed,
    restarted,
    with_residents,
)
from controller.policy.stored import MESSAGE_MAX
from controller.policy.wording import silent_since

READY = "Ready"
SILENCE = "GroupDoesNotAnswer"
NO_START = frozenset({"FamilyNotFound", "JobRefused", "StepsNotServed"})  # why no Job of it can be made
# s until a group is asked again:
SOON = 0.5  # somebody comes or leaves, or it is not ready
MEASURE = 2.0  # a kind of jobs is measured
REPORT = 5.0  # it has residents, of kinds that are known
IDLE = 30.0  # nothing is expected of it
A_SECOND = 10.0  # reports that all groups of which nothing is expected are asked for together


class GroupHeard(NamedTuple):
    """A group's report, as far as it decides something.

    Attributes:
        ready: it can grant turns.
        present: residencies that it has.
        gone: residencies whose worker and state are gone.
        failing: by residency, how it lost the newest turn of one of which it loses each.
    """

    ready: bool = False
    present: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()
    failing: tuple[tuple[str, str], ...] = ()


UNHEARD = GroupHeard()


class Errand(NamedTuple):
    """A thing that a group is to be told: a resident comes, or leaves."""

    resident: GroupResident
    leaves: bool


@dataclass(frozen=True, slots=True)
class GroupSight:
    """A group as it was seen.

    Attributes:
        replicas: members that it is to have.
        starts: numbers of the starts whose Jobs are there.
        pods: pods of any start that are there.
        uids: of the present start's pods, by index; "" where there is none.
        bound: how many of these have a node.
        lost: a member of the present start is gone, or another pod is in its place.
        wanted: by name, residencies that jobs' records name and that do not leave.
        heard: its newest report of the present start; None: there was none.
        charged: GPU-seconds of each residency in the present start.
        deleting: the WorkerGroup is being deleted.
        problem: why no Job could be made, code and message; None: nothing stands against it.
        orphan: name of its GPUPool, which is gone: nobody plans for the group any more; "": it is there.
        unanswered: s, since when questions to it bring no answer; None: the newest did.
        why: the newest brought none; "": it did.
        troubles: of the present start's pods, how each last ended, or what it waits for.
        away: a pod of any start whose node is not heard of; None: none is.
    """

    replicas: int
    starts: tuple[int, ...] = ()
    pods: int = 0
    uids: tuple[str, ...] = ()
    bound: int = 0
    lost: bool = False
    wanted: Mapping[str, GroupResident] = field(default_factory=dict)
    heard: GroupHeard | None = None
    charged: Mapping[str, float] = field(default_factory=dict)
    deleting: bool = False
    problem: tuple[str, str] | None = None
    orphan: str = ""
    unanswered: float | None = None
    why: str = ""
    troubles: tuple[PodTrouble, ...] = ()
    away: PodTrouble | None = None


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Acts that are due: write ``record``, then delete the Jobs of ``delete``, then make that of the
    record's number (``make``) or delete the group itself (``end``). ``pause``: s until that Job may be made;
    0: it may be, or is."""

    record: GroupRecord
    delete: tuple[int, ...] = ()
    make: bool = False
    end: bool = False
    pause: float = 0.0


def plan_group(record: GroupRecord, sight: GroupSight, generation: int, now: float) -> GroupStep:
    """Return what a group needs next at ``now`` (s). Total: it never raises."""
    heard = sight.heard or UNHEARD
    empty = not sight.starts and not sight.pods
    gone = heard.gone
    if empty:  # worker and state of whoever leaves are gone with the last pod
        gone = (*gone, *(one.name for one in record.residents if one.leaving))
    record = with_residents(record, sight.wanted, gone, now)
    silent = sight.unanswered is not None and now >= sight.unanswered + SILENT
    # Its pool's plan would close one that answers nobody, and in which nobody stays.
    if sight.orphan and (silent or not record.residents) and all(one.leaving for one in record.residents):
        record = closed(record, "PoolDeleted", f"its GPUPool {sight.orphan!r} was deleted")
    if record.closing or sight.deleting:
        made = _told(record, sight, generation, now)
        return GroupStep(made, sight.starts, end=empty and not sight.deleting)
    if record.members and (sight.lost or record.number not in sight.starts):
        record = restarted(record, record.nodes, now, sight.charged)
    elif record.number in sight.starts:
        record = _joined(record, sight, heard, now)
    record = _troubled(record, sight, now)
    delete = tuple(number for number in sight.starts if number != record.number)
    pause = 0.0 if record.number in sight.starts else max(0.0, record.starts_at - now)
    make = empty and bool(record.nodes) and sight.problem is None and not pause
    return GroupStep(_told(record, sight, generation, now), delete, make, pause=pause)


def errands(record: GroupRecord, heard: GroupHeard | None) -> tuple[Errand, ...]:
    """Return what a group is to be told. Without a report nobody knows who came and went before: nothing.

    One that closes takes nobody in; who leaves is told so until the group says that it is gone.
    """
    if heard is None:
        return ()
    return tuple(
        Errand(one, one.leaving)
        for one in record.residents
        if one.name not in heard.gone and (one.leaving or not (record.closing or one.name in heard.present))
    )


def waits(record: GroupRecord, heard: GroupHeard | None) -> bool:
    """Return whether somebody comes or leaves, or the group is not ready yet: it is asked again soon."""
    if heard is None or not heard.ready or record.ready_at is None:
        return True
    return any(one.name in heard.gone or one.leaving or not one.joined for one in record.residents)


def unready(record: GroupRecord) -> NotReady | None:
    """Return what its residents are told of a group that is not ready; None: it is, or closes."""
    ready = record.condition(READY)
    if record.ready_at is not None or record.closing or ready is None or ready.status:
        return None
    against = ready.reason in NO_START
    return NotReady(ready.since, f"{ready.reason}: {ready.message}"[:MESSAGE_MAX] if against else "")


def ask_again(
    record: GroupRecord,
    heard: GroupHeard | None,
    *,
    known: bool = True,
    measures: bool = False,
    silent: bool = False,
    groups: int = 1,
) -> float:
    """Return after how many seconds a group is asked for its next report.

    Args:
        record: of it.
        heard: its newest report; None: there was none.
        known: where member 0 is. It has the group looked at when it tells, as have its pods.
        measures: its only resident is of a kind that is still being measured.
        silent: the newest question was not answered.
        groups: how many there are. Of very many each is asked less often, all together as often as before.
    """
    if not known or not record.members:
        return IDLE
    if silent:
        return SOON if heard is None or errands(record, heard) else REPORT
    if waits(record, heard):
        return SOON
    if not record.residents:
        return IDLE
    return MEASURE if measures else max(REPORT, groups / A_SECOND)


def _joined(record: GroupRecord, sight: GroupSight, heard: GroupHeard, now: float) -> GroupRecord:
    """Return the record with what its pods and its newest report bring."""
    if not record.members and all(sight.uids) and sight.bound == len(sight.uids) == sight.replicas:
        record = replace(record, members=sight.uids, bound_at=now)
    if not record.members or not heard.ready:
        return record
    residents = tuple(
        replace(one, joined=True) if not one.joined and one.name in heard.present else one
        for one in record.residents
    )
    if residents != record.residents:
        record = replace(record, residents=residents)
    return record if record.ready_at is not None else replace(record, ready_at=now)


def _troubled(record: GroupRecord, sight: GroupSight, now: float) -> GroupRecord:
    """Return the record with what keeps the group from being ready: each end of a container is counted once,
    over all starts until one is ready. Later ones need no word: its pods start their containers again. A
    node that is not heard of stops one that was ready, too, and no pod of it ends meanwhile."""
    known = record.trouble
    if sight.away is not None and (known is None or known.exit_code is None):
        new, lasts = sight.away, known is not None and known.waits == NODE_NOT_READY
        if known is not None and lasts:
            return (
                record if known.pod == new.pod else replace(record, trouble=replace(new, since=known.since))
            )
        return replace(record, trouble=replace(new, since=now))
    if record.ready_at is not None:
        return record if known is None else replace(record, trouble=None)
    ended = [one for one in sight.troubles if one.exit_code is not None]
    waits = [one for one in sight.troubles if one.exit_code is None]
    if known is not None and known.exit_code is not None:
        ended = [one for one in ended if one.container != known.container and one.since > known.since]
        waits = []
    if ended:
        # Of several that ended together the first is the cause: the others lost their peer.
        new = min(ended, key=lambda one: (one.since, one.pod))
        count = known.count + 1 if known is not None and known.exit_code is not None else 1
        return replace(record, trouble=replace(new, count=count))
    if waits:
        new = min(waits, key=lambda one: one.pod)
        if known is not None and (known.pod, known.waits) == (new.pod, new.waits):
            return record
        since = known.since if known is not None else now
        return replace(record, trouble=replace(new, since=since))
    if known is not None and known.exit_code is None:
        return replace(record, trouble=None)
    return record


def _told(record: GroupRecord, sight: GroupSight, generation: int, now: float) -> GroupRecord:
    """Return the record with its conditions."""
    if record.closing:
        found = False, record.closing, record.closing_message
    elif record.trouble is not None and record.trouble.waits == NODE_NOT_READY:
        found = False, NODE_NOT_READY, pod_sentence(record.trouble)
    elif record.ready_at is not None:
        found = True, "GrantsTurns", f"start {record.number} grants turns"
    elif record.trouble is not None and record.number in sight.starts:
        code = residency.POD_WAITS if record.trouble.exit_code is None else residency.CRASHES
        found = False, code, pod_sentence(record.trouble)
    elif record.members:
        found = False, "Starting", "its pods have their nodes, and are not ready yet"
    elif sight.problem is not None and record.number not in sight.starts:  # else its Job is there
        found = False, *sight.problem
    elif record.number not in sight.starts and now < record.starts_at:
        pause = record.starts_at - record.opened
        often = "" if record.failed_starts == 1 else f", {record.failed_starts} starts in a row"
        found = (
            False,
            "Restarting",
            (
                f"a pod of start {record.number - 1} was lost before that was ready{often}; it starts anew "
                f"{pause:g} s later"
            ),
        )
    elif sight.pods and record.number not in sight.starts:
        found = False, "Restarting", f"a pod of start {record.number - 1} is lost; it starts anew"
    else:
        found = False, "WaitingForNodes", f"{sight.bound} of {sight.replicas} pods have their nodes"
    status, reason, message = found
    known = record.condition(READY)
    since = known.since if known is not None and known.status == status else now
    ready = Condition(READY, status, reason, message, since, generation)
    answers = _answers(record, sight, generation, now)
    told = (*answers, *_kept(record, answers, generation, now), ready)
    told += _counts(record, sight, generation, now)
    return record if told == record.conditions else replace(record, conditions=told)


def _answers(record: GroupRecord, sight: GroupSight, generation: int, now: float) -> tuple[Condition, ...]:
    """Return condition Answers of a start that was ready; (): of no other.

    It is written once for a silence that lasts, and once for its end: not for each question.
    """
    if record.ready_at is None:
        return ()
    known = record.condition(ANSWERS)
    begun = sight.unanswered
    if begun is None or (known is None and now < begun + SILENT):
        since = known.since if known is not None and known.status else now
        return (Condition(ANSWERS, True, "Reports", "it answers the operator", since, generation),)
    if known is not None and (not known.status or now < begun + SILENT):
        return (known,)
    message = f"{silent_since(begun)} ({sight.why}): turns go on, and nobody can join it or leave it"
    return (Condition(ANSWERS, False, SILENCE, message, begun, generation),)


def _kept(
    record: GroupRecord, answers: tuple[Condition, ...], generation: int, now: float
) -> tuple[Condition, ...]:
    """Return condition ResidenciesEnd while a silent group keeps residencies that are to end: of a job that
    is deleted nothing else tells of it."""
    jobs = ", ".join(sorted(one.job for one in record.residents if one.leaving))
    if not jobs or all(one.status for one in answers):
        return ()
    until = "worker and state are kept until the group says that they are gone, or has no pods left"
    message = f"{silent_since(answers[0].since)}; {until}: {jobs}"[:MESSAGE_MAX]
    known = record.condition(ENDS)
    since = known.since if known is not None else now
    return (Condition(ENDS, False, residency.HELD, message, since, generation),)


def _counts(record: GroupRecord, sight: GroupSight, generation: int, now: float) -> tuple[Condition, ...]:
    """Return condition TurnsCount while each turn of a resident is lost, with the reason of one that was; it
    is written once, not for each turn. Before a start's first report what was written stands."""
    known = record.condition(COUNTS)
    if sight.heard is None or record.closing:
        return () if known is None or record.closing else (known,)
    reasons = dict(sight.heard.failing)
    lost = [(one.job, reasons[one.name]) for one in record.residents if one.name in reasons]
    if not lost:
        return ()
    jobs, since = ", ".join(sorted(job for job, _ in lost)), now
    if known is not None:
        if known.message.startswith(f"of {jobs} "):
            return (known,)
        since = known.since
    message = f"of {jobs} each turn is lost: {lost[0][1]}"[:MESSAGE_MAX]
    return (Condition(COUNTS, False, residency.TURNS_LOST, message, since, generation),)
