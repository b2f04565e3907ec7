"""Rules that can stop nothing of a run are named: by the declared range, or by the evals that it can have."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from controller.policy.job import conditions as c
from controller.policy.job.marks import Mark, health
from controller.policy.job.types import Guardrail, ScrapeOutcome
from controller.policy.job.unable import RANGE_TOO_NARROW, RUN_TOO_SHORT, unable_by_spec
from controller.policy.stopping import MODIFIERS, RULES, earliest, lets_pass, make_rule
from controller.policy.types import (
    EvalInContext,
    EvalPoint,
    EvalScale,
    Mode,
    Paired,
    Peers,
    PolicySpec,
    Verb,
    Verdict,
)
from tests.support.policy_world import Job, PolicyWorld

SHARE = EvalScale(range=(0.0, 1.0))
RISING_AND_FALLING = (0.5, 0.7, 0.6, 0.55, 0.5, 0.45)


def running(total: int | None, *scores: float, **spec) -> tuple[PolicyWorld, Job]:
    """A run with an eval each 10 steps; of ``total`` steps."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a", **spec)
    world.settle()
    world.scores("ns/a", *scores)
    scrape = job.observed.scrape
    job.observed = replace(
        job.observed, scrape=replace(scrape, total_steps=total, step=scrape.points[-1].step)
    )
    world.step("ns/a")
    return world, job


def blind(job: Job) -> list[tuple[str, str]]:
    found = health(job.record, 1e9)
    return [(one.reason, one.message) for one in found if one.mark is Mark.BLIND and one.warning]


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (PolicySpec("drawdown", {"max_drop": 5.0}), "spec.stopRule.drawdown.maxDrop: "),
        (PolicySpec("drawdown", {"max_drop": 1.0}), "spec.stopRule.drawdown.maxDrop: "),
        (PolicySpec("kDeclines", {"k": 4, "min_delta": 0.3}), "spec.stopRule.kDeclines.minDelta: "),
        (PolicySpec("eProcess", {"min_drop": 1.0}), "spec.stopRule.eProcess.minDrop: "),
    ],
)
def test_a_rule_that_lets_pass_all_that_the_range_has_room_for(rule: PolicySpec, field: str) -> None:
    _, job = running(None, *RISING_AND_FALLING, rule=rule, scale=SHARE)
    (message,) = [message for reason, message in blind(job) if reason == RANGE_TOO_NARROW]
    assert message.startswith(field)
    assert "cannot fall by more than 1" in message
    (found,) = unable_by_spec(job.desired)
    assert found.message == message


@pytest.mark.parametrize(
    ("modifiers", "field", "evals"),
    [
        ((PolicySpec("warmUp", {"min_evals": 90_000}),), "spec.modifiers[0].warmUp.minEvals: ", 90_000),
        (
            (PolicySpec("gate"), PolicySpec("patience", {"evals": 60})),
            "spec.modifiers[1].patience.evals: ",
            63,
        ),
        ((PolicySpec("cooldown", {"evals": 50}),), "spec.modifiers[0].cooldown.evals: ", 51),
        ((PolicySpec("confirm", {"evals": 40}),), "spec.modifiers[0].confirm.evals: ", 44),
    ],
)
def test_a_rule_that_speaks_after_the_last_eval(modifiers, field: str, evals: int) -> None:
    _, job = running(200, *RISING_AND_FALLING, modifiers=modifiers)
    ((reason, message),) = blind(job)
    assert reason == RUN_TOO_SHORT
    assert message.startswith(field)
    assert (
        f"before eval {evals}, and this run has 22 evals at most (200 steps, an eval each 10 steps)"
        in message
    )


def test_a_number_of_the_rule_itself_is_named_where_it_decides() -> None:
    _, job = running(200, *RISING_AND_FALLING, rule=PolicySpec("kDeclines", {"k": 30}))
    assert [message.split(": ")[0] for _, message in blind(job)] == ["spec.stopRule.kDeclines.k"]


@pytest.mark.parametrize("total", [None, 2000])
def test_nothing_is_said_of_a_run_that_may_have_evals_enough(total: int | None) -> None:
    modifiers = (PolicySpec("warmUp", {"min_evals": 150}),)
    _, job = running(total, *RISING_AND_FALLING, modifiers=modifiers)
    assert blind(job) == []
    _, job = running(200, *RISING_AND_FALLING[:3], modifiers=modifiers)
    assert blind(job) == [], "of three evals the distance is not known"


@pytest.mark.parametrize("step", [None, 7, 10_000])
def test_nothing_is_said_where_evals_may_count_something_else_than_steps(step: int | None) -> None:
    """The evals are of steps up to 60: so many samples, say, of a trainer that has made 7 steps."""
    modifiers = (PolicySpec("warmUp", {"min_evals": 150}),)
    world, job = running(200, *RISING_AND_FALLING, modifiers=modifiers)
    assert blind(job)
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, step=step))
    world.step("ns/a")
    assert blind(job) == []


def test_a_page_that_is_not_read_for_once_changes_nothing() -> None:
    world, job = running(200, *RISING_AND_FALLING, modifiers=(PolicySpec("warmUp", {"min_evals": 150}),))
    since = job.record.condition(c.ABLE).since
    for scrape in (None, replace(job.observed.scrape, outcome=ScrapeOutcome.TIMEOUT, points=())):
        job.observed = replace(job.observed, scrape=scrape)
        world.step("ns/a")
        assert job.record.condition(c.ABLE).since == since


def test_a_trainer_that_may_be_asked_for_evals_has_about_as_many_as_so_far() -> None:
    """Those between are for an eval that waits; a rule that is still silent asks for none."""
    modifiers = (PolicySpec("warmUp", {"min_evals": 90}),)
    world, job = running(400, *RISING_AND_FALLING, modifiers=modifiers)
    job.observed = replace(job.observed, scrape=replace(job.observed.scrape, request_served=0))
    world.step("ns/a")
    assert blind(job)


def test_a_rule_that_confirms_may_have_one_at_each_step() -> None:
    modifiers = (PolicySpec("confirm", {"evals": 40}),)
    _, job = running(200, *RISING_AND_FALLING, modifiers=modifiers)
    assert blind(job)
    asked = replace(job.observed.scrape, request_served=0)
    world, job = running(200, *RISING_AND_FALLING, modifiers=modifiers)
    job.observed = replace(job.observed, scrape=asked)
    world.step("ns/a")
    assert blind(job) == []


def test_the_mark_goes_once_the_spec_is_corrected_or_the_range_is_not_believed() -> None:
    wide = PolicySpec("drawdown", {"max_drop": 5.0})
    world, job = running(None, *RISING_AND_FALLING, rule=wide, scale=SHARE)
    assert blind(job)
    world.scores("ns/a", 50.0, 51.0, 52.0, 53.0)  # percent: no score between 0 and 1
    world.settle()
    assert job.record.out_of_range
    assert blind(job) == []
    assert job.record.condition(c.ABLE) is None
    world, job = running(None, *RISING_AND_FALLING, rule=wide, scale=SHARE)
    job.wish(rule=PolicySpec("drawdown", {"max_drop": 0.5}))
    world.step("ns/a")
    assert blind(job) == []
    job.wish(rule=wide)
    world.step("ns/a")
    assert blind(job)
    job.wish(mode=Mode.OFF)
    world.step("ns/a")
    assert blind(job) == []


def test_a_quiet_note_comes_first() -> None:
    _, job = running(None, *RISING_AND_FALLING, rule=PolicySpec("drawdown", {"max_drop": 5.0}), scale=SHARE)
    (found,) = [
        one for one in health(job.record, job.record.condition(c.ABLE).since) if one.mark is Mark.BLIND
    ]
    assert not found.warning
    assert found.due == found.since + job.record.first_eval


def test_guardrails_are_looked_at_in_a_spec() -> None:
    _, job = running(None, *RISING_AND_FALLING)
    guard = Guardrail("tox", PolicySpec("drawdown", {"max_drop": 2.0}), scale=SHARE)
    (found,) = unable_by_spec(replace(job.desired, guardrails=(guard,)))
    assert found.message.startswith("guardrail 'tox': spec.stopRule.drawdown.maxDrop: ")


# -- the bounds themselves: no rule stops before its own, whatever the scores --------------------------------

SMALL = {
    "kDeclines": {"k": 2, "min_delta": 0.1},
    "drawdown": {"max_drop": 0.2, "window": 2},
    "scan": {"window": 1, "threshold": 0.1},
    "glr": {"alpha": 0.5, "window": 1},
    "cusum": {"window": 2, "threshold": 0.01, "allowance": 0.0},
    "eProcess": {"alpha": 0.5},
    "fixedProgress": {"share": 0.01},
    "lossPlateau": {"window": 2, "min_improvement": 0.99},
    "medianOfPeers": {"min_peers": 1, "grace": 2},
}
AROUND = {
    "warmUp": {"min_evals": 6},
    "patience": {"evals": 3},
    "cooldown": {"at_step": 0, "evals": 3},
    "confirm": {"evals": 2, "margin": 0.0},
    "divergence": {},
    "onlyWhenContended": {},
    "gate": {},
}


def falling(rng: random.Random, count: int) -> list[EvalPoint]:
    """Evals that are as bad as may be, with all that any rule looks at."""
    found = []
    for n in range(count):
        score = rng.choice((1.0, 0.0, max(0.0, 1.0 - 0.15 * n), rng.random()))
        point = EvalPoint(
            n + 1,
            score,
            stderr=rng.choice((None, 1e-3)),
            proxy=rng.random(),
            paired=Paired(1, 500, -0.9, 0.01),
            prompts=rng.choice((None, 500)),
        )
        known = {"progress": (n + 1) / count, "loss": 1.0, "peers": Peers(3, 2.0)}
        found.append(EvalInContext.of(point, **known))
    return found


@pytest.mark.parametrize("name", RULES)
def test_no_rule_stops_before_the_eval_that_it_names(name: str) -> None:
    rng = random.Random(name)
    for modifier in ("", *AROUND):
        modifiers = (PolicySpec(modifier, AROUND[modifier]),) if modifier else ()
        rule = make_rule(PolicySpec(name, SMALL[name]), modifiers)
        first = earliest(rule)
        stops = []
        for _ in range(100):
            state = rule.initial()
            for number, point in enumerate(falling(rng, 16), 1):
                state, verdict = rule.observe(state, point)
                if verdict.verb is Verb.STOP:
                    stops.append(number)
                    break
        assert stops, (name, modifier)
        assert min(stops) >= (1 if first is None else first.value), (name, modifier)


@pytest.mark.parametrize(
    "name", [name for name in RULES if hasattr(make_rule(PolicySpec(name)), "lets_pass")]
)
def test_no_rule_stops_a_run_whose_scores_stay_within_what_it_lets_pass(name: str) -> None:
    least = {"kDeclines": "min_delta", "drawdown": "max_drop"}.get(name, "min_drop")
    rng = random.Random(name)
    params = {**SMALL[name], least: 0.5}
    rule = make_rule(PolicySpec(name, params))
    falls = lets_pass(rule)
    assert falls is not None
    assert falls.value == (1.0 if name == "kDeclines" else 0.5)
    factor = falls.value
    for _ in range(200):
        state = rule.initial()
        for point in falling(rng, 16):
            pair = point.paired._replace(mean=max(-factor, point.paired.mean))
            seen = EvalInContext.of(
                point._replace(score=factor * point.score, paired=pair), progress=point.progress
            )
            state, verdict = rule.observe(state, seen)
            assert verdict.verb is not Verb.STOP


def test_every_modifier_is_tried() -> None:
    assert {*AROUND, "graded"} == set(MODIFIERS)
    assert set(SMALL) == set(RULES)


@pytest.mark.parametrize(("strict", "proxy"), [(True, None), (True, 1.0), (False, None)])
def test_a_strict_divergence_without_proxies_is_told(strict: bool, proxy: float | None) -> None:
    """The trainer reported its proxy by progress alone: 44 standard deviations worse, and not stopped."""
    world, job = running(
        None, 0.5, modifiers=(PolicySpec("gate"), PolicySpec("divergence", {"strict": strict}))
    )
    for score in (0.6, 0.58, 0.5, 0.4):
        world.scores("ns/a", score)
        scrape = job.observed.scrape
        points = tuple(p._replace(proxy=proxy) for p in scrape.points)
        job.observed = replace(job.observed, scrape=replace(scrape, points=points))
        world.step("ns/a")
    told = [message for reason, message in blind(job) if reason == "ProxyUnknown"]
    assert bool(told) is (strict and proxy is None)
    assert all(one.startswith("spec.modifiers[1].divergence.strict: ") for one in told)


def test_a_strict_divergence_whose_proxy_never_changes_is_told() -> None:
    """A reward that was never computed, 1.0 with each eval: 200 standard deviations worse, not stopped."""
    for proxies, told in ([1.0] * 8, True), ([1.0] * 7, False), ([1.0] * 7 + [1.5], False):
        world, job = running(
            None, 0.5, modifiers=(PolicySpec("gate"), PolicySpec("divergence", {"strict": True}))
        )
        for i, proxy in enumerate(proxies):
            world.scores("ns/a", 0.5 + 0.01 * i)
            scrape = job.observed.scrape
            points = (*scrape.points[:-1], scrape.points[-1]._replace(proxy=proxy))
            job.observed = replace(job.observed, scrape=replace(scrape, points=points))
            world.step("ns/a")
        found = [message for reason, message in blind(job) if reason == "ProxyUnknown"]
        assert bool(found) is told
        assert all("it is 1 in all of the last 8 evals, as if never computed" in one for one in found)


def reporting(
    stderr: float | list[float], scores: list[float], samples: list[int] | None = None
) -> tuple[Job, list[Verdict | None]]:
    """A run under the default rule that reports such standard errors, and its verdict on each eval."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a", rule=PolicySpec("scan", {"alpha": 0.04}), modifiers=(PolicySpec("gate"),))
    world.settle()
    world.scores("ns/a", scores[0])
    errors = stderr if isinstance(stderr, list) else [stderr] * len(scores)
    first, kept, verdicts = job.observed.scrape.points[-1], (), []
    for i, score in enumerate(scores):
        point = first._replace(
            step=first.step + 10 * i,
            score=score,
            stderr=errors[i],
            samples=(samples or [500] * len(scores))[i],
        )
        kept = (*kept, point)[-8:]
        world.now += 10.0
        job.observed = replace(job.observed, scrape=replace(job.observed.scrape, points=kept, at=world.now))
        world.step("ns/a")
        verdicts.append(job.record.rule.verdict)
    return job, verdicts


def test_standard_errors_by_far_larger_than_the_scatter_are_told() -> None:
    """The standard deviation in place of it: a fall of 60 % was no reason to stop, and all seemed well."""
    draw = random.Random(22)
    falls = [0.6 + 0.025 * min(i, 8) - 0.02 * max(0, i - 8) + draw.gauss(0.0, 0.01) for i in range(30)]
    job, _ = reporting(0.45, falls)
    ((reason, message),) = blind(job)
    assert reason == "StderrTooLarge"
    assert "standard errors of about 0.45" in message


def test_what_is_told_of_standard_errors_stays_while_it_is_about_so() -> None:
    """By errors about eight times the scatter it came and went at every other eval, each time with an Event,
    so that two looks a few seconds apart disagreed."""
    for seed in range(4):
        draw = random.Random(seed)
        world = PolicyWorld({"n1": 1})
        job = world.submit("ns/a", rule=PolicySpec("scan", {"alpha": 0.04}))
        world.settle()
        told, events = [], 0
        for _ in range(90):
            world.scores("ns/a", 0.6 + draw.gauss(0.0, 0.01))
            scrape = job.observed.scrape
            points = tuple(p._replace(stderr=0.08) for p in scrape.points)
            job.observed = replace(job.observed, scrape=replace(scrape, points=points))
            world.step("ns/a")
            told.append("StderrTooLarge" in {one.reason for one in health(job.record, world.now)})
            events += sum(one.reason == "StderrTooLarge" for one in job.plan.events)
        assert sum(before != after for before, after in pairwise(told)) <= 1, told
        assert events == 1


def test_of_a_rule_that_asks_for_a_stop_nobody_says_that_hardly_any_fall_is_large_enough() -> None:
    """Its evals were as good as without noise: it stood at 44 of 4, and "Blind" beside it."""
    job, verdicts = reporting(
        0.01, [0.5 + 0.02 * i for i in range(10)] + [0.68 - 0.02 * i for i in range(20)]
    )
    assert verdicts[-1].verb is Verb.STOP
    assert blind(job) == []


def test_standard_errors_by_far_smaller_than_the_scatter_stop_nothing() -> None:
    """sd / n in place of sd / root n: each chance fall looked like 20 standard deviations. Six evals tell."""
    stopped = 0
    for seed in range(10):
        draw = random.Random(seed)
        job, verdicts = reporting(0.0009, [0.5 + draw.gauss(0.0, 0.02) for _ in range(40)])
        told = [one.warning for one in health(job.record, 1e9) if one.reason == "StderrTooSmall"]
        assert told == [False]
        stopped += any(one is not None and one.verb is Verb.STOP for one in verdicts[6:])
    assert stopped == 0


def test_an_eval_of_few_samples_that_is_dropped_is_told_as_that() -> None:
    scores = [0.5 + 0.01 * i for i in range(6)]
    job, _ = reporting([0.01] * 5 + [0.2], scores, samples=[500] * 5 + [4])
    declining = next(one for one in job.record.conditions if one.type == "QualityDeclining")
    assert declining.message.endswith("dropped, too imprecise: step 60")
    assert blind(job) == []


@pytest.mark.parametrize("coarse", [2, 6])
def test_an_eval_of_few_samples_that_counts_all_the_same_blinds(coarse: int) -> None:
    """The first evals were all like it: by their error each later fall is measured, so all seemed well."""
    scores = [0.5 + 0.01 * i for i in range(20)]
    errors, samples = [0.25] * coarse + [0.01] * (20 - coarse), [4] * coarse + [5000] * (20 - coarse)
    job, _ = reporting(errors, scores, samples=samples)
    ((reason, message),) = blind(job)
    assert reason == "EvalImprecise"
    assert "an eval with a standard error of 0.25 (of 4 samples) counts, 25 times that of most" in message
