"""Rollout steps of a job: where they are served, what they want of its actors, and how those stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.frozen import dataclass
from controller.kube.packed import Stored
from controller.policy.job import Desired, JobRecord, RolloutView
from controller.policy.types import Problem
from controller.policy.wording import counted
from controller.workloads.actor_jobs import actors_seen, is_actor

Object = Mapping[str, Any]


NO_WANTS = RolloutView()


@dataclass(frozen=True, slots=True)
class StepAddress:
    """The step API as trainers and actors are told of it.

    Attributes:
        urls: https:// addresses of all replicas.
        ca: PEM text of the authority of their certificates.
    """

    urls: tuple[str, ...]
    ca: str


def not_served(desired: Desired, record: JobRecord, served: bool) -> Problem | None:
    """Return why a job that waits could never have what only the step API gives.

    ``served``: this operator serves that API.
    """
    asks = [
        (field, what)
        for field, what, asked in (
            ("rollout", "there are no actors", desired.rollout),
            ("sharing", "there are no worker groups", desired.sharing),
        )
        if asked is not None
    ]
    if served or record.admission is not None or not asks:
        return None
    field, what = asks[0]
    return Problem(
        "StepsNotServed",
        f"spec.{field}: this operator serves no step API, without which {what}: set "
        "EVALSTOP_STEPS_CERTIFICATE, EVALSTOP_STEPS_KEY and EVALSTOP_STEPS_URLS of the operator, or "
        f"leave {field} out",
    )


def too_large(desired: Desired, record: JobRecord, pool: str, status: Object | None) -> Problem | None:
    """Return why a job that waits could never have the actors that it asks for.

    Args:
        desired: its spec, read.
        record: its status, read.
        pool: name of its pool.
        status: of that pool; None: there is none yet.
    """
    if desired.rollout is None or record.admission is not None:
        return None
    sizes = (status or {}).get("nodeSizes") or ()
    largest = max((size["gpus"] for size in sizes), default=desired.rollout.gpus)
    if desired.rollout.gpus > largest:
        return Problem(
            "ActorTooLarge",
            f"spec.rollout.gpusPerActor: {desired.rollout.gpus} is more than the {counted(largest, 'GPU')} "
            f"of the largest node of GPUPool {pool!r}; at most {largest} is right",
        )
    return None


def rollout(
    name: str, record: JobRecord, wants: RolloutView, jobs: Sequence[Object], pods: Sequence[Stored]
) -> tuple[RolloutView, tuple[Stored, ...]]:
    """Return a job's rollout actors as the cluster shows them and its steps want them, and the pods of those
    that have an entry.

    Args:
        name: of the job.
        record: its status, read.
        wants: of its steps; of actors it knows none.
        jobs: the Jobs of its actors.
        pods: those that carry the job's label.
    """
    pods = [pod for pod in pods if is_actor(pod.open())]
    actors = actors_seen(name, jobs, [pod.open() for pod in pods])
    view = replace(wants, actors=tuple(actor.seen for actor in actors))
    entries = {actor.number for actor in record.actors}
    mine = {p["metadata"]["uid"] for actor in actors if actor.seen.number in entries for p in actor.pods}
    return view, tuple(pod for pod in pods if pod.open()["metadata"]["uid"] in mine)
