"""JobRecord to status and back, exactly: ``record(status(r)) == r``. No decision is made here.

What equals its default is left out. Only messages for people are ever shortened, and only when the status
would otherwise not stay below `STATUS_MAX`; a status that was shortened once is not shortened again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic.alias_generators import to_camel

from controller.api import paths, values
from controller.api.status import GUARD_STATE_MAX, MESSAGE_MAX, RULE_STATE_MAX
from controller.policy.job import Condition, Decision, Desired, Guard, JobRecord, RuleRecord, summary
from controller.policy.types import Attempt, EvalPoint, Grade, LossTrend, Paired, Proposal, Verb, Verdict

STATUS_MAX = 9000  # bytes of compact JSON; an RLHFJob of usual size stays under 10 kB with it
MESSAGE_FLOOR = 32  # characters that are left of a message in any case

Json = dict[str, Any]
T = TypeVar("T")

# Names that differ from the camelCase of the brain's, and the floats that are times.
_NAMES = {
    "at": "time",
    "retained_at": "retainedTime",
    "suspended_at": "suspendedTime",
    "pods_gone_at": "podsGoneTime",
    "handed_at": "handedTime",
    "deferred_at": "deferredTime",
    "asked_at": "askedTime",
    "delayed_at": "delayedTime",
    "decided": "decidedTime",
    "attained": "attainedGPUSeconds",
    "queued_at": "queuedTime",
    "lost": "lostGPUSeconds",
    "job_uid": "jobUID",
    "worked": "workedGPUSeconds",
    "first_worked": "firstWorkedGPUSeconds",
}
_TIMES = frozenset(
    {
        "at",
        "retained_at",
        "suspended_at",
        "pods_gone_at",
        "handed_at",
        "deferred_at",
        "asked_at",
        "delayed_at",
        "decided",
        "not_before",
        "running_since",
        "unbound_since",
        "withdrawn",
        "until",
        "started",
        "pod_created",
        "lost_tried",
        "queued_at",
        "since",
    }
)
_BY_HAND = frozenset({"evals", "conditions", "rule", "guards", "decision"})


class StatusError(ValueError):
    """A stored status does not read as a record; the message names the field."""


def status(record: JobRecord, desired: Desired, now: float) -> Json:
    """Return the status to store for a record.

    ``desired`` gives the generation looked at and the GPUs wanted; ``now`` (s) is not stored, so that a pass
    in which nothing happened gives the same status.

    Raises:
        ValueError: a rule's state is longer than what a status may hold.
    """
    del now
    out: Json = {}
    if record.conditions:
        out["conditions"] = [_condition(c) for c in record.conditions]
    out["observedGeneration"] = desired.generation
    out["summary"] = summary(record.conditions)
    out["printed"] = _printed(record, desired)
    if evals := _evals(record.evals):
        out["evals"] = evals
    if record.rule is not None:
        out["rule"] = _rule(record.rule)
    if record.guards:
        out["guardrails"] = [_guard(guard) for guard in record.guards]
    if record.decision is not None:
        out["decision"] = _decision(record.decision)
    out |= paths.gathered(_flat(record))
    return _shorten(out)


def record(status: Mapping[str, Any] | None) -> JobRecord:
    """Return the record a stored status stands for; of an empty one, the empty record.

    Raises:
        StatusError: a field is missing or does not read back.
    """
    if not status:
        return JobRecord()
    try:
        given = _unflat(JobRecord, paths.spread(status))
        given["evals"] = _read_evals(status.get("evals") or ())
        given["conditions"] = tuple(_read_condition(c) for c in status.get("conditions") or ())
        if status.get("rule"):
            given["rule"] = _read_rule(status["rule"])
        given["guards"] = tuple(_read_guard(guard) for guard in status.get("guardrails") or ())
        if status.get("decision"):
            given["decision"] = _read_decision(status["decision"])
        return JobRecord(**given)
    except StatusError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _misread(error) from error


def _misread(error: Exception) -> StatusError:
    what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
    return StatusError(f"status: {what}")


def field(status: Mapping[str, Any] | None, name: str) -> Any:
    """Return one field of the record that a stored status stands for, for who needs it many times a second.

    Args:
        status: a stored status.
        name: of the field in `JobRecord`; none that has a form of its own or holds paths of pins.

    Raises:
        StatusError: it does not read back.
    """
    key, hint, default = _field(name)
    try:
        return _parse(name, hint, status[key], key) if status and key in status else default
    except StatusError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _misread(error) from error


@cache
def _field(name: str) -> tuple[str, Any, Any]:
    return next(found[1:] for found in _fields(JobRecord) if found[0] == name)


# --- plain dataclasses: field by field ---------------------------------------------------------------


@cache
def _fields(cls: Any) -> tuple[tuple[str, str, Any, Any], ...]:
    """(name, name in the status, type, default) of each field that goes by the general way."""
    hints = get_type_hints(cls)
    return tuple(
        (f.name, _NAMES.get(f.name, to_camel(f.name)), hints[f.name], _default(f))
        for f in dataclasses.fields(cls)
        if not (cls is JobRecord and f.name in _BY_HAND) and f.name != "proposal"
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _flat(value: Any) -> Json:
    out: Json = {}
    cls: Any = type(value)
    for name, key, _, default in _fields(cls):
        given = getattr(value, name)
        if given == default and not (isinstance(given, float) and math.copysign(1, given) < 0):
            continue
        text = _plain(name, given)
        if text is not None:
            out[key] = text
    return out


def _plain(name: str, value: Any) -> Any:
    if name in _TIMES and value is not None:
        return values.timestamp(value)
    if isinstance(value, float):
        return values.number(value)
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Attempt):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(name, v) for v in value]
    return _flat(value) if hasattr(value, "__dataclass_fields__") else value


def _unflat(cls: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _parse(name, hint, stored[key], key)
        for name, key, hint, default in _fields(cls)
        if key in stored or default is dataclasses.MISSING
    }


def _parse(name: str, hint: Any, value: Any, path: str) -> Any:
    if name in _TIMES:
        return values.seconds(value)
    hint, element, fields = _shape(hint)
    if hint is Attempt:
        return Attempt.parse(value)
    if hint is LossTrend:
        return LossTrend(*map(float, value))
    if element is not None:
        return tuple(_parse(name, element, v, path) for v in value)
    if fields:
        return hint(**_unflat(hint, value))
    if hint is float or issubclass(hint, StrEnum):
        return hint(value)
    if type(value) is not hint:
        raise StatusError(f"status: {path}: {value!r} is not of type {hint.__name__}")
    return sys.intern(value) if hint is str else value  # thousands of records say the same in the same words


@cache
def _shape(hint: Any) -> tuple[Any, Any, bool]:
    """(type without None, type of a tuple's elements or None, whether it is a dataclass)."""
    if isinstance(hint, UnionType):
        (hint,) = (h for h in get_args(hint) if h is not NoneType)
    args = get_args(hint)  # of tuple[X, ...]
    return hint, args[0] if args else None, dataclasses.is_dataclass(hint)


# --- what has its own form ---------------------------------------------------------------------------


def _evals(points: Sequence[EvalPoint]) -> list[str]:
    """Return one line per eval: step, score, standard error, and, where they change, samples and attempt.

    ``-`` stands for what the trainer did not publish. As objects, 32 evals with long numbers would take half
    of what a status may. Scores that are no finite number are not kept.
    """
    out: list[str] = []
    attempt, samples = Attempt(0), None
    against: Against = None
    for point in points:
        if not math.isfinite(point.score):
            continue
        stderr = point.stderr if point.stderr is not None and math.isfinite(point.stderr) else None
        words = [
            str(point.step),
            values.number(point.score),
            "-" if stderr is None else values.number(stderr),
        ]
        if (point.samples, point.attempt) != (samples, attempt):
            words.append("-" if point.samples is None else str(point.samples))
        if point.attempt != attempt:
            words.append(str(point.attempt))
        tagged, against = _tagged(point, against)
        words += tagged
        attempt, samples = point.attempt, point.samples
        out.append(" ".join(word for word in words if word is not None))
    return out


Against = tuple[int, int] | None  # reference step and prompts of the last differences: not said again


def _tagged(point: EvalPoint, against: Against) -> tuple[list[str], Against]:
    """Return the parts that few evals have: the proxy reward, and differences to a reference step."""
    words = []
    if point.proxy is not None and math.isfinite(point.proxy):
        words.append(f"proxy={values.number(point.proxy)}")
    pair = point.paired
    if pair is not None and math.isfinite(pair.mean) and math.isfinite(pair.variance):
        parts = [values.number(pair.mean), values.number(pair.variance)]
        if pair[:2] != against:
            parts += [str(pair.reference_step), str(pair.prompts)]
        words.append("paired=" + "/".join(str(part) for part in parts))
        against = pair.reference_step, pair.prompts
    return words, against


def _read_tagged(words: Sequence[str], against: Against) -> tuple[float | None, Paired | None]:
    given = dict(word.split("=", 1) for word in words)
    proxy = float(given["proxy"]) if "proxy" in given else None
    if "paired" not in given:
        return proxy, None
    mean, variance, *named = given["paired"].split("/")
    if named or against is None:
        step, prompts = named
        against = int(step), int(prompts)
    return proxy, Paired(*against, float(mean), float(variance))


def _read_evals(stored: Sequence[str]) -> tuple[EvalPoint, ...]:
    points: list[EvalPoint] = []
    attempt, samples = Attempt(0), None
    against: Against = None
    for line in stored:
        every = line.split(" ")
        words = [word for word in every if "=" not in word]
        if not 3 <= len(words) <= 5:
            raise StatusError(f"status: evals: {line!r}: expected step, score, stderr[, samples[, attempt]]")
        if len(words) > 3:
            samples = None if words[3] == "-" else int(words[3])
        if len(words) > 4:
            attempt = Attempt.parse(words[4])
        stderr = None if words[2] == "-" else float(words[2])
        proxy, paired = _read_tagged(every[len(words) :], against)
        against = (paired.reference_step, paired.prompts) if paired is not None else against
        points.append(EvalPoint(int(words[0]), float(words[1]), attempt, stderr, samples, proxy, paired))
    return tuple(points)


def _condition(c: Condition) -> Json:
    return {
        "type": c.type,
        "status": "True" if c.status else "False",
        "reason": c.reason,
        "message": c.message[:MESSAGE_MAX],
        "lastTransitionTime": values.timestamp(c.since),
        "observedGeneration": c.generation,
    }


def _read_condition(c: Mapping[str, Any]) -> Condition:
    return Condition(
        c["type"],
        c["status"] == "True",
        c["reason"],
        c["message"],
        values.seconds(c["lastTransitionTime"]),
        c.get("observedGeneration", 0),
    )


def _compared(judged: Verdict | Proposal) -> Json:
    flags: Json = {"whenContended": True} if judged.when_contended else {}
    pairs = [("statistic", values.number(judged.statistic)), ("threshold", values.number(judged.threshold))]
    if judged.e_value is not None:
        pairs.append(("eValue", values.number(judged.e_value)))
    return flags | {key: text for key, text in pairs if text is not None}


def _read_compared(stored: Mapping[str, Any]) -> tuple[float, float, float | None, bool]:
    statistic, threshold = float(stored.get("statistic", "nan")), float(stored.get("threshold", "nan"))
    e_value = float(stored["eValue"]) if "eValue" in stored else None
    return statistic, threshold, e_value, stored.get("whenContended", False)


def _rule(rule: RuleRecord) -> Json:
    state = values.state_text(base=rule.base, state=rule.state)
    if len(state) > RULE_STATE_MAX:
        raise ValueError(
            f"state of rule {rule.name} is {len(state)} characters of JSON, a status holds {RULE_STATE_MAX}"
        )
    out: Json = {"name": rule.name, "version": rule.version, "paramsHash": rule.params_hash, "state": state}
    if rule.unjudged:
        out["unjudged"] = rule.unjudged
    if rule.verdict is not None:
        out["verdict"] = _verdict(rule.verdict)
    return out


def _verdict(verdict: Verdict) -> Json:
    graded = {"grade": str(verdict.grade)} if verdict.grade is not None else {}
    return {"verb": str(verdict.verb), "reason": verdict.reason, **_compared(verdict), **graded}


def _read_verdict(stored: Mapping[str, Any]) -> Verdict:
    grade = Grade(stored["grade"]) if "grade" in stored else None
    return Verdict(Verb(stored["verb"]), stored["reason"], *_read_compared(stored), grade)


def _read_rule(stored: Mapping[str, Any]) -> RuleRecord:
    states = values.state_values(stored["state"])
    verdict = None
    if found := stored.get("verdict"):
        verdict = _read_verdict(found)
    return RuleRecord(
        stored["name"],
        stored["version"],
        stored["paramsHash"],
        states["base"],
        states["state"],
        verdict,
        stored.get("unjudged", 0),
    )


def _guard(guard: Guard) -> Json:
    state = values.state_text(state=guard.state)
    if len(state) > GUARD_STATE_MAX:
        raise ValueError(
            f"state of guardrail {guard.metric!r} is {len(state)} characters of JSON, a status holds "
            f"{GUARD_STATE_MAX}"
        )
    out: Json = {
        "metric": guard.metric,
        "step": guard.step,
        "attempt": str(guard.attempt),
        "score": values.number(guard.score),
        "paramsHash": guard.params_hash,
        "state": state,
    }
    return out | ({"verdict": _verdict(guard.verdict)} if guard.verdict is not None else {})


def _read_guard(stored: Mapping[str, Any]) -> Guard:
    found = stored.get("verdict")
    return Guard(
        stored["metric"],
        stored["step"],
        Attempt.parse(stored["attempt"]),
        float(stored["score"]),
        stored["paramsHash"],
        values.state_values(stored["state"])["state"],
        _read_verdict(found) if found else None,
    )


def _decision(decision: Decision) -> Json:
    p = decision.proposal
    evidence = {"step": p.step, "bestStep": p.best_step, "reason": p.reason}
    evidence |= {"metric": p.metric} if p.metric else {}
    out = _flat(decision) | evidence | _compared(p)
    out["message"] = decision.message[:MESSAGE_MAX]
    return out


def _read_decision(stored: Mapping[str, Any]) -> Decision:
    evidence = (stored["step"], stored["bestStep"], stored["reason"], *_read_compared(stored))
    proposal = Proposal(*evidence, stored.get("metric", ""))
    return Decision(proposal=proposal, **_unflat(Decision, stored))


# --- for people --------------------------------------------------------------------------------------


def _printed(record: JobRecord, desired: Desired) -> Json:
    wanted = desired.replicas * desired.gpus_per_replica
    gone = record.decision is not None and record.decision.pods_gone_at is not None
    held = wanted if record.admission is not None and not gone and record.finished is None else 0
    out: Json = {"gpus": f"{held}/{wanted}"}
    if record.evals:
        out["step"] = record.evals[-1].step
        out["eval"] = f"{record.evals[-1].score:.4g}"
    if record.best is not None:
        out["best"] = f"{record.best.score:.4g}"
    verdict = record.rule.verdict if record.rule is not None else None
    if verdict is not None and math.isfinite(verdict.statistic) and math.isfinite(verdict.threshold):
        out["streak"] = f"{verdict.statistic:.4g}/{verdict.threshold:.4g}"
    return out


def size(status: Json) -> int:
    """Bytes of a status as the API server stores it: compact JSON in UTF-8."""
    return len(json.dumps(status, separators=(",", ":"), ensure_ascii=False).encode())


def _shorten(status: Json) -> Json:
    """Cut the messages to the greatest common length at which the whole fits."""
    if size(status) <= STATUS_MAX:
        return status
    carriers = [*status.get("conditions", ()), *([status["decision"]] if "decision" in status else ())]
    texts = [c["message"] for c in carriers]
    low, high = MESSAGE_FLOOR, MESSAGE_MAX
    while low < high:
        middle = (low + high + 1) // 2
        _cut(carriers, texts, middle)
        low, high = (middle, high) if size(status) <= STATUS_MAX else (low, middle - 1)
    _cut(carriers, texts, low)
    return status


def _cut(carriers: Sequence[Json], texts: Sequence[str], most: int) -> None:
    for carrier, text in zip(carriers, texts, strict=True):
        carrier["message"] = text if len(text) <= most else text[: most - 1] + "…"
