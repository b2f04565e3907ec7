"""Guardrails: the shared budget, verdicts put together, their memory, and a job that one of them stops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy import decision_log
from controller.policy.job import conditions as c
from controller.policy.job import guardrails as job_guardrails
from controller.policy.job import plan as job_plan
from controller.policy.job.marks import Mark, health
from controller.policy.job.plan import plan_job
from controller.policy.job.record import Decision, Guard, Operation, RuleRecord
from controller.policy.job.types import (
    Direction,
    Guardrail,
    MetricPoints,
    ProxyMetric,
    ResumeFrom,
    ResumeRequest,
)
from controller.policy.stopping import RULES, make_rule
from controller.policy.stopping.guardrails import Guarded, shared, together
from controller.policy.types import (
    Attempt,
    EvalInContext,
    EvalPoint,
    Grade,
    Mode,
    Paired,
    PolicySpec,
    Proposal,
    Verb,
    Verdict,
)
from tests.support.policy_world import PolicyWorld

K2 = PolicySpec("kDeclines", {"k": 2})
K3 = PolicySpec("kDeclines", {"k": 3})


@pytest.mark.parametrize(
    ("spec", "metrics", "expected"),
    [
        (PolicySpec("glr", {"alpha": 0.06}), 3, {"alpha": 0.02}),
        (PolicySpec("glr", {"alpha": 0.06}), 1, {"alpha": 0.06}),
        (PolicySpec("eProcess"), 5, {"alpha": 0.005}),  # of the default, .025
        (K2, 4, {"k": 2}),
        (PolicySpec("nobody", {"alpha": 1.0}), 4, {"alpha": 1.0}),  # refused elsewhere, by name
        (PolicySpec("glr", {"alpha": "x"}), 4, {"alpha": "x"}),
    ],
)
def test_the_budget_is_shared(spec: PolicySpec, metrics: int, expected: dict) -> None:
    found = shared(spec, metrics, RULES)
    assert found.name == spec.name
    assert found.params == pytest.approx(expected) if "x" not in spec.params.values() else found == spec


def verdict(verb: Verb, reason: str = "R", e: float | None = None, grade: Grade | None = None) -> Verdict:
    return Verdict(verb, reason, 1.0, 2.0, e, False, grade)


GO, ASK, STOP = verdict(Verb.CONTINUE), verdict(Verb.CONFIRM), verdict(Verb.STOP)


@pytest.mark.parametrize(
    ("verdicts", "metric", "verb"),
    [
        ([("", GO)], "", Verb.CONTINUE),
        ([("", GO), ("a", GO)], "", Verb.CONTINUE),
        ([("", GO), ("a", STOP), ("b", STOP)], "a", Verb.STOP),
        ([("", STOP), ("a", STOP)], "", Verb.STOP),
        ([("", ASK), ("a", STOP)], "a", Verb.STOP),
        ([("", GO), ("a", ASK)], "a", Verb.CONFIRM),
        ([("", GO), ("a", verdict(Verb.CONTINUE, grade=Grade.DEMOTED))], "a", Verb.CONTINUE),
    ],
)
def test_any_of_them_can_ask(verdicts: list, metric: str, verb: Verb) -> None:
    found, whole = together(verdicts)
    assert (found, whole.verb) == (metric, verb)


def test_the_gravest_grade_and_the_mean_of_the_evidence_are_the_run_s() -> None:
    demoted, warned = (verdict(Verb.CONTINUE, e=9.0, grade=g) for g in (Grade.DEMOTED, Grade.WARNED))
    stop = verdict(Verb.STOP, e=30.0)
    _, whole = together([("", warned), ("a", demoted), ("b", stop)])
    assert (whole.verb, whole.grade, whole.e_value) == (Verb.STOP, Grade.DEMOTED, 16.0)
    assert together([("", warned), ("a", GO)])[1].e_value is None  # one of them yields none


def test_a_metric_without_an_eval_counts_as_one_in_the_mean() -> None:
    stop = verdict(Verb.STOP, e=30.0)
    assert together([("", stop)], 3)[1].e_value == pytest.approx((30.0 + 1.0 + 1.0) / 3)
    assert together([("", stop), ("a", verdict(Verb.CONTINUE, e=0.0))], 3)[1].e_value == pytest.approx(31 / 3)
    assert together([("", GO)], 3)[1].e_value is None
    made = Guarded(make_rule(PolicySpec("eProcess")), {"a": make_rule(PolicySpec("eProcess"))})
    paired = Paired(0, 400, 0.5, 0.01)
    seen = EvalPoint(1, 0.5, paired=paired)
    _, found = made.observe(made.initial(), seen)
    _, alone = make_rule(PolicySpec("eProcess")).observe(make_rule(PolicySpec("eProcess")).initial(), seen)
    assert found.e_value == pytest.approx((alone.e_value + 1.0) / 2)


def test_the_run_s_evidence_weighs_guardrails_that_were_not_seen_yet() -> None:
    w = world(SAFETY, rule=PolicySpec("eProcess"))
    record_before = replace(
        record(w), rule=RuleRecord("eProcess", 1, "h", (), (), verdict(Verb.CONTINUE, e=21.0))
    )
    found = job_guardrails.joint_verdict(record_before, w.jobs["ns/a"].desired)
    assert found is not None
    assert found[1].e_value == pytest.approx(11.0)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=5), st.floats(1e-3, 0.5))
def test_a_stop_at_its_share_of_alpha_carries_the_evidence_for_the_whole(
    es: list[float], alpha: float
) -> None:
    """Some e_i reaches m / alpha; then the mean reaches 1 / alpha."""
    es[0] = len(es) / alpha
    _, whole = together([(str(i), verdict(Verb.CONTINUE, e=e)) for i, e in enumerate(es)])
    assert whole.e_value is not None
    assert whole.e_value >= 1 / alpha * (1 - 1e-12)


def test_the_shared_budget_holds_whatever_the_metrics_have_in_common() -> None:
    """GLR at alpha = .2 over three metrics of a flat run: independent, equal, or opposite noise."""
    whole, runs, evals = 0.2, 400, 25
    rule = shared(PolicySpec("glr", {"alpha": whole, "horizon": evals}), 3, RULES)
    for kind in ("independent", "equal", "opposite"):
        rng = random.Random(7)
        stopped = 0
        for _ in range(runs):
            made = Guarded(make_rule(rule), {"a": make_rule(rule), "b": make_rule(rule)})
            state, hit = made.initial(), False
            for step in range(evals):
                x = rng.gauss(0, 1)
                a, b = {
                    "independent": (rng.gauss(0, 1), rng.gauss(0, 1)),
                    "equal": (x, x),
                    "opposite": (-x, x),
                }[kind]
                point = EvalInContext.of(EvalPoint(step, x, stderr=1.0), others={"a": a, "b": b})
                state, found = made.observe(state, point)
                hit = hit or found.verb is Verb.STOP
            stopped += hit
        # 95 % of the time a rate of exactly .2 gives at most 93 of 400.
        assert stopped <= 93, kind


def test_all_rules_as_one_name_the_guardrail_that_fell() -> None:
    made = Guarded(make_rule(K3), {"safety": make_rule(K2)})
    state, reasons = made.initial(), []
    for step, (score, safety) in enumerate([(1, 9), (2, 8), (3, None), (4, 7), (5, 9)]):
        others = {} if safety is None else {"safety": float(safety)}
        state, found = made.observe(state, EvalInContext.of(EvalPoint(step, float(score)), others=others))
        reasons.append(found.reason)
    assert reasons[3] == "GuardrailConsecutiveDeclines"
    assert "Guardrail" not in "".join(reasons[:3] + reasons[4:])


# --- in a job --------------------------------------------------------------------------------------------

SAFETY = Guardrail("safety", K2)
TOXICITY = Guardrail("toxicity", K2, Direction.MINIMIZE)


def world(*guardrails: Guardrail, **spec) -> PolicyWorld:
    found = PolicyWorld({"n1": 1})
    found.submit("ns/a", guardrails=guardrails, **{"rule": K3, **spec})
    found.settle()
    return found


def evals(found: PolicyWorld, gold: list[float], started: int = 1, **others: list[float]) -> None:
    """The trainer's whole window: every metric's scores at steps 10, 20, …"""
    job = found.jobs["ns/a"]
    life = Attempt(job.record.attempt, str(started))
    job.checkpoints |= {10 * (i + 1) for i in range(len(gold))}

    def window(scores: list[float]) -> tuple[EvalPoint, ...]:
        return tuple(EvalPoint(10 * (i + 1), s, life) for i, s in enumerate(scores))

    beside = tuple(MetricPoints(name, window(scores)) for name, scores in others.items())
    found.scrape("ns/a", points=window(gold), checkpoint_step=10 * len(gold), others=beside)
    for _ in range(4):
        found.step("ns/a")


def record(found: PolicyWorld):
    return found.jobs["ns/a"].record


def guard(found: PolicyWorld, metric: str) -> Guard:
    return next(g for g in record(found).guards if g.metric == metric)


def test_a_guardrail_that_falls_stops_a_run_whose_score_still_rises() -> None:
    w = world(SAFETY, TOXICITY)
    evals(w, [1, 2, 3], safety=[0.9, 0.8], toxicity=[0.1, 0.2])
    assert record(w).condition(c.GUARDRAILS).status
    w.settle()
    assert record(w).decision is None
    evals(w, [1, 2, 3, 4], safety=[0.9, 0.9, 0.9], toxicity=[0.1, 0.2, 0.3])
    held = record(w).condition(c.GUARDRAILS)
    assert (held.status, held.reason) == (False, "Failing")
    assert held.message == "guardrail 'toxicity', kDeclines: 2 of 2 at step 30"
    w.settle()
    decision = record(w).decision
    assert decision is not None
    assert (decision.by, decision.proposal.metric, decision.proposal.step) == ("kDeclines", "toxicity", 30)
    assert decision.proposal.best_step == 40  # the best by the Primary metric is kept
    assert w.jobs["ns/a"].kept == {40}
    assert "guardrail 'toxicity'" in decision.message


def test_each_eval_of_a_guardrail_counts_once() -> None:
    w = world(SAFETY)
    for _ in range(5):
        evals(w, [1, 2], safety=[0.9, 0.8])
    assert guard(w, "safety").state == (0.8, 1)
    evals(w, [1, 2], safety=[0.9, 0.8, float("nan"), 0.85])
    assert guard(w, "safety").state == (0.85, 0)


def test_a_guardrail_that_is_not_exported_is_told_and_stops_nothing() -> None:
    w = world(SAFETY)
    evals(w, [1, 2, 3])
    held = record(w).condition(c.GUARDRAILS)
    assert (held.status, held.reason) == (False, "NoEvalsYet")
    assert "'safety'" in held.message
    job = w.jobs["ns/a"]
    job.wish(guardrails=(replace(SAFETY, index=1),))
    scrape = job.observed.scrape
    job.observed = replace(
        job.observed, scrape=replace(scrape, metrics_seen=("gold", "gold_safety", "other"))
    )
    w.step("ns/a")
    assert record(w).condition(c.GUARDRAILS).message == (
        "spec.metrics[1]: no eval of guardrail 'safety' is exported; others on its page: gold_safety, other; "
        "did you mean 'gold_safety'?"
    )
    w.settle()
    assert record(w).decision is None


@pytest.mark.parametrize("left", [(), (float("nan"),) * 5])
def test_a_guardrail_whose_evals_come_no_more_is_not_said_to_hold(left: tuple[float, ...]) -> None:
    w = world(replace(SAFETY, index=1))
    safety = [0.9, 0.9]
    evals(w, [1, 2, 3, 4], safety=[*safety, *left[:2]])
    assert record(w).condition(c.GUARDRAILS).status  # it may come a little later than the Primary metric's
    evals(w, [1, 2, 3, 4, 5], safety=[*safety, *left[:3]])
    held = record(w).condition(c.GUARDRAILS)
    assert (held.status, held.reason) == (False, "NoNewEvals")
    assert held.message == (
        "spec.metrics[1]: no eval of guardrail 'safety' that counts has come since step 20, in 3 and more of "
        "'gold', and one of its own usually comes each 10 steps: it stops nothing"
    )
    (found,) = health(record(w), w.now)
    assert (found.mark, found.reason, found.warning) == (Mark.BLIND, "GuardrailNotJudged", False)
    assert found.cure().filled("a", "ns", "p", "", found.message).command == (
        "kubectl logs -n ns -l evalstop.dev/job=a"
    )
    (found,) = health(record(w), w.now + record(w).first_eval)
    assert found.warning
    told = record(w).conditions
    evals(w, [1, 2, 3, 4, 5, 6], safety=[*safety, *left[:4]])
    assert record(w).condition(c.GUARDRAILS) in told, "it is told once"
    evals(w, [1, 2, 3, 4, 5, 6, 7], safety=[*safety, *[float("nan")] * 4, 0.9])
    assert record(w).condition(c.GUARDRAILS).status, "a scorer that is back is judged again"


def test_a_guardrail_that_fell_and_is_heard_of_no_more_stops_nobody_in_the_next_process_either() -> None:
    """Its evals that came no more were counted in its own process alone: the next one could go on for good,
    and be stopped by that fall."""
    w = world(SAFETY, modifiers=(PolicySpec("onlyWhenContended"),))
    evals(w, [1, 2, 3], safety=[0.9, 0.8, 0.7])
    job = w.jobs["ns/a"]
    assert job.plan.proposal is not None
    for count in (1, 2, 3):
        later = Attempt(1, "50")
        points = tuple(EvalPoint(30 + 10 * n, 3.0 + n, later) for n in range(1, count + 1))
        job.checkpoints |= {point.step for point in points}
        w.scrape("ns/a", points=points, checkpoint_step=points[-1].step, resumed_step=30)
        w.step("ns/a")
        w.settle()
        assert (job.plan.proposal is None) is (count == 3)
    target = record(w).condition(c.TERMINATION)
    assert (target.status, target.reason) == (False, "VerdictOutdated")
    assert "3 evals of 'gold' came after its newest, at step 30" in target.message


def seldom(found: PolicyWorld, evals: int, every: int, safety: list[float], passes: int = 2) -> None:
    """The trainer's whole window after so many evals, that of ``safety`` at each ``every``-th; and passes."""
    job = found.jobs["ns/a"]
    life = Attempt(job.record.attempt, "1")
    gold = tuple(EvalPoint(10 * n, 10.0 if n == 1 else 9.0 + n % 2 / 10, life) for n in range(1, evals + 1))
    there = [score for n, score in enumerate(safety, 1) if n * every <= evals]
    points = tuple(EvalPoint(10 * every * n, score, life) for n, score in enumerate(there, 1))
    job.checkpoints |= {10 * n for n in range(1, evals + 1)}
    others = (MetricPoints("safety", points),) if points else ()
    found.scrape("ns/a", points=gold[-32:], checkpoint_step=10 * evals, others=others)
    for _ in range(passes):
        found.step("ns/a")
        found._cluster(job)
        found.pool_pass()


DROP = Guardrail("safety", PolicySpec("drawdown", {"max_drop": 0.2, "window": 1}))
PATIENT = PolicySpec("drawdown", {"max_drop": 50.0})


@pytest.mark.parametrize(
    ("every", "safety", "copied", "reason"),
    [
        (8, [0.9, 0.9, 0.3], 34, None),  # the copy lasts for ten evals
        (8, [0.9, 0.9, 0.3], 31, None),
        (8, [0.9, 0.3], 26, None),
        (1, [0.9] * 23 + [0.3], 34, None),  # its scorer died while the copy was made: nothing says otherwise
        (8, [0.9, 0.9, 0.3, 0.9], 34, "NoLongerDeclining"),
    ],
)
def test_a_stop_on_a_guardrail_that_is_scored_seldom_outlives_its_copy(
    every: int, safety: list[float], copied: int, reason: str | None
) -> None:
    """Three evals after the guardrail's newest each such stop was taken back, for good."""
    w = world(DROP, rule=PATIENT)
    job = w.jobs["ns/a"]
    w.slow = frozenset({Operation.RETAIN})
    for count in range(1, copied + 1):
        seldom(w, count, every, safety)
        if count == every * len(safety) and reason is None:
            decided = record(w).decision
            assert decided is not None
            assert decided.proposal.metric == "safety"
    w.slow = frozenset()
    ended = [v if v.finished else w._access(job, w.asked[v.request_id]) for v in job.observed.access]
    job.observed = replace(job.observed, access=tuple(ended))
    for _ in range(4):
        seldom(w, copied, every, safety)
    assert job.observed.workload.suspended is (reason is None)
    if reason is not None:
        assert record(w).taken_back.reason == reason


@pytest.mark.parametrize(
    ("every", "safety", "late"),
    [
        (1, [0.9] * 5, 8),  # as ever: with the third
        (8, [0.9], 11),  # how often it comes is not known yet
        (8, [0.9, 0.9], 33),
        (2, [0.9, 0.9], 9),
        (20, [0.9, 0.9], 81),  # more than the status keeps of the Primary metric
    ],
)
def test_a_guardrail_is_late_by_its_own_usual_distance(every: int, safety: list[float], late: int) -> None:
    """One that is scored at each tenth eval was late most of its time."""
    w = world(replace(DROP, index=1), rule=PATIENT, modifiers=(PolicySpec("onlyWhenContended"),))
    for count in range(1, late):
        seldom(w, count, every, safety, passes=1)
        held = record(w).condition(c.GUARDRAILS)
        if count >= every * len(safety):
            assert held.reason == "Holding", count
    seldom(w, late, every, safety, passes=1)
    held = record(w).condition(c.GUARDRAILS)
    often = f", and one of its own usually comes each {10 * every} steps" if len(safety) > 1 else ""
    assert (held.status, held.reason, held.message) == (
        False,
        "NoNewEvals",
        f"spec.metrics[1]: no eval of guardrail 'safety' that counts has come since step "
        f"{10 * every * len(safety)}, in 3 and more of 'gold'{often}: it stops nothing",
    )
    (found,) = health(record(w), w.now)
    assert (found.mark, found.reason) == (Mark.BLIND, "GuardrailNotJudged")


def test_a_guardrail_that_fell_and_whose_scorer_died_proposes_nothing_once_it_is_late() -> None:
    w = world(DROP, rule=PATIENT, modifiers=(PolicySpec("onlyWhenContended"),))
    job = w.jobs["ns/a"]
    for count in range(1, 34):
        seldom(w, count, 8, [0.9, 0.3])
        assert (job.plan.proposal is not None) is (16 <= count < 33), count
    target = record(w).condition(c.TERMINATION)
    assert (target.status, target.reason) == (False, "VerdictOutdated")
    assert target.message.endswith(
        "guardrail 'safety' is out of date: 17 evals of 'gold' came after its newest, at step 160, and one "
        "of its own usually comes each 80 steps"
    )
    later = w.now + 3 * record(w).first_eval
    cure = next(f for f in health(record(w), later) if f.reason == "VerdictOutdated").cure()
    assert "its verdict ages by the usual distance of its own evals" in cure.text


def test_a_guardrail_that_is_scored_no_more_does_not_hide_another_that_falls() -> None:
    """It asked first, proposed nothing for its age, and the other was not heard."""
    w = world(SAFETY, TOXICITY, modifiers=(PolicySpec("onlyWhenContended"),))
    job = w.jobs["ns/a"]
    toxicity, proposed = [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.3], []
    for count in range(3, 8):
        evals(w, list(range(1, count + 1)), safety=[0.9, 0.8, 0.7], toxicity=toxicity[:count])
        proposed.append(job.plan.proposal.metric if job.plan.proposal else None)
    assert proposed == ["safety", "safety", "safety", None, "toxicity"]
    assert job.plan.proposal.step == 70
    former = Proposal(30, 30, "ConsecutiveDeclines", 2.0, 2.0, metric="safety")
    for mode, speaks in ((Mode.ENFORCE, "safety"), (Mode.SHADOW, "toxicity")):
        under_way = replace(record(w), decision=Decision("kDeclines", mode, former, "", w.now))
        (metric, _) = job_guardrails.joint_verdict(under_way, job.desired)
        assert metric == speaks, "what a stop was granted on stands while its copy is made"
    held = record(w).condition(c.GUARDRAILS)
    assert (held.status, held.reason) == (False, "Failing")
    assert "'safety'" in held.message
    assert "'toxicity'" in held.message


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(80, "1")], ()),
        ([(80, "1"), (160, "1"), (240, "1")], (80, 80)),
        ([(80, "1"), (160, "2")], (80,)),  # the next process went on from there, or later
        ([(80, "1"), (160, "1"), (140, "2"), (220, "2")], (80, 80)),  # it went back: no distance is seen
        ([(10 * n, "1") for n in range(9)], (10,) * 5),
    ],
)
def test_the_distance_of_a_guardrail_s_evals_is_seen(steps: list, expected: tuple[int, ...]) -> None:
    w = world(DROP, rule=PATIENT)
    for number, (step, life) in enumerate(steps):
        points = (EvalPoint(step, 0.9, Attempt(1, life)),)
        began = number and steps[number - 1][1] != life
        resumed = min(step - 1, steps[number - 1][0]) if began else 0
        w.scrape(
            "ns/a",
            points=points,
            checkpoint_step=step,
            resumed_step=resumed,
            others=(MetricPoints("safety", points),),
        )
        w.step("ns/a")
    assert guard(w, "safety").apart == expected


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (PolicySpec("eProcess"), "NoPairedDifferences"),
        (PolicySpec("lossPlateau"), "LossUnknown"),
        (PolicySpec("fixedProgress"), "ProgressUnknown"),
        (PolicySpec("medianOfPeers"), "TooFewPeers"),
        (  # five evals that do not scatter show no noise
            PolicySpec("scan"),
            "NoiseUnknown, it would see with prompts and range (or preset) of the metric, or a standard "
            "error of each eval (rlhf_eval_score_stderr)",
        ),
    ],
)
def test_a_guardrail_whose_rule_sees_nothing_is_not_said_to_hold(rule: PolicySpec, reason: str) -> None:
    w = world(Guardrail("safety", rule))
    evals(w, [1.0, 2.0, 3.0, 4.0, 5.0], safety=[0.5] * 5)
    held = record(w).condition(c.GUARDRAILS)
    assert (held.status, held.reason) == (False, "NotJudged")
    assert held.message == f"guardrail 'safety' is not judged by its eval at step 50: {reason}"
    w.settle()
    assert record(w).decision is None


def test_a_guardrail_that_fails_is_told_before_one_that_sees_nothing() -> None:
    w = world(Guardrail("blind", PolicySpec("eProcess")), TOXICITY)
    evals(w, [1, 2, 3, 4], blind=[0.5] * 4, toxicity=[0.1, 0.2, 0.3, 0.4])
    assert record(w).condition(c.GUARDRAILS).reason == "Failing"


def test_a_new_life_from_an_earlier_step_begins_the_guardrail_anew() -> None:
    w = world(SAFETY)
    evals(w, [1, 2, 3], safety=[0.9, 0.9, 0.8])
    assert guard(w, "safety").state == (0.8, 1)
    job = w.jobs["ns/a"]
    later = Attempt(1, "50")
    points = (EvalPoint(30, 3.0, later),)
    safe = (MetricPoints("safety", (EvalPoint(30, 0.7, later),)),)
    w.scrape("ns/a", points=points, checkpoint_step=30, others=safe, resumed_step=20)
    w.step("ns/a")
    assert guard(w, "safety").state == (0.7, 0)  # the fall from .8 is of a branch that was left
    assert guard(w, "safety").attempt == later
    assert job.record.decision is None


def test_a_new_life_from_where_the_old_one_ended_goes_on() -> None:
    w = world(SAFETY)
    evals(w, [1, 2], safety=[0.9, 0.8])
    later = Attempt(1, "50")
    safe = (MetricPoints("safety", (EvalPoint(30, 0.7, later),)),)
    w.scrape("ns/a", points=(EvalPoint(30, 3.0, later),), checkpoint_step=30, others=safe, resumed_step=20)
    w.step("ns/a")
    assert guard(w, "safety").state == (0.7, 2)


def test_going_on_past_a_guardrail_s_stop_is_the_user_s_will() -> None:
    w = world(SAFETY)
    evals(w, [1, 2, 3, 4], safety=[0.9, 0.9, 0.8, 0.7])
    w.settle()
    job = w.jobs["ns/a"]
    assert job.record.decision is not None
    job.wish(resume=ResumeRequest("again", ResumeFrom.LATEST))
    w.settle()
    assert job.record.decision is None
    assert guard(w, "safety").verdict is None
    assert c.DECLINING not in {x.type for x in job.record.conditions if x.status}


def test_other_parameters_begin_a_guardrail_anew_and_a_removed_one_is_forgotten() -> None:
    w = world(SAFETY, TOXICITY)
    evals(w, [1, 2], safety=[0.9, 0.8], toxicity=[0.1, 0.1])
    job = w.jobs["ns/a"]
    job.wish(guardrails=(Guardrail("safety", K3),))
    evals(w, [1, 2, 3], safety=[0.9, 0.8, 0.7], toxicity=[0.1, 0.1, 0.1])
    assert [g.metric for g in job.record.guards] == ["safety"]
    assert guard(w, "safety").state == (0.7, 0)


def test_a_guardrail_whose_direction_is_corrected_begins_anew() -> None:
    """What was a fall is a rise: memory of the one direction says nothing about scores of the other."""
    w = world(replace(TOXICITY, direction=Direction.MAXIMIZE))
    evals(w, [1, 2], toxicity=[0.3, 0.2])
    job = w.jobs["ns/a"]
    job.wish(guardrails=(TOXICITY,))
    evals(w, [1, 2, 3], toxicity=[0.3, 0.2, 0.1])
    assert guard(w, "toxicity").state == (-0.1, 0)
    assert job.record.decision is None
    evals(w, [1, 2, 3, 4, 5], toxicity=[0.3, 0.2, 0.1, 0.4, 0.5])
    w.settle()
    assert job.record.decision is not None, "and by its own direction it falls"


def test_modifiers_hold_guardrails_too_but_for_those_that_look_at_more_than_scores() -> None:
    warm = PolicySpec("warmUp", {"min_evals": 5})
    w = world(SAFETY, modifiers=(PolicySpec("divergence"), warm))
    evals(w, [1, 2, 3, 4], safety=[0.9, 0.8, 0.7, 0.6])
    verdict = guard(w, "safety").verdict
    assert verdict is not None
    assert (verdict.verb, verdict.reason) == (Verb.CONTINUE, "WarmingUp")
    evals(w, [1, 2, 3, 4, 5], safety=[0.9, 0.8, 0.7, 0.6, 0.5])
    assert guard(w, "safety").verdict.verb is Verb.STOP


def test_the_proxy_of_an_eval_comes_from_the_metric_of_that_role_for_the_same_step_only() -> None:
    w = world(proxy=ProxyMetric("reward", Direction.MINIMIZE))
    evals(w, [1, 2, 3], reward=[5, 6])
    assert [p.proxy for p in record(w).evals] == [-5, -6, None]


def test_every_plan_of_such_a_story_replays_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that acts by standing verdicts: what is remembered of it is in the log, and reads back."""
    lines: list[str] = []
    decide = plan_job

    def logged(desired, observed, known, now):
        planned = decide(desired, observed, known, now)
        lines.append(decision_log.job_line(desired, observed, known, now, planned))
        return planned

    warned = PolicySpec("graded", {"demote_at": 0.0})
    modifiers = (PolicySpec("confirm"), warned, PolicySpec("onlyWhenContended"))
    with monkeypatch.context() as patch:
        patch.setattr(job_plan, "plan_job", logged)
        w = world(SAFETY, TOXICITY, modifiers=modifiers)
        w.submit("ns/b")
        for n in range(2, 7):
            evals(w, [1, 2, 3, 4, 5, 6][:n], safety=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4][:n], toxicity=[0.1] * n)
            w.settle()
    assert record(w).decision is not None
    assert record(w).past_grades is not None
    assert [r.line for r in decision_log.replay(lines) if not r.same] == []
    assert len(lines) > 50


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8), st.floats(0, 1)), max_size=20),
    st.integers(0, 80),
)
@settings(max_examples=100)
def test_what_is_rewound_is_never_ahead_of_the_step(points: list, step: int) -> None:
    guards = tuple(
        Guard(f"m{i}", 10 * at, Attempt(number, "1"), score, "h", (score, 1), verdict(Verb.STOP))
        for i, (number, at, score) in enumerate(points)
    )
    for before, after in zip(guards, job_guardrails.rewind(guards, step, {}), strict=True):
        assert after.step <= step
        assert after == before or (before.step > step and after.state == () and after.verdict is None)
