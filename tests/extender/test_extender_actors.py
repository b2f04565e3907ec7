"""Rollout actors in the extender's ledger: they are no gang members, and their GPUs are nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.actor_types import Actor, ActorState, Reserved
from controller.policy.node.filter import Refusal, judge, spare
from controller.policy.node.ledger import Bound, Gang, GpuLedger, PodRequest
from controller.policy.types import Reservation

NOW = 1000.0
NODES = ["n0", "n1", "n2"]
GANG = Gang("t/a", 1, ("n0", "n0"), 2)
ENTRY = Actor(3, "n1", 2)
RECALLED = Actor(4, "n2", 2, ActorState.RECALLED, for_whom="t/b", until=NOW + 10.0)


@pytest.fixture
def ledger() -> GpuLedger:
    made = GpuLedger()
    for name in NODES:
        made.put_node(name, 8)
    made.put_job("t/a", 2, GANG)
    made.put_actors("t/a", [ENTRY])
    return made


def actor(number: int = 3, job: str = "t/a") -> PodRequest:
    return PodRequest(f"t/actor-{number}", 2, job, 1, None, number)


def kept(ledger: GpuLedger, now: float = NOW) -> dict[str, int]:
    return ledger.keeping(now)


def test_an_actor_goes_where_its_entry_says_and_nowhere_before_it_is_seen(ledger: GpuLedger) -> None:
    assert judge(ledger, actor(), NODES, NOW).passed == ["n1"]
    found = judge(ledger, actor(9), NODES, NOW)
    assert (found.passed, found.reason) == ([], Refusal.NOT_SEEN)
    assert "rollout actor 9 of t/a not seen yet" in found.refused["n0"]


def test_an_actor_that_is_bound_is_no_member_of_the_gang(ledger: GpuLedger) -> None:
    member = Bound("t/a", 1, "n0", 2)
    assert kept(ledger) == {"n0": 4, "n1": 2}
    ledger.put_bound("u1", member._replace(actor=3, node="n0"))  # wherever it is
    assert kept(ledger) == {"n0": 4}
    ledger.put_bound("u2", member)
    assert kept(ledger) == {"n0": 2}
    ledger.drop_bound("u1")
    assert kept(ledger) == {"n0": 2, "n1": 2}


def test_nobody_else_gets_the_gpus_of_an_entry_and_nobody_evicts_an_actor(ledger: GpuLedger) -> None:
    stranger = PodRequest("t/x", 1)
    assert judge(ledger, stranger, NODES, NOW).passed == ["n2"]
    ledger.put_bound("u1", Bound("t/a", 1, "n2", 2, actor=3))
    assert spare(ledger, stranger, {"n2": ["u1"], "n1": ["x"]}, NOW) == {"n1": ["x"]}
    ledger.put_actors("t/a", [])
    assert "n1" in judge(ledger, stranger, NODES, NOW).passed


def test_sentence_names_no_job_of_another_namespace(ledger: GpuLedger) -> None:
    assert "2 GPUs kept for rollout actors of t/a" in ledger.kept("n1", NOW, "t")[1]
    assert "t/a" not in ledger.kept("n1", NOW, "other")[1]


def test_what_was_recalled_is_kept_until_its_target_is_admitted(ledger: GpuLedger) -> None:
    ledger.put_actors("t/a", [ENTRY, RECALLED])
    ledger.put_bound("u1", Bound("t/a", 1, "n2", 2, actor=4))
    ledger.put_recalled("p", [Reserved("t/b", (("n2", 4),), NOW + 60.0)])
    assert kept(ledger)["n2"] == 2  # two are free, two the actor has still
    ledger.put_actors("t/a", [ENTRY])
    ledger.drop_bound("u1")
    assert kept(ledger)["n2"] == 4
    assert "for which actors were recalled" in ledger.kept("n2", NOW, "t")[1]
    assert ledger.next_expiry(NOW) == NOW + 60.0
    assert "n2" not in kept(ledger, NOW + 60.0)
    ledger.put_job("t/b", 4, Gang("t/b", 1, ("n2",), 4))
    assert kept(ledger)["n2"] == 4  # by its admission, and not twice
    ledger.put_bound("u2", Bound("t/b", 1, "n2", 4))
    assert "n2" not in kept(ledger)


def test_what_a_returning_actor_waits_for_is_kept_beside_its_gang(ledger: GpuLedger) -> None:
    ledger.put_recalled("p", [Reserved("t/a", (("n2", 2),), NOW + 60.0, returning=True)])
    assert kept(ledger) == {"n0": 4, "n1": 2, "n2": 2}
    ledger.put_recalled("p", [])
    assert kept(ledger) == {"n0": 4, "n1": 2}


PUTS: list[Callable[[GpuLedger], None]] = [
    lambda it: it.put_node("n1", 8),
    lambda it: it.put_node("n2", 8),
    lambda it: it.put_job("t/a", 2, GANG),
    lambda it: it.put_job("t/b", 4, None),
    lambda it: it.put_actors("t/a", [ENTRY, RECALLED]),
    lambda it: it.put_bound("u1", Bound("t/a", 1, "n2", 2, actor=4)),
    lambda it: it.put_bound("u2", Bound("t/a", 1, "n0", 2)),
    lambda it: it.put_recalled("p", [Reserved("t/b", (("n2", 4),), NOW + 60.0)]),
    lambda it: it.put_reservations("p", [Reservation("t/a", "t/b", ("n1",), NOW + 30.0, 1)]),
]


@given(st.permutations(range(len(PUTS))), st.lists(st.integers(0, len(PUTS) - 1), max_size=4))
def test_answers_do_not_depend_on_the_order_of_what_was_put_in(order: list[int], again: list[int]) -> None:
    plain, shuffled = GpuLedger(), GpuLedger()
    for put in PUTS:
        put(plain)
    for number in [*order, *again]:
        PUTS[number](shuffled)
        kept(shuffled)  # whatever is remembered of it has to be forgotten in time
    for now in (NOW, NOW + 40.0, NOW + 100.0):
        assert kept(shuffled, now) == kept(plain, now)
        assert [shuffled.kept(n, now, "t") for n in NODES] == [plain.kept(n, now, "t") for n in NODES]
