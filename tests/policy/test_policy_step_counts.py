"""Evals and checkpoints that count by different counters: told, and no run is stopped on one of those."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from controller.cli.explanation import explain
from controller.cli.job_view import read
from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.record import Operation
from controller.policy.job.step_counts import STEPS_DISAGREE
from controller.policy.job.types import Page, RunState
from controller.policy.types import Attempt, EvalPoint, PolicySpec
from tests.support import cli_world
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
LIFE = Attempt(1, "aaaa")
RULE = PolicySpec("kDeclines", {"k": 3, "min_delta": 0.005})
# The trainer's step, its newest checkpoint (None: none yet), the newest eval; what was saved and evaluated.
Course = Iterator[tuple[int | None, int | None, int]]


def running(**spec: object) -> tuple[PolicyWorld, Job]:
    world = PolicyWorld({"n": 8})
    job = world.submit(KEY, rule=RULE, **spec)
    world.settle()
    world.scrape(KEY, points=(), page=Page("uid-ns/a", LIFE))
    world.step(KEY)
    return world, job


def score(n: int, best: int) -> float:
    """Of the n-th eval: it rises up to the ``best``-th, and falls from there."""
    return 0.5 + 0.02 * min(n, best) - 0.02 * max(0, n - best)


def show(world: PolicyWorld, evals: list[int], best: int, life: Attempt = LIFE, **fields: object) -> None:
    points = tuple(EvalPoint(step, score(n, best), life) for n, step in enumerate(evals, 1))
    world.scrape(KEY, points=points[-32:], page=Page("uid-ns/a", life), **fields)


def play(world: PolicyWorld, job: Job, course: Course, best: int, pages: int = 24) -> None:
    """Read the page after each eval, until the run is stopped."""
    evals: list[int] = []
    for (step, saved, newest), _ in zip(course, range(pages), strict=False):
        if saved is not None:
            job.checkpoints.add(saved)
        evals += [newest] if newest and newest not in evals else []
        show(world, evals, best, checkpoint_step=saved, step=step, total_steps=step and 400)
        world.settle()
        if job.record.decision is not None:
            return


def in_one_ratio(of_eval: int, own: int | None, of_save: int) -> Course:
    """All three go on by so much with each eval: the trainer saves, and evaluates what it saved."""
    for n in count(1):
        yield own and own * n, of_save * n, of_eval * n


def two_at_a_time(course: Course) -> Course:
    """Of evals that come faster than pages are read, each second page shows two."""
    for n, page in enumerate(course):
        if n % 3 != 1:
            yield page


DISAGREE = {
    "evals and progress by iteration, saves by update (iter9)": lambda: in_one_ratio(10, 10, 40),
    "read at each second or third eval": lambda: two_at_a_time(in_one_ratio(10, 10, 40)),
    "two updates each": lambda: in_one_ratio(10, 10, 20),
    "numbered evals (stepix9)": lambda: in_one_ratio(1, 10, 10),
    "evals of epochs, no progress told": lambda: in_one_ratio(1, None, 250),
    "progress by update too": lambda: in_one_ratio(10, 40, 40),
    "evals by update, saves numbered": lambda: in_one_ratio(50, 50, 1),
    "evals by sample, progress and saves by step": lambda: in_one_ratio(64, 1, 1),
}


@pytest.mark.parametrize("course", DISAGREE.values(), ids=DISAGREE)
def test_no_run_is_stopped_on_a_checkpoint_that_another_counter_numbers(course) -> None:
    world, job = running(max_step_lag=40)
    play(world, job, course(), best=12)
    assert job.record.decision is None
    assert job.record.secured is None
    assert job.record.beside is None
    found = job.record.condition(c.SECURED)
    assert (found.status, found.reason) == (False, STEPS_DISAGREE)
    (told,) = [one for one in health(job.record, world.now) if one.mark is Mark.UNSAFE]
    assert (told.reason, told.warning) == (STEPS_DISAGREE, True)
    assert "maxStepLag" not in told.message
    assert "report_eval(step" in told.cure().text
    assert "maxStepLag" not in told.cure().text
    facts = dict(explain(read(cli_world.whole("a", job.record)), world.now).facts)
    assert "held back" not in facts, "the mark says it"
    # An eval far ahead of the trainer's own step looks as if that had begun anew.
    assert job.record.condition(c.TERMINATION).reason in (STEPS_DISAGREE, "MetricsNotRead")


def test_both_numbers_are_told_after_a_few_evals_and_nothing_is_pinned_from_then_on() -> None:
    world, job = running(max_step_lag=40)
    play(world, job, in_one_ratio(10, 10, 40), best=20, pages=13)
    message = job.record.condition(c.SECURED).message
    assert message.startswith("evals count 130, checkpoints 520; progress 130 of 400: ")
    early, job = running(max_step_lag=40)
    play(early, job, in_one_ratio(10, 10, 40), best=20, pages=3)
    assert job.record.condition(c.SECURED).reason == STEPS_DISAGREE
    early.asked.clear()
    play(early, job, in_one_ratio(10, 10, 40), best=20)
    assert not [ask for ask in early.asked.values() if ask.operation is Operation.SECURE]


def test_its_user_stops_such_a_run_without_a_copy_of_what_is_not_its_best() -> None:
    world, job = running(max_step_lag=40)
    play(world, job, in_one_ratio(10, 10, 40), best=8)
    job.wish(run_state=RunState.STOPPED)
    world.settle()
    assert job.record.decision.pods_gone_at is not None
    assert job.record.retained == ()
    assert job.record.condition(c.RETAINED).reason == "NothingRetained"
    assert job.record.condition(c.SECURED).reason == STEPS_DISAGREE


def test_a_stop_under_way_is_taken_back_once_they_are_found_to_disagree() -> None:
    """The first save is seen with the fourth eval; the rule had its three falls by then."""
    world, job = running(max_step_lag=40)
    world.slow = frozenset({Operation.RETAIN})
    course = list(zip(in_one_ratio(10, 10, 40), range(6), strict=False))
    for (step, _, newest), _ in course:
        evals = list(range(10, newest + 1, 10))
        job.checkpoints |= {10, 40 * len(evals)}
        show(world, evals, 1, step=step, total_steps=400)  # its saves are not told yet
        for _ in range(6):
            world.step(KEY)
            world._cluster(job)
            world.pool_pass()
    assert job.record.decision is not None
    for n in (7, 8, 9):
        evals = list(range(10, 10 * n + 1, 10))
        show(world, evals, 1, step=10 * n, total_steps=400, checkpoint_step=40 * n)
        world.step(KEY)
    assert job.record.decision is None
    assert job.record.taken_back.reason == STEPS_DISAGREE


def test_once_a_new_process_counts_alike_its_own_evals_count() -> None:
    world, job = running(max_step_lag=40)
    play(world, job, in_one_ratio(10, 10, 40), best=8, pages=16)
    assert job.record.condition(c.SECURED).reason == STEPS_DISAGREE
    life = Attempt(1, "bbbb")
    evals = []
    for n in range(1, 8):
        step = 640 + 40 * n
        evals.append(step)
        job.checkpoints.add(step)
        show(world, evals, 3, life, checkpoint_step=step, step=step, total_steps=1600, resumed_step=640)
        world.settle()
        if n == 1:
            assert job.record.step_counts is None
            assert [p.step for p in job.record.evals] in ([], [680])
    assert job.record.best.step == 760
    assert job.record.secured.step == 760
    assert job.record.decision is not None


def test_a_new_process_that_counts_as_the_one_before_is_told_of_all_along() -> None:
    world, job = running(max_step_lag=40)
    play(world, job, in_one_ratio(1, 40, 40), best=8, pages=8)
    life = Attempt(1, "bbbb")
    for n in range(1, 8):
        saved = 320 + 40 * n
        show(world, list(range(9, 9 + n)), 8, life, checkpoint_step=saved, step=saved, resumed_step=320)
        world.settle()
        assert job.record.condition(c.SECURED).reason == STEPS_DISAGREE


def apart(evals: int, saves: int) -> Course:
    """One counter, evals and saves each after so many steps: the page after each eval."""
    for n in count(1):
        step = evals * n
        yield step, step // saves * saves or None, step


def late(lag: int, saves: int = 10) -> Course:
    """An evaluator beside the run scores each save, ``lag`` saves later."""
    for n in count(1):
        step = saves * (n + lag)
        yield step + n % 7, step, saves * n


def slow(times: float, saves: int = 10) -> Course:
    """An evaluator beside the run takes so many times as long as the run from save to save, and skips
    none. A page is read after each save and each eval."""
    done = 0
    for step in count(saves):
        scored = int(step / times) // saves * saves
        if step % saves == 0 or scored > done:
            yield step, step // saves * saves, scored
        done = scored


def catching_up() -> Course:
    """It stood still while the run made 20 saves, then scores two of them in the time of one save."""
    for n in count(1):
        step, newest = 10 * (n + 20), min(20 * n, 10 * (n + 20))
        yield step, step, newest


def step_told_seldom() -> Course:
    """The trainer's own step is told each 100 steps; it evaluates and saves between."""
    for n in count(1):
        yield 10 * n // 100 * 100, 10 * n + 10, 10 * n


def step_of_the_epoch() -> Course:
    """The trainer's own step begins anew with each epoch of 60 steps; evals are of the save before."""
    for n in count(1):
        yield (10 * n) % 60, 10 * n, 10 * n - 5


def announced_early() -> Course:
    """A save is announced just before the step moves, and evals are of the save before."""
    for n in count(1):
        yield 10 * n - 1, 10 * n, 10 * n - 1


HEALTHY = {
    "each eval of a save": lambda: in_one_ratio(10, 10, 10),
    "evals every 7, saves every 10": lambda: apart(7, 10),
    "evals every 10, saves every 7": lambda: apart(10, 7),
    "saves seldom": lambda: apart(10, 50),
    "evals seldom": lambda: apart(40, 10),
    "an evaluator 1 save late": lambda: late(1),
    "an evaluator 6 saves late": lambda: late(6),
    "an evaluator 2.3 times as slow": lambda: slow(2.3),
    "an evaluator 4 times as slow": lambda: slow(4.0),
    "an evaluator that catches up": catching_up,
    "the trainer's step told seldom": step_told_seldom,
    "the trainer's step of the epoch": step_of_the_epoch,
    "the trainer's step of another counter": lambda: in_one_ratio(40, 10, 40),
    "a save announced early": announced_early,
    "no progress told, an evaluator late": lambda: ((None, s, e) for _, s, e in late(3)),
    "no save told": lambda: ((s, None, e) for s, _, e in apart(10, 10)),
}


@pytest.mark.parametrize("course", HEALTHY.values(), ids=HEALTHY)
def test_a_run_of_one_counter_is_not_said_to_have_two(course) -> None:
    world, job = running(max_step_lag=200)
    told = set()
    evals: list[int] = []
    for (step, saved, newest), _ in zip(course(), range(60), strict=False):
        job.checkpoints |= set(range(10, (saved or 0) + 1, 10)) | ({saved} if saved else set())
        evals += [newest] if newest and newest not in evals else []
        show(world, evals, 40, checkpoint_step=saved, step=step, total_steps=step and 4000)
        for _ in range(3):
            world.step(KEY)
            world._cluster(job)
        found = job.record.condition(c.SECURED)
        told.add(found.reason if found is not None else "")
    assert STEPS_DISAGREE not in told


def test_steps_that_begin_anew_with_each_attempt_are_no_other_counter() -> None:
    world, job = running(max_step_lag=200)
    play(world, job, late(2), best=40, pages=12)
    for name in ("bbbb", "cccc"):
        life, evals = Attempt(1, name), []
        for step, saved, newest in (page for page, _ in zip(late(2), range(8), strict=False)):
            evals.append(newest)
            show(world, evals, 40, life, checkpoint_step=saved, step=step, resumed_step=0)
            world.settle()
            assert job.record.condition(c.SECURED).reason != STEPS_DISAGREE


def test_a_page_that_goes_on_from_checkpoints_of_an_earlier_process_is_no_other_counter() -> None:
    """The process before was far ahead of the late evaluator; its own first save is far above the next
    eval."""
    world, job = running(max_step_lag=200)
    play(world, job, slow(2.0), best=40, pages=20)
    life, evals = Attempt(1, "bbbb"), []
    world.scrape(KEY, points=(), page=Page("uid-ns/a", life), resumed_step=200)
    world.step(KEY)
    for n in range(1, 10):
        evals.append(200 + 10 * n)
        show(world, evals, 40, life, checkpoint_step=200 + 20 * n, step=200 + 20 * n, resumed_step=200)
        world.settle()
    assert job.record.condition(c.SECURED).reason != STEPS_DISAGREE
