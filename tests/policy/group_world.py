"""A pool in miniature whose jobs share worker groups: it carries out what `plan_pool` says, and looks on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pool_world import PoolWorld, histories

from controller.policy.actor_types import Actor, ActorState, Rollout
from controller.policy.group_types import (
    FamilyTerms,
    GroupView,
    KindProfile,
    Lingering,
    PoolSharing,
    SharedTraining,
)
from controller.policy.pool.groups import SLOWS_OTHERS, with_shares
from controller.policy.sharing import SECOND, Profile, RecordedTurn
from controller.policy.types import JobState, JobView, PolicySpec, PoolPlan, Quota

GB = 10**9
DENSE = FamilyTerms("dense", 2, 2, 80 * GB, 2 * GB, 200 * GB)
SMALL = FamilyTerms("small", 1, 1, 80 * GB, 2 * GB, 200 * GB)


def profile(kind: str, duty: float, cycle: float = 100.0) -> KindProfile:
    """Return a measured kind: it holds the group for a share of each cycle (s)."""
    held = round(duty * cycle * SECOND)
    turns = (RecordedTurn(round(cycle * SECOND) - held, held),) * 5
    found = Profile(kind, turns, loads=(SECOND,), offloads=(SECOND,))
    assert found.known
    return KindProfile(kind, turns, loads=found.loads, offloads=found.offloads)


PROFILES = (profile("light", 0.1), profile("half", 0.5))


KINDS = [
    "shared",
    "shared",
    "shared",
    "gang",
    "actors",
    "end",
    "end",
    "stop",
    "tick",
    "tick",
    "tick",
    "wants",
]
ops = histories(KINDS, 8, 40)
wild_ops = histories([*KINDS, "guests", "node", "late", "slow", "delete"], 8, 40)


class GroupWorld(PoolWorld):
    """Nodes, jobs, groups, and what the pool keeps from pass to pass.

    Attributes:
        gone_at: when the worker and state of a job that runs no more will be gone, by key.
    """

    def __init__(
        self,
        policy: PolicySpec | None = None,
        nodes: dict[str, int] | None = None,
        quotas: Sequence[Quota] = (),
        **terms: object,
    ) -> None:
        super().__init__(policy, nodes, quotas, 5.0)
        self.groups: dict[str, GroupView] = {}
        self.namespaces: dict[str, str] = {}  # of each group's residents, past or present
        self.gone_at: dict[str, float] = {}
        self.terms = PoolSharing((DENSE, SMALL), profiles=PROFILES, **terms)  # type: ignore[arg-type]
        self.binds = True  # pods find their nodes

    # -- what is

    def sharing(self) -> PoolSharing:
        return replace(self.terms, groups=tuple(self.groups.values()))

    def used(self) -> Counter[str]:
        """GPUs by node that pods hold, or will by what is written."""
        found = Counter(self.foreign)
        for job in self.jobs.values():
            if job.state is not JobState.QUEUED:
                for node, gpus in job.bound or [(node, job.gpus_per_replica) for node in job.nodes]:
                    found[node] += gpus
            for actor in job.rollout.actors if job.rollout is not None else ():
                found[actor.node] += actor.gpus
        for group in self.groups.values():
            for node, gpus in group.bound or [(node, group.gpus) for node in group.nodes]:
                found[node] += gpus
        return found

    def residents(self, name: str) -> list[JobView]:
        return [j for j in self.jobs.values() if j.sharing is not None and j.sharing.group == name]

    # -- what happens

    def add(self, key: str, replicas: int = 1, gpus: int = 1, **more: object) -> JobView:
        self.jobs[key] = job = JobView(key, self.now, self.count, replicas, gpus, since=self.now, **more)  # type: ignore[arg-type]
        self.count += 1
        return job

    def share(
        self,
        key: str,
        family: str = "dense",
        kind: str = "light",
        gigabytes: int = 30,
        gpus: int = 0,
        **more: object,
    ) -> JobView:
        wish = SharedTraining(family, gigabytes * GB, kind)
        return self.add(key, 1, gpus, sharing=wish, **more)

    def plan(self) -> PoolPlan:
        plan = self.planned()
        self._carry_out(plan)
        self.look(plan)
        return plan

    def shared(self, a: int, b: int) -> None:
        family, kind = ("dense", "small")[b % 2], ("light", "half", "", "light")[a % 4]
        self.share(
            f"{'ab'[a // 4 % 2]}/{self.count}",
            family,
            kind,
            10 + b,
            b // 8 % 2,
            priority=a % 3,
            remaining=self._lasts(b),
        )

    def gang(self, a: int, b: int) -> None:
        self.add(
            f"{'ab'[a % 2]}/{self.count}", 1 + b % 2, 1 + a % 4, priority=b % 3, remaining=self._lasts(a)
        )

    def actors(self, a: int, b: int) -> None:
        wish = SharedTraining("small", 20 * GB, "light") if b % 2 else None
        rollout = Rollout(1 + a % 2, 1)
        self.add(f"{'ab'[a // 2 % 2]}/{self.count}", 1, 1, rollout=rollout, sharing=wish)

    def _lasts(self, number: int) -> float | None:
        return None if number % 3 == 0 else float(10 + number)

    def wants(self, a: int, b: int) -> None:
        for job in self._some(a, lambda j: j.rollout is not None and j.state is JobState.ADMITTED):
            assert job.rollout is not None
            self.jobs[job.key] = replace(job, rollout=replace(job.rollout, wants=b % 5))

    def end(self, a: int, b: int) -> None:
        for job in self._some(a, lambda j: j.state is JobState.ADMITTED):
            self._leaves(job.key, back=False)

    def stop(self, a: int, b: int) -> None:
        """A preemption of its own: as though an administrator wished it."""
        for job in self._some(a, lambda j: j.state is JobState.ADMITTED):
            self.jobs[job.key] = replace(job, state=JobState.PREEMPTING, unbound=0)

    def delete(self, a: int, b: int) -> None:
        for job in self._some(a, lambda j: j.sharing is not None and bool(j.sharing.group)):
            assert job.sharing is not None
            name = job.sharing.group
            del self.jobs[job.key]
            if name in self.groups:
                group = self.groups[name]
                self.groups[name] = replace(
                    group, lingering=(*group.lingering, Lingering(job.key, job.sharing.state_bytes))
                )
                self.gone_at[job.key] = self.now + 3.0

    def slow(self, a: int, b: int) -> None:
        for job in self._some(a, lambda j: j.sharing is not None and j.state is JobState.ADMITTED):
            assert job.sharing is not None
            self.jobs[job.key] = replace(
                job,
                sharing=replace(
                    job.sharing, slowness=job.sharing.slowness._replace(took=2.0, alone=1.0, above=b)
                ),
            )

    def late(self, a: int, b: int) -> None:
        """From now on pods find their nodes, or do not."""
        self.binds = bool(a % 2)

    def guests(self, a: int, b: int) -> None:
        node = sorted(self.nodes)[a % len(self.nodes)]
        self.foreign[node] = min(b % 3, max(0, self.nodes[node] - (self.used()[node] - self.foreign[node])))

    def tick(self, a: int, b: int) -> None:
        self.pass_time(1.0 + b % 8)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for job in list(self.jobs.values()):
            if job.state in (JobState.PREEMPTING, JobState.STOPPING):
                self._leaves(job.key, back=job.state is JobState.PREEMPTING)
            elif job.state is JobState.ADMITTED:
                remaining = None if job.remaining is None else job.remaining - seconds
                job = replace(job, remaining=None if remaining is None else max(0.0, remaining))
                job = replace(job, attained=job.attained + seconds * job.gpus)
                self.jobs[job.key] = self._recalled(self._bound(job))
                if remaining is not None and remaining <= 0:
                    self._leaves(job.key, back=False)
        for key, at in list(self.gone_at.items()):
            if self.now >= at:
                del self.gone_at[key]
                self._worker_gone(key)
        for name, group in list(self.groups.items()):
            if group.closing:
                del self.groups[name]
            elif self.binds and group.unbound:
                bound = tuple((node, group.gpus) for node in group.nodes)
                self.groups[name] = replace(group, bound=bound, unbound=0, ready=True)
        self._note_empty()

    def settle(self, most: int = 400) -> bool:
        """Let time pass until every job has ended; say whether that came."""
        self.closed.clear()
        self.foreign.clear()
        self.binds = True
        for _ in range(most):
            if not self.jobs:
                return True
            for job in list(self.jobs.values()):
                if job.remaining is None:
                    self.jobs[job.key] = replace(job, remaining=20.0)
            self.pass_time(5.0)
            self.plan()
        return not self.jobs

    # -- parts

    def _some(self, number: int, which) -> list[JobView]:
        found = [job for job in self.jobs.values() if which(job)]
        return [found[number % len(found)]] if found else []

    def _bound(self, job: JobView) -> JobView:
        if job.unbound and self.binds:
            return replace(job, bound=tuple((n, job.gpus_per_replica) for n in job.nodes), unbound=0)
        return job

    def _recalled(self, job: JobView) -> JobView:
        if job.rollout is None:
            return job
        stay = [a for a in job.rollout.actors if a.until is None or a.until > self.now]
        return replace(job, rollout=replace(job.rollout, actors=tuple(stay)))

    def _leaves(self, key: str, *, back: bool) -> None:
        """A job's pods are gone; its worker stays a little longer."""
        job = self.jobs[key]
        rollout = None if job.rollout is None else replace(job.rollout, actors=(), wants=0)
        name = "" if job.sharing is None else job.sharing.group
        if name and name in self.groups:
            self.gone_at[key] = self.now + 3.0
        elif name:
            job = replace(job, sharing=replace(job.sharing, group=""))
        if back:
            self.jobs[key] = replace(
                job, state=JobState.QUEUED, bound=(), nodes=(), unbound=0, rollout=rollout, since=self.now
            )
            return
        del self.jobs[key]
        if name and name in self.groups:
            group = self.groups[name]
            assert job.sharing is not None
            self.groups[name] = replace(
                group, lingering=(*group.lingering, Lingering(key, job.sharing.state_bytes))
            )

    def _worker_gone(self, key: str) -> None:
        job = self.jobs.get(key)
        if job is not None and job.sharing is not None and job.state is JobState.QUEUED:
            self.jobs[key] = replace(job, sharing=replace(job.sharing, group=""))
        for name, group in self.groups.items():
            self.groups[name] = replace(
                group, lingering=tuple(one for one in group.lingering if one.key != key)
            )

    def _note_empty(self) -> None:
        for job in list(self.jobs.values()):
            if job.sharing is not None and job.sharing.group and job.sharing.group not in self.groups:
                self.jobs[job.key] = replace(job, sharing=replace(job.sharing, group=""))
        for name, group in self.groups.items():
            empty = not self.residents(name) and not group.lingering
            since = (self.now if group.empty_since is None else group.empty_since) if empty else None
            self.groups[name] = replace(group, empty_since=since)

    def _carry_out(self, plan: PoolPlan) -> None:
        shared = plan.sharing
        assert shared is not None
        for opening in shared.openings:
            terms = next(t for t in self.terms.families if t.name == opening.family)
            assert opening.name not in self.groups
            assert len(opening.nodes) == terms.replicas
            self.groups[opening.name] = GroupView(
                opening.name,
                terms.name,
                terms.replicas,
                terms.gpus,
                opening.nodes,
                unbound=terms.replicas,
                opened=self.now,
                ready=False,
            )
            self.namespaces[opening.name] = opening.first.partition("/")[0]
        self.terms = replace(self.terms, next_group=shared.next_group)
        for preempted in plan.preemptions:
            job = self.jobs[preempted.key]
            assert job.state is JobState.ADMITTED
            job = replace(job, state=JobState.PREEMPTING, unbound=0)
            if preempted.reason == SLOWS_OTHERS and job.sharing is not None:
                job = replace(
                    job, sharing=replace(job.sharing, not_in=(*job.sharing.not_in, job.sharing.group))
                )
            self.jobs[preempted.key] = job
        for grant in plan.grants:
            self.jobs[grant.key] = replace(self.jobs[grant.key], state=JobState.STOPPING, unbound=0)
        lent = plan.lending
        for recall in lent.recalls if lent is not None else ():
            job = self.jobs[recall.key]
            assert job.rollout is not None
            actors = tuple(
                replace(a, state=ActorState.RECALLED, until=recall.until, for_whom=recall.for_whom)
                if a.number == recall.number
                else a
                for a in job.rollout.actors
            )
            self.jobs[job.key] = replace(job, rollout=replace(job.rollout, actors=actors))
        for admission in plan.admissions:
            job = self.jobs[admission.key]
            assert job.state is JobState.QUEUED
            assert (job.sharing is None) == (admission.group is None)
            if job.sharing is not None:
                assert admission.group in self.groups
                job = replace(
                    job,
                    sharing=replace(
                        job.sharing, group=admission.group, number=job.attempt + 1, since=self.now
                    ),
                )
                group = self.groups[admission.group]
                self.groups[group.name] = replace(group, empty_since=None)
                self.namespaces[group.name] = job.namespace
            assert len(admission.nodes) == (job.replicas if job.gpus_per_replica else 0)
            if job.rollout is not None:
                assert admission.actors is not None
                assert len(admission.actors) == job.rollout.base
                first = job.rollout.next
                actors = tuple(
                    Actor(first + i, node, job.rollout.gpus, ActorState.RUNNING, self.now)
                    for i, node in enumerate(admission.actors)
                )
                job = replace(job, rollout=replace(job.rollout, actors=actors, next=first + len(actors)))
            self.jobs[job.key] = replace(
                job,
                state=JobState.ADMITTED,
                nodes=admission.nodes,
                unbound=len(admission.nodes),
                since=self.now,
                attempt=job.attempt + 1,
            )
        for start in lent.starts if lent is not None else ():
            job = self.jobs[start.key]
            assert job.rollout is not None
            actor = Actor(start.number, start.node, start.gpus, ActorState.RUNNING, self.now)
            rollout = replace(job.rollout, actors=(*job.rollout.actors, actor), next=start.number + 1)
            self.jobs[job.key] = replace(job, rollout=rollout)
        if lent is not None:
            self.lending = replace(self.lending, reserved=lent.reserved)
        for closing in shared.closings:
            group = self.groups[closing.name]
            running = [j for j in self.residents(closing.name) if j.state is JobState.ADMITTED]
            assert not running, (closing, running)
            self.groups[closing.name] = replace(group, closing=True)

    # -- what must hold

    def look(self, plan: PoolPlan) -> None:
        used = self.used()
        for node, gpus in self.nodes.items():
            assert used[node] <= gpus, (node, used[node], gpus)
        shares = Counter()
        for job in with_shares(self.snapshot()).jobs:
            if job.sharing is not None and job.state is not JobState.QUEUED:
                shares[job.sharing.group] += job.sharing.share
        for name, group in self.groups.items():
            mine = self.residents(name)
            assert len(mine) + len(group.lingering) <= self.terms.max_residents
            assert len({job.namespace for job in mine}) <= 1
            assert all(job.sharing is not None and job.sharing.family == group.family for job in mine)
            runs = [job for job in mine if job.state is not JobState.QUEUED]
            assert shares[name] == (group.replicas * group.gpus if runs else 0)
            if len(mine) > 1:
                assert all(job.sharing is not None and job.sharing.kind for job in mine)  # measured alone
        for quota in self.quotas:
            if quota.limit is not None:
                assert self.has(quota) <= quota.limit

    def has(self, quota: Quota) -> int:
        """GPUs that namespaces hold, their groups' among them, by pods and entries."""
        found = 0
        for job in self.jobs.values():
            if job.namespace in quota.namespaces and job.state is not JobState.QUEUED:
                found += job.private_gpus + job.spare_gpus
        for name, group in self.groups.items():
            runs = any(j.state is not JobState.QUEUED for j in self.residents(name))
            if runs and self.namespaces[name] in quota.namespaces:
                found += group.replicas * group.gpus
        return found
