"""One job's plan: a pure function of its wish, what is seen of it, its record, and the time.

    plan(desired, observed, record, now) -> Plan(record, actions, events, queue, proposal, requeue_after)

A stop rule's verdict is only a proposal here; the pool's plan (pool.py) turns it into a release, which comes
back through `transitions.granted`. Every irreversible act has the shape: intent in the record, idempotent
act, effect observed, completion in the record. So this function may be called at any moment, by an operator
that remembers nothing, and goes on where things are.

A stop: granted -> best checkpoint retained and verified -> looked once more -> suspended -> pods gone ->
released. Until the suspend it may be taken back (`taking_back`).
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import (
    access_pod,
    access_requests,
    checkpoints,
    endings,
    external_queue,
    gang_timeout,
    guardrails,
    incomplete,
    lives,
    location_claim,
    missing_rule,
    pins,
    preemption,
    progress,
    retention,
    verdicts,
    withdrawal,
)
from controller.policy.job import conditions as c
from controller.policy.job.adoption import adopt
from controller.policy.job.comparability import begin_anew
from controller.policy.job.context import Draft
from controller.policy.job.estimates import stated
from controller.policy.job.evals import RuleInUse, absorb, begin_life, ignored_steps, settle_agreeing
from controller.policy.job.resume import answer_early, resume
from controller.policy.job.service import attained
from controller.policy.job.stop import after_suspend, carry_out_stop, user_stop
from controller.policy.job.types import (
    CreateWorkload,
    Desired,
    JobRecord,
    Observed,
    Operation,
    Plan,
    RunFile,
    RunState,
    ScrapeOutcome,
    ScrapeView,
    SetFinalizer,
    StartWorkload,
    SuspendWorkload,
    WriteRun,
)
from controller.policy.types import (
    JobState,
    Mode,
    Proposal,
)


def plan_job(desired: Desired, observed: Observed, record: JobRecord, now: float) -> Plan:
    """What is to be done for one job now. Total: it never raises, whatever the cluster looks like."""
    draft = Draft(desired, observed, record, now)
    made, wrong = missing_rule.rule_of(draft)
    draft.use = use = made if desired.metric else None
    answered = checkpoints.answer(draft)
    if answered is not None:
        checkpoints.take_answer(draft, answered)
    _accept(draft, wrong)
    access_pod.tell(draft)
    if desired.deleting:
        return _delete(draft)
    if not _stop_under_way(draft):
        checkpoints.leave_off(draft)
    ended = observed.workload is not None and observed.workload.finished is not None
    if ended or draft.record.finished is not None:
        return _finish(draft, use)
    if endings.is_lost(draft):
        _note_end(draft, *endings.how_it_ended(draft))
        return _finish(draft, use)
    if _stop_under_way(draft):
        return _stop_or_resume(draft, use)
    if observed.finalizer:
        draft.act(SetFinalizer(False))  # of a stop that was taken back or resumed
    answer_early(draft)
    if draft.problem is not None and draft.record.admission is None and not location_claim.refused(draft):
        external_queue.keep_off(draft, "NotAccepted")
        return draft.plan(None)
    if observed.workload is None:
        return _create(draft)
    if desired.run_state is RunState.STOPPED:
        user_stop(draft)
        return _stop_or_resume(draft, use)
    if draft.record.admission is not None and draft.record.admission.withdrawn is not None:
        return gang_timeout.withdraw(draft)
    if external_queue.evicted(draft) or draft.record.preempting is not None:
        return _preempt(draft, use)
    if draft.record.admission is None and not adopt(draft):
        pins.keep(draft)
        return _wait(draft)
    return _run(draft, use)


def _accept(draft: Draft, wrong: str | None) -> None:
    """Say in condition Accepted whether the spec can be carried out. ``wrong``: with its stop rule.

    What is wrong with it, or with its pool, withholds admissions and stops (`Draft.problem`) and nothing
    else: a job that holds GPUs is read, and its best checkpoint kept in safety, whatever befalls its pool.
    """
    draft.problem = draft.desired.problem
    if draft.problem is None and wrong is not None:
        draft.problem = ("InvalidStopRule", f"spec.stopRule: {wrong}")
    location_claim.refuse(draft)
    if draft.problem is not None:
        draft.conditions.set(c.ACCEPTED, False, *draft.problem, warning=True)
    else:
        told = ("the spec can be carried out", draft.desired.note, endings.expiry_note(draft))
        draft.conditions.set(c.ACCEPTED, True, "Valid", "; ".join(filter(None, told)))


def _stop_under_way(draft: Draft) -> bool:
    decision = draft.record.decision
    return decision is not None and decision.mode is Mode.ENFORCE


def _stop_or_resume(draft: Draft, use: RuleInUse | None) -> Plan:
    decision = draft.record.decision
    assert decision is not None
    if decision.pods_gone_at is None:
        reads = draft.record.admission is not None and draft.desired.mode is not Mode.OFF
        if use is not None and reads and decision.suspended_at is None:
            _take_scrape(draft, use)
            location_claim.within_attempt(draft)
        return carry_out_stop(draft, use)
    if use is not None and draft.problem is None and resume(draft, use):
        return _line_up(draft)
    if after_suspend(draft):
        pins.wait(draft)
    else:
        pins.keep(draft)
    if (amiss := endings.stays_off(draft, decision.proposal.reason)) is not None:
        return amiss
    external_queue.keep_off(draft, decision.proposal.reason)
    return draft.plan(None)


def _line_up(draft: Draft) -> Plan:
    """A resume is carried out: it waits for GPUs, unless its folder is another's by now."""
    location_claim.refuse(draft)
    return draft.plan(JobState.QUEUED if draft.problem is None else None)


def _create(draft: Draft) -> Plan:
    """No workload: make it from the template, or say that the one referred to is not there."""
    if draft.desired.workload_ref:
        message = f"spec.workload.ref: there is no {draft.desired.workload_ref} in this namespace"
        draft.conditions.set(c.ACCEPTED, False, "WorkloadNotFound", message, warning=True)
    else:
        draft.act(CreateWorkload())
    return draft.plan(JobState.ADMITTED if draft.record.admission is not None else None)


def _wait(draft: Draft) -> Plan:
    """Queued: suspended, no GPUs. Why it waits is the pool's to say (`transitions.waiting`)."""
    workload, known = draft.observed.workload, draft.record.condition(c.ADMITTED)
    assert workload is not None
    if known is None or known.status:
        draft.conditions.set(c.ADMITTED, False, "Queued", "waits for its pool's GPUs")
    incomplete.made_anew(draft)
    left = draft.conditions.get(c.RUNNING)
    if left is None or left.status or left.reason not in (*external_queue.LEFT, incomplete.MEMBERS_ENDED):
        draft.conditions.set(c.RUNNING, False, "NotAdmitted", "no GPUs are granted yet")
    if not workload.suspended:
        # Somebody else started it. GPUs are granted by the pool alone.
        draft.act(SuspendWorkload("NotAdmitted"))
        return draft.plan(JobState.QUEUED)
    location_claim.before_start(draft)
    if location_claim.refused(draft):
        external_queue.keep_off(draft, access_requests.TAKEN)
        return draft.plan(None)
    return external_queue.wait(draft) or draft.plan(JobState.QUEUED)


def _run(draft: Draft, use: RuleInUse | None) -> Plan:
    """Admitted: start it, or watch it run."""
    record, workload = draft.record, draft.observed.workload
    assert record.admission is not None
    assert workload is not None
    draft.conditions.set(
        c.ADMITTED,
        True,
        "Admitted",
        f"GPUs granted, planned on {', '.join(record.admission.nodes) or 'any node'}",
    )
    draft.conditions.drop(c.RELEASED)
    gang_timeout.note_ended(draft)
    if gang_timeout.watch_binding(draft):
        return gang_timeout.withdraw(draft)
    if workload.suspended:
        if location_claim.refused(draft) and draft.problem is not None:
            return gang_timeout.give_back(draft, *draft.problem)
        _start(draft)
        return draft.plan(JobState.ADMITTED)
    if withdrawal.asked_to_stop(draft):
        return _start_again(draft)
    _watch_start(draft)
    proposal = None
    if use is not None:
        proposal = _watch(draft, use)
    else:
        _unwatched(draft)
    pins.keep(draft)
    location_claim.within_attempt(draft, retry=True)
    if proposal is not None and draft.problem is not None:
        told = f"to be stopped, but the spec cannot be carried out as it is: {draft.problem[1]}"
        draft.conditions.set(c.TERMINATION, False, "NotAccepted", told)
        proposal = None
    return draft.plan(JobState.ADMITTED, proposal)


def _start(draft: Draft) -> None:
    """Write `<name>-run` for this attempt, then unsuspend once the last attempt's pods are out of the way."""
    record, workload = draft.record, draft.observed.workload
    assert record.admission is not None
    assert workload is not None
    restored = record.restored
    wanted = RunFile(
        attempt=record.admission.number,
        resume_path=restored.path if restored is not None else "",
        resume_step=restored.step if restored is not None else None,
        request_id=record.run.request_id,
        reference_step=record.run.reference_step,
        uid=draft.desired.uid,
    )
    draft.update(run=wanted)
    if location_claim.before_start(draft):
        message = f"attempt {wanted.attempt} is to start once the checkpoint folder is claimed"
        message += access_pod.how_far(draft)
        draft.conditions.set(c.RUNNING, False, "ClaimingLocation", message)
        return
    draft.conditions.set(c.RUNNING, False, "Starting", f"attempt {wanted.attempt} is being started")
    if draft.observed.run_written != wanted:
        draft.act(WriteRun(wanted))
        draft.wake_in(1.0)
    elif workload.settled and draft.pods_left == 0 and external_queue.may_start(draft):
        gang_timeout.started(draft)
        draft.act(StartWorkload(wanted.attempt, record.admission.nodes))


def _start_again(draft: Draft) -> Plan:
    """A user called a stop off after the trainer was asked to stop training: start it anew where it is."""
    restored, scrape = draft.record.restored, draft.observed.scrape
    saved = scrape.checkpoint_step if scrape is not None else None
    if restored is not None and saved is not None and saved > restored.step:
        draft.update(restored=None)
    message = "its stop was called off after it had been asked to stop training: it is started anew"
    draft.conditions.set(c.RUNNING, False, "Restarting", message)
    draft.act(SuspendWorkload("StopTakenBack", again=True))
    return draft.plan(JobState.ADMITTED)


def _watch_start(draft: Draft) -> None:
    record, ready = draft.record, sum(1 for p in draft.observed.pods if p.ready and not p.terminal)
    assert record.admission is not None
    if ready >= draft.desired.replicas:
        if record.admission.running_since is None:
            draft.update(admission=replace(record.admission, running_since=draft.now))
        draft.update(expected=stated(record.expected, draft.desired))
        draft.conditions.set(
            c.RUNNING, True, "Running", f"attempt {record.admission.number}: all members are ready"
        )
    elif not draft.conditions.is_true(c.RUNNING):
        draft.conditions.set(
            c.RUNNING, False, "Starting", f"{ready} of {draft.desired.replicas} members are ready"
        )


def _watch(draft: Draft, use: RuleInUse) -> Proposal | None:
    """Take in new evals, keep the best in safety, judge."""
    if draft.desired.mode is Mode.OFF:
        for type_ in (c.METRICS, c.DECLINING, c.GUARDRAILS, c.DEMOTED, c.SECURED):
            draft.conditions.drop(type_)
        return None
    _take_scrape(draft, use)
    location_claim.within_attempt(draft)
    if draft.desired.mode is Mode.ENFORCE:
        checkpoints.secure_best(draft)
    return verdicts.judge(draft, use)


def _unwatched(draft: Draft) -> None:
    """The spec does not say what is to be read."""
    reason = draft.problem[0] if draft.problem is not None else "NotAccepted"
    draft.conditions.set(
        c.METRICS, False, reason, "the spec names no metric that could be read", warning=True
    )


def _take_scrape(draft: Draft, use: RuleInUse) -> None:
    before = draft.record
    _take_evals(draft, use)
    news = draft.record.evals is not before.evals
    progress.note(draft, news=news)
    verdicts.tell_dropped(draft, use, before)
    if news:
        verdicts.count_past(draft, before)


def _take_evals(draft: Draft, use: RuleInUse) -> None:
    scrape = draft.observed.scrape
    if scrape is None:
        return
    if scrape.outcome is not ScrapeOutcome.OK:
        draft.conditions.set(c.METRICS, False, str(scrape.outcome), scrape.message)
        return
    if refused := lives.refusal(draft.record, draft.desired.uid, scrape):
        draft.conditions.set(c.METRICS, False, *refused, warning=True)
        return
    draft.record = begin_life(draft.record, use, scrape)
    metric = draft.desired.metric
    if metric not in scrape.metrics_seen:
        names = ", ".join(scrape.metrics_seen) or "none yet"
        reason = "MetricMissing" if scrape.metrics_seen else "NoEvalsYet"
        draft.conditions.set(
            c.METRICS, False, reason, f"spec.metrics: no eval of {metric!r} is exported; names seen: {names}"
        )
        return
    before = draft.record
    _begin_anew(draft, use, scrape)
    draft.record = guardrails.watch(absorb(draft.record, use, scrape), use.guards, scrape)
    notes = [scrape.message] if scrape.message else []
    if ignored := ignored_steps(draft.record, scrape):
        steps = ", ".join(map(str, ignored[:5]))
        notes.append(f"ignored, because steps must increase within an attempt: step {steps}")
    progress.watch_evals(draft, before)
    if quiet := progress.without_evals(draft):
        draft.conditions.set(c.METRICS, False, "NoNewEvals", "; ".join([quiet, *notes]))
        return
    draft.conditions.set(
        c.METRICS, True, "Scraped", "; ".join([f"evals of {metric!r} are being read", *notes])
    )


def _begin_anew(draft: Draft, use: RuleInUse, scrape: ScrapeView) -> None:
    """Forget evals that cannot be compared with those to come, and say so."""
    before, fall = draft.record, draft.observed.fleet.fall
    draft.record = after = begin_anew(before, use, scrape, fall)
    if after.scale != before.scale:
        draft.update(guards=guardrails.begun_anew(before.guards), confirming=None)
    if after.evals == before.evals or not before.evals:
        return
    if after.evaluator != before.evaluator:
        why = f"the evaluator changed from {before.evaluator!r} to {after.evaluator!r}"
    else:
        assert fall is not None
        why = f"{fall.fell} of {fall.of} jobs of the pool fell at the same moment"
    last = before.evals[len(before.evals) - len(after.evals) - 1].step
    message = f"{why}: evals up to step {last} are not compared with later ones, the rule begins anew"
    if after.scale is not None and after.scale.kept is not None:
        message += f"; the checkpoint of step {after.scale.kept.step}, best until then, stays pinned"
    draft.event("BeganAnew", message, warning=True)
    draft.conditions.set(c.DECLINING, False, "BeganAnew", message)
    if draft.record.decision is None:
        draft.conditions.drop(c.TERMINATION)


def _preempt(draft: Draft, use: RuleInUse | None) -> Plan:
    """On its way back into the queue; until it is suspended it trains, and may have a new best."""
    going = draft.record.preempting
    trains = going is not None and going.lost is None and draft.record.admission is not None
    if use is not None and trains and draft.desired.mode is not Mode.OFF:
        _take_scrape(draft, use)
        location_claim.within_attempt(draft)
        if draft.desired.mode is Mode.ENFORCE:
            checkpoints.secure_best(draft)
    return preemption.carry_out(draft)


def _finish(draft: Draft, use: RuleInUse | None) -> Plan:
    """The workload ended by itself; it stays ended when its object is cleaned up later.

    Its last evals are taken in while a pod still shows them.
    """
    workload = draft.observed.workload
    if use is not None and draft.record.admission is not None and draft.desired.mode is not Mode.OFF:
        _take_scrape(draft, use)
        draft.record = settle_agreeing(draft.record, use)
    if draft.record.finished is None and workload is not None:
        end = workload.finished or ""
        _note_end(draft, end, end, workload.message or "the workload ended")
    draft.conditions.set(c.RUNNING, False, "Finished", "the workload ended")
    decision = draft.record.decision
    if decision is not None and decision.mode is Mode.ENFORCE and decision.suspended_at is None:
        draft.conditions.set(
            c.TERMINATION, False, "FinishedFirst", "the run ended before its stop was carried out"
        )
        withdrawal.forget(draft, decision, "FinishedFirst")
    if not endings.is_unknown(draft.record):
        answer_early(draft)
    elif use is not None and draft.problem is None and not draft.pods_left and resume(draft, use):
        return _line_up(draft)
    copying = _stop_under_way(draft) and after_suspend(draft)
    if draft.observed.finalizer and not copying:
        draft.act(SetFinalizer(False))
    if (amiss := endings.stays_off(draft, draft.record.finished or "")) is not None:
        return amiss
    if draft.record.admission is not None and endings.wait_for_pods(draft):
        return draft.plan(JobState.STOPPING)
    draft.update(admission=None)
    if copying:
        return draft.plan(None)
    _secure_what_is_left(draft)
    pins.keep(draft)
    draft.conditions.set(c.RELEASED, True, "PodsGone", "all pods are gone or terminal")
    return draft.plan(None)


def _secure_what_is_left(draft: Draft) -> None:
    """The run has ended: its best checkpoint is pinned if it was not yet. One that is gone gives way to the
    next best (`safekeeping`); a store that cannot be reached is asked for as long as it takes."""
    if draft.desired.mode is Mode.ENFORCE and draft.observed.workload is not None:
        checkpoints.secure_best(draft)


def _note_end(draft: Draft, end: str, reason: str, message: str) -> None:
    """Record that the run is over: as Complete or Failed (``end``), and why."""
    verdicts.count_past(draft, draft.record)
    served = attained(draft.desired, draft.record, draft.now)
    draft.update(finished=end, attained=served, preempting=None)
    waited = draft.record.access
    if waited is not None and waited.operation in (Operation.CLAIM, Operation.RESTORE):
        access_requests.give_up(draft)  # what pins or copies goes on: its answer says what is safe
    complete = end == "Complete"
    draft.conditions.set(c.COMPLETED if complete else c.FAILED, True, reason, message, warning=not complete)


def _delete(draft: Draft) -> Plan:
    """Being deleted: finish a retention that has begun, then let go. The workload goes with its owner.

    It may be gone by now (a deletion in the foreground takes what the RLHFJob owns first): the access Job is
    then made by the template in the spec.
    """
    queue = JobState.STOPPING if draft.pods_left else None
    decision = draft.record.decision
    if _stop_under_way(draft) and decision is not None and retention.promised(draft):
        lost = draft.observed.workload is None and bool(draft.desired.workload_ref)
        if not lost and retention.before_deletion(draft):
            draft.conditions.set(
                c.TERMINATION, True, decision.proposal.reason, "deleted once its best checkpoint is retained"
            )
            return draft.plan(queue)
        if draft.record.decision is not None and draft.record.decision.retained_at is None:
            told = draft.conditions.get(c.RETAINED)
            why = f": {told.message}" if told is not None and not told.status else ""
            kept = draft.record.secured
            pin = f"; its pin stays at {kept.path}" if kept is not None else ""
            message = f"deleted before its best checkpoint could be retained{pin}{why}"
            if told is None or told.reason != retention.GIVEN_UP:
                draft.conditions.set(c.RETAINED, False, retention.GIVEN_UP, message, warning=True)
            access_requests.give_up(draft)
    if draft.observed.finalizer:
        draft.act(SetFinalizer(False))
    return draft.plan(queue)
