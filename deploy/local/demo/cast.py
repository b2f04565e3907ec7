"""The jobs of the demo: the sample manifests of examples/manifests, and what each is in the story for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.local.agent.images import REPOSITORY
from deploy.local.demo.facts import Role

MANIFESTS = REPOSITORY / "examples" / "manifests"
ROLES = {
    "over-optimising": Role.OVER_OPTIMISING,
    "healthy": Role.HEALTHY,
    "waiting": Role.WAITING,
}


@dataclass(frozen=True)
class Cast:
    """``supplies``: namespace, pool, claims. ``jobs``: RLHFJobs by role, in the order they come."""

    supplies: tuple[Mapping[str, Any], ...]
    jobs: tuple[tuple[Mapping[str, Any], Role], ...]

    @property
    def namespace(self) -> str:
        namespace: str = self.jobs[0][0]["metadata"]["namespace"]
        return namespace


def load(folder: Path = MANIFESTS) -> Cast:
    """Read the manifests.

    Raises:
        ValueError: a role of the story is not there, or a job has none.
    """
    documents = [
        document
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]
    jobs = [(d, role_of(d["metadata"]["name"])) for d in documents if d["kind"] == "RLHFJob"]
    missing = set(Role) - {role for _, role in jobs}
    if missing:
        raise ValueError(f"{folder}: no RLHFJob for the role {', '.join(sorted(missing))}")
    order = list(Role)
    jobs.sort(key=lambda job: order.index(job[1]))
    first = {"Namespace": 0, "GPUPool": 1, "PersistentVolumeClaim": 2}
    supplies = sorted(
        (d for d in documents if d["kind"] != "RLHFJob"), key=lambda d: first.get(d["kind"], len(first))
    )
    return Cast(tuple(supplies), tuple(jobs))


def role_of(name: str) -> Role:
    """The role that a job's name begins with."""
    for prefix, role in ROLES.items():
        if name.startswith(prefix):
            return role
    raise ValueError(f"RLHFJob {name!r}: its name should begin with one of {', '.join(ROLES)}")
