"""The rules of the election: never two that may act, whatever the network and the clocks do."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.kube.lease import Candidacy, LeaseView, Timing

TIMING = Timing(15, 10.0, 2.0)
FREE = LeaseView("u1", "7", "", 15.0, 3)
HELD = LeaseView("u1", "7", "other", 15.0, 3)


@pytest.mark.parametrize(
    ("seen", "free_after"),
    [
        (None, 0.0),  # there is no Lease, and this process never saw one
        (FREE, 0.0),  # given back
        (HELD, 15.0),  # as long as its holder said, from when it was first seen so
        (replace(HELD, duration=40.0), 40.0),
        (replace(HELD, duration=0.0), 15.0),  # a holder that says nothing has our own duration
        (replace(HELD, holder="me"), 0.0),  # an earlier container of this very pod
    ],
)
def test_when_a_lease_may_be_taken(seen: LeaseView | None, free_after: float) -> None:
    candidate = Candidacy("me", TIMING)
    assert not candidate.may_take(1e9), "before the first look nothing is known"
    candidate.saw(seen, 100.0)
    assert candidate.free_at() == 100.0 + free_after
    assert not candidate.may_take(100.0 + free_after - 0.01)
    assert candidate.may_take(100.0 + free_after)


def test_any_change_of_the_lease_is_a_renewal_and_times_within_it_are_not_looked_at() -> None:
    candidate = Candidacy("me", TIMING)
    candidate.saw(HELD, 0.0)
    candidate.saw(HELD, 14.0)
    assert candidate.free_at() == 15.0
    candidate.saw(replace(HELD, version="8"), 14.9)
    assert candidate.free_at() == 29.9


def test_a_lease_that_was_deleted_is_its_holders_for_as_long_as_it_was() -> None:
    candidate = Candidacy("me", TIMING)
    candidate.saw(HELD, 0.0)
    candidate.saw(None, 5.0)
    assert candidate.free_at() == 20.0
    candidate.saw(None, 19.0)
    assert candidate.free_at() == 20.0
    assert candidate.next_epoch == 1, "what the deleted one had is found in the statuses"


def test_a_term_ends_before_the_lease_can_be_taken_and_counts_from_the_sending() -> None:
    candidate = Candidacy("me", TIMING)
    candidate.saw(FREE, 0.0)
    assert candidate.next_epoch == 4
    candidate.wrote(replace(FREE, version="8", holder="me", epoch=4), 1.0)
    assert candidate.epoch == 4
    assert candidate.leads(10.99)
    assert not candidate.leads(11.0)
    candidate.wrote(replace(FREE, version="9", holder="me", epoch=4), 9.0)
    candidate.wrote(
        replace(FREE, version="9", holder="me", epoch=4), 8.0
    )  # an older answer takes nothing away
    assert candidate.leads(18.99)
    candidate.step_down()
    candidate.wrote(replace(FREE, version="10", holder="me", epoch=4), 12.0)
    assert not candidate.leads(12.0), "whoever stepped down stays down"


@pytest.mark.parametrize(
    ("duration", "deadline", "retry", "says"),
    [
        (15, 15.0, 2.0, "renewal deadline 15 s: expected less than the lease's 15 s"),
        (15, 10.0, 10.0, "renewal period 10 s: expected less than the deadline, 10 s"),
    ],
)
def test_timing_that_lets_two_act_is_refused(duration: int, deadline: float, retry: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Timing(duration, deadline, retry)


# -- any schedule ------------------------------------------------------------------------------------------


@dataclass
class Register:
    """The Lease on the server: writes only over what their sender read."""

    lease: LeaseView | None = None
    versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, over: LeaseView | None, new: LeaseView) -> LeaseView | None:
        known = None if self.lease is None else self.lease.version
        if known != (None if over is None else over.version):
            return None
        self.lease = replace(new, version=str(next(self.versions)))
        return self.lease


class Actor:
    """A candidate whose every step is the schedule's to choose: between any two of them it may hang."""

    def __init__(self, name: str, rate: float, start: float) -> None:
        self.candidacy = Candidacy(name, TIMING)
        self._rate, self._start = rate, start
        self._read: list[LeaseView | None] = []
        self._sent: tuple[float, LeaseView | None, LeaseView] | None = None
        self._arrived: tuple[float, LeaseView] | None = None

    def now(self, time: float) -> float:
        return self._start + self._rate * time

    def free_at(self) -> float:
        """When, by nobody's clock, it may take the Lease as it last saw it; 0: not known."""
        at = (self.candidacy.free_at() - self._start) / self._rate
        return at if math.isfinite(at) else 0.0

    def step(self, what: str, register: Register, time: float) -> None:
        now, mine = self.now(time), self.candidacy
        if what == "look":
            self._read = [register.lease]
        elif what == "hear" and self._read:
            mine.saw(self._read.pop(), now)
        elif what == "send" and self._sent is None:
            if mine.leads(now):
                self._send(now, mine.epoch)
            elif mine.may_take(now):
                self._send(now, mine.next_epoch)
        elif what == "arrive" and self._sent is not None:
            sent, over, new = self._sent
            self._sent = None
            if (answer := register.write(over, new)) is not None:
                self._arrived = (sent, answer)
        elif what == "answer" and self._arrived is not None:
            sent, answer = self._arrived
            self._arrived = None
            mine.wrote(answer, sent)
        elif what == "give up":  # the call's time is over: what is under way may still arrive, unheard
            self._arrived = None

    def _send(self, now: float, epoch: int) -> None:
        new = LeaseView("u", "", self.candidacy.identity, float(TIMING.duration), epoch)
        self._sent = (now, self.candidacy.seen, new)


STEPS = st.tuples(
    st.floats(0.0, 12.0),  # s that pass before it
    st.integers(0, 2),
    st.sampled_from(["look", "hear", "send", "arrive", "answer", "give up", "all", "all", "at once"]),
)
WHOLE = ("look", "hear", "send", "arrive", "answer")
CLOCKS = st.tuples(st.floats(0.9, 1.1), st.floats(-1e6, 1e6))


@given(st.lists(CLOCKS, min_size=3, max_size=3), st.lists(STEPS, max_size=120))
@settings(max_examples=400)
def test_never_two_may_act_and_terms_are_numbered_upwards(
    clocks: list[tuple[float, float]], steps: list[tuple[float, int, str]]
) -> None:
    """Clocks start anywhere and run up to a tenth too fast or too slow: less than duration / deadline
    apart."""
    register, time, newest = Register(), 0.0, 0
    actors = [Actor(f"c{i}", rate, start) for i, (rate, start) in enumerate(clocks)]
    for passed, who, what in steps:
        time = max(time, actors[who].free_at()) if what == "at once" else time + passed
        for part in WHOLE if what in ("all", "at once") else (what,):
            actors[who].step(part, register, time)
        leading = [a.candidacy for a in actors if a.candidacy.leads(a.now(time))]
        assert len(leading) <= 1, f"{[a.identity for a in leading]} act at {time}"
        for leader in leading:
            assert leader.epoch >= newest, "an earlier term acts after a later one began"
            newest = leader.epoch


def test_the_schedules_reach_second_terms() -> None:
    """The property above would be empty if nobody ever took over."""
    register, actors = Register(), [Actor("a", 1.0, 0.0), Actor("b", 1.1, 500.0)]
    for time, who in ((0.0, 0), (1.0, 1), (14.0, 1), (15.0, 1)):
        for part in WHOLE:
            actors[who].step(part, register, time)
    assert [a.candidacy.leads(a.now(15.0)) for a in actors] == [False, True]
    assert actors[1].candidacy.epoch == 2
