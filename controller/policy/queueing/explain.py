"""What a queue policy ranks a job by, in numbers for people: the policy's key, spelled out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

from controller.policy.queueing.ageing import Ageing
from controller.policy.queueing.base import QueueJob, QueuePolicy
from controller.policy.queueing.fair_share import FairShare
from controller.policy.queueing.fifo import Fifo
from controller.policy.queueing.las import Las
from controller.policy.queueing.slaq import Slaq, predicted_gain
from controller.policy.queueing.srtf import Srtf
from controller.policy.queueing.srtf_est import SrtfEst, remaining
from controller.policy.types import JobState

Key = dict[str, float | int | str | None]  # None: not known, or without bound


def ranked_by(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    """The quantities by which ``policy`` orders ``job``, most important first.

    ``jobs``: the pool's others; of those only the running ones of its namespace are looked at. Times are s,
    service GPU-seconds. What every policy breaks ties by, the time of submission, comes last.
    """
    if isinstance(policy, Ageing):
        policy = policy.base
    key: Key = {"priority": job.priority}
    found = _KEYS[type(policy)](policy, job, jobs)
    if isinstance(policy, FairShare):
        key = found | key
    else:
        key |= found
    key["submitted"] = job.submitted
    return {name: _finite(value) for name, value in key.items()}


def _finite(value: float | int | str | None) -> float | int | str | None:
    return None if isinstance(value, float) and not isfinite(value) else value


def _fifo(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    return {}


def _srtf(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    return {"remainingSeconds": job.remaining}


def _srtf_est(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    return {
        "remainingSeconds": remaining(job),
        "estimateSeconds": job.estimate,
        "progress": job.progress,
    }


def _las(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    params = policy.params
    level = 1 + (job.attained >= params.first_threshold) + (job.attained >= params.second_threshold)
    if job.mark:
        level = 1 + job.mark[0]
    return {"queue": level, "attainedGPUSeconds": job.attained, "since": job.since}


def _slaq(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    return {"predictedGain": predicted_gain(job.loss_trend)}


def _fair_share(policy: QueuePolicy, job: QueueJob, jobs: Iterable[QueueJob]) -> Key:
    namespace = job.key.partition("/")[0]
    mine = [j for j in jobs if j.key.partition("/")[0] == namespace and j.state is JobState.ADMITTED]
    gpus = sum(j.gpus for j in mine)
    return {"namespaceGPUs": gpus, "weight": job.weight, "gpusPerWeight": (gpus + job.gpus) / job.weight}


_KEYS: Mapping[type, Callable[[QueuePolicy, QueueJob, Iterable[QueueJob]], Key]] = {
    Fifo: _fifo,
    Srtf: _srtf,
    SrtfEst: _srtf_est,
    Las: _las,
    Slaq: _slaq,
    FairShare: _fair_share,
}
