"""What time it is: the API server's, whatever this machine's clock or a few answers say; it never goes back,
never jumps and never stands still."""

from __future__ import annotations

from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.values import timestamp
from controller.kube.connection import Connection
from controller.operator.engine import Engine
from controller.operator.process.clock import (
    BELIEVED,
    FASTEST,
    FREE,
    SAMPLES,
    SLOWEST,
    TOLERANCE,
    Advance,
    ServerClock,
    middle,
)
from controller.operator.process.settings import Settings

START = 1_800_000_000.0


class Machine:
    """A machine whose wall clock is off by ``skew``, and an API server that is right."""

    def __init__(self, skew: float = 0.0) -> None:
        self.true, self.skew = START, skew
        self.clock = ServerClock(lambda: self.true + self.skew, lambda: self.true - START + 77.0)

    def answer(self, after: float = 1.3, slow: float = 0.0, server: str = "a") -> None:
        """An answer comes; it was stamped ``slow`` s before."""
        self.true += after
        self.clock.observe({"Date": formatdate(self.true - slow, usegmt=True)}, server)


@pytest.mark.parametrize("skew", [-7200.0, -600.0, -3.0, 0.0, 1.0, 3.0, 600.0, 7200.0])
def test_clocks_of_any_two_machines_agree_after_some_answers(skew: float) -> None:
    machine = Machine(skew)
    assert machine.clock.skew is None
    for _ in range(16):
        machine.answer(slow=0.4)
    assert machine.clock.skew == pytest.approx(skew, abs=1.5)
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)
    # The first answers set it, for nothing has been decided yet.
    fresh = ServerClock(lambda: machine.true + skew, lambda: machine.true)
    fresh.observe({"Date": formatdate(machine.true, usegmt=True)})
    assert fresh() == pytest.approx(machine.true, abs=TOLERANCE)


def test_a_clock_that_is_right_is_used_as_it_is() -> None:
    machine = Machine()
    for _ in range(20):
        machine.answer()
        assert machine.clock() == pytest.approx(machine.true, abs=1e-3)


YEARS = 7 * 365 * 86400.0


@pytest.mark.parametrize("off", [YEARS, -YEARS, 3600.0, -3600.0, 30.0])
@pytest.mark.parametrize("before", [FREE, 40])
def test_one_answer_with_a_wrong_date_moves_nothing(off: float, before: int) -> None:
    # row 13
    machine = Machine()
    for _ in range(before):
        machine.answer()
    assert machine.clock() == pytest.approx(machine.true, abs=1e-3)
    machine.answer(slow=-off)
    for _ in range(30):
        assert machine.clock() == pytest.approx(machine.true, abs=0.1)
        machine.answer(after=60.0)
    assert machine.clock() == pytest.approx(machine.true, abs=0.1)


@pytest.mark.parametrize("off", [YEARS, -YEARS, 600.0])
def test_one_server_of_three_with_a_wrong_clock_moves_nothing(off: float) -> None:
    machine = Machine(skew=30.0)  # so that the servers' time counts
    for _ in range(4):
        for server in "abc":
            machine.answer(0.2, -off if server == "b" else 0.0, server)
    for _ in range(100):  # nearly all calls happen to go over the connection to the wrong one
        machine.answer(1.0, -off, "b")
        assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)
    for _ in range(3):
        machine.answer(1.0, 0.0, "a")
        machine.answer(1.0, 0.0, "c")
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)


def test_what_deceived_it_for_a_minute_moved_it_by_less_than_a_minute() -> None:
    machine = Machine()
    for _ in range(FREE + SAMPLES):
        machine.answer(0.1)
    assert machine.clock() == pytest.approx(machine.true, abs=1e-3)
    for _ in range(60):  # all there is says another year
        machine.answer(1.0, -YEARS)
        machine.clock()
    assert 30.0 < machine.clock() - machine.true < 60.0
    for _ in range(150):
        machine.answer(1.0)
        machine.clock()
    assert machine.clock() == pytest.approx(machine.true, abs=0.1)


def test_it_never_goes_back_or_stands_still_when_the_machines_clock_is_set() -> None:
    machine = Machine()
    for _ in range(FREE):
        machine.answer(0.1)
    said = machine.clock()
    for skew in (-3600.0, 3600.0, -1.9, 0.0):
        machine.skew = skew
        for _ in range(5):
            machine.answer(after=1.0)
            now = machine.clock()
            assert said + SLOWEST <= now + 1e-6
            assert now == pytest.approx(machine.true, abs=TOLERANCE)
            said = now


def test_an_answer_that_was_long_under_way_does_not_turn_time_back() -> None:
    machine = Machine(600.0)
    for _ in range(FREE):
        machine.answer()
    said = machine.clock()
    machine.answer(after=1.0, slow=25.0)
    assert machine.clock() >= said
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)


@pytest.mark.parametrize("headers", [{}, {"Date": ""}, {"Date": "yesterday"}])
def test_answers_without_a_time_are_passed_over(headers: dict[str, str]) -> None:
    machine = Machine(600.0)
    machine.clock.observe(headers)
    assert machine.clock.skew is None
    assert machine.clock() == machine.true + 600.0


def test_it_goes_on_from_what_earlier_leaders_wrote() -> None:
    machine = Machine()
    for _ in range(FREE):
        machine.answer()
    newest = machine.true + 1.7
    status: dict[str, Any] = {
        "conditions": [
            {"lastTransitionTime": timestamp(newest - 3), "message": "2027-01-15T08:00:00Z is no time"}
        ],
        "decision": {"time": timestamp(newest), "step": 70},
        "reservations": [{"expires": timestamp(newest + 50)}],  # times to come
        "gangBackoff": {"until": timestamp(newest + 40)},
        "access": {"notBefore": timestamp(newest + 30)},
    }
    machine.clock.not_before(status)
    assert machine.clock() == newest
    machine.true += 1.0
    assert machine.clock() == pytest.approx(newest + SLOWEST)  # it waits for true time, and goes on
    machine.true += 10.0
    assert machine.clock() == pytest.approx(machine.true, abs=1e-3)


def test_times_far_ahead_are_not_believed() -> None:
    machine = Machine()
    machine.answer()
    machine.clock.not_before({"decision": {"time": timestamp(machine.true + BELIEVED + 1)}})
    assert machine.clock() == pytest.approx(machine.true, abs=1e-3)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_a_minority_of_answers_and_servers_says(data: st.DataObject) -> None:
    """Of an odd number of servers fewer than half are wrong in all they say; of a right one's newest answers
    fewer than half are. This machine's clock may be anything, and is set meanwhile."""
    # row 13
    machine = Machine(data.draw(st.sampled_from([0.0, 1.0, -2.5, 7200.0, -YEARS]), "skew"))
    count = data.draw(st.sampled_from([1, 3, 5]), "servers")
    wrong = data.draw(st.integers(0, (count - 1) // 2), "wrong servers")
    lie = st.floats(-YEARS, YEARS) | st.sampled_from([YEARS, -YEARS, 3600.0, 60.0, -60.0])
    late = st.floats(0.0, 0.9)
    turns = [0] * count
    for _ in range(FREE):  # whom a connection reaches is chance; each was heard before anything is decided
        for server in range(wrong, count):
            machine.answer(0.2, data.draw(late), str(server))
            turns[server] += 1
    machine.clock()
    told, at = machine.clock(), machine.true
    for _ in range(data.draw(st.integers(10, 60), "answers")):
        server = data.draw(st.integers(0, count - 1), "server")
        turns[server] += 1
        lies = server < wrong or (turns[server] % 3 == 0 and data.draw(st.booleans(), "one wrong answer"))
        machine.answer(
            data.draw(st.floats(0.01, 30.0), "after"), data.draw(lie if lies else late, "slow"), str(server)
        )
        if data.draw(st.integers(0, 9), "set") == 0:
            machine.skew = data.draw(st.sampled_from([0.0, 1.5, -1.5, 3600.0, -86400.0]), "skew")
        now, passed = machine.clock(), machine.true - at
        assert abs(now - machine.true) <= TOLERANCE + 1.0
        assert told + SLOWEST * passed - 1e-3 <= now <= told + FASTEST * passed + 1e-3
        told, at = now, machine.true


def test_the_middle_of_an_even_number_is_a_time_that_was_told() -> None:
    assert middle([5.0, 1.0, 3.0], 0.0) == 3.0
    assert middle([1.0, 1000.0], 2.0) == 1.0
    assert middle([1.0, 1000.0], 999.0) == 1000.0


def test_time_that_stands_still_is_found() -> None:
    machine, now = Machine(), [0.0]
    advance = Advance(lambda: machine.true, lambda: now[0])
    assert advance.beat() == 0.0
    now[0] = 50.0
    assert advance.beat() == 0.0
    machine.true += 0.1
    assert advance.beat() == 50.0


def test_health_fails_where_time_stands_still() -> None:
    # row 13
    connection = Connection("http://nowhere", "nowhere")
    api: Any = SimpleNamespace(on_headers=None)
    standing, monotonic = [START], [1000.0]
    engine = Engine(
        Settings.from_environ({}), connection, api=api, scrape=lambda target: None, clock=lambda: standing[0]
    )
    read = next(read for part, read in engine.health._beats.items() if part == "time")
    before = read()
    assert read() == before
    standing[0] += 1.0
    assert read() > before
    engine.health._now = lambda: read() + 61.0 + monotonic[0]
    assert any(told.startswith("time: no progress") for told in engine.health.stalled())
