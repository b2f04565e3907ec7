"""Facts about a trial's jobs on a cluster, read from the API alone: statuses, and pods' termination messages.

Times are seconds since the epoch, as the operator and the pods wrote them. Every version of an object that a
watch delivers is taken in, in any order; what was seen once stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from controller import bounded, names
from controller.api.record import record as read_record
from controller.frozen import dataclass
from controller.objects import completion_index, is_terminal
from controller.parity.timeline import How, Lived, Stay, Timeline
from controller.policy.job import ACCEPTED, COMPLETED, FAILED, JobRecord, nodes_of

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """Report of a played run at its end.

    Attributes:
        start: seconds of training it began with.
        to: seconds of training it ended with.
        left: it was told to leave.
        evals: (step, when).
        asked: (request served, when).
    """

    began: float
    ended: float
    start: float
    to: float
    left: bool
    evals: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(slots=True)
class Admitted:
    """One admission as the status had it."""

    at: float
    running: float | None = None
    preempted: float | None = None  # decided
    back: float | None = None  # in the queue again, its pods gone
    words: Words | None = None  # the leader's last ones
    nodes: tuple[str, ...] = ()  # each once: those that pods were bound to, and until then the planned ones
    bound: bool = False  # pods were there


@dataclasses.dataclass(slots=True)
class Facts:
    """A job on the cluster."""

    key: str
    gpus: int
    submitted: float = 0.0
    admissions: dict[int, Admitted] = field(default_factory=dict)
    decided: float | None = None  # the stop
    decided_step: int = 0
    retained: float | None = None
    suspended: float | None = None
    pods_gone: float | None = None
    ended: float | None = None
    problem: str = ""  # why the run is not what it was to be
    words: dict[int, Words] = field(default_factory=dict)  # last ones, by admission
    done: dict[int, float] = field(default_factory=dict)  # when its last pod was seen terminal, by admission
    seen: set[str] = field(default_factory=set)  # names of terminal pods

    @property
    def last(self) -> Admitted | None:
        """The newest admission; None: it was never admitted."""
        return self.admissions.get(max(self.admissions, default=0))

    @property
    def over(self) -> bool:
        """Nothing more is to come."""
        return self.ended is not None or self.pods_gone is not None or bool(self.problem)

    @property
    def freed(self) -> float | None:
        """Return when the GPUs of a run that ended were free: its pods terminal. The status has it later."""
        return None if self.ended is None else self.done.get(max(self.admissions, default=0), self.ended)

    @property
    def state(self) -> str:
        """Return ``"waiting"``, ``"running"``, ``"stopped"`` or ``"ended"``."""
        if self.ended is not None:
            return "ended"
        if self.pods_gone is not None:
            return "stopped"
        return "running" if self.last is not None and self.last.back is None else "waiting"

    def take(self, status: Json | None) -> None:
        """Take in a version of the RLHFJob's status. Raises ValueError: it does not read."""
        record = read_record(status)
        self._admission(record)
        if (decision := record.decision) is not None:
            self.decided, self.decided_step = decision.at, decision.proposal.step
            self.retained = decision.retained_at or self.retained
            self.suspended = decision.suspended_at or self.suspended
            self.pods_gone = decision.pods_gone_at or self.pods_gone
        done = record.condition(COMPLETED)
        if done is not None and done.status and self.ended is None:
            self.ended = done.since
        for type_, bad in ((ACCEPTED, False), (FAILED, True)):
            condition = record.condition(type_)
            if condition is not None and condition.status is bad:
                self.problem = f"{type_} is {condition.status}, {condition.reason}: {condition.message}"

    def _admission(self, record: JobRecord) -> None:
        admission = record.admission
        if admission is not None:
            number = admission.number
            known = self.admissions.setdefault(number, Admitted(admission.at, words=self.words.get(number)))
            known.running = admission.running_since or known.running
            nodes, bound = nodes_of(admission)
            if bound:  # a pod that was made again elsewhere held both; those that ended are listed no more
                nodes = tuple(dict.fromkeys((*(known.nodes if known.bound else ()), *nodes)))
            if bound or not known.bound:
                known.nodes, known.bound = nodes or known.nodes, bound
            if record.preempting is not None:
                known.preempted = record.preempting.at
        queued, newest = record.queued_at, self.last
        if queued is None or admission is not None or newest is None:
            return
        if newest.back is None and queued > newest.at:
            newest.back = queued

    def take_pod(self, pod: Json, now: float) -> None:
        """Take in a version of one of its pods, seen at ``now``: whether it is terminal, its last words."""
        metadata = pod.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        number = bounded.whole(annotations.get(names.ANNOTATION_ADMISSION))
        if number is None:
            return
        name = str(metadata.get("name"))
        if is_terminal(pod) and name not in self.seen:
            self.seen.add(name)
            self.done[number] = now
        if completion_index(pod):
            return
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            message = ((status.get("state") or {}).get("terminated") or {}).get("message")
            if message and (last_words := words(message)) is not None:
                self.words[number] = last_words
                if number in self.admissions:
                    self.admissions[number].words = last_words


def words(message: str) -> Words | None:
    """Last words as `examples.played` writes them; None: they are somebody else's."""
    try:
        fields = bounded.load(message, "last words")
        return Words(
            float(fields["began"]),
            float(fields["ended"]),
            float(fields["from"]),
            float(fields["to"]),
            bool(fields["left"]),
            tuple((int(step), float(at)) for step, at in fields["evals"]),
            tuple((int(number), float(at)) for number, at in fields["asked"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def timeline(facts: list[Facts], zero: float) -> Timeline:
    """Return the stays of all jobs, in seconds since ``zero``."""
    return Timeline(tuple(Lived(f.key, f.gpus, f.submitted - zero, tuple(_stays(f, zero))) for f in facts))


def _stays(facts: Facts, zero: float) -> list[Stay]:
    stays = []
    for number in sorted(facts.admissions):
        a = facts.admissions[number]
        if number < max(facts.admissions):
            # What was admitted again was preempted before; a version of the status may have been missed.
            back = a.back or facts.admissions[min(n for n in facts.admissions if n > number)].at
            stays.append(Stay(a.at - zero, back - zero, How.PREEMPT, (a.preempted or back) - zero, a.nodes))
        elif facts.freed is not None:
            stays.append(Stay(a.at - zero, facts.freed - zero, How.END, None, a.nodes))
        elif facts.pods_gone is not None:
            decided = (facts.decided or 0.0) - zero
            stays.append(Stay(a.at - zero, facts.pods_gone - zero, How.STOP, decided, a.nodes))
    return stays
