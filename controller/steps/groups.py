"""Worker groups at the operator's door: which pods are members, where member 0 is, which pods are of jobs
that are residents. Like `directory`, the only thing that these routes share with the operator's passes.

In memory, of one event loop. After a restart members tell where they are again within ten seconds, and every
process has a key of its own: what it signs counts once a group's members have asked it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from controller.frozen import dataclass
from controller.web.group_tickets import JOB, MEMBER, OPERATOR, SECONDS, GroupTicket
from controller.web.tickets import Signer

_KEPT = SECONDS / 2  # s for which the operator uses a ticket of its own


@dataclass(frozen=True, slots=True)
class GroupPod:
    """A pod of a group's present start. ``ip``: where it must be; "": not known yet."""

    uid: str
    index: int
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """Member 0 as it told: host and port, and the SHA-256 of its certificate."""

    pod: str
    address: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class AdmittedGroup:
    """A group as its passes see it.

    Attributes:
        name: of the WorkerGroup.
        number: of its present start.
        pods: of that start.
        members: their UIDs by index, once all are bound; none before.
    """

    name: str
    number: int
    pods: tuple[GroupPod, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharingJob:
    """A job with a residency.

    Attributes:
        uid: of the RLHFJob.
        attempt: the present one's number.
        pods: UIDs of its pods in that attempt.
        group: where it is a resident; "": nowhere.
        resident: name of the residency.
        joined: the group has taken it in.
    """

    uid: str
    attempt: int
    pods: frozenset[str]
    group: str = ""
    resident: str = ""
    joined: bool = False


class Refusal(Exception):
    """An answer instead of a ticket."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclasses.dataclass(slots=True)
class _Group:
    now: AdmittedGroup
    server: Server | None = None
    ticket: str = ""  # of the operator
    ends: float = 0.0


@dataclasses.dataclass(slots=True)
class GroupDirectory:
    """See the module.

    Attributes:
        clock: s since the epoch.
        registered: called with a group's name when its member 0 has told where it is.
    """

    clock: Callable[[], float] = time.time
    registered: Callable[[str], None] = lambda name: None
    signer: Signer = field(default_factory=Signer)
    _groups: dict[str, _Group] = field(default_factory=dict)
    _members: dict[str, tuple[str, int]] = field(default_factory=dict)  # uid of pod -> group, index
    _jobs: dict[str, SharingJob] = field(default_factory=dict)
    _pods: dict[str, str] = field(default_factory=dict)  # uid of pod -> uid of job

    # What passes write.

    def put_group(self, group: AdmittedGroup) -> None:
        """Take in a group as it is now. In another start nobody knows where member 0 is."""
        known = self._groups.get(group.name)
        if known is not None and known.now == group:
            return
        if known is None or known.now.number != group.number:
            self.drop_group(group.name)
            known = self._groups[group.name] = _Group(group)
        for pod in known.now.pods:
            self._members.pop(pod.uid, None)
        known.now = group
        if known.server is not None and group.members[:1] not in ((), (known.server.pod,)):
            known.server = None
        self._members.update({pod.uid: (group.name, pod.index) for pod in group.pods})

    def drop_group(self, name: str) -> None:
        """Forget a group."""
        known = self._groups.pop(name, None)
        for pod in known.now.pods if known is not None else ():
            self._members.pop(pod.uid, None)

    def put_job(self, job: SharingJob) -> None:
        """Take in a job as it is now."""
        known = self._jobs.get(job.uid)
        if known == job:
            return
        self.drop_job(job.uid)
        self._jobs[job.uid] = job
        self._pods.update(dict.fromkeys(job.pods, job.uid))

    def drop_job(self, uid: str) -> None:
        """Forget a job."""
        known = self._jobs.pop(uid, None)
        for pod in known.pods if known is not None else ():
            self._pods.pop(pod, None)

    # What passes read.

    def server(self, name: str, number: int) -> Server | None:
        """Return where member 0 of a group's start is; None: it has not told, or is no member yet."""
        known = self._groups.get(name)
        if known is None or known.now.number != number or not known.now.members:
            return None
        return known.server if known.server is not None and known.server.pod == known.now.members[0] else None

    def operators_ticket(self, name: str, number: int) -> str:
        """Return the ticket with which the operator asks member 0."""
        known, now = self._groups[name], self.clock()
        if not known.ticket or now > known.ends - _KEPT:
            known.ends = now + SECONDS
            known.ticket = self.signer.sign(GroupTicket(OPERATOR, name, number, "", known.ends))
        return known.ticket

    # What pods ask.

    def register(self, pod: str, address: str, fingerprint: str) -> dict[str, Any]:
        """Return a member's ticket; member 0's address is noted.

        Raises:
            Refusal: it is no member, or not all are there yet.
        """
        where = self._members.get(pod)
        if where is None:
            raise Refusal(403, "NotAMember", "this pod is none of a worker group's present start")
        name, index = where
        known = self._groups[name]
        ip = next((one.ip for one in known.now.pods if one.uid == pod), "")
        if ip and address.rpartition(":")[0].strip("[]") != ip:
            raise Refusal(
                400, "WrongAddress", f"address: {address[:80]!r} is not allowed, expected the pod's, {ip}"
            )
        if index == 0:
            server = Server(pod, address, fingerprint)
            new, known.server = known.server != server, server
            if new:
                self.registered(name)
        members, server0 = known.now.members, self.server(name, known.now.number)
        if not members:
            raise Refusal(503, "NotReady", "not every pod of the group is bound yet")
        if members[index : index + 1] != (pod,):
            raise Refusal(403, "NotAMember", "another pod has this index: the group is started anew")
        if server0 is None:
            raise Refusal(503, "NotReady", "member 0 has not told yet where it is")
        ticket = GroupTicket(
            MEMBER,
            name,
            known.now.number,
            pod,
            self.clock() + SECONDS,
            pods=members,
            address=server0.address if index else "",
            fingerprint=server0.fingerprint if index else "",
        )
        return {
            "ticket": self.signer.sign(ticket),
            "keys": [self.signer.public],
            "index": index,
            "group": name,
            "admission": known.now.number,
        }

    def admit(self, pod: str, attempt: int) -> dict[str, Any]:
        """Return a job's ticket.

        Raises:
            Refusal: it has no residency, or not yet.
        """
        job = self._jobs.get(self._pods.get(pod, ""))
        if job is None or attempt > job.attempt:
            # After a restart nothing is known before a pass was made: that is no answer to act upon.
            raise Refusal(503, "NotReady", "no job that shares a worker group is known of this pod yet")
        if attempt < job.attempt:
            raise Refusal(403, "NoResident", f"attempt: {attempt} asks, {job.attempt} is the present one")
        if not job.group:
            raise Refusal(403, "NoResident", "the job has no residency in a worker group any more")
        known = self._groups.get(job.group)
        server = self.server(job.group, known.now.number) if known is not None else None
        if not job.joined or known is None or server is None:
            raise Refusal(503, "NotReady", "the job's worker group is not ready yet")
        ticket = GroupTicket(
            JOB,
            job.group,
            known.now.number,
            pod,
            self.clock() + SECONDS,
            resident=job.resident,
            address=server.address,
            fingerprint=server.fingerprint,
        )
        return {
            "ticket": self.signer.sign(ticket),
            "resident": job.resident,
            "address": server.address,
            "fingerprint": server.fingerprint,
        }
