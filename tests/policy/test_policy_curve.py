"""The whole curve in the record: order, bounds, what always stays, and that nothing is judged by it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api import codec
from controller.names import STEP_MAX
from controller.policy.job import (
    CURVE_BUCKETS,
    NEW_BASELINE,
    RESUMED,
    STOPPED,
    WOULD_STOP,
    Bucket,
    EvalCurve,
    JobRecord,
    coarser,
    course,
    curve_branches,
    curve_marks,
)
from controller.policy.job.curve import BRANCHES, marked, with_eval
from controller.policy.job.record import Best, Decision, EvalBaseline, LifeRecord, Proposal
from controller.policy.job.types import Direction, Plan, ResumeFrom, ResumeRequest, RunState
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Verb, Verdict
from tests.support.policy_world import Job, PolicyWorld

BYTES = 3000
KEY = "ns/a"
RULE = PolicySpec("kDeclines", {"k": 2})

finite = st.floats(allow_nan=False, allow_infinity=False)
steps = st.integers(1, 10**6) | st.integers(1, STEP_MAX // 2000)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[EvalPoint, Verdict]]:
    """Evals of several attempts, each going on from a step that was reached before, or from its end."""
    found: list[tuple[EvalPoint, Verdict]] = []
    reached = 0
    numbers = draw(st.lists(finite, min_size=1, max_size=7))
    for attempt in range(1, draw(st.integers(1, 14)) + 1):
        step = draw(st.integers(0, reached)) if draw(st.booleans()) else reached
        apart = draw(steps)
        for n in range(draw(st.integers(1, 90))):
            step += apart
            if step > STEP_MAX:
                return found
            score = numbers[(n + attempt) % len(numbers)]
            verdict = Verdict(Verb.CONTINUE, "R", numbers[n % len(numbers)], numbers[attempt % len(numbers)])
            proxy = score if attempt % 2 else None
            found.append((EvalPoint(step, score, Attempt(attempt, "a"), proxy=proxy), verdict))
        reached = step
    return found


def told(history: list[tuple[EvalPoint, Verdict]]) -> EvalCurve:
    record = JobRecord()
    for point, verdict in history:
        record = replace(record, curve=with_eval(record, point, verdict, point.proxy))
    assert record.curve is not None
    return record.curve


def size(curve: EvalCurve) -> int:
    return len(json.dumps(codec.encode(curve), separators=(",", ":")))


def rounded(score: float) -> float:
    return float(f"{score:.5g}")


@settings(max_examples=120, deadline=None)
@given(histories())
def test_a_curve_is_in_order_within_its_bounds_and_holds_every_eval_of_the_run(
    history: list[tuple[EvalPoint, Verdict]],
) -> None:
    found = told(history)
    assert size(found) <= BYTES
    assert 1 <= len(found.buckets) <= CURVE_BUCKETS
    assert codec.decode(EvalCurve, json.loads(json.dumps(codec.encode(found)))) == found
    branches = curve_branches(found)
    assert len(branches) <= BRANCHES
    for branch in branches:
        assert branch[0].anew
        assert not any(b.anew for b in branch[1:])
        assert all(a.place < b.place for a, b in pairwise(branch))
        for one in branch:
            assert one.low <= one.last <= one.high
            assert all(map(math.isfinite, (one.low, one.high)))
            assert one.share is None or 0.0 <= one.share <= 9.99
    newest = history[-1][0]
    assert branches[-1][-1].place == newest.step // found.width
    assert (found.step, found.attempt) == (newest.step, newest.attempt)
    # Where each attempt went on always stays.
    begun = sorted({point.attempt.number for point, _ in history})[1:]
    assert [mark.attempt for mark in curve_marks(found)] == begun
    # Each eval since the run last went back lies in the bucket of its step, within its bounds.
    since = len(history) - 1
    while since and history[since - 1][0].step <= history[since][0].step:
        since -= 1
    places: dict[int, Bucket] = {one.place: one for one in branches[-1]}
    for point, _ in history[since:]:
        one = places[point.step // found.width]
        assert one.low <= max(rounded(point.score), one.low)
        if math.isfinite(rounded(point.score)):
            assert one.low <= rounded(point.score) <= one.high


@settings(max_examples=60, deadline=None)
@given(histories())
def test_extremes_of_the_present_branch_are_those_of_its_evals(
    history: list[tuple[EvalPoint, Verdict]],
) -> None:
    since = len(history) - 1
    while since and history[since - 1][0].step <= history[since][0].step:
        since -= 1
    scores = [rounded(point.score) for point, _ in history[since:]]
    if not all(map(math.isfinite, scores)):
        return
    branch = curve_branches(told(history))[-1]
    assert min(b.low for b in branch) == min(scores)
    assert max(b.high for b in branch) == max(scores)


def test_few_evals_are_kept_one_by_one_and_a_thousand_in_buckets_of_one_width() -> None:
    def of(count: int, apart: int = 25) -> EvalCurve:
        verdicts = [Verdict(Verb.CONTINUE, "R", n / 10, 100.0) for n in range(count)]
        return told(
            [
                (EvalPoint(apart * (n + 1), math.sin(n / 50), Attempt(1, "1"), proxy=float(n)), verdicts[n])
                for n in range(count)
            ]
        )

    few = of(60)
    assert few.width == 1
    (branch,) = curve_branches(few)
    assert [b.place for b in branch] == [25 * (n + 1) for n in range(60)]
    assert branch[7].last == rounded(math.sin(7 / 50))
    many = of(1000)
    (branch,) = curve_branches(many)
    assert CURVE_BUCKETS // 2 < len(branch) <= CURVE_BUCKETS
    assert many.width == 512  # of 25,000 steps: 49 buckets; of 256 there would be 98
    assert branch[-1].share == 0.999 or branch[-1].share == pytest.approx(1.0)
    assert branch[-1].proxy == 999.0
    assert branch[-1].kl == 999.0


@pytest.mark.parametrize("score", [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, -0.0, 1e308, 0.1])
def test_extreme_scores_read_back_as_numbers(score: float) -> None:
    found = told(
        [(EvalPoint(1, score, Attempt(1, "1"), proxy=math.nan), Verdict(Verb.CONTINUE, "R", math.nan, 1.0))]
    )
    ((one,),) = curve_branches(found)
    assert math.isfinite(one.last)
    assert one.last == pytest.approx(score, rel=1.1e-4)
    assert (one.share, one.proxy, one.kl) == (None, None, None)


def test_a_threshold_that_is_none_gives_no_share() -> None:
    for threshold in (0.0, -1.0, math.inf, math.nan):
        verdict = Verdict(Verb.CONTINUE, "R", 1.0, threshold)
        ((one,),) = curve_branches(told([(EvalPoint(1, 0.5), verdict)]))
        assert one.share is None


def test_what_a_run_left_stays_beside_what_it_goes_on_with() -> None:
    first = [EvalPoint(10 * n, 0.1 * n, Attempt(1, "1")) for n in range(1, 8)]
    again = [EvalPoint(10 * n, 0.5, Attempt(2, "1")) for n in range(5, 9)]
    life = LifeRecord(Attempt(2, "1"), "pod", 0.0, 0.0, resumed=40)
    record = JobRecord()
    for point in first:
        record = replace(record, curve=with_eval(record, point, None))
    record = replace(record, lives=(life,))
    for point in again:
        record = replace(record, curve=with_eval(record, point, None))
    old, new = curve_branches(record.curve)
    assert [b.place for b in old] == [10, 20, 30, 40, 50, 60, 70]
    assert [b.place for b in new] == [50, 60, 70, 80]
    assert [m[:3] for m in curve_marks(record.curve)] == [(RESUMED, 40, 2)]


def test_a_container_that_goes_on_where_it_was_begins_no_branch() -> None:
    record = JobRecord(lives=(LifeRecord(Attempt(1, "2"), "pod", 0.0, 0.0, resumed=20),))
    for point in (EvalPoint(10, 0.1, Attempt(1, "1")), EvalPoint(20, 0.2, Attempt(1, "1"))):
        record = replace(record, curve=with_eval(record, point, None))
    for point in (EvalPoint(20, 0.3, Attempt(1, "2")), EvalPoint(30, 0.4, Attempt(1, "2"))):
        record = replace(record, curve=with_eval(record, point, None))
    ((_, twenty, _),) = curve_branches(record.curve)
    assert (twenty.low, twenty.last, twenty.high) == (0.2, 0.3, 0.3)
    assert curve_marks(record.curve) == ()


def test_scores_that_cannot_be_compared_begin_a_branch() -> None:
    record = JobRecord(curve=told([(EvalPoint(10, 0.5), Verdict(Verb.CONTINUE, "R", 1.0, 2.0))]))
    record = replace(record, baseline=EvalBaseline(0.0, number=1))
    record = replace(record, curve=with_eval(record, EvalPoint(20, 70.0), None))
    assert len(curve_branches(record.curve)) == 2
    assert [m[:2] for m in curve_marks(record.curve)] == [(NEW_BASELINE, 20)]


def of_attempts(count: int, apart: int) -> EvalCurve:
    """The curve of a run that was resumed again and again, ten evals in each attempt."""
    steps = [apart * (n + 1) for n in range(10 * count)]
    return told(
        [
            (
                EvalPoint(step, math.sin(n), Attempt(n // 10 + 1, "a"), proxy=n / 7),
                Verdict(Verb.CONTINUE, "R", n, 3.0),
            )
            for n, step in enumerate(steps)
        ]
    )


@pytest.mark.parametrize(
    ("count", "apart", "kept"), [(31, 10, 30), (64, 10, 63), (200, 1, 60), (200, STEP_MAX // 2000, 40)]
)
def test_stops_and_resumes_stay_and_the_buckets_get_what_is_left(count: int, apart: int, kept: int) -> None:
    found = of_attempts(count, apart)
    marks = curve_marks(found)
    assert [mark.attempt for mark in marks[-kept:]] == list(range(count - kept + 1, count + 1))
    assert kept <= len(marks) <= kept + 5
    assert size(found) <= BYTES
    (branch,) = curve_branches(found)
    assert 16 <= len(branch) <= CURVE_BUCKETS
    assert branch[-1].place == 10 * count * apart // found.width


def test_a_stop_takes_its_room_from_the_buckets_too() -> None:
    record = JobRecord(curve=of_attempts(64, 10))
    for step in range(2000, 2400, 10):
        stop = Decision("scan", Mode.SHADOW, Proposal(step, 20, "Decline", 2.0, 2.0), "it fell", 0.0)
        record = marked(Plan(replace(record, decision=stop))).record
    assert record.curve is not None
    assert size(record.curve) <= BYTES
    assert sum(mark.kind == WOULD_STOP for mark in curve_marks(record.curve)) == 40


@given(
    st.lists(st.text("0123456789.-e anewif", max_size=30), max_size=64),
    st.lists(st.text(max_size=20), max_size=12),
)
def test_lines_that_none_of_ours_wrote_are_passed_over(lines: list[str], marks: list[str]) -> None:
    good = told([(EvalPoint(10, 0.5), Verdict(Verb.CONTINUE, "R", 1.0, 2.0))])
    wild = replace(good, width=7, buckets=(*good.buckets, *lines), marks=tuple(marks))
    record = JobRecord(curve=wild, evals=(EvalPoint(10, 0.5),))
    found = course(record)
    assert all(math.isfinite(v) for p in found.points for v in (p.score, p.low, p.high))
    assert all(mark.step >= 0 for mark in curve_marks(wild))
    after = with_eval(record, EvalPoint(STEP_MAX, 0.7), None)
    assert curve_branches(after)[-1][-1].last == 0.7


# -- in a run --------------------


def test_kl_is_that_of_the_newest_eval_of_a_page_and_goes_the_way_of_the_others() -> None:
    world, job = started(Mode.SHADOW)
    show(world, job, [0.1, 0.2])  # two at once: the gauge says nothing of the first
    for upto, kl in ((3, 0.12344), (4, math.nan), (5, None), (6, 7.5)):
        show(world, job, [0.1 * n for n in range(1, upto + 1)], kl=kl)
    assert course(job.record).kls == ((30, 0.123), (60, 7.5))
    assert job.record.curve is not None
    assert job.record.curve.buckets[2].split() == ["30", ".3", "-", "-", "0", "-", ".123"]
    wide = coarser(coarser(job.record.curve))
    assert [b.kl for b in curve_branches(wide)[0]][-1] == 7.5


def show(
    world: PolicyWorld,
    job: Job,
    scores: list[float],
    attempt: int = 1,
    first: int = 1,
    kl: float | None = None,
) -> None:
    points = tuple(EvalPoint(10 * n, s, Attempt(attempt, "1")) for n, s in enumerate(scores, first))
    job.checkpoints.update(p.step for p in points)
    world.scrape(KEY, points=points[-32:], checkpoint_step=points[-1].step, kl=kl)
    world.step(KEY)


def started(mode: Mode, **spec: object) -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n1": 1})
    job = world.submit(KEY, rule=RULE, mode=mode, **spec)
    world.settle()
    return world, job


def test_a_run_of_a_thousand_evals_keeps_its_whole_course_its_best_and_its_would_be_stop() -> None:
    world, job = started(Mode.SHADOW)
    scores = [0.5 + 0.3 * math.sin(n / 100) for n in range(1000)]
    for upto in range(20, 1001, 20):
        show(world, job, scores[:upto])
    record = job.record
    (branch,) = curve_branches(record.curve)
    assert branch[0].place * record.curve.width <= 10
    assert max(b.high for b in branch) == rounded(max(scores))
    assert record.best == Best(10 * (1 + scores.index(max(scores))), max(scores), Attempt(1, "1"))
    assert record.decision is not None
    assert [m[:2] for m in curve_marks(record.curve)] == [(WOULD_STOP, record.decision.proposal.step)]


@pytest.mark.parametrize("direction", Direction)
def test_a_stop_and_a_resume_are_marked_in_order_and_cost_no_pass_of_their_own(direction: Direction) -> None:
    sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
    world, job = started(Mode.ENFORCE, direction=direction)
    show(world, job, [sign * s for s in (0.1, 0.4, 0.5, 0.4, 0.3)])
    world.settle()
    assert job.record.decision is not None
    assert job.record.decision.suspended_at is not None
    assert [m[:2] for m in curve_marks(job.record.curve)] == [(STOPPED, 50)]
    kept = job.record
    world.step(KEY)
    assert job.record == kept  # nothing more to be written
    job.desired = replace(job.desired, run_state=RunState.RUN, resume=ResumeRequest("again", ResumeFrom.BEST))
    world.settle()
    show(world, job, [sign * s for s in (0.55, 0.6)], attempt=2, first=4)
    old, new = curve_branches(job.record.curve)
    assert [b.place for b in old] == [10, 20, 30, 40, 50]
    assert [b.place for b in new] == [40, 50]
    assert [(m.kind, m.attempt) for m in curve_marks(job.record.curve)] == [(STOPPED, None), (RESUMED, 2)]


def test_nothing_is_decided_by_it() -> None:
    """Plans with another curve, or none, differ in nothing else."""
    worlds = [started(Mode.ENFORCE) for _ in range(3)]
    scores = [0.1, 0.2, 0.5, 0.45, 0.5, 0.4, 0.3, 0.2]
    for upto in range(1, len(scores) + 1):
        for n, (world, job) in enumerate(worlds):
            if n == 1:
                job.record = replace(job.record, curve=None)
            if n == 2 and job.record.curve is not None:
                lies = tuple(f"{at} -9.5 -1e300 1e300 999" for at in range(40))
                job.record = replace(job.record, curve=replace(job.record.curve, width=1, buckets=lies))
            show(world, job, scores[:upto])
            world.settle()
        bare = [replace(job.record, curve=None) for _, job in worlds]
        assert bare[0] == bare[1] == bare[2]
    assert worlds[0][1].record.decision is not None
