"""ConfigMap ``<name>-run``, which carries requests to the trainer (docs/understand/contracts.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from controller import bounded, names
from controller.objects import controller_reference
from controller.policy.job import RunFile
from controller.workloads import owner_reference, run_configmap


class Steps(Protocol):
    """The step API as trainers and actors are told of it."""

    @property
    def urls(self) -> Sequence[str]: ...
    @property
    def ca(self) -> str:
        """PEM text of the authority of its certificate."""
        ...


def render(run: RunFile, steps: Steps | None = None, group: Steps | None = None) -> str:
    """Return the text of ``run.json``; the same text for the same value.

    Args:
        run: what it carries.
        steps: of a job with rollout actors; None: it has none, or nobody serves them.
        group: where a job that shares a worker group asks for its ticket; None: it shares none.
    """
    resume = {"path": run.resume_path, "step": run.resume_step} if run.resume_path else None
    request = {
        "id": run.request_id,
        "evaluate": run.evaluate,
        "checkpoint": run.checkpoint,
        "stop": run.stop,
    }
    document: dict[str, Any] = {
        "uid": run.uid,
        "attempt": run.attempt,
        "resume": resume,
        "request": request,
        "reference": run.reference_step,
        "scrapeIntervalSeconds": run.scrape_interval,
        "minimize": list(run.minimize),
        "best": None if run.best_step is None else {"metric": run.best_metric, "step": run.best_step},
    }
    if steps is not None:
        document["steps"] = {"urls": list(steps.urls), "ca": steps.ca}
    if group is not None:
        token = f"{names.STEPS_TOKEN_DIR}/token"
        document["group"] = {"urls": list(group.urls), "ca": group.ca, "token": token}
    return json.dumps(document, sort_keys=True)


def read(
    configmap: Mapping[str, Any] | None, steps: Steps | None = None, group: Steps | None = None
) -> RunFile | None:
    """Return what the ConfigMap says now; None if it is not there or says nothing that could have been
    rendered with these ``steps`` and ``group``."""
    text = ((configmap or {}).get("data") or {}).get(names.RUN_KEY)
    if text is None:
        return None
    try:
        value = bounded.load(text, f"data[{names.RUN_KEY}]")
        resume, request, best = value["resume"] or {}, value["request"], value["best"] or {}
        run = RunFile(
            attempt=value["attempt"],
            resume_path=resume.get("path", ""),
            resume_step=resume.get("step"),
            request_id=request["id"],
            evaluate=request["evaluate"],
            checkpoint=request["checkpoint"],
            stop=request["stop"],
            reference_step=value["reference"],
            uid=value["uid"],
            scrape_interval=value["scrapeIntervalSeconds"],
            minimize=tuple(value["minimize"]),
            best_metric=best.get("metric", ""),
            best_step=best.get("step"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return run if render(run, steps, group) == text else None  # edited by hand: to be written again


def manifest(
    obj: Mapping[str, Any], run: RunFile, steps: Steps | None = None, group: Steps | None = None
) -> dict[str, Any]:
    """Return the ConfigMap of an RLHFJob; it goes with its owner. The sidecars of its actors have the
    authority of the step API from it, too."""
    ca = {} if steps is None else {names.STEPS_CA_KEY: steps.ca}
    data = {names.RUN_KEY: render(run, steps, group), **ca}
    return _configmap(obj["metadata"], owner_reference(obj["metadata"]), data)


def group_manifest(group: Mapping[str, Any], steps: Steps) -> dict[str, Any]:
    """Return the ConfigMap of a WorkerGroup, by which its pods trust the step API; it goes with its owner."""
    reference = controller_reference(group, blocks=False)
    return _configmap(group["metadata"], reference, {names.STEPS_CA_KEY: steps.ca})


def _configmap(
    metadata: Mapping[str, Any], reference: Mapping[str, Any], data: Mapping[str, str]
) -> dict[str, Any]:
    """``metadata``: of the owner."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": run_configmap(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": {
                names.LABEL_JOB: metadata["name"],
                names.LABEL_COMPONENT: "run",
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
            },
            "ownerReferences": [reference],
        },
        "data": data,
    }
