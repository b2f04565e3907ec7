"""The client's calls come in the order in which they were made, whether anybody waits for them or not."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from controller.web.certificates import make_authority
from evalstop_client.rollouts import StepApi


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
