"""How much service a job has had."""

from __future__ import annotations

from controller.policy.jobs import Desired, JobRecord


def attained(desired: Desired, record: JobRecord, now: float) -> float:
    """GPU-seconds of service up to ``now`` (s), the present attempt's included.

    An attempt counts from the moment all its members were ready.
    """
    admission = record.admission
    if admission is None or admission.running_since is None:
        return record.attained
    return record.attained + (now - admission.running_since) * desired.replicas * desired.gpus_per_replica
