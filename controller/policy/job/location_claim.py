"""The claim on the checkpoint folder before each attempt: no other RLHFJob has it, and its content is noted.

A checkpoint belongs to the process that wrote it. What lay there before the job's first admission is
nobody's; what lay there when a process began is an earlier one's. So an access Job takes the folder
(`claim`) while the job waits, and again when a process begins within an attempt. A start waits for it a
while only: without it checkpoints are told by the trainer's save records alone.

For the same reason nothing waits long for a claim: one that has failed, or takes long, gives way to whatever
else is to be done, and is made again later. Between its tries no request is on record. Where another RLHFJob
has the folder the job is not accepted until that has changed.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import access_requests, evals, guardrails, lives, remedies
from controller.policy.job import conditions as c
from controller.policy.job.access_requests import TAKEN
from controller.policy.job.context import PlanContext
from controller.policy.job.record import Claim, InFlight, Operation
from controller.policy.job.types import AccessView, StartAccess
from controller.policy.types import Attempt, Mode, Problem

START_WAITS = 30.0  # s that a start, and what a first claim goes before, waits for the folder to be claimed
_WAITS = (Operation.PIN, Operation.DETACH)  # for a first claim
TAKEN_AGAIN = 60.0  # s after which, at most, a folder that another RLHFJob has is asked for again


def before_start(context: PlanContext) -> bool:
    """Claim the folder for the attempt to come; whether the start is still to wait for it."""
    if not _wanted(context):
        return False
    admission = context.record.admission
    number = admission.number if admission is not None else context.record.attempt + 1
    known = context.record.claim
    if _claimed(context, number):
        return False
    _drop_left_over(context)
    _claim(context, Attempt(number))
    if admission is None:
        return True
    left = admission.at + START_WAITS - context.now
    if left > 0:
        context.wake_in(left)
        return True
    if known is None or (known.attempt != number and known.problem != TAKEN):
        why = f"not claimed within {START_WAITS:.0f} s"
        context.update(claim=Claim(number, context.now, problem=why))
    return taken(context)


def within_attempt(context: PlanContext, *, retry: bool = False) -> None:
    """Claim the folder anew when another process has begun within the attempt, or none was claimed yet.

    ``retry``: try a claim again that has failed, which is done once all else was begun; not a first one.
    """
    record = context.record
    if not _wanted(context) or not record.lives or record.admission is None:
        return
    life, known = record.lives[-1].attempt, record.claim
    first = sum(1 for one in record.lives if one.attempt.number == life.number) == 1
    alone = first and not lives.after_unseen(record)
    if _claimed(context, life.number) and (alone or (known is not None and known.life == life.life)):
        return
    if retry == bool(_failures(context, life)):
        _claim(context, life)


def goes_first(context: PlanContext, *, retries: bool = False) -> bool:
    """Return whether a claim under way is waited for: the first one of its process, and not for long.

    ``retries``: so are later ones, by what is less urgent.
    """
    waited = context.record.access
    if waited is None or waited.operation is not Operation.CLAIM or waited.started is None:
        return False
    if waited.tries and not retries:
        return False
    left = waited.started + START_WAITS - context.now
    if left > 0:
        context.wake_in(left)
    return left > 0


def may_tell(context: PlanContext) -> bool:
    """Return whether the best's pin failed for what a claim may tell: whose the checkpoint is that lies
    there."""
    condition = context.conditions.get(c.SECURED)
    return condition is not None and not condition.status and condition.reason == "CheckpointIncomplete"


def _drop_left_over(context: PlanContext) -> None:
    """Wait no longer for a pin of the best that a run asked for which has ended since, where its Job is not
    there: none is made before the next start, so a claim that waited for it would not be made either."""
    waited = context.record.access
    if waited is None or waited.operation is not Operation.SECURE:
        return
    if not any(view.request_id == waited.request_id for view in context.observed.access):
        access_requests.give_up(context)


def taken(context: PlanContext) -> bool:
    """Return whether another RLHFJob has the folder, as far as that matters to a run that is not over."""
    record, decision = context.record, context.record.decision
    claim = record.claim
    if claim is None or claim.problem != TAKEN or record.finished is not None or not _in_use(context):
        return False
    return decision is None or decision.mode is not Mode.ENFORCE or decision.pods_gone_at is None


def comes_first(context: PlanContext) -> bool:
    """Return whether nothing can be pinned before the folder is claimed: another RLHFJob has it, which may be
    a deleted one that only a claim follows. A stop does not wait for that."""
    return taken(context) and context.record.decision is None


def note_taken(context: PlanContext, message: str) -> bool:
    """Record that the folder belongs to another RLHFJob, as a Job that was to pin found.

    Returns whether the folder is claimed again before the next Job.
    """
    life, known = lives.newest(context.record), context.record.claim
    tries, at = _failures(context, life), known.at if known is not None else context.now
    text = message[: c.MAX_MESSAGE]
    context.update(claim=Claim(life.number, at if tries else context.now, life.life, TAKEN, text, tries))
    return comes_first(context)


def refuse(context: PlanContext) -> None:
    """Refuse a job whose checkpoint location belongs to another RLHFJob."""
    claim = context.record.claim
    if context.problem is None and claim is not None and taken(context):
        context.problem = Problem(TAKEN, claim.message)


def refused(context: PlanContext) -> bool:
    """Return whether nothing but its folder keeps the job from being accepted: it goes on being asked for."""
    return context.problem is not None and context.problem.reason == TAKEN


def take_answer(context: PlanContext, waited: InFlight, answered: AccessView) -> None:
    """Write a claim's answer into the record; a claim that failed is tried again later."""
    life = waited.attempt
    if answered.ok:
        _report_earlier(context, life, answered.step or 0)
        empty_at = str(life) if answered.deferred else ""
        claim = Claim(life.number, context.now, life.life, newest_step=answered.step or 0)
        context.update(access=None, claim=claim, empty_at=empty_at)
        context.record = lives.claimed(context.record, life)
        if lives.newest(context.record) == life:
            context.record = evals.leaving(context.record)
            if answered.other_branch:
                context.record = lives.began_elsewhere(context.record)
                _begin_anew(context)
        if context.conditions.get(c.CLAIMED) is not None:
            context.conditions.set(c.CLAIMED, True, "Claimed", "the checkpoint folder is this RLHFJob's")
        return
    if answered.reason == TAKEN and _follows(context, waited, answered):
        return
    reason = answered.reason or "AccessFailed"
    context.update(access=None)
    claim = access_requests.note_unclaimed(context, waited, reason, answered.message)
    delay = _delay(claim)
    context.wake_in(delay)
    message = remedies.retry(Problem(reason, answered.message), claim.tries, delay)
    context.conditions.set(c.CLAIMED, False, reason, message, warning=True)


def _report_earlier(context: PlanContext, life: Attempt, newest_step: int) -> None:
    """Tell of checkpoints that lay in the folder before the job's first attempt, which its trainer may go on
    from."""
    record = context.record
    known = record.claim
    first = life.number <= 1 and not record.lives and not record.evals and record.restored is None
    if not newest_step or not first or (known is not None and not known.problem):
        return
    message = (
        f"its checkpoint folder holds checkpoints up to step {newest_step} from before this RLHFJob: a "
        "trainer that looks for the newest one goes on from there; for a run from the start, name an empty "
        "folder in spec.checkpoints.location"
    )
    context.event("EarlierCheckpoints", message)


def _begin_anew(context: PlanContext) -> None:
    """Begin the rules anew: the newest process started from a checkpoint of another branch."""
    use = context.use
    if use is None:
        return
    after = evals.on_another_branch(context.record, use)
    if after is not context.record:
        context.record = replace(after, guards=guardrails.begun_anew(after.guards, use.guards))


def _follows(context: PlanContext, waited: InFlight, answered: AccessView) -> bool:
    """Return whether the folder is that of a deleted RLHFJob of this namespace: claimed again at once, as its
    follower. A name has one RLHFJob at a time, so one of this very name is deleted."""
    holder = answered.holder
    if holder is None or not (holder[1] == context.desired.key or answered.holder_gone):
        return False
    if holder[0] in (context.desired.uid, waited.former):
        return False
    follower = replace(waited, former=holder[0])
    _start(context, access_requests.again(context, follower, waited.tries, context.now))
    return True


def _in_use(context: PlanContext) -> bool:
    return context.desired.mode is Mode.ENFORCE or bool(context.desired.pins)


def _wanted(context: PlanContext) -> bool:
    return context.observed.workload is not None and _in_use(context)


def _claimed(context: PlanContext, number: int) -> bool:
    """Return whether the folder is claimed for an attempt. A claim that wrote nothing there, because nobody
    knew as whom, is made again once that is known."""
    record = context.record
    known, deferred = record.claim, bool(record.empty_at) and record.file_owner is not None
    return known is not None and known.attempt == number and not known.problem and not deferred


def _failures(context: PlanContext, attempt: Attempt) -> int:
    """Return how often the claim for this very process has failed."""
    known = context.record.claim
    if known is None or not known.problem or (known.attempt, known.life) != (attempt.number, attempt.life):
        return 0
    return known.tries


def _delay(claim: Claim) -> float:
    """Return seconds from a claim's failure to the next."""
    if claim.problem == TAKEN:
        return access_requests.retry_delay(max(1, claim.tries), TAKEN_AGAIN)
    return access_requests.retry_delay(claim.tries, access_requests.RETRY_RARELY)


def _claim(context: PlanContext, attempt: Attempt) -> None:
    waited, known = context.record.access, context.record.claim
    if waited is None or (waited.operation, waited.attempt) != (Operation.CLAIM, attempt):
        tries = _failures(context, attempt)
        if waited is not None and waited.operation not in (*_WAITS, Operation.CLAIM):
            # What it keeps safe comes first. A pin that failed may lack just this answer: whose checkpoint
            # the process started from. So a claim goes before the next try: the first one, and a later one
            # that is due where the pin may lack it still.
            again = waited.operation is Operation.SECURE and waited.tries
            again = again and (not tries or may_tell(context))
            if not again or access_requests.running(context, waited):
                return
        if tries and known is not None:
            if (left := known.at + _delay(known) - context.now) > 0:
                context.wake_in(left)
                return
            if waited is not None and waited.operation in _WAITS and access_requests.running(context, waited):
                return  # only a first claim goes before these
        access_requests.give_up(context)
        waited = access_requests.begin(context, Operation.CLAIM, attempt.number, attempt=attempt, tries=tries)
    _start(context, waited)


def _start(context: PlanContext, waited: InFlight) -> None:
    request = StartAccess(
        waited.request_id,
        Operation.CLAIM,
        waited.step,
        attempt=waited.attempt,
        branch=lives.branch_by_steps(context.record, lives.newest(context.record)),
        former=waited.former,
    )
    access_requests.start(context, waited, request)
