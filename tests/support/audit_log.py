"""The API server's audit log, read as rights that were used: held against the roles that give them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

Right = tuple[str, str, str]  # group, resource with subresource, verb

# Who asked for what: request bodies are not kept. Reads of the API's own description are nobody's right.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


@dataclass(frozen=True, slots=True)
class Use:
    """A request of a service account. ``name``, ``namespace``: of its object, "" where it has none."""

    right: Right
    name: str
    namespace: str
    allowed: bool


class AuditLog:
    """``folder``: one of its own. The API server is to be started with `flags`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "audit.log"

    def flags(self) -> list[str]:
        """Flags of an API server that writes it."""
        policy = self.folder / "policy.yaml"
        policy.write_text(yaml.safe_dump(_POLICY))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.path}"]

    def used(self, account: str, namespace: str) -> set[Right]:
        """What a service account asked for and got past authorization."""
        return {use.right for use in self.uses(account, namespace) if use.allowed}

    def denied(self, account: str, namespace: str) -> set[Right]:
        """What it asked for and had no right to."""
        return {use.right for use in self.uses(account, namespace) if not use.allowed}

    def uses(self, account: str, namespace: str) -> set[Use]:
        """Everything that a service account asked for."""
        user = f"system:serviceaccount:{namespace}:{account}"
        found = set()
        whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be half written
        for line in whole.splitlines():
            event = json.loads(line)
            if event["user"]["username"] != user or "objectRef" not in event:
                continue
            about = event["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            allowed = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
            right = (about.get("apiGroup", ""), resource, event["verb"])
            found.add(Use(right, about.get("name", ""), about.get("namespace", ""), allowed))
        return found
