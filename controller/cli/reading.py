"""An RLHFJob as commands look at it: the object, its record in the brain's words, and texts about both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.api import record as stored
from controller.policy.jobs import Condition, JobRecord, Kept
from controller.policy.types import EvalPoint

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
        return str(self.metric.get("direction", "Maximize")) == "Maximize"

    def condition(self, type_: str) -> Condition | None:
        return self.record.condition(type_)

    def flags(self) -> str:
        """`` -n namespace``, for commands that are printed for the user to run."""
        return f" -n {self.namespace}"


def read(obj: Object) -> Reading:
    """The reading of an object; a status that this version cannot read is told, not raised."""
    try:
        return Reading(obj, stored.record(obj.get("status")))
    except stored.StatusError as error:
        return Reading(obj, JobRecord(), str(error))


def union(value: Mapping[str, Any] | None) -> str:
    """``{"kDeclines": {"k": 3, "minDelta": "0.02"}}`` as ``kDeclines(k=3, minDelta=0.02)``."""
    if not value:
        return "-"
    name, given = next(iter(value.items()))
    inside = ", ".join(f"{key}={text}" for key, text in (given or {}).items())
    return f"{name}({inside})" if inside else str(name)


def rule(spec: Mapping[str, Any]) -> str:
    """Rule and modifiers of a spec in one line."""
    return " + ".join([union(spec.get("stopRule") or {"scan": {}}), *map(union, spec.get("modifiers") or ())])


def point(found: EvalPoint) -> dict[str, Any]:
    """An eval as JSON; what the trainer did not publish is null."""
    return {
        "step": found.step,
        "score": found.score,
        "stderr": found.stderr,
        "samples": found.samples,
        "attempt": str(found.attempt),
        "proxy": found.proxy,
    }


def kept(found: Kept) -> dict[str, Any]:
    """A checkpoint in safety as JSON."""
    return {
        "step": found.step,
        "bestStep": found.best_step,
        "score": found.score,
        "path": found.path,
        "digest": found.digest,
        "bytes": found.bytes,
    }
