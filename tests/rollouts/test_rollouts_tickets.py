"""Tickets open one actor of one attempt, until they end, by the API's key alone."""

from __future__ import annotations

import pytest

from controller.web.tickets import Signer, Ticket, TicketError, check

HERS = Ticket("job-1", 3, 2, 1000.0)
PLACE = {"job": "job-1", "attempt": 3, "actor": 2, "now": 999.0}


def test_a_ticket_opens_what_it_is_for() -> None:
    signer, other = Signer(), Signer()
    text = signer.sign(HERS)
    assert check(text, [other.public, signer.public], **PLACE) == HERS
    assert signer.public != other.public


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job": "job-2"}, "another job"),
        ({"actor": 3}, "this is actor 3"),
        ({"attempt": 4}, "of attempt 3, this actor is of attempt 4"),
        ({"attempt": 2}, "of attempt 3, this actor is of attempt 2"),
        ({"now": 1000.0}, "has ended"),
    ],
)
def test_it_opens_nothing_else(change: dict, words: str) -> None:
    signer = Signer()
    with pytest.raises(TicketError, match=words):
        check(signer.sign(HERS), [signer.public], **{**PLACE, **change})


def test_one_that_is_changed_or_of_another_key_opens_nothing() -> None:
    signer = Signer()
    text = signer.sign(HERS)
    head, _, tail = text.partition(".")
    better, _, _ = Signer().sign(Ticket("job-1", 3, 2, 9e9)).partition(".")
    for wrong in (f"{better}.{tail}", text[:-2], head, "", "a.b", "é.é", "x" * 2000, f"{head}.{tail}.x"):
        with pytest.raises(TicketError):
            check(wrong, [signer.public], **PLACE)
    with pytest.raises(TicketError, match="not signed"):
        check(text, [Signer().public], **PLACE)
    with pytest.raises(TicketError, match="not signed"):
        check(text, [], **PLACE)
