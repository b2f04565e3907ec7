"""An RLHFJob as commands look at it: the object, its record in the brain's words, and texts about both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from controller.api import record as stored
from controller.api import values
from controller.api.rule_text import rule_and_modifiers
from controller.cli import formatting
from controller.frozen import dataclass
from controller.policy.job import METRICS, Best, Condition, Direction, JobRecord, ProtectedCheckpoint
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import EvalPoint, EvalScale
from controller.policy.wording import other_way

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """One RLHFJob. ``problem``: why its status cannot be read; the record is empty then."""

    obj: Object
    record: JobRecord
    problem: str = ""

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"].get("namespace", ""))

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.obj.get("spec") or {}
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.obj.get("status") or {}
        return found

    @property
    def state(self) -> str:
        """The one word of the STATE column; "New" until the operator has looked at it."""
        return str(self.status.get("summary") or "New")

    @property
    def mode(self) -> str:
        return str(self.spec.get("mode") or "Enforce")

    @property
    def metric(self) -> Mapping[str, Any]:
        """The Primary metric of the spec."""
        metrics = self.spec.get("metrics") or [{}]
        found: Mapping[str, Any] = next(
            (m for m in metrics if m.get("role", "Primary") == "Primary"), metrics[0]
        )
        return found

    @property
    def maximize(self) -> bool:
        return _maximizes(self.metric)

    def maximized(self, metric: str) -> bool:
        """Return whether higher counts as better of a metric of the spec."""
        named = (m for m in self.spec.get("metrics") or () if m.get("name") == metric)
        return _maximizes(next(named, {}))

    @property
    def doubts(self) -> list[str]:
        """Return what is to be said of judged metrics whose names say the opposite of their direction."""
        judged = (str(m.get("name")) for m in self.spec.get("metrics") or () if m.get("role") != "Proxy")
        return [doubt for name in judged if (doubt := other_way(name, self.maximized(name)))]

    @property
    def page_notes(self) -> str:
        """Return what of the trainer's page counts for nothing or is doubted, although it is read."""
        read = self.condition(METRICS)
        return read.message.partition("; ")[2] if read is not None and read.status else ""

    @property
    def direction(self) -> Direction:
        return Direction.MAXIMIZE if self.maximize else Direction.MINIMIZE

    @property
    def scale(self) -> EvalScale:
        """Return what is declared about the Primary metric's evals, as `controller.api.rlhfjob` reads it."""
        prompts, given = self.metric.get("prompts"), self.metric.get("range")
        low_high = (0.0, 1.0) if self.metric.get("preset") is not None else None
        try:
            if given is not None:
                low_high = float(given[0]), float(given[1])
        except (TypeError, ValueError, LookupError):
            low_high = None
        return EvalScale(prompts if isinstance(prompts, int) else None, low_high)

    def condition(self, type_: str) -> Condition | None:
        return self.record.condition(type_)

    def flags(self) -> str:
        """`` -n namespace``, for commands that are printed for the user to run."""
        return f" -n {self.namespace}"


def read(obj: Object) -> Reading:
    """Return the reading of an object; a status that this version cannot read is told, not raised."""
    try:
        return Reading(obj, stored.record(obj.get("status")))
    except stored.StatusError as error:
        return Reading(obj, JobRecord(), str(error))


def union(value: Mapping[str, Any] | None) -> str:
    """``{"kDeclines": {"k": 3, "minDelta": "0.02"}}`` as ``kDeclines(k=3, minDelta=0.02)``, without
    the parameters that are at their defaults."""
    if not value:
        return "-"
    name, given = next(iter(value.items()))
    usual = _defaults(name)
    inside = ", ".join(
        f"{key}={text}" for key, text in (given or {}).items() if not _same(text, usual.get(key))
    )
    return f"{name}({inside})" if inside else str(name)


@cache
def _defaults(name: str) -> Mapping[str, Any]:
    """Return the defaults of a rule's, modifier's or queue policy's parameters, by their names in a spec."""
    known: Mapping[str, Any] = {**RULES, **MODIFIERS}
    if name not in known:
        from controller.policy.queueing import POLICIES

        known = POLICIES
    if name not in known:
        return {}
    return {values.camel(f.name): f.default for f in fields(known[name].params)}


def _same(given: Any, usual: Any) -> bool:
    """Return whether a spec's value is the default: ``"0.0"`` is 0, ``Enabled`` is True."""
    if isinstance(usual, bool):
        return bool(given == ("Enabled" if usual else "Disabled"))
    try:
        return float(given) == float(usual)
    except (TypeError, ValueError):
        return bool(given == usual)


def rule(spec: Mapping[str, Any]) -> str:
    """Rule and modifiers of a spec in one line."""
    return " + ".join(map(union, rule_and_modifiers(spec)))


def point(found: EvalPoint) -> dict[str, Any]:
    """Return an eval as JSON; what the trainer did not publish is null."""
    return {
        "step": found.step,
        "score": found.score,
        "stderr": found.stderr,
        "samples": found.samples,
        "attempt": str(found.attempt),
        "proxy": found.proxy,
    }


def kept(found: ProtectedCheckpoint) -> dict[str, Any]:
    """Return a checkpoint in safety as JSON."""
    return {
        "step": found.step,
        "bestStep": found.best_step,
        "score": found.score,
        "path": found.path,
        "digest": found.digest,
        "bytes": found.bytes,
        "evidence": found.evidence or None,
    }


def best_sentence(record: JobRecord, best: Best) -> str:
    """Return the best eval, and where nothing was compared with it, that."""
    from controller.policy.job import alone_best

    text = f"{formatting.number(best.score)} at step {best.step}"
    return f"{text}, {alone}" if (alone := alone_best(record)) else text


def _maximizes(metric: Mapping[str, Any]) -> bool:
    return str(metric.get("direction", "Maximize")) == "Maximize"
