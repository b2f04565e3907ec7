"""An evaluator whose version is another one at each eval blinds the rule: told, and the best is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import Finding, Mark, health
from controller.policy.job.record import Operation, ShortBaselines
from controller.policy.job.types import Direction
from controller.policy.job.verdict_words import alone_best
from controller.policy.types import Mode, PolicySpec
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
DEFAULT = {"rule": PolicySpec("scan", {"alpha": 0.04}), "modifiers": (PolicySpec("gate"),)}
RISES_AND_FALLS = [0.5 + 0.02 * i if i < 8 else 0.66 - 0.02 * (i - 8) for i in range(40)]


def begun(**spec) -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n1": 1})
    job = world.submit(KEY, **spec)
    world.settle()
    return world, job


def show(world: PolicyWorld, score: float, version: str | None, *, labelled: bool = True, n: int = 0) -> None:
    """The next eval, by that version; on its page stands what that version scored alone."""
    job = world.jobs[KEY]
    world.evaluator = version
    world.scores(KEY, score)
    scrape = job.observed.scrape
    points = tuple(p._replace(stderr=0.005, samples=500) for p in scrape.points[-1 - n :])
    job.observed = replace(job.observed, scrape=replace(scrape, points=points, evals_labelled=labelled))
    world.now += 60.0
    world.settle()


def blind(job: Job, now: float = 1e9) -> list[Finding]:
    return [one for one in health(job.record, now) if one.mark is Mark.BLIND]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_version_that_is_another_one_at_each_eval_is_told_from_the_third_change_on(labelled: bool) -> None:
    world, job = begun(**DEFAULT)
    for i, score in enumerate(RISES_AND_FALLS[:3]):
        show(world, score, f"judge@20:{i:02}", labelled=labelled)
        assert blind(job) == []
    show(world, 0.56, "judge@20:03", labelled=labelled)
    (found,) = blind(job, world.now)
    assert (found.reason, found.warning) == ("EvaluatorChanges", False), "quiet at first"
    assert found.due == pytest.approx(found.since + job.desired.first_eval)
    assert "'judge@20:02', then 'judge@20:03'" in found.message
    assert "each time after 1 eval at most: " in found.message
    assert "the rule, which needs 2 evals of one, can stop nothing" in found.message
    assert "constant" in found.cure().text
    assert blind(job)[0].warning
    assert job.record.condition(c.ABLE).status is False


def test_it_is_over_once_evals_go_on_under_one_version() -> None:
    world, job = begun(**DEFAULT)
    for i in range(6):
        show(world, 0.5 + 0.01 * i, f"v{i}")
    show(world, 0.56, "v5", n=1)
    assert blind(job) == [], "two evals under one version"
    for i in range(7):
        show(world, 0.57 + 0.01 * i, "v5", n=2 + i)
    show(world, 0.6, "w")
    assert (blind(job), job.record.baseline.short) == ([], None), "an evaluator that lasted ends the series"


def test_versions_that_last_for_three_evals_of_the_five_that_the_rule_needs_blind_it_too() -> None:
    world, job = begun(rule=PolicySpec("scan"))
    told = []
    for i in range(18):
        show(world, 0.5 + 0.01 * i, f"epoch-{i // 3}", n=i % 3)
        told.append(bool(blind(job)))
    assert told == [False] * 9 + [True] * 9
    show(world, 0.7, "epoch-5", n=3)
    assert blind(job) == []


@pytest.mark.parametrize("rule", [DEFAULT, {"rule": PolicySpec("kDeclines", {"k": 3})}])
def test_the_highest_of_a_series_and_the_best_before_it_stay_pinned(rule: dict) -> None:
    """Stranger of try-out 45: .66 at step 90, and the pin of that step was released at step 110."""
    world, job = begun(**rule)
    for i in range(6):
        show(world, 0.3 + 0.01 * i, "real", n=i)
    assert job.record.secured.step == 60
    for i, score in enumerate(RISES_AND_FALLS[:30]):
        show(world, score, f"judge-v1+seed{i}")
        assert len(job.record.baseline.pins) + 1 <= 3
        assert len(job.pins) <= 4, "and one that the next request lets go"
    before = job.record.baseline
    assert before.kept.step == 60
    assert (before.short.highest.step, before.short.highest.score) == (150, pytest.approx(0.66))
    assert {60, 150} <= job.pins
    assert "steps 60, 150 of before stay pinned (highest score: 0.66 at step 150)" in blind(job)[0].message
    for i in range(6):
        show(world, 0.4 + 0.01 * i, "v2", n=i)
    show(world, 0.2, "v3")
    show(world, 0.3, "v3", n=1)
    assert (job.record.baseline.kept.step, job.record.baseline.short) == (420, None)
    assert {60, 150}.isdisjoint(job.pins), "an evaluator that lasted takes the place of all before"


def test_where_lower_is_better_the_lowest_stays() -> None:
    world, job = begun(**DEFAULT, direction=Direction.MINIMIZE)
    for i, score in enumerate([0.5, 0.4, 0.1, 0.3, 0.6, 0.7]):
        show(world, score, f"v{i}")
    assert job.record.baseline.short.highest.score == 0.1


def test_an_answer_that_comes_after_the_next_change_takes_its_place_by_its_score() -> None:
    world, job = begun(**DEFAULT)
    for i, score in enumerate([0.5, 0.55, 0.52]):
        show(world, score, f"v{i}")
    for i, score, highest in ((3, 0.9, 20), (4, 0.3, 40)):
        world.slow = frozenset([Operation.SECURE]) if i == 3 else frozenset()
        world.evaluator = f"v{i}"
        show_without_settling(world, score)
        if i == 4:
            finish_access(world, job)
        assert job.record.baseline.short.highest.step == highest


def show_without_settling(world: PolicyWorld, score: float) -> None:
    job = world.jobs[KEY]
    world.scores(KEY, score)
    scrape = job.observed.scrape
    job.observed = replace(
        job.observed, scrape=replace(scrape, points=scrape.points[-1:], evals_labelled=True)
    )
    world.step(KEY)


def finish_access(world: PolicyWorld, job: Job) -> None:
    """The Job that was asked for before the change answers."""
    waited = job.record.access
    view = world._access(job, world.asked[waited.request_id])
    job.observed = replace(job.observed, access=(view,))
    world.step(KEY)


def test_the_best_of_an_evaluator_with_one_eval_is_told_as_compared_with_nothing() -> None:
    world, job = begun(**DEFAULT)
    for i, score in enumerate(RISES_AND_FALLS[:20]):
        show(world, score, f"v{i}")
    assert job.record.best_is_alone
    assert alone_best(job.record) == (
        "compared with no other eval: all before were scored otherwise; still pinned of those: "
        "step 10, 90 (0.66)"
    )
    world.finish(KEY)
    world.settle()
    assert job.record.best_is_alone, "and once the run has ended"
    world, job = begun(**DEFAULT)
    show(world, 0.5, "v")
    assert not job.record.best_is_alone, "the first eval of all"


def test_scores_whose_unit_changes_again_and_again_are_told() -> None:
    world, job = begun(rule=PolicySpec("scan"))
    points = [50.0, 51.0, 0.5, 0.51, 50.0, 51.0, 0.5, 0.51, 50.0, 51.0]
    for i, score in enumerate(points):
        show(world, score, None, n=i)
    (found,) = [one for one in blind(job) if one.reason == "UnitChanges"]
    assert "the unit of the scores changes again and again" in found.message


def test_a_change_of_version_before_any_eval_came_does_not_count() -> None:
    world, job = begun(**DEFAULT)
    show(world, 0.5, "a")
    for version in "bcdef":
        world.evaluator = version
        world.scrape(KEY, points=(), evals_labelled=True)
        world.settle()
    assert job.record.baseline.short == ShortBaselines(1, 1, "a")
    show(world, 0.5, "f")
    assert blind(job) == []


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.ENFORCE])
def test_a_run_that_declares_each_new_evaluator_late_is_not_marked(mode: Mode) -> None:
    world, job = begun(**DEFAULT, mode=mode)
    for i in range(24):
        show(world, 0.5 + 0.001 * i, f"judge-{i // 6}", n=i % 6)
        assert blind(job) == []
