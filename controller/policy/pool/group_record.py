"""A worker group's durable memory, and how it changes: what is known of its starts, members and residents.

A group is written before its Job is made. It starts under a number; when a member's pod is lost it starts
under the next one, and its residents begin anew from their checkpoints. It closes in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

from controller.frozen import dataclass
from controller.policy.actor_types import JobKey
from controller.policy.group_types import GroupView, Lingering
from controller.policy.job import Condition, ConditionList, PodTrouble, backoff_seconds
from controller.policy.sharing import MOST_RESIDENTS
from controller.policy.stored import AtMost, Count, Message, Name, NodeName, Time, Within, Word

MEMBERS_MAX = 1024
ENDS = "ResidenciesEnd"  # condition: False while one is to end that its silent group keeps; else absent
COUNTS = "TurnsCount"  # condition: False while each turn of a resident is lost; else absent
ANSWERS = "Answers"  # condition: it answers the operator. Only of a start that was ready
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupResident:
    """A resident of the group, from its admission until worker and state are gone."""

    name: Annotated[Word, "Name of the residency: uid of the RLHFJob, and number of its admission."]
    job: Annotated[JobKey, "Whose it is (namespace/name)."]
    state_bytes: Annotated[int, Within(1, None, "int64"), "Bytes of its state on each member."]
    since: Annotated[Time, "When it was given."]
    joined: Annotated[bool, "The group has taken it in."] = False
    leaving: Annotated[bool, "The group was told to end it."] = False
    charged: Annotated[
        float, Name("chargedGPUSeconds"), "GPU-seconds that it was charged in earlier starts of the group."
    ] = 0.0


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The operator's memory of a worker group."""

    conditions: Annotated[ConditionList, "Aspects of the group's state."] = ()
    number: Annotated[Count, "Number of its newest start."] = 1
    opened: Annotated[Time, "When that start was admitted."] = 0.0
    bound_at: Annotated[Time | None, "When all its pods had their nodes; absent: not yet."] = None
    members: Annotated[
        tuple[Word, ...], AtMost(MEMBERS_MAX), "UIDs of its pods by index; absent: not all are bound."
    ] = ()
    ready_at: Annotated[Time | None, "When that start could grant turns; absent: not yet."] = None
    trouble: Annotated[
        PodTrouble | None, "How a pod of it ended, or what it waits for, while it is not ready."
    ] = None
    residents: Annotated[
        tuple[GroupResident, ...], AtMost(MOST_RESIDENTS), "Its residents, those that leave among them."
    ] = ()
    empty_since: Annotated[Time | None, "Since when it has had no residents."] = None
    closing: Annotated[Word, "Why it closes, as a CamelCase code; absent: it does not."] = ""
    closing_message: Annotated[Message, "The same as a sentence."] = ""
    nodes: Annotated[
        tuple[NodeName, ...], AtMost(MEMBERS_MAX), "Planned node of each member of the newest start."
    ] = ()
    failed_starts: Annotated[
        Count, "Starts before the newest one, in a row, that ended without being ready; absent: none."
    ] = 0

    @property
    def starts_at(self) -> float:
        """Return from when on the pods of its newest start may be made (s): at once after a start that was
        ready, after others with a pause like that of gangs that found no nodes."""
        return self.opened + (backoff_seconds(self.failed_starts) if self.failed_starts else 0.0)

    @property
    def unanswered(self) -> float | None:
        """Return since when questions to it bring no answer (s), once that has lasted for a while; None: they
        do."""
        found = self.condition(ANSWERS)
        return found.since if found is not None and not found.status else None

    def condition(self, type_: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == type_), None)

    def resident(self, name: str) -> GroupResident | None:
        return next((one for one in self.residents if one.name == name), None)


def with_residents(
    record: GroupRecord, wanted: Mapping[str, GroupResident], gone: Iterable[str], now: float
) -> GroupRecord:
    """Return the record with the residents that jobs' records name; those that no record names leave.

    Args:
        record: of the group.
        wanted: by name, residencies that jobs' records name and that do not leave.
        gone: residencies of which worker and state are gone.
        now: time (s).
    """
    out = set(gone)
    kept = [
        one if one.name in wanted else replace(one, leaving=True)
        for one in record.residents
        if one.name not in out
    ]
    known = {one.name for one in kept}
    kept += [one for name, one in sorted(wanted.items()) if name not in known and name not in out]
    residents = tuple(kept)
    empty = None if residents else record.empty_since if record.empty_since is not None else now
    if residents == record.residents and empty == record.empty_since:
        return record
    return replace(record, residents=residents, empty_since=empty)


def restarted(
    record: GroupRecord, nodes: tuple[str, ...], now: float, charged: Mapping[str, float] = NOTHING
) -> GroupRecord:
    """Return the record once the group is started anew: a member's pod is lost, and all states with it.

    Its residents take part again, with a fresh state, but for those that leave: they are gone with the last
    pod of the start that ends.

    Args:
        record: of the group.
        nodes: planned node of each member.
        now: time (s).
        charged: GPU-seconds of each residency in the start that ends, as last reported.
    """
    residents = tuple(
        replace(one, joined=False, charged=one.charged + charged.get(one.name, 0.0))
        for one in record.residents
    )
    return replace(
        record,
        number=record.number + 1,
        opened=now,
        bound_at=None,
        failed_starts=record.failed_starts + 1 if record.ready_at is None else 0,
        ready_at=None,
        members=(),
        nodes=nodes,
        residents=residents,
    )


def closed(record: GroupRecord, reason: str, message: str) -> GroupRecord:
    """Return the record of a group that closes; the first reason is kept."""
    return record if record.closing else replace(record, closing=reason, closing_message=message)


def group_view(
    name: str,
    family: str,
    replicas: int,
    gpus: int,
    record: GroupRecord,
    bound: tuple[tuple[str, int], ...],
    jobs: Iterable[str],
    unanswered: float | None = None,
    *,
    outdated: bool = False,
    failing: bool = False,
) -> GroupView:
    """Return the group as its pool's plan sees it.

    Args:
        name: of the group.
        family: by its spec, as are the two next.
        replicas: members.
        gpus: of each.
        record: of it.
        bound: (node, GPUs) of its pods that have a node.
        jobs: names of the residencies that RLHFJobs name.
        unanswered: s, since when questions to it bring no answer; None: the newest did, or it never was
            ready.
        outdated: its pods are of a template that its family has no more.
        failing: it loses each turn of a resident. One whose pods do not start fails by its record.
    """
    named = set(jobs)
    return GroupView(
        name,
        family,
        replicas,
        gpus,
        record.nodes,
        bound=bound,
        unbound=0 if record.closing else max(0, replicas - len(bound)),
        closing=bool(record.closing),
        opened=record.opened,
        empty_since=record.empty_since,
        lingering=tuple(
            Lingering(one.job, one.state_bytes) for one in record.residents if one.name not in named
        ),
        may_return=not record.closing,
        ready=record.ready_at is not None,
        unanswered=unanswered,
        outdated=outdated,
        failing=failing or (record.ready_at is None and record.trouble is not None),
    )
