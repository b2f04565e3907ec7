"""What the operator tells `controller.policy.estimates`: kinds of jobs, and the runs that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.operator.thought import Thought
from controller.policy.estimates import History, Kind, past_run, whole


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """The kind of an RLHFJob: namespace, images of its template's containers, gang, labels.

    A job that refers to a workload has no images of its own: its labels tell it apart.
    """
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    gang = spec.get("gang") or {}
    template = (spec.get("workload") or {}).get("template") or {}
    pod = ((template.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = pod.get("containers") or ()
    return Kind(
        namespace=str(metadata.get("namespace", "")),
        images=tuple(sorted(str(c.get("image", "")) for c in containers if isinstance(c, Mapping))),
        replicas=int(gang.get("replicas") or 1),
        gpus_per_replica=int(gang.get("gpusPerReplica") or 0),
        labels=tuple(sorted((metadata.get("labels") or {}).items())),
    )


def history(thoughts: Iterable[Thought]) -> History:
    """The ended runs among a pool's jobs; those whose RLHFJob was deleted are forgotten."""
    runs = []
    for thought in thoughts:
        run = past_run(thought.record, thought.gpus)
        if run is not None:
            runs.append((kind_of(thought.obj), run))
    return History(runs)


def estimate(thought: Thought, past: History) -> float | None:
    """Seconds of running time that the job's whole run takes, as far as anything is known of it."""
    stated = thought.desired.expected_seconds
    return whole(kind_of(thought.obj), thought.record.progress, past, stated)
