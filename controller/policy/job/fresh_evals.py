"""Evals that are asked of the trainer at once: to confirm a stop, or to bear out one that the gate holds.

Both are one request in the run file, one field of the record (`JobRecord.confirming`). The newest eval asks;
the next one answers, whether it was asked for or came by itself.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job import trainer_requests
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Confirming
from controller.policy.job.rule_in_use import RuleInUse, made_under
from controller.policy.job.types import Desired
from controller.policy.params import build
from controller.policy.stopping import MODIFIERS
from controller.policy.stopping.confirm import STOP, Confirm, ConfirmParams
from controller.policy.types import Mode, Verb, Verdict


def bear_out(context: PlanContext, use: RuleInUse, verdict: Verdict) -> str:
    """Ask for an eval where the gate holds one back; return what is to be told of it.

    Nobody is asked in Shadow, once a stop is under way, or while `confirm` asks (``verdict``) by itself.
    Where the trainer cannot be asked, the next eval that it makes decides.
    """
    if verdict.verb is Verb.CONFIRM:
        return ""
    waits = context.record.decision is None and _waits(context, use)
    if not waits or not trainer_requests.can_be_asked(context):
        context.update(confirming=None)
        return ""
    waiting = _waiting(context)
    if not waiting.request_id:
        waiting = replace(waiting, request_id=trainer_requests.ask_for_eval(context))
    context.update(confirming=waiting)
    return f"; request {waiting.request_id} asks for an eval at once"


def confirmed(context: PlanContext, verdict: Verdict, numbers: str) -> Verdict:
    """Return the verdict once the matter of the fresh eval that `confirm` wants is settled or under way.

    A run never hangs on it: it trains on, and its own next eval is fresh too. What holds where the trainer
    cannot be asked, or does not answer in time, is the modifier's parameter ``unanswered``.
    """
    if verdict.verb is not Verb.CONFIRM:
        return verdict
    params, waiting = _confirm_params(context.desired), _waiting(context)
    askable = trainer_requests.can_be_asked(context)
    if askable and not waiting.request_id and trainer_requests.best_to_compare(context) is not None:
        # Not before: the best is to be scored on the same prompts, and is named in the same breath.
        waiting = replace(waiting, request_id=trainer_requests.ask_for_eval(context))
    context.update(confirming=waiting)
    left = waiting.at + params.wait_seconds - context.now
    if (askable or waiting.request_id) and left > 0:
        context.wake_in(left)
        how = f"by request {waiting.request_id}" if waiting.request_id else "once the best is in safety"
        message = f"to be stopped if a fresh eval bears it out, asked for {how} ({numbers})"
        _set_target_condition(context, "AwaitingFreshEval", message)
        return verdict
    if params.unanswered == STOP and context.desired.mode is Mode.ENFORCE:
        return verdict._replace(verb=Verb.STOP, reason="Unconfirmed")
    why = "the trainer cannot be asked for one"
    if waiting.request_id:
        why = f"request {waiting.request_id} was not answered within {params.wait_seconds} s"
    elif context.desired.mode is Mode.SHADOW:
        why = "in Shadow none is asked for"
    message = f"to be stopped if its next eval bears it out: {why} ({numbers})"
    _set_target_condition(context, "AwaitingNextEval", message)
    return verdict


def _confirm_params(desired: Desired) -> ConfirmParams:
    chosen = next((m for m in desired.modifiers if m.name == Confirm.name), None)
    assert chosen is not None, "only `confirm` says CONFIRM"
    params: ConfirmParams = build(MODIFIERS[chosen.name].params, chosen.params, chosen.name)
    return params


def _waits(context: PlanContext, use: RuleInUse) -> bool:
    """Return whether an eval of the Primary metric or of a guardrail waits to be borne out."""
    record = context.record
    if record.rule is not None and made_under(record, use) and use.could_bear_out(record.rule.state):
        return True
    known = ((guard, use.guards.get(guard.metric)) for guard in record.guards)
    return any(
        own is not None and g.params_hash == own.params_hash and own.could_bear_out(g.state)
        for g, own in known
    )


def _waiting(context: PlanContext) -> Confirming:
    """Return what is asked after the newest eval: as it was noted, or anew."""
    newest, waiting = context.record.evals[-1].step, context.record.confirming
    lost = waiting is not None and waiting.request_id and not context.record.run.evaluate
    if waiting is None or waiting.step != newest or lost:
        # A preemption in between takes the request back: the next attempt is asked anew.
        return Confirming(newest, context.now)
    return waiting


def _set_target_condition(context: PlanContext, reason: str, message: str) -> None:
    """Say in TerminationTarget what keeps a verdict from being a stop, unless one is under way."""
    decision = context.record.decision
    if decision is None or decision.mode is not Mode.ENFORCE:
        context.conditions.set(c.TERMINATION, False, reason, message)
