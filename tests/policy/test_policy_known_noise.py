"""The noise of an eval as it is known from its prompts, and the budget of false stops that `scan` spends."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, make_rule, noise, scan, spending
from controller.policy.types import EvalInContext, EvalPoint, PolicySpec, PromptPair, Verb


def an_eval(step: int, score: float, *, total: int | None = None, **fields: Any) -> EvalPoint:
    progress = None if total is None else step / total
    known = fields.pop("range", (0.0, 1.0))
    return EvalInContext.of(EvalPoint(step, score, **fields), progress=progress, range=known)


def binomial(score: float, n: int) -> float:
    mean = (n * score + 1) / (n + 2)
    return math.sqrt(mean * (1 - mean) / n)


@pytest.mark.parametrize(
    ("score", "fields", "expected"),
    [
        (0.5, {"prompts": 100}, binomial(0.5, 100)),
        (0.0, {"prompts": 100}, binomial(0.0, 100)),
        (7.0, {"prompts": 100, "range": (-1.0, 9.0)}, 10 * binomial(0.8, 100)),
        (-0.5, {"prompts": 100, "range": (-1.0, 0.0)}, binomial(0.5, 100)),  # minimised
        (0.5, {"prompts": 100, "stderr": 0.02}, 0.02),
        (0.0, {"prompts": 100, "stderr": 0.0}, binomial(0.0, 100)),
        (0.0, {"stderr": 0.0}, 0.0),
        # Not to be believed: a tenth of what the prompts allow, or numbers that cannot be.
        (0.5, {"prompts": 100, "stderr": 0.001}, binomial(0.5, 100)),
        (1.5, {"prompts": 100}, None),
        (-0.1, {"prompts": 100}, None),
        (0.5, {"prompts": 0}, None),
        (0.5, {"prompts": -3}, None),
        (0.5, {"prompts": 10**9}, None),
        (0.5, {"prompts": 100, "range": (1.0, 0.0)}, None),
        (0.5, {"prompts": 100, "range": None}, None),
        (0.5, {}, None),
    ],
)
def test_the_first_that_is_there_counts(score: float, fields: dict[str, Any], expected: float | None) -> None:
    found = noise.error(an_eval(1, score, **fields))
    assert found == (None if expected is None else pytest.approx(expected))


def run(rule: PolicySpec, scores: list[float], **fields: Any) -> tuple[int, str]:
    """Eval (from 1) of the first STOP, 0 for none, and the last verdict's reason."""
    made = make_rule(rule)
    state, reason = made.initial(), ""
    for step, score in enumerate(scores, 1):
        state, verdict = made.observe(state, an_eval(step, score, **fields))
        state = tuple(json.loads(json.dumps(state)))
        reason = verdict.reason
        if verdict.verb is Verb.STOP:
            return step, reason
    return 0, reason


COLLAPSE = [0.2, 0.35, 0.45, 0.5, 0.52, 0.0, 0.0, 0.0, 0.0, 0.0]
SPENDING = PolicySpec("scan", {"alpha": 0.045})


def test_a_collapse_in_a_run_of_ten_is_seen_at_its_first_eval() -> None:
    assert run(SPENDING, COLLAPSE, prompts=200, total=10) == (6, "FellBelowBestStretch")
    assert run(SPENDING, COLLAPSE, stderr=0.0, prompts=200, total=10) == (6, "FellBelowBestStretch")
    assert run(SPENDING, COLLAPSE)[0] != 6  # nobody says how noisy an eval is


def test_a_reported_0_at_the_collapse_does_not_hide_it() -> None:
    made = make_rule(SPENDING)
    state = made.initial()
    for step, score in enumerate(COLLAPSE[:6], 1):
        error = 0.0 if score == 0.0 else 0.03
        state, verdict = made.observe(state, EvalPoint(step, score, stderr=error))
    assert verdict.verb is Verb.STOP


def test_what_cannot_be_right_stops_nobody() -> None:
    fields: list[dict[str, Any]] = [{"prompts": n} for n in (0, -5, 10**9)] + [{"range": (0.0, 0.3)}]
    for more in fields:
        given_fields = {"prompts": 200, **more}
        assert run(SPENDING, COLLAPSE, **given_fields) == run(SPENDING, COLLAPSE)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=400))
def test_no_totals_that_a_trainer_can_state_spend_more_than_there_is(totals: list[int]) -> None:
    spent = 0.0
    for seen, total in enumerate(totals, 1):
        look, more = spending.look(seen, total, spent)
        assert 0.0 <= more <= 1.0
        assert look >= 0.0
        spent += look
    assert spent <= 1.0 + 1e-9


@pytest.mark.parametrize("total", [None, 100, 110, 200, 300, 3000])
@pytest.mark.parametrize("stderr", [None, 0.01])
def test_a_run_that_goes_on_beyond_its_total_is_stopped_all_the_same(
    total: int | None, stderr: float | None
) -> None:
    """Its trainer tells the steps of an epoch, or those of the run before it was made longer."""
    scores = [0.5 + 0.02 * min(n, 12) - 0.03 * max(0, n - 12) + 0.004 * (n % 3) for n in range(1, 31)]
    rule = make_rule(DEFAULT_RULE, DEFAULT_MODIFIERS)
    state, stopped = rule.initial(), None
    for number, score in enumerate(scores, 1):
        state, verdict = rule.observe(state, an_eval(10 * number, score, total=total, stderr=stderr))
        if verdict.verb is Verb.STOP:
            stopped = 10 * number
            break
    assert stopped is not None
    assert 140 <= stopped <= 190


def test_a_known_total_leaves_a_tenth() -> None:
    spent = 0.0
    for seen in range(1, 11):
        spent += spending.look(seen, 10, spent).share
    assert spent == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("steps", "total", "expected"),
    [
        ((10, 20), 100, 10),
        ((0, 10, 20, 30, 40), 100, 11),  # an eval before training
        ((10, 20), 20, 5),
        ((10, 20), 20_000, 200),
        ((10,), 100, 0),
        ((10, 20), None, 0),
        ((10, 20, 21, 22, 30, 31, 40), 100, 13),  # three were asked for: what is to come is no more
        ((10, 20, 22, 40, 60), 100, 10),  # of totals that change, and of paces, the largest counts
    ],
)
def test_the_evals_that_a_run_will_have(steps: tuple[int, ...], total: int | None, expected: int) -> None:
    pace = spending.Pace()
    for seen, step in enumerate(steps, 1):
        pace = pace.after(seen, step, None if total is None else step / total)
    assert pace.evals == expected


def test_the_last_looks_of_a_known_total_spend_the_most() -> None:
    spent, looks = 0.0, []
    for seen in range(1, 11):
        looks.append(spending.look(seen, 10, spent).share)
        spent += looks[-1]
    assert looks[1:] == sorted(looks[1:])
    assert looks[9] / looks[1] == pytest.approx((0.05 + 1.0) / (0.05 + 0.04))
    even = [spending.look(2, 10, 0.0, late=False), spending.look(10, 10, 0.8, late=False)]
    assert even == [pytest.approx((0.1, 0.0)), pytest.approx((0.1, 0.0))]


def test_a_look_that_may_suddenly_spend_more_stands_alone() -> None:
    """Its stretches passed no limit before, and that says nothing where none of those was as low."""
    planned = spending.look(10, 20, sum_of_looks(9, 20))
    sudden = spending.look(10, 20, 0.0)
    assert (planned.more, sudden.more) == (pytest.approx(1.0 - (0.05 + 0.2025) / (0.05 + 0.25)), 1.0)
    assert sudden.share > planned.share
    assert spending.look(30, 20, 0.9).more == 0.0  # beyond the end they only become less
    limits = [spending.windows_limit(1e-3, more, 40, 100) for more in (0.0, planned.more, 1.0)]
    assert limits == sorted(limits)
    assert limits[2] > 1.03 * limits[0]


def sum_of_looks(seen: int, evals: int) -> float:
    spent = 0.0
    for one in range(1, seen + 1):
        spent += spending.look(one, evals, spent).share
    return spent


@pytest.mark.parametrize("seen", [8, 30, 200])
@pytest.mark.parametrize("chance", [1e-6, 1e-4, 1e-3])
def test_limits_are_where_their_chances_are(chance: float, seen: int) -> None:
    single = spending.single_limit(chance, seen)
    assert spending.single_chance(single, seen) == pytest.approx(chance)
    for more in (0.0, 0.1, 1.0):
        wide = spending.windows_limit(chance, more, seen, 1000)
        assert spending.rate(wide, more, seen) == pytest.approx(chance)


@given(st.floats(1e-12, 0.3), st.floats(0.0, 1.0), st.integers(2, 400), st.booleans())
def test_a_limit_is_the_lowest_of_its_grid(chance: float, more: float, seen: int, told: bool) -> None:
    """Halving the grid from end to end finds it too, in four times as many steps."""
    low, high = 0, spending.STEPS
    while high - low > 1:
        middle = (low + high) // 2
        z = spending.LEAST_Z + middle * spending.STEP
        low, high = (middle, high) if spending.rate(z, more, seen, told) > chance else (low, middle)
    wanted = spending.LEAST_Z + high * spending.STEP
    assert spending.windows_limit(chance, more, seen, 10**9, told) == wanted


def test_the_state_stays_small() -> None:
    made = make_rule(SPENDING)
    state, sizes = made.initial(), []
    for step in range(1, 400):
        state, _ = made.observe(state, an_eval(step, 0.5 + 1e-3 * (step % 7) / 3, prompts=1319, total=400))
        sizes.append(len(json.dumps(state)))
    assert max(sizes) <= 600


def paired(score: float, against: int, *, variance: float, prompts: int = 200) -> EvalPoint:
    pair = PromptPair(against, prompts, 0.0, variance)
    return EvalInContext.of(EvalPoint(9, score, prompt_pairs=(pair,)), range=(0.0, 1.0))


@pytest.mark.parametrize(
    ("point", "sigma"),
    [
        (paired(0.4, 3, variance=0.1), math.sqrt((200 * 0.1 + 1) / 201 / 200)),
        (paired(0.4, 3, variance=0.0), math.sqrt(1 / 201 / 200)),  # all prompts changed alike
        (paired(0.4, 2, variance=0.1), None),  # with another step
        (paired(0.4, 3, variance=-1.0), None),
        (paired(0.4, 3, variance=math.nan), None),
        (paired(0.4, 3, variance=math.inf), None),
        (paired(0.4, 3, variance=0.1, prompts=1), None),
        (paired(0.4, 3, variance=0.1, prompts=10**9), None),
        (EvalPoint(9, 0.4, prompt_pairs=(PromptPair(3, 200, 0.0, 0.0),)), None),
    ],
)
def test_the_noise_of_a_difference_is_that_of_its_prompts(point: EvalPoint, sigma: float | None) -> None:
    found = noise.of_difference(point, 3)
    assert (found and found.sigma) == (sigma and pytest.approx(sigma))


def test_pairs_alone_are_enough_for_single_evals() -> None:
    made = make_rule(SPENDING)
    state = made.initial()
    for step, score in enumerate([0.2, 0.5, 0.3], 1):
        pairs = (PromptPair(2, 200, -0.2, 0.2),) if step == 3 else ()
        state, verdict = made.observe(state, EvalPoint(step, score, prompt_pairs=pairs))
        assert (verdict.verb is Verb.STOP) == (step == 3)


def test_where_the_prompts_of_both_are_known_all_looks_of_a_run_spend_alike() -> None:
    made = make_rule(PolicySpec("scan", {"alpha": 0.04}))
    state, spent, limits = made.initial(), [], []
    for step in range(1, 11):
        pairs = (PromptPair(1, 200, 0.0, 0.2),) if step > 1 else ()
        state, verdict = made.observe(state, an_eval(step, 0.5, prompts=200, prompt_pairs=pairs, total=10))
        spent.append(state[2][-1])
        limits.append(verdict.threshold)
    assert spent == pytest.approx([0.1 * step for step in range(10)])
    early = spending.single_limit(0.04 * 0.1 * scan.part_of_singles(3, True), 3)
    assert limits[2] == pytest.approx(noise.widen(early, 199.0)), "the rest is kept for longer stretches"


def test_of_a_large_budget_single_evals_get_what_is_not_measured_of_longer_windows() -> None:
    shares = [spending.of_windows(alpha) for alpha in (0.001, 0.04, 0.08, 0.4)]
    assert shares == pytest.approx([1.0, 1.0, 0.5, 0.1])
    limits = []
    for alpha in (0.04, 0.4):
        made = make_rule(PolicySpec("scan", {"alpha": alpha}))
        state = made.initial()
        for step in range(1, 12):
            state, verdict = made.observe(state, an_eval(step, 0.5, stderr=0.02, total=11))
        limits.append(verdict.threshold)
    assert limits[1] < limits[0]
