"""Consequences of a running job's verdicts: an Event, a demotion, a confirming eval, a proposal to stop.

The verdicts are those of the Primary metric's rule and of the guardrails', put together (`guarding`). Each
grade is a condition with its evidence: QualityDeclining, Demoted, TerminationTarget. In Shadow nothing is
done; what acting would have saved at most is counted.
"""

from __future__ import annotations

from dataclasses import replace

from controller.names import METRIC_EVAL_STDERR
from controller.policy.job import conditions as c
from controller.policy.job import (
    fresh_evals,
    guardrails,
    imprecise,
    lives,
    step_counts,
    trainer_requests,
    verdict_age,
)
from controller.policy.job.bests import keepable
from controller.policy.job.context import PlanContext
from controller.policy.job.marks import LACKS
from controller.policy.job.record import Decision, Guard, JobRecord, Outcome, PastGrades
from controller.policy.job.rule_in_use import RuleInUse, made_under
from controller.policy.job.service import attained
from controller.policy.job.types import Desired, ScrapeOutcome
from controller.policy.stopping.gate import WAITS
from controller.policy.stopping.graded import Graded, share
from controller.policy.types import EvalPoint, EvalScale, Grade, Mode, Problem, Proposal, Verb, Verdict
from controller.policy.wording import did_you_mean, nearest, statistic

# Reasons of verdicts that say nothing, for want of what the rule looks at besides the score.
BLIND = LACKS | {WAITS}


def judge(context: PlanContext, use: RuleInUse) -> Proposal | None:
    """Return the standing verdict as a proposal, if the job may be stopped now.

    Without the best checkpoint secured there is no proposal: the condition says so, and the next pass
    looks again. In Shadow the first verdict is recorded as a decision that nobody carries out.
    """
    record = context.record
    proposal = stands(context, use)
    if proposal is None:
        _forget_would_stop(context)
        return None
    if (outdated := verdict_age.problem(context, proposal.metric)) is not None:
        reason, why = outdated
        context.conditions.set(c.TERMINATION, False, reason, f"nothing is proposed: {why}")
        return None
    if context.desired.mode is Mode.SHADOW:
        if record.decision is None:
            numbers = verdict_numbers(record, use, proposal.metric)
            by = _by(use, proposal.metric)
            context.update(decision=Decision(by, Mode.SHADOW, proposal, numbers, context.now))
        when = " when others wait for its GPUs" if proposal.when_contended else ""
        message = f"would be stopped{when}; mode is Shadow, nothing is touched"
        context.conditions.set(c.TERMINATION, False, "Shadow", message)
        return None
    if record.sparing is not None and record.spared is not None:
        message = (
            f"would be stopped ({verdict_numbers(record, use, proposal.metric)}), but it was resumed for "
            f"{record.sparing.evals} evals without a stop, of which {record.spared} are left"
        )
        context.conditions.set(c.TERMINATION, False, "Spared", message)
        return None
    if (problem := unsafe(context)) is not None:
        context.conditions.set(c.TERMINATION, False, *problem, warning=True)
        return None
    return proposal


def _forget_would_stop(context: PlanContext) -> None:
    """Forget a stop that Shadow would have made, once the rule no longer says so and it is of no more use.

    The run has refuted it, or is in Enforce by now. What became of it stays (`outcome`); the next one is told
    anew.
    """
    record, decision = context.record, context.record.decision
    if decision is None or decision.mode is not Mode.SHADOW:
        return
    found = guardrails.joint_verdict(record, context.desired)
    if found is None or found[1].verb is not Verb.CONTINUE:
        return
    if _refuted(record, decision):
        why = "a later eval beats the best that the stop would have kept"
    elif context.desired.mode is Mode.ENFORCE:
        why = "mode is Enforce by now"
    else:
        return
    context.update(decision=None)
    context.conditions.drop(c.TERMINATION)
    step = decision.proposal.step
    message = f"{decision.by} would have stopped it at step {step}, and says so no more: {why}"
    context.event("NoLongerDeclining", message)


def _refuted(record: JobRecord, decision: Decision) -> bool:
    """Return whether the run has refuted a stop that Shadow would have made. Of several the first refuted one
    is judged on; a later one is refuted by a new best."""
    outcome = record.outcome
    if outcome is None or outcome.verdict is not Outcome.REFUTED:
        return False
    if outcome.decided == decision.at:
        return True
    return record.best is not None and record.best.step > decision.proposal.step


def unsafe(context: PlanContext) -> Problem | None:
    """Return why a run whose rule says stop may not be stopped now; None: it may.

    Under a stop whose newer bests follow the suspend (`retention`), a pin made since it was decided will do.
    """
    record, decision = context.record, context.record.decision
    scrape = context.observed.scrape
    read = scrape is not None and scrape.outcome is ScrapeOutcome.OK
    if read and not lives.identified(record, scrape):
        return Problem(
            "PageWithoutIdentity",
            "to be stopped, but the page does not say whose it is (rlhf_run_info with uid and attempt), so "
            "it may be another trainer's; the run goes on. Use a client that reads run.json",
        )
    if (step := lives.start_unclaimed(record)) is not None:
        return Problem(
            "StartUnknown",
            f"to be stopped, but whose checkpoint of step {step} its newest process started from is not "
            "known before the checkpoint folder is claimed for it, so the evals before may be of another "
            + "; ".join(filter(None, ("branch; the run goes on", lives.apart_clause(record)))),
        )
    if step_counts.disagree(record):
        return Problem(
            step_counts.STEPS_DISAGREE, f"to be stopped, but {step_counts.text(record)}; the run goes on"
        )
    best = keepable(record, context.desired.direction, context.use) or record.best
    kept = record.secured
    follows = decision is not None and decision.deferred_at is not None and decision.overtaken_by(kept)
    if best is None or kept is None or not (follows or kept.stands_for(best)):
        step = best.step if best is not None else 0
        return Problem(
            "NoVerifiableCheckpoint",
            f"to be stopped, but no checkpoint of step {step} or up to "
            f"{context.desired.max_step_lag} steps earlier is in safety yet; the run goes on",
        )
    return None


def stands(context: PlanContext, use: RuleInUse) -> Proposal | None:
    """Return what the rules propose after the newest evals, wherever the best checkpoint is; None: to go on.

    Says in the conditions how they stand. While a stop is under way, TerminationTarget is that stop's.
    """
    record = context.record
    found = guardrails.joint_verdict(record, context.desired)
    _show_guardrails(context, use)
    if found is None or record.best is None or not record.evals:
        if context.conditions.is_true(c.DEMOTED):
            context.conditions.set(c.DEMOTED, False, "BeganAnew", "its rule has forgotten what it went by")
        return None
    metric, verdict = found
    numbers = _numbers(record, use, metric, verdict) + fresh_evals.bear_out(context, use, verdict)
    _show_grade(context, verdict, numbers)
    compares = any("paired" in rule.needs for rule in (use, *use.guards.values()))
    trainer_requests.name_reference(context, wanted=compares or verdict.verb is Verb.CONFIRM)
    trainer_requests.name_best(context)
    verdict = fresh_evals.confirmed(context, verdict, numbers)
    trainer_requests.write_run_file(context)
    if verdict.verb is not Verb.STOP:
        if record.decision is None and verdict.verb is Verb.CONTINUE and not _shows_taken_back(context):
            context.conditions.drop(c.TERMINATION)
        return None
    best = keepable(record, context.desired.direction, use) or record.best
    return Proposal.of(verdict, _newest_step(record, metric), best.step, metric)


def verdict_numbers(record: JobRecord, use: RuleInUse, metric: str = "") -> str:
    """Return the numbers behind the verdict that stands now on ``metric`` ("": the Primary one), for
    people."""
    rule = record.rule.verdict if record.rule is not None else None
    guard = next((g.verdict for g in record.guards if metric and g.metric == metric), None)
    verdict = guard if metric else rule
    if verdict is None or not record.evals or record.best is None:
        return "its rule says nothing"
    return _numbers(record, use, metric, verdict)


def _shows_taken_back(context: PlanContext) -> bool:
    """Return whether TerminationTarget tells why the last stop was taken back: that stays until there is
    news."""
    condition, last = context.conditions.get(c.TERMINATION), context.record.taken_back
    return condition is not None and last is not None and condition.reason == last.reason


def report_dropped(context: PlanContext, use: RuleInUse, before: JobRecord) -> None:
    """Send an Event for each eval that the gate has dropped. ``before``: the record without the new evals."""
    dropped = [("", step) for step in use.dropped_since(before, context.record)]
    known = {guard.metric: guard.state for guard in before.guards}
    for guard in context.record.guards:
        if guard.metric in use.guards and guard.state != known.get(guard.metric):
            dropped += [(guard.metric, step) for step in use.guards[guard.metric].dropped(guard.state)]
    for metric, step in dropped:
        name = metric or context.desired.metric
        why = "" if metric else imprecise.clause(context.record.evals, step, use.imprecise)
        if not why:
            why = "later ones did not bear its jump out"
            why += ", or it is far less precise than they are" if metric else ""
        message = f"the eval of {name!r} at step {step} is dropped: {why}"
        context.event("EvalDropped", message, warning=True)


def is_demoted(desired: Desired, record: JobRecord) -> bool:
    """Return whether the job gives way to everybody who waits."""
    found = guardrails.joint_verdict(record, desired)
    return desired.mode is Mode.ENFORCE and found is not None and found[1].grade is Grade.DEMOTED


def count_past(context: PlanContext, before: JobRecord) -> None:
    """Count the service since the last eval for what the rule asked for then; a new eval or the end came.

    ``before``: the record without the new eval.
    """
    known, found = before.past_grades, guardrails.joint_verdict(before, context.desired)
    grade = found[1].grade if found is not None else None
    would_stop = before.decision is not None and before.decision.mode is Mode.SHADOW
    served = attained(context.desired, context.record, context.now)
    after = known or PastGrades(counted=served)
    spent = max(0.0, served - after.counted)
    if grade is not None or would_stop:
        after = replace(
            after,
            warned=after.warned + (spent if grade is Grade.WARNED else 0.0),
            demoted=after.demoted + (spent if grade is Grade.DEMOTED else 0.0),
            stopped=after.stopped + (spent if would_stop else 0.0),
        )
    if known is not None or _asks_for_less(context):
        context.update(past_grades=replace(after, counted=served))


def _asks_for_less(context: PlanContext) -> bool:
    """Return whether service from now on is to be counted: the run is graded, or in Shadow past its stop."""
    found = guardrails.joint_verdict(context.record, context.desired)
    if found is None:
        return False
    shadow = context.desired.mode is Mode.SHADOW
    return found[1].grade is not None or (shadow and found[1].verb is Verb.STOP)


def _show_guardrails(context: PlanContext, use: RuleInUse) -> None:
    if not use.guards:
        context.conditions.drop(c.GUARDRAILS)
        return
    guards = {guard.metric: guard for guard in context.record.guards}
    failing = [g for g in guards.values() if g.verdict is not None and g.verdict.verb is not Verb.CONTINUE]
    missing = [metric for metric in use.guards if metric not in guards]
    if failing:
        message = "; ".join(_guard_text(use, context.record, g.metric) for g in failing)
        context.conditions.set(c.GUARDRAILS, False, "Failing", message, warning=True)
    elif missing:
        context.conditions.set(c.GUARDRAILS, False, "NoEvalsYet", _missing_text(context, missing))
    elif overdue := [g for g in guards.values() if verdict_age.is_overdue(g, context.record)]:
        context.conditions.set(c.GUARDRAILS, False, "NoNewEvals", _overdue_text(context, overdue))
    elif blind := [g for g in guards.values() if g.verdict is None or g.verdict.reason in BLIND]:
        message = "; ".join(_blind_text(g, use.guards.get(g.metric)) for g in blind)
        context.conditions.set(c.GUARDRAILS, False, "NotJudged", message)
    else:
        names = ", ".join(map(repr, use.guards))
        context.conditions.set(c.GUARDRAILS, True, "Holding", f"no rule says that {names} fell")


def _missing_text(context: PlanContext, missing: list[str]) -> str:
    """Return that guardrails have no eval, where the first is in the spec, and what its page has besides."""
    desired, scrape = context.desired, context.observed.scrape
    names = ", ".join(map(repr, missing))
    text = f"no eval of guardrail {names} is exported"
    index = next((guard.index for guard in desired.guardrails if guard.metric == missing[0]), None)
    if index is not None:
        text = f"spec.metrics[{index}]: {text}"
    taken = {desired.metric, *(guard.metric for guard in desired.guardrails)}
    others = [one for one in (scrape.metrics_seen if scrape is not None else ()) if one not in taken]
    close = nearest(missing[0], others)
    text += f"; others on its page: {', '.join(others)}" if others else ""
    return f"{text}; {did_you_mean(close)}" if close else text


def _overdue_text(context: PlanContext, overdue: list[Guard]) -> str:
    """Return that evals of guardrails come no more. The message stays while no more is known."""
    where = {guard.metric: guard.index for guard in context.desired.guardrails}
    told = []
    for guard in overdue:
        index = where.get(guard.metric)
        told.append(
            ("" if index is None else f"spec.metrics[{index}]: ")
            + f"no eval of guardrail {guard.metric!r} that counts has come since step {guard.step}, in "
            f"{verdict_age.GUARD_LATE} and more of {context.desired.metric!r}{verdict_age.how_often(guard)}: "
            "it stops nothing"
        )
    return "; ".join(told)


def _blind_text(guard: Guard, own: RuleInUse | None) -> str:
    why = "its memory begins anew" if guard.verdict is None else guard.verdict.reason
    if why == "NoiseUnknown" and own is not None:
        scale = own.scale  # with a range declared, the number of prompts would have been enough
        why += f", {_would_see(scale, counted=scale.range is None and scale.prompts is not None)}"
    return f"guardrail {guard.metric!r} is not judged by its eval at step {guard.step}: {why}"


def _guard_text(use: RuleInUse, record: JobRecord, metric: str) -> str:
    guard = next(g for g in record.guards if g.metric == metric)
    assert guard.verdict is not None
    v = guard.verdict
    own = use.guards.get(metric)
    rule = own.name if own is not None else "its rule"
    known = own is not None and guard.params_hash == own.params_hash and guard.state
    gate = _gate_text(own, guard.state) if own is not None and known else ""
    seen = f"{statistic(v.statistic, v.threshold, 6)} of {v.threshold:g}"
    return f"guardrail {metric!r}, {rule}: {seen} at step {guard.step}{gate}"


def _numbers(record: JobRecord, use: RuleInUse, metric: str, verdict: Verdict) -> str:
    assert record.best is not None
    best = f"best at step {record.best.step}"
    if metric:
        return f"{_guard_text(use, record, metric)}, {best}"
    seen = f"{statistic(verdict.statistic, verdict.threshold, 6)} of {verdict.threshold:g}"
    if verdict.reason == "NoiseUnknown":
        counted = all(use.scale.counted(p).prompts for p in record.evals)
        seen = f"{seen}, {_would_see(use.scale, counted=counted)}"
    gate = _gate_text(use, record.rule.state, record.evals) if record.rule and made_under(record, use) else ""
    return f"{use.name}: {seen} at step {record.evals[-1].step}, {best}{gate}"


def _would_see(scale: EvalScale, *, counted: bool) -> str:
    """Return which numbers would tell how noisy an eval is, of those that are missing.

    ``counted``: how many prompts each eval has is known.
    """
    lacks = [] if counted else ["prompts"]
    lacks += [] if scale.range is not None else ["range (or preset)"]
    lacking = f"{' and '.join(lacks)} of the metric, or " if lacks else ""
    return f"it would see with {lacking}a standard error of each eval ({METRIC_EVAL_STDERR})"


def _gate_text(use: RuleInUse, state: tuple[object, ...], evals: tuple[EvalPoint, ...] = ()) -> str:
    """Return what the gate does with the newest evals; "": it counts them. ``evals``: the run's, if kept."""
    waits, gone = use.waiting(state), use.dropped(state)
    coarse = [step for step in gone if imprecise.clause(evals, step, use.imprecise)]
    gone = tuple(step for step in gone if step not in coarse)
    text = f"; dropped, not borne out: step {', '.join(map(str, gone))}" if gone else ""
    text += f"; dropped, too imprecise: step {', '.join(map(str, coarse))}" if coarse else ""
    if waits:
        text += (
            f"; far from the last that counts, not counted until borne out: step {', '.join(map(str, waits))}"
        )
    return text


def _newest_step(record: JobRecord, metric: str) -> int:
    guard = next((g for g in record.guards if metric and g.metric == metric), None)
    return guard.step if guard is not None else record.evals[-1].step


def _by(use: RuleInUse, metric: str) -> str:
    return use.guards[metric].name if metric else use.name


def _show_grade(context: PlanContext, verdict: Verdict, numbers: str) -> None:
    """Conditions QualityDeclining and, where the job's rule is graded, Demoted."""
    grade = verdict.grade
    if verdict.verb is Verb.CONTINUE and grade is not None:
        message = f"{numbers}: {share(verdict):.0%} of the way to a stop"
        context.conditions.set(c.DECLINING, True, str(Grade.WARNED), message, warning=True)
    else:
        stop = verdict.verb is not Verb.CONTINUE
        context.conditions.set(c.DECLINING, stop, verdict.reason, numbers, warning=stop)
    if not any(m.name == Graded.name for m in context.desired.modifiers):
        context.conditions.drop(c.DEMOTED)
    elif grade is not Grade.DEMOTED:
        before = context.record.condition(c.DEMOTED)
        recovered = before is not None and (before.status or before.reason == "Recovered")
        context.conditions.set(c.DEMOTED, False, "Recovered" if recovered else "NotDemoted", numbers)
    elif context.desired.mode is Mode.SHADOW:
        message = f"would give way to every job that waits; mode is Shadow, nothing is touched ({numbers})"
        context.conditions.set(c.DEMOTED, False, "Shadow", message)
    else:
        message = f"gives way to every job that waits and fits ({numbers})"
        context.conditions.set(c.DEMOTED, True, verdict.reason, message, warning=True)
