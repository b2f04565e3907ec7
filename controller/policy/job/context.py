"""The state of one pass over a job: the record as it will be, and the actions collected so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.policy.job.conditions import Conditions
from controller.policy.job.event import Event
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Action, Desired, MakeActor, Observed, Plan
from controller.policy.types import JobState, Problem, Proposal


class PlanContext:
    """One pass over one job. Lives only as long as `lifecycle.plan` runs."""

    def __init__(self, desired: Desired, observed: Observed, record: JobRecord, now: float) -> None:
        self.desired = desired
        self.observed = observed
        self.record = record
        self.now = now
        self.conditions = Conditions(record.conditions, desired.generation, now)
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.wake: float | None = None
        # Why the spec cannot be carried out: then nobody is admitted, nor stopped by a rule.
        self.problem: Problem | None = None
        self.actors_left = 0  # rollout actors that hold GPUs, or will (`rollout_actors`)
        self.use: RuleInUse | None = None  # by which its evals are taken in; None: the spec names no metric

    def update(self, **changes: Any) -> None:
        """Change fields of the record; where that changes nothing it stays the very same one."""
        if any(getattr(self.record, name) != value for name, value in changes.items()):
            self.record = replace(self.record, **changes)

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(Event(reason, message, warning))

    def wake_in(self, seconds: float) -> None:
        """Plan again after this long, though nothing happened; the soonest wins."""
        self.wake = seconds if self.wake is None else min(self.wake, seconds)

    @property
    def pods_left(self) -> int:
        """Pods that still hold what they asked for: neither gone nor terminal."""
        return sum(1 for p in self.observed.pods if not p.terminal)

    @property
    def layout(self) -> str:
        """The layout of the checkpoint folder, by the spec or as it was found; "": not known."""
        return self.record.layout_of(self.desired.layout)

    def plan(self, queue: JobState | None, proposal: Proposal | None = None) -> Plan:
        conditions = self.conditions.result()
        if conditions != self.record.conditions:
            self.update(conditions=conditions)
        events = (*self.conditions.events, *self.events)
        # An actor that the cluster refuses keeps nothing else from being done.
        actions = sorted(self.actions, key=lambda action: isinstance(action, MakeActor))
        return Plan(self.record, tuple(actions), events, queue, proposal, self.wake)
