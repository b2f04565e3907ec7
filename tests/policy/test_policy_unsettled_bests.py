"""Bests that are not settled: evals that counted before there was a scale, and evals that wait and agree."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.job.bests import stand_anew
from controller.policy.job.evals import ingest, judged_from_now_on, rewind
from controller.policy.job.record import JobRecord, Operation, ProtectedCheckpoint
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import (
    AccessView,
    Desired,
    Direction,
    Page,
    RunState,
    ScrapeOutcome,
    ScrapeView,
)
from controller.policy.stopping import gate
from controller.policy.types import Attempt, EvalInContext, EvalPoint, FleetNoise, PolicySpec
from tests.support.policy_world import Job, PolicyWorld

MODIFIERS = (PolicySpec("patience"), PolicySpec("gate"))
NOISY = [0.5, 0.55, 0.52, 0.56, 0.49, 0.54, 0.51, 0.53, 0.5, 0.52]


def use(direction: Direction = Direction.MAXIMIZE, **params: float) -> RuleInUse:
    modifiers = (PolicySpec("patience"), PolicySpec("gate", params))
    return RuleInUse.of(
        Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("scan"), modifiers, direction=direction)
    )


def read(scores: list[float], rule: RuleInUse, errors: list[float | None] | None = None) -> list[JobRecord]:
    """The record after each eval."""
    errors = errors or [None] * len(scores)
    points = [EvalPoint(10 * i, s, stderr=e) for i, (s, e) in enumerate(zip(scores, errors, strict=True), 1)]
    records = [JobRecord()]
    for number in range(len(points)):
        seen = ScrapeView(
            ScrapeOutcome.OK, metrics_seen=("gold",), points=tuple(points[: number + 1]), at=1.0 + number
        )
        records.append(ingest(records[-1], rule, seen))
    return records[1:]


def steps(record: JobRecord) -> tuple[int | None, int | None]:
    found = [None if one is None else one.step for one in (record.best, record.awaiting)]
    return found[0], found[1]


# --- a standard error of exactly 0 ----------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.0, None])
def test_a_first_eval_without_a_standard_error_waits_for_that_of_the_second(first: float | None) -> None:
    records = read([2.0, 0.5, 0.52, 0.51], use(), [first, 0.05, 0.05, 0.05])
    assert [steps(r) for r in records] == [(10, None), (10, 20), (30, None), (30, None)]
    assert records[0].rule is not None
    assert records[0].rule.verdict is not None
    assert records[0].rule.verdict.reason == gate.WAITS


def test_where_no_eval_has_one_the_first_counts_with_the_second() -> None:
    rule = use()
    records = read([0.5, 0.1, 0.2], rule)
    assert [rule.waiting(r.rule.state) for r in records if r.rule is not None] == [(10,), (), ()]


# --- evals that counted without a scale -----------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("at", range(5))
def test_a_high_eval_among_the_first_five_is_no_best_for_good(at: int, sign: float) -> None:
    """It is judged again by the scale that the others make; until then the best of those is wanted too."""
    rule = use(Direction.MAXIMIZE if sign > 0 else Direction.MINIMIZE)
    scores = [sign * (2.0 if i == at else s) for i, s in enumerate(NOISY)]
    records = read(scores, rule)
    for number, record in enumerate(records[:5]):
        others = [(s, -i) for i, s in enumerate(NOISY[: number + 1]) if i != at]
        want = 10 * (1 - max(others)[1]) if others else None
        if number >= max(at, 1):
            assert steps(record) == (10 * (at + 1), want)
    last = records[-1]
    assert last.best is not None
    assert steps(last) == (20 if at == 3 else 40, None)
    told = [s for before, r in pairwise(records) for s in rule.dropped_since(before, r)]
    assert 10 * (at + 1) in told
    # Read at once, folded again and rewound, it comes to the same.
    points = tuple(EvalPoint(10 * i, s) for i, s in enumerate(scores, 1))
    seen = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points, at=9.0)
    at_once = ingest(JobRecord(), rule, seen)
    assert (at_once.best, at_once.awaiting, at_once.rule) == (last.best, last.awaiting, last.rule)
    # What a scale has judged stays judged where the run goes back to before there was one.
    best, beside = steps(records[2])
    assert steps(rewind(last, rule, 30)) == (beside if at < 3 else best, None)


def test_a_young_run_that_rises_keeps_its_best_once_it_is_judged() -> None:
    scores = [0.3, 0.35, 0.42, 0.44, 0.52, 0.5, 0.53, 0.51, 0.5]
    records = read(scores, use())
    assert [steps(r) for r in records] == [
        (10, None),
        (20, 10),
        (30, 20),
        (40, 30),
        (50, 40),
        (50, 60),
        (70, None),
        (70, None),
        (70, None),
    ]
    assert all(r.rule is not None for r in records)


def test_evals_that_agree_above_a_doubtful_best_are_the_ones_beside_it() -> None:
    """The next lower eval was, whose checkpoint is gone by then."""
    records = read([3.493, 3.513, 3.589, 3.673, 3.764, 3.83, 3.868], use())
    assert use().agreeing(records[-1].rule) == (60, 70)  # type: ignore[union-attr]
    assert [steps(r) for r in records[-3:]] == [(50, 40), (50, 60), (50, 70)]


def test_a_jump_that_the_next_evals_bear_out_passes() -> None:
    records = read([0.3, 0.32, 0.9, 0.88, 0.89, 0.87, 0.88, 0.86], use())
    assert steps(records[3]) == (30, 40)
    assert steps(records[-1]) == (30, None)


@pytest.mark.parametrize("known", ["fleet", "reported"])
def test_a_scale_that_comes_later_judges_at_once(known: str) -> None:
    whole = gate.Gate(gate.GateParams(), use().rule._rule)  # type: ignore[attr-defined]
    state = whole.initial()
    for step, score in enumerate([0.5, 2.0, 0.52, 0.49, 0.5]):
        point = EvalPoint(step, score, stderr=0.05 if known == "reported" and step > 2 else None)
        if known == "fleet" and step > 2:
            point = EvalInContext.of(point, fleet_noise=FleetNoise(0.05, 64.0))
        state, _ = whole.observe(state, point)
        assert gate.doubtful(state) == (None, 1, 1, 2, None)[step]  # then the next highest is
        assert gate.refuted(state) == ((1,) if step == 3 else ())


def test_what_was_pinned_before_the_evals_stays_wanted_beside_a_doubtful_best() -> None:
    """The memory began anew: the old best is in no eval that is kept, but in safety."""
    rule, life = use(), Attempt(1, "a")
    pin = ProtectedCheckpoint(400, 400, "/pins/400", "d", 1.0, score=0.6, attempt=life)
    record = JobRecord(secured=pin)
    points = tuple(EvalPoint(500 + 10 * i, s) for i, s in enumerate([0.5, 2.0]))
    seen = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points, at=9.0)
    record = ingest(record, rule, seen)
    assert steps(record) == (510, 400)
    more = tuple(EvalPoint(520 + 10 * i, s) for i, s in enumerate(NOISY))
    # Its pin has moved beside that of the best.
    doubtful = ProtectedCheckpoint(510, 510, "/pins/510", "d", 9.0, score=2.0, attempt=Attempt(0))
    record = replace(record, secured=doubtful, beside=pin)
    after = ingest(record, rule, replace(seen, points=(*points, *more)))
    assert after.best is not None
    assert (after.best.step, after.best.score, after.awaiting) == (400, 0.6, None)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_a_lone_eval_far_above_is_never_best_after_ten(seed: int, at: int) -> None:
    draw = random.Random(seed)
    scores = [5.0 if i == at else draw.gauss(0.5, 0.05) for i in range(14)]
    last = read(scores, use())[-1]
    assert last.best is not None
    assert last.best.score < 1.0


# --- pins -----------------------------------------------------------------------------------------------


class Run:
    """One job of a `PolicyWorld`, whose trainer reports ``errors`` and keeps its two newest checkpoints."""

    def __init__(self, stderr: float | None, rotates: bool = True) -> None:
        self.world = PolicyWorld({"n": 1})
        self.job: Job = self.world.submit("a/b", rule=PolicySpec("scan"), modifiers=MODIFIERS)
        self.world.settle()
        self.stderr, self.rotates = stderr, rotates
        self.points: list[EvalPoint] = []
        self.begin("a", 0)

    def begin(self, life: str, resumed: int) -> None:
        self.life, self.resumed, self.points = Attempt(self.job.record.attempt, life), resumed, []

    def show(self, step: int, *scores: float, evaluator: str = "1") -> Run:
        for number, score in enumerate(scores):
            self.points.append(EvalPoint(step + 10 * number, score, self.life, self.stderr, 100))
            self.job.checkpoints.add(self.points[-1].step)
            if self.rotates:
                self.job.checkpoints = set(sorted(self.job.checkpoints)[-2:])
            self.world.evaluator = evaluator
            self.world.scrape(
                "a/b",
                points=tuple(self.points),
                checkpoint_step=self.points[-1].step,
                resumed_step=self.resumed,
                page=Page(self.job.desired.uid, self.life),
            )
            self.go(5)
        return self

    def go(self, passes: int) -> Run:
        for _ in range(passes):
            self.world.step("a/b", seconds=5.0)
            self.world._cluster(self.job)
        return self

    def stop(self) -> Run:
        self.job.wish(run_state=RunState.STOPPED)
        return self.go(40)

    def lose(self) -> None:
        """The access Job under way finds nothing, and those after it are fast."""
        self.world.slow = frozenset()
        waited = self.job.record.access
        assert waited is not None
        lowest = min(self.job.checkpoints, default=None)
        answer = replace(missing(waited.request_id), lowest=lowest)
        self.job.observed = replace(self.job.observed, access=(answer,))

    def kept(self) -> tuple[int | None, int | None]:
        """Steps of the evals that the best's pin stands for, and the one beside it."""
        pins = (self.job.record.secured, self.job.record.beside)
        for pin in pins:
            assert pin is None or pin.step in self.job.pins, "on record, and let go"
        found = [None if pin is None else pin.best_step for pin in pins]
        return found[0], found[1]


def test_a_young_outlier_and_the_best_of_the_others_are_both_pinned_until_it_is_judged() -> None:
    run = Run(None).show(10, 0.5, 0.55)
    assert run.kept() == (20, 10)
    run.show(30, 2.0)
    assert run.kept() == (30, 20)
    run.show(40, *NOISY[4:6])
    assert run.kept() == (30, 20)
    run.show(60, *NOISY[6:])
    assert run.kept() == (20, None)
    assert not run.job.record.lost_bests


HELD = (0.5, 0.53, 0.56, 0.8, 0.82)


def test_evals_that_agree_count_at_the_end_of_the_run() -> None:
    run = Run(0.02).show(10, *HELD)
    assert (steps(run.job.record), run.kept()) == ((30, 50), (30, 50))
    run.world.finish("a/b")
    run.go(40)
    assert run.job.record.finished == "Complete"
    assert (steps(run.job.record), run.kept()) == ((50, 30), (50, 30))


def test_a_lone_eval_that_waits_is_no_best_at_the_end_but_stays_pinned() -> None:
    run = Run(0.02).show(10, *HELD[:4])
    run.world.finish("a/b")
    run.go(40)
    assert (steps(run.job.record), run.kept()) == ((30, 40), (30, 40))


def test_evals_above_the_best_go_before_what_stands_in_for_it() -> None:
    """They are worth more, and newer."""
    run = Run(0.02)
    run.world.slow = frozenset({Operation.SECURE})
    run.show(10, 0.56, 0.53, 0.52, 0.51, 0.8, 0.82)
    run.job.checkpoints.add(20)
    run.world.asked.clear()
    run.lose()
    run.go(40)
    assert run.job.record.lost_bests[0].step == 10
    assert run.job.record.beside is not None
    assert run.job.record.beside.best_step == 60
    assert {ask.step for ask in list(run.world.asked.values())[:3]} == {10, 60}


def test_an_eval_that_waits_above_what_stands_in_for_a_lost_best_is_pinned_beside_it() -> None:
    """It lies below the lost one, and was looked at by that one's score: its checkpoint went unpinned."""
    run = Run(0.02)
    run.world.slow = frozenset({Operation.SECURE})
    run.show(10, 0.80, 0.79, 0.55, 0.54, 0.53)
    run.lose()
    run.show(60, 0.70)
    run.go(60)
    assert run.job.record.best is not None
    assert (run.job.record.best.step, run.job.record.lost_bests[0].step) == (10, 10)
    assert run.kept()[1] == 60


def test_beside_what_stands_in_for_a_lost_best_is_the_other_that_agrees_with_it() -> None:
    """The first of two that wait and agree was the best when the run stopped, and its checkpoint is gone."""
    run = Run(0.02).show(10, 0.5, 0.53, 0.56)
    run.world.slow = frozenset({Operation.SECURE})
    run.show(40, 0.82, 0.8)
    run.job.wish(run_state=RunState.STOPPED)
    run.go(1)
    assert run.job.record.best is not None
    assert run.job.record.best.step == 40
    run.job.checkpoints = {50}
    run.lose()
    run.go(60)
    assert run.job.record.lost_bests[0].step == 40
    assert run.kept()[1] == 50


def test_bests_of_before_all_that_lies_there_are_not_looked_for_one_by_one() -> None:
    """Each would take its tries, and rotation what still lies there meanwhile."""
    run = Run(0.02)
    run.world.slow = frozenset({Operation.SECURE})
    run.show(10, 0.56, 0.55, 0.54, 0.53, 0.52, 0.51)
    run.world.asked.clear()
    run.lose()
    run.go(20)
    assert [run.kept()[0], *(b.step for b in run.job.record.lost_bests)] == [50, 10, 20, 30, 40]
    assert {ask.step for ask in run.world.asked.values()} == {10, 50}


def test_what_was_evaluated_since_may_have_been_saved_since() -> None:
    """A process that began anew saves below all that lies there: 30, after it was listed what does."""
    run = Run(0.02, rotates=False)
    run.world.slow = frozenset({Operation.SECURE})
    run.show(10, 0.50, 0.60)
    run.job.checkpoints = {200}
    run.lose()
    run.go(4)
    run.world.slow = frozenset({Operation.SECURE})
    run.go(8)  # the fourth try is under way
    run.show(30, 0.58)
    run.job.checkpoints = {200}
    run.lose()
    run.go(1)
    assert [b.step for b in run.job.record.lost_bests] == [20]
    run.job.checkpoints.add(30)
    run.go(20)
    assert run.kept()[0] == 30


def test_evals_that_waited_when_the_rule_began_anew_are_no_best_beside_any_that_counts() -> None:
    """The first is far too high, and no later eval is compared with it: it stayed the best for ever."""
    rule = use()
    record = judged_from_now_on(read([5.5, 0.52], rule, [0.02, 0.02])[-1], rule)
    assert steps(record) == (10, 20)
    points = tuple(EvalPoint(30 + 10 * i, s, stderr=0.02) for i, s in enumerate([0.53, 0.54, 0.55]))
    found = []
    for number in range(len(points)):
        seen = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points[: number + 1], at=9.0)
        record = ingest(record, rule, seen)
        found.append(steps(record))
    assert found == [(30, 10), (40, 10), (50, 10)], "its checkpoint stays beside: who knows"


def test_what_waited_when_the_rule_began_anew_goes_beside_a_doubtful_best_if_it_is_higher() -> None:
    """It may be the best of all: its pin was let go for one that is not."""
    rule = use()
    record = judged_from_now_on(read([3.6], rule)[-1], rule)
    points = tuple(EvalPoint(20 + 10 * i, s) for i, s in enumerate([3.43, 3.33, 3.35]))
    seen = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points, at=9.0)
    assert steps(ingest(record, rule, seen)) == (20, 10)


def test_what_waits_goes_on_waiting_when_the_best_is_lost() -> None:
    """Judged from the first eval on it would count: it is above the lost best, and so nothing of its own."""
    rule = use()
    record = judged_from_now_on(read([0.5, 0.53, 0.56], rule, [0.02] * 3)[-1], rule)
    points = (EvalPoint(40, 0.58, stderr=0.02),)
    record = ingest(record, rule, ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=points, at=9.0))
    record = judged_from_now_on(record, rule)
    assert steps(record) == (30, 40)
    assert record.best is not None
    assert steps(stand_anew(replace(record, lost_bests=(record.best,)), rule)) == (30, 40)


def missing(request: str) -> AccessView:
    return AccessView(request, Operation.SECURE, True, False, "CheckpointMissing", "step 10 is not there")


def test_evals_that_agree_count_at_a_users_stop_and_are_copied() -> None:
    run = Run(0.02).show(10, *HELD).stop()
    assert run.job.record.decision is not None
    assert run.job.record.decision.suspended_at is not None
    assert [k.best_step for k in run.job.record.retained] == [50]
    assert run.kept() == (50, 30)


@pytest.mark.parametrize(("after", "best"), [((0.55, 0.54), (30, None)), ((0.81, 0.8), (50, None))])
def test_after_a_users_stop_that_was_taken_back_the_next_eval_decides(
    after: tuple[float, ...], best: tuple[int, None]
) -> None:
    """Both checkpoints are there still, whichever it is."""
    run = Run(0.02).show(10, *HELD).stop()
    run.job.wish(run_state=RunState.RUN)
    run.go(3)
    run.world.settle()
    run.begin("b", 50)
    run.show(60, *after)
    assert (steps(run.job.record), run.kept()) == (best, best)


def test_evals_that_agree_are_not_lost_with_the_process_that_made_them() -> None:
    run = Run(0.02, rotates=False).show(10, *HELD)
    run.begin("b", 30)
    run.show(40, 0.57)
    best = run.job.record.best
    assert best is not None
    assert (best.step, best.score, best.attempt.life) == (50, 0.82, "a")
    assert run.kept() == (50, None)


def test_a_lone_eval_that_waits_is_forgotten_with_its_process() -> None:
    run = Run(0.02, rotates=False).show(10, *HELD[:4])
    run.begin("b", 30)
    run.show(40, 0.57)
    assert run.kept() == (40, None)
    best = run.job.record.best
    assert best is not None
    assert (best.score, best.attempt.life) == (0.57, "b")


def test_evals_that_agree_stand_for_the_former_evaluators_scale() -> None:
    run = Run(0.02).show(10, *HELD)
    run.show(60, 0.3, evaluator="2")
    baseline = run.job.record.baseline
    assert baseline is not None
    assert baseline.kept is not None
    assert (baseline.kept.best_step, baseline.kept.score) == (50, 0.82)
    assert baseline.kept.step in run.job.pins


# --- what others do not bear out, and what another branch does ------------------------------------------


def after(record: JobRecord, rule: RuleInUse, points: dict[int, float]) -> JobRecord:
    for step, score in points.items():
        point = EvalPoint(step, score, stderr=0.02)
        record = ingest(record, rule, ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=(point,)))
    return record


def pin(step: int, score: float | None) -> ProtectedCheckpoint:
    return ProtectedCheckpoint(step, step, f"/pins/{step}", "sha256:0", 1.0, 1, score)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_bears_others_out_and_is_far_beyond_them_is_borne_out_by_none(sign: float) -> None:
    """It is no best where the run leaves its branch, though it is what is pinned beside the best."""
    rule = use(Direction.MAXIMIZE if sign > 0 else Direction.MINIMIZE, evals=3)
    record = read([sign * s for s in (0.5, 0.51, 0.5, 1.0, 1.02, 3.8)], rule, [0.02] * 6)[-1]
    assert record.rule is not None
    assert rule.waiting(record.rule.state) == (40, 50, 60)
    assert rule.agreeing(record.rule) == (40, 50)
    record = replace(record, secured=pin(20, sign * 0.51), beside=pin(60, sign * 3.8))
    assert steps(rewind(record, rule, 0)) == (20, None)


def test_what_others_refuted_is_the_best_again_once_another_branch_bears_it_out() -> None:
    rule = use()
    record = after(JobRecord(), rule, {10: 0.5, 20: 0.1, 30: 0.12})
    assert steps(record) == (30, None)
    back = rewind(record, rule, 10)
    assert steps(after(back, rule, {20: 0.11, 30: 0.12})) == (30, None), "refuted once more"
    assert steps(after(back, rule, {20: 0.49})) == (10, None)


def test_a_best_that_was_refuted_elsewhere_has_its_score_in_its_pin_again() -> None:
    """Without it the pin would be let go for any other, once the run began anew."""
    rule = use()
    record = after(JobRecord(), rule, {10: 0.5, 20: 0.9, 30: 0.5, 40: 0.51})
    assert steps(record) == (40, None)
    back = rewind(replace(record, secured=pin(20, None)), rule, 20)
    found = after(back, rule, {30: 0.89, 40: 0.88})
    assert steps(found) == (20, None)
    assert found.secured == pin(20, 0.9)
    assert steps(rewind(found, rule, 0)) == (20, None)
