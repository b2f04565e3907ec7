"""A job's residency in a worker group, from its admission until its worker and state are gone.

The pool writes it with the admission. The job's pods start once the group can grant turns. When the job has
left its pods (stopped, preempted, ended, or its gang found no nodes) the residency is to end: the operator
tells the group, and only what the group says ends it, as its worker may live on. One whose group is gone has
ended by that. What it is charged and how slow it is are written with evals, and once it has been too slow for
so long that somebody has to leave, or is so no more: never with turns.

While the group answers nobody, a residency that is to end is kept: that is told (`held`). Once all of its
pods are gone, which people may bring about, worker and state are gone with them.

A job that its group has not taken in within the gang's time-out gives its residency up and queues again. If
the group answers nobody, that ends the residency: no pod of the job ever had a ticket for it, so nothing of
it can be in the group but a state that no call has changed.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.group_types import STAYS, MeasuredSlowness, SharedTraining
from controller.policy.job import conditions as c
from controller.policy.job.context import PlanContext
from controller.policy.job.pod_words import pod_sentence
from controller.policy.job.record import NODE_NOT_READY, JobRecord, PodTrouble, ResidencyRecord
from controller.policy.job.types import Desired, GroupSeen, Observed, Plan
from controller.policy.types import Admission, JobState, Problem
from controller.policy.wording import clock_of, silent_since

WAITING = "WaitingForGroup"
HELD = "ResidencyStuck"
NO_ANSWER, NOT_TAKEN_IN = GIVEN_UP = "GroupDoesNotAnswer", "GroupNotReady"
TURNS_LOST = "TurnsLost"
SLOWED = "SlowedInGroup"
CANNOT_START = "GroupCannotStart"
CRASHES, POD_WAITS = "GroupCrashes", "GroupPodWaits"  # before the group is ready
NOT_IN_MOST = 8  # groups that are remembered as left because somebody there was too slow


def name_of(uid: str, number: int) -> str:
    """Return the name of a job's residency of that admission: never used twice."""
    return f"{uid}-{number}"


def admitted(record: JobRecord, admission: Admission, now: float) -> JobRecord:
    """Return the record with the residency that an admission brings, if it brings one."""
    if admission.group is None:
        return record
    before = record.residency
    left, trouble = (before.not_in, before.trouble) if before is not None else ((), None)
    entry = ResidencyRecord(admission.group, record.attempt, now, not_in=left, trouble=trouble)
    return replace(record, residency=entry)


def slowed_others(record: JobRecord) -> JobRecord:
    """Return the record of one that has to leave its group because somebody there is too slow."""
    known = record.residency
    if known is None or not known.group:
        return record
    left = tuple(dict.fromkeys((*known.not_in, known.group)))[-NOT_IN_MOST:]
    return replace(record, residency=replace(known, not_in=left))


def ready(context: PlanContext) -> bool:
    """Return whether a job's pods may start: its group has taken it in, or it asked for none."""
    if context.desired.sharing is None:
        return True
    known, seen = context.record.residency, context.observed.group
    if known is not None and seen is not None and seen.name == known.group and seen.joined:
        return True
    group = known.group if known is not None else ""
    message = f"its pods start once worker group {group} is ready"
    told = (message, _silence(seen, group), _stands_against(seen, group), _in_words(_trouble_of(seen, group)))
    context.conditions.set(c.RUNNING, False, WAITING, "; ".join(filter(None, told)))
    return False


def overdue(context: PlanContext) -> Problem | None:
    """Return why an admitted job that has not started gives its residency up: its group has not taken it in
    within the gang's time-out. None: it has, or there is time left."""
    record, desired, seen = context.record, context.desired, context.observed.group
    known = record.residency
    if desired.sharing is None or record.admission is None:
        return None
    group = known.group if known is not None else ""
    if known is not None and (known.joined or (seen is not None and seen.name == group and seen.joined)):
        return None
    left = record.admission.at + desired.gang_timeout - context.now
    if left > 0:
        context.wake_in(left)
        return None
    late = f"it was not taken in within {desired.gang_timeout:g} s"
    silence = _silence(seen, group)
    if silence:
        return Problem(NO_ANSWER, f"worker group {group}: {silence}; {late}, and queues for another one")
    why = _in_words(_trouble_of(seen, group))
    late = f"{late}, and queues again" + (f"; {why}" if why else "")
    return Problem(NOT_TAKEN_IN, f"worker group {group or 'that it had is gone'}: {late}")


def _trouble_of(seen: GroupSeen | None, group: str) -> PodTrouble | None:
    return seen.trouble if seen is not None and seen.name == group else None


def _stands_against(seen: GroupSeen | None, group: str) -> str:
    unready = seen.unready if seen is not None and seen.name == group else None
    return unready.why if unready is not None else ""


def _in_words(trouble: PodTrouble | None) -> str:
    return "" if trouble is None else pod_sentence(trouble)


def _silence(seen: GroupSeen | None, group: str) -> str:
    """Return since when a job's group answers nobody, in words; "": it does."""
    if seen is None or seen.name != group or seen.unanswered is None:
        return ""
    return f"{silent_since(seen.unanswered)} ({seen.problem})"


def noted(made: Plan, observed: Observed, before: JobRecord) -> Plan:
    """Return the plan with what the job's group says of it in its record."""
    known = made.record.residency
    if known is None or not known.group:
        return made
    record, seen = made.record, observed.group
    if seen is None or seen.name != known.group:
        return made  # nothing is known of it just now
    if seen.gone:
        record = _ended(record, known, seen)
    else:
        live = any(not pod.terminal for pod in observed.pods)
        stays = made.queue is JobState.ADMITTED or live
        leaves = known.leaving or not stays
        silent = seen.unanswered if leaves else None
        entry = replace(known, joined=known.joined or seen.joined, leaving=leaves, unanswered=silent)
        entry = _with_wait(_with_trouble(_with_losses(entry, seen), seen), seen)
        # By that the pool says who leaves: evals may be hundreds of steps apart, and Off reads none.
        turned = (seen.slowness.above >= STAYS) is not (entry.above >= STAYS)
        if record.evals_seen != before.evals_seen or not stays or turned:
            entry = _with_figures(entry, seen)
        if entry != known:
            record = replace(record, residency=entry)
        if entry.leaving and not entry.joined and not live and seen.unanswered is not None:
            record = _ended(record, known, seen)  # no pod of it ever had a ticket
    # Whatever is new of it is a reason to write.
    return made if record is made.record else replace(made, record=record, minor=None)


def held(record: JobRecord) -> Problem | None:
    """Return why a residency that is to end is kept: its group answers nobody. None: none is."""
    known = record.residency
    if known is None or not known.leaving or known.unanswered is None:
        return None
    until = "its residency is kept until the group says that worker and state are gone, or has no pods left"
    return Problem(HELD, f"worker group {known.group}: {silent_since(known.unanswered)}; {until}")


def loses_turns(record: JobRecord) -> Problem | None:
    """Return how a job's group loses each of its turns; None: it does not."""
    known = record.residency
    if known is None or not known.group or known.leaving or known.lost_since is None:
        return None
    lost = f"each turn since {clock_of(known.lost_since)} is lost: {known.lost_why}"
    return Problem(TURNS_LOST, f"worker group {known.group}: {lost}")


def slowed(record: JobRecord) -> tuple[float, Problem] | None:
    """Return since when a job has its residency, and how much slower it is there than it allows, although it
    has been for so long that the resident that came last should have left; None: it is not.

    That one stays where the operator may not preempt it, and then nobody leaves.
    """
    known = record.residency
    if known is None or not known.group or known.leaving or known.above < STAYS or known.slowdown is None:
        return None
    times = f"its steps take {known.slowdown:.2f} times as long as alone, which is longer than it allows"
    return known.since, Problem(SLOWED, f"worker group {known.group}: {times}, for {known.above} steps now")


def _with_losses(entry: ResidencyRecord, seen: GroupSeen) -> ResidencyRecord:
    """Return the entry with what is told of lost turns: written once they are lost, and once they are not."""
    if (seen.loses is None) == (entry.lost_since is None):
        return entry
    since, why = seen.loses or (None, "")
    return replace(entry, lost_since=since, lost_why=why)


def waits(record: JobRecord) -> tuple[float, Problem] | None:
    """Return since when a job waits for its group to be ready, and as it is told; None: it does not, or its
    pods have not started yet and nothing stands against the group's start."""
    known = record.residency
    if known is None or not known.group or known.leaving or known.waits_since is None:
        return None
    which = f"worker group {known.group}"
    if known.waits_why:
        return known.waits_since, Problem(CANNOT_START, f"{which}: {known.waits_why}")
    return known.waits_since, Problem(WAITING, f"{which}: it is not ready; the job's turns go on once it is")


def _with_wait(entry: ResidencyRecord, seen: GroupSeen) -> ResidencyRecord:
    """Return the entry with what is told of a group that is not ready. Of one that starts, a job whose pods
    wait for it tells that itself."""
    found = seen.unready
    if found is None or not (found.why or entry.joined):
        return entry if entry.waits_since is None else replace(entry, waits_since=None, waits_why="")
    since = found.since if entry.waits_since is None else entry.waits_since
    return replace(entry, waits_since=since, waits_why=found.why)


def group_trouble(record: JobRecord) -> tuple[PodTrouble, Problem] | None:
    """Return why the group that a job waits for, or that had taken it in, is not ready, or why the one was
    not that it gave up, of its pod and as it is told; None: nothing keeps it from being ready."""
    known = record.residency
    if known is None or known.trouble is None:
        return None
    if known.trouble.waits == NODE_NOT_READY:
        return known.trouble, Problem(NODE_NOT_READY, pod_sentence(known.trouble))
    code = POD_WAITS if known.trouble.exit_code is None else CRASHES
    which = f"worker group {known.group}" if known.group else "the worker group that it had"
    return known.trouble, Problem(code, f"{which}: {pod_sentence(known.trouble)}")


def _with_trouble(entry: ResidencyRecord, seen: GroupSeen) -> ResidencyRecord:
    """Return the entry with what keeps its group from being ready. Each end is counted once, over all groups
    that it was given; one that takes it in, or is ready again, ends that."""
    known, new = entry.trouble, seen.trouble
    away = new is not None and new.waits == NODE_NOT_READY
    if entry.joined and seen.unready is None and not away:
        return entry if known is None else replace(entry, trouble=None)
    if new is None:
        return entry
    if known is None or (known.exit_code is None and new.exit_code is not None):
        return replace(entry, trouble=new)
    if new.exit_code is None:
        # That one ended says more; a wait that goes on in the next group began in the one before.
        same = known.exit_code is not None or (known.pod, known.waits) == (new.pod, new.waits)
        return entry if same else replace(entry, trouble=replace(new, since=known.since))
    if known.container == new.container:
        return entry
    return replace(entry, trouble=replace(new, since=known.since, count=known.count + 1))


def _ended(record: JobRecord, known: ResidencyRecord, seen: GroupSeen) -> JobRecord:
    """Return the record once worker and state are gone: what it was charged is summed up."""
    charged = record.charged + max(known.charged, seen.charged)
    kept, trouble = None, None if known.joined else known.trouble
    if known.not_in or trouble is not None:
        kept = ResidencyRecord("", 0, known.since, not_in=known.not_in, trouble=trouble)
    return replace(record, residency=kept, charged=charged)


def _with_figures(entry: ResidencyRecord, seen: GroupSeen) -> ResidencyRecord:
    slow = seen.slowness
    return replace(
        entry,
        charged=seen.charged,
        slowdown=slow.took / slow.alone if slow.alone > 0.0 else None,
        took=slow.took,
        alone=slow.alone,
        above=slow.above,
        profiled=seen.profiled,
    )


def shared_training(desired: Desired, record: JobRecord) -> SharedTraining | None:
    """Return a job's wish for a residency, and what it has of one; None: its GPUs are its own."""
    terms, known = desired.sharing, record.residency
    if terms is None:
        return None
    wish = SharedTraining(terms.family, terms.state_bytes, terms.kind, terms.max_slowdown_percent)
    if known is None:
        return wish
    slowness = MeasuredSlowness(known.took, known.alone, known.above)
    wish = replace(wish, group=known.group, number=known.number, since=known.since)
    return replace(wish, not_in=known.not_in, slowness=slowness)


def charged(record: JobRecord) -> float:
    """Return GPU-seconds of worker groups that a job was charged, as last written."""
    return record.charged + (record.residency.charged if record.residency is not None else 0.0)
