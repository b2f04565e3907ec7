"""Tickets as the operator's step API gives them: to whom, and to whom not."""

from __future__ import annotations

import pytest

from controller.steps.groups import AdmittedGroup, GroupDirectory, GroupPod, Refusal, SharingJob
from controller.web import group_tickets
from controller.web.group_tickets import JOB, MEMBER, OPERATOR

PRINT = "ab" * 32
PODS = (GroupPod("p0", 0, "10.0.0.1"), GroupPod("p1", 1, "10.0.0.2"))
BOUND = AdmittedGroup("wg-1", 1, PODS, ("p0", "p1"))
HEAD = ("p0", "10.0.0.1:8710", PRINT)


def directory(*groups: AdmittedGroup) -> GroupDirectory:
    found = GroupDirectory(clock=lambda: 1000.0)
    for group in groups:
        found.put_group(group)
    return found


def refused(found: GroupDirectory, *asked: str) -> tuple[int, str]:
    with pytest.raises(Refusal) as error:
        found.register(*asked)
    return error.value.status, error.value.reason


def not_admitted(found: GroupDirectory, pod: str, attempt: int) -> tuple[int, str]:
    with pytest.raises(Refusal) as error:
        found.admit(pod, attempt)
    return error.value.status, error.value.reason


def test_members_get_tickets_once_all_are_bound_and_member_0_is_known() -> None:
    heard = list[str]()
    found = directory(AdmittedGroup("wg-1", 1, PODS))
    found.registered = heard.append
    assert refused(found, *HEAD) == (503, "NotReady")
    assert heard == ["wg-1"]
    found.put_group(BOUND)
    assert refused(found, "p9", "10.0.0.9:1", PRINT) == (403, "NotAMember")
    answer = found.register("p1", "10.0.0.2:8710", PRINT)
    ticket = group_tickets.check(
        answer["ticket"], answer["keys"], kinds=(MEMBER,), group="wg-1", admission=1, now=1001.0
    )
    assert (ticket.pod, ticket.pods, ticket.address) == ("p1", ("p0", "p1"), "10.0.0.1:8710")
    assert found.register(*HEAD)["index"] == 0
    assert heard == ["wg-1"], "nothing new"


def test_a_member_is_where_its_pod_is() -> None:
    assert refused(directory(BOUND), "p0", "10.0.0.7:8710", PRINT) == (400, "WrongAddress")


def test_a_pod_that_was_made_again_takes_no_part() -> None:
    again = AdmittedGroup("wg-1", 1, (PODS[0], GroupPod("p2", 1)), ("p0", "p1"))
    found = directory(again)
    with pytest.raises(Refusal, match="started anew"):
        found.register("p2", "10.0.0.3:8710", PRINT)


def test_another_start_knows_nothing_of_the_one_before() -> None:
    found = directory(BOUND)
    found.register(*HEAD)
    assert found.server("wg-1", 1) is not None
    found.put_group(AdmittedGroup("wg-1", 2, (GroupPod("q0", 0),), ("q0",)))
    assert found.server("wg-1", 1) is None
    assert found.server("wg-1", 2) is None
    assert refused(found, *HEAD) == (403, "NotAMember")


def test_the_operators_own_ticket_is_renewed_in_time() -> None:
    found = directory(BOUND)
    text = found.operators_ticket("wg-1", 1)
    assert found.operators_ticket("wg-1", 1) == text
    found.clock = lambda: 80_000.0
    assert found.operators_ticket("wg-1", 1) != text
    assert group_tickets.read(text, [found.signer.public]).kind == OPERATOR


def test_jobs_get_tickets_while_they_are_residents() -> None:
    found = directory(BOUND)
    found.register(*HEAD)
    assert not_admitted(found, "t0", 3) == (503, "NotReady"), "no pass has told of it yet"
    job = SharingJob("u", 3, frozenset({"t0"}), "wg-1", "u-3")
    found.put_job(job)
    assert not_admitted(found, "t0", 3) == (503, "NotReady"), "the group has not taken it in"
    found.put_job(SharingJob("u", 3, frozenset({"t0"}), "wg-1", "u-3", joined=True))
    answer = found.admit("t0", 3)
    ticket = group_tickets.read(answer["ticket"], [found.signer.public])
    assert (ticket.kind, ticket.resident, ticket.pod, ticket.group) == (JOB, "u-3", "t0", "wg-1")
    assert answer["address"] == "10.0.0.1:8710"
    assert not_admitted(found, "t0", 2) == (403, "NoResident")
    assert not_admitted(found, "t0", 4) == (503, "NotReady"), "the next attempt is not known yet"
    found.put_job(SharingJob("u", 3, frozenset({"t0"})))
    assert not_admitted(found, "t0", 3) == (403, "NoResident")
    found.drop_job("u")
    assert not_admitted(found, "t0", 3) == (503, "NotReady")
