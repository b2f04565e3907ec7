"""A job's rollout actors: entries before Jobs, recalls by their deadlines, passes cut off anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.actor_types import Actor, ActorStart, ActorState, Recall
from controller.policy.job.actors import (
    ActorDeletion,
    ActorSeen,
    plan_actors,
    with_recalls,
    with_starts,
)

GRACE, TIMEOUT = 5.0, 60.0
STARTING = Actor(1, "n1", 1, since=100.0)
RUNNING = replace(STARTING, state=ActorState.RUNNING)
RECALLED = replace(RUNNING, state=ActorState.RECALLED, for_whom="b/1", until=120.0)
AWAY = replace(RUNNING, state=ActorState.RECALLED, until=110.0)
DELETE = (ActorDeletion(1, GRACE),)


def planned(*actors: Actor, seen: ActorSeen | None = None, now: float = 110.0, leaves: bool = False):
    found = {} if seen is None else {seen.number: seen}
    return plan_actors(actors, found, now, leaves=leaves, grace=GRACE, start_timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("actor", "seen", "now", "kept", "make", "delete", "failed"),
    [
        (STARTING, None, 110.0, STARTING, True, (), ()),
        (STARTING, None, 160.0, None, False, (), (1,)),  # it could not be made
        (STARTING, ActorSeen(1), 110.0, STARTING, False, (), ()),
        (STARTING, ActorSeen(1, ready=True), 110.0, RUNNING, False, (), ()),
        (STARTING, ActorSeen(1, over=True), 110.0, None, False, DELETE, (1,)),
        (RUNNING, None, 110.0, None, False, (), (1,)),  # gone: it gets no second pod
        (RUNNING, ActorSeen(1, over=True, deleting=True), 110.0, None, False, (), (1,)),
        (RUNNING, ActorSeen(1, away=True), 110.0, AWAY, False, DELETE, (1,)),  # its node is: another starts
        (STARTING, ActorSeen(1, away=True), 110.0, AWAY, False, DELETE, (1,)),
        (AWAY, ActorSeen(1, away=True, deleting=True), 110.0, AWAY, False, (), ()),  # its GPUs are held
        (
            RUNNING,
            ActorSeen(1, away=True, deleting=True),
            110.0,
            RUNNING,
            False,
            (),
            (),
        ),  # it was let go before
        (RECALLED, ActorSeen(1, away=True), 110.0, RECALLED, False, (), ()),
        (RECALLED, ActorSeen(1, ready=True), 119.0, RECALLED, False, (), ()),
        (RECALLED, ActorSeen(1, ready=True), 120.0, RECALLED, False, DELETE, ()),
        (RECALLED, ActorSeen(1, ready=True, deleting=True), 120.0, RECALLED, False, (), ()),
        (RECALLED, ActorSeen(1, over=True), 110.0, None, False, DELETE, ()),
        (RECALLED, None, 110.0, None, False, (), ()),
    ],
)
def test_one_pass(actor, seen, now, kept, make, delete, failed):
    plan = planned(actor, seen=seen, now=now)
    assert plan.actors == (() if kept is None else (kept,))
    assert plan.make == ((actor,) if make else ())
    assert (plan.delete, plan.failed) == (delete, failed)
    assert plan.settled == (kept is None)


def test_never_ready_is_put_aside():
    plan = planned(STARTING, seen=ActorSeen(1), now=160.0)
    assert plan.failed == (1,)
    assert plan.delete == DELETE
    (actor,) = plan.actors
    assert actor.state is ActorState.RECALLED  # its GPUs are its own until the pod is gone
    assert planned(actor, seen=ActorSeen(1, deleting=True), now=170.0).failed == ()


def test_where_another_pod_was_put_there_it_is_put_aside_sooner():
    seen = {1: ActorSeen(1)}
    times = {"leaves": False, "grace": GRACE, "start_timeout": TIMEOUT, "bind_timeout": 20.0}
    plan = plan_actors((STARTING,), seen, 119.0, **times)
    assert (plan.failed, plan.wake_at) == ((), 120.0)
    assert plan_actors((STARTING,), seen, 120.0, **times).failed == (1,)
    assert plan_actors((STARTING,), {1: ActorSeen(1, bound=119.0)}, 120.0, **times).failed == ()


@pytest.mark.parametrize("actor", [STARTING, RUNNING, RECALLED])
def test_job_that_leaves_takes_its_actors_along(actor):
    plan = planned(actor, seen=ActorSeen(1, ready=True), leaves=True)
    assert plan.delete == DELETE
    assert not plan.settled
    gone = planned(*plan.actors, leaves=True)
    assert gone.settled
    assert not gone.make
    assert not gone.failed


def test_job_without_entry_is_nobodys():
    plan = planned(seen=ActorSeen(7, ready=True))
    assert plan.delete == (ActorDeletion(7, GRACE),)
    assert not plan.settled
    assert planned(seen=ActorSeen(7, over=True, deleting=True)).settled


def test_wakes_at_the_next_deadline():
    assert planned(RECALLED, seen=ActorSeen(1, ready=True)).wake_at == 120.0
    assert planned(STARTING, seen=ActorSeen(1)).wake_at == 160.0
    assert planned(RUNNING, seen=ActorSeen(1, ready=True)).wake_at is None


def test_starts_and_recalls_twice_are_as_once():
    start = ActorStart("a/1", 1, "n1", 1)
    once = with_starts((), [start], 100.0)
    assert once == (STARTING,)
    assert with_starts(once, [start], 200.0) == once
    recalled = with_recalls(once, [Recall("a/1", 1, "b/1", 120.0)])
    assert with_recalls(recalled, [Recall("a/1", 1, "c/1", 500.0)]) == recalled


class Cluster:
    """Jobs by number, as pods go through their lives; a record; an operator that may die after each write."""

    def __init__(self) -> None:
        self.record: tuple[Actor, ...] = ()
        self.jobs: dict[int, ActorSeen] = {}
        self.made: list[int] = []
        self.was_ready: set[int] = set()
        self.now, self.next = 0.0, 0

    def look(self) -> None:
        entries = {actor.number for actor in self.record}
        live = {number for number, job in self.jobs.items() if not job.over}
        assert live <= entries, "a pod has GPUs that are charged to nobody"

    def run(self, writes: int, leaves: bool = False) -> None:
        """One pass, of which only so many writes are made."""
        plan = plan_actors(
            self.record, self.jobs, self.now, leaves=leaves, grace=GRACE, start_timeout=TIMEOUT
        )
        todo = [lambda: setattr(self, "record", plan.actors)]
        todo += [lambda n=one.number: self.make(n) for one in plan.make]
        todo += [lambda n=one.number: self.delete(n) for one in plan.delete]
        for write in todo[:writes]:
            write()
            self.look()

    def make(self, number: int) -> None:
        assert number not in self.was_ready, "an actor got a second pod"
        if number not in self.jobs:
            self.jobs[number] = ActorSeen(number)
            self.made.append(number)

    def delete(self, number: int) -> None:
        self.jobs[number] = replace(self.jobs[number], deleting=True)

    def pods(self, choice: int) -> None:
        """Some pods become ready, end, or are gone."""
        for number, job in list(self.jobs.items()):
            turn = (choice + number) % 4
            if job.deleting and turn < 2:
                del self.jobs[number]
            elif not job.deleting and turn == 2 and not job.over:
                self.jobs[number] = replace(job, ready=True)
                self.was_ready.add(number)
            elif turn == 3 and choice % 3 == 0:
                self.jobs[number] = replace(job, over=True, ready=False)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("srpw"), st.integers(0, 30)), max_size=40))
def test_passes_cut_off_anywhere_leave_no_pod_without_an_account(happens):
    it = Cluster()
    for what, number in happens:
        it.now += number % 7
        if what == "s":
            it.record = with_starts(it.record, [ActorStart("a/1", it.next, "n1", 1)], it.now)
            it.next += 1
        elif what == "r" and it.record:
            chosen = it.record[number % len(it.record)].number
            it.record = with_recalls(it.record, [Recall("a/1", chosen, "b/1", it.now + 10.0)])
        elif what == "p":
            it.pods(number)
        else:
            it.run(number % 5)
        it.look()
    for _ in range(12):
        it.run(100, leaves=True)
        for number in range(4):
            it.pods(number)
    assert not it.record
    assert not it.jobs
