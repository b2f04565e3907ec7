"""What the world asks of the product: objects, pages, access Jobs. No truth is taken from it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.checkpoints import access as access_program
from controller.checkpoints.access_jobs import AccessRefused, AccessSettings, access_job, parse_result
from controller.checkpoints.request import REQUEST_ENV
from controller.policy.job.types import (
    AccessView,
    MetricPoints,
    Page,
    Progress,
    ScrapeOutcome,
    ScrapeView,
    StartAccess,
)
from controller.policy.types import Attempt, EvalPoint, Problem
from tests.faults.trainer import Eval, Life

Json = dict[str, Any]
RETENTION = "/retained"  # where an access pod mounts it; the world has it in its own temporary folder
METRIC, GUARD = "gold", "safety"
CLAIMS = {name: {"spec": {"accessModes": ["ReadWriteMany"]}} for name in ("work", "kept")}
SETTINGS = AccessSettings()


def attempt(life: str) -> Attempt:
    """A life's own name in the policy's words."""
    return Attempt.parse(life)


def rlhfjob(name: str, uid: str, mount: str, **spec: Any) -> Json:
    """An RLHFJob whose trainer mounts the claim of all checkpoints at ``mount``."""
    container = {
        "name": "trainer",
        "image": "trainer:1",
        "volumeMounts": [{"name": "work", "mountPath": mount}],
    }
    volumes = [{"name": "work", "persistentVolumeClaim": {"claimName": "work"}}]
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": "team", "uid": uid, "generation": 1},
        "spec": {"pool": "p", "workload": {"template": template}, **spec},
    }


def gpupool() -> Json:
    return {
        "apiVersion": "evalstop.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": "p", "uid": "uid-pool", "generation": 1},
        "spec": {
            "nodeSelector": [{"key": "gpu", "value": "a100"}],
            "allowedNamespaces": [{"name": "team", "maxPriority": 10}],
        },
    }


def pod_template(obj: Json) -> Json:
    found: Json = obj["spec"]["workload"]["template"]["spec"]["template"]
    return found


# -- scrapes -------------------------------------------------------------------------------------------


def _point(e: Eval, score: float) -> EvalPoint:
    return EvalPoint(e.step, score, attempt(e.life.text), e.stderr, e.samples)


def page(life: Life, uid: str | None, now: float, pod: str, created: float, total: int | None) -> ScrapeView:
    """A trainer's page as the scrape loop hands it on. ``uid``: of the RLHFJob that it names; None: none."""
    read = life.page()
    shown = [e for e in read if e.evaluator == life.evaluator]  # as `metrics.parse` leaves others out
    points = tuple(_point(e, e.score) for e in shown)
    others = ()
    if any(e.guard is not None for e in shown):
        guards = tuple(_point(e, e.guard) for e in shown if e.guard is not None)
        others = (MetricPoints(GUARD, guards),)
    names = {METRIC} if read else set()
    return ScrapeView(
        ScrapeOutcome.OK,
        at=now,
        metrics_seen=tuple(sorted(names | {o.metric for o in others})),
        points=points,
        evals_total=len(life.evals),
        step=life.step,
        total_steps=total,
        checkpoint_step=life.checkpoint_step,
        resumed_step=life.resumed if life.tells else None,
        request_served=life.served,
        evaluator=life.evaluator,
        evals_labelled=True,
        others=others,
        pod=pod,
        pod_created=created,
        page=Page(uid, attempt(life.text)) if uid is not None else None,
    )


# -- access Jobs ---------------------------------------------------------------------------------------


def access_manifest(obj: Json, action: StartAccess) -> Json | Problem:
    """The access Job as the operator would create it; a `Problem`: it may not be made."""
    try:
        return access_job(obj, pod_template(obj), action, SETTINGS, claims=CLAIMS)
    except AccessRefused as refused:
        return Problem(refused.reason, refused.message)


def carry_out(job: Json, retention: str) -> str:
    """Run the access program of a Job here; its termination message."""
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    text = next(e["value"] for e in env if e["name"] == REQUEST_ENV)
    message = access_program.answer({REQUEST_ENV: text.replace(f'"{RETENTION}', f'"{retention}')})
    return message.replace(f'"{retention}', f'"{RETENTION}')


def access_view(
    job: Json, message: str | None, failed: str | None, since: float, moved: float, now: float
) -> AccessView:
    """What the operator reads of it.

    ``failed``: why the Job ended, if it did without an answer. ``since``: s, when it was created, ``moved``:
    when a byte of its work was last done.
    """
    pods: list[Json] = []
    if message is not None:
        state = {"terminated": {"message": message, "exitCode": 0}}
        pods = [
            {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"name": "access", "state": state}]}}
        ]
    status: Json = {}
    if failed is not None:
        status = {"conditions": [{"type": "Failed", "status": "True", "reason": failed, "message": failed}]}
    view = parse_result({**job, "status": status}, pods)
    if view.finished:
        return view
    done = int(moved - since)
    progress = Progress(done, done + 100, 1.0, now, moved)
    return replace(view, since=since, progress=progress)


def deadline(job: Json) -> float | None:
    """s that the Job may run."""
    found = job["spec"].get("activeDeadlineSeconds")
    return None if found is None else float(found)


def edited(obj: Json, change: Mapping[str, Any]) -> Json:
    """A copy with other fields of the spec (dotted paths), at the next generation."""
    new = copy.deepcopy({k: v for k, v in obj.items() if k != "status"})
    if "status" in obj:
        new["status"] = obj["status"]
    for path, value in change.items():
        node: Any = new["spec"]
        *parents, last = path.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    new["metadata"]["generation"] = obj["metadata"]["generation"] + 1
    return new


def plain(value: Any) -> Any:
    """As the API server stores it."""
    return json.loads(json.dumps(value))
