"""One job's plan: a pure function of its spec, what is observed of it, its record, and the time.

    plan(desired, observed, record, now) -> Plan(record, actions, events, queue, proposal, requeue_after)

A stop rule's verdict is only a proposal here; the pool's plan (pool.py) turns it into a release, which comes
back through `transitions.granted`. Every irreversible act has the shape: intent in the record, idempotent
act, effect observed, completion in the record. So this function may be called at any moment, by an operator
that remembers nothing, and goes on where things are.

A stop: granted -> best checkpoint retained and verified -> looked once more -> suspended -> pods gone ->
released. Until the suspend it may be taken back (`withdrawal`).
"""

from __future__ import annotations

from dataclasses import replace

from controller.names import METRICS_KEPT
from controller.policy.job import (
    access_pod,
    access_requests,
    attention,
    checkpoints,
    curve,
    endings,
    external_queue,
    gang_timeout,
    guardrails,
    incomplete,
    linked_pins,
    lives,
    location_claim,
    missing_rule,
    not_carried_out,
    orphans,
    outcome,
    pins,
    pod_troubles,
    preemption,
    progress,
    residency,
    restarts,
    retention,
    rollout_actors,
    run_file_gone,
    run_on,
    scaled,
    score_unit,
    scores,
    short_baselines,
    starvation,
    step_counts,
    unable,
    unread,
    verdicts,
    whereabouts,
    withdrawal,
)
from controller.policy.job import conditions as c
from controller.policy.job.adoption import adopt
from controller.policy.job.bests import settle_agreeing
from controller.policy.job.comparability import begin_anew, in_other_unit
from controller.policy.job.context import PlanContext
from controller.policy.job.endings import Ending
from controller.policy.job.estimates import stated
from controller.policy.job.evals import begin_life, ignored_steps, ingest, is_eval
from controller.policy.job.record import JobRecord, Operation, RunFile
from controller.policy.job.resume import answer_early, resume
from controller.policy.job.rule_in_use import RuleInUse, contradicts_its_errors
from controller.policy.job.service import own
from controller.policy.job.stop import after_suspend, carry_out_stop, user_stop
from controller.policy.job.types import (
    CreateWorkload,
    Desired,
    Observed,
    Plan,
    RunState,
    ScrapeOutcome,
    ScrapeView,
    SetFinalizer,
    StartWorkload,
    SuspendWorkload,
    WriteRun,
)
from controller.policy.types import (
    DURATION_MISSING,
    JobState,
    Mode,
    Problem,
    Proposal,
)
from controller.policy.wording import did_you_mean, nearest

# Reasons of Running that go on being told while the job waits.
_STAY_OUT = (*external_queue.LEFT, c.MEMBERS_ENDED, c.ROLLOUT_STARVED, c.GROUP_LOST, *residency.GIVEN_UP)
# What a wrong port or address looks like.
_ELSEWHERE = (ScrapeOutcome.UNREACHABLE, ScrapeOutcome.TIMEOUT, ScrapeOutcome.NOT_PROMETHEUS)


def plan_job(desired: Desired, observed: Observed, record: JobRecord, now: float) -> Plan:
    """Return what is to be done for one job now. Total: it never raises, whatever the cluster looks like."""
    made = unread.settled(_plan(desired, observed, record, now), desired, now)
    made = outcome.followed(made, desired)
    made = residency.noted(made, observed, record)
    marked = attention.with_attention(curve.marked(made), desired, now)
    return rollout_actors.noted(marked, observed, record, desired.rollout)


def _plan(desired: Desired, observed: Observed, record: JobRecord, now: float) -> Plan:
    context = PlanContext(desired, observed, record, now)
    made, wrong = missing_rule.rule_of(context)
    context.use = use = made if desired.metric else None
    answered = checkpoints.answer(context)
    if answered is not None:
        checkpoints.take_answer(context, answered)
    _accept(context, wrong)
    pod_troubles.note(context)
    starvation.note(context)
    not_carried_out.tell(context)
    retention.tell_place(context)
    access_pod.report_progress(context)
    linked_pins.leave_off(context)
    rollout_actors.carry_out(context)
    if desired.deleting:
        return _delete(context)
    if not _stop_under_way(context):
        checkpoints.leave_off(context)
    if endings.has_ended(context):
        return _finish(context, use)
    if endings.is_lost(context):
        _note_end(context, endings.how_it_ended(context))
        return _finish(context, use)
    if _stop_under_way(context):
        return _stop_or_resume(context, use)
    if observed.finalizer:
        context.act(SetFinalizer(False))  # of a stop that was taken back or resumed
    answer_early(context)
    if (
        context.problem is not None
        and context.record.admission is None
        and not location_claim.refused(context)
        and not _stopped_by_user(context)
    ):
        _keep_off(context)
        return context.plan(None)
    if observed.workload is None:
        return _create(context)
    if desired.run_state is RunState.STOPPED:
        user_stop(context)
        return _stop_or_resume(context, use)
    if context.record.admission is not None and context.record.admission.withdrawn is not None:
        return gang_timeout.withdraw(context)
    if external_queue.evicted(context) or context.record.preempting is not None:
        return _preempt(context, use)
    if context.record.admission is None and not adopt(context):
        linked_pins.detach(context)
        pins.keep(context)
        return _wait(context)
    return _run(context, use)


def _accept(context: PlanContext, wrong: str | None) -> None:
    """Say in condition Accepted whether the spec can be carried out. ``wrong``: with its stop rule.

    What is wrong with it, or with its pool, withholds admissions and stops (`PlanContext.problem`) and
    nothing else: a job that holds GPUs is read, and its best checkpoint protected, whatever befalls its pool.
    """
    context.problem = context.desired.problem
    if missing := _may_go_on_without(context):
        context.problem = None
    if context.problem is None and wrong is not None:
        context.problem = Problem("InvalidStopRule", f"spec.stopRule: {wrong}")
    location_claim.refuse(context)
    orphans.refuse(context)
    if context.problem is not None:
        context.conditions.set(c.ACCEPTED, False, *context.problem, warning=True)
    else:
        desired = context.desired
        rest = tuple(filter(None, (missing, desired.note, endings.expiry_note(context))))
        if doubts := scores.doubted_directions(desired):
            message = "; ".join((*doubts, *rest))
            context.conditions.set(c.ACCEPTED, True, c.DIRECTION_DOUBTFUL, message, warning=True)
        else:
            message = "; ".join(("the spec can be carried out", *rest))
            context.conditions.set(c.ACCEPTED, True, "Valid", message)


def _may_go_on_without(context: PlanContext) -> str:
    """Return what its pool's queue policy lacks of a job that was admitted before, as one sentence; "":
    nothing. A pool whose policy changed does not refuse the runs that it has let in: they come last in the
    queue."""
    problem = context.desired.problem
    if problem is None or problem.reason != DURATION_MISSING or not context.record.attempt:
        return ""
    return f"{problem.message}; it was admitted before, so it is queued, after the jobs that state theirs"


def _stopped_by_user(context: PlanContext) -> bool:
    """Return whether a user stops what runs, in a mode in which nothing else would suspend it."""
    workload = context.observed.workload
    runs = workload is not None and not workload.suspended
    return runs and context.desired.run_state is RunState.STOPPED and context.desired.mode is not Mode.ENFORCE


def _keep_off(context: PlanContext) -> None:
    """Keep a job off GPUs that is not admitted and cannot be: what it had started before is suspended, if
    somebody has started it again. (What nobody admitted yet may have run before its RLHFJob was made.)"""
    workload = context.observed.workload
    if workload is None or workload.finished is not None:
        return
    if not workload.suspended and context.desired.mode is Mode.ENFORCE and context.record.attempt:
        context.act(SuspendWorkload("NotAccepted"))
    else:
        external_queue.keep_off(context, "NotAccepted")


def _stop_under_way(context: PlanContext) -> bool:
    decision = context.record.decision
    return decision is not None and decision.mode is Mode.ENFORCE


def _stop_or_resume(context: PlanContext, use: RuleInUse | None) -> Plan:
    decision = context.record.decision
    assert decision is not None
    if decision.pods_gone_at is None:
        reads = context.record.admission is not None and context.desired.mode is not Mode.OFF
        if use is not None and reads and decision.suspended_at is None:
            _take_scrape(context, use)
            location_claim.within_attempt(context)
        return carry_out_stop(context, use)
    if use is not None and context.problem is None and resume(context, use):
        return _line_up(context)
    if after_suspend(context):
        pins.wait(context)
    else:
        pins.keep(context)
    if (amiss := endings.stays_off(context, decision.proposal.reason)) is not None:
        return amiss
    external_queue.keep_off(context, decision.proposal.reason)
    return context.plan(None)


def _line_up(context: PlanContext) -> Plan:
    """Queue a job that is to be resumed, unless its folder belongs to another RLHFJob by now."""
    location_claim.refuse(context)
    return context.plan(JobState.QUEUED if context.problem is None else None)


def _create(context: PlanContext) -> Plan:
    """No workload: make it from the template, or say that the one referred to is not there."""
    if context.desired.workload_ref:
        message = f"spec.workload.ref: there is no {context.desired.workload_ref} in this namespace"
        context.conditions.set(c.ACCEPTED, False, "WorkloadNotFound", message, warning=True)
    else:
        context.act(CreateWorkload())
    return context.plan(JobState.ADMITTED if context.record.admission is not None else None)


def _wait(context: PlanContext) -> Plan:
    """Queued: suspended, no GPUs. Why it waits is the pool's to say (`transitions.waiting`)."""
    workload, known = context.observed.workload, context.record.condition(c.ADMITTED)
    assert workload is not None
    if known is None or known.status:
        context.conditions.set(c.ADMITTED, False, "Queued", "waits for its pool's GPUs")
    incomplete.made_anew(context)
    left = context.conditions.get(c.RUNNING)
    if left is None or left.status or left.reason not in _STAY_OUT:
        context.conditions.set(c.RUNNING, False, "NotAdmitted", "no GPUs are granted yet")
    if not workload.suspended:
        # Somebody else started it. GPUs are granted by the pool alone.
        context.act(SuspendWorkload("NotAdmitted"))
        return context.plan(JobState.QUEUED)
    if orphans.wait(context):
        external_queue.keep_off(context, c.ORPHANED)
        return context.plan(None)
    location_claim.before_start(context)
    if location_claim.refused(context):
        external_queue.keep_off(context, access_requests.TAKEN)
        return context.plan(None)
    return external_queue.wait(context) or context.plan(JobState.QUEUED)


def _run(context: PlanContext, use: RuleInUse | None) -> Plan:
    """Admitted: start it, or watch it run."""
    record, workload = context.record, context.observed.workload
    assert record.admission is not None
    assert workload is not None
    whereabouts.note_bound(context)
    _set_admitted(context, context.conditions.is_true(c.RUNNING))
    context.conditions.drop(c.RELEASED)
    gang_timeout.note_ended(context)
    if gang_timeout.watch_binding(context):
        return gang_timeout.withdraw(context)
    if workload.suspended:
        _tell_if_suspended(context)
        if location_claim.refused(context) and context.problem is not None:
            return gang_timeout.give_back(context, context.problem)
        if orphans.refused(context) and context.problem is not None:
            return gang_timeout.give_back(context, context.problem)
        if (late := residency.overdue(context)) is not None:
            return gang_timeout.give_back(context, late)
        if not scaled.told(context):
            _start(context)
        return context.plan(JobState.ADMITTED)
    if withdrawal.asked_to_stop(context):
        return _start_again(context)
    if _started_early(context):
        message = "somebody started it with an earlier attempt's run.json: it is started anew"
        return _start_anew(context, message, SuspendWorkload("NotAdmitted"))
    _watch_start(context)
    proposal = None
    if use is not None:
        proposal = _watch(context, use)
    else:
        _unwatched(context)
    linked_pins.detach(context)
    pins.keep(context)
    location_claim.within_attempt(context, retry=True)
    run_file_gone.make_again(context)
    if proposal is not None and context.problem is not None:
        refused = f"to be stopped, but the spec cannot be carried out as it is: {context.problem.message}"
        context.conditions.set(c.TERMINATION, False, "NotAccepted", refused)
        proposal = None
    return context.plan(JobState.ADMITTED, proposal)


def _start(context: PlanContext) -> None:
    """Write `<name>-run` for this attempt, then unsuspend once the last attempt's pods are out of the way."""
    record, workload = context.record, context.observed.workload
    assert record.admission is not None
    assert workload is not None
    restored = record.restored
    wanted = RunFile(
        attempt=record.admission.number,
        resume_path=restored.path if restored is not None else "",
        resume_step=restored.step if restored is not None else None,
        request_id=record.run.request_id,
        reference_step=record.run.reference_step,
        uid=context.desired.uid,
        scrape_interval=context.desired.scrape_interval,
        minimize=context.desired.minimize,
        best_metric=record.run.best_metric,
        best_step=record.run.best_step,
    )
    context.update(run=wanted)
    if location_claim.before_start(context):
        message = f"attempt {wanted.attempt} is to start once the checkpoint folder is claimed"
        message += access_pod.how_far(context)
        context.conditions.set(c.RUNNING, False, "ClaimingLocation", message)
        return
    context.conditions.set(c.RUNNING, False, "Starting", f"attempt {wanted.attempt} is being started")
    if context.observed.run_written != wanted:
        context.act(WriteRun(wanted))
        context.wake_in(1.0)
    elif not residency.ready(context):
        return
    elif context.observed.orphans:
        context.conditions.set(c.RUNNING, False, "Starting", orphans.awaited(context))
    elif workload.settled and context.pods_left == 0 and external_queue.may_start(context):
        gang_timeout.started(context)
        context.act(StartWorkload(wanted.attempt, record.admission.nodes))


def _tell_if_suspended(context: PlanContext) -> None:
    """Say once that somebody else has suspended a run that ran: it is started again, in the same attempt."""
    if context.conditions.is_true(c.RUNNING):
        message = (
            "its workload was suspended, and not by EvalStop: it is started again; to stop the run, set "
            "spec.runState: Stopped (evalstop stop)"
        )
        context.event("SuspendedByOthers", message, warning=True)


def _started_early(context: PlanContext) -> bool:
    """Return whether pods of an earlier attempt run.

    Somebody unsuspended the workload between the admission and its start. Nothing that these pods show would
    count, and they hold GPUs that nobody planned for them.
    """
    admission = context.record.admission
    assert admission is not None
    return context.observed.queue is None and any(
        p.admission is not None and p.admission < admission.number
        for p in context.observed.pods
        if not p.terminal and p.deleting_since is None
    )


def _start_again(context: PlanContext) -> Plan:
    """Start a run again where it is: its stop was withdrawn when the trainer was already told to end."""
    restored, scrape = context.record.restored, context.observed.scrape
    saved = scrape.checkpoint_step if scrape is not None else None
    if restored is not None and saved is not None and saved > restored.step:
        context.update(restored=None)
    message = "its stop was called off after it had been asked to stop training: it is started anew"
    return _start_anew(context, message, SuspendWorkload("StopTakenBack", again=True))


def _start_anew(context: PlanContext, message: str, suspend: SuspendWorkload) -> Plan:
    """Suspend an admitted run, so that it is started once its pods are gone."""
    context.conditions.set(c.RUNNING, False, "Restarting", message)
    context.act(suspend)
    return context.plan(JobState.ADMITTED)


def _set_admitted(context: PlanContext, runs: bool) -> None:
    """Say where the gang has its GPUs: a plan only until its pods are there."""
    assert context.record.admission is not None
    where = whereabouts.place(context.record.admission)
    place = where or ("and in use" if runs else "planned on any node")
    context.conditions.set(c.ADMITTED, True, "Admitted", f"GPUs granted, {place}")


def _watch_start(context: PlanContext) -> None:
    record, ready = context.record, sum(1 for p in context.observed.pods if p.ready and not p.terminal)
    assert record.admission is not None
    if scaled.told(context):
        return
    if ready >= context.desired.replicas:
        if record.admission.running_since is None:
            context.update(admission=replace(record.admission, running_since=context.now))
        context.update(expected=stated(record.expected, context.desired))
        context.conditions.set(
            c.RUNNING, True, "Running", f"attempt {record.admission.number}: all members are ready"
        )
        _set_admitted(context, True)
    elif not context.conditions.is_true(c.RUNNING) or _some_are_gone(context):
        context.conditions.set(
            c.RUNNING, False, "Starting", f"{ready} of {context.desired.replicas} members are ready"
        )


def _some_are_gone(context: PlanContext) -> bool:
    """Return whether members of a gang that was whole are not there any more, and did not end well. Of those
    that crash their mark tells."""
    if context.record.pod_trouble is not None:
        return False
    there = sum(1 for p in context.observed.pods if not p.terminal)
    return there + gang_timeout.ended_well(context.observed) < context.desired.replicas


def _watch(context: PlanContext, use: RuleInUse) -> Proposal | None:
    """Take in new evals, secure the best one, and judge."""
    if context.desired.mode is Mode.OFF:
        for type_ in (c.DECLINING, c.GUARDRAILS, c.DEMOTED, c.SECURED, c.ABLE):
            context.conditions.drop(type_)
        if context.desired.capped_off:
            message = "its pool's modeCap is Off: its evals are not read, and nothing stops it"
            context.conditions.set(c.METRICS, False, "CappedOff", message)
        else:
            message = "its mode is Off: its evals are not read, and nothing stops it"
            context.conditions.set(c.METRICS, False, c.MODE_OFF, message)
        return None
    use = _take_scrape(context, use)
    location_claim.within_attempt(context)
    if context.desired.mode is Mode.ENFORCE:
        checkpoints.secure_best(context)
    unable.note(context, use)
    return verdicts.judge(context, use)


def _unwatched(context: PlanContext) -> None:
    """Set the condition that the spec names no metric that could be read."""
    reason = context.problem.reason if context.problem is not None else "NotAccepted"
    context.conditions.set(
        c.METRICS, False, reason, "the spec names no metric that could be read", warning=True
    )


def _take_scrape(context: PlanContext, use: RuleInUse) -> RuleInUse:
    """Take in what the page says; return the rules as they are used from now on."""
    before = context.record
    use = _take_evals(context, use)
    unread.note(context)
    news = context.record.evals is not before.evals
    progress.note(context, news=news)
    restarts.note_checkpoint(context, before)
    step_counts.note(context, use, before)
    verdicts.report_dropped(context, use, before)
    if news:
        verdicts.count_past(context, before)
    return use


def _take_evals(context: PlanContext, use: RuleInUse) -> RuleInUse:
    scrape, record = context.observed.scrape, context.record
    use = use.without_ranges([one.metric for one in record.out_of_range], context.desired.metric)
    told = scrape.points if scrape is not None and scrape.outcome is ScrapeOutcome.OK else ()
    if contradicts_its_errors(record, [p for p in told if is_eval(p)]):
        use = use.without_errors()
    if scrape is None:
        return use
    if scrape.outcome is ScrapeOutcome.NO_PODS and endings.has_ended(context):
        return use  # it stays as it was last read: `unread` says what of that is still true
    if scrape.outcome is not ScrapeOutcome.OK:
        hint = context.desired.address_hint if scrape.outcome in _ELSEWHERE else ""
        message = "; ".join(filter(None, (scrape.message, hint)))
        unread_for = run_on.ended(context) or Problem(str(scrape.outcome), message)
        context.conditions.set(c.METRICS, False, *unread_for)
        return use
    if refused := lives.refusal(context.record, context.desired.uid, scrape):
        context.conditions.set(c.METRICS, False, *refused, warning=True)
        return use
    former = lives.start(context.record)
    context.record = begin_life(context.record, use, scrape)
    restarts.look(context, scrape, former[0] if former is not None else None)
    metric = context.desired.metric
    if metric not in scrape.metrics_seen:
        reason = "NoEvalsYet" if _may_come_yet(context, scrape) else "MetricMissing"
        message = _no_eval_of(metric, context.desired.metric_index, scrape)
        context.conditions.set(c.METRICS, False, reason, message)
        return use
    before = context.record
    context.record = scores.noted(context.record, context.desired, scrape)
    use = use.without_ranges([one.metric for one in context.record.out_of_range], metric)
    _begin_anew(context, use, scrape)
    context.record = guardrails.watch(ingest(context.record, use, scrape), use.guards, scrape)
    _begin_anew_in_other_unit(context, use)
    notes = [scrape.message] if scrape.message else []
    if ignored := ignored_steps(context.record, scrape):
        steps = ", ".join(map(str, ignored[:5]))
        notes.append(f"ignored, because steps must increase within an attempt: step {steps}")
    notes += filter(None, [_missing_proxy(context, scrape)])
    if context.record.lives:
        life = context.record.lives[-1].attempt
        notes += scores.complaints(context.desired, context.record, scrape, life)
    notes += filter(None, [score_unit.complaint(context.record, metric)])
    progress.watch_evals(context, before)
    if anew := progress.steps_began_anew(context):
        context.conditions.set(c.METRICS, False, progress.STEPS_BEGAN_ANEW, "; ".join([anew, *notes]))
        return use
    if quiet := progress.without_evals(context):
        context.conditions.set(c.METRICS, False, "NoNewEvals", "; ".join([quiet, *notes]))
        return use
    if context.record.evals_seen and progress.newest_are_not_finite(context):
        read = f"evals of {metric!r} are being read"
        context.conditions.set(c.METRICS, True, c.NOT_FINITE, "; ".join([read, *notes]))
        return use
    if not context.record.evals_seen:
        none = f"none of the evals of {metric!r} on its page can be used so far"
        context.conditions.set(c.METRICS, False, "NoEvalsYet", "; ".join([none, *notes]))
        return use
    context.conditions.set(
        c.METRICS, True, "Scraped", "; ".join([f"evals of {metric!r} are being read", *notes])
    )
    return use


def _missing_proxy(context: PlanContext, scrape: ScrapeView) -> str:
    """Return in words that the metric of role Proxy is not on a page that has evals; "": it is, or none is
    named."""
    proxy = context.desired.proxy
    if proxy is None or proxy.metric in scrape.metrics_seen:
        return ""
    if any(p.proxy is not None for p in scrape.points):
        return ""  # the page names it beside each eval
    close = nearest(proxy.metric, set(scrape.metrics_seen) - {context.desired.metric})
    question = f", {did_you_mean(close)}" if close else ""
    return f"no eval of {proxy.metric!r}, of role Proxy, is exported{question}"


def _no_eval_of(metric: str, index: int, scrape: ScrapeView) -> str:
    seen = scrape.metrics_seen
    where = f"spec.metrics[{index}]" if index else "spec.metrics"
    if scrape.misplaced:
        return f"{where}: no eval of {metric!r} is exported; {scrape.misplaced}"
    close = nearest(metric, seen)
    question = f"; {did_you_mean(close)}" if close else ""
    full = f"; a page has {METRICS_KEPT} at most, those reported first" if len(seen) >= METRICS_KEPT else ""
    told = f"{where}: no eval of {metric!r} is exported{full}; names seen: {', '.join(seen) or 'none yet'}"
    return f"{told}{question}"


def _may_come_yet(context: PlanContext, scrape: ScrapeView) -> bool:
    """Return whether nothing on a page says that evals of the Primary metric will not come: there is none, or
    a process that has begun again has so far scored what else the spec names."""
    desired, seen = context.desired, set(scrape.metrics_seen)
    if scrape.misplaced or not seen or not context.record.evals_seen:
        return not scrape.misplaced and not seen
    named = {guard.metric for guard in desired.guardrails}
    return seen <= (named if desired.proxy is None else {*named, desired.proxy.metric})


def _begin_anew(context: PlanContext, use: RuleInUse, scrape: ScrapeView) -> None:
    """Forget evals that cannot be compared with those to come, and say so."""
    before, fall = context.record, context.observed.fleet.fall
    context.record = after = begin_anew(before, use, scrape, fall)
    if after.baseline != before.baseline:
        context.update(guards=guardrails.begun_anew(before.guards), confirming=None)
    if after.evals == before.evals or not before.evals:
        return
    if after.evaluator != before.evaluator:
        why = f"the evaluator changed from {before.evaluator!r} to {after.evaluator!r}"
    else:
        assert fall is not None
        why = f"{fall.fell} of {fall.of} jobs of the pool fell at the same moment"
    _report_begun_anew(context, before, why)


def _begin_anew_in_other_unit(context: PlanContext, use: RuleInUse) -> None:
    """Forget evals before the scores changed their unit, and say so."""
    before = context.record
    context.record = after = in_other_unit(before, use)
    if after is not before:
        context.update(confirming=None)
        _report_begun_anew(context, before, score_unit.complaint(after, context.desired.metric))


def _report_begun_anew(context: PlanContext, before: JobRecord, why: str) -> None:
    after = context.record
    last = before.evals[len(before.evals) - len(after.evals) - 1].step
    message = f"{why}: evals up to step {last} are not compared with later ones, the rule begins anew"
    if after.baseline is not None and after.baseline.kept is not None:
        message += f"; the checkpoint of step {after.baseline.kept.step}, best until then, stays pinned"
        message += short_baselines.stays_until(after.baseline)
    context.event("BeganAnew", message, warning=True)
    context.conditions.set(c.DECLINING, False, "BeganAnew", message)
    if context.record.decision is None:
        context.conditions.drop(c.TERMINATION)


def _preempt(context: PlanContext, use: RuleInUse | None) -> Plan:
    """On its way back into the queue; until it is suspended it trains, and may have a new best."""
    going = context.record.preempting
    trains = going is not None and going.lost is None and context.record.admission is not None
    if use is not None and trains and context.desired.mode is not Mode.OFF:
        _take_scrape(context, use)
        location_claim.within_attempt(context)
        if context.desired.mode is Mode.ENFORCE:
            checkpoints.secure_best(context)
    return preemption.carry_out(context)


def _finish(context: PlanContext, use: RuleInUse | None) -> Plan:
    """Record that the workload ended by itself; it stays ended even if its object is deleted later.

    Its last evals are taken in while a pod still shows them.
    """
    workload = context.observed.workload
    if use is not None and context.record.admission is not None and context.desired.mode is not Mode.OFF:
        use = _take_scrape(context, use)
        context.record = settle_agreeing(context.record, use)
    if context.record.finished is None and workload is not None:
        end = workload.finished or ""
        _note_end(context, Ending(end, end, workload.message or "the workload ended"))
    context.conditions.set(c.RUNNING, False, "Finished", "the workload ended")
    decision = context.record.decision
    if decision is not None and decision.mode is Mode.ENFORCE and decision.suspended_at is None:
        context.conditions.set(
            c.TERMINATION, False, "FinishedFirst", "the run ended before its stop was carried out"
        )
        withdrawal.forget(context, decision, "FinishedFirst")
    if not endings.is_unknown(context):
        answer_early(context)
    elif use is not None and context.problem is None and not context.pods_left and resume(context, use):
        return _line_up(context)
    copying = _stop_under_way(context) and after_suspend(context)
    if context.observed.finalizer and not copying:
        context.act(SetFinalizer(False))
    if endings.runs_again(context) and not copying:
        pins.keep(context)
    if (amiss := endings.stays_off(context, context.record.finished or "")) is not None:
        return amiss
    if context.record.admission is not None and endings.wait_for_pods(context):
        return context.plan(JobState.STOPPING)
    context.update(admission=None)
    _note_gone(context)
    if copying:
        return context.plan(None)
    _secure_what_is_left(context)
    pins.keep(context)
    context.conditions.set(c.RELEASED, True, "PodsGone", "all pods are gone or terminal")
    return context.plan(None)


def _note_gone(context: PlanContext) -> None:
    """Record that the pods of a stop are gone, of a run that ended while it was suspended."""
    decision = context.record.decision
    if _stop_under_way(context) and decision is not None and decision.pods_gone_at is None:
        context.update(decision=replace(decision, pods_gone_at=context.now))


def _secure_what_is_left(context: PlanContext) -> None:
    """Pin the best checkpoint of a run that has ended, if it is not pinned yet.

    If it is gone, the next best takes its place (`checkpoints`); an unreachable store is tried until it
    answers, or until the workload is gone, by whose pod template it is reached.
    """
    waited = context.record.access
    if context.observed.workload is not None:
        if context.desired.mode is Mode.ENFORCE:
            checkpoints.secure_best(context)
    elif (
        waited is not None
        and waited.operation is Operation.SECURE
        and not access_requests.running(context, waited)
    ):
        access_requests.give_up(context)


def _note_end(context: PlanContext, ending: Ending) -> None:
    """Record that the run is over, and why."""
    verdicts.count_past(context, context.record)
    served = own(context.desired, context.record, context.now)
    context.update(finished=ending.counts_as, attained=served, preempting=None)
    waited = context.record.access
    if waited is not None and waited.operation in (Operation.CLAIM, Operation.RESTORE):
        access_requests.give_up(context)  # what pins or copies goes on: its answer says what is safe
    complete = ending.counts_as == "Complete"
    type_ = c.COMPLETED if complete else c.FAILED
    message = ending.message if complete else pod_troubles.with_last_words(context.record, ending.message)
    context.conditions.set(type_, True, ending.reason, message, warning=not complete)


def _delete(context: PlanContext) -> Plan:
    """Being deleted: finish a retention that has begun, then let go. The workload goes with its owner.

    It may be gone by now (a deletion in the foreground takes what the RLHFJob owns first): the access Job is
    then made by the template in the spec.
    """
    queue = JobState.STOPPING if context.pods_left or context.actors_left else None
    decision = context.record.decision
    if _stop_under_way(context) and decision is not None and retention.promised(context):
        lost = context.observed.workload is None and bool(context.desired.workload_ref)
        if not lost and retention.before_deletion(context):
            context.conditions.set(
                c.TERMINATION, True, decision.proposal.reason, "deleted once its best checkpoint is retained"
            )
            return context.plan(queue)
        if context.record.decision is not None and context.record.decision.retained_at is None:
            condition = context.conditions.get(c.RETAINED)
            why = f": {condition.message}" if condition is not None and not condition.status else ""
            kept = context.record.secured
            pin = f"; its pin stays at {kept.path}" if kept is not None else ""
            message = f"deleted before its best checkpoint could be retained{pin}{why}"
            if condition is None or condition.reason != retention.GIVEN_UP:
                context.conditions.set(c.RETAINED, False, retention.GIVEN_UP, message, warning=True)
            access_requests.give_up(context)
    if context.observed.finalizer:
        context.act(SetFinalizer(False))
    return context.plan(queue)
