"""Kinds of workload whose creation or change an RLHFJob may ask for, as the admission policy knows them.

One row makes one pair of authorisation checks (controller/api/admission.py). What the operator can drive is
its own table (controller/workloads): a kind here that is not there gets a condition, a kind that is not here
is refused at the door. Both refusals name the kinds that this version runs, and no others.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    group: str
    kind: str
    resource: str


KINDS: tuple[Kind, ...] = (
    Kind("batch", "Job", "jobs"),
    Kind("jobset.x-k8s.io", "JobSet", "jobsets"),
    Kind("trainer.kubeflow.org", "TrainJob", "trainjobs"),
    Kind("kubeflow.org", "PyTorchJob", "pytorchjobs"),
    Kind("kubeflow.org", "MPIJob", "mpijobs"),
    Kind("ray.io", "RayJob", "rayjobs"),
    Kind("ray.io", "RayCluster", "rayclusters"),
    Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets"),
    Kind("batch.volcano.sh", "Job", "jobs"),
)

# What this version runs, as controller/workloads says it. This layer may not ask there: a test compares them.
RUN: tuple[str, ...] = ("batch/v1 Job",)
