"""The gate before a rule: which evals count, when, and what waits beside the best meanwhile."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.values import state_text
from controller.metrics.identity import short
from controller.policy.job.bests import stand
from controller.policy.job.evals import ingest, rewind
from controller.policy.job.guardrails import watch
from controller.policy.job.record import GUARD_STATE_MAX, RULE_STATE_MAX, Best, JobRecord, RuleRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction, Guardrail, MetricPoints, ScrapeOutcome, ScrapeView
from controller.policy.stopping import RULES, ParamError, gate, make_rule
from controller.policy.types import (
    Attempt,
    EvalInContext,
    EvalPoint,
    FleetNoise,
    Paired,
    PolicySpec,
    PromptPair,
    Verb,
    Verdict,
)

SIGMA = 0.05
SCAN = PolicySpec("scan")
LEVEL = [0.52, 0.47, 0.5, 0.55, 0.49, 0.51, 0.46, 0.53]  # a run at .5, its noise


class Seen:
    """Keeps what it is shown; says STOP below ``floor``."""

    name, version, params = "seen", 1, None

    def __init__(self, floor: float = -math.inf) -> None:
        self.floor = floor

    def initial(self) -> tuple:
        return ()

    def observe(self, state: tuple, point: EvalPoint) -> tuple[tuple, Verdict]:
        verb = Verb.STOP if point.score < self.floor else Verb.CONTINUE
        return (*state, point), Verdict(verb, "Low" if verb is Verb.STOP else "High", point.score, self.floor)


def fold(scores: list[float], floor: float = -math.inf, error: float | None = SIGMA, **params):
    """Scores that count so far, the verdicts."""
    whole = gate.Gate(gate.GateParams(**params), Seen(floor))
    state, verdicts = whole.initial(), []
    for step, score in enumerate(scores):
        state, verdict = whole.observe(state, EvalPoint(step, score, stderr=error))
        verdicts.append(verdict)
    return [p.score for p in state[2]], verdicts, state


@pytest.mark.parametrize(
    ("evals", "scores", "counting"),
    [
        # A lone low one, a lone high one: dropped at the next.
        (2, [*LEVEL, 0.0, 0.5], [*LEVEL, 0.5]),
        (2, [*LEVEL, 2.0, 0.5], [*LEVEL, 0.5]),
        (1, [*LEVEL, 0.0, 0.5], [*LEVEL, 0.5]),
        # Waiting.
        (2, [*LEVEL, 0.0], LEVEL),
        (2, [*LEVEL, 0.0, 0.0], LEVEL),
        # One that waited behind an outlier is judged by itself once that is dropped.
        (2, [*LEVEL, 0.98, 0.76, 0.56], [*LEVEL, 0.76, 0.56]),
        (3, [*LEVEL, 0.98, 0.76, 0.77, 0.57], [*LEVEL, 0.76, 0.77, 0.57]),
        # A collapse that stays counts as a whole, and ties for ever after it.
        (2, [*LEVEL, 0.0, 0.0, 0.0], [*LEVEL, 0, 0, 0]),
        (2, [*LEVEL, *[0.0] * 9], [*LEVEL, *[0.0] * 9]),
        (1, [*LEVEL, 0.0, 0.0], [*LEVEL, 0, 0]),
        # Half of the jump bears it out, less does not.
        (1, [*LEVEL, 0.0, 0.25], [*LEVEL, 0.0, 0.25]),
        (1, [*LEVEL, 0.0, 0.27], LEVEL),  # 0.27 is itself further off than five errors
        # Two outliers in a row: alike, and one each way.
        (2, [*LEVEL, 0.0, 0.0, 0.5], [*LEVEL, 0.5]),
        (1, [*LEVEL, 0.0, 0.0, 0.5, 0.5], [*LEVEL, 0, 0, 0.5, 0.5]),
        (2, [*LEVEL, 0.0, 1.0, 0.5], [*LEVEL, 0.5]),
        # An outlier among those that bear a jump out counts no more than any other.
        (2, [0.0, 0.5, 5.0, 0.52, 0.51], [0.0, 0.5, 0.52, 0.51]),
        (2, [*LEVEL, 0.0, -5.0, 0.02, 0.0], [*LEVEL, 0.0, 0.02, 0.0]),
        (3, [*LEVEL, 0.0, -5.0, -0.1, 0.02, 0.0], [*LEVEL, 0.0, -0.1, 0.02, 0.0]),
        # What comes more often than three times in a row is no outlier.
        (2, [*LEVEL, 0.0, 1.0, 0.0, 1.0], [*LEVEL, 1.0]),
        # The first one: borne out by the next, too high, too low.
        (2, [0.5], []),
        (2, [0.5, 0.48], [0.5, 0.48]),
        (2, [2.0, 0.5], []),
        (2, [2.0, 0.5, 0.52], [0.5, 0.52]),
        (2, [2.0, 0.5, 1.9], [2.0, 1.9]),
        (2, [0.0, 0.5, 0.52, 0.49], [0.0, 0.5, 0.52, 0.49]),
        # A steep rise waits and counts, step by step.
        (1, [0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 0.5, 1.0, 1.5]),
        (2, [0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 0.5, 1.0]),
    ],
)
def test_what_counts(evals: int, scores: list[float], counting: list[float]) -> None:
    assert fold(scores, evals=evals)[0] == counting


def test_without_standard_errors_the_scale_is_a_robust_one() -> None:
    assert fold([*LEVEL, 0.0, 0.5], error=None)[0] == [*LEVEL, 0.5]
    # Before five evals count nobody knows how noisy they are, and every eval counts.
    assert fold([0.5, 0.52, 0.0, 0.5], error=None)[0] == [0.5, 0.52, 0.0, 0.5]
    # A jump that counted does not blind it: the next lone one waits again.
    low = [0.02, 0.0, 0.03, 0.01, 0.02]
    scores = [*LEVEL, *low, 0.5, 0.01]
    assert fold(scores, error=None)[0] == [*LEVEL, *low, 0.01]
    # Where nothing ever moves, whatever moves waits.
    assert fold([0.5] * 6 + [0.49, 0.5], error=None)[0] == [0.5] * 7


def test_the_noise_of_the_fleet_judges_a_young_run() -> None:
    whole = gate.Gate(gate.GateParams(), Seen())
    state = whole.initial()
    for step, score in enumerate([0.5, 0.52, 0.0, 0.5]):
        point = EvalInContext.of(EvalPoint(step, score), fleet_noise=FleetNoise(SIGMA, 64.0))
        state, _ = whole.observe(state, point)
    assert [p.score for p in state[2]] == [0.5, 0.52, 0.5]


def test_an_eval_of_few_prompts_is_judged_by_its_own_error() -> None:
    whole = gate.Gate(gate.GateParams(), Seen())
    state = whole.initial()
    for step, (score, error) in enumerate([(0.5, 0.01), (0.51, 0.01), (0.4, 0.03), (0.5, 0.01), (0.0, 0.0)]):
        state, _ = whole.observe(state, EvalPoint(step, score, stderr=error))
    # 0.4 of few prompts is within its error; a standard error of nothing, as a score of 0 has, is none.
    assert [p.score for p in state[2]] == [0.5, 0.51, 0.4, 0.5]
    assert gate.waiting(state) == (4,)


def test_the_last_verdict_stands_while_one_waits_but_no_stop_over_a_higher_one() -> None:
    _, verdicts, _ = fold([*LEVEL, 0.44, 0.0], floor=0.45)
    assert [v.verb for v in verdicts[-2:]] == [Verb.STOP, Verb.STOP]  # one further down speaks for it
    _, verdicts, _ = fold([*LEVEL, 0.44, 2.0], floor=0.45)
    assert [(v.verb, v.reason) for v in verdicts[-2:]] == [
        (Verb.STOP, "Low"),
        (Verb.CONTINUE, gate.WAITS),
    ]
    _, verdicts, _ = fold([*LEVEL, 0.0], floor=0.45)
    assert (verdicts[-1].verb, verdicts[-1].reason) == (Verb.CONTINUE, gate.WAITS)
    assert verdicts[-1].statistic == LEVEL[-1]  # what the rule saw last


def test_a_run_that_falls_further_each_time_is_stopped_although_the_newest_always_waits() -> None:
    """Steps of twenty standard errors: at each eval there is one that waits."""
    scores = [*LEVEL, *(0.5 - i for i in range(1, 10))]
    rule = make_rule(PolicySpec("scan"), [PolicySpec("patience"), PolicySpec("gate")])
    state, stops = rule.initial(), []
    for step, score in enumerate(scores):
        state, verdict = rule.observe(state, EvalPoint(step, score, stderr=SIGMA))
        stops += [step] if verdict.verb is Verb.STOP else []
    assert stops[0] <= len(LEVEL) + 3


def test_wherever_it_is_listed_it_comes_before_everything_else() -> None:
    first, last = ([PolicySpec("gate"), PolicySpec("patience")], [PolicySpec("patience"), PolicySpec("gate")])
    assert make_rule(PolicySpec("scan"), first).initial() == make_rule(PolicySpec("scan"), last).initial()
    with pytest.raises(ParamError, match=r"modifiers: 'gate' .*it once"):
        make_rule(PolicySpec("scan"), [PolicySpec("gate"), PolicySpec("gate")])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sigmas_reported": 0.0}, r"gate\.sigmas_reported: 0.0 .*> 0"),
        ({"borne_out": 1.5}, r"gate\.borne_out: 1.5 .*<= 1"),
        ({"evals": 4}, r"gate\.evals: 4 .*<= 3"),
        ({"most": 0}, r"gate\.most: 0 .*>= 1"),
        ({"count_dropped": 1}, r"gate\.count_dropped: 1 .*true or false"),
    ],
)
def test_bounds(params: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        make_rule(PolicySpec("scan"), [PolicySpec("gate", params)])


WILD = st.lists(
    st.tuples(st.floats(-3e9, 3e9), st.none() | st.floats(0.0, 5.0), st.booleans()), min_size=1, max_size=60
)


@given(WILD, st.integers(1, 3), st.booleans())
def test_each_eval_counts_once_in_its_order_or_is_dropped_or_waits(rows, evals: int, count: bool) -> None:
    whole = gate.Gate(gate.GateParams(evals=evals, count_dropped=count), Seen())
    state, gone = whole.initial(), []
    for step, (score, error, paired) in enumerate(rows):
        pair = Paired(step, 10, score, 0.1234567) if paired else None
        state, _ = whole.observe(state, EvalPoint(step, score, stderr=error, paired=pair))
        gone += gate.dropped(state)
        assert len(gate.waiting(state)) <= max(2, evals)
        assert len(state_text(state=state[:2])) < 700
    counted = [p.step for p in state[2]]
    assert counted == sorted(counted)
    assert sorted([*counted, *gone, *gate.waiting(state)]) == list(range(len(rows)))
    assert [(p.score, p.stderr, p.paired) for p in state[2]] == [
        (rows[s][0], rows[s][1], Paired(s, 10, rows[s][0], 0.1234567) if rows[s][2] else None)
        for s in counted
    ]


@pytest.mark.parametrize("rule", sorted(RULES))
@given(rows=WILD)
def test_the_memory_of_every_rule_behind_a_gate_fits_a_status_and_comes_back(rule: str, rows) -> None:
    made = make_rule(PolicySpec(rule), [PolicySpec("patience"), PolicySpec("gate")])
    state = made.initial()
    for step, (score, error, _) in enumerate(rows):
        state, verdict = made.observe(state, EvalPoint(step, score, stderr=error))
        assert len(state_text(base=state, state=state)) <= 2400
        assert len(state_text(state=state)) <= 1200
        assert (verdict.e_value is not None) == RULES[rule].yields_e_value


# --- a job's record -----------------------------------------------------------------------------------


def use(direction: Direction = Direction.MAXIMIZE, rule: PolicySpec = SCAN, **params) -> RuleInUse:
    modifiers = (PolicySpec("patience"), PolicySpec("gate", params))
    guards = (Guardrail("safety", PolicySpec("scan")),)
    return RuleInUse.of(
        Desired(
            "ns/a",
            "u",
            1,
            "gold",
            1,
            1,
            rule,
            modifiers,
            direction=direction,
            guardrails=guards,
        )
    )


def scrape(points: list[EvalPoint], **more) -> ScrapeView:
    return ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=tuple(points), **more)


def evals(scores: list[float], **more) -> list[EvalPoint]:
    return [EvalPoint(10 * (i + 1), s, stderr=SIGMA, **more) for i, s in enumerate(scores)]


def read(scores: list[float], rule: RuleInUse) -> JobRecord:
    """One scrape after the other."""
    record = JobRecord()
    for number in range(len(scores)):
        record = ingest(record, rule, scrape(evals(scores)[: number + 1]))
    return record


def longest(**params) -> list[RuleRecord]:
    """The memory after each eval of a run whose every number is as long as a page may have it."""
    rule = use(rule=PolicySpec("scan", {"alpha": 0.04}), **params)
    draw, size, first, life = random.Random(1), 1e-300, 900_000_000_000_000, Attempt.parse("1-123456789012")
    record, shown, found = JobRecord(), [], []
    for number in range(60):
        score = -size * draw.choice([0.8 + 1e-4 * draw.random(), 0.2 + 1e-3 * draw.random()])
        pairs = tuple(
            PromptPair(p.step, 999_999, *(short(-size * draw.random(), 5), short(size * draw.random(), 5)))
            for p in shown[-3:]
        )
        fresh = Paired(first, 999_999, short(-size * draw.random()), short(size * draw.random()))
        error = size * draw.random() / 81 if number % 20 > 17 else None
        proxy = short(-size * draw.random())
        shown.append(
            EvalPoint(first + 7919 * number, score, life, error, 999_999, proxy, fresh, 999_999, pairs)
        )
        record = ingest(record, rule, scrape(shown[-32:]))
        assert record.rule is not None
        found.append(record.rule)
    return found


@pytest.mark.parametrize("params", [{}, {"evals": 3, "most": 8, "count_dropped": True}])
def test_whatever_a_page_says_its_memory_fits_a_status(params: dict) -> None:
    memories = longest(**params)
    sizes = [len(state_text(base=one.base, state=one.state)) for one in memories]
    assert max(sizes) <= RULE_STATE_MAX
    assert max(len(state_text(state=one.state)) for one in memories) <= GUARD_STATE_MAX
    assert max(sizes) > 2400, "nothing was tried"


def stands(record: JobRecord) -> tuple[int | None, int | None]:
    """Steps of the best and of the one that is to be pinned beside it."""
    steps = [None if b is None else b.step for b in (record.best, record.awaiting)]
    return steps[0], steps[1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([*LEVEL], (40, None)),
        ([*LEVEL, 2.0], (40, 90)),  # beside the best until it is borne out
        ([*LEVEL, 2.0, 1.9], (40, 90)),
        ([*LEVEL, 2.0, 2.1], (40, 100)),
        ([*LEVEL, 2.0, 1.9, 2.05], (110, None)),
        ([*LEVEL, 2.0, 0.5], (40, None)),
        ([*LEVEL, 0.0], (40, None)),  # a low one needs no pin
        ([*LEVEL, 0.0, 0.0, 0.0], (40, None)),
        # The first one is the best there is; where the next lies far below, either may be what counts.
        ([0.5], (10, None)),
        ([2.0, 0.5], (10, 20)),
        ([2.0, 0.5, 0.52], (30, None)),
        ([2.0, 0.5, 1.9], (10, None)),
        ([0.5, 2.0], (10, 20)),
    ],
)
def test_a_lone_high_one_is_no_best_and_is_pinned_beside_it(
    scores: list[float], expected: tuple[int | None, int | None], sign: float
) -> None:
    rule = use(Direction.MAXIMIZE if sign > 0 else Direction.MINIMIZE)
    record = read([sign * s for s in scores], rule)
    assert stands(record) == expected
    assert record.rule is not None
    at_once = ingest(JobRecord(), rule, scrape(evals([sign * s for s in scores])))
    assert (at_once.best, at_once.awaiting, at_once.rule) == (record.best, record.awaiting, record.rule)


def test_what_waits_and_what_was_dropped_can_be_asked_for() -> None:
    rule = use()
    before = read([*LEVEL, 2.0], rule)
    assert before.rule is not None
    assert rule.waiting(before.rule.state)[0] == 90
    after = ingest(before, rule, scrape(evals([*LEVEL, 2.0, 0.5, 0.0, 0.51, 0.5])))
    assert after.rule is not None
    assert (rule.waiting(after.rule.state), rule.dropped(after.rule.state)) == ((), ())
    assert rule.dropped_since(before, after) == (90, 110)
    bare = RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("scan")))
    plain = ingest(JobRecord(), bare, scrape(evals([*LEVEL, 0.0])))
    assert plain.rule is not None
    assert bare.waiting(plain.rule.state) == ()
    assert stands(plain) == (40, None)


def test_a_rewind_brings_back_what_waited_and_forgets_what_was_decided_after_it() -> None:
    rule = use()
    long = read([*LEVEL, 2.0, 0.5, 0.52, 0.51], rule)
    for step in range(10, 120, 10):
        before = read([*LEVEL, 2.0, 0.5, 0.52, 0.51][: step // 10], rule)
        again = replace(rewind(long, rule, step), curve=before.curve)  # which shows what was left, too
        assert again.rule.settled == ((10,) if step == 10 else ())  # alone it waits, and had been borne out
        assert replace(again, rule=replace(again.rule, settled=())) == replace(before, abandoned_step=120)
    back = rewind(read([*LEVEL, 2.0, 1.9, 2.05], rule), rule, 90)
    assert stands(back) == (90, None)  # two evals had borne it out


def test_the_same_step_of_an_earlier_life_is_another_one() -> None:
    """The best in safety is that of step 90 in a life that was left; the one that waits is of this life."""
    rule = use()
    record = read([*LEVEL, 2.0], rule)
    assert record.rule is not None
    for score, beside in ((0.9, 90), (2.5, None)):
        best, awaiting = stand(rule, record.rule, record.evals, Best(90, score, Attempt(7, "left")))
        assert best is not None
        assert best.attempt == Attempt(7, "left")
        assert (None if awaiting is None else awaiting.step) == beside


def test_without_the_gate_what_waited_counts_at_once() -> None:
    waiting = read([*LEVEL, 2.0], use())
    bare = RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("scan")))
    assert stands(ingest(waiting, bare, scrape([]))) == (90, None)
    assert stands(ingest(read([*LEVEL], bare), use(), scrape(evals([*LEVEL, 2.0])))) == (40, 90)


# row 7
def test_one_eval_of_nothing_stops_no_run_and_neither_does_the_next_one() -> None:
    """A scorer that was down for one eval; without the gate `scan` stops at it, with patience at the next."""
    record, rule = JobRecord(), use()
    for number in range(1, 11):
        record = ingest(record, rule, scrape(evals([*LEVEL, 0.0, 0.5])[:number]))
        assert record.rule is not None
        assert record.rule.verdict is not None
        assert record.rule.verdict.verb is Verb.CONTINUE


# row 7
def test_an_eval_of_no_samples_is_no_eval() -> None:
    """Neither counted nor shown to a rule; one whose number is not known is."""
    points = evals(LEVEL)
    empty = EvalPoint(90, 0.0, stderr=0.0, samples=0)
    rule = RuleInUse.of(Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("scan")))
    record = ingest(JobRecord(), rule, scrape([*points, empty], evals_total=9))
    assert [p.step for p in record.evals] == [10 * i for i in range(1, 9)]
    assert record.evals_missed == 0
    assert record.rule == ingest(JobRecord(), rule, scrape(points)).rule
    again = ingest(record, rule, scrape([*points, empty, EvalPoint(100, 0.5, stderr=SIGMA)], evals_total=10))
    assert (again.evals_seen, again.evals_missed) == (9, 0)
    guards = watch(record, use().guards, scrape(points, others=(MetricPoints("safety", (empty,)),))).guards
    assert guards == ()


def test_a_guardrail_passes_the_same_gate() -> None:
    record, rule = JobRecord(), use()
    others = (MetricPoints("safety", tuple(evals([*LEVEL, 0.0]))),)
    (guard,) = watch(record, rule.guards, scrape([], others=others)).guards
    assert guard.verdict is not None
    assert (guard.verdict.verb, guard.verdict.reason) == (Verb.CONTINUE, gate.WAITS)
    assert rule.guards["safety"].waiting(guard.state)[0] == 90


@given(
    st.lists(st.sampled_from([0.0, 0.3, 0.47, 0.5, 0.52, 0.55, 2.0]), max_size=24),
    st.sampled_from(list(Direction)),
    st.booleans(),
    st.sampled_from([None, FleetNoise(0.05, 3), FleetNoise(0.5, 3)]),
    st.sampled_from([None, 40]),
)
def test_the_evals_that_count_are_the_same_however_often_they_are_asked_for(
    scores: list[float], direction: Direction, believes: bool, noise: FleetNoise | None, total: int | None
) -> None:
    """They are remembered by all that a rule is shown: nothing that it is shown may be missing there."""
    desired = Desired(
        "ns/a", "u", 1, "gold", 1, 1, SCAN, modifiers=(PolicySpec("gate"),), direction=direction
    )
    plain = RuleInUse.of(desired)
    use = replace(plain, believes_errors=believes, fleet_noise=noise, total_steps=total)
    points = tuple(EvalPoint(step, score, stderr=SIGMA) for step, score in enumerate(scores))
    known, state = set[int](), use.rule.initial()
    for point in points:
        state, _ = use.observe(state, point)
        known = (known | {point.step}) - {*use.dropped(state)}
    expected = known - {*use.waiting(state)}
    for one in (plain, use, plain, use):
        found = one.counted(one.rule.initial(), points)
        assert one is plain or found == expected
