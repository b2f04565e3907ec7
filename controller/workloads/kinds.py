"""Workload kinds as data: where each keeps what the operator needs. Another kind is another row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.frozen import dataclass

Object = Mapping[str, Any]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One workload kind. Paths are field names from the object's root, conditions are types in its status."""

    api_version: str
    kind: str
    plural: str
    suspend: Path = ("spec", "suspend")
    pod_template: Path = ("spec", "template")
    replicas: tuple[Path, ...] = ()  # fields that must each equal the gang's replicas
    required: tuple[tuple[Path, str], ...] = ()  # fields that must have this value
    suspended: str = "Suspended"
    complete: tuple[str, ...] = ("Complete",)
    failed: tuple[str, ...] = ("Failed",)
    active: tuple[Path, ...] = ()  # counts of pods that may still run
    completed: Path = ()  # members that ended well and are not started again
    expires: Path | None = None  # s after its end at which it is removed by itself
    exit_rules: Path | None = None  # rules of what a pod's exit code means for it

    @property
    def id(self) -> str:
        """``batch/v1 Job``, as users read it."""
        return f"{self.api_version} {self.kind}"


JOB = Kind(
    api_version="batch/v1",
    kind="Job",
    plural="jobs",
    replicas=(("spec", "completions"), ("spec", "parallelism")),
    required=((("spec", "completionMode"), "Indexed"),),
    # SuccessCriteriaMet and FailureTarget come first, while pods are still ending: not finished yet.
    complete=("Complete",),
    failed=("Failed",),
    active=(("status", "active"), ("status", "terminating")),
    completed=("status", "completedIndexes"),
    expires=("spec", "ttlSecondsAfterFinished"),
    exit_rules=("spec", "podFailurePolicy"),
)

KINDS: tuple[Kind, ...] = (JOB,)


def supported() -> str:
    """Return the supported kinds in a sentence."""
    return ", ".join(kind.id for kind in KINDS)


def find(api_version: str, kind: str) -> Kind | None:
    """Return the row of a kind; None: not supported."""
    return next((k for k in KINDS if (k.api_version, k.kind) == (api_version, kind)), None)


def kind_of(obj: Object) -> Kind:
    """Return the row of an object's kind.

    Raises:
        ValueError: the kind is not supported.
    """
    found = find(str(obj.get("apiVersion", "")), str(obj.get("kind", "")))
    if found is None:
        raise ValueError(f"kind {obj.get('apiVersion')} {obj.get('kind')}: expected one of {supported()}")
    return found


def get(obj: Object, path: Path) -> Any:
    """Return the value at a path; None where any part is missing."""
    value: Any = obj
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def nested(path: Path, value: Any) -> dict[str, Any]:
    """``{"spec": {"suspend": value}}`` for ``("spec", "suspend")``: a merge patch of one field."""
    for name in reversed(path):
        value = {name: value}
    result: dict[str, Any] = value
    return result


def dotted(path: Path) -> str:
    return ".".join(path)
