"""What a worker group needs next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.pool.group_plan import GroupSight, GroupStep, plan_group
from controller.policy.pool.group_record import GroupRecord, GroupResident, closed

NODES = ("n1", "n2")
ONE = GroupResident("u1-1", "team/one", 10, 5.0)
TWO = GroupResident("u2-1", "team/two", 10, 6.0)
NEW = GroupRecord(opened=1.0, nodes=NODES)
BOUND = replace(NEW, members=("p0", "p1"), bound_at=2.0, residents=(ONE,))
RUNS = GroupSight(2, (1,), 2, ("p0", "p1"), 2, wanted={ONE.name: ONE})


def step(record: GroupRecord, sight: GroupSight) -> GroupStep:
    return plan_group(record, sight, 1, 9.0)


def why(record: GroupRecord) -> tuple[bool, str]:
    (condition,) = record.conditions
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("record", "sight", "make", "delete", "end", "ready"),
    [
        (NEW, GroupSight(2), True, (), False, "WaitingForNodes"),
        (NEW, GroupSight(2, (1,), 1, ("p0", ""), 1), False, (), False, "WaitingForNodes"),
        (NEW, GroupSight(2, problem=("JobRefused", "no")), False, (), False, "JobRefused"),
        (BOUND, RUNS, False, (), False, "Starting"),
        (BOUND, replace(RUNS, ready=True), False, (), False, "GrantsTurns"),
        # a member is lost: the Job goes, and the next start waits for the end of its last pod
        (BOUND, replace(RUNS, pods=1, uids=("p0", ""), lost=True), False, (1,), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2, (1,), 1), False, (1,), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2, (), 1), False, (), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2), True, (), False, "WaitingForNodes"),
        (BOUND, replace(RUNS, starts=(), pods=0, uids=(), bound=0), True, (), False, "WaitingForNodes"),
        (closed(BOUND, "Empty", "m"), RUNS, False, (1,), False, "Empty"),
        (closed(BOUND, "Empty", "m"), GroupSight(2, (), 1), False, (), False, "Empty"),
        (closed(BOUND, "Empty", "m"), GroupSight(2), False, (), True, "Empty"),
        (BOUND, replace(RUNS, deleting=True), False, (1,), False, "Starting"),
        (BOUND, GroupSight(2, deleting=True), False, (), False, "Starting"),
    ],
)
def test_steps(
    record: GroupRecord, sight: GroupSight, make: bool, delete: tuple[int, ...], end: bool, ready: str
) -> None:
    found = step(record, sight)
    assert (found.make, found.delete, found.end) == (make, delete, end)
    assert why(found.record) == (ready == "GrantsTurns", ready)


def test_members_are_those_that_were_bound_together() -> None:
    assert step(NEW, replace(RUNS, bound=1)).record.members == ()
    found = step(NEW, RUNS).record
    assert (found.members, found.bound_at, found.ready_at) == (("p0", "p1"), 9.0, None)
    assert step(found, replace(RUNS, ready=True)).record.ready_at == 9.0


def test_a_resident_has_joined_when_a_ready_group_names_it() -> None:
    present = replace(RUNS, present=frozenset({ONE.name}))
    assert not step(BOUND, present).record.residents[0].joined
    (found,) = step(BOUND, replace(present, ready=True)).record.residents
    assert found.joined


def test_a_resident_ends_by_the_groups_word_or_with_all_its_pods() -> None:
    left = step(BOUND, replace(RUNS, wanted={})).record
    assert [one.leaving for one in left.residents] == [True]
    assert step(left, replace(RUNS, wanted={})).record.residents == left.residents
    gone = step(left, replace(RUNS, wanted={}, gone=(ONE.name,))).record
    assert (gone.residents, gone.empty_since) == ((), 9.0)
    lost = replace(RUNS, wanted={}, lost=True)
    assert step(left, lost).record.residents == ()


def test_the_next_start_keeps_residents_and_what_they_were_charged() -> None:
    joined = replace(BOUND, residents=(replace(ONE, joined=True, charged=1.5), replace(TWO, leaving=True)))
    sight = replace(RUNS, lost=True, charged={ONE.name: 2.0})
    found = step(joined, sight).record
    assert found.residents == (replace(ONE, charged=3.5),)
    assert (found.number, found.members, found.bound_at, found.opened) == (2, (), None, 9.0)


def test_what_was_not_written_is_found_again() -> None:
    """A pass that ended after its write and before its acts is made again with the same result."""
    for record, sight in ((NEW, GroupSight(2)), (BOUND, replace(RUNS, lost=True)), (BOUND, RUNS)):
        first = step(record, sight)
        again = step(first.record, replace(sight, lost=False))
        assert again.record == first.record
        assert again.delete == first.delete
