"""What a worker group needs next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.policy.group_types import SILENT, NotReady
from controller.policy.job import PodTrouble, node_away
from controller.policy.pool.group_plan import (
    IDLE,
    MEASURE,
    REPORT,
    SOON,
    Errand,
    GroupHeard,
    GroupSight,
    GroupStep,
    ask_again,
    errands,
    plan_group,
    unready,
    waits,
)
from controller.policy.pool.group_record import GroupRecord, GroupResident, closed

NODES = ("n1", "n2")
ONE = GroupResident("u1-1", "team/one", 10, 5.0)
TWO = GroupResident("u2-1", "team/two", 10, 6.0)
NEW = GroupRecord(opened=1.0, nodes=NODES)
BOUND = replace(NEW, members=("p0", "p1"), bound_at=2.0, residents=(ONE,))
GRANTED = replace(BOUND, ready_at=3.0)
GRANTS = GroupHeard(True)
RUNS = GroupSight(2, (1,), 2, ("p0", "p1"), 2, wanted={ONE.name: ONE})


def step(record: GroupRecord, sight: GroupSight) -> GroupStep:
    return plan_group(record, sight, 1, 9.0)


def why(record: GroupRecord) -> tuple[bool, str]:
    (condition,) = (one for one in record.conditions if one.type == "Ready")
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("record", "sight", "make", "delete", "end", "ready"),
    [
        (NEW, GroupSight(2), True, (), False, "WaitingForNodes"),
        (NEW, GroupSight(2, (1,), 1, ("p0", ""), 1), False, (), False, "WaitingForNodes"),
        (NEW, GroupSight(2, problem=("JobRefused", "no")), False, (), False, "JobRefused"),
        # its Job is there: its start needs the family no more
        (NEW, GroupSight(2, (1,), 1, problem=("FamilyNotFound", "no")), False, (), False, "WaitingForNodes"),
        (BOUND, RUNS, False, (), False, "Starting"),
        (BOUND, replace(RUNS, heard=GRANTS), False, (), False, "GrantsTurns"),
        # a member is lost: the Job goes, and the next start waits for the end of its last pod
        (BOUND, replace(RUNS, pods=1, uids=("p0", ""), lost=True), False, (1,), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2, (1,), 1), False, (1,), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2, (), 1), False, (), False, "Restarting"),
        (replace(NEW, number=2), GroupSight(2), True, (), False, "WaitingForNodes"),
        (BOUND, replace(RUNS, starts=(), pods=0, uids=(), bound=0), False, (), False, "Restarting"),
        (GRANTED, replace(RUNS, starts=(), pods=0, uids=(), bound=0), True, (), False, "WaitingForNodes"),
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


def test_a_start_that_was_never_ready_is_followed_after_a_pause_and_one_that_was_at_once() -> None:
    """A pod that its kubelet rejected had the group start anew twice a second."""
    rejected = replace(RUNS, uids=("p0", ""), pods=1, bound=1, lost=True)
    record, now, pauses = BOUND, 9.0, []
    for number in range(2, 10):
        record = plan_group(record, replace(rejected, starts=(number - 1,)), 1, now).record
        assert (record.number, record.failed_starts) == (number, number - 1)
        waits = plan_group(record, GroupSight(2, wanted=RUNS.wanted), 1, now + 1.0)
        assert not waits.make
        assert why(waits.record) == (False, "Restarting")
        pauses.append(waits.pause + 1.0)
        now += pauses[-1]
        due = plan_group(record, GroupSight(2, wanted=RUNS.wanted), 1, now)
        assert (due.make, due.pause, why(due.record)) == (True, 0.0, (False, "WaitingForNodes"))
        record = replace(due.record, members=("p0", "p1"), bound_at=now)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    ready = plan_group(record, replace(RUNS, starts=(9,), heard=GRANTS), 1, now).record
    lost = plan_group(ready, replace(rejected, starts=(9,)), 1, now + 50.0)
    assert (lost.record.number, lost.record.failed_starts, lost.pause) == (10, 0, 0.0)
    assert plan_group(lost.record, GroupSight(2, wanted=RUNS.wanted), 1, now + 51.0).make


def answers(record: GroupRecord) -> tuple[bool, float] | None:
    return next(((c.status, c.since) for c in record.conditions if c.type == "Answers"), None)


def test_a_silence_is_written_once_it_lasts_and_once_it_ends() -> None:
    def seen(record: GroupRecord, now: float, begun: float | None, why: str = "Timeout") -> GroupRecord:
        return plan_group(record, replace(RUNS, heard=GRANTS, unanswered=begun, why=why), 1, now).record

    assert answers(step(BOUND, RUNS).record) is None  # of no start that was not ready yet
    ready = seen(BOUND, 9.0, None)
    assert (answers(ready), ready.unanswered) == ((True, 9.0), None)
    assert seen(ready, 100.0 + SILENT - 0.1, 100.0) == ready  # one question that fails is no silence
    silent = seen(ready, 100.0 + SILENT, 100.0)
    assert (answers(silent), silent.unanswered) == ((False, 100.0), 100.0)
    told = next(c for c in silent.conditions if c.type == "Answers")
    assert (told.reason, why(silent)) == ("GroupDoesNotAnswer", (True, "GrantsTurns"))
    assert told.message.startswith("it has not answered since 00:01:40 UTC (Timeout): ")
    assert seen(silent, 900.0, 100.0, "refused") == silent  # questions that fail are no reason to write
    # Another operator, that has asked nothing yet or just now, goes on from what was written.
    assert seen(silent, 900.0, 890.0) == silent
    again = seen(silent, 950.0, None)
    assert (answers(again), again.unanswered) == ((True, 950.0), None)
    assert answers(plan_group(silent, replace(RUNS, lost=True), 1, 950.0).record) is None


def test_a_silent_group_tells_which_residencies_it_keeps_that_are_to_end() -> None:
    """Of a job that was deleted nothing else does."""

    def seen(record: GroupRecord, now: float, begun: float | None, stays: bool) -> GroupRecord:
        wanted = {ONE.name: ONE} if stays else {}
        return plan_group(record, replace(RUNS, heard=GRANTS, unanswered=begun, wanted=wanted), 1, now).record

    def kept(record: GroupRecord) -> tuple[bool, str, float] | None:
        found = record.condition("ResidenciesEnd")
        return None if found is None else (found.status, found.reason, found.since)

    ready = seen(BOUND, 9.0, None, True)
    assert kept(seen(ready, 20.0, None, False)) is None  # it is told to end it, and will
    assert kept(seen(ready, 100.0 + SILENT - 1, 100.0, False)) is None  # no silence yet
    silent = seen(ready, 100.0 + SILENT, 100.0, True)
    assert kept(silent) is None  # nobody is to leave
    stuck = seen(silent, 200.0, 100.0, False)
    assert kept(stuck) == (False, "ResidencyStuck", 200.0)
    found = stuck.condition("ResidenciesEnd")
    assert found is not None
    assert found.message.startswith(
        "it has not answered since 00:01:40 UTC; worker and state are kept until "
    )
    assert found.message.endswith(f": {ONE.job}")
    assert seen(stuck, 900.0, 100.0, False) == stuck  # written once
    assert kept(seen(stuck, 950.0, None, False)) is None
    ended = plan_group(stuck, GroupSight(2, unanswered=100.0), 1, 950.0).record
    assert (kept(ended), ended.residents) == (None, ())


def test_members_are_those_that_were_bound_together() -> None:
    assert step(NEW, replace(RUNS, bound=1)).record.members == ()
    found = step(NEW, RUNS).record
    assert (found.members, found.bound_at, found.ready_at) == (("p0", "p1"), 9.0, None)
    assert step(found, replace(RUNS, heard=GRANTS)).record.ready_at == 9.0


def test_a_resident_has_joined_when_a_ready_group_names_it() -> None:
    present = replace(RUNS, heard=GroupHeard(present=frozenset({ONE.name})))
    assert not step(BOUND, present).record.residents[0].joined
    (found,) = step(BOUND, replace(RUNS, heard=GroupHeard(True, frozenset({ONE.name})))).record.residents
    assert found.joined


def test_a_resident_ends_by_the_groups_word_or_with_all_its_pods() -> None:
    left = step(GRANTED, replace(RUNS, wanted={})).record
    assert [one.leaving for one in left.residents] == [True]
    assert step(left, replace(RUNS, wanted={})).record.residents == left.residents
    gone = step(left, replace(RUNS, wanted={}, heard=GroupHeard(gone=(ONE.name,)))).record
    assert (gone.residents, gone.empty_since) == ((), 9.0)
    lost = replace(RUNS, wanted={}, lost=True, pods=1)
    still = step(left, lost).record
    assert (still.number, still.residents) == (
        2,
        left.residents,
    )  # its worker on the other member may live on
    assert step(still, replace(lost, lost=False, starts=())).record.residents == left.residents
    ended = step(still, GroupSight(2))
    assert (ended.record.residents, ended.record.empty_since, ended.make) == ((), 9.0, True)


def test_the_next_start_keeps_residents_and_what_they_were_charged() -> None:
    joined = replace(BOUND, residents=(replace(ONE, joined=True, charged=1.5), replace(TWO, leaving=True)))
    sight = replace(RUNS, lost=True, charged={ONE.name: 2.0})
    found = step(joined, sight).record
    assert found.residents == (replace(ONE, charged=3.5), replace(TWO, leaving=True))
    assert (found.number, found.members, found.bound_at, found.opened) == (2, (), None, 9.0)


def test_what_was_not_written_is_found_again() -> None:
    """A pass that ended after its write and before its acts is made again with the same result."""
    for record, sight in ((NEW, GroupSight(2)), (BOUND, replace(RUNS, lost=True)), (BOUND, RUNS)):
        first = step(record, sight)
        again = step(first.record, replace(sight, lost=False))
        assert again.record == first.record
        assert again.delete == first.delete


def test_a_group_closes_with_its_pool_once_nobody_is_in_it() -> None:
    orphan = replace(RUNS, orphan="gone-pool")
    assert step(BOUND, orphan).record.closing == ""
    left = step(replace(BOUND, residents=()), replace(orphan, wanted={}))
    assert (left.record.closing, left.delete) == ("PoolDeleted", (1,))
    assert "'gone-pool'" in left.record.closing_message
    # Nor does one that answers nobody wait for its word, once nobody stays in it.
    leaves = replace(BOUND, ready_at=3.0, residents=(replace(ONE, joined=True, leaving=True),))
    away = replace(orphan, wanted={})
    for begun, closes in ((None, ""), (9.0 - SILENT + 0.1, ""), (9.0 - SILENT, "PoolDeleted")):
        assert step(leaves, replace(away, unanswered=begun)).record.closing == closes
    assert step(leaves, replace(orphan, wanted={TWO.name: TWO}, unanswered=-99.0)).record.closing == ""
    assert step(closed(BOUND, "Empty", "m"), orphan).record.closing == "Empty"


LEAVES = replace(ONE, leaving=True)
HERE = GroupHeard(True, frozenset({ONE.name}))


@pytest.mark.parametrize(
    ("record", "heard", "told"),
    [
        (BOUND, None, ()),  # who came and went before is not known
        (BOUND, GRANTS, (Errand(ONE, False),)),
        (BOUND, HERE, ()),
        (BOUND, GroupHeard(True, gone=(ONE.name,)), ()),  # it is not taken in again
        (closed(BOUND, "Empty", "m"), GRANTS, ()),
        (replace(BOUND, residents=(LEAVES, TWO)), HERE, (Errand(LEAVES, True), Errand(TWO, False))),
        (replace(BOUND, residents=(LEAVES,)), GRANTS, (Errand(LEAVES, True),)),  # it may be on its way in
        (replace(BOUND, residents=(LEAVES,)), GroupHeard(True, gone=(ONE.name,)), ()),
        (closed(replace(BOUND, residents=(LEAVES,)), "Empty", "m"), HERE, (Errand(LEAVES, True),)),
    ],
)
def test_what_a_group_is_told(
    record: GroupRecord, heard: GroupHeard | None, told: tuple[Errand, ...]
) -> None:
    assert errands(record, heard) == told


def test_a_group_is_asked_again_soon_while_somebody_comes_or_leaves() -> None:
    ready = replace(BOUND, ready_at=3.0, residents=(replace(ONE, joined=True),))
    assert not waits(ready, HERE)
    assert waits(ready, None)
    assert waits(replace(ready, ready_at=None), HERE)
    assert waits(ready, HERE._replace(ready=False))
    for one in (ONE, replace(ONE, joined=True, leaving=True)):
        assert waits(replace(ready, residents=(one,)), HERE)
    assert waits(ready, HERE._replace(gone=(ONE.name,)))


READY = replace(BOUND, ready_at=3.0, residents=(replace(ONE, joined=True),))


@pytest.mark.parametrize(
    ("record", "heard", "state", "seconds"),
    [
        (READY, HERE, {}, REPORT),
        (READY, HERE, {"measures": True}, MEASURE),
        (READY, HERE, {"groups": 50}, REPORT),
        (READY, HERE, {"groups": 100}, 10.0),  # ten a second in all, however many there are
        (READY, None, {"groups": 1000}, SOON),
        (replace(READY, residents=()), GRANTS, {}, IDLE),
        (replace(READY, residents=(ONE,)), GRANTS, {"measures": True}, SOON),
        (READY, None, {}, SOON),
        (READY, None, {"silent": True}, SOON),
        (replace(READY, residents=(ONE,)), GRANTS, {"silent": True}, SOON),  # it was not told of ONE
        (READY, HERE, {"silent": True}, REPORT),
        (READY, None, {"known": False}, IDLE),
        (NEW, None, {}, IDLE),
    ],
)
def test_when_a_group_is_asked_again(
    record: GroupRecord, heard: GroupHeard | None, state: dict[str, Any], seconds: float
) -> None:
    assert ask_again(record, heard, **state) == seconds


def test_turns_that_are_all_lost_are_told_once_with_the_reason_and_taken_back() -> None:
    def counts(record: GroupRecord) -> tuple[str, str] | None:
        found = record.condition("TurnsCount")
        return None if found is None else (found.reason, found.message)

    ready = step(BOUND, replace(RUNS, heard=GRANTS)).record
    assert counts(ready) is None
    lost = step(ready, replace(RUNS, heard=replace_heard("start: no class"))).record
    assert counts(lost) == ("TurnsLost", "of team/one each turn is lost: start: no class")
    assert step(lost, replace(RUNS, heard=replace_heard("another"))).record == lost
    assert step(lost, RUNS).record == lost, "nothing was heard of it"
    assert counts(step(lost, replace(RUNS, heard=GRANTS)).record) is None
    assert counts(step(closed(lost, "Empty", "m"), RUNS).record) is None


def replace_heard(why: str) -> GroupHeard:
    return GRANTS._replace(failing=((ONE.name, why), ("of-another", "x")))


@pytest.mark.parametrize(
    ("record", "sight", "told"),
    [
        (GRANTED, GroupSight(2, problem=("FamilyNotFound", "no")), NotReady(9.0, "FamilyNotFound: no")),
        (NEW, GroupSight(2, problem=("StepsNotServed", "no")), NotReady(9.0, "StepsNotServed: no")),
        (GRANTED, GroupSight(2), NotReady(9.0)),
        (BOUND, RUNS, NotReady(9.0)),
        (BOUND, replace(RUNS, heard=GRANTS), None),
        (closed(BOUND, "Empty", "m"), RUNS, None),
    ],
)
def test_what_residents_of_a_group_that_is_not_ready_are_told(
    record: GroupRecord, sight: GroupSight, told: NotReady | None
) -> None:
    assert unready(record) is None, "nothing was written of it"
    assert unready(step(record, sight).record) == told


def test_ends_of_its_pods_are_told_once_each_until_it_is_ready() -> None:
    end = PodTrouble("wg-1-1-0", exit_code=1, message="no driver", since=5.0, container="a")
    first = step(BOUND, replace(RUNS, troubles=(replace(end, since=6.0, container="b"), end))).record
    assert why(first) == (False, "GroupCrashes")
    assert first.condition("Ready").message == "pod wg-1-1-0 ended with exit code 1: no driver"
    assert step(first, replace(RUNS, troubles=(end,))).record == first
    again = step(first, replace(RUNS, troubles=(replace(end, since=8.0, container="c"),))).record
    assert again.trouble.count == 2
    assert step(again, RUNS).record == again, "its container starts again"
    ready = step(again, replace(RUNS, heard=GRANTS)).record
    assert (ready.trouble, why(ready)) == (None, (True, "GrantsTurns"))


def test_a_wait_of_its_pods_is_told_since_its_beginning_and_ends() -> None:
    waits = PodTrouble("wg-1-1-0", waits="ImagePullBackOff")
    first = step(BOUND, replace(RUNS, troubles=(waits,))).record
    assert (why(first), first.trouble.since) == ((False, "GroupPodWaits"), 9.0)
    assert step(first, RUNS).record.trouble is None


def test_a_node_that_is_not_heard_of_is_told_of_a_group_that_was_ready_too() -> None:
    """kind: such a group said that turns go on, and its residents said nothing."""
    lost = replace(RUNS, heard=GRANTS, away=node_away("wg-1-1-0", "n1"))
    first = step(GRANTED, lost).record
    assert (why(first), first.trouble.since) == ((False, "NodeNotReady"), 9.0)
    assert first.condition("Ready").message == (
        "the node of pod wg-1-1-0 is not ready: n1 is down, or cut off from the cluster"
    )
    assert plan_group(first, lost, 1, 70.0).record == first, "it is written once"
    other = plan_group(first, replace(lost, away=node_away("wg-1-1-1", "n2")), 1, 70.0).record
    assert (other.trouble.pod, other.trouble.since) == ("wg-1-1-1", 9.0)
    again = step(other, replace(lost, lost=True)).record
    assert (again.number, why(again)) == (2, (False, "NodeNotReady")), "its pods end with their node"
    back = step(first, replace(RUNS, heard=GRANTS)).record
    assert (back.trouble, why(back)) == (None, (True, "GrantsTurns"))
