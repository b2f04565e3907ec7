"""A worker group's record: residents by the word of jobs and groups, starts by number, one way to close."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.policy.group_types import Lingering
from controller.policy.pool.group_record import (
    GroupRecord,
    GroupResident,
    closed,
    group_view,
    restarted,
    with_residents,
)


def resident(name: str, **more: object) -> GroupResident:
    return replace(GroupResident(name, f"a/{name}", 5, 1.0), **more)  # type: ignore[arg-type]


def test_residents_come_by_their_jobs_and_go_by_the_groups_word() -> None:
    record = with_residents(GroupRecord(), {"u1-1": resident("u1-1")}, (), 5.0)
    assert (record.residents, record.empty_since) == ((resident("u1-1"),), None)
    assert with_residents(record, {"u1-1": resident("u1-1")}, (), 6.0) is record
    left = with_residents(record, {}, (), 7.0)
    assert left.residents == (resident("u1-1", leaving=True),)  # its worker may live on
    gone = with_residents(left, {}, ("u1-1",), 8.0)
    assert (gone.residents, gone.empty_since) == ((), 8.0)
    assert with_residents(gone, {}, (), 9.0) is gone


names = st.sampled_from(["u1-1", "u1-2", "u2-1", "u3-9"])


@given(st.lists(st.tuples(st.sets(names, max_size=4), st.sets(names, max_size=4)), max_size=12))
def test_nobody_goes_without_the_groups_word_or_comes_twice(steps) -> None:
    record = GroupRecord()
    for now, (wanted, gone) in enumerate(steps):
        before = {one.name for one in record.residents}
        record = with_residents(record, {name: resident(name) for name in wanted}, gone, float(now))
        after = [one.name for one in record.residents]
        assert len(after) == len(set(after))
        assert before - set(after) <= gone
        assert all(one.leaving for one in record.residents if one.name not in wanted)
        assert (record.empty_since is None) == bool(record.residents)


def test_start_under_the_next_number_keeps_residents_and_forgets_members() -> None:
    record = GroupRecord(number=2, members=("p0", "p1"), bound_at=3.0)
    record = replace(record, residents=(resident("u1-1", joined=True),))
    again = restarted(record, ("n3", "n4"), 9.0)
    assert (again.number, again.members, again.bound_at, again.opened) == (3, (), None, 9.0)
    assert again.residents == (resident("u1-1"),)


def test_first_reason_to_close_is_kept() -> None:
    record = closed(GroupRecord(), "Empty", "nobody")
    assert closed(record, "GPUsWanted", "somebody waits") is record


def test_pool_sees_who_lingers_and_which_pods_are_missing() -> None:
    record = GroupRecord(nodes=("n1", "n2"), residents=(resident("u1-1"), resident("u2-1")), opened=4.0)
    view = group_view("wg-3", "dense", 2, 4, record, (("n1", 4),), ["u1-1"])
    assert (view.unbound, view.closing, view.opened) == (1, False, 4.0)
    assert view.lingering == (Lingering("a/u2-1", 5),)
    view = group_view("wg-3", "dense", 2, 4, closed(record, "Empty", ""), (("n1", 4),), [])
    assert (view.unbound, view.closing) == (0, True)
