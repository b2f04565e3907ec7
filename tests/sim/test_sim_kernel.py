"""The kernel: order of events, rounds of one instant, cancelling."""

from __future__ import annotations

import math

import pytest

from sim.kernel import Kernel


class Log:
    """Writes down what the kernel calls, and what each handler is told to schedule."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.lines: list[str] = []
        self.then: dict[str, list[tuple[float, str]]] = {}  # what to schedule when that line is written

    def write(self, line: str) -> None:
        self.lines.append(f"{self.kernel.now} {line}")
        for time, subject in self.then.pop(line, ()):
            self.kernel.at(time, 0, self.write, subject)

    def run(self, *arrivals: tuple[float, str]) -> list[str]:
        self.kernel.run(
            iter([time for time, _ in arrivals]),
            iter([who for _, who in arrivals]),
            lambda who, _: self.write(who),
            lambda _: self.write("settle"),
        )
        return self.lines


def test_all_of_an_instant_happens_before_settling_ends_before_arrivals() -> None:
    log = Log()
    log.kernel.at(5, 0, log.write, "first")
    log.kernel.at(5, 0, log.write, "second")
    log.kernel.at(5, -1, log.write, "before them")
    log.kernel.at(3, 9, log.write, "early")
    assert log.run((5, "arrival"), (5, "another"), (6, "late")) == [
        "3 early",
        "3 settle",
        "5 before them",
        "5 first",
        "5 second",
        "5 arrival",
        "5 another",
        "5 settle",
        "6 late",
        "6 settle",
    ]
    assert log.kernel.events == 7


def test_what_settling_adds_to_an_instant_is_another_round_of_it() -> None:
    log = Log()
    log.then["settle"] = [(1, "freed")]
    assert log.run((1, "arrival"), (2, "next")) == [
        "1 arrival",
        "1 settle",
        "1 freed",
        "1 settle",
        "2 next",
        "2 settle",
    ]


def test_an_event_may_add_to_its_own_instant() -> None:
    log = Log()
    log.then["a"] = [(4, "b")]
    log.kernel.at(4, 0, log.write, "a")
    assert log.run() == ["4 a", "4 b", "4 settle"]


def test_what_is_cancelled_does_not_happen_and_nobody_is_asked_at_its_time() -> None:
    log = Log()
    ticket = log.kernel.at(2, 0, log.write, "never")
    log.kernel.at(2.5, 0, log.write, "ever")
    log.kernel.cancel(ticket)
    assert log.run() == ["2.5 ever", "2.5 settle"]


@pytest.mark.parametrize("time", [0.5, math.nan, math.inf])
def test_times_that_cannot_be_are_refused(time: float) -> None:
    kernel = Kernel()
    kernel.now = 1
    with pytest.raises(ValueError, match="time: "):
        kernel.at(time, 0, lambda _: None, None)


def test_after_quiet_events_alone_nobody_is_asked() -> None:
    log = Log()
    log.kernel.at(2, 0, lambda _: True, None)
    log.kernel.at(3, 0, lambda _: True, None)
    log.kernel.at(3, 1, log.write, "loud")
    log.kernel.at(3, 2, lambda _: True, None)
    assert log.run() == ["3 loud", "3 settle"]


def test_nothing_to_do_ends_at_once() -> None:
    log = Log()
    assert log.run() == []
