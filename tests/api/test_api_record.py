"""Status and back: exact for every record the brain can make, small, and within the schema."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from api_examples import DESIRED, full_record
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api import values
from controller.api.convert import StatusError, record, status
from controller.api.crd import root_schema
from controller.api.record import STATUS_MAX, size
from controller.api.rlhfjob import RLHFJob
from controller.policy.actor_types import Actor
from controller.policy.job.curve import coarser, with_eval
from controller.policy.job.record import (
    GUARDS_MAX,
    Best,
    Claim,
    Condition,
    Confirming,
    EvalBaseline,
    EvalsDue,
    Expected,
    FileOwner,
    FoundLayout,
    GangBackoff,
    GoesOn,
    Guard,
    JobRecord,
    LifeRecord,
    Outcome,
    OutOfRange,
    PastGrades,
    Preempting,
    ProtectedCheckpoint,
    RefusalRecord,
    ResidencyRecord,
    RuleRecord,
    RunProgress,
    Sparing,
    StepCounts,
    StopOutcome,
    TakenBack,
    Unread,
)
from controller.policy.job.rollout_record import RolloutRecord
from controller.policy.stopping import make_rule, noise
from controller.policy.types import (
    Attempt,
    EvalPoint,
    Grade,
    LossTrend,
    Mode,
    Paired,
    PolicySpec,
    PromptPair,
    Verb,
    Verdict,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.floats(min_value=1, max_value=4e9)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT
STATES = st.lists(SCALARS | st.lists(SCALARS, max_size=3).map(tuple), max_size=4).map(tuple)
ATTEMPTS = st.builds(Attempt, st.integers(0, 99), st.text("0123456789abcdefz", max_size=16))
POINTS = st.builds(
    EvalPoint,
    st.integers(0, 10**12),
    FINITE,
    ATTEMPTS | st.just(Attempt(0)),
    st.none() | FINITE,
    st.none() | st.integers(0, 10**9),
    st.none() | FINITE,
    st.none() | st.builds(Paired, st.integers(0, 10**12), st.integers(0, 10**9), FINITE, FINITE),
    st.none() | st.integers(1, 10**7),
    st.lists(
        st.builds(PromptPair, st.integers(0, 10**12), st.integers(2, 10**7), FINITE, FINITE), max_size=3
    ).map(tuple),
)
NUMBERS = st.floats(allow_nan=False)
VERDICTS = st.builds(
    Verdict,
    st.sampled_from(Verb),
    TEXT,
    NUMBERS,
    NUMBERS,
    st.none() | NUMBERS,
    st.booleans(),
    st.none() | st.sampled_from(Grade),
)
TIME_FIELDS = {
    "at",
    "since",
    "retained_at",
    "suspended_at",
    "pods_gone_at",
    "handed_at",
    "not_before",
    "running_since",
    "unbound_since",
    "withdrawn",
    "until",
    "started",
    "pod_created",
    "lost_tried",
    "deferred_at",
    "asked_at",
    "decided",
    "delayed_at",
    "queued_at",
    "blind_since",
    "crashes_over",
    "bound",
    "lent_until",
    "expires",
    "unanswered",
    "lost_since",
    "waits_since",
}


def values_of(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Anything a field of the record may hold, found from its type: new fields are covered by themselves."""
    if get_origin(hint) in (Union, UnionType):
        return st.none() | values_of(next(h for h in get_args(hint) if h is not NoneType), name)
    if hint is EvalPoint:
        return POINTS
    if hint is Verdict:
        return VERDICTS
    if hint is Attempt:
        return ATTEMPTS
    if hint is LossTrend:
        return st.builds(LossTrend, FINITE, FINITE, FINITE, FINITE, FINITE)
    if dataclasses.is_dataclass(hint):
        return any_of(hint)
    if get_args(hint):
        item = get_args(hint)[0]
        return STATES if item is object else st.lists(values_of(item, name), max_size=4).map(tuple)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is float:
        return TIMES if name in TIME_FIELDS else FINITE
    return {int: st.integers(0, 10**9), str: TEXT, bool: st.booleans()}[hint]


def any_of(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(hints[f.name], f.name) for f in dataclasses.fields(cls)})


RECORDS = any_of(JobRecord)


@given(RECORDS)
@settings(max_examples=200)
def test_a_record_reads_back_exactly_from_what_the_api_server_stores(found: JobRecord) -> None:
    stored = json.loads(json.dumps(status(found, DESIRED, 0.0), allow_nan=False))
    assert record(stored) == found


@given(RECORDS)
@settings(max_examples=60)
def test_a_status_lies_within_the_schema(found: JobRecord) -> None:
    """What the schema does not know would be pruned by the API server without a word."""
    schema = root_schema(RLHFJob)["properties"]["status"]
    unknown = list(beyond(status(found, DESIRED, 0.0), schema, "status"))
    assert unknown == []


def beyond(value: Any, schema: dict[str, Any], path: str) -> Any:
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if type(value) is not kinds[schema["type"]]:
        yield f"{path} is a {type(value).__name__}, the schema says {schema['type']}"
    elif isinstance(value, dict):
        missing = set(schema.get("required", ())) - set(value)
        yield from (f"{path}.{key} is required" for key in missing)
        for key, child in value.items():
            if key not in schema["properties"]:
                yield f"{path}.{key} is not in the schema"
            else:
                yield from beyond(child, schema["properties"][key], f"{path}.{key}")
    elif isinstance(value, list):
        for child in value:
            yield from beyond(child, schema["items"], f"{path}[]")


def test_every_field_of_the_record_makes_a_difference() -> None:
    """A field that is silently left out would be forgotten by every restart."""
    full = full_record(condition_count=3, retained=1, message="m")
    full = dataclasses.replace(
        full, preempting=Preempting("ByPriority", 1e9), restored=full.secured, finished="Complete"
    )
    full = dataclasses.replace(full, gang_backoff=GangBackoff(2, 1e9, ("n1", "n2")))
    full = dataclasses.replace(full, queue_policy_state=(0, 1, 7), preemptions=1, evictions=1)
    full = dataclasses.replace(full, refusal=RefusalRecord("of-1-2", "TooLarge", "m", 1e9, final=True))
    full = dataclasses.replace(full, progress=RunProgress(10, 100, 60.0), queued_at=1e9, lost=5.0)
    full = dataclasses.replace(full, loss_trend=LossTrend(1.5, 60.0))
    full = dataclasses.replace(full, pinned=full.retained, to_release=("/data/.evalstop/u/1-a-20",))
    life = LifeRecord(Attempt(1, "a"), "pod-uid", 1e9, 1e9, 20, checkpoint=40, reached=60)
    full = dataclasses.replace(full, lives=(life,), claim=Claim(1, 1e9), lost_bests=(Best(20, 0.5),))
    full = dataclasses.replace(full, changed_bests=(Best(20, 0.5),), layout=FoundLayout("Verl", "a/b"))
    full = dataclasses.replace(full, file_owner=FileOwner(1000, 100, "a/b"), empty_at="1")
    full = dataclasses.replace(full, beside=full.secured, lost_tried=1e9)
    full = dataclasses.replace(full, taken_back=TakenBack(1e9, 1e9, "R"))
    full = dataclasses.replace(full, eval_times=(5,), evaluator="v2", baseline=EvalBaseline(1e9))
    stops = Verdict(Verb.STOP, "R", 2.0, 1.0)
    guard = Guard("safety", 60, Attempt(1, "7"), 0.5, "h", (1.0,), stops, (1.0,), (20, 40))
    full = dataclasses.replace(full, guards=(guard,), confirming=Confirming(60, 1e9, 4))
    full = dataclasses.replace(full, past_grades=PastGrades(60.0, 30.0, 0.0, 500.0))
    full = dataclasses.replace(full, evals_due=EvalsDue(1e9, 600.0), unread=Unread("NoEvalsYet", "m"))
    full = dataclasses.replace(full, step_counts=StepCounts(Attempt(1, "a"), 40, (20, 20, 80), True))
    full = dataclasses.replace(full, goes_on=GoesOn(40, 1, 60, True))
    full = dataclasses.replace(full, out_of_range=(OutOfRange("gold", 20, 1.5, 0.0, 1.0),))
    full = dataclasses.replace(full, expected=Expected(60.0, 50.0), delayed_at=1e9)
    full = dataclasses.replace(full, actors=(Actor(3, "n1", 1),), actor_starts=4, rollout=RolloutRecord())
    full = dataclasses.replace(full, residency=ResidencyRecord("wg-1", 2, 1e9), charged=7.0)
    stop = StopOutcome(1e9, Mode.SHADOW, 60, Best(20, 0.5), verdict=Outcome.REFUTED, later=Best(90, 0.7))
    full = dataclasses.replace(full, outcome=stop, sparing=Sparing(8, 1), retained_gone=("/keep/a/20",))
    full = dataclasses.replace(full, curve=with_eval(full, EvalPoint(123100, 0.5), None))
    before = status(full, DESIRED, 0.0)
    for f in dataclasses.fields(JobRecord):
        default = getattr(JobRecord(), f.name)
        assert status(dataclasses.replace(full, **{f.name: default}), DESIRED, 0.0) != before, f.name


def test_an_empty_status_is_the_empty_record() -> None:
    assert record({}) == record(None) == JobRecord()
    assert record(status(JobRecord(), DESIRED, 0.0)) == JobRecord()


def test_nothing_happened_means_the_same_status() -> None:
    found = full_record(condition_count=12, retained=1, message="m")
    assert status(found, DESIRED, 1.0) == status(found, DESIRED, 2.0)


def test_not_a_number_is_never_stored() -> None:
    nan, inf = float("nan"), float("inf")
    odd = JobRecord(
        evals=(EvalPoint(1, nan), EvalPoint(2, inf), EvalPoint(3, 0.5, stderr=nan)),
        rule=RuleRecord("kDeclines", 1, "h", (-inf,), (None,), Verdict(Verb.CONTINUE, "R", nan, inf)),
    )
    text = json.dumps(status(odd, DESIRED, 0.0), allow_nan=False)
    assert "nan" not in text.lower()
    back = record(json.loads(text))
    assert back.evals == (EvalPoint(3, 0.5),)
    assert back.rule is not None
    assert back.rule.base == (-inf,)
    assert back.rule.verdict is not None
    assert back.rule.verdict.threshold == inf


@pytest.mark.parametrize(
    ("condition_count", "retained", "most", "least_message"),
    [
        (9, 1, STATUS_MAX, 80),  # a whole life: run, stopped, handed over
        (12, 4, STATUS_MAX, 32),  # with every condition there is and four resumes: beyond what one job meets
    ],
)
def test_a_full_status_stays_small(
    condition_count: int, retained: int, most: int, least_message: int
) -> None:
    found = full_record(condition_count=condition_count, retained=retained, message="m" * 512)
    stored = status(found, DESIRED, 0.0)
    assert size(stored) <= most
    assert len(stored["decision"]["message"]) >= least_message


def test_a_status_without_room_has_a_coarser_curve_and_readable_messages() -> None:
    whole = None
    for n in range(1000):
        verdict = Verdict(Verb.CONTINUE, "R", 3.0, 4.0)
        point = EvalPoint(120000 + n, -0.12345678 - n, proxy=-0.1234567)
        whole = with_eval(JobRecord(curve=whole), point, verdict)
    assert whole is not None
    full = full_record(condition_count=12, retained=4, message="m" * 512)
    stored = status(dataclasses.replace(full, curve=whole), DESIRED, 0.0)
    assert size(stored) <= STATUS_MAX
    assert size(stored["curve"]) <= 3000
    back, halved = record(stored).curve, [whole]
    while len(halved[-1].buckets) > 8:
        halved.append(coarser(halved[-1]))
    assert back in halved[1:]
    assert status(record(stored), DESIRED, 0.0) == stored
    usual = full_record(condition_count=6, retained=1, message="m" * 100)
    assert record(status(dataclasses.replace(usual, curve=whole), DESIRED, 0.0)).curve == whole


def test_a_status_with_every_guardrail_stays_small() -> None:
    """All that one job meets: three guardrails under scan and confirm, a stop and its eleven conditions."""
    guards = tuple(_guard(f"val-core/safety-{i}/mean@8") for i in range(GUARDS_MAX))
    full = full_record(condition_count=11, retained=1, message="m" * 512)
    full = dataclasses.replace(
        full,
        guards=guards,
        past_grades=PastGrades(123456.5, 12345.25, 0.0, 223456.75),
    )
    stored = status(full, DESIRED, 0.0)
    assert size(stored) <= STATUS_MAX
    assert len(stored["decision"]["message"]) >= 32
    assert record(stored).guards == guards


def _guard(metric: str) -> Guard:
    made = make_rule(PolicySpec("scan"), [PolicySpec("confirm"), PolicySpec("graded")])
    state, verdict, shown = made.initial(), None, noise.NOTHING_SHOWN
    for step in range(60):
        point = EvalPoint(step, 1.2345678901 + 1.1e-7 * step**1.7)
        state, verdict = made.observe(state, point)
        shown = noise.show(shown, point)
    life = Attempt(12, "1795269600")
    return Guard(metric, 123000, life, 0.12345678901234, "a" * 12, state, verdict, shown, (100_000,) * 5)


def test_the_state_of_a_guardrail_that_is_too_long_is_refused_by_name() -> None:
    long = Guard("safety", 1, Attempt(1, "1"), 0.5, "h", tuple(range(2000)))
    with pytest.raises(ValueError, match=r"rule state of 'safety' is \d+ characters of JSON"):
        status(JobRecord(guards=(long,)), DESIRED, 0.0)


@given(RECORDS, st.integers(0, 512))
@settings(max_examples=50)
def test_shortening_happens_once_and_touches_only_messages(found: JobRecord, length: int) -> None:
    base = full_record(condition_count=12, retained=1, message="ä" * length)
    found = dataclasses.replace(base, run=found.run, best=found.best)
    once = record(status(found, DESIRED, 0.0))
    assert status(once, DESIRED, 0.0) == status(found, DESIRED, 0.0)
    assert _silent(once) == _silent(found)


def _silent(r: JobRecord) -> JobRecord:
    assert r.decision is not None
    return dataclasses.replace(
        r,
        decision=dataclasses.replace(r.decision, message=""),
        conditions=tuple(dataclasses.replace(c, message="") for c in r.conditions),
    )


def test_a_rule_state_that_is_too_long_is_refused_by_name() -> None:
    long = RuleRecord("mine", 1, "h", (), tuple(range(2000)))
    said = r"rule state of 'mine' is \d+ characters of JSON, a status holds 8000"
    with pytest.raises(ValueError, match=said):
        status(JobRecord(rule=long), DESIRED, 0.0)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"best": {"step": 3}}, "^status.best.score is missing$"),
        ({"best": {"step": "3", "score": "1"}}, "^status.best.step: '3' is not of type int$"),
        ({"lives": [{"attempt": "1", "pod": 5}]}, r"^status\.lives\[0\]\.pod: 5 is not of type str$"),
        ({"decision": {"by": "User"}}, "^status.decision.mode is missing$"),
        ({"evals": ["1 x -"]}, "could not convert string to float: 'x'"),
        ({"evals": ["1 1 - - one"]}, "attempt 'one'"),
        ({"evals": ["1 1"]}, "evals: '1 1': expected step, score"),
        ({"access": {"operation": "burn", "bestStep": 1}}, "burn"),
        ({"rule": {"name": "k", "version": 1, "paramsHash": "h", "state": "{"}}, "status"),
        (
            {
                "conditions": [
                    {"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "x"}
                ]
            },
            "time 'x': expected the form",
        ),
        ({"run": 5}, "status"),
    ],
)
def test_a_spoilt_status_is_named(stored: dict[str, Any], said: str) -> None:
    with pytest.raises(StatusError, match=said):
        record(stored)


def test_readers_pass_over_fields_of_a_newer_version() -> None:
    assert record({"best": {"step": 3, "score": "1", "colour": "red"}, "mood": "good"}).best is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1795269600.0, "2026-11-21T14:00:00Z"),
        (1795269600.25, "2026-11-21T14:00:00.25Z"),
        (1795269600.123457, "2026-11-21T14:00:00.123457Z"),
    ],
)
def test_times_are_rfc3339(seconds: float, text: str) -> None:
    assert values.timestamp(seconds) == text
    assert values.seconds(text) == seconds


@given(TIMES)
def test_times_are_exact(seconds: float) -> None:
    assert values.seconds(values.timestamp(seconds)) == seconds


@given(st.floats(allow_nan=False))
def test_numbers_are_exact(number: float) -> None:
    text = values.number(number)
    assert text is not None
    assert float(text) == number


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_no_time_is_made_up(bad: float) -> None:
    with pytest.raises(ValueError, match="expected seconds since the epoch"):
        values.timestamp(bad)


def test_columns_are_short() -> None:
    full = full_record(condition_count=1, retained=0, message="")
    printed = status(full, DESIRED, 0.0)["printed"]
    assert printed.pop("reason") == "ExitCode"
    assert printed == {"gpus": "0/32", "step": 123100, "eval": "-0.1235", "best": "-0.1235", "streak": "3/3"}
    running = dataclasses.replace(full, decision=None)
    assert status(running, DESIRED, 0.0)["printed"]["gpus"] == "32/32"
    assert status(JobRecord(), DESIRED, 0.0)["printed"] == {"gpus": "0/32"}


def test_a_condition_keeps_its_generation() -> None:
    found = JobRecord(conditions=(Condition("Accepted", False, "R", "m", 5.0, 3),))
    assert record(status(found, DESIRED, 0.0)) == found


def test_the_column_of_the_best_says_that_its_checkpoint_is_lost() -> None:
    best = Best(60, 0.9, Attempt(1, "a"))
    kept = ProtectedCheckpoint(60, 60, "/data/60", "sha256:0", 1e9, attempt=best.attempt)
    for lost, secured, printed in (
        ((), None, "0.9"),
        ((best,), None, "0.9 (lost)"),
        ((best,), dataclasses.replace(kept, best_step=40), "0.9 (lost)"),
        ((best,), kept, "0.9"),
    ):
        record = JobRecord(best=best, lost_bests=lost, secured=secured)
        assert status(record, DESIRED, 0.0)["printed"]["best"] == printed


def test_the_column_of_the_best_says_that_it_was_compared_with_nothing() -> None:
    before = EvalBaseline(1e9, "1-a", 50)
    for baseline, seen, printed in ((None, 1, "0.9"), (before, 1, "0.9 (alone)"), (before, 2, "0.9")):
        record = JobRecord(best=Best(60, 0.9), baseline=baseline, evals_seen=seen)
        assert status(record, DESIRED, 0.0)["printed"]["best"] == printed
