"""What needs a hand: which marks a record bears, and when each is a warning."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controller.policy.actor_types import Actor
from controller.policy.group_types import STAYS
from controller.policy.job import conditions as c
from controller.policy.job.attention import with_attention
from controller.policy.job.cures import CURES, NEEDS_NOBODY
from controller.policy.job.marks import (
    CERTAIN_UNWATCHED,
    CRASHES,
    LACKS,
    UNSAFE_AFTER,
    Finding,
    Mark,
    health,
    next_due,
    state_reason,
)
from controller.policy.job.pod_troubles import CALM, HELD
from controller.policy.job.record import (
    NODE_NOT_READY,
    AdmissionRecord,
    Best,
    Condition,
    Decision,
    EvalsDue,
    JobRecord,
    PodTrouble,
    ProtectedCheckpoint,
    ResidencyRecord,
    RuleRecord,
)
from controller.policy.job.types import Guardrail, Page, Plan, PodView, RunState, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, Mode, PolicySpec, Proposal, Verb, Verdict
from tests.support.covering import covering
from tests.support.policy_world import PolicyWorld

T = 1_000_000.0
SOON, LATE = T + 30.0, T + 1e7


def condition(type_: str, status: bool, reason: str, since: float = T) -> Condition:
    return Condition(type_, status, reason, f"{type_} says {reason}; and why", since, 1)


RUNS = condition(c.RUNNING, True, "Running")
READ = condition(c.METRICS, True, "Scraped")
ADMITTED = AdmissionRecord(1, ("n1",), T - 5.0, None, T)
TRAINS = JobRecord(
    attempt=1, admission=ADMITTED, conditions=(condition(c.ACCEPTED, True, "Valid"), RUNS, READ), evals_seen=5
)
STOP = Decision("scan", Mode.ENFORCE, Proposal(60, 30, "Drop", 4.0, 3.0), "scan: 4 of 3", T)
PINNED = ProtectedCheckpoint(30, 30, "/c/.evalstop/u/1-30", "sha256:ab", T, attempt=Attempt(1, "9f"))
CRASH = PodTrouble("run-0", exit_code=1, message="CUDA out of memory", count=1, since=T, container="c1")
WAITS = PodTrouble("run-0", waits="ImagePullBackOff", since=T)
LOST = PodTrouble("run-0", waits=NODE_NOT_READY, message="n1 is down", since=T)


def bearing(*more: Condition, **fields) -> JobRecord:
    types = {one.type for one in more}
    kept = tuple(one for one in TRAINS.conditions if one.type not in types)
    return replace(TRAINS, conditions=(*kept, *more), **fields)


def blind(reason: str) -> RuleRecord:
    return RuleRecord("scan", 1, "x", (), (), Verdict(Verb.CONTINUE, reason, 0.0, 1.0))


@pytest.mark.parametrize(
    ("record", "mark", "reason", "due"),
    [
        (bearing(condition(c.METRICS, False, "Unreachable")), "Unwatched", "Unreachable", 1800.0),
        (
            bearing(condition(c.METRICS, False, "Unreachable"), first_eval=60.0),
            "Unwatched",
            "Unreachable",
            60,
        ),
        (bearing(condition(c.METRICS, False, "NoEvalsYet")), "Unwatched", "NoEvalsYet", 1800.0),
        (bearing(condition(c.METRICS, False, "MetricMissing")), "Unwatched", "MetricMissing", 0.0),
        (bearing(condition(c.METRICS, False, "Timeout", T - 900)), "Unwatched", "Timeout", 1800.0),
        (bearing(condition(c.SECURED, False, "OutOfSpace")), "Unsafe", "OutOfSpace", 0.0),
        (bearing(condition(c.SECURED, False, "ClaimMissing")), "Unsafe", "ClaimMissing", 0.0),
        (bearing(condition(c.SECURED, False, "ClaimTerminating")), "Unsafe", "ClaimTerminating", 0.0),
        (bearing(condition(c.CLAIMED, False, "EvalStopFolderGone")), "Unsafe", "EvalStopFolderGone", 0.0),
        (bearing(condition(c.SECURED, False, "StoreUnreachable")), "Unsafe", "StoreUnreachable", 900.0),
        (bearing(condition(c.CLAIMED, False, "LocationTaken")), "Unsafe", "LocationTaken", 0.0),
        (bearing(condition(c.ACCEPTED, False, "PoolNotFound")), "Refused", "PoolNotFound", 0.0),
        (bearing(condition(c.ACCEPTED, False, "SomethingNew")), "Refused", "SomethingNew", 0.0),
        (bearing(rule=blind("LossUnknown"), blind_since=T), "Blind", "LossUnknown", 1800.0),
        (bearing(rule=blind("NoiseUnknown"), blind_since=T), "Blind", "NoiseUnknown", math.inf),
        (bearing(rule=blind("NoiseUnknown"), blind_since=T, evals_seen=16), "Blind", "NoiseUnknown", 1800.0),
        (bearing(pod_trouble=CRASH, evals_seen=0), "Crashing", "ExitCode", 0.0),
        (bearing(pod_trouble=CRASH), "Crashing", "ExitCode", math.inf),
        (bearing(pod_trouble=replace(CRASH, count=2)), "Crashing", "ExitCode", 0.0),
        (
            bearing(pod_trouble=WAITS),
            "NotStarting",
            "PodWaits",
            300.0,
        ),
        (bearing(decision=replace(STOP, mode=Mode.SHADOW)), "WouldStop", "Drop", 0.0),
        (
            bearing(condition(c.TERMINATION, True, "Drop"), decision=STOP),
            "Stuck",
            "NoVerifiableCheckpoint",
            1800.0,
        ),
        (
            bearing(condition(c.TERMINATION, True, "Drop"), decision=STOP, secured=PINNED),
            "Stuck",
            "WaitingForCopy",
            1800.0,
        ),
        (
            bearing(condition(c.TERMINATION, True, "Drop"), decision=replace(STOP, retained_at=T + 20)),
            "Stuck",
            "WaitingForSuspend",
            1800.0,
        ),
        (
            bearing(condition(c.TERMINATION, True, "Drop"), decision=replace(STOP, suspended_at=T + 50)),
            "Stuck",
            "PodsStuck",
            650.0,
        ),
        (
            JobRecord(conditions=(condition(c.ADMITTED, False, "TooLarge"),)),
            "Unfit",
            "TooLarge",
            300.0,
        ),
        (
            JobRecord(conditions=(condition(c.ADMITTED, False, "NodesClosed"),)),
            "HeldUp",
            "NodesClosed",
            math.inf,
        ),
        (
            JobRecord(conditions=(condition(c.ADMITTED, False, "QueueStopped"),)),
            "HeldUp",
            "QueueStopped",
            0.0,
        ),
        (
            JobRecord(conditions=(condition(c.FAILED, True, "BackoffLimitExceeded"),), finished="Failed"),
            "Failed",
            "Failed",
            0.0,
        ),
        (
            JobRecord(
                conditions=(
                    condition(c.COMPLETED, True, "Complete"),
                    condition(c.METRICS, False, "Unreachable"),
                ),
                finished="Complete",
            ),
            "Unwatched",
            "Unreachable",
            0.0,
        ),
    ],
)
def test_each_mark_has_its_reason_and_becomes_a_warning_in_its_time(
    record: JobRecord, mark: str, reason: str, due: float
) -> None:
    (found,) = health(record, T)
    assert (str(found.mark), found.reason, found.due - T) == (mark, reason, due)
    assert found.since <= T + 50
    if math.isfinite(due):
        (before,), (after,) = health(record, T + due - 0.5), health(record, T + due)
        assert (before.warning, after.warning) == (False, True)
        assert next_due(record, T + due - 5.0) == 5.0
    else:
        assert next_due(record, T) is None
    assert state_reason(record) == reason


def test_evals_that_are_all_there_twice_are_a_fault_at_once() -> None:
    """Two label sets were a quiet note for as long as a model may take to load."""
    none = "none of the evals of 'x' on its page can be used so far"
    for message, warning in ((f"{none}; x has two values for step 610", True), (none, False)):
        read = Condition(c.METRICS, False, "NoEvalsYet", message, T, 1)
        (found,) = health(bearing(read, evals_seen=0), T)
        assert (found.reason, found.warning) == ("NoEvalsYet", warning)


QUIET, WARNED = ("Crashing", False), ("Crashing", True)
AWAITED = EvalsDue(T - 60.0, 10.0)  # the last eval came before the crash, and one takes ten seconds


@pytest.mark.parametrize(
    ("fields", "read", "at", "bears"),
    [
        # What a page shows is certain, whatever has crashed or waits before, or beside.
        ({}, "MetricMissing", 0, [("Unwatched", True), QUIET]),
        ({}, "NotByContract", 0, [("Unwatched", True), QUIET]),
        ({}, "PageTooLarge", 0, [("Unwatched", True), QUIET]),
        ({}, "StepsBeganAnew", 0, [("Unwatched", True), QUIET]),
        ({}, "NoNewEvals", 0, [("Unwatched", True), QUIET]),
        ({"evals_seen": 0}, "MetricMissing", 0, [WARNED, ("Unwatched", True)]),
        ({"pod_trouble": replace(CRASH, count=CRASHES)}, "MetricMissing", 0, [WARNED, ("Unwatched", True)]),
        ({"pod_trouble": WAITS}, "MetricMissing", 0, [("Unwatched", True), ("NotStarting", False)]),
        # The rest in its time; until then the note says what is the matter now, and the crash is behind it.
        ({}, "NoEvalsYet", 0, [("Unwatched", False), QUIET]),
        ({}, "ForeignPage", 0, [("Unwatched", False), QUIET]),
        ({}, "Unreachable", 1799, [("Unwatched", False), QUIET]),
        ({}, "Unreachable", 1800, [("Unwatched", True), QUIET]),
        ({"first_eval": 60.0}, "Unreachable", 60, [("Unwatched", True), QUIET]),
        ({"evals_due": AWAITED}, "NoPods", 1799, [("Unwatched", False), QUIET]),  # it begins again
        ({"evals_due": AWAITED}, "NoPods", 1800, [("Unwatched", True), QUIET]),
        # Who crashes or waits as a warning explains why nothing comes.
        ({"evals_seen": 0}, "Unreachable", 0, [WARNED]),
        ({"pod_trouble": replace(CRASH, count=CRASHES)}, "NoNewEvals", 0, [WARNED]),
        ({"pod_trouble": WAITS}, "NoNewEvals", 0, [("NotStarting", False)]),
        ({"pod_trouble": LOST}, "NoNewEvals", 0, [("Stuck", False)]),
    ],
)
def test_a_past_crash_hides_nothing_that_is_certain_and_stands_behind_what_is_now(
    fields: dict[str, Any], read: str, at: float, bears: list[tuple[str, bool]]
) -> None:
    """A trainer that came back with another metric's name was `Running ExitCode` for ten minutes."""
    record = bearing(condition(c.METRICS, False, read), **{"pod_trouble": CRASH, **fields})
    assert [(str(one.mark), one.warning) for one in health(record, T + at)] == bears
    if bears[0][0] == "Unwatched" and bears[1] == QUIET:
        assert state_reason(record) == read


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (condition(c.SECURED, False, "StoreUnreachable"), "StoreUnreachable"),
        (condition(c.GUARDRAILS, False, "NoNewEvals"), "GuardrailNotJudged"),
        (condition(c.ABLE, False, "PageWithoutIdentity"), "PageWithoutIdentity"),
        (condition(c.SECURED, False, "StepsDisagree"), "StepsDisagree"),
        (condition(c.ACCEPTED, True, c.DIRECTION_DOUBTFUL), "ExitCode"),  # which has been so all the time
        (condition(c.METRICS, True, c.NOT_FINITE), c.NOT_FINITE),  # which `NoNewEvals` follows
    ],
)
def test_of_notes_a_crash_that_may_be_over_comes_after_those_that_become_warnings(
    other: Condition, first: str
) -> None:
    record = bearing(other, pod_trouble=CRASH)
    found = health(record, T)
    assert {one.reason for one in found} == {"ExitCode", first} or len(found) == 2
    assert found[0].reason == state_reason(record) == first


def test_a_mark_that_was_warned_of_stays_a_warning_while_the_job_bears_it() -> None:
    """The condition NeedsAttention goes on saying so, and with it STATE: metrics and alerts say the same."""
    note = condition(c.SECURED, False, "StoreUnreachable")
    for warned, due in (("Unsafe", T + 5.0), ("Unwatched", T + 900.0), (None, T + 900.0)):
        more = () if warned is None else (condition(c.ATTENTION, True, warned, T + 5.0),)
        record = bearing(note, *more)
        (found,) = health(record, SOON)
        assert (found.due, found.warning) == (due, warned == "Unsafe")
        assert next_due(record, SOON) == (None if warned == "Unsafe" else 870.0)
    recovered = bearing(note, condition(c.ATTENTION, False, "Recovered"))
    assert not health(recovered, SOON)[0].warning


@pytest.mark.parametrize(
    ("other", "borne"), [((), False), ((condition(c.SECURED, False, "StoreUnreachable"),), True)]
)
def test_a_note_for_good_neither_is_lifted_to_a_warning_nor_keeps_one(
    other: tuple[Condition, ...], borne: bool
) -> None:
    """A run that had begun afresh stayed Unsafe, with its alert, once what it was warned of had ended."""
    warned = condition(c.ATTENTION, True, "Unsafe", T + 5.0)
    moves = condition(c.RETAINED, False, "InProgress")
    record = JobRecord(conditions=(moves, warned, *other), **OWED)
    found = health(record, LATE)
    assert {one.reason: one.warning for one in found}["WaitingForCopy"] is False
    told = with_attention(Plan(record), PolicyWorld({"n1": 2}).submit("ns/a").desired, LATE).record
    assert any(one.warning for one in found) is told.condition(c.ATTENTION).status is borne


def test_a_stopped_job_s_reason_is_that_of_its_stop() -> None:
    """Its pool left its namespace out since: why each of its jobs had been stopped was seen no more."""
    stop = (condition(c.TERMINATION, True, "FellBelow"), condition(c.RELEASED, True, "PodsGone"))
    refused = condition(c.ACCEPTED, False, "NamespaceNotAllowed")
    assert state_reason(JobRecord(conditions=(*stop, refused))) == "FellBelow"
    assert state_reason(JobRecord(conditions=(refused,))) == "NamespaceNotAllowed"


def test_a_run_whose_end_nobody_saw_bears_what_its_spec_is_refused_for() -> None:
    """A stranger resumed such a run, as he was told, and nothing ever happened: its priority was too high."""
    refused = condition(c.ACCEPTED, False, "PriorityTooHigh")

    def marked(reason: str) -> tuple[str, list[str]]:
        ended = (condition(c.FAILED, True, reason), refused)
        record = JobRecord(finished="Failed", conditions=ended)
        return state_reason(record), [one.reason for one in health(record, SOON)]

    assert marked("EndUnknown") == ("EndUnknown", ["EndUnknown", "PriorityTooHigh"])
    assert marked("BackoffLimitExceeded")[1] == ["Failed"]
    completed = JobRecord(finished="Complete", conditions=(condition(c.COMPLETED, True, "Complete"), refused))
    assert health(completed, SOON) == ()


@pytest.mark.parametrize(
    "record",
    [
        JobRecord(),
        TRAINS,
        JobRecord(conditions=(condition(c.METRICS, False, "NoPods"),)),  # it does not train
        JobRecord(conditions=(condition(c.ADMITTED, False, "WaitingForGPUs"),)),
        replace(TRAINS, rule=blind("TooFewEvals")),
        replace(TRAINS, rule=blind("AwaitingNextEval")),  # one eval, which the gate holds back for the next
        replace(TRAINS, decision=replace(STOP, suspended_at=T, pods_gone_at=T)),
        bearing(condition(c.SECURED, False, "Pinning")),
        bearing(condition(c.TERMINATION, False, "Withdrawn")),
    ],
)
def test_a_healthy_job_bears_no_mark(record: JobRecord) -> None:
    assert health(record, LATE) == ()
    assert next_due(record, T) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "until its best checkpoint is retained"),
        ({"secured": PINNED}, "is retained: step 30 is pinned, and not copied yet"),
        ({"secured": PINNED, "best": Best(30, 0.9, PINNED.attempt)}, "step 30 is pinned, and not copied yet"),
        (
            {"secured": PINNED, "best": Best(50, 0.95, PINNED.attempt)},
            "pinned and retained: step 50, and step 30 is pinned so far",
        ),
        (
            {"decision": replace(STOP, retained_at=T + 20)},
            "its best checkpoint is retained; it holds its GPUs until it is suspended",
        ),
        (
            {"decision": replace(STOP, deferred_at=T + 20)},
            "its best checkpoint is copied after its suspend; it holds its GPUs until it is suspended",
        ),
    ],
)
def test_a_stop_under_way_says_what_it_waits_for(fields: dict[str, Any], said: str) -> None:
    """Whatever held it up, it was said to lack a checkpoint, though that was retained long since."""
    record = bearing(condition(c.TERMINATION, True, "Drop"), **{"decision": STOP, **fields})
    (found,) = health(record, LATE)
    assert said in found.message
    assert found.cure().line
    assert state_reason(record) == found.reason


OWED = {"decision": replace(STOP, deferred_at=T, suspended_at=T + 5, pods_gone_at=T + 9), "secured": PINNED}


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ((), T + 5 + UNSAFE_AFTER),
        ((condition(c.RETAINED, True, "Retained"),), T + 5 + UNSAFE_AFTER),  # an earlier stop's
        ((condition(c.RETAINED, False, "InProgress"),), math.inf),  # it moves
    ],
)
def test_a_copy_that_is_still_to_be_made_after_the_suspend_is_told(
    fields: tuple[Condition, ...], due: float
) -> None:
    """A copy that hung was told nowhere: the run was Stopped, and nothing wrong."""
    record = JobRecord(conditions=fields, **OWED)
    (found,) = health(record, T + 6)
    assert (found.mark, found.reason, found.since, found.due) == ("Unsafe", "WaitingForCopy", T + 5, due)
    assert (
        f"the copy of step {PINNED.step} into spec.checkpoints.retention is still to be made" in found.message
    )
    assert "evalstop.dev/job=" in found.cure().command
    assert state_reason(record) == "WaitingForCopy"
    assert health(replace(record, decision=replace(OWED["decision"], retained_at=T + 60)), LATE) == ()


@pytest.mark.parametrize("reason", ["OutOfSpace", "NothingRetained", "NewBest"])
def test_why_a_copy_is_not_made_is_told_alone(reason: str) -> None:
    record = JobRecord(conditions=(condition(c.RETAINED, False, reason),), **OWED)
    assert "WaitingForCopy" not in {one.reason for one in health(record, LATE)}


# What a record may say of each of these; first what is usual.
OPTIONS: dict[str, tuple[tuple[bool, str] | None, ...]] = {
    c.ACCEPTED: (None, (True, "Valid"), (False, "PoolNotFound"), (True, c.DIRECTION_DOUBTFUL)),
    c.METRICS: (
        (True, "Scraped"),
        None,
        (False, "Unreachable"),
        (False, "MetricMissing"),
        (True, c.NOT_FINITE),
    ),
    c.SECURED: (None, (True, "Secured"), (False, "OutOfSpace"), (False, "StoreUnreachable")),
    c.RETAINED: (None, (True, "Retained"), (False, "PermissionDenied")),
    c.CLAIMED: (None, (False, "LocationTaken")),
    c.PINNED: (None, (False, "CheckpointMissing")),
    c.RELEASED: (None, (False, "PodsStuck")),
    c.GUARDRAILS: (None, (False, "NotJudged")),
    c.TERMINATION: (None, (True, "Drop"), (False, "PageWithoutIdentity"), (False, "StopBudgetSpent")),
    c.ADMITTED: (None, (False, "TooLarge"), (False, "NodesClosed")),
    c.RESUMED: (None, (True, "Resumed"), (False, "NothingRetained"), (False, c.BEGAN_AT_THE_START)),
    c.RUNNING: ((True, "Running"), (False, c.MEMBERS_ENDED), (False, c.ROLLOUT_STARVED)),
}
IN_GROUP = ResidencyRecord("wg-1", 1, T, joined=True)
LOSES = replace(IN_GROUP, lost_since=T, lost_why="start: no class")
CANNOT_START = replace(IN_GROUP, waits_since=T, waits_why="no family 'dense'")
SILENT = replace(IN_GROUP, leaving=True, unanswered=T)
GROUP_CRASHES = replace(IN_GROUP, joined=False, trouble=CRASH)
SLOWED = replace(IN_GROUP, slowdown=2.0, above=STAYS)
STARTS = Actor(0, "n1", 1, since=T)
FIELDS: dict[str, tuple[Any, ...]] = {
    "decision": (None, STOP, replace(STOP, mode=Mode.SHADOW)),
    "pod_trouble": (
        None,
        CRASH,
        replace(CRASH, count=CRASHES),
        WAITS,
        LOST,
    ),
    "finished": (None, "Failed", "Complete"),
    "rule": (None, blind("LossUnknown")),
    "evals_seen": (5, 0),
    "actors": ((), (STARTS,)),
    "residency": (None, LOSES, CANNOT_START, SILENT, GROUP_CRASHES, SLOWED),
}
Choice = dict[str, Any]


def recorded(choice: Choice) -> JobRecord:
    """Return the record that says what is chosen, and of all else what is usual."""
    whole = {name: values[0] for name, values in (*OPTIONS.items(), *FIELDS.items())} | choice
    told = [condition(type_, *whole[type_]) for type_ in OPTIONS if whole[type_] is not None]
    fields = {name: whole[name] for name in FIELDS}
    if (end := whole["finished"]) is not None:
        told.append(condition(c.FAILED if end == "Failed" else c.COMPLETED, True, end))
    since = None if fields["rule"] is None else T
    return JobRecord(attempt=1, admission=ADMITTED, conditions=tuple(told), blind_since=since, **fields)


def alone() -> list[JobRecord]:
    """Records in which one thing is not as usual."""
    return [
        recorded({name: one}) for name, values in (*OPTIONS.items(), *FIELDS.items()) for one in values[1:]
    ]


def combinations(seed: int, count: int) -> Iterator[JobRecord]:
    """Yield some of the combinations of what a record may say, there are ninety million: in each a tenth,
    the half or most of it is not as usual."""
    drawn = random.Random(seed)
    for _ in range(count):
        share = drawn.choice((0.1, 0.5, 0.9))
        yield recorded(
            {
                name: drawn.choice(values[1:])
                for name, values in (*OPTIONS.items(), *FIELDS.items())
                if drawn.random() < share
            }
        )


def any_three() -> Iterator[JobRecord]:
    """Yield records among which any three things that one may say are said together."""
    for row in covering({**OPTIONS, **FIELDS}, 3):
        yield recorded(row)


def expected(record: JobRecord) -> set[Mark]:
    """Which marks a record bears, said once more: from the facts to the mark, not from mark to mark."""
    said = {one.type: (one.status, one.reason) for one in record.conditions}
    marks = set()
    trains = record.finished is None
    home, trouble = record.residency, record.pod_trouble
    down = trouble is not None and not (trouble == CRASH and record.evals_seen)  # which may train again
    facts = {
        Mark.REFUSED: trains and said.get(c.ACCEPTED, (True, ""))[0] is False,
        Mark.FAILED: record.finished == "Failed",
        Mark.UNSAFE: any(
            said.get(type_, (True, ""))[0] is False for type_ in (c.SECURED, c.RETAINED, c.CLAIMED, c.PINNED)
        )
        or (trains and said.get(c.RESUMED) == (False, c.BEGAN_AT_THE_START)),
        Mark.UNFIT: said.get(c.ADMITTED) == (False, "TooLarge"),
        Mark.HELD_UP: said.get(c.ADMITTED) == (False, "NodesClosed")
        or said.get(c.RESUMED) == (False, "NothingRetained")
        or said[c.RUNNING] == (False, c.MEMBERS_ENDED),
        Mark.WOULD_STOP: trains
        and (
            said.get(c.TERMINATION) == (False, "StopBudgetSpent")
            or (
                record.decision is not None
                and record.decision.mode is Mode.SHADOW
                and said.get(c.TERMINATION) != (False, "PageWithoutIdentity")  # said in mode Enforce alone
            )
        ),
        Mark.CRASHING: trains
        and (
            (record.pod_trouble is not None and record.pod_trouble.exit_code == 1)
            or home in (LOSES, GROUP_CRASHES)
        ),
        Mark.NOT_STARTING: trains
        and (
            (record.pod_trouble not in (None, LOST) and bool(record.pod_trouble.waits))
            or home is CANNOT_START
        ),
        Mark.STUCK: c.RELEASED in said
        or home is SILENT
        or (trains and record.pod_trouble is LOST)
        or (record.decision is STOP and said.get(c.TERMINATION, (False, ""))[0] is True),
        Mark.UNWATCHED: (
            trains
            and said.get(c.METRICS, (True, ""))[0] is False
            and (said[c.METRICS][1] == "MetricMissing" or not (down or home is CANNOT_START))
        )
        or (trains and said.get(c.METRICS) == (True, c.NOT_FINITE))
        or (trains and said.get(c.TERMINATION) == (False, "PageWithoutIdentity"))
        or (record.finished == "Complete" and not record.evals_seen and c.METRICS in said),
        Mark.BLIND: (
            trains
            and (
                said.get(c.ACCEPTED) == (True, c.DIRECTION_DOUBTFUL)
                or (record.rule is not None and said.get(c.METRICS) == (True, "Scraped"))
                or c.GUARDRAILS in said
            )
        ),
        Mark.STARVED: (trains and (bool(record.actors) or home is SLOWED))
        or said[c.RUNNING] == (False, c.ROLLOUT_STARVED),
    }
    marks |= {mark for mark, holds in facts.items() if holds}
    return marks


def test_over_all_combinations_the_marks_are_those_that_the_facts_make() -> None:
    seen: set[Mark] = set()
    for record in (*alone(), *any_three(), *combinations(21, 8_000)):
        now = SOON if record.evals_seen else LATE
        found = health(record, now)
        assert {one.mark for one in found} == expected(record), record
        seen |= {one.mark for one in found}
        assert list(found) == sorted(found, key=lambda one: not one.warning), "warnings come first"
        assert all(one.warning == (one.due <= now) and one.since <= one.due for one in found)
        assert all(one.message and one.cure().text for one in found)
    assert seen == set(Mark)


@pytest.mark.parametrize(
    ("end", "bears"),
    [
        (None, True),
        (condition(c.COMPLETED, True, "Complete"), False),
        (condition(c.FAILED, True, "BackoffLimitExceeded"), False),
        (condition(c.FAILED, True, c.END_UNKNOWN), True),  # it may be resumed, and judged
    ],
)
def test_a_doubtful_direction_is_noted_of_a_run_that_may_still_be_judged(
    end: Condition | None, bears: bool
) -> None:
    doubt = condition(c.ACCEPTED, True, c.DIRECTION_DOUBTFUL)
    finished = None if end is None else "Complete" if end.type == c.COMPLETED else "Failed"
    record = bearing(doubt, *filter(None, (end,)), finished=finished)
    assert (c.DIRECTION_DOUBTFUL in {one.reason for one in health(record, LATE)}) == bears
    assert bears or state_reason(record) != c.DIRECTION_DOUBTFUL


def test_marks_that_are_a_state_are_marks_and_each_lack_has_a_cure() -> None:
    assert set(c.MARKED) <= {str(mark) for mark in Mark}
    assert set(CURES) >= LACKS | CERTAIN_UNWATCHED
    assert not set(CURES) & NEEDS_NOBODY


# -- events: it never cries wolf ----------------------------------------------------------------------------


def waits(outcome: ScrapeOutcome, **more) -> ScrapeView:
    return ScrapeView(outcome, "not yet", **more)


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_slow_starter_and_a_restart_warn_of_nothing(seed: int) -> None:
    """A model that loads for up to 25 minutes, evals, one container that ends and is started again, evals."""
    drawn = random.Random(seed)
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    events = []

    def look(seconds: float) -> None:
        events.extend(world.step("ns/a", seconds=seconds).events)

    def load(minutes: float) -> None:
        end = world.now + 60.0 * minutes
        while world.now < end:
            view = waits(
                drawn.choice((ScrapeOutcome.UNREACHABLE, ScrapeOutcome.TIMEOUT, ScrapeOutcome.NO_PODS))
            )
            job.observed = replace(job.observed, scrape=view)
            look(drawn.uniform(5.0, 60.0))

    load(drawn.uniform(1.0, 25.0))
    job.observed = replace(job.observed, scrape=None)
    for score in (0.1, 0.2, 0.3):
        world.scores("ns/a", score)
        look(60.0)
    pods, seen = job.observed.pods, job.observed.scrape
    ended = PodTrouble("pod-0", exit_code=137, message="OOMKilled", since=world.now, container="c1")
    job.observed = replace(job.observed, pods=tuple(replace(p, trouble=ended, ready=False) for p in pods))
    load(drawn.uniform(1.0, 25.0))
    job.observed = replace(job.observed, pods=pods, scrape=seen)
    for score in (0.35, 0.4):
        world.scores("ns/a", score)
        look(60.0)
    assert [e for e in events if e.warning] == []
    assert health(job.record, world.now) == ()
    assert job.record.pod_trouble is None
    assert job.record.condition(c.ATTENTION) is None


def test_a_wrong_port_is_a_quiet_note_then_one_warning_then_over() -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2, first_eval=600.0)
    world.settle()
    refused = waits(ScrapeOutcome.UNREACHABLE)
    job.observed = replace(job.observed, scrape=refused)
    plan = world.step("ns/a")
    begun = world.now
    (note,) = health(job.record, world.now)
    assert (note.mark, note.reason, note.warning) == (Mark.UNWATCHED, "Unreachable", False)
    assert c.summary(job.record.conditions) == "Running"
    assert not [e for e in plan.events if e.warning]
    assert plan.requeue_after is not None, "it is looked at again when the note becomes a warning"
    assert 590.0 < plan.requeue_after <= 602.0
    warned: list[str] = []
    for _ in range(70):
        plan = world.step("ns/a", seconds=10.0)
        warned += [f"{e.reason} {world.now - begun:.0f}" for e in plan.events if e.warning]
    assert [text.split()[0] for text in warned] == ["Unwatched"]
    assert 590 <= float(warned[0].split()[1]) <= 611
    assert c.summary(job.record.conditions) == "Unwatched"
    job.observed = replace(job.observed, scrape=None)
    world.scores("ns/a", 0.1)
    plan = world.step("ns/a")
    assert [e.reason for e in plan.events if e.reason == "Recovered"] == ["Recovered"]
    assert c.summary(job.record.conditions) == "Running"


def test_a_crash_before_the_first_eval_is_certain_and_its_last_words_stay() -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    pod = job.observed.pods[0]
    ended = PodTrouble(
        "pod-0", exit_code=2, message="no such file: train.py", since=world.now, container="c1"
    )
    job.observed = replace(job.observed, pods=(replace(pod, ready=False, trouble=ended),))
    plan = world.step("ns/a")
    (event,) = [e for e in plan.events if e.warning]
    assert event.reason == "Crashing"
    assert "exit code 2: no such file: train.py" in event.message
    assert c.summary(job.record.conditions) == "Crashing"
    writes = world.writes
    for _ in range(5):
        world.step("ns/a", seconds=10.0)
    assert world.writes == writes, "an end is counted once, however often it is looked at"
    again = replace(ended, container="c2", since=world.now)
    job.observed = replace(job.observed, pods=(replace(pod, ready=False, trouble=again),))
    world.step("ns/a")
    assert job.record.pod_trouble is not None
    assert job.record.pod_trouble.count == 2
    job.observed = replace(
        job.observed, workload=replace(job.observed.workload, finished="Failed", message="backoff limit")
    )
    world.step("ns/a")
    failed = job.record.condition(c.FAILED)
    assert "backoff limit; pod pod-0 ended with exit code 2 (2 times): no such file" in failed.message
    assert [(one.mark, one.reason) for one in health(job.record, world.now)] == [(Mark.FAILED, "ExitCode")]


@pytest.mark.parametrize("by", ["eval", "calm"])
def test_crashes_that_are_over_are_not_counted_again_while_their_pods_are_listed(by: str) -> None:
    """A Job keeps its failed pods: they made the job Crashing, and recovered, at each second pass."""
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    pod = job.observed.pods[0]
    failed = []
    for count in (1, 2):
        world.now += 30.0
        ended = PodTrouble(f"pod-{count}", exit_code=137, since=world.now, container=f"c{count}")
        failed.append(replace(pod, name=f"pod-{count}", ready=False, trouble=ended, terminal=True))
        job.observed = replace(job.observed, pods=tuple(failed))
        world.step("ns/a")
    assert job.record.pod_trouble is not None
    assert job.record.pod_trouble.count == 2
    job.observed = replace(job.observed, pods=(*failed, replace(pod, name="pod-3")))
    if by == "eval":
        world.now += 30.0
        world.scores("ns/a", 0.1)
    else:
        world.now += CALM
    world.step("ns/a")  # the eval is taken in once its pods have been looked at
    world.step("ns/a")
    assert job.record.pod_trouble is None
    writes, told = world.writes, []
    for _ in range(10):
        told += [e.reason for e in world.step("ns/a", seconds=1.0).events]
    assert not {"Crashing", "Recovered"} & set(told)
    assert job.record.pod_trouble is None
    assert world.writes == writes
    again = PodTrouble("pod-3", exit_code=1, since=world.now, container="c3")
    job.observed = replace(job.observed, pods=(*failed, replace(pod, name="pod-3", trouble=again)))
    world.step("ns/a")
    assert job.record.pod_trouble is not None
    assert (job.record.pod_trouble.pod, job.record.pod_trouble.count) == ("pod-3", 1)


def after_a_crash(**more: Any) -> tuple[PolicyWorld, Any, PodView, ScrapeView]:
    """Return a run with evals whose one pod has ended, the pod that comes in its place, and its last page."""
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2, **more)
    world.settle()
    for score in (0.1, 0.2, 0.3):
        world.scores("ns/a", score)
        world.step("ns/a", seconds=10.0)
    (pod,) = job.observed.pods
    ended = PodTrouble("pod-0", exit_code=1, message="out of memory", since=world.now, container="c1")
    failed = replace(pod, ready=False, terminal=True, trouble=ended)
    seen, silent = job.observed.scrape, ScrapeView(ScrapeOutcome.UNREACHABLE, "refused")
    job.observed = replace(job.observed, pods=(failed,), scrape=silent)
    world.step("ns/a")
    return world, job, replace(pod, name="pod-1", uid="pod-1-uid"), seen


@pytest.mark.parametrize(
    ("page", "reason", "state"),
    [
        ({"metrics_seen": ("winrate",)}, "MetricMissing", "Unwatched"),
        ({"metrics_seen": ("safe", "winrate")}, "MetricMissing", "Unwatched"),
        ({"misplaced": "a series gold is there, expected x"}, "MetricMissing", "Unwatched"),
        ({}, "NoEvalsYet", "Running"),
        ({"metrics_seen": ("safe",)}, "NoEvalsYet", "Running"),  # it scores its guardrail first
    ],
)
def test_a_trainer_that_comes_back_with_another_metric_is_unwatched_at_once(
    page: dict[str, Any], reason: str, state: str
) -> None:
    guard = Guardrail("safe", PolicySpec("kDeclines", {"k": 3}))
    world, job, fresh, seen = after_a_crash(guardrails=(guard,))
    assert (c.summary(job.record.conditions), state_reason(job.record)) == ("Running", "Unreachable")
    whose = Page(job.desired.uid, Attempt(1, "2"))
    shown = ScrapeView(ScrapeOutcome.OK, at=world.now, page=whose, **page)
    job.observed = replace(job.observed, pods=(*job.observed.pods, fresh), scrape=shown)
    events = world.step("ns/a").events
    assert (c.summary(job.record.conditions), state_reason(job.record)) == (state, reason)
    unwatched, *_, crash = health(job.record, world.now)
    assert (unwatched.mark, unwatched.reason) == (Mark.UNWATCHED, reason)
    assert (crash.mark, crash.warning) == (Mark.CRASHING, False)
    assert [e.reason for e in events if e.warning] == (["Unwatched"] if state == "Unwatched" else [])
    # Once its evals come all is well.
    job.observed = replace(job.observed, scrape=seen)
    world.scores("ns/a", 0.4, attempt=Attempt(1, "2"))
    for _ in range(2):
        world.step("ns/a")
    assert c.summary(job.record.conditions) == "Running"
    assert job.record.pod_trouble is None


def test_a_page_without_the_metric_is_a_fault_at_once_where_no_eval_of_it_was_ever_read() -> None:
    """Only of a run that had evals it is known that its trainer scores more than its guardrail."""
    world = PolicyWorld({"n1": 2})
    guard = Guardrail("safe", PolicySpec("kDeclines", {"k": 3}))
    job = world.submit("ns/a", gpus=2, guardrails=(guard,))
    world.settle()
    job.observed = replace(job.observed, scrape=ScrapeView(ScrapeOutcome.OK, metrics_seen=("safe",)))
    world.step("ns/a")
    assert state_reason(job.record) == "MetricMissing"


@pytest.mark.parametrize(
    ("held_by", "reason", "warned_after"),
    [("ImagePullBackOff", "PodWaits", 300.0), ("", "PodsRefused", 30.0)],
)
def test_what_keeps_a_pod_from_coming_back_after_a_crash_is_told_and_not_the_crash(
    held_by: str, reason: str, warned_after: float
) -> None:
    """The quiet note of the crash stood for ever, and the run was `Running` without a pod."""
    world, job, fresh, seen = after_a_crash()
    if held_by:
        waits = replace(fresh, ready=False, trouble=PodTrouble("pod-1", waits=held_by))
        job.observed = replace(job.observed, pods=(*job.observed.pods, waits))
    else:
        job.observed = replace(job.observed, refused="exceeded quota: small")
    ended = world.now
    plan = world.step("ns/a")
    assert job.record.pod_trouble.exit_code == 1, "a registry may hiccup"
    assert plan.requeue_after is not None
    assert plan.requeue_after <= HELD
    world.step("ns/a", seconds=HELD)
    (found,) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.NOT_STARTING, reason, False)
    assert found.due - found.since == warned_after
    assert found.since == world.now
    world.step("ns/a", seconds=warned_after)
    assert c.summary(job.record.conditions) == "NotStarting"
    # The failed pod stays listed, and its end is not counted again.
    job.observed = replace(job.observed, refused=None, pods=(job.observed.pods[0], fresh), scrape=seen)
    world.scores("ns/a", 0.4, attempt=Attempt(1, "2"))
    for _ in range(2):
        world.step("ns/a")
    assert job.record.pod_trouble is None
    assert ended <= job.record.crashes_over + 2.0
    assert c.summary(job.record.conditions) == "Running"


@pytest.mark.parametrize(
    ("held_for", "runs_for", "evals", "count"),
    [(HELD, 30.0, False, 2), (2 * CALM, 0.0, False, 2), (HELD, 30.0, True, 1), (HELD, CALM, False, 1)],
)
def test_a_crash_after_one_that_a_wait_has_followed_recurs_unless_it_was_over(
    held_for: float, runs_for: float, evals: bool, count: int
) -> None:
    """Each crash that an image's pull of a minute followed was the first: `Crashing` never came."""
    world, job, fresh, seen = after_a_crash()
    failed = job.observed.pods[0]
    waits = replace(fresh, ready=False, trouble=PodTrouble("pod-1", waits="ImagePullBackOff"))
    job.observed = replace(job.observed, pods=(failed, waits))
    for seconds in (HELD + 1.0, held_for):
        world.step("ns/a", seconds=seconds)
    assert job.record.pod_trouble.waits == "ImagePullBackOff"
    if runs_for:
        job.observed = replace(job.observed, pods=(failed, fresh))
        world.step("ns/a")
        assert job.record.pod_trouble is None
    if evals:
        job.observed = replace(job.observed, scrape=seen)
        world.scores("ns/a", 0.4, attempt=Attempt(1, "2"))
    world.step("ns/a", seconds=runs_for)
    again = PodTrouble("pod-1", exit_code=1, since=world.now, container="c2")
    job.observed = replace(job.observed, pods=(failed, replace(fresh, ready=False, trouble=again)))
    world.step("ns/a")
    assert job.record.pod_trouble.count == count
    assert c.summary(job.record.conditions) == ("Crashing" if count == CRASHES else "Running")


def test_a_trainer_that_leaves_while_it_is_being_stopped_has_not_crashed() -> None:
    """It was asked for a last checkpoint and to end: it leaves with 143 before its workload is suspended."""
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    job.wish(run_state=RunState.STOPPED)
    world.step("ns/a")
    assert job.record.decision is not None
    assert job.record.decision.suspended_at is None
    (pod,) = job.observed.pods
    left = PodTrouble("pod-0", exit_code=143, since=world.now, container="c1")
    job.observed = replace(job.observed, pods=(replace(pod, ready=False, trouble=left),))
    plan = world.step("ns/a")
    assert job.record.pod_trouble is None
    assert not [e for e in plan.events if e.reason == "Crashing"]
    assert not [one for one in health(job.record, world.now) if one.mark is Mark.CRASHING]


def test_a_pod_that_waits_for_its_image_is_told_and_forgotten_once_it_runs() -> None:
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    pod = job.observed.pods[0]
    stuck = PodTrouble("pod-0", waits="ImagePullBackOff", message="Back-off pulling image nowhere:1")
    waiting: PodView = replace(pod, ready=False, trouble=stuck)
    job.observed = replace(job.observed, pods=(waiting,))
    assert not [e for e in world.step("ns/a").events if e.warning]
    assert state_reason(job.record) == "PodWaits"
    told: list[str] = []
    for _ in range(40):
        told += [e.reason for e in world.step("ns/a", seconds=10.0).events if e.warning]
    assert told == ["NotStarting"]
    job.observed = replace(job.observed, pods=(pod,))
    world.step("ns/a")
    assert job.record.pod_trouble is None


def test_a_mark_leaves_the_state_though_a_note_of_another_kind_has_come() -> None:
    """Its image was there at last, and the run was `NotStarting` for as long as its model loaded, while
    metrics and alerts said nothing."""
    world = PolicyWorld({"n1": 2})
    job = world.submit("ns/a", gpus=2)
    world.settle()
    (pod,) = job.observed.pods
    stuck = replace(pod, ready=False, trouble=PodTrouble("pod-0", waits="ImagePullBackOff"))
    job.observed = replace(job.observed, pods=(stuck,), scrape=ScrapeView(ScrapeOutcome.NO_PODS))
    for seconds in (1.0, 301.0):
        world.step("ns/a", seconds=seconds)
    assert c.summary(job.record.conditions) == "NotStarting"
    loads = ScrapeView(ScrapeOutcome.UNREACHABLE, "refused")
    job.observed = replace(job.observed, pods=(pod,), scrape=loads)
    told = [e.reason for e in world.step("ns/a").events]
    assert "Recovered" in told
    assert (c.summary(job.record.conditions), state_reason(job.record)) == ("Running", "Unreachable")
    (note,) = health(job.record, world.now)
    assert (note.mark, note.warning) == (Mark.UNWATCHED, False)
    assert "Recovered" not in [e.reason for e in world.step("ns/a").events]


def test_a_finding_is_not_changed_by_the_clock_but_for_its_warning() -> None:
    record = bearing(condition(c.METRICS, False, "Unreachable"))
    (early,), (late,) = health(record, SOON), health(record, LATE)
    assert isinstance(early, Finding)
    assert replace(early, warning=True) == late


def test_pods_that_the_cluster_refuses_are_told_by_its_own_words_and_soon_a_warning() -> None:
    quota = 'pods "a-x" is forbidden: exceeded quota: small'
    world = PolicyWorld({"n1": 8})
    job = world.submit("ns/a")
    world.settle()
    job.observed = replace(job.observed, pods=(), refused=quota, scrape=ScrapeView(ScrapeOutcome.NO_PODS))
    world.step("ns/a")
    (found,) = health(job.record, world.now)
    assert (found.mark, found.reason, found.warning) == (Mark.NOT_STARTING, "PodsRefused", False)
    assert found.message == f"the cluster refuses its pods: {quota}"
    assert "kubectl describe quota" in found.cure().command
    assert health(job.record, world.now + 31.0)[0].warning
    written = world.writes
    job.observed = replace(job.observed, refused=quota + ", used: 3")
    world.step("ns/a")
    assert world.writes == written, "no write for each change of its numbers"
    job.observed = replace(job.observed, refused=None)
    world.step("ns/a")
    assert job.record.pod_trouble is None


def test_a_gang_whose_time_is_over_says_that_its_pods_were_refused() -> None:
    world = PolicyWorld({"n1": 8})
    job = world.submit("ns/a")
    world.settle()
    job.observed = replace(job.observed, refused="exceeded quota: small", pods=())
    admission = replace(job.record.admission, unbound_since=world.now, running_since=None)
    job.record = replace(job.record, admission=admission)
    world.step("ns/a", seconds=job.desired.gang_timeout + 1.0)
    admitted = job.record.condition(c.ADMITTED)
    assert admitted.reason == "GangTimedOut"
    assert admitted.message.endswith("the cluster refuses its pods: exceeded quota: small")
