"""Recorded past of a job on the cluster it ran on: part of a trace that `evalstop export` made of a history.

A run that was stopped is *censored*: nobody saw what it would have done after that. ``seen`` says up to where
its training was observed; its evals end there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from math import isfinite
from typing import Any

from controller.frozen import dataclass
from controller.policy.types import Mode, PolicySpec
from sim.foresight import RuleSpec


class End(StrEnum):
    """End of a job's record. STOPPED: by its stop rule. USER: by its user. GONE: it was deleted, or left the
    pool, and nobody knows why. RUNNING, WAITING: it was still there when the history ends."""

    COMPLETE = "Complete"
    STOPPED = "Stopped"
    FAILED = "Failed"
    USER = "User"
    GONE = "Gone"
    RUNNING = "Running"
    WAITING = "Waiting"


# Ends that do not hang on any stop rule: in another history the run would have ended there, too.
BY_ITSELF = frozenset({End.COMPLETE, End.FAILED, End.USER, End.GONE})


NEARLY = 0.9  # share of its steps from which on a run that is complete was seen to its end


@dataclass(frozen=True, slots=True)
class Past:
    """Times in s on the log's own clock, service in GPU-seconds; None: not known.

    Attributes:
        seen: share of the job's ``work`` that was observed.
        length: where ``work`` is from: ``run`` (it came to its end), ``progress`` (its own step /
            total_steps), ``estimate`` (its submitter's), or ``unknown``: only what was seen.
        lost: part of ``service`` that preemptions cost.
        waited: s in the queue in all.
        stop_eval: number from 1 of the eval at which its rule's stop was granted, in Shadow recorded.
        missed: evals that it made and nobody read.
        scale: evals left out because another evaluator scored them, or the whole pool fell.
        early: it was there before the history begins.
    """

    end: End
    mode: Mode = Mode.ENFORCE
    seen: float = 1.0
    length: str = "run"
    started: float | None = None
    ended: float | None = None
    service: float = 0.0
    lost: float = 0.0
    waited: float | None = None
    preempted: int = 0
    attempts: int = 0
    stop_eval: int | None = None
    metric: str = ""
    direction: str = "Maximize"
    step: int | None = None
    total_steps: int | None = None
    checkpoint_every: float | None = None  # s of training
    missed: int = 0
    scale: int = 0
    early: bool = False
    rule: RuleSpec | None = None

    @property
    def censored(self) -> bool:
        """Return whether its stop rule cut it short, so that it is not known what would have come."""
        return self.end is End.STOPPED and self.seen < 1.0

    @property
    def whole(self) -> bool:
        """Return whether its training was seen from beginning to end."""
        return self.end is End.COMPLETE and self.seen >= 1.0

    @property
    def ended_unseen(self) -> bool:
        """Return whether it ended by itself while nobody read it: its evals are the first ones only."""
        return self.end in BY_ITSELF and self.seen < 1.0

    @property
    def span(self) -> float:
        """Steps that the whole of its job's ``work`` makes: its evals' shares are of these; 0: not known."""
        if not self.step or self.seen <= 0.0:
            return 0.0
        total = self.total_steps or 0
        if self.whole and self.step > NEARLY * total:
            return float(max(self.step, total))
        return self.step / self.seen

    def entry(self) -> dict[str, Any]:
        """As JSON values; what is as usual is left out."""
        found: dict[str, Any] = {"end": str(self.end)}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("end", "rule") or value == field.default:
                continue
            found[field.name] = str(value) if isinstance(value, StrEnum) else value
        if self.rule is not None:
            found["rule"] = rule_entry(self.rule)
        return found


def read_past(value: Any) -> Past:
    """Return the inverse of `Past.entry`.

    Raises:
        ValueError: a field is unknown, or not what it has to be; the message names it.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not allowed, expected an object, as `evalstop export` writes it")
    given = dict(value)
    known = {field.name for field in fields(Past)}
    for name in given:
        if name not in known:
            raise ValueError(f"{name}: unknown, expected one of {', '.join(sorted(known))}")
    given["end"] = _choice("end", given.get("end"), End)
    if "mode" in given:
        given["mode"] = _choice("mode", given["mode"], Mode)
    if "rule" in given:
        given["rule"] = _rule(given["rule"])
    for name, (types, expected) in _FORMS.items():
        found = given.get(name)
        if found is not None and (
            not isinstance(found, types)
            or (isinstance(found, bool) and bool not in types)
            or (isinstance(found, float) and not isfinite(found))
        ):
            raise ValueError(f"{name}: {found!r} is not allowed, expected {expected}")
    past = Past(**given)
    if not 0.0 <= past.seen <= 1.0:
        raise ValueError(f"seen: {past.seen!r} is not allowed, expected a share of the training, 0 to 1")
    if past.stop_eval is not None and past.stop_eval < 1:
        raise ValueError(f"stop_eval: {past.stop_eval!r} is not allowed, expected a number from 1 on")
    return past


def rule_entry(rule: RuleSpec) -> dict[str, Any]:
    """Return a rule with modifiers and guardrails as JSON values; `Past.rule` and a trace's header read
    alike."""

    def spec(one: PolicySpec) -> dict[str, Any]:
        return {"name": one.name, **one.params}

    found = spec(rule.rule)
    if rule.modifiers:
        found["modifiers"] = [spec(m) for m in rule.modifiers]
    if rule.guardrails:
        found["guardrails"] = {metric: spec(one) for metric, one in rule.guardrails}
    return found


def _rule(value: Any) -> RuleSpec:
    expected = '{"name": …} with its parameters, modifiers and guardrails'
    if not isinstance(value, dict):
        raise ValueError(f"rule: {value!r} is not allowed, expected {expected}")
    modifiers, guardrails = value.get("modifiers", []), value.get("guardrails", {})
    try:
        rule = RuleSpec(
            _spec({k: v for k, v in value.items() if k not in ("modifiers", "guardrails")}),
            tuple(_spec(m) for m in modifiers),
            guardrails=tuple((metric, _spec(one)) for metric, one in guardrails.items()),
        )
    except (TypeError, KeyError, AttributeError):
        raise ValueError(f"rule: {value!r} is not allowed, expected {expected}") from None
    rule.make()
    return rule


def _spec(value: Mapping[str, Any]) -> PolicySpec:
    return PolicySpec(str(value["name"]), {k: v for k, v in value.items() if k != "name"})


def _choice(name: str, value: Any, kind: type[StrEnum]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}: {value!r} is not allowed, expected one of {', '.join(kind)}") from None


_NUMBER = ((int, float), "a finite number")
_WHOLE = ((int,), "a whole number")
_TEXT = ((str,), "text")
_FORMS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("seen", "started", "ended", "service", "lost", "waited", "checkpoint_every"), _NUMBER),
    **dict.fromkeys(("preempted", "attempts", "stop_eval", "step", "total_steps", "missed", "scale"), _WHOLE),
    **dict.fromkeys(("length", "metric", "direction"), _TEXT),
    "early": ((bool,), "true or false"),
}
