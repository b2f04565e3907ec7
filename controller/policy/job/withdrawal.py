"""Withdrawal of a stop: possible until the suspend, which is the only step that cannot be undone.

Between grant and suspend the run is read and judged as ever. The stop is taken back when its rule no longer
says so, when mode or cap forbid it, when its user wants the run to go on, or when nobody can look once more
before the suspend. It is one write of the job's record: the decision goes, and what the pool needs to give
back what it had counted and promised is noted (`jobs.TakenBack`). The pool finds that at its next pass,
whoever makes it: the stop is counted no more (`operator.fleet.past_stops`), its reservation is dropped.
Nobody is ever admitted by a reservation, so it does no harm that it lasts a moment longer.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import (
    access_requests,
    external_queue,
    guardrails,
    step_counts,
    verdict_age,
    verdicts,
)
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.evals import judged_from_now_on
from controller.policy.job.record import Decision, Operation, TakenBack
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Plan, ReadMetrics, ResumeFrom, RunState, ScrapeOutcome, SetFinalizer
from controller.policy.types import JobState, Mode, Problem

USER = "User"
FRESH_LEAST, FRESH_INTERVALS = 60.0, 4.0  # s, and scrape intervals: how long a fresh scrape is waited for
READ_AGAIN = 5.0  # s between two reads out of turn of metrics that cannot be read
NEW_LEADER = 3.0  # times as long, as long as nothing was read at all: who came into office may need a while


def why(context: PlanContext, use: RuleInUse | None) -> Problem | None:
    """Return why the stop under way is to be taken back now; None: it stands, as far as the run was read.

    Called before the suspend, once the newest scrape is taken in.
    """
    desired, decision = context.desired, context.record.decision
    assert decision is not None
    if decision.by == USER:
        again = desired.run_state is RunState.RUN and not _resumes_after_it(context)
        return Problem("CalledOff", "spec.runState is Run again") if again else None
    if desired.mode is not Mode.ENFORCE:
        return Problem("ModeForbids", f"mode is {desired.mode} by now (spec.mode, or its pool's modeCap)")
    if use is None or context.problem is not None:
        problem = ": ".join(context.problem) if context.problem is not None else "its rule is not usable"
        return Problem("NotJudged", f"its rule cannot be asked once more: {problem}")
    if wants_to_go_on(context):
        assert desired.resume is not None
        return Problem("Resumed", f"resume {desired.resume.id!r} was asked for before it was suspended")
    if not runs(context):
        return None  # what is off its GPUs has nothing more to say
    if step_counts.disagree(context.record):
        return Problem(step_counts.STEPS_DISAGREE, step_counts.text(context.record))
    if context.record.secured is None:
        condition = context.conditions.get(c.SECURED)
        detail = f": {condition.message}" if condition is not None and not condition.status else ""
        return Problem("NoVerifiableCheckpoint", f"its best checkpoint is no longer in safety{detail}")
    if verdicts.stands(context, use) is None:
        numbers = verdicts.verdict_numbers(context.record, use, decision.proposal.metric)
        return Problem("NoLongerDeclining", f"its rule no longer says stop ({numbers})")
    return None


def is_users(context: PlanContext) -> bool:
    """Return whether the run's user asks for its stop, or asked for the one under way.

    Such a stop waits no longer than a user has to, whoever decided it first, and every mode carries it out.
    """
    decision = context.record.decision
    return context.desired.run_state is RunState.STOPPED or (decision is not None and decision.by == USER)


def wants_to_go_on(context: PlanContext) -> bool:
    """Return whether a user asks for the run to go on where it is, by a resume that is not answered yet."""
    return _open_resume(context) is ResumeFrom.LATEST


def _resumes_after_it(context: PlanContext) -> bool:
    """Return whether a resume from the best or from a step waits: it is for a run that is suspended, so the
    stop is carried out first, whoever asked for it."""
    return _open_resume(context) in {ResumeFrom.BEST, ResumeFrom.STEP}


def _open_resume(context: PlanContext) -> ResumeFrom | None:
    """Return from where the run is asked to go on, if that is not answered yet."""
    request = context.desired.resume
    if request is None or request.id == context.record.resume_id:
        return None
    return request.source if context.desired.run_state is RunState.RUN else None


def runs(context: PlanContext) -> bool:
    """Return whether its workload runs: an act is needed to suspend it."""
    workload = context.observed.workload
    return workload is not None and not workload.suspended and external_queue.to_be_stopped(context.observed)


def last_look(context: PlanContext, settled: float) -> tuple[bool, Problem | None]:
    """Just before the suspend: whether the run was read and judged since ``settled`` (s).

    Returns:
        Whether it was, and why the stop is taken back instead; neither: wait.
    """
    scrape, decision = context.observed.scrape, context.record.decision
    assert decision is not None
    if settled > context.now:  # an earlier leader's clock was ahead of this one's
        settled = context.now
        context.update(decision=_settled_now(decision, settled))
    if scrape is not None and scrape.at > settled and scrape.outcome is ScrapeOutcome.OK:
        metric = decision.proposal.metric
        found = verdict_age.problem(context, metric, decided=True) or verdicts.unsafe(context)
        if found is None:
            return True, None
        if found.reason != "MetricsNotRead":
            return False, found
    waits = max(FRESH_LEAST, FRESH_INTERVALS * context.desired.scrape_interval)
    left = settled + (waits if scrape is not None else NEW_LEADER * waits) - context.now
    if left <= 0:
        read = context.conditions.get(c.METRICS)
        reason = f" ({read.reason}: {read.message})" if read is not None and not read.status else ""
        message = f"it could not be read once more before the suspend{reason}"
        return False, Problem("NoFreshScrape", message)
    if scrape is None or scrape.at <= settled or context.now - scrape.at >= READ_AGAIN:
        context.act(ReadMetrics())
    context.wake_in(min(left, 1.0))
    return False, None


def take_back(context: PlanContext, use: RuleInUse | None, found: Problem) -> Plan:
    """Let the run go on: one write of the record, then what was begun for the stop is given up."""
    decision = context.record.decision
    assert decision is not None
    reason, message = found
    resumed = wants_to_go_on(context)
    forget(context, decision, reason)
    if resumed:
        request = context.desired.resume
        assert request is not None
        context.update(resume_id=request.id)
        if use is not None and decision.by != USER:
            # Going on past a stop is the user's will: the evals that led to it must not stop it again.
            context.record = judged_from_now_on(context.record, use)
            context.update(guards=guardrails.begun_anew(context.record.guards, use.guards), confirming=None)
        context.conditions.set(
            c.RESUMED, True, "StopTakenBack", "it was not suspended yet, and goes on where it is"
        )
    context.conditions.set(
        c.TERMINATION, False, reason, f"the stop is taken back, the run goes on: {message}"
    )
    context.event("StopTakenBack", f"{reason}: {message}; the run goes on")
    if context.observed.finalizer:
        context.act(SetFinalizer(False))
    context.wake_in(0.0)
    return context.plan(JobState.ADMITTED if context.record.admission is not None else JobState.QUEUED)


def forget(context: PlanContext, decision: Decision, reason: str) -> None:
    """Withdraw the stop from the record, and keep what the pool needs to return the GPUs."""
    waited = context.record.access
    if waited is not None and waited.operation in (Operation.RETAIN, Operation.CHECK):
        access_requests.give_up(context)  # what of it is copied stays, and is gone on with by the next
    context.update(decision=None, taken_back=TakenBack(decision.at, context.now, reason))
    copied = context.conditions.get(c.RETAINED)
    if copied is not None and not copied.status:
        context.conditions.drop(c.RETAINED)


def asked_to_stop(context: PlanContext) -> bool:
    """Return whether a trainer that runs was asked to stop training, for a stop that was taken back since."""
    return context.record.run.stop and runs(context)


def _settled_now(decision: Decision, now: float) -> Decision:
    copied, put_off = decision.retained_at, decision.deferred_at
    return replace(
        decision,
        retained_at=None if copied is None else min(copied, now),
        deferred_at=None if put_off is None else min(put_off, now),
    )


def unsettle(context: PlanContext) -> None:
    """There is a newer best: what was settled for the former one is open again."""
    decision = context.record.decision
    if decision is not None and decision.settled_at is not None:
        context.update(decision=replace(decision, retained_at=None, deferred_at=None))
