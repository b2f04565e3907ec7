"""Quotas around any queue policy: guaranteed GPUs go first; idle ones are lent and returned.

First those who wait and fit into what they are guaranteed, in the policy's order; one that finds no room
holds up nobody. It gets GPUs that are free, then of those who leave, then of borrowed runs, last started
first; of those only the ones give way whose GPUs somebody gets. What it waits for is lent to nobody
meanwhile, nor does another gang of its entry start that would use up the guarantee before it. Then the policy
gives out the rest as ever, up to the limits. It preempts borrowed runs alone: a run within its guarantee is
left alone by all but its own stop rule.

The policy orders all: an overdue job (`ageing`) comes first of its class. Of its own entry nobody passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from controller.policy.queueing.ageing import Ageing
from controller.policy.queueing.base import (
    PlacementTrial,
    QueueDecision,
    QueueJob,
    QueuePolicy,
    Room,
    Wrapper,
    decided,
    stay_key,
)
from controller.policy.queueing.quota_ledger import QuotaLedger, inside
from controller.policy.types import JobKey, Quota

REASON = "GuaranteeReclaimed"

OPEN, SHIELDED, LEAVES = range(3)  # as what the policy sees a run


class Quotas(Wrapper):
    """The base policy's decisions, within the quotas of the jobs' namespaces."""

    name: ClassVar[str] = "quotas"

    def __init__(self, base: QueuePolicy, quotas: Sequence[Quota]) -> None:
        super().__init__(base)
        self.quotas = tuple(quotas)
        self._ageing = base if isinstance(base, Ageing) else None
        self.clear()

    @property
    def preempts(self) -> bool:
        return True

    def clear(self) -> None:
        self._ledger = QuotaLedger(self.quotas)
        self._waiting: dict[JobKey, QueueJob] = {}
        self._running: dict[JobKey, tuple[QueueJob, float]] = {}  # and when it was last heard of
        self._fixed: set[JobKey] = set()  # of those who run: nobody may preempt them
        self._leaving: dict[JobKey, QueueJob] = {}
        self._shown: dict[JobKey, int] = {}  # of who runs: OPEN, SHIELDED or LEAVES
        self.base.rebuild(())

    # -- events

    def submitted(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self._waiting[job.key] = job
        self.base.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        shown = self._shown.get(job.key)
        self._forget(job.key)
        self._run(job, now)
        # What it is to be, `decide` says; until then as it was.
        if shown == SHIELDED:
            self._shown[job.key] = SHIELDED
            self.base.shielded(job, now)
        else:
            self._shown[job.key] = OPEN
            self.base.admitted(job, now)

    def shielded(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self._run(job, now)
        self._fixed.add(job.key)
        self._shown[job.key] = SHIELDED
        self.base.shielded(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self._leaving[job.key] = job
        self._ledger.charge(job.key, job.gpus, job.spare_gpus)
        self.base.leaving(job, now)

    def removed(self, job: QueueJob, now: float) -> None:
        self._forget(job.key)
        self.base.removed(job, now)

    def _run(self, job: QueueJob, now: float) -> None:
        self._running[job.key] = (job, now)
        self._ledger.charge(job.key, job.gpus, job.spare_gpus)

    def _forget(self, key: JobKey) -> None:
        if self._waiting.pop(key, None) is not None:
            return
        known = self._running.pop(key, None)
        job = self._leaving.pop(key, None) if known is None else known[0]
        if job is not None:
            self._ledger.charge(key, -job.gpus, -job.spare_gpus)
            self._shown.pop(key, None)
            self._fixed.discard(key)

    # -- decisions

    def decide(self, now: float, room: Room) -> QueueDecision:
        if not self._waiting:
            self._show(frozenset())
            return self.base.decide(now, room)
        if self._ageing is not None:
            self._ageing.look(now)
        ledger = self._ledger.copy()
        within = self._within()
        first = [job for job in self.base.queue() if not job.demoted and ledger.guaranteed(job.key, job.gpus)]
        settled: set[JobKey] = set()
        starts: list[QueueJob] = []
        preempt: list[QueueJob] = []
        give_back: Callable[[], None] | None = None
        if first:
            trial = room.trial()
            for job in self._leaving.values():
                trial.give(job)
            borrowed = self._borrowed(within)
            for job in borrowed:
                trial.give(job)
            self._serve(first, ledger, trial, settled, now)
            preempt = [job for job in borrowed if not trial.keep(job)]
            starts = trial.commit()
            give_back = trial.withhold()
        self._show({job.key for job in preempt}, within)
        begun = {job.key for job in starts}
        closed = {ledger.entry(key) for key in settled if key not in begun}
        found = self.base.decide(now, QuotaRoom(room, ledger, settled, closed))
        if give_back is not None:
            give_back()
        if not starts and not preempt:
            return found
        going = {job.key for job in preempt}
        also = [(job, why) for job, why in found.preempt if job.key not in going]
        return decided([*starts, *found.admit], [*((j, REASON) for j in preempt), *also], found.wake_at)

    def queue(self) -> list[QueueJob]:
        """Return who fits into what it is guaranteed, then all others within their limits."""
        ledger = self._ledger.copy()
        first: list[QueueJob] = []
        others: list[QueueJob] = []
        for job in self.base.queue():
            if not job.demoted and ledger.guaranteed(job.key, job.gpus):
                ledger.charge(job.key, job.gpus)
                first.append(job)
            elif not self._ledger.bars(job.key, job.gpus):
                others.append(job)
        return [*first, *others]

    def barred(self) -> list[QueueJob]:
        return [job for job in self.base.queue() if self._ledger.bars(job.key, job.gpus)]

    def fresh(self) -> QueuePolicy:
        return Quotas(self.base.fresh(), self.quotas)

    def _serve(
        self,
        first: list[QueueJob],
        ledger: QuotaLedger,
        trial: PlacementTrial,
        settled: set[JobKey],
        now: float,
    ) -> None:
        """Let those who are guaranteed GPUs take them, in order. Changes all that it is given."""
        closed: set[int | None] = set()  # entries in which an overdue gang waits that nobody may pass
        for job in first:
            entry = ledger.entry(job.key)
            if entry in closed or not ledger.guaranteed(job.key, job.gpus):
                continue
            if trial.take(job):
                ledger.charge(job.key, job.gpus)
                settled.add(job.key)
            elif self._ageing is not None and self._ageing.overdue(job, now):
                closed.add(entry)

    def _within(self) -> set[JobKey]:
        """Return which runs lie within what they are guaranteed."""
        ordered = sorted((job for job, _ in self._running.values()), key=stay_key)
        return inside(self._ledger, ((job.key, job.gpus, job.demoted) for job in ordered))

    def _borrowed(self, within: set[JobKey]) -> list[QueueJob]:
        """Return the runs that may be preempted for who is guaranteed GPUs; the first to go is the last."""
        runs = (job for job, _ in self._running.values())
        # One with a small share of a group may be charged none of its GPUs; it gives way with the others.
        found = [
            job
            for job in runs
            if job.key not in within and job.key not in self._fixed and (job.gpus or job.sharing is not None)
        ]
        return sorted(found, key=lambda job: (job.demoted, *stay_key(job)))

    def _show(self, going: set[JobKey] | frozenset[JobKey], within: set[JobKey] | None = None) -> None:
        """Let the policy see its runs as they are: those who go as leaving, those it may not preempt not."""
        if within is None:
            within = self._within() if self.base.preempts else set()
        for key, (job, changed) in self._running.items():
            shown = OPEN
            if key in going:
                shown = LEAVES
            elif self.base.preempts and (key in within or key in self._fixed):
                shown = SHIELDED
            if shown == self._shown[key]:
                continue
            self._shown[key] = shown
            if shown == LEAVES:
                self.base.leaving(job, changed)
            elif shown == SHIELDED:
                self.base.shielded(job, changed)
            else:
                self.base.admitted(job, changed)


class QuotaRoom:
    """The `Room` in which the policy gives out what guaranteed jobs have left, up to the limits."""

    slots = None  # where it matters whose they are, to count GPUs is not enough

    def __init__(
        self, room: Room, ledger: QuotaLedger, settled: set[JobKey], closed: set[int | None]
    ) -> None:
        """``settled``: who got GPUs already, or waits for some that are kept for it. ``closed``: entries of
        those who wait so."""
        self._room = room
        self.ledger = ledger
        self._settled, self._closed = settled, closed

    def take(self, job: QueueJob) -> bool:
        if self.bars(job) or not self._room.take(job):
            return False
        self.ledger.charge(job.key, job.gpus)
        return True

    def give(self, job: QueueJob) -> None:
        self._room.give(job)

    def bars(self, job: QueueJob) -> bool:
        return self.barred(job, self.ledger)

    def barred(self, job: QueueJob, ledger: QuotaLedger) -> bool:
        """As `bars`, where ``ledger`` is what everybody has."""
        if job.key in self._settled or ledger.bars(job.key, job.gpus):
            return True
        return bool(job.gpus) and ledger.entry(job.key) in self._closed

    def trial(self) -> QuotaTrial:
        return QuotaTrial(self, self._room.trial())


class QuotaTrial:
    """A `PlacementTrial` in a `QuotaRoom`: all that is taken counts against limits, startable now or not."""

    def __init__(self, room: QuotaRoom, trial: PlacementTrial) -> None:
        self._room, self._trial = room, trial
        self._ledger = room.ledger.copy()
        self.give, self.keep, self.withhold = trial.give, trial.keep, trial.withhold

    def take(self, job: QueueJob) -> bool:
        if self._room.barred(job, self._ledger) or not self._trial.take(job):
            return False
        self._ledger.charge(job.key, job.gpus)
        return True

    def commit(self) -> list[QueueJob]:
        started = self._trial.commit()
        for job in started:
            self._room.ledger.charge(job.key, job.gpus)
        return started
