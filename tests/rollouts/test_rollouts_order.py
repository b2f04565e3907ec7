"""The client's calls come in the order in which they were made, whether anybody waits for them or not."""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

from controller.web.certificates import make_authority
from evalstop_client.rollouts import Actor, Plan, Prompt, StepApi, Weights, _Generation, _Link


class Noted(StepApi):
    """Each call takes as long as the test wants, and is noted once it is over."""

    def __init__(self, **more: Any) -> None:
        ca = make_authority(datetime.now(UTC)).certificate
        super().__init__(["https://127.0.0.1:1"], ca, "token", 1, **more)
        self.calls: list[str] = []
        self.go = threading.Event()

    def _call(self, method: str, path: str, body: Any, timeout: float) -> dict[str, Any] | None:
        if path == "/v1/done":
            self.go.wait(30.0)
        self.calls.append(path)
        return {"step": body["step"], "actors": [], "leave": [], "coming": 0, "revision": 1, "plan": None}


def test_how_a_step_went_is_told_before_the_next_one_is_announced() -> None:
    api = Noted(patience=30.0)
    api.done({"step": 1})
    api.end({"step": 1})
    api.announce({"step": 2})
    assert api.calls == [], "nobody waits for them"
    api.go.set()
    assert api.begin(2) is not None
    assert api.calls == ["/v1/done", "/v1/end", "/v1/announce", "/v1/begin"]


def test_a_step_that_gave_up_waiting_is_not_begun_later() -> None:
    api = Noted(patience=0.05)
    api.done({"step": 1})
    assert api.begin(2) is None
    assert api.silent
    api.end({"step": 2})
    api.go.set()
    api._patience, api.silent = 30.0, False
    assert api.begin(3) is not None
    assert api.calls == ["/v1/done", "/v1/end", "/v1/begin"]


def test_calls_beyond_what_waits_are_left_out() -> None:
    api = Noted(patience=30.0)
    for step in range(500):
        api.done({"step": step})
    api.go.set()
    while api.begin(100) is None:  # it is left out, too, while the queue is full
        pass
    assert 64 < api.calls.count("/v1/done") < 300


def test_an_actor_that_was_cut_does_not_get_its_responses_back() -> None:
    """It has the lowest number and, once cut, the most free slots."""
    made: Any = _Generation(
        cast("Any", None), 1, [Prompt(0, [1]), Prompt(1, [1])], [9.0, 9.0], copies=2, most=9,
        weights=Weights("0" * 64), version=1, end=None, vocabulary=None, seed=0, temperature=1.0,
    )  # fmt: skip

    class Link(_Link):
        def __init__(self, number: int) -> None:
            self.actor, self.state, self.slots = Actor(number, "", "", ""), "ready", 4
            self.live, self.given, self.finished = {}, 0, 0
            self.cut = self.leaves = False
            self._outbox = deque()

        def give(self, responses: Any) -> None:
            self.given += len(responses)
            for response in responses:
                response.link = self
                self.live[f"{response.place}.{response.copy}"] = response

        def call_back(self) -> None:
            made._loose += self.live.values()
            self.live.clear()

        def finish(self) -> None:
            self.state = "finishing"

    first, second = Link(0), Link(1)
    made.links = {0: first, 1: second}
    made.deal(Plan(2, "Ranked", 2, 0.5))
    made.assign()
    assert [len(link.live) for link in (first, second)] == [2, 2]
    done = first.live.pop("0.0")
    done.ended, first.finished = True, 1
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
