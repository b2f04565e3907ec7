"""What a step teaches: the actors' law from reports, and whether predictions are worth planning by."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.rollout import (
    ActorLaw,
    Dispatch,
    Learned,
    StepSeen,
    Trust,
    WorkReport,
    lead_seconds,
    learned,
    rank_correlation,
    refit_law,
    way_seconds,
    with_starts,
)
from controller.policy.rollout.refit import scaled_law

LAW = ActorLaw(iteration=0.010, sequence=0.0001, growth=1e-8, prefill=0.004, slots=64)


def report(law: ActorLaw, iterations: int, batch: float, prompts: float = 10.0) -> WorkReport:
    tokens, grown = int(iterations * batch), 300.0 * iterations * batch
    seconds = law.iteration * iterations + law.sequence * tokens + law.growth * grown
    return WorkReport(iterations, tokens, seconds, grown, prompts, law.prefill * prompts)


@pytest.mark.parametrize(
    ("iteration", "sequence", "prefill"), [(0.010, 0.0001, 0.004), (0.02, 0.0002, 0.01), (0.006, 0.0, 0.002)]
)
def test_a_law_is_found_from_full_and_nearly_empty_actors(
    iteration: float, sequence: float, prefill: float
) -> None:
    true = ActorLaw(iteration=iteration, sequence=sequence, growth=1e-8, prefill=prefill, slots=64)
    law = LAW
    for _ in range(8):
        law, used = refit_law(
            law, [report(true, 2000, 60.0), report(true, 500, 4.0), report(true, 900, 30.0)]
        )
        assert used == 3
    assert law.iteration == pytest.approx(iteration, rel=0.05)
    assert law.sequence == pytest.approx(sequence, abs=1e-5)
    assert law.prefill == pytest.approx(prefill)


def test_full_actors_alone_say_what_a_full_one_takes() -> None:
    true = ActorLaw(iteration=0.013, sequence=0.0001, growth=1e-8, prefill=0.004, slots=64)
    law = LAW
    for _ in range(12):
        law, _ = refit_law(law, [report(true, 2000, 64.0), report(true, 2000, 64.0)])
    full = law.iteration + 64 * law.sequence
    assert full == pytest.approx(true.iteration + 64 * true.sequence, rel=0.02)


@pytest.mark.parametrize("times", [0.01, 0.2, 5.0, 400.0])
def test_a_guessed_law_is_right_after_one_step(times: float) -> None:
    """However far from it the guess was: the second step is planned by it."""
    true = ActorLaw(
        iteration=times * LAW.iteration, sequence=times * LAW.sequence, growth=times * LAW.growth, slots=64
    )
    reports = [report(true, 2000, 60.0), report(true, 900, 30.0)]
    law, used = refit_law(scaled_law(LAW, reports), reports)
    assert used == 2
    for batch in (4.0, 30.0, 64.0):
        seen = report(true, 1000, batch)
        told = law.seconds(seen.iterations, seen.tokens, seen.grown, 0.0)
        assert told == pytest.approx(seen.decode_seconds, rel=0.02)
    assert scaled_law(LAW, [WorkReport(0, 0, 1.0)]) == LAW, "nothing that can be was reported"


@pytest.mark.parametrize(
    "bad",
    [
        WorkReport(0, 0, 1.0),
        WorkReport(10, 641, 1.0),  # more than the slots
        WorkReport(10, 10, 0.0),
        WorkReport(10, 10, math.nan),
        WorkReport(10, 10, math.inf),
        WorkReport(10, 10, 1.0, math.nan),
        WorkReport(10, 10, 1.0, 0.0, -1.0),
        WorkReport(10, 10, 1.0, 0.0, 1.0, math.nan),
    ],
)
def test_a_report_that_cannot_be_is_left_out(bad: WorkReport) -> None:
    assert refit_law(LAW, [bad]) == (LAW, 0)


@given(st.floats(1e-6, 1e6), st.integers(1, 10_000), st.integers(1, 64))
def test_a_step_changes_no_time_by_more_than_three_times(seconds: float, iterations: int, batch: int) -> None:
    law, _ = refit_law(LAW, [WorkReport(iterations, iterations * batch, seconds, 0.0, 5.0, seconds)])
    for name in ("iteration", "sequence", "prefill"):
        assert getattr(LAW, name) / 3.001 <= getattr(law, name) <= 3.001 * getattr(LAW, name)


@pytest.mark.parametrize(
    ("predicted", "actual", "rank"),
    [
        (range(10), range(10), 1.0),
        (range(10), range(10, 0, -1), -1.0),
        ([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], 1.0),
        (range(7), range(7), None),
        ([5.0] * 10, range(10), None),
        (range(10), range(9), None),
    ],
)
def test_rank_correlation(predicted: list[float], actual: list[float], rank: float | None) -> None:
    assert rank_correlation(list(predicted), list(actual)) == (None if rank is None else pytest.approx(rank))


def test_ranks_that_say_nothing_are_given_up_and_taken_up_again_later() -> None:
    trust = Trust()
    for _ in range(3):
        trust = trust.seen(0.0, 10.0, 10.0)
    assert trust.ranks_poor
    trust = trust.seen(0.55, 10.0, 10.0)
    assert trust.ranks_poor, "0.275 is above what is given up, and below what is taken up again"
    trust = trust.seen(0.55, 10.0, 10.0)
    assert not trust.poor


def test_times_that_are_wrong_are_given_up_whichever_way() -> None:
    for measured in (5.0, 20.0):
        assert Trust().seen(1.0, 10.0, measured).times_poor
    assert not Trust().seen(1.0, 10.0, 12.0).poor


@pytest.mark.parametrize(
    ("rank", "planned", "measured"),
    [(None, None, 10.0), (math.nan, 10.0, math.nan), (2.0, math.inf, 10.0), (None, 10.0, 0.0)],
)
def test_what_cannot_be_teaches_nothing(rank: float | None, planned: float | None, measured: float) -> None:
    assert Trust().seen(rank, planned, measured) == Trust()


@pytest.mark.parametrize(
    ("ways", "lead"),
    [
        ((), 6.0),
        ((7.5,), 7.5),
        ((7.0, 7.2, 7.4, 7.6, 9.0), 9.0),
        ((7.0,) * 14 + (7.5, 9.0), 7.5),  # one step in sixteen is not waited for
        ((2.0, 3.0), 6.0),  # never later than a start takes
        ((300.0, 400.0), 16.0),
    ],
)
def test_actors_are_asked_for_so_early_that_nine_steps_in_ten_have_all_of_them(
    ways: tuple[float, ...], lead: float
) -> None:
    assert lead_seconds(6.0, ways) == lead


@pytest.mark.parametrize(
    ("entry", "ready", "way"),
    [(101.0, 106.0, 6.0), (102.0, 106.0, 6.0), (109.0, 114.0, 7.0), (90.0, 106.0, 6.0), (100.0, 99.0, 0.0)],
)
def test_who_waits_for_gpus_would_not_be_ready_sooner_had_it_been_asked_for_sooner(
    entry: float, ready: float, way: float
) -> None:
    assert way_seconds(100.0, entry, ready) == way


@pytest.mark.parametrize(
    ("ready", "dispatch", "expected"),
    [
        ([0.0, 0.0, 0.0], "LongestFirst", 6.0),
        ([0.0, 0.0, 0.0, 0.0], "LongestFirst", 6.0),  # more than planned: nobody said so
        ([0.0, 0.0, 3.0], "LongestFirst", 7.0),  # 18 s of work: 7 + 7 + 4
        ([0.0, 3.0, 3.0], "LongestFirst", 8.0),
        ([0.0, 0.0, 20.0], "LongestFirst", 9.0),  # it came when all was done
        ([0.0, 10.0, 12.0], "LongestFirst", 40.0 / 3.0),
        ([0.0], "LongestFirst", 18.0),
        ([0.0, 0.0, 3.0], "Even", 9.0),  # its group waits for it
        ([0.0, 0.0], "Even", 9.0),
        ([], "LongestFirst", None),
    ],
)
def test_a_late_start_is_no_error_of_lengths_or_law(
    ready: list[float], dispatch: str, expected: float | None
) -> None:
    found = with_starts(6.0, [0.0, 0.0, 0.0], ready, Dispatch(dispatch))
    assert found == (None if expected is None else pytest.approx(expected))
    if expected is not None:
        assert not Trust().seen(1.0, found, expected).poor


@pytest.mark.parametrize("dispatch", [Dispatch.LONGEST_FIRST, Dispatch.RANKED, Dispatch.EVEN])
def test_a_start_that_was_planned_late_is_not_late(dispatch: Dispatch) -> None:
    assert with_starts(6.0, [0.0, 2.0], [0.0, 1.5], dispatch) == 6.0


def seen(seconds: float, expected: float | None, reports: tuple[WorkReport, ...]) -> StepSeen:
    return StepSeen(seconds, None, reports, None, expected)


def test_a_step_that_was_planned_by_a_guess_is_no_error_of_predictions() -> None:
    """The first law is only brought to scale; from the second step on plans are held against what was."""
    true = ActorLaw(iteration=0.04, sequence=0.0004, growth=4e-8, prefill=0.016, slots=64)
    reports = (report(true, 2000, 60.0), report(true, 900, 30.0))
    first = learned(Learned(LAW), LAW, seen(400.0, 100.0, reports))
    assert first.known
    assert first.trust.time_error is None
    assert first.law.iteration == pytest.approx(true.iteration, rel=0.1), "one step is enough"
    second = learned(first, first.law, seen(400.0, 100.0, reports))
    assert second.trust.time_error == pytest.approx(math.log(4.0))


def test_without_a_believable_report_the_law_stays_a_guess() -> None:
    nothing = learned(Learned(LAW), LAW, seen(400.0, 100.0, ()))
    assert nothing == Learned(LAW)
    kept = learned(Learned(LAW, before=(3, Dispatch.EVEN)), LAW, seen(1.0, None, ()))
    assert kept.before == (3, Dispatch.EVEN), "a step without a plan says nothing of the count"


def test_a_law_that_is_known_moves_by_three_times_a_step_and_stays_known() -> None:
    """A step may have been slow for once; nor is what was learned forgotten where nothing is reported."""
    known = Learned(LAW, known=True)
    slow = ActorLaw(iteration=4.0, sequence=0.04, growth=4e-6, prefill=1.6, slots=64)
    after = learned(known, LAW, seen(400.0, 100.0, (report(slow, 2000, 60.0), report(slow, 900, 30.0))))
    assert after.law.iteration <= 3.001 * LAW.iteration
    assert after.law.sequence <= 3.001 * LAW.sequence
    assert learned(known, LAW, seen(10.0, 10.0, ())).known
