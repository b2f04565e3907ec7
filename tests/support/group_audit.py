"""The API server's audit log as an onlooker of worker groups: who asked, for what, in which order.

Recorded are all writes in the namespace of groups, every request of its service accounts or without an
identity, and the operator's writes; of states of groups, and of the jobs that `JOBS` names, with bodies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

GROUPS = "evalstop-workers"
OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"
JOBS = ("one-120", "two-40")  # names of jobs whose status is kept as it was written
WRITES = ("create", "update", "patch", "delete", "deletecollection")
_OURS = "evalstop.dev"


def _rule(level: str, **more: Any) -> dict[str, Any]:
    return {"level": level, **more}


def _of(resource: str, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [{"group": _OURS, "resources": [resource], **({"resourceNames": list(names)} if names else {})}]


_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "Panic"],
    "omitManagedFields": True,
    "rules": [  # the first that fits counts
        _rule("Metadata", userGroups=[f"system:serviceaccounts:{GROUPS}"]),
        _rule("None", resources=[{"group": "coordination.k8s.io"}]),
        _rule("Request", verbs=list(WRITES), resources=_of("rlhfjobs/status", JOBS)),
        _rule("Request", verbs=list(WRITES), resources=_of("workergroups/status")),
        _rule("Metadata", verbs=list(WRITES), namespaces=[GROUPS]),
        _rule("Metadata", verbs=list(WRITES), users=[OPERATOR]),
        _rule("None", userGroups=["system:authenticated"]),
        _rule("Metadata"),  # whom the API server does not know
    ],
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request. ``user``: "" if the API server did not know who asked; ``body``: None if it is not kept."""

    came: datetime
    ended: datetime
    user: str
    verb: str
    resource: str  # with its subresource; for others the path
    namespace: str
    name: str
    code: int
    body: Any

    @property
    def what(self) -> str:
        """As one line says it."""
        who = self.user or "nobody"
        return f"{self.verb} {self.resource} {self.namespace}/{self.name} by {who}: {self.code}"

    @property
    def status(self) -> dict[str, Any]:
        """What of a status it writes."""
        return dict((self.body or {}).get("status") or {})

    def writes(self, resource: str = "", name: str = "", user: str = "") -> bool:
        """Return whether it has changed something: any, if not given, by users whose names begin so."""
        return (
            self.verb in WRITES
            and self.code < 400
            and resource in ("", self.resource)
            and name in ("", self.name)
            and self.user.startswith(user)
        )


class GroupAudit:
    """``folder``: one of its own. The API server is to be started with `flags`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "audit.log"

    def flags(self) -> list[str]:
        """Flags of an API server that writes it."""
        policy = self._folder / "policy.yaml"
        policy.write_text(yaml.safe_dump(_POLICY))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self._log}"]

    def mark(self) -> int:
        """Return where the log ends now, for `since`."""
        return self._log.stat().st_size if self._log.exists() else 0

    def since(self, mark: int = 0) -> list[Request]:
        """Return what was recorded from a mark on, in the order in which it came."""
        return sorted(self._read(mark), key=lambda one: one.came)

    def _read(self, mark: int) -> Iterator[Request]:
        with self._log.open("rb") as file:
            file.seek(mark)
            whole, _, _ = file.read().rpartition(b"\n")  # the last line may be half written
        for line in whole.splitlines():
            event = json.loads(line)
            about = event.get("objectRef") or {}
            parts = (about.get("resource"), about.get("subresource"))
            yield Request(
                _time(event["requestReceivedTimestamp"]),
                _time(event["stageTimestamp"]),
                (event.get("user") or {}).get("username", ""),
                event["verb"],
                "/".join(part for part in parts if part) or event["requestURI"],
                about.get("namespace", ""),
                about.get("name", ""),
                (event.get("responseStatus") or {}).get("code", 0),
                event.get("requestObject"),
            )


Step = tuple[str, Callable[[Request], bool]]


def in_order(requests: Iterable[Request], steps: Sequence[Step]) -> None:
    """Hold requests against an order: the first of each kind came once that of the kind before had ended.
    Where somebody else asked for that one, once it had come: its effect is seen before its answer is through.

    Raises:
        AssertionError: none is of a kind, or came too early.
    """
    found, before = list(requests), None
    for what, fits in steps:
        first = next((one for one in found if fits(one)), None)
        assert first is not None, f"{what}: no such request"
        if before is not None:
            there = before[1].ended if before[1].user == first.user else before[1].came
            assert there <= first.came, f"{what} ({first.what}) came before {before[0]} was through"
        before = what, first


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
