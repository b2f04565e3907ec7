"""The jobs of the demo: the sample manifests of examples/manifests, and what each is in the story for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from deploy.local.agent.images import REPOSITORY
from deploy.local.demo.facts import Role

MANIFESTS = REPOSITORY / "examples" / "manifests"
ROLE_LABEL = "example.evalstop.dev/role"
NAMESPACE = "demo"

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Cast:
    """``supplies``: namespace, pool, claims. ``jobs``: RLHFJobs with their roles, in the order they come."""

    supplies: tuple[Manifest, ...]
    jobs: tuple[tuple[Manifest, Role], ...]

    @property
    def node_labels(self) -> dict[str, str]:
        """Labels by which the pools find their nodes."""
        pools = (d for d in self.supplies if d["kind"] == "GPUPool")
        return {s["key"]: s.get("value", "") for pool in pools for s in pool["spec"]["nodeSelector"]}


def load(folder: Path = MANIFESTS, namespace: str = NAMESPACE) -> Cast:
    """Read the sample manifests, and put what has no namespace into this one.

    Raises:
        ValueError: an RLHFJob has no role of the story, or a role has no RLHFJob; the message names it.
    """
    documents: list[dict[str, Any]] = [
        document
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]
    for document in documents:
        if document["kind"] != "GPUPool":
            document["metadata"].setdefault("namespace", namespace)
    jobs = [(d, role_of(d)) for d in documents if d["kind"] == "RLHFJob"]
    missing = set(Role) - {role for _, role in jobs}
    if missing:
        raise ValueError(
            f"{folder}: no RLHFJob has the role {', '.join(sorted(missing))} (label {ROLE_LABEL})"
        )
    jobs.sort(key=lambda job: list(Role).index(job[1]))
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return Cast((home, *(d for d in documents if d["kind"] != "RLHFJob")), tuple(jobs))


def under_kueue(cast: Cast, folder: Path = MANIFESTS / "kueue", namespace: str = NAMESPACE) -> Cast:
    """Return the same jobs, in a pool that delegates to Kueue: its manifests take the place of those of their
    names."""
    documents: list[dict[str, Any]] = [
        document
        for path in sorted(folder.glob("*.yaml"), reverse=True)  # queues before the pool that names them
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]
    for document in documents:
        if document["kind"] == "LocalQueue":
            document["metadata"].setdefault("namespace", namespace)
    theirs = {(d["kind"], d["metadata"]["name"]) for d in documents}
    kept = [d for d in cast.supplies if (d["kind"], d["metadata"]["name"]) not in theirs]
    return replace(cast, supplies=(*kept, *documents))


def role_of(job: Manifest) -> Role:
    """Return the role that a job's label gives it.

    Raises:
        ValueError: it gives none.
    """
    text = (job["metadata"].get("labels") or {}).get(ROLE_LABEL)
    try:
        return Role(str(text))
    except ValueError:
        name = job["metadata"]["name"]
        raise ValueError(
            f"RLHFJob {name}: label {ROLE_LABEL} is {text!r}, expected one of {', '.join(Role)}"
        ) from None
