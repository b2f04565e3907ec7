"""The local cut: an actor that is mostly done gives its last responses to free slots of the others."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from evalstop_client.rollouts import Actor, Plan, Prompt, Weights, _Generation, _Link


class Link(_Link):
    """An actor that does as it is told, at once and without threads."""

    def __init__(self, made: _Generation, number: int, slots: int) -> None:
        self.made, self.actor, self.state, self.slots = made, Actor(number, "", "", ""), "ready", slots
        self.live, self.given, self.finished = {}, 0, 0
        self.cut = self.leaves = False
        self._outbox = deque()

    def give(self, responses: Any) -> None:
        self.given += len(responses)
        for response in responses:
            response.link = self
            self.live[f"{response.place}.{response.copy}"] = response

    def call_back(self) -> None:
        self.made._loose += self.live.values()
        self.live.clear()

    def finish(self) -> None:
        self.state = "finishing"

    def end(self, name: str) -> None:
        self.live.pop(name).ended = True
        self.finished += 1


def pair(slots: int, cut: float, copies: int = 2) -> tuple[_Generation, Link, Link]:
    """Two actors with a prompt each."""
    made: Any = _Generation(
        cast("Any", None), 1, [Prompt(0, [1]), Prompt(1, [1])], [9.0, 9.0], copies=copies, most=9,
        weights=Weights("0" * 64), version=1, end=None, vocabulary=None, seed=0, temperature=1.0,
    )  # fmt: skip
    first, second = Link(made, 0, slots), Link(made, 1, slots)
    made.links = {0: first, 1: second}
    made.deal(Plan(2, "Ranked", 2, cut))
    made.assign()
    assert [len(link.live) for link in (first, second)] == [copies, copies]
    return made, first, second


def test_an_actor_that_was_cut_does_not_get_its_responses_back() -> None:
    """It has the lowest number and, once cut, the most free slots."""
    made, first, second = pair(4, 0.5)
    first.end("0.0")
    made.assign()  # half of its own are done: it is cut
    made.assign()
    assert [len(link.live) for link in (first, second)] == [0, 3]
    assert first.state == "finishing"
    second.state = "lost"
    first.state = "ready"
    made._loose += second.live.values()
    second.live.clear()
    made.assign()
    assert len(first.live) == 3, "nobody else is left"


@pytest.mark.parametrize(
    ("slots", "cut", "ended", "live"),
    [
        (8, 0.5, 1, [3, 4]),  # a quarter of them
        (8, 0.5, 2, [0, 6]),
        (8, 0.6, 2, [2, 4]),
        (6, 0.5, 2, [0, 6]),
        (5, 0.5, 2, [2, 4]),  # one slot is free, and all that it has left have to fit
        (5, 0.5, 3, [0, 5]),
        (4, 0.5, 3, [1, 4]),
    ],
)
def test_a_cut_is_at_its_share_and_only_if_all_fit_elsewhere(
    slots: int, cut: float, ended: int, live: list[int]
) -> None:
    made, first, second = pair(slots, cut, copies=4)
    for copy in range(ended):
        first.end(f"0.{copy}")
    made.assign()
    made.assign()
    assert [len(link.live) for link in (first, second)] == live
