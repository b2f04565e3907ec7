"""Conditions of an RLHFJob: how they change, and the one-word state that sums them up."""

from __future__ import annotations

from controller.policy.job.event import Event
from controller.policy.job.record import Condition

ACCEPTED = "Accepted"  # the spec can be carried out
ADMITTED = "Admitted"  # GPUs are granted
RUNNING = "Running"  # all members' pods are ready
METRICS = "MetricsAvailable"  # the Primary metric is being read
SECURED = "BestCheckpointSecured"  # the best checkpoint is out of rotation's reach
DECLINING = "QualityDeclining"  # the stop rule says the run is past its best
TERMINATION = "TerminationTarget"  # a stop is decided and is being carried out
RETAINED = "BestCheckpointRetained"  # the best checkpoint is out of the trainer's reach, digest verified
CLAIMED = "LocationClaimed"  # the checkpoint folder is this job's; told once that has failed
PINNED = "CheckpointsPinned"  # those that the spec names are out of rotation's reach
RELEASED = "GPUsReleased"  # the pods of a stopped or finished run are gone
RESUMED = "Resumed"  # the last resume request was carried out
COMPLETED = "Completed"
FAILED = "Failed"
GUARDRAILS = "GuardrailsHolding"  # no rule says that a guardrail metric fell
DEMOTED = "Demoted"  # it gives way to every job that waits
ABLE = "RuleCanStop"  # told only while its rule can stop nothing of this run, whatever the scores
CARRIED_OUT = "ActionsCarriedOut"  # told only while the API server lets one of its actions not through
ATTENTION = "NeedsAttention"  # somebody is to look at it; its reason is a mark (`health`). Absent: never yet

# Marks that are a state: a run that bears one is not called Running.
MARKED = ("Crashing", "NotStarting", "Unsafe", "Unwatched", "Blind", "WouldStop")

RUNS_ON = "RunsOn"  # state of a job whose spec cannot be carried out, and that holds its GPUs all the same

AWAITS_CONTROLLER = "WaitingForController"  # no pod is left, and its controller has not said that none comes
SCALED = "ScaledByOthers"  # the same: its workload asks for fewer pods than the gang has
MEMBERS_ENDED = "MembersEnded"  # reason of Running: some members have ended well, so the gang is never whole
NOT_FINITE = "ScoresNotFinite"  # reason of MetricsAvailable, which is true: the newest scores are no numbers
DIRECTION_DOUBTFUL = "DirectionDoubtful"  # reason of Accepted, which is true: a name says otherwise
END_UNKNOWN = "EndUnknown"  # of Failed: nobody saw how it ended, so its user may have it go on
ORPHANED = "OrphanedPods"  # of Accepted, which is false: pods of an earlier attempt live on
MODE_OFF = "ModeOff"  # of MetricsAvailable, which is false: nobody reads them, for its spec wants it so
BEGAN_AFRESH = "BeganAfresh"  # of a mark: it was to go on from its latest checkpoint, and found none
BEGAN_AT_THE_START = "BeganAtTheStart"  # of Resumed: it was to go on from a checkpoint, and did not
ROLLOUT_STARVED = "RolloutStarved"  # the same: its trainer had no rollout actor left, so it queues again
GROUP_LOST = "GroupLost"  # the same: its worker group lost its state

# Reasons of Admitted, which is false, of a run on its way back into the queue.
_LEAVING = frozenset({"Preempting", "PreemptedByQueue", "Evicted", "Deactivated"})

MAX_MESSAGE = 512  # characters, so that a status stays small


class Conditions:
    """The conditions of one pass: those that are not set again stay as they were.

    ``set`` keeps ``since`` unless the status changes. An Event is due when status or reason changed.
    """

    def __init__(self, known: tuple[Condition, ...], generation: int, now: float) -> None:
        self._by_type = {c.type: c for c in known}
        self._generation = generation
        self._now = now
        self.events: list[Event] = []

    def set(self, type_: str, status: bool, reason: str, message: str, *, warning: bool = False) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        old = self._by_type.get(type_)
        since = old.since if old is not None and old.status == status else self._now
        self._by_type[type_] = Condition(type_, status, reason, message, since, self._generation)
        if old is None or (old.status, old.reason) != (status, reason):
            self.events.append(Event(reason, message, warning))

    def drop(self, type_: str) -> None:
        self._by_type.pop(type_, None)

    def get(self, type_: str) -> Condition | None:
        """As it stands now."""
        return self._by_type.get(type_)

    def is_true(self, type_: str) -> bool:
        known = self._by_type.get(type_)
        return known is not None and known.status

    def result(self) -> tuple[Condition, ...]:
        """Return all conditions, by type."""
        return tuple(self._by_type[t] for t in sorted(self._by_type))


def summary(conditions: tuple[Condition, ...]) -> str:
    """Return one word for `kubectl get`: the condition that matters most now."""
    true = {c.type: c.reason for c in conditions if c.status}
    false = {c.type: c.reason for c in conditions if not c.status}
    for type_, word in (
        (FAILED, "Failed"),
        (COMPLETED, "Completed"),
    ):
        if type_ in true:
            return word
    if TERMINATION in true:
        return "Stopped" if RELEASED in true else "Stopping"
    if ACCEPTED in false:
        return RUNS_ON if RUNNING in true or ADMITTED in true else "Refused"
    if RUNNING in true and false.get(ADMITTED) in _LEAVING:
        return "Preempting"  # it goes on to its next checkpoint, or its pods end
    if (mark := true.get(ATTENTION)) in MARKED and (RUNNING in true or ADMITTED in true):
        return mark
    if RUNNING in true:
        return "Demoted" if DEMOTED in true else "Declining" if DECLINING in true else "Running"
    if ADMITTED in true:
        return "Starting"
    waits = {"TooLarge": "Unfit", "Preempting": "Preempting", "UserRequest": "Stopped"}
    return waits.get(false.get(ADMITTED, ""), "Queued")


def rests_on(conditions: tuple[Condition, ...]) -> str:
    """Return the type of the condition that the state of `summary` rests on; "": none says more than it."""
    stops = any(one.type == TERMINATION and one.status for one in conditions)
    return {
        "Refused": ACCEPTED,
        RUNS_ON: ACCEPTED,
        "Failed": FAILED,
        "Stopping": TERMINATION,
        "Stopped": TERMINATION if stops else ADMITTED,
        "Starting": RUNNING,
        "Queued": ADMITTED,
        "Unfit": ADMITTED,
        "Preempting": ADMITTED,
        "Declining": DECLINING,
        "Demoted": DEMOTED,
    }.get(summary(conditions), "")
