"""What time it is: the API server's, whatever this machine's clock says, and never going back."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from controller.api.values import timestamp
from controller.operator.clock import BELIEVED, TOLERANCE, ServerClock

START = 1_800_000_000.0


class Machine:
    """A machine whose wall clock is off by ``skew``, and an API server that is right."""

    def __init__(self, skew: float = 0.0) -> None:
        self.true, self.skew = START, skew
        self.clock = ServerClock(lambda: self.true + self.skew, lambda: self.true - START + 77.0)

    def answer(self, after: float = 1.3, slow: float = 0.0) -> None:
        """An answer comes; it was stamped ``slow`` s before."""
        self.true += after
        self.clock.heard({"Date": formatdate(self.true - slow, usegmt=True)})


@pytest.mark.parametrize("skew", [-7200.0, -600.0, -3.0, 0.0, 1.0, 3.0, 600.0, 7200.0])
def test_clocks_of_any_two_machines_agree_after_some_answers(skew: float) -> None:
    machine = Machine(skew)
    assert machine.clock.skew is None
    for _ in range(16):
        machine.answer(slow=0.4)
    assert machine.clock.skew == pytest.approx(skew, abs=1.5)
    # Going back it waits until time has caught up with what it said before; that is the first answer's part.
    fresh = ServerClock(lambda: machine.true + skew, lambda: machine.true)
    fresh.heard({"Date": formatdate(machine.true, usegmt=True)})
    assert fresh() == pytest.approx(machine.true, abs=TOLERANCE)


def test_a_clock_that_is_right_is_used_as_it_is() -> None:
    machine = Machine()
    machine.answer()
    assert machine.clock() == machine.true


def test_it_never_goes_back_when_the_machines_clock_is_set() -> None:
    machine = Machine()
    machine.answer()
    said = machine.clock()
    machine.skew = -3600.0
    assert machine.clock() == said
    machine.answer(after=10.0)
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)
    machine.skew = 3600.0
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)


def test_an_answer_that_was_long_under_way_does_not_turn_time_back() -> None:
    machine = Machine(600.0)
    machine.answer()
    said = machine.clock()
    machine.answer(after=1.0, slow=25.0)
    assert machine.clock() >= said
    assert machine.clock() == pytest.approx(machine.true, abs=TOLERANCE)


@pytest.mark.parametrize("headers", [{}, {"Date": ""}, {"Date": "yesterday"}])
def test_answers_without_a_time_are_passed_over(headers: dict[str, str]) -> None:
    machine = Machine(600.0)
    machine.clock.heard(headers)
    assert machine.clock.skew is None
    assert machine.clock() == machine.true + 600.0


def test_it_goes_on_from_what_earlier_leaders_wrote() -> None:
    machine = Machine()
    machine.answer()
    newest = machine.true + 1.7
    status: dict[str, Any] = {
        "conditions": [
            {"lastTransitionTime": timestamp(newest - 3), "message": "2027-01-15T08:00:00Z is no time"}
        ],
        "decision": {"time": timestamp(newest), "step": 70},
        "holds": [{"expires": timestamp(newest + 50)}],  # times to come
        "gangBackoff": {"until": timestamp(newest + 40)},
        "access": {"notBefore": timestamp(newest + 30)},
    }
    machine.clock.not_before(status)
    assert machine.clock() == newest
    machine.true += 1.0
    assert machine.clock() == newest
    machine.true += 1.0
    assert machine.clock() == machine.true


def test_times_far_ahead_are_not_believed() -> None:
    machine = Machine()
    machine.answer()
    machine.clock.not_before({"decision": {"time": timestamp(machine.true + BELIEVED + 1)}})
    assert machine.clock() == machine.true
