"""Facts about each job of the demo, read from the API alone.

A `Chronicle` is fed with every version of an RLHFJob that a watch delivers; the status keeps the last 32
evals, the chronicle all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from controller.api.record import record as read_record
from controller.policy.job import AWAITS_CONTROLLER, COMPLETED, FAILED, RELEASED, AdmissionRecord, JobRecord
from controller.policy.types import Attempt, EvalPoint
from deploy.local.demo import trainer

Json = Mapping[str, Any]


class Role(StrEnum):
    """Role of a job in the demo. The operator knows nothing of it."""

    OVER_OPTIMISING = "over-optimising"
    HEALTHY = "healthy"
    WAITING = "waiting"


@dataclass(frozen=True)
class ProxyPoint:
    """The reward model's own opinion, as the trainer recorded it beside an eval."""

    step: int
    reward: float


@dataclass
class Chronicle:
    """One job: its spec's numbers, its newest status, everything seen on the way."""

    key: str  # namespace/name
    role: Role
    replicas: int = 0
    gpus: int = 0  # of the whole gang
    total_steps: int = 0  # of a run to its end
    summary: str = ""
    printed: Mapping[str, str] = field(default_factory=dict)
    record: JobRecord = field(default_factory=JobRecord)
    admission: AdmissionRecord | None = None  # the newest one seen: a finished job's status has none
    created: str = ""
    waited: bool = False  # it was seen in the queue with a reason to wait
    awaited: bool = False  # its pods were gone before its controller said that no other would come
    proxies: list[ProxyPoint] = field(default_factory=list)
    _evals: dict[tuple[Attempt, int], EvalPoint] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]

    @property
    def evals(self) -> list[EvalPoint]:
        """All evals seen, in the order they were made."""
        return [self._evals[k] for k in sorted(self._evals)]

    @property
    def ended_at(self) -> float | None:
        """Return when its GPUs came free, s: pods gone, or the run ended by itself; None: not yet."""
        if self.record.decision is not None:
            return self.record.decision.pods_gone_at
        ends = (c for c in self.record.conditions if c.status and c.type in (COMPLETED, FAILED))
        return next((c.since for c in ends), None)

    @property
    def stopped(self) -> bool:
        """A stop was decided, carried out, and its GPUs are free."""
        return self.record.decision is not None and self.record.decision.pods_gone_at is not None

    @property
    def finished(self) -> bool:
        return self.stopped or self.record.finished is not None

    def see(self, obj: Json) -> bool:
        """Take in a version of the RLHFJob; whether anything that is shown changed."""
        spec, status = obj["spec"], obj.get("status") or {}
        gang = spec["gang"]
        before = (self.summary, self.printed, len(self._evals), self.record.decision)
        self.created = obj["metadata"].get("creationTimestamp", "")
        self.replicas = int(gang.get("replicas", 1))
        self.gpus = self.replicas * int(gang["gpusPerReplica"])
        self.total_steps = int(trainer.option(obj, "--steps") or 0)
        self.record = read_record(status)
        self.summary = status.get("summary", "")
        self.printed = status.get("printed") or {}
        self.admission = self.record.admission or self.admission
        self.waited = self.waited or (self.summary == "Queued" and self.admission is None)
        released = self.record.condition(RELEASED)
        self.awaited = self.awaited or (released is not None and released.reason == AWAITS_CONTROLLER)
        self._evals |= {(point.attempt, point.step): point for point in self.record.evals}
        return before != (self.summary, self.printed, len(self._evals), self.record.decision)

    def seconds_per_step(self) -> float | None:
        """Pace of the run, s: its whole running time by the step it had reached when the stop was decided."""
        decision, admission = self.record.decision, self.admission
        if decision is None or admission is None or admission.running_since is None or not self.evals:
            return None
        return max(decision.at - admission.running_since, 0.0) / max(decision.proposal.step, 1)

    def saved_gpu_seconds(self) -> float:
        """Return GPU-seconds that running on to the last step, at the same pace, would still have taken."""
        decision, pace = self.record.decision, self.seconds_per_step()
        admission = self.admission
        if not self.stopped or decision is None or pace is None or admission is None:
            return 0.0
        assert decision.pods_gone_at is not None
        assert admission.running_since is not None
        end = admission.running_since + pace * self.total_steps
        return max(end - decision.pods_gone_at, 0.0) * self.gpus

    def describe(self, others: Iterable[Chronicle]) -> dict[str, Any]:
        """Return the job's part of summary.json."""
        record, decision = self.record, self.record.decision
        kept = record.retained[-1] if record.retained else None
        to = next((o for o in others if o.admission and o.admission.source == self.key), None)
        handover = None
        if decision is not None and to is not None:
            admission = to.admission
            assert admission is not None
            running = admission.running_since
            handover = {
                "to": to.name,
                "admittedAt": admission.at,
                "at": running,
                "seconds": None if running is None else round(running - decision.at, 3),
            }
        return {
            "name": self.name,
            "namespace": self.key.partition("/")[0],
            "role": str(self.role),
            "gpus": self.gpus,
            "totalSteps": self.total_steps,
            "startedAt": self.admission.running_since if self.admission else None,
            "evals": [{"step": p.step, "score": p.score, "stderr": p.stderr} for p in self.evals],
            "proxies": [{"step": p.step, "reward": p.reward} for p in self.proxies],
            "bestStep": record.best.step if record.best else None,
            "bestScore": record.best.score if record.best else None,
            "decision": None
            if decision is None
            else {
                "step": decision.proposal.step,
                "time": decision.at,
                "reason": decision.proposal.reason,
                "statistic": decision.proposal.statistic,
                "threshold": decision.proposal.threshold,
                "message": decision.message,
            },
            "retainedAt": decision.retained_at if decision else None,
            "suspendedAt": decision.suspended_at if decision else None,
            "podsGoneAt": decision.pods_gone_at if decision else None,
            "endedAt": self.ended_at,
            "handover": handover,
            "checkpoint": None
            if kept is None
            else {"path": kept.path, "digest": kept.digest, "step": kept.step, "bytes": kept.bytes},
            "completed": record.finished == "Complete",
            "gpuHoursSaved": round(self.saved_gpu_seconds() / 3600, 6),
        }


def problems(chronicles: Sequence[Chronicle]) -> list[str]:
    """Return what of the story did not happen, one sentence each; empty: all of it did."""
    found: list[str] = []
    for c in chronicles:
        found += _CHECKS[c.role](c, chronicles)
    return found


def _over_optimising(c: Chronicle, chronicles: Sequence[Chronicle]) -> list[str]:
    record, decision = c.record, c.record.decision
    if decision is None:
        newest = f", newest eval at step {c.evals[-1].step}" if c.evals else ", no eval was read"
        return [f"{c.name}: over-optimises, but no stop was decided (state {c.summary or 'none'}{newest})"]
    found = []
    if not decision.proposal.best_step < decision.proposal.step:
        found.append(f"{c.name}: stopped at step {decision.proposal.step}, not after its best")
    if decision.pods_gone_at is None:
        found.append(f"{c.name}: a stop was decided, but its pods are not gone (state {c.summary})")
    if not record.retained or not record.retained[-1].digest:
        found.append(f"{c.name}: stopped, but no checkpoint is retained with its digest")
    if c.total_steps and decision.proposal.step >= c.total_steps:
        found.append(f"{c.name}: stopped only at its last step {c.total_steps}")
    return found


def _healthy(c: Chronicle, chronicles: Sequence[Chronicle]) -> list[str]:
    if c.record.decision is not None:
        return [f"{c.name}: is healthy, but was stopped: {c.record.decision.message}"]
    if c.record.finished != "Complete":
        return [f"{c.name}: is healthy, but did not finish (state {c.summary or 'none'})"]
    return []


def _waiting(c: Chronicle, chronicles: Sequence[Chronicle]) -> list[str]:
    admission = c.admission
    if admission is None:
        return [f"{c.name}: still waits for GPUs (state {c.summary or 'none'})"]
    found = [] if c.waited else [f"{c.name}: never had to wait"]
    givers = [o for o in chronicles if o.key == admission.source and o.role is Role.OVER_OPTIMISING]
    if not givers:
        whose = admission.source or "nobody's in particular"
        found.append(f"{c.name}: did not get the GPUs of the over-optimising job (but {whose})")
    for giver in givers:
        stop = giver.record.decision
        gone = stop.pods_gone_at if stop is not None else None
        if gone is not None and stop is not None and giver.awaited:
            gone = stop.suspended_at  # they went between the two: their nodes were free before it was written
        if admission.running_since is not None and (gone is None or admission.running_since < gone):
            found.append(f"{c.name}: ran before the pods of {giver.name} were gone")
    if c.record.finished != "Complete":
        found.append(f"{c.name}: got GPUs, but did not finish (state {c.summary or 'none'})")
    return found


_CHECKS = {Role.OVER_OPTIMISING: _over_optimising, Role.HEALTHY: _healthy, Role.WAITING: _waiting}


def describe(chronicles: Sequence[Chronicle], seconds: float) -> dict[str, Any]:
    """Return all of summary.json. Times are seconds since the epoch. ``seconds``: how long the jobs
    took, s."""
    return {
        "version": 1,
        "jobs": [c.describe(chronicles) for c in chronicles],
        "gpuHoursSaved": round(sum(c.saved_gpu_seconds() for c in chronicles) / 3600, 6),
        "seconds": round(seconds, 3),
        "problems": problems(chronicles),
    }
