"""How evals enter a job's memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.names import EVALS_KEPT
from controller.policy.job.evals import ingest, rewind
from controller.policy.job.record import Best, JobRecord, ProtectedCheckpoint
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, PolicySpec

ONE, TWO = Attempt(1, "100"), Attempt(2, "200")


def use(k: int = 3, direction: Direction = Direction.MAXIMIZE) -> RuleInUse:
    spec = PolicySpec("kDeclines", {"k": k})
    return RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, spec, direction=direction))


def scrape(*points: EvalPoint, **more) -> ScrapeView:
    return ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points, **more)


def evals(*scores: float, start: int = 10, attempt: Attempt = ONE) -> list[EvalPoint]:
    return [EvalPoint(start + 10 * i, s, attempt) for i, s in enumerate(scores)]


def streak(record: JobRecord) -> float:
    assert record.rule is not None
    assert record.rule.verdict is not None
    return record.rule.verdict.statistic


def test_scraping_again_changes_nothing() -> None:
    once = ingest(JobRecord(), use(), scrape(*evals(1, 2, 1.5)))
    assert ingest(once, use(), scrape(*evals(1, 2, 1.5))) is once


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_scores_are_ignored(bad: float) -> None:
    record = ingest(JobRecord(), use(), scrape(*evals(3, 2, bad, 1)))
    assert [p.score for p in record.evals] == [3, 2, 1]
    assert streak(record) == 2


def test_a_step_reported_again_with_another_score_is_ignored() -> None:
    record = ingest(JobRecord(), use(), scrape(*evals(3, 2, 1)))
    assert ingest(record, use(), scrape(EvalPoint(30, 99.0, ONE))) is record


def test_steps_going_backwards_within_one_life_are_ignored() -> None:
    record = ingest(JobRecord(), use(), scrape(*evals(3, 2, 1)))
    assert ingest(record, use(), scrape(EvalPoint(5, 9.0, ONE))) is record


def test_an_earlier_life_is_ignored() -> None:
    record = ingest(JobRecord(), use(), scrape(*evals(5, attempt=ONE)))
    record = ingest(record, use(), scrape(*evals(1, 2, attempt=TWO)))
    assert ingest(record, use(), scrape(*evals(9, 9, 9, start=30, attempt=ONE))) is record


def test_a_new_attempt_drops_the_steps_after_its_resume() -> None:
    old = ingest(JobRecord(), use(), scrape(*evals(1, 5, 4, 3)))
    assert streak(old) == 2
    new = ingest(old, use(), scrape(*evals(4.5, start=30, attempt=TWO), resumed_step=20))
    assert [(p.step, p.attempt) for p in new.evals] == [(10, ONE), (20, ONE), (30, TWO)]
    assert streak(new) == 1


def test_a_restart_without_loss_keeps_the_streak() -> None:
    old = ingest(JobRecord(), use(), scrape(*evals(1, 5, 4, 3)))
    new = ingest(old, use(), scrape(*evals(2, start=50, attempt=Attempt(1, "300")), resumed_step=40))
    assert streak(new) == 3


def test_a_secured_best_stays_when_its_step_is_dropped_an_unsecured_one_goes() -> None:
    old = ingest(JobRecord(), use(), scrape(*evals(1, 2, 3, 9)))
    assert old.best == Best(40, 9, ONE)
    assert rewind(old, use(), 20).best == Best(20, 2, ONE)
    kept = replace(old, secured=ProtectedCheckpoint(40, 40, "/p", "sha256:x", 0.0, score=9, attempt=ONE))
    assert rewind(kept, use(), 20).best == Best(40, 9, ONE)


def test_gaps_are_counted_and_leave_the_streak() -> None:
    record = ingest(JobRecord(), use(), scrape(*evals(3, 2), evals_total=2))
    record = ingest(record, use(), scrape(*evals(1, start=70), evals_total=7))
    assert record.evals_missed == 4
    assert streak(record) == 2
    assert ingest(record, use(), scrape(*evals(1, start=70), evals_total=7)) is record


def test_minimize_turns_the_scores_round() -> None:
    record = ingest(JobRecord(), use(direction=Direction.MINIMIZE), scrape(*evals(3, 1, 2, 4)))
    assert record.best == Best(20, 1, ONE)
    assert streak(record) == 2
    assert [p.score for p in record.evals] == [3, 1, 2, 4]


def test_another_rule_folds_the_evals_that_are_left() -> None:
    record = ingest(JobRecord(), use(3), scrape(*evals(5, 4, 3)))
    changed = ingest(record, use(2), scrape(*evals(5, 4, 3)))
    assert changed.rule is not None
    assert changed.rule.params_hash != record.rule.params_hash
    assert changed.rule.verdict.verb == "Stop"


@given(
    st.lists(st.floats(-5, 5).map(lambda x: round(x, 1)), min_size=1, max_size=80),
    st.lists(st.integers(1, 20), min_size=1, max_size=80),
)
def test_any_split_into_scrapes_gives_the_same_memory(scores: list[float], sizes: list[int]) -> None:
    points = evals(*scores)
    whole = JobRecord()
    for p in points:
        whole = ingest(whole, use(), scrape(p))
    split, at = JobRecord(), 0
    for size in sizes * 80:
        if at >= len(points):
            break
        at = min(len(points), at + size)
        split = ingest(split, use(), scrape(*points[max(0, at - EVALS_KEPT) : at], evals_total=at))
    assert replace(split, evals_in_attempt=0) == replace(whole, evals_in_attempt=0)
    assert len(whole.evals) <= EVALS_KEPT
    assert whole.best == Best(*max(((p.step, p.score) for p in points), key=lambda b: (b[1], -b[0])), ONE)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=EVALS_KEPT), st.integers(0, 400))
def test_rewinding_is_as_if_the_later_evals_had_never_been(scores: list[float], step: int) -> None:
    points = evals(*scores)
    rewound = rewind(ingest(JobRecord(), use(), scrape(*points)), use(), step)
    never = ingest(JobRecord(), use(), scrape(*(p for p in points if p.step <= step)))
    assert rewound.evals == never.evals
    if never.evals:
        assert (rewound.rule, rewound.best) == (never.rule, never.best)
