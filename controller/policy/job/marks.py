"""Faults of a job that need a hand: the one reading of its record that every surface shows.

Decided here: which marks a job bears, why, since when, from when on each is a warning, and what to do. A mark
is at first a quiet note: a wrong port looks like a model that loads for twenty minutes. It is a warning at
once where nothing but a fault explains it, else after the time that its kind allows.
May import: the record, the conditions, and the cures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.job import conditions as c
from controller.policy.job import (
    constant_score,
    ended_early,
    not_carried_out,
    residency,
    restarts,
    rollout_health,
    unread,
)
from controller.policy.job.conditions import AWAITS_CONTROLLER, MEMBERS_ENDED
from controller.policy.job.cures import CURES, KUEUE, Cure, cure_of, key_of, whose_move
from controller.policy.job.past_losses import unsaved
from controller.policy.job.pod_words import FULL, pod_sentence
from controller.policy.job.record import (
    FAILED_CREATE,
    NO_SCHEDULER,
    NODE_NOT_READY,
    QUIET_INTERVALS,
    QUIET_LEAST,
    UNSCHEDULABLE,
    Condition,
    Decision,
    JobRecord,
    PodTrouble,
)
from controller.policy.job.rule_in_use import disbelieves_errors
from controller.policy.stopping import noise
from controller.policy.types import Mode, Problem
from controller.policy.wording import ENDED_WITHOUT


class Mark(StrEnum):
    """A fault of a job. The order is that in which they are shown."""

    FAILED = "Failed"  # its workload failed; first, for it stays so, whatever its spec is refused for since
    REFUSED = "Refused"  # its spec cannot be carried out
    CRASHING = "Crashing"  # its trainer, or its worker group's worker, ends again and again
    NOT_STARTING = "NotStarting"  # a pod of it waits for what does not come: an image, a Secret
    STUCK = "Stuck"  # it is off, or to be, and still holds GPUs; or a node under it is lost
    UNSAFE = "Unsafe"  # its best checkpoint, or one that its user named, is not in safety
    UNWATCHED = "Unwatched"  # its evals are not read
    BLIND = (
        "Blind"  # they are read, and its rule lacks what it judges by, or can stop nothing: nothing stops it
    )
    WOULD_STOP = "WouldStop"  # in Shadow, or beyond the pool's limit: its rule would have stopped it
    UNFIT = "Unfit"  # it asks for more GPUs than its pool has
    HELD_UP = "HeldUp"  # it waits, and somebody can help
    STARVED = "Starved"  # its steps lack rollout actors or turns, or are not planned


@dataclass(frozen=True, slots=True)
class Finding:
    """One mark.

    Attributes:
        reason: CamelCase code.
        message: for people.
        since: when it began (s).
        due: when it becomes a warning (s); infinite: never by itself.
        warning: whether it is one now.
    """

    mark: Mark
    reason: str
    message: str
    since: float
    due: float
    warning: bool = False

    @property
    def code(self) -> str:
        """Return the key of its cure: its reason, where that is a rule's the mark; its message may tell
        more."""
        shadow = self.mark is Mark.WOULD_STOP and self.reason != _LIMITED
        return str(self.mark) if shadow else key_of(self.reason, self.message)

    @property
    def whose(self) -> str:
        """Return whose move it is, in words."""
        return whose_move(self.reason)

    def cure(self, *, examining: bool = False) -> Cure:
        """Return what to do. ``examining``: `evalstop doctor JOB` shows it, which does not name itself."""
        return cure_of(self.code, examining=examining)


_LIMITED = "StopBudgetSpent"  # a pool's stops of an hour are used up

# Whatever may take its time takes at most what its owner gives the first eval (`firstEvalSeconds`).
#
# Nothing but a fault explains these: evals are there, and not this one; the operator may not read the pod;
# evals came, and come no more (which is said only after several times their usual interval, or after as long
# as their owner says that one may be away), or are of steps that were read before, or there twice with other
# scores, or not labelled as they must be; the pool's owner has nobody's read.
CERTAIN_UNWATCHED = frozenset(
    {
        "CappedOff",
        "MetricMisplaced",
        "MetricMissing",
        "NoNewEvals",
        "NotByContract",
        "PageTooLarge",
        "PodsUnlabelled",
        "RefusedAddress",
        "SeveralSeries",
        "StandsStill",
        "StepsBeganAnew",
    }
)
# Of these, what pods that do not run explain as well: those that do wait for them.
_STANDING = frozenset({"NoNewEvals", "StandsStill"})
# Those that come and go by themselves: a store that does not answer, a checkpoint that is being written.
PASSING = frozenset(
    {
        "AccessFailed",
        "AccessPodUnschedulable",
        "AccessStalled",
        "CheckpointIncomplete",
        "CheckpointMissing",
        "NoVerifiableCheckpoint",
        "StartUnknown",
        "StoreUnreachable",
    }
)
# Of condition MetricsAvailable: the trainer has ended, and its pods hold their GPUs on.
RUN_ON = frozenset({"MembersRunOn", "TrainerEnded"})
UNSAFE_AFTER = 900.0  # s that such a one may take
START_AFTER = 300.0  # s that an image may not be there, a Secret not be made
REFUSED_AFTER = 30.0  # s that the cluster may not let in its pods: those of another run may be about to go
UNPLACED_AFTER = 30.0  # s that no node may match its pods once that is said: one may be about to be labelled
NODE_AWAY_AFTER = 60.0  # s that a kubelet may be away once its node is not ready: one that is updated is back
SCALED_AFTER = 30.0  # s that its workload may ask for fewer pods than its gang: somebody may be at it
STOP_AFTER = 1800.0  # s from a stop's decision to the end of its pods
RUN_ON_AFTER = 120.0  # s that what is beside a trainer may take to end after it
TERMINATE_AFTER = 600.0  # s from the suspend to the end of its pods
UNFIT_AFTER = 300.0  # s: a pool may be about to grow
BLIND_EVALS = 16  # evals after which a rule that estimates noise from them has had enough
CRASHES = 2  # without an eval between them, of a run that had evals: one may be a node's

# Reasons of verdicts that say nothing, for want of what the rule looks at besides the score.
LACKS = frozenset(
    {"NoPairedDifferences", "LossUnknown", "ProgressUnknown", "NoiseUnknown", "TooFewPeers", "RuleNotUsable"}
)

_UNSAFE = (c.SECURED, c.RETAINED, c.CLAIMED, c.PINNED)
# Why the pool is not asked to stop a run, where its mode allows it.
_NOT_STOPPED = frozenset({"NoVerifiableCheckpoint", "PageWithoutIdentity", "StartUnknown", "StepsDisagree"})
_UNGUARDED = frozenset({"NotJudged", "NoEvalsYet", "NoNewEvals"})  # of condition GuardrailsHolding
_NO_PODS = "NoPods"  # of condition MetricsAvailable: there is no pod to read
_MOVES = "InProgress"  # of BestCheckpointRetained: bytes are copied (`access_pod`)
_UNREAD = frozenset({"MetricsNotRead", "NoFreshScrape", "VerdictOutdated", "PageWithoutIdentity"})


def health(record: JobRecord, now: float) -> tuple[Finding, ...]:
    """Return the marks of a job, the most urgent first: warnings, then quiet notes; () is a healthy job.

    Of the notes those come first that become a warning in their time, or say that the run is not watched: a
    crash of a run that trains again must not stand before what is the matter now.

    Args:
        record: the job's.
        now: the time (s): a mark's `warning` depends on it, and nothing else does.
    """
    order = list(Mark)
    found = [_at(one, now) for one in _found(record, now)]

    def urgency(one: Finding) -> tuple[bool, bool, int, float]:
        stays_quiet = math.isinf(one.due) and one.mark is not Mark.UNWATCHED
        return not one.warning, stays_quiet, order.index(one.mark), one.since

    return tuple(sorted(found, key=urgency))


def state_reason(record: JobRecord) -> str:
    """Return why the job is in its state: a mark's reason, or that of the condition its state rests on; "":
    nothing is to be said."""
    marks = health(record, -math.inf)
    if c.summary(record.conditions) == "Stopped":  # it stays so, whatever its spec is refused for since
        marks = tuple(one for one in marks if one.mark is not Mark.REFUSED)
    if marks:
        return next((one for one in marks if _is_warned_of(record, one)), marks[0]).reason
    if ended_early.complaint(record):
        return ended_early.ENDED_EARLY
    type_ = c.rests_on(record.conditions)
    found = record.condition(type_) if type_ else None
    read = record.condition(c.METRICS)
    if found is None and read is not None and read.reason == c.MODE_OFF:
        return c.MODE_OFF  # it looks watched otherwise
    return found.reason if found is not None else ""


def _is_warned_of(record: JobRecord, one: Finding) -> bool:
    """Return whether condition NeedsAttention tells of a mark (`attention.with_attention` wrote it); a quiet
    note of another mark may stand before it."""
    told = record.condition(c.ATTENTION)
    if told is None or not told.status or told.reason != one.mark:
        return False
    return told.message.startswith(f"{one.reason}: ")


def next_due(record: JobRecord, now: float) -> float | None:
    """Return in how many seconds the next quiet note becomes a warning; None: none does by itself."""
    left = [one.due - now for one in _found(record, now) if one.due > now and math.isfinite(one.due)]
    return min(left, default=None)


def blind_reason(record: JobRecord) -> str:
    """Return what the rule lacks, by its newest verdict; "": nothing. One eval that the gate holds back for
    the next one is no lack."""
    verdict = record.rule.verdict if record.rule is not None else None
    return verdict.reason if verdict is not None and verdict.reason in LACKS else ""


def trains(record: JobRecord) -> bool:
    """Return whether a trainer of the job should be there: it has GPUs, and has not ended."""
    return record.admission is not None and record.finished is None


def _at(one: Finding, now: float) -> Finding:
    return Finding(one.mark, one.reason, one.message, one.since, one.due, now >= one.due)


def _found(record: JobRecord, now: float) -> list[Finding]:
    """Return the marks. One that has been warned of stays a warning until the job bears it no more, whatever
    its newest reason is: a quiet note of the next try must not hide it while the STATE goes on naming it.
    What is a note for good stays one: it was not what was warned of."""
    found = list(_marks(record))
    warned = record.condition(c.ATTENTION)
    if warned is None or not warned.status:
        return found
    of_it = [one for one in found if one.mark == warned.reason and math.isfinite(one.due)]
    if any(now >= one.due for one in of_it):
        return found
    return [replace(one, due=min(one.due, warned.since)) if one in of_it else one for one in found]


def _marks(record: JobRecord) -> Iterator[Finding]:
    conditions = {one.type: one for one in record.conditions}
    yield from _ended(record, conditions)
    accepted = conditions.get(c.ACCEPTED)
    # A run whose end nobody saw may be resumed, and is not while its spec, or its pool, refuses it.
    failed = conditions.get(c.FAILED)
    over = record.finished is not None and (failed is None or failed.reason != c.END_UNKNOWN)
    if accepted is not None and not accepted.status and not over:
        away = accepted.reason == not_carried_out.WEBHOOK_FAILS
        yield _of(Mark.REFUSED, accepted, not_carried_out.WAIT if away else 0.0)
    elif accepted is not None and accepted.reason == c.DIRECTION_DOUBTFUL and not over:
        yield Finding(Mark.BLIND, accepted.reason, accepted.message, accepted.since, math.inf)
    if (undone := _asked(conditions.get(c.CARRIED_OUT))) is not None:
        yield _of(_mark_of_undone(record, conditions), undone, min(not_carried_out.WAIT, record.first_eval))
    yield from _pods(record)
    yield from _pods_of_group(record)
    if trains(record) and (lost := residency.loses_turns(record)) is not None:
        assert record.residency is not None
        since = record.residency.lost_since or 0.0
        yield Finding(Mark.CRASHING, *lost, since, since)
    if trains(record) and (waits := residency.waits(record)) is not None:
        since, told = waits
        crashes = told.reason == residency.WAITING and residency.group_trouble(record) is not None
        # Nothing but the family, or the operator's settings, explains that it cannot start.
        wait = 0.0 if told.reason == residency.CANNOT_START else min(START_AFTER, record.first_eval)
        if not crashes:  # which says more
            yield Finding(Mark.NOT_STARTING, *told, since, since + wait)
    yield from _stop(record, conditions)
    if (held := residency.held(record)) is not None:
        assert record.residency is not None
        since = record.residency.unanswered or 0.0
        yield Finding(Mark.STUCK, *held, since, since + TERMINATE_AFTER)
    past = unsaved(record)
    for type_ in _UNSAFE:
        if (condition := _asked(conditions.get(type_))) is not None and condition not in past:
            wait = min(UNSAFE_AFTER, record.first_eval) if condition.reason in PASSING else 0.0
            yield _of(Mark.UNSAFE, condition, wait)
    yield from _copy_owed(record, conditions.get(c.RETAINED))
    if trains(record):
        began = _asked(conditions.get(c.RESUMED))
        if began is not None and began.reason == c.BEGAN_AT_THE_START:
            yield _of(Mark.UNSAFE, began)
        elif (afresh := restarts.began_afresh(record)) is not None:
            words, begun_at = afresh
            yield Finding(Mark.UNSAFE, c.BEGAN_AFRESH, words, begun_at, math.inf)
        yield from _watching(record, conditions)
        for one in rollout_health.troubles(record):
            yield Finding(Mark.STARVED, *one)
        if (slow := residency.slowed(record)) is not None:
            since, told = slow
            yield Finding(Mark.STARVED, *told, since, math.inf)  # the pool's metrics and alerts count it
    yield from _waiting(conditions, record.first_eval)


def _ended(record: JobRecord, conditions: dict[str, Condition]) -> Iterator[Finding]:
    failed, completed = conditions.get(c.FAILED), conditions.get(c.COMPLETED)
    if failed is not None and failed.status:
        crash = record.pod_trouble
        why = failed.reason if failed.reason in CURES else "Failed"
        why = crash.reason if crash is not None and why == "Failed" else why
        yield Finding(Mark.FAILED, why, failed.message, failed.since, failed.since)
    read = conditions.get(c.METRICS)
    if completed is not None and completed.status and not record.evals_seen and read is not None:
        text = f"{ENDED_WITHOUT}: {read.reason}: {read.message}"
        yield Finding(Mark.UNWATCHED, read.reason, text, completed.since, completed.since)
    if completed is not None and completed.status and (text := unread.end_unseen(record, completed.since)):
        yield Finding(Mark.UNWATCHED, unread.END_UNSEEN, text, completed.since, completed.since)


def _mark_of_undone(record: JobRecord, conditions: dict[str, Condition]) -> Mark:
    """Return the mark of a job of which an action is not let through: by what it waits for."""
    if not_carried_out.leaves(record):
        return Mark.STUCK
    if record.admission is None and record.finished is None and record.decision is None:
        return Mark.HELD_UP
    running = conditions.get(c.RUNNING)
    starts = trains(record) and (running is None or not running.status)
    return Mark.NOT_STARTING if starts else Mark.UNSAFE


def _pods(record: JobRecord) -> Iterator[Finding]:
    running = _asked(record.condition(c.RUNNING))
    if trains(record) and running is not None and running.reason == c.SCALED:
        yield _of(Mark.NOT_STARTING, running, min(SCALED_AFTER, record.first_eval))
    trouble = record.pod_trouble
    if trouble is None or record.finished is not None:
        return
    if trouble.waits == NO_SCHEDULER and record.decision is None:  # between two admissions as within one
        due = trouble.since + min(REFUSED_AFTER, record.first_eval)
        yield Finding(Mark.NOT_STARTING, trouble.reason, pod_sentence(trouble), trouble.since, due)
        return
    if trouble.waits == UNSCHEDULABLE and record.decision is None:
        # GPUs that others hold may come free; what else rules nodes out stays, as between two admissions.
        full = FULL in trouble.message
        if trains(record) or not full:
            due = trouble.since + min(START_AFTER if full else UNPLACED_AFTER, record.first_eval)
            yield Finding(Mark.NOT_STARTING, trouble.reason, pod_sentence(trouble), trouble.since, due)
        return
    if not trains(record):
        return
    if trouble.waits == NODE_NOT_READY:
        yield _lost_node(record, trouble, Problem(trouble.reason, pod_sentence(trouble)))
        return
    if trouble.exit_code is None:
        refused = trouble.waits == FAILED_CREATE
        due = trouble.since + min(REFUSED_AFTER if refused else START_AFTER, record.first_eval)
        yield Finding(Mark.NOT_STARTING, trouble.reason, pod_sentence(trouble), trouble.since, due)
        return
    due = trouble.since if _crashes(record, trouble) else math.inf
    yield Finding(Mark.CRASHING, trouble.reason, pod_sentence(trouble), trouble.since, due)


def _pods_of_group(record: JobRecord) -> Iterator[Finding]:
    """Yield what keeps the group that it waits for from being ready, or kept the one that it gave up: after
    the same times as of pods of its own."""
    found = residency.group_trouble(record)
    if found is None or record.finished is not None:
        return
    trouble, told = found
    if trouble.waits == NODE_NOT_READY:
        yield _lost_node(record, trouble, told)
        return
    if trouble.exit_code is None:
        due = trouble.since + min(START_AFTER, record.first_eval)
        yield Finding(Mark.NOT_STARTING, *told, trouble.since, due)
        return
    due = trouble.since if _crashes(record, trouble) else math.inf
    yield Finding(Mark.CRASHING, *told, trouble.since, due)


def _crashes(record: JobRecord, trouble: PodTrouble) -> bool:
    """Return whether an end is a fault at once: of a run that had evals a single one may be a node's."""
    return not record.evals_seen or trouble.count >= CRASHES


def _lost_node(record: JobRecord, trouble: PodTrouble, told: Problem) -> Finding:
    """Return that a node under the run, or under its group, is lost."""
    due = trouble.since + min(NODE_AWAY_AFTER, record.first_eval)
    return Finding(Mark.STUCK, *told, trouble.since, due)


def _stop(record: JobRecord, conditions: dict[str, Condition]) -> Iterator[Finding]:
    """Yield what holds up a stop, or keeps a run that is off on its GPUs."""
    decision, target = record.decision, conditions.get(c.TERMINATION)
    if (condition := _asked(conditions.get(c.RELEASED))) is not None:
        # The workload's controller says a moment after the last pod's end that none comes in its place.
        wait = TERMINATE_AFTER if condition.reason == AWAITS_CONTROLLER else 0.0
        yield _of(Mark.STUCK, condition, wait)
    elif (
        decision is not None
        and decision.mode is Mode.ENFORCE
        and decision.pods_gone_at is None
        and target is not None
        and target.status
    ):
        if decision.suspended_at is not None:
            text = "suspended, and pods of it are still there"
            since = decision.suspended_at
            yield Finding(Mark.STUCK, "PodsStuck", text, since, since + TERMINATE_AFTER)
        else:
            since = decision.at
            yield Finding(Mark.STUCK, *_held_by(record, decision), since, since + STOP_AFTER)


def _held_by(record: JobRecord, decision: Decision) -> Problem:
    """Return what a stop that is not suspended yet waits for, as far as the record tells."""
    if decision.settled_at is not None:
        done = "retained" if decision.retained_at is not None else "copied after its suspend"
        text = (
            f"its stop is decided and its best checkpoint is {done}; it holds its GPUs until it is suspended"
        )
        return Problem("WaitingForSuspend", text)
    holds = "its stop is decided, and it holds its GPUs until its best checkpoint is"
    pin, best = record.secured, record.best
    if pin is None:
        return Problem("NoVerifiableCheckpoint", f"{holds} retained")
    if best is not None and not pin.stands_for(best):
        text = f"{holds} pinned and retained: step {best.step}, and step {pin.step} is pinned so far"
        return Problem("WaitingForCopy", text)
    return Problem("WaitingForCopy", f"{holds} retained: step {pin.step} is pinned, and not copied yet")


def _copy_owed(record: JobRecord, said: Condition | None) -> Iterator[Finding]:
    """Yield that the copy which was put off until the suspend is not made yet, unless its condition says why.

    One that moves may take its time; one that does not move is given up, and its failure is told.
    """
    decision, pin = record.decision, record.secured
    if decision is None or decision.mode is not Mode.ENFORCE or pin is None:
        return
    if decision.suspended_at is None or decision.deferred_at is None or decision.retained_at is not None:
        return
    moves = said is not None and said.reason == _MOVES
    if said is not None and not said.status and not moves:
        return
    text = f"it is suspended; the copy of step {pin.step} into spec.checkpoints.retention is still to be made"
    since = decision.suspended_at
    due = math.inf if moves else since + min(UNSAFE_AFTER, record.first_eval)
    yield Finding(Mark.UNSAFE, "WaitingForCopy", text, since, due)


def _watching(record: JobRecord, conditions: dict[str, Condition]) -> Iterator[Finding]:
    """Yield what keeps a run that trains from being judged, or from being stopped."""
    assert record.admission is not None
    begun = record.admission.running_since or record.admission.at
    read = conditions.get(c.METRICS)
    off = read is not None and read.reason == c.MODE_OFF  # as its own user wants it
    if read is not None and not read.status and read.reason in RUN_ON:
        since = max(read.since, begun)
        yield Finding(Mark.STUCK, read.reason, read.message, since, since + RUN_ON_AFTER)
    elif read is not None and not read.status and not off and not _explained(record, read):
        since = max(read.since, begun)
        certain = key_of(read.reason, read.message) in CERTAIN_UNWATCHED
        wait = _evals_away(record, begun) if read.reason == _NO_PODS else record.first_eval
        due = since if certain else since + wait
        yield Finding(Mark.UNWATCHED, read.reason, read.message, since, due)
    elif read is not None and read.status and read.reason == c.NOT_FINITE:
        # At first: `NoNewEvals` follows, once it has lasted.
        since = record.evals_due.since if record.evals_due is not None else read.since
        yield Finding(Mark.UNWATCHED, c.NOT_FINITE, read.message.partition("; ")[2], since, math.inf)
    elif read is not None and read.status and (lacks := blind_reason(record)):
        since = record.blind_since if record.blind_since is not None else read.since
        due = since + record.first_eval
        if lacks == "NoiseUnknown" and record.evals_seen < BLIND_EVALS:
            due = math.inf  # it may learn the noise from the evals yet
        text = "its evals are read, and its rule lacks what it judges by: nothing stops it"
        yield Finding(Mark.BLIND, lacks, text, since, due)
    doubt = noise.doubtful(record.evals, noise.FAR_STILL) if disbelieves_errors(record) else None
    if doubt is not None and doubt.too_small:
        text = (
            f"the trainer reports standard errors of about {doubt.reported:.2g}, and its evals scatter by "
            f"about {doubt.scatter:.2g}: a rule that measures falls by noise takes the scatter"
        )
        yield Finding(Mark.BLIND, "StderrTooSmall", text, begun, math.inf)
    if text := constant_score.complaint(record):
        yield Finding(Mark.BLIND, constant_score.CONSTANT, text, begun, math.inf)
    if (unable := _asked(conditions.get(c.ABLE))) is not None:
        yield _of(Mark.BLIND, unable, 0.0 if _certain(record, unable) else record.first_eval)
    guards = conditions.get(c.GUARDRAILS)
    if guards is not None and not guards.status and guards.reason in _UNGUARDED:
        since = max(guards.since, begun)
        wait = _evals_away(record, begun) if guards.reason == "NoNewEvals" else record.first_eval
        yield Finding(Mark.BLIND, "GuardrailNotJudged", guards.message, since, since + wait)
    decision, target = record.decision, conditions.get(c.TERMINATION)
    asked = _asked(target)
    enforced = asked is not None and asked.reason in _NOT_STOPPED  # said in mode Enforce alone
    if decision is not None and decision.mode is Mode.SHADOW and not enforced:
        why = decision.proposal.reason
        yield Finding(Mark.WOULD_STOP, why, decision.message, decision.at, decision.at)
    others = (unable, conditions.get(c.SECURED))
    told = asked is not None and any(one is not None and one.reason == asked.reason for one in others)
    if asked is not None and asked.reason != "NotAccepted" and not told:
        mark = Mark.UNWATCHED if asked.reason in _UNREAD else Mark.UNSAFE
        mark = Mark.WOULD_STOP if asked.reason == _LIMITED else mark
        yield _of(mark, asked, UNSAFE_AFTER)


def _explained(record: JobRecord, read: Condition) -> bool:
    """Return whether another mark says why no evals are read: its pods do not run, or its group does not.

    That explains that a page is silent, not what a page shows. A single crash of a run that had evals is told
    by a quiet note alone, and its trainer may be back for long: it explains nothing.
    """
    code = key_of(read.reason, read.message)
    if code in CERTAIN_UNWATCHED and code not in _STANDING:
        return False
    found, own = residency.group_trouble(record), record.pod_trouble
    away = found is not None and found[0].waits == NODE_NOT_READY
    down = own is not None and (own.exit_code is None or _crashes(record, own))
    return down or away or residency.waits(record) is not None


def _evals_away(record: JobRecord, begun: float) -> float:
    """Return for how long (s) evals may be away, once they tell how often they come. A trainer that has not
    begun, or begins again after a crash, may take as long as its first eval."""
    due, own = record.evals_due, record.pod_trouble
    if due is None or due.interval is None or due.since < begun or not record.evals_seen:
        return record.first_eval
    if own is not None and own.exit_code is not None and due.since <= own.since:
        return record.first_eval
    return min(record.first_eval, max(QUIET_LEAST, QUIET_INTERVALS * due.interval))


def _certain(record: JobRecord, unable: Condition) -> bool:
    """Return whether nothing but a fault explains why no rule can stop it: evals are there, of a page that
    does not say whose it is. Before the first one its client may not have come to say so."""
    if unable.reason != "PageWithoutIdentity" or not record.evals or record.admission is None:
        return False
    of = record.evals[-1].attempt
    present = of.number in (0, record.admission.number)  # 0: the trainer has no run.json
    return present and bool(record.lives) and record.lives[-1].attempt == of


def _waiting(conditions: dict[str, Condition], first_eval: float) -> Iterator[Finding]:
    """Yield what keeps a job from getting GPUs, as far as somebody can help; and what of a resume.
    ``first_eval``: s that evals may be away, and with them whatever they wait for."""
    if (condition := _asked(conditions.get(c.ADMITTED))) is not None:
        if condition.reason == "TooLarge":
            yield _of(Mark.UNFIT, condition, min(UNFIT_AFTER, first_eval))
        else:
            wait = 0.0 if condition.reason in KUEUE else math.inf
            yield _of(Mark.HELD_UP, condition, wait)
    if (condition := _asked(conditions.get(c.RUNNING))) is not None:
        if condition.reason == MEMBERS_ENDED:
            yield _of(Mark.HELD_UP, condition)
        elif condition.reason == c.ROLLOUT_STARVED:
            yield _of(Mark.STARVED, condition)
    condition = _asked(conditions.get(c.RESUMED))
    if condition is not None and condition.reason != c.BEGAN_AT_THE_START:
        yield _of(Mark.HELD_UP, condition, UNSAFE_AFTER if condition.reason in PASSING else 0.0)


def _asked(condition: Condition | None) -> Condition | None:
    """Return the condition if it is false for a reason that people can do something about."""
    return condition if condition is not None and not condition.status and condition.reason in CURES else None


def _of(mark: Mark, condition: Condition, wait: float = 0.0) -> Finding:
    return Finding(mark, condition.reason, condition.message, condition.since, condition.since + wait)
