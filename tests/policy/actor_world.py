"""A pool in miniature whose jobs have rollout actors: it carries out what `plan_pool` says, and looks on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pool_world import PoolWorld, histories

from controller.policy.actor_types import Actor, ActorState, Rollout
from controller.policy.types import JobState, JobView, PolicySpec, PoolPlan, Quota

RECALL = 10.0


KINDS = ["submit", "submit", "begin", "begin", "end_step", "one_leaves", "end", "tick", "tick", "tick"]
ops = histories(KINDS, 10, 50)
wild_ops = histories([*KINDS, "guests", "node"], 10, 50)


class ActorWorld(PoolWorld):
    """Nodes, jobs, and what the pool keeps from pass to pass."""

    def __init__(
        self,
        policy: PolicySpec | None = None,
        nodes: dict[str, int] | None = None,
        quotas: Sequence[Quota] = (),
    ) -> None:
        super().__init__(policy, nodes, quotas, RECALL)
        self.were_spare: set[tuple[str, int]] = set()  # actors that were started as spare ones

    # -- what is

    def used(self, *, recalled: bool = True) -> Counter[str]:
        """GPUs by node that pods hold, or will by what is written; ``recalled``: actors that go as well."""
        found = Counter(self.foreign)
        for job in self.jobs.values():
            for node, gpus in job.bound:
                found[node] += gpus
            for actor in job.rollout.actors if job.rollout is not None else ():
                if recalled or actor.stays:
                    found[actor.node] += actor.gpus
        return found

    def reserved(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.lending.reserved:
            for node, gpus in one.places:
                found[node] += gpus
        return found

    def rights(self) -> list[int]:
        """Of base actors that may return and for which nothing is reserved."""
        waiting = Counter(one.target for one in self.lending.reserved if one.returning)
        return [
            job.rollout.gpus
            for job in self.jobs.values()
            if job.rollout is not None and job.state is JobState.ADMITTED
            for _ in range(job.rollout.rights - waiting[job.key])
        ]

    def for_rights(self) -> dict[str, int]:
        """GPUs by node that are free, or of spare actors, and not reserved."""
        used, reserved = self.used(recalled=False), self.reserved()
        for job in self.jobs.values():
            if job.state is JobState.PREEMPTING:  # as soon as it is gone
                for node, gpus in job.bound:
                    used[node] -= gpus
                for actor in job.rollout.staying if job.rollout is not None else ():
                    used[actor.node] -= actor.gpus
            for actor in (
                job.rollout.spare if job.rollout is not None and job.state is JobState.ADMITTED else ()
            ):
                used[actor.node] -= actor.gpus
        # Those that go are not there yet, and of use to rights as soon as they are.
        return {n: g - used[n] - reserved[n] for n, g in self.nodes.items() if n not in self.closed}

    def held(self) -> list[tuple[str, Actor]]:
        """Base actors that stay, each with its job's key."""
        return [
            (key, actor)
            for key, job in self.jobs.items()
            if job.rollout is not None and job.state is JobState.ADMITTED
            for actor in job.rollout.held
        ]

    # -- what happens

    def plan(self) -> PoolPlan:
        """Plan, and carry it out."""
        plan = self.planned()
        for one in plan.admissions:
            job = self.jobs[one.key]
            rollout = job.rollout
            if rollout is not None:
                assert one.actors is not None
                assert len(one.actors) == rollout.base
                entries = tuple(
                    Actor(rollout.next + i, node, rollout.gpus, ActorState.RUNNING)
                    for i, node in enumerate(one.actors)
                )
                rollout = replace(
                    rollout, actors=entries, next=rollout.next + len(entries), wants=len(entries)
                )
            bound = tuple((node, job.gpus_per_replica) for node in one.nodes)
            self.jobs[one.key] = replace(
                job,
                state=JobState.ADMITTED,
                nodes=one.nodes,
                bound=bound,
                since=self.now,
                rollout=rollout,
            )
        for gone in plan.preemptions:
            self.jobs[gone.key] = replace(self.jobs[gone.key], state=JobState.PREEMPTING, since=None)
        if plan.lending is not None:
            for recall in plan.lending.recalls:
                self.change(
                    recall.key,
                    recall.number,
                    state=ActorState.RECALLED,
                    for_whom=recall.for_whom,
                    until=recall.until,
                )
            for start in plan.lending.starts:
                rollout = self.rollout(start.key)
                assert start.number == rollout.next
                entry = Actor(start.number, start.node, start.gpus)
                if start.spare:
                    self.were_spare.add((start.key, start.number))
                self.put(start.key, replace(rollout, actors=(*rollout.actors, entry), next=start.number + 1))
            self.lending = replace(self.lending, reserved=plan.lending.reserved)
        else:
            self.lending = replace(self.lending, reserved=())
        return plan

    def rollout(self, key: str) -> Rollout:
        rollout = self.jobs[key].rollout
        assert rollout is not None
        return rollout

    def put(self, key: str, rollout: Rollout) -> None:
        self.jobs[key] = replace(self.jobs[key], rollout=rollout)

    def change(self, key: str, number: int, **changes) -> None:
        rollout = self.rollout(key)
        found = [replace(a, **changes) if a.number == number else a for a in rollout.actors]
        assert any(a.number == number and a.stays for a in rollout.actors)
        self.put(key, replace(rollout, actors=tuple(found)))

    def add(
        self,
        key: str,
        replicas: int = 1,
        gpus: int = 1,
        base: int | None = None,
        each: int = 1,
        **more,
    ) -> None:
        self.count += 1
        rollout = None if base is None else Rollout(base, each)
        self.jobs[key] = JobView(
            key, self.now, self.count, replicas, gpus, since=self.now, rollout=rollout, **more
        )

    def submit(self, a: int, b: int) -> None:
        key = f"t{a % 3}/{self.count}"
        weight = float(1 + a % 3)
        if b % 3:
            self.add(key, 1 + a % 2, 1 << b % 2, 1 + b % 2, 1 << a % 2, weight=weight, remaining=50.0)
        else:
            self.add(key, 1 + a % 3, 1 << b % 3, weight=weight, remaining=50.0)

    def _some(self, number: int, rollout: bool = True) -> str | None:
        keys = [
            k
            for k, j in self.jobs.items()
            if j.state is JobState.ADMITTED and (j.rollout is not None or not rollout)
        ]
        return keys[number % len(keys)] if keys else None

    def begin(self, a: int, b: int) -> None:
        """A step begins: it wants more than its base."""
        if (key := self._some(a)) is not None:
            rollout = self.rollout(key)
            gain = None if b % 4 == 0 else float(b % 16 - 2)
            self.put(key, replace(rollout, wants=rollout.base + b % 5, gain=gain))

    def end_step(self, a: int, b: int) -> None:
        """A step ends: all its actors are let go."""
        if (key := self._some(a)) is not None:
            self.put(key, replace(self.rollout(key), wants=0, actors=()))

    def one_leaves(self, a: int, b: int) -> None:
        """An actor is let go, or it fails: then it is wanted again."""
        key = self._some(a)
        if key is not None and (rollout := self.rollout(key)).actors:
            gone = rollout.actors[b % len(rollout.actors)]
            wants = max(0, rollout.wants - 1) if b % 2 else rollout.wants
            left = tuple(actor for actor in rollout.actors if actor is not gone)
            self.put(key, replace(rollout, actors=left, wants=wants))

    def end(self, a: int, b: int) -> None:
        if (key := self._some(a, rollout=False)) is not None:
            del self.jobs[key]

    def tick(self, a: int, b: int) -> None:
        """Time goes on: recalled actors are gone at their deadlines, preempted jobs are back in the queue."""
        self.now += 1.0 + a % 12
        for key, job in self.jobs.items():
            if job.state is JobState.PREEMPTING:
                rollout = None if job.rollout is None else replace(job.rollout, actors=(), wants=0)
                self.jobs[key] = replace(
                    job, state=JobState.QUEUED, bound=(), nodes=(), since=self.now, rollout=rollout
                )
            elif job.rollout is not None:
                left = [x for x in job.rollout.actors if x.until is None or x.until > self.now]
                self.put(key, replace(job.rollout, actors=tuple(left)))

    def guests(self, a: int, b: int) -> None:
        """A pod of nobody's comes where GPUs are free, or all such pods leave."""
        node = sorted(self.nodes)[a % len(self.nodes)]
        if b % 3 == 0:
            self.foreign.clear()
        elif self.used()[node] < self.nodes[node]:
            self.foreign[node] += 1
