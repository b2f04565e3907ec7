"""Phases of steps: what is counted for which, what the page shows, and what `advise` reads from it."""

from __future__ import annotations

import pytest

from controller.metrics.parse import parse
from controller.policy.job import ScrapeOutcome
from evalstop_client.client import EvalStopClient
from evalstop_client.phases import PHASES_KEPT, STEPS_KEPT, Phases
from sim.sharing.page import PageSteps, steps_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def step(phases: Phases, clock: Clock, number: int, rollout: float = 3.0, train: float = 1.0) -> None:
    with phases.phase("rollout"):
        clock.wait(rollout)
    with phases.phase("train", training_gpus=True):
        clock.wait(train)
    clock.wait(0.5)
    phases.reached(number)


def test_a_step_is_split_and_all_of_its_time_is_counted() -> None:
    clock = Clock()
    phases = Phases(clock)
    clock.wait(100.0)
    phases.reached(0)  # when the step before it began is not known
    for number in (1, 2):
        step(phases, clock, number, train=float(number))
    totals, steps = phases.seen()
    assert totals == [("rollout", "other", 6.0), ("train", "training", 3.0), ("unnamed", "other", 101.0)]
    assert steps == [(1, 3.5, 1.0), (2, 3.5, 2.0)]


def fail(clock: Clock) -> None:
    clock.wait(2.0)
    raise KeyError


def test_a_phase_within_another_counts_for_itself_alone() -> None:
    clock = Clock()
    phases = Phases(clock)
    phases.reached(0)
    with phases.phase("update", training_gpus=True):
        clock.wait(1.0)
        with phases.phase("tools"):
            clock.wait(5.0)
        clock.wait(1.0)
        with pytest.raises(KeyError), phases.phase("fails"):
            fail(clock)
    phases.reached(1)
    totals, steps = phases.seen()
    assert ("update", "training", 2.0) in totals
    assert ("fails", "other", 2.0) in totals
    assert steps == [(1, 7.0, 2.0)]


def test_steps_that_were_not_told_one_by_one_share_the_time_and_old_ones_go() -> None:
    clock = Clock()
    phases = Phases(clock)
    phases.reached(0)
    with phases.phase("train", training_gpus=True):
        clock.wait(8.0)
    phases.reached(4)
    phases.reached(4)
    phases.reached(3)
    assert phases.seen()[1] == [(n, 0.0, 2.0) for n in (1, 2, 3, 4)]
    phases.reached(1000)
    steps = phases.seen()[1]
    assert len(steps) == STEPS_KEPT
    assert steps[-1].step == 1000


def test_names_without_end_become_unnamed() -> None:
    clock = Clock()
    phases = Phases(clock)
    for number in range(2 * PHASES_KEPT):
        with phases.phase(f"p{number}"):
            clock.wait(1.0)
    totals, _ = phases.seen()
    assert len(totals) <= PHASES_KEPT
    assert sum(seconds for _, _, seconds in totals) == 2 * PHASES_KEPT


def client(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> EvalStopClient:
    monkeypatch.setattr("time.monotonic", clock)
    made = EvalStopClient(port=0, host="127.0.0.1", life="a1", speaks=True)
    made.set_progress(10)
    return made


def test_the_page_is_the_operators_and_advises(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    c = client(clock, monkeypatch)
    monkeypatch.setattr("evalstop_client.phases.Phases.__init__.__defaults__", (clock,))
    with pytest.raises(ValueError, match="name: expected a name of 1 to 64 characters"):
        c.phase("")
    for number in range(11, 17):
        with c.phase("rollout"):
            clock.wait(3.0)
        with c.phase("train", training_gpus=True):
            clock.wait(0.25 * number)
        c.set_progress(number)
    page = c.exposition()
    assert parse(page, "gold").outcome is ScrapeOutcome.OK
    assert b'rlhf_phase_seconds_total{phase="rollout",gpus="other"} 18.0' in page
    found = steps_of(page.decode(), "page")
    assert found == PageSteps([[3.0, 0.25 * number] for number in range(11, 17)], False)
    # A page of phases alone, as another client would write it, gives means.
    totals = "".join(line for line in page.decode().splitlines(True) if "rlhf_step_seconds" not in line)
    means = steps_of(totals.replace("rlhf_step 16", "rlhf_step 6"), "page")
    assert means.means
    assert means.steps == [[3.0, pytest.approx(0.25 * 81 / 6)]] * 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 steps in rlhf_step_seconds, and no rlhf_phase_seconds_total; expected at least 5 steps"),
        (
            'rlhf_phase_seconds_total{phase="a",gpus="other"} 1\nrlhf_step 4\n',
            "4 steps with rlhf_phase_seconds_total",
        ),
        ('rlhf_step_seconds{step="1",gpus="some"} 1\n', "gpus='some', expected training or other"),
        ('rlhf_phase_seconds_total{phase="a",gpus="other"} x\n', "'x', expected a number"),
    ],
)
def test_a_page_that_says_too_little_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^page: ") as refused:
        steps_of(text, "page")
    assert words in str(refused.value)
