"""A virtual cluster of worker groups: jobs arrive, get residencies by the policy, take turns, end or leave.

The policy decides everything: `plan_placements` who starts where, `TurnQueue` whose turn it is, `Profile`
when a kind is known, `too_slow` who leaves. Here it is carried out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace

from controller.frozen import dataclass
from controller.policy.sharing import (
    SECOND,
    GroupSupply,
    Profile,
    RecordedTurn,
    Resident,
    SharingSettings,
    Slowness,
    TurnQueue,
    WorkerGroup,
    gpu_seconds,
    plan_placements,
    too_slow,
)
from controller.policy.wording import counted
from sim.kernel import Kernel
from sim.sharing.group import VirtualGroup, VirtualResident
from sim.sharing.trace import ReplaySetting, TraceJob, families, trace
from sim.sharing.workload import turns

PLENTY = 1 << 40  # private GPUs where those are not scarce
NAMESPACE = "research"


@dataclass(frozen=True, slots=True)
class ReplayTrial:
    """One replay. ``private``: private GPUs come from the same GPUs as groups; else there are plenty."""

    setting: ReplaySetting
    placement: str
    backfill: bool
    private: bool
    seed: int


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of a trace.

    Args:
        makespan: s until the last job ended.
        completion: s from arrival to end, mean.
        waited: s from arrival to the first start, mean.
        slowdowns: of each job, its steps by what they would have taken alone.
        preempted: residents that left because somebody stayed too slow.
        charged: GPU-seconds of groups that jobs were charged.
        vacant: GPU-seconds of groups without residents.
        turns: that were taken.
    """

    makespan: float
    completion: float
    waited: float
    slowdowns: tuple[float, ...]
    preempted: int
    charged: float
    vacant: float
    turns: int


class _Job:
    """A job's way: waiting, resident, ended."""

    __slots__ = ("began", "ended", "entry", "running", "slowness", "spec", "view")

    def __init__(self, spec: TraceJob, seed: int, switch: int) -> None:
        self.spec = spec
        load = switch // 2
        times = turns(spec.kind.law, spec.steps, seed)
        self.running = VirtualResident(spec.key, spec.row, times, load=load, offload=switch - load)
        self.view = Resident(spec.key, "", NAMESPACE, 1)
        self.slowness = Slowness()
        self.began = self.ended = -1
        self.entry: _Entry | None = None

    def lasts(self, start: int) -> int:
        left = self.spec.steps - self.running.place
        return start + round(left * self.spec.kind.law.cycle * SECOND)


@dataclasses.dataclass(slots=True)
class _Entry:
    """A group that is open: as the policy sees it, and as it runs."""

    view: WorkerGroup
    group: VirtualGroup
    jobs: list[_Job]


class VirtualPool:
    """One replay on a kernel of its own."""

    def __init__(self, trial: ReplayTrial) -> None:
        setting = self.setting = trial.setting
        self.trial, self.kernel = trial, Kernel()
        self.settings = SharingSettings(
            placement=trial.placement,
            backfill=trial.backfill,
            max_residents=setting.max_residents,
            max_duty_percent=setting.max_duty,
        )
        self.families = families(setting)
        self.free = setting.gpus
        self.private = None if trial.private else PLENTY
        self.start = round(setting.start * SECOND)
        self.profiles: dict[str, Profile] = {}
        self.jobs: dict[str, _Job] = {}
        self.by_row: dict[VirtualResident, _Job] = {}
        self.waiting: dict[str, _Job] = {}  # in the order of arrival
        self.groups: dict[str, _Entry] = {}
        self.opened = self.came = self.preempted = self.turns = 0
        self.charged = self.vacant = 0
        self._arrived: list[_Job] = []
        self._freed = False

    def run(self) -> ReplayOutcome:
        """Play the whole trace."""
        found = trace(self.setting, self.trial.seed, self.trial.private)
        times: Iterator[float] = iter([float(job.arrives) for job in found])
        self.kernel.run(iter([int(t) for t in times]), iter(found), self._arrive, self._settle)
        if self.waiting or any(job.ended < 0 for job in self.jobs.values()):
            raise RuntimeError(
                f"{counted(len(self.waiting), 'job')} never started: a group of theirs is too large"
            )
        for name in list(self.groups):
            self._close(name)
        jobs = list(self.jobs.values())
        ends = [job.ended for job in jobs]
        return ReplayOutcome(
            max(ends) / SECOND,
            sum(end - job.spec.arrives for end, job in zip(ends, jobs, strict=True)) / len(jobs) / SECOND,
            sum(job.began - job.spec.arrives for job in jobs) / len(jobs) / SECOND,
            tuple(job.running.took / job.running.alone if job.running.alone else 1.0 for job in jobs),
            self.preempted,
            float(gpu_seconds(self.charged)),
            float(gpu_seconds(self.vacant)),
            self.turns,
        )

    def _arrive(self, spec: TraceJob, _: float) -> None:
        cycle = spec.kind.law.cycle * SECOND
        job = _Job(spec, self.trial.seed * 1_000_003 + spec.row, round(self.setting.switch * cycle))
        self.jobs[spec.key] = self.by_row[job.running] = job
        self._queue(job)
        self._arrived.append(job)

    def _queue(self, job: _Job) -> None:
        kind = job.spec.kind
        self.waiting[job.spec.key] = job
        job.view = Resident(
            job.spec.key,
            kind.model.name,
            NAMESPACE,
            kind.state_bytes,
            self.profiles.get(kind.name),
            self.setting.max_slowdown,
            private_gpus=kind.model.rollout,
            lasts=job.lasts(self.start),
            not_in=job.view.not_in,
        )

    def _settle(self, now: float) -> None:
        """Place who can be placed. A mere arrival changes nothing for those who wait already."""
        arrived, self._arrived = self._arrived, []
        if self._freed or len(arrived) == len(self.waiting):
            asked = list(self.waiting.values())
        else:
            asked = [next(iter(self.waiting.values())), *arrived]
        self._freed = False
        if not asked:
            return
        supply = GroupSupply(
            tuple(entry.view for entry in self.groups.values()),
            self.families,
            self.free,
            self.private,
            self.opened + 1,
        )
        plan = plan_placements([job.view for job in asked], supply, self.settings, int(now))
        for name in plan.closes:
            self._close(name)
        for placed in plan.placed:
            self._start(self.waiting.pop(placed.key), placed.group, placed.opens, int(now))

    def _start(self, job: _Job, name: str, opens: bool, now: int) -> None:
        model = job.spec.kind.model
        if opens:
            self.free -= model.training
            queue: TurnQueue[VirtualResident] = TurnQueue()
            group = VirtualGroup(self.kernel, model.training, queue, self._ended, self._stepped)
            self.groups[name] = _Entry(WorkerGroup(name, model.name), group, [])
            self.opened += 1
        if self.private is None:
            self.free -= model.rollout
        entry = self.groups[name]
        self.came += 1
        lasts = job.view.lasts
        assert lasts is not None
        job.view = replace(job.view, came=self.came, ends=now + lasts, lasts=None)
        entry.view = entry.view.joined(job.view)
        entry.jobs.append(job)
        job.entry = entry
        if job.began < 0:
            job.began = now
        for one in entry.jobs:
            one.slowness = Slowness()
        entry.group.join(job.running, now + self.start)

    def _leave(self, job: _Job) -> None:
        """Take a resident out of its group's books; its GPUs are free."""
        entry = job.entry
        assert entry is not None
        entry.jobs.remove(job)
        entry.view = entry.view.left(job.spec.key)
        job.entry = None
        if self.private is None:
            self.free += job.spec.kind.model.rollout
        for one in entry.jobs:
            one.slowness = Slowness()
        if not entry.jobs and self.waiting:
            self._close(entry.view.name)
        self._freed = True

    def _close(self, name: str) -> None:
        entry = self.groups.pop(name)
        now = int(self.kernel.now)
        self.charged += entry.group.charges.total(now)
        self.vacant += entry.group.charges.vacant(now)
        self.turns += entry.group.turns
        self.free += self.families[entry.view.family].gpus

    def _ended(self, running: VirtualResident) -> None:
        job = self.by_row[running]
        job.ended = int(self.kernel.now)
        self._leave(job)

    def _stepped(self, running: VirtualResident, took: int, alone: int) -> bool:
        job = self.by_row[running]
        entry = job.entry
        assert entry is not None
        if len(entry.jobs) == 1:
            return self._measure(job)
        job.slowness = job.slowness.step(took, alone, self.setting.max_slowdown)
        if not job.slowness.above:
            return False
        measured = {one.spec.key: one.slowness for one in entry.jobs}
        found = too_slow(entry.view.residents, measured)
        if found is None:
            return False
        last = self.jobs[found.leaves]
        entry.group.leave(last.running)
        name = entry.view.name
        self._leave(last)
        last.view = replace(last.view, not_in=last.view.not_in | {name})
        # It keeps its place in the queue: by arrival.
        self._queue(last)
        self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1].spec.row))
        self.preempted += 1
        return True

    def _measure(self, job: _Job) -> bool:
        """Count a step alone while its kind is not known; return whether it is known now."""
        kind = job.spec.kind.name
        profile = self.profiles.get(kind, Profile(kind))
        if profile.known:
            return False
        running = job.running
        place = running.place - 1
        turn = RecordedTurn(running.away[place], running.held[place])
        load = running.load if not profile.loads else None
        profile = profile.with_step([turn], load, None if load is None else running.offload)
        self.profiles[kind] = profile
        if not profile.known:
            return False
        for entry in self.groups.values():
            residents = tuple(
                replace(one, profile=profile) if self.jobs[one.key].spec.kind.name == kind else one
                for one in entry.view.residents
            )
            entry.view = replace(entry.view, residents=residents)
        for one in self.waiting.values():
            if one.spec.kind.name == kind:
                one.view = replace(one.view, profile=profile)
        self._freed = True
        return True


def perform(trial: ReplayTrial) -> ReplayOutcome:
    """Return a replay's outcome."""
    return VirtualPool(trial).run()
