"""Checks of a manifest's rollout actors: their template, and whether the pool could ever hold them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from controller import names
from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, as_cure, ok, wrong
from controller.kube.errors import AlreadyExists, Refused
from controller.kube.resources import JOBS
from controller.policy.actor_types import Actor, Part, RolloutTerms
from controller.policy.pool import FreeGpus, fit_job
from controller.policy.wording import counted
from controller.workloads import Scheduling
from controller.workloads.actor_jobs import Sidecar, actor_template_problem, build_actor, weights_problem

Object = dict[str, Any]
FIELD = "spec.rollout"


def room(
    sizes: list[Mapping[str, Any]], replicas: int, gpus: int, terms: RolloutTerms, most: int
) -> Iterator[Finding]:
    """Yield whether a pool could ever hold the gang with its base actors, all at once, and then others.

    Args:
        sizes: of the pool's nodes, as its status has them: ``{"nodes": N, "gpus": N}``.
        replicas: of the gang.
        gpus: of each of them.
        terms: of the actors.
        most: ``actors.max``.
    """
    listed = ", ".join(f"{size['nodes']} x {counted(size['gpus'], 'GPU')}" for size in sizes)
    nodes = [int(size["gpus"]) for size in sizes for _ in range(int(size["nodes"]))]
    free = FreeGpus({str(place): have for place, have in enumerate(nodes)})
    if terms.gpus > (largest := max(nodes, default=0)):
        text = (
            f"{FIELD}.gpusPerActor: {terms.gpus} is more than the {counted(largest, 'GPU')} of its largest "
            "node"
        )
        yield wrong("actors", f"{text}; at most {largest} is right", as_cure("lower gpusPerActor"))
        return

    def fits(count: int) -> bool:
        return fit_job(free, (replicas, gpus, Part(count, terms.gpus), None)) is not None

    field = "static, as with mode Shadow" if terms.shadow else "min"
    if not fits(terms.base):
        right = next((count for count in range(terms.base - 1, -1, -1) if fits(count)), 0)
        text = (
            f"{FIELD}.actors.{field}: {replicas} x {counted(gpus, 'GPU')} with "
            f"{counted(terms.base, 'actor')} of {terms.gpus} never fit: the pool has {listed}; at most "
            f"{right} is right"
        )
        yield wrong("actors", text, as_cure("lower it, or take another pool"))
        return
    text = (
        f"{counted(terms.base, 'actor')} of {counted(terms.gpus, 'GPU')} fit beside the gang when the pool "
        "is free"
    )
    reach = next((count for count in range(most, terms.base, -1) if fits(count)), terms.base)
    if reach < most:
        text += f"; of the {most} of {FIELD}.actors.max never more than {reach}"
    yield ok("actors", text)


async def template(api: CallerApi, manifest: Object, terms: RolloutTerms) -> AsyncIterator[Finding]:
    """Yield what is wrong with the template of actors' pods, by our own rules and by a dry run."""
    asked = manifest["spec"]["rollout"].get("template") or {}
    rollout = manifest["spec"]["rollout"]
    problem = actor_template_problem(asked, terms.gpus) or weights_problem(rollout)
    if problem is not None:
        yield wrong("actors", problem.message)
        return
    for place, container in enumerate(asked["spec"]["containers"]):
        if not container.get("image"):
            yield wrong("actors", f"{FIELD}.template.spec.containers[{place}].image: a pod needs one")
            return
    metadata = manifest["metadata"]
    owner = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": "of-a-check"}
    made = build_actor(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": owner},
        str(metadata["name"]),
        asked,
        Actor(0, "any", terms.gpus),
        Sidecar(names.OPERATOR_IMAGE, "", "any", weights=str(rollout.get("weightsVolume") or "")),
        attempt=0,
        pool=str(manifest["spec"].get("pool", "")),
        grace=int(terms.recall_seconds),
        scheduling=Scheduling(),
    )
    # Nobody but the operator makes what says to be an actor; and its owner is not there yet.
    for part in (made["metadata"], made["spec"]["template"]["metadata"]):
        part["labels"] = {k: v for k, v in part["labels"].items() if not k.startswith(names.GROUP)}
    made["metadata"].pop("ownerReferences")
    made["spec"]["template"]["spec"]["tolerations"] = asked["spec"].get("tolerations") or []
    try:
        await api.create(JOBS, made, dry_run=True)
    except AlreadyExists:
        pass
    except Refused as error:
        if error.status == 403 and "cannot create" in error.message:
            raise
        yield wrong("actors", f"{FIELD}.template: {error.message}")
        return
    yield ok("actors", "an actor's Job would be taken (dry run)")
