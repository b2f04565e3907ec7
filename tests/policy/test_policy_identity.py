"""Evals, bests, pins and requests are known by who made them, not by a step number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.cli import explanation, job_view
from controller.policy.job import conditions as c
from controller.policy.job import lives
from controller.policy.job.evals import ingest, judged_from_now_on, on_another_branch
from controller.policy.job.guardrails import watch
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import Claim, JobRecord, LifeRecord, Operation, ProtectedCheckpoint
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import (
    AccessView,
    BranchLife,
    Desired,
    Direction,
    Guardrail,
    MetricPoints,
    Page,
    RunState,
    ScrapeOutcome,
    ScrapeView,
    StartAccess,
)
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Verb
from tests.support import cli_world
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
FIRST, SECOND, THIRD = Attempt(1, "aaaa"), Attempt(1, "bbbb"), Attempt(1, "cccc")


class SlowStore(PolicyWorld):
    """Pins bear the life that they were asked for; an access Job ends when the test says so."""

    def __init__(self) -> None:
        super().__init__({"n1": 1})
        self.hangs = False
        self.open: list[StartAccess] = []
        self.paths: set[str] = set()

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        if self.hangs and ask.operation in (Operation.SECURE, Operation.PIN):
            self.open.append(ask)
            return AccessView(ask.request_id, ask.operation, finished=False)
        return self._answer(job, ask)

    def _answer(self, job: Job, ask: StartAccess) -> AccessView:
        view = super()._access(job, ask)
        if not view.ok or ask.operation not in (Operation.SECURE, Operation.PIN):
            return view
        path = f"/pins/{ask.attempt}/{view.step}"
        self.paths = (self.paths - set(ask.release)) | {path}
        return replace(view, path=path)

    def end_access(self, job: Job, *, hangs: bool = True) -> None:
        """The slow Jobs end now. ``hangs``: those that come are slow too."""
        self.hangs = hangs
        for ask in self.open:
            found = self._answer(job, ask)
            access = tuple(found if a.request_id == ask.request_id else a for a in job.observed.access)
            job.observed = replace(job.observed, access=access)
        self.open.clear()


def running(**spec: object) -> tuple[SlowStore, Job]:
    world = SlowStore()
    job = world.submit(KEY, **spec)
    world.settle()
    return world, job


def show(world: PolicyWorld, life: Attempt, evals: dict[int, float], **fields: object) -> None:
    points = tuple(EvalPoint(step, score, life) for step, score in evals.items())
    world.jobs[KEY].checkpoints |= set(evals)
    newest = max(evals, default=0)
    world.scrape(KEY, points=points, checkpoint_step=newest, page=Page("uid-ns/a", life), **fields)


def test_the_best_of_the_branch_that_is_gone_on_with_is_the_one_that_is_kept() -> None:  # row 1
    """A pod that restarts from step 20 reaches another best at step 40: not the same as the first one."""
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.5, 30: 0.55, 40: 0.6})
    world.settle()
    assert (job.record.secured.path, job.record.secured.score) == ("/pins/1-aaaa/40", 0.6)
    show(world, SECOND, {30: 0.7, 40: 0.9}, resumed_step=20)
    world.settle()
    assert (job.record.secured.path, job.record.secured.score) == ("/pins/1-bbbb/40", 0.9)
    show(world, SECOND, {30: 0.7, 40: 0.9, 50: 0.8, 60: 0.7, 70: 0.6}, resumed_step=20)
    world.settle()
    assert job.record.decision is not None
    (kept,) = job.record.retained
    assert (kept.score, kept.attempt) == (0.9, SECOND)
    assert "/pins/1-bbbb/40" in world.paths, "another life's pin of that step was let go, not this one"


@pytest.mark.parametrize("direction", Direction)
def test_a_request_carries_its_eval_and_its_score(direction: Direction) -> None:  # row 2
    """A newer best comes while a secure Job runs: what that Job pins is recorded with its own score."""
    sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
    world, job = running(direction=direction)
    world.hangs = True
    show(world, FIRST, {10: sign * -3.0})
    world.step(KEY)
    show(world, FIRST, {10: sign * -3.0, 20: sign * -2.0})
    world.step(KEY)
    world.end_access(job)
    world.step(KEY)
    assert (job.record.secured.best_step, job.record.secured.score) == (10, sign * -3.0)
    world.step(KEY)
    world.end_access(job)
    world.step(KEY)
    assert (job.record.secured.best_step, job.record.secured.score) == (20, sign * -2.0)


def test_the_answer_of_a_job_that_outlives_the_run_is_recorded() -> None:  # row 8
    world, job = running()
    show(world, FIRST, {10: 0.4})
    world.settle()
    world.hangs = True
    show(world, FIRST, {10: 0.4, 20: 0.6})
    world.step(KEY)
    world.finish(KEY)
    world.step(KEY)
    assert "/pins/1-aaaa/10" in world.paths
    world.end_access(job)
    world.step(KEY)
    assert (job.record.secured.score, job.record.secured.path) == (0.6, "/pins/1-aaaa/20")
    assert job.record.secured.path in world.paths


def test_the_answer_about_the_old_evaluators_best_stays_beside_the_new_ones() -> None:  # row 8
    world, job = running()
    world.evaluator = "v1"
    show(world, FIRST, {10: 0.4})
    world.settle()
    world.hangs = True
    show(world, FIRST, {10: 0.4, 20: 0.6})
    world.step(KEY)
    world.evaluator = "v2"
    show(world, FIRST, {10: 0.4, 20: 0.6, 30: 0.1})
    world.step(KEY)
    show(world, FIRST, {10: 0.4, 20: 0.6, 30: 0.1, 40: 0.2})
    world.step(KEY)
    world.end_access(job, hangs=False)
    world.step(KEY)
    assert job.record.baseline is not None
    assert (job.record.baseline.kept.score, job.record.baseline.kept.best_step) == (0.6, 20)
    world.settle()
    assert (job.record.secured.score, job.record.secured.best_step) == (0.2, 40)
    assert "/pins/1-aaaa/20" in world.paths


@pytest.mark.parametrize("labelled", [True, False])
def test_evals_that_name_their_evaluator_are_not_doubted_beside_the_news_of_it(labelled: bool) -> None:
    world, job = running()
    world.evaluator = "v1"
    show(world, FIRST, {10: 0.4, 20: 0.6})
    world.settle()
    world.evaluator = "v2"
    life = job.record.lives[-1].attempt
    points = (EvalPoint(30, 0.2, life), EvalPoint(40, 0.3, life))
    job.checkpoints |= {30, 40}
    world.scrape(KEY, points=points, checkpoint_step=40, evals_labelled=labelled)
    world.step(KEY)
    assert [p.step for p in job.record.evals] == ([30, 40] if labelled else [])


def test_another_evaluator_of_a_process_whose_past_is_not_known_begins_a_scale_of_its_own() -> None:
    """Nothing of what was seen is on its way, but the pin is: it must not be compared with the new scores."""
    world, job = running()
    world.evaluator = "v1"
    show(world, FIRST, {10: 0.4, 20: 0.6})
    world.settle()
    show(world, SECOND, {}, resumed_step=10)
    world.settle()
    world.evaluator = "v2"
    third = Attempt(SECOND.number, "cccc")
    show(world, third, {30: 0.1, 40: 0.2}, resumed_step=20)
    world.settle()
    assert (job.record.best.step, job.record.best.score) == (40, 0.2)
    assert (job.record.secured.best_step, job.record.secured.score) == (40, 0.2)
    assert job.record.baseline.kept.best_step == 20


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (Page("somebody-else", Attempt(1, "cccc")), "ForeignPage"),
        (Page("uid-ns/a", Attempt(99, "cccc")), "OtherAttempt"),
    ],
)
def test_a_strangers_page_is_refused_by_name(page: Page, reason: str) -> None:  # row 4
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.5})
    world.settle()
    falling = tuple(EvalPoint(10 * n, 0.5 - n / 10, page.attempt) for n in range(3, 9))
    world.scrape(KEY, points=falling, page=page)
    world.settle()
    told = job.record.condition(c.METRICS)
    assert (told.status, told.reason) == (False, reason)
    assert [p.step for p in job.record.evals] == [10, 20]
    assert job.record.decision is None
    show(world, FIRST, {10: 0.4, 20: 0.5, 30: 0.6})
    world.settle()
    assert job.record.best.step == 30, "the run's own page is read on"


def test_an_earlier_process_says_nothing_any_more() -> None:  # row 4
    world, job = running()
    show(world, FIRST, {10: 0.4})
    world.settle()
    show(world, SECOND, {20: 0.5}, resumed_step=10)
    world.settle()
    show(world, FIRST, {10: 0.4, 20: 0.1, 30: 0.1, 40: 0.1})
    world.settle()
    assert job.record.condition(c.METRICS).reason == "EarlierLife"
    assert [(p.step, p.attempt) for p in job.record.evals] == [(10, FIRST), (20, SECOND)]


def test_a_page_of_an_older_pod_is_refused_whatever_life_it_names() -> None:  # row 4
    record = JobRecord(lives=(LifeRecord(SECOND, "new-pod", 200.0, 210.0, 0),), attempt=1)
    old = ScrapeView(ScrapeOutcome.OK, page=Page("u", Attempt(1, "zzzz")), pod="old-pod", pod_created=100.0)
    found = lives.refusal(record, "u", old)
    assert found is not None
    assert found[0] == "EarlierLife"
    assert lives.refusal(record, "u", replace(old, pod="newer", pod_created=300.0)) is None


def test_nobody_is_stopped_on_a_page_that_does_not_say_whose_it_is() -> None:  # row 4
    world, job = running()
    points = tuple(EvalPoint(10 * n, 0.9 - n / 10, FIRST) for n in range(1, 7))
    job.checkpoints |= {p.step for p in points}
    world.scrape(KEY, points=points, checkpoint_step=60, page=None)
    world.settle()
    assert job.record.decision is None
    assert job.record.condition(c.TERMINATION).reason == "PageWithoutIdentity"


@pytest.mark.parametrize("life", [FIRST, Attempt(0, "abc")])
def test_that_no_stop_can_rest_on_a_page_is_told_from_its_first_scrape(life: Attempt) -> None:
    """Evals of attempt 0 looked healthy while their rule said stop, and nothing told why none came."""
    world, job = running(first_eval=600.0)
    world.scrape(KEY, points=(), page=None)
    world.step(KEY)
    quiet = {one.reason: one for one in health(job.record, world.now)}["PageWithoutIdentity"]
    assert (quiet.mark, quiet.warning) == (Mark.BLIND, False)
    assert quiet.due == quiet.since + 600.0, "its client may not have come to say so"
    points = tuple(EvalPoint(10 * n, 0.9 - n / 10, life) for n in range(1, 7))
    world.scrape(KEY, points=points[:1], page=None)
    world.step(KEY)
    (found,) = health(job.record, world.now)
    assert found.warning, "evals are there: nothing but a fault explains it"
    job.checkpoints |= {p.step for p in points}
    world.scrape(KEY, points=points, checkpoint_step=60, page=None)
    world.settle()
    assert job.record.decision is None
    assert [one.reason for one in health(job.record, world.now)] == ["PageWithoutIdentity"], "told once"
    target = job.record.condition(c.TERMINATION)
    reading = job_view.read(cli_world.whole("a", job.record))
    held = dict(explanation.explain(reading, world.now).facts).get("held back", "")
    if life.number:
        assert (target.reason, held) == ("PageWithoutIdentity", f"{target.reason}: {target.message}")
    else:
        assert held == f"NewLife: {target.message}"
        assert "labelled attempt='0-abc', expected '1-<life>', with the number of run.json" in held
    show(world, SECOND, {10: 0.4})
    world.step(KEY)
    assert health(job.record, world.now) == ()


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_a_page_without_identity_asks_for_nothing_where_nothing_is_stopped(mode: Mode) -> None:
    world, job = running(mode=mode)
    world.scrape(KEY, points=(EvalPoint(10, 0.9, FIRST),), page=None)
    world.step(KEY)
    assert health(job.record, world.now) == ()


def test_the_memory_ends_where_a_process_resumed_as_soon_as_it_says_so() -> None:
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.5, 30: 0.3, 40: 0.2})
    world.settle()
    show(world, SECOND, {}, resumed_step=20)
    world.step(KEY)
    assert [p.step for p in job.record.evals] == [10, 20]


def test_shadow_remembers_a_best_that_is_older_than_the_evals_it_keeps() -> None:  # row 19
    use = RuleInUse.of(
        Desired(KEY, "u", 1, "gold", 1, 1, PolicySpec("kDeclines", {"k": 90}), mode=Mode.SHADOW)
    )
    record = JobRecord()
    for n in range(1, 60):
        point = EvalPoint(10 * n, 0.9 if n == 5 else 0.5, FIRST)
        record = ingest(record, use, ScrapeView(ScrapeOutcome.OK, points=(point,), resumed_step=0))
    assert record.best.step == 50
    back = ScrapeView(ScrapeOutcome.OK, points=(), resumed_step=500, page=Page("u", SECOND))
    assert ingest(record, use, back).best.step == 50


def test_a_guardrails_memory_is_not_taken_for_that_of_the_other_direction() -> None:  # row 12
    record = JobRecord()
    for direction, steps in ((Direction.MINIMIZE, (10, 20, 30)), (Direction.MAXIMIZE, (40,))):
        guard = Guardrail("safety", PolicySpec("kDeclines", {"k": 1}), direction)
        use = RuleInUse.of(Desired(KEY, "u", 1, "gold", 1, 1, PolicySpec("kDeclines"), guardrails=(guard,)))
        for step in steps:
            others = (MetricPoints("safety", (EvalPoint(step, 0.5 + step / 100, FIRST),)),)
            record = watch(record, use.guards, ScrapeView(ScrapeOutcome.OK, others=others))
    (known,) = record.guards
    assert known.verdict.verb == "Continue", "one eval under the right direction is no decline"


@pytest.mark.parametrize(
    ("resumes", "expected"),
    [
        ((0,), (BranchLife(Attempt(1, "l0"), -1),)),
        ((None,), (BranchLife(Attempt(1, "l0"), -1),)),
        ((40,), (BranchLife(Attempt(1, "l0"), 40, 40),)),
        ((0, 30), (BranchLife(Attempt(1, "l1"), 30, 30), BranchLife(Attempt(1, "l0"), -1))),
        ((0, 120, 60), (BranchLife(Attempt(1, "l2"), 60, 60), BranchLife(Attempt(1, "l0"), -1))),
        ((0, 30, 0), (BranchLife(Attempt(1, "l2"), -1),)),
    ],
)
def test_whose_checkpoints_lie_on_the_way_to_an_eval(
    resumes: tuple[int | None, ...], expected: tuple[BranchLife, ...]
) -> None:
    known = tuple(LifeRecord(Attempt(1, f"l{n}"), "p", 0.0, 0.0, step) for n, step in enumerate(resumes))
    record = JobRecord(lives=known)
    assert lives.branch(record, known[-1].attempt) == expected
    restored = replace(record, restored=ProtectedCheckpoint(30, 30, "/kept/30", "sha256:" + "a" * 64, 0.0, 1))
    *later, _ = lives.branch(restored, known[-1].attempt)
    assert all(one.base is None for one in later), "it may have gone on from there again"


def test_a_user_pin_that_runs_gives_way_to_the_best() -> None:  # row 16
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.3})
    world.settle()
    world.hangs = True
    job.wish(pins=(20,), run_state=RunState.RUN)
    world.step(KEY)
    assert job.record.access.operation is Operation.PIN
    show(world, FIRST, {10: 0.4, 20: 0.3, 30: 0.6})
    world.step(KEY)
    assert (job.record.access.operation, job.record.access.step) == (Operation.SECURE, 30)


GATED = {"rule": PolicySpec("kDeclines", {"k": 9}), "modifiers": (PolicySpec("gate"),)}


def show_measured(world: PolicyWorld, life: Attempt, evals: dict[int, float], **fields: object) -> None:
    """As `show`, with the standard error by which the gate tells a jump."""
    show(world, life, evals, **fields)
    seen = world.jobs[KEY].observed.scrape
    points = tuple(p._replace(stderr=0.02, samples=100) for p in seen.points)
    world.jobs[KEY].observed = replace(world.jobs[KEY].observed, scrape=replace(seen, points=points))


RISING = {10: 0.50, 20: 0.53, 30: 0.56}


def pinning_an_outlier() -> tuple[SlowStore, Job]:
    """Above three evals that rise one waits to be borne out; its secure Job does not end."""
    world, job = running(**GATED)
    show_measured(world, FIRST, RISING)
    world.settle()
    world.hangs = True
    show_measured(world, FIRST, {**RISING, 40: 0.99})
    world.step(KEY)
    assert (job.record.access.operation, job.record.access.step) == (Operation.SECURE, 40)
    return world, job


def test_the_late_pin_of_an_eval_that_was_dropped_meanwhile_is_not_the_bests() -> None:
    """An outlier waits, its secure Job is slow, the next eval drops it; then the trainer restarts."""
    world, job = pinning_an_outlier()
    show_measured(world, FIRST, {**RISING, 40: 0.99, 50: 0.55})
    world.step(KEY)
    world.end_access(job, hangs=False)
    world.step(KEY)
    assert (job.record.secured.best_step, job.record.secured.score) == (30, 0.56)
    show_measured(world, SECOND, {40: 0.60}, resumed_step=30)
    world.settle()
    assert (job.record.best.step, job.record.best.score) == (40, 0.60)
    assert job.record.best.attempt == SECOND


def test_the_late_pin_of_an_eval_that_waits_behind_a_higher_one_is_not_the_bests() -> None:
    """Two evals far above wait; the pin of the first comes when that of the second is what is wanted."""
    world, job = running(**GATED)
    rising = {10: 0.50, 20: 0.53, 30: 0.56}
    show_measured(world, FIRST, rising)
    world.settle()
    world.hangs = True
    show_measured(world, FIRST, {**rising, 40: 0.99})
    world.step(KEY)
    show_measured(world, FIRST, {**rising, 40: 0.99, 50: 1.6})
    world.step(KEY)
    assert (job.record.access.step, job.record.awaiting.step) == (40, 50)
    world.end_access(job)
    world.step(KEY)
    assert (job.record.best.step, job.record.secured.best_step) == (30, 30)


def test_an_eval_that_still_waited_when_its_branch_was_left_is_never_the_best() -> None:
    world, job = pinning_an_outlier()
    show_measured(world, SECOND, {}, resumed_step=30)
    world.step(KEY)
    world.end_access(job, hangs=False)
    world.settle()
    assert (job.record.best.step, job.record.secured.best_step) == (30, 30)


def test_the_pin_of_a_first_eval_that_was_dropped_is_no_best_after_a_restart() -> None:
    """The first eval is far too high: the best for want of another, and pinned as that."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.99})
    world.settle()
    assert job.record.secured.score == 0.99
    world.hangs = True  # what replaces it is not pinned yet when the trainer restarts
    show_measured(world, FIRST, {10: 0.99, 20: 0.50, 30: 0.52, 40: 0.54})
    world.step(KEY)
    show_measured(world, SECOND, {}, resumed_step=30)
    world.step(KEY)
    job.checkpoints.clear()
    world.end_access(job, hangs=False)
    show_measured(world, SECOND, {40: 0.51}, resumed_step=30)
    world.settle()
    assert job.record.best.score < 0.6
    assert job.record.secured.score < 0.6


def test_a_first_eval_that_was_borne_out_stays_so_however_often_the_run_goes_back() -> None:
    """Gone back to the first eval, then to before it: alone it seems to wait, and has counted for long."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.60, 20: 0.58, 30: 0.60})
    world.settle()
    show_measured(world, SECOND, {}, resumed_step=10)
    world.settle()
    assert (job.record.evals[-1].step, job.record.rule.settled) == (10, (10,))
    show_measured(world, THIRD, {}, resumed_step=0)
    world.settle()
    assert (job.record.best.score, job.record.secured.score) == (0.60, 0.60)


def test_a_best_that_was_borne_out_outlives_a_collapse_after_the_run_went_back_to_it() -> None:
    """Seen from the first eval alone, two far below would show that it was none."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.60, 20: 0.58, 30: 0.60})
    world.settle()
    show_measured(world, SECOND, {20: 0.30, 30: 0.31}, resumed_step=10)
    world.settle()
    assert (job.record.best.score, job.record.secured.score) == (0.60, 0.60)
    assert (job.record.best.step, job.record.secured.best_step) == (10, 10)


def test_one_eval_far_above_one_that_was_borne_out_does_not_agree_with_it() -> None:
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.50, 20: 0.51, 30: 0.90, 40: 0.89, 50: 0.88})
    world.settle()
    show_measured(world, SECOND, {40: 2.50}, resumed_step=30)  # the jump waits anew, and 40 bears it out
    world.settle()
    assert (job.record.best.step, job.record.awaiting.step) == (30, 40)
    show_measured(world, THIRD, {}, resumed_step=10)
    world.settle()
    assert (job.record.best.score, job.record.secured.score) == (0.90, 0.90)


def test_what_counted_without_a_scale_is_still_in_doubt_when_the_run_goes_back_to_it() -> None:
    world, job = running(**GATED)
    show(world, FIRST, {10: 5.5, 20: 0.50, 30: 0.52})
    world.settle()
    show(world, SECOND, {10: 0.51}, resumed_step=10)
    world.settle()
    assert job.record.best.score < 1.0


def test_what_others_have_refuted_is_no_best_when_its_step_is_evaluated_again() -> None:
    """Nothing is pinned yet: the Job that was to pin it hangs."""
    world, job = running(**GATED)
    world.hangs = True
    show_measured(world, FIRST, {10: 3.07})
    world.step(KEY)
    show_measured(world, FIRST, {10: 3.07, 20: 0.53, 30: 0.51, 40: 0.49})
    world.step(KEY)
    show_measured(world, SECOND, {10: 0.48}, resumed_step=10)
    world.step(KEY)
    assert job.record.best.attempt == SECOND


def test_what_others_have_refuted_is_not_believed_again_when_the_run_goes_back() -> None:
    """Far too high, before there was a scale. Back to where there is none again, and to the start."""
    world, job = running(**GATED)
    usual = {10 * number: 0.50 + 0.01 * (number % 3) for number in range(2, 12)}
    show(world, FIRST, {10: 5.5, **usual})
    world.settle()
    assert (job.record.best.step, job.record.secured.score) == (20, 0.52)
    for back in (20, 10, 0):
        show(world, Attempt(1, f"bbbb{back}"), {}, resumed_step=back)
        world.settle()
        assert (job.record.best.score, job.record.secured.score) == (0.52, 0.52)


def test_what_took_the_bests_place_keeps_it_when_the_rule_begins_anew_with_it() -> None:
    """Its process turns out to have started from another branch: its first eval waits for the next ones, and
    the pin of the former best is gone."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.50, 20: 0.52, 30: 0.51, 40: 0.50})
    world.settle()
    show_measured(world, SECOND, {30: 0.55}, resumed_step=20)
    world.settle()
    use = RuleInUse.of(job.desired)
    job.record = on_another_branch(job.record, use)
    assert use.waiting(job.record.rule.state) == (30,)
    assert job.record.rule.settled == (10, 20, 30)
    show_measured(world, SECOND, {30: 0.55, 40: 0.20, 50: 0.21, 60: 0.20}, resumed_step=20)
    world.settle()
    assert (job.record.best.score, job.record.secured.score) == (0.55, 0.55)


def test_what_is_judged_no_more_counts_on_when_its_user_changes_the_rule() -> None:
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.50, 20: 0.51, 30: 0.90, 40: 0.91, 50: 0.89})
    world.settle()
    job.record = judged_from_now_on(job.record, RuleInUse.of(job.desired))
    job.wish(modifiers=(PolicySpec("gate", {"evals": 3}),))
    world.settle()
    assert (job.record.rule.unjudged, job.record.best.step, job.record.awaiting) == (5, 40, None)


def test_what_no_eval_will_ever_bear_out_stays_pinned_when_it_is_older_than_the_evals_kept() -> None:
    """The rule began anew after the only eval of the first process, which is the highest."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.60})
    world.settle()
    job.record = judged_from_now_on(job.record, RuleInUse.of(job.desired))
    evals = {10 * number: 0.55 + 0.01 * (number % 3) for number in range(2, 40)}
    for most in (20, len(evals)):
        show_measured(world, SECOND, dict([*evals.items()][:most]), resumed_step=10)
        world.settle()
    assert job.record.evals[0].step > 10
    assert (job.record.awaiting.score, job.record.beside.score) == (0.60, 0.60)
    assert job.record.best.step == job.record.secured.best_step == 20


def test_a_process_that_saves_does_not_have_its_evals_taken_back() -> None:
    """One waits above the best, pinned beside it: with the next save it waits on, as what it was."""
    world, job = running(**GATED)
    show_measured(world, FIRST, {10: 0.50, 20: 0.51, 30: 0.50, 40: 0.52, 50: 0.50})
    world.settle()
    show_measured(world, SECOND, {30: 0.90}, resumed_step=20)
    world.settle()
    show_measured(world, SECOND, {30: 0.90, 40: 0.89}, resumed_step=20)
    world.settle()
    assert (job.record.awaiting.score, job.record.beside.score) == (0.90, 0.90)


def test_a_better_best_of_a_branch_that_was_left_while_it_was_being_pinned_stays() -> None:
    """Its pin was under way when the trainer restarted from before it: as good as one that was through."""
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.5})
    world.settle()
    world.hangs = True
    show(world, FIRST, {10: 0.4, 20: 0.5, 30: 0.55, 40: 0.6})
    world.step(KEY)
    show(world, SECOND, {}, resumed_step=20)
    world.step(KEY)
    assert job.record.best.step == 20
    world.end_access(job, hangs=False)
    world.step(KEY)
    assert (job.record.best.step, job.record.best.score, job.record.best.attempt) == (40, 0.6, FIRST)
    show(world, SECOND, {30: 0.45, 40: 0.48}, resumed_step=20)
    world.settle()
    assert (job.record.secured.path, job.record.secured.score) == ("/pins/1-aaaa/40", 0.6)
    assert "/pins/1-aaaa/40" in world.paths


def test_an_eval_that_was_dropped_does_not_take_the_place_of_a_lost_best() -> None:
    """The best's checkpoint is gone. A lone outlier below its score is not the next best one."""
    world, job = running(**GATED)
    evals = {10: 0.50, 20: 0.53, 30: 0.70, 40: 0.72, 50: 0.71, 60: 0.52, 70: 0.50, 80: 0.51}
    evals |= {90: 0.715, 100: 0.50, 110: 0.51}
    show_measured(world, FIRST, evals)
    job.checkpoints -= {40}
    world.settle()
    assert (job.record.best.step, [b.step for b in job.record.lost_bests]) == (40, [40])
    assert (job.record.secured.best_step, job.record.secured.score) == (50, 0.71)


@pytest.mark.parametrize("back", [0.0, 120.0])
def test_a_pin_is_known_to_be_of_the_new_evaluator_whatever_the_next_leaders_clock_says(back: float) -> None:
    world, job = running()
    world.evaluator = "v1"
    show(world, FIRST, {10: 0.3, 20: 0.35})
    world.settle()
    world.evaluator = "v2"
    show(world, FIRST, {10: 0.3, 20: 0.35})
    world.settle()
    world.now -= back + 60.0
    show(world, FIRST, {10: 0.3, 20: 0.35, 30: 0.5, 40: 0.55, 50: 0.7, 60: 0.6})
    world.settle()
    assert (job.record.baseline.number, job.record.secured.baseline, job.record.secured.best_step) == (
        1,
        1,
        50,
    )
    show(world, SECOND, {}, resumed_step=40)
    world.settle()
    show(world, SECOND, {50: 0.56}, resumed_step=40)
    world.settle()
    assert (job.record.best.step, job.record.best.score) == (50, 0.7)
    assert (job.record.secured.score, job.record.secured.attempt) == (0.7, FIRST)


def test_the_life_that_all_restarts_went_on_from_is_kept_however_many_there_are() -> None:
    """A pod that fails in a loop restarts from the same checkpoint, which is the first process's."""
    record = JobRecord(attempt=1)
    for n in range(20):
        at = Attempt(1, f"aaaaaa{n:02}")
        page = Page("uid", at)
        view = ScrapeView(ScrapeOutcome.OK, at=float(n), page=page, resumed_step=400 if n else 0)
        record = lives.note(record, view)
    assert len(record.lives) == lives.LIVES_KEPT
    found = lives.branch(record, record.lives[-1].attempt)
    assert [one.attempt.life[-2:] for one in found] == ["19", "18", "17", "16", "15", "14", "13", "00"], (
        "each of them may have saved step 400 anew"
    )
    assert [one.after for one in found] == [400] * 7 + [-1]


def test_those_that_started_from_one_step_go_before_others_that_are_on_the_way() -> None:
    """The pod failed in a loop at 400, and before that in one at 200: what went on from 200 to 400 stays."""
    record = JobRecord(attempt=1)
    for n, resumed in enumerate([0, *[200] * 6, *[400] * 6]):
        page = Page("uid", Attempt(1, f"aaaaaa{n:02}"))
        record = lives.note(record, ScrapeView(ScrapeOutcome.OK, page=page, resumed_step=resumed))
    found = lives.branch(record, record.lives[-1].attempt)
    assert [(one.attempt.life[-2:], one.after) for one in found][-2:] == [("06", 200), ("00", -1)]


def test_of_more_lives_on_the_way_than_are_kept_the_first_and_the_newest_stay() -> None:
    record = JobRecord(attempt=1)
    for n in range(20):
        page = Page("uid", Attempt(1, f"aaaaaa{n:02}"))
        record = lives.note(record, ScrapeView(ScrapeOutcome.OK, page=page, resumed_step=100 * n))
    found = lives.branch(record, record.lives[-1].attempt)
    assert [one.attempt.life[-2:] for one in found] == ["19", "18", "17", "16", "15", "14", "13", "00"]
    assert found[-1] == BranchLife(Attempt(1, "aaaaaa00"), -1)


def test_the_best_of_before_a_process_without_evals_is_pinned_after_the_next_one_too() -> None:
    """It went back behind evals that the next one, from beyond it, has on its way: those are not known any
    more, but the best of the others is."""
    world, job = running()
    world.hangs = True
    show(world, FIRST, {10: 0.4, 20: 0.6, 30: 0.5, 40: 0.5})
    world.step(KEY)
    show(world, SECOND, {}, resumed_step=20)
    world.step(KEY)
    show(world, THIRD, {}, resumed_step=40)
    world.step(KEY)
    assert (job.record.best.step, job.record.best.attempt) == (20, FIRST)
    world.hangs = False
    world.end_access(job)
    world.settle()
    assert (job.record.secured.best_step, job.record.secured.score) == (20, 0.6)
    show(world, THIRD, {50: 0.55}, resumed_step=40)
    world.settle()
    assert (job.record.best.step, [p.step for p in job.record.evals]) == (20, [10, 20, 50])


@pytest.mark.parametrize(
    ("first", "second", "resumed", "judged"),
    [
        pytest.param((10, 20, 30, 40), (30,), 40, [50], id="a checkpoint of the branch that was left"),
        pytest.param((10, 20, 30, 40), (30,), 30, [10, 20, 30, 50], id="its own branch's"),
        pytest.param((10, 20, 30, 40), (30, 40), 40, [10, 20, 30, 40, 50], id="a step of both"),
        pytest.param((10, 20), (30,), 40, [10, 20, 30, 50], id="no branch was left"),
    ],
)
def test_a_restart_beyond_what_is_known_may_be_on_a_branch_that_was_left(
    first: tuple[int, ...], second: tuple[int, ...], resumed: int, judged: list[int]
) -> None:
    """A trainer that looks for its newest checkpoint takes the highest step there: what the rule has seen of
    the branch since may not be of this one."""
    world, job = running()
    show(world, FIRST, dict.fromkeys(first, 0.5))
    world.settle()
    show(world, SECOND, dict.fromkeys(second, 0.4), resumed_step=20)
    world.settle()
    show(world, THIRD, {50: 0.3}, resumed_step=resumed)
    world.settle()
    rule = job.record.rule
    assert [p.step for p in job.record.evals[rule.unjudged :]] == judged


def test_a_checkpoint_that_a_process_without_evals_started_from_is_of_a_branch_that_was_left() -> None:
    """The first one started from an earlier run's checkpoint of step 40 and died. The second went back to
    20, the third took the 40 again: the second's eval is not on the way to it."""
    world, job = running()
    show(world, FIRST, {}, resumed_step=40)
    world.step(KEY)
    show(world, SECOND, {30: 0.9}, resumed_step=20)
    world.step(KEY)
    assert job.record.abandoned_step == 40, "before any claim tells of it"
    world.settle()
    show(world, THIRD, {50: 0.5, 60: 0.4, 70: 0.3}, resumed_step=40)
    world.settle()
    rule = job.record.rule
    assert [p.step for p in job.record.evals[rule.unjudged :]] == [50, 60, 70]


@pytest.mark.parametrize(
    ("resumed", "claimed", "alone"), [(30, False, True), (30, True, False), (20, False, False)]
)
def test_what_a_process_started_from_is_of_no_branch_until_a_claim_tells(
    resumed: int, claimed: bool, alone: bool
) -> None:
    """The second saved step 20; the third started from a 30 that nobody had seen, the first one's perhaps: a
    checkpoint of 20 is not to stand for its eval of 40."""
    known = tuple(
        LifeRecord(attempt, "p", 0.0, 0.0, step, saved=saved, claimed=attempt is THIRD and claimed)
        for attempt, step, saved in ((FIRST, 0, 20), (SECOND, 10, 20), (THIRD, resumed, None))
    )
    record = JobRecord(attempt=1, lives=known, claim=Claim(1, 0.0))
    found = lives.branch(record, THIRD)
    assert found[0].attempt == THIRD
    assert (len(found) == 1) is alone
    assert len(lives.branch(record, SECOND)) == 2, "and of the former nothing changes"
    assert len(lives.branch_by_steps(record, THIRD)) > 1, "the claim is asked whether it is of this branch"


def test_a_claim_of_a_start_that_nobody_had_seen_names_the_process_before() -> None:
    """A process saved step 20 and ended before the next scrape: the one that goes on from there is of its
    branch, and its best stands. Asked about its own checkpoints alone, the claim said that it was not."""
    world, _ = running()
    show(world, FIRST, {10: 0.9}, resumed_step=0)
    world.settle()
    show(world, SECOND, {}, resumed_step=20)
    world.settle()
    asked = [ask for ask in world.asked.values() if ask.operation is Operation.CLAIM][-1]
    assert [life.attempt for life in asked.branch] == [SECOND, FIRST]


def test_a_process_that_began_on_another_branch_has_none_of_the_ones_before_it() -> None:
    known = tuple(
        LifeRecord(attempt, "p", 0.0, 0.0, step, saved=saved, claimed=attempt is THIRD)
        for attempt, step, saved in ((FIRST, 0, 40), (SECOND, 10, 40), (THIRD, 30, None))
    )
    record = JobRecord(attempt=1, lives=known, claim=Claim(1, 0.0))
    assert [life.attempt for life in lives.branch(record, THIRD)] == [THIRD, SECOND, FIRST]
    found = lives.branch(lives.began_elsewhere(record), THIRD)
    assert found == (BranchLife(THIRD, 30, base=30),), "what it started from, and what it saves"


@pytest.mark.parametrize(("claimed", "saved"), [(False, 20), (True, 20), (False, 30)])
def test_what_came_before_a_process_whose_start_nobody_told_is_not_on_its_successors_way(
    claimed: bool, saved: int
) -> None:
    """Both started from 30. The first has saved ``saved``; a claim would have told whose 30 is."""
    known = (
        LifeRecord(FIRST, "p", 0.0, 0.0, 0, saved=saved),
        LifeRecord(SECOND, "p", 0.0, 0.0, 30, claimed=claimed),
    )
    record = JobRecord(attempt=1, lives=known, claim=Claim(1, 0.0, SECOND.life if claimed else ""))
    page = ScrapeView(ScrapeOutcome.OK, resumed_step=30, page=Page("u", THIRD), pod="p")
    way = [life.attempt for life in lives.branch_by_steps(lives.note(record, page), THIRD)]
    assert way == ([THIRD, SECOND, FIRST] if claimed or saved == 30 else [THIRD, SECOND])


@pytest.mark.parametrize(("claimed", "step"), [(False, 30), (True, None)])
def test_whose_checkpoint_a_process_started_from_is_known_once_its_claim_is_answered(
    claimed: bool, step: int | None
) -> None:
    record = JobRecord(
        attempt=1,
        lives=(
            LifeRecord(FIRST, "p", 0.0, 0.0, 0, saved=40),
            LifeRecord(SECOND, "p", 0.0, 0.0, 30, claimed=claimed),
        ),
        claim=Claim(1, 0.0),
    )
    assert lives.start_unclaimed(record) == step
    afresh = replace(record.lives[-1], resumed=0)
    assert lives.start_unclaimed(replace(record, lives=(*record.lives[:-1], afresh))) is None


@pytest.mark.parametrize(
    ("saved", "judged"), [(40, [60]), (50, [10, 20, 30, 40, 50, 60]), (None, [10, 20, 30, 40, 50, 60])]
)
def test_a_step_that_a_process_has_evaluated_and_not_saved_is_of_the_branch_that_was_left(
    saved: int | None, judged: list[int]
) -> None:
    """``saved``: the newest checkpoint that its page names; None: it names none, and evals have to do."""
    world, job = running()
    show(world, FIRST, dict.fromkeys((10, 20, 30, 40, 50), 0.5))
    world.settle()
    points = tuple(EvalPoint(step, 0.4, SECOND) for step in (30, 40, 50))
    for _ in range(2):
        page = Page("uid-ns/a", SECOND)
        world.scrape(KEY, points=points, checkpoint_step=saved, page=page, resumed_step=20)
        world.settle()
    show(world, THIRD, {60: 0.3}, resumed_step=50)
    world.settle()
    rule = job.record.rule
    assert [p.step for p in job.record.evals[rule.unjudged :]] == judged


@pytest.mark.parametrize(("again", "best"), [(0.7, (SECOND, 0.7)), (0.5, (FIRST, 0.6)), (0.6, (FIRST, 0.6))])
@pytest.mark.parametrize("pinned", [True, False])
def test_the_step_that_a_process_started_from_may_be_evaluated_again(
    again: float, best: tuple[Attempt, float], pinned: bool
) -> None:
    """As it is by trainers that evaluate before they train: the rule sees one eval of a step, the last; the
    best is the better of the two. It was left out, and so was a best that was saved and scored anew."""
    world, job = running()
    show(world, FIRST, {10: 0.4, 20: 0.6})
    world.hangs = not pinned
    world.settle() if pinned else world.step(KEY)
    show(world, SECOND, {20: again}, resumed_step=20)
    world.step(KEY)
    assert [(p.attempt, p.step, p.score) for p in job.record.evals] == [(FIRST, 10, 0.4), (SECOND, 20, again)]
    assert (job.record.evals_seen, len(job.record.eval_times)) == (2, 2)
    assert (job.record.best.step, job.record.best.attempt, job.record.best.score) == (20, *best)
    show(world, SECOND, {20: again, 30: 0.1}, resumed_step=20)
    world.step(KEY)
    assert [p.step for p in job.record.evals] == [10, 20, 30]
    world.end_access(job, hangs=False)
    world.settle()
    assert (job.record.secured.attempt, job.record.secured.score) == best


def test_the_step_evaluated_again_is_no_second_decline() -> None:
    world, job = running(rule=PolicySpec("kDeclines", {"k": 2}))
    show(world, FIRST, {10: 0.9, 20: 0.8})
    world.settle()
    for life in (SECOND, THIRD):
        show(world, life, {20: 0.7}, resumed_step=20)
        world.settle()
    assert job.record.decision is None
    assert job.record.rule.verdict.verb is Verb.CONTINUE
    show(world, THIRD, {20: 0.7, 30: 0.6}, resumed_step=20)
    world.settle()
    assert job.record.decision is not None


class Unclaimed(SlowStore):
    """Claims hang, once the first process runs."""

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        if ask.operation is Operation.CLAIM and job.record.lives:
            return AccessView(ask.request_id, ask.operation, finished=False)
        return super()._access(job, ask)


@pytest.mark.parametrize(
    ("saved", "judged"),
    [
        pytest.param(40, [10, 20, 30, 50], id="it has saved 40 itself"),
        pytest.param(30, [50], id="nobody knows whose 40 is"),
        pytest.param(None, [50], id="it does not say what it has saved"),
    ],
)
def test_where_no_claim_has_told_what_lay_there_a_checkpoint_beyond_a_process_may_be_anothers(
    saved: int | None, judged: list[int]
) -> None:
    """The first process saved 40, unseen, and ended. The second went back to 20, and the third started from
    40: none of the first one's evals told of it, and no claim could be made."""
    world = Unclaimed()
    job = world.submit(KEY)
    world.settle()
    show(world, FIRST, {10: 0.5, 20: 0.5})
    world.step(KEY)
    for _ in range(2):
        points = (EvalPoint(30, 0.4, SECOND),)
        page = Page("uid-ns/a", SECOND)
        world.scrape(KEY, points=points, checkpoint_step=saved, page=page, resumed_step=20)
        world.step(KEY)
    assert not job.record.lives[-1].claimed
    show(world, THIRD, {50: 0.3}, resumed_step=40)
    world.step(KEY)
    rule = job.record.rule
    assert [p.step for p in job.record.evals[rule.unjudged :]] == judged


def test_what_a_claim_has_told_is_known_of_the_newest_process_only() -> None:
    world, job = running()
    for life, resumed in ((FIRST, 0), (SECOND, 20), (THIRD, 20)):
        show(world, life, {30: 0.4}, resumed_step=resumed)
        world.settle()
        assert [one.claimed for one in job.record.lives] == [False] * (len(job.record.lives) - 1) + [True]
