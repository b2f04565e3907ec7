"""SLAQ-like: GPUs go to the jobs whose loss is expected to fall the most (Zhang et al., SoCC 2017).

SLAQ divides single cores by predicted loss reduction; jobs here are gangs of fixed size, so its marginal
gain per core becomes the predicted fall of the loss per GPU-second, and who has the largest runs.

As there, every job's falls are measured against its own largest one, so that losses of different kinds
compare; the next fall is predicted to shrink as the last one did (the geometric, "superlinear" of its two
curve families, fitted to the last two falls).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.queueing.base import QueueJob, Ranking
from controller.policy.queueing.known import RankingPolicy
from controller.policy.types import LossTrend

REASON = "LossFallsFasterElsewhere"


def add_loss(trend: LossTrend | None, loss: float, service: float) -> LossTrend:
    """Return the trend after a report of ``loss`` at ``service`` GPU-seconds; without new service, as
    it was."""
    if trend is None:
        return LossTrend(loss, service)
    if service <= trend.service:
        return trend
    drop = max(0.0, (trend.loss - loss) / (service - trend.service))
    return LossTrend(loss, service, drop, trend.drop, max(trend.largest, drop))


def predicted_gain(trend: LossTrend | None) -> float:
    """Next fall of the loss per GPU-second, as a share of the job's largest; -inf while nothing is known.

    Losses are what trainers report, of whatever size: what does not come to a share says nothing.
    """
    if trend is None or trend.largest == 0.0:
        return -inf
    shrinks = min(1.0, trend.drop / trend.before) if trend.before > 0.0 else 1.0
    gain = trend.drop / trend.largest * shrinks
    return gain if 0.0 <= gain <= 1.0 else -inf


@dataclass(frozen=True, slots=True)
class SlaqParams:
    epoch: float = param(
        600.0, unit="s", doc="a run is left alone for this long after its start", ge=0.0, le=1e9
    )


class Slaq(RankingPolicy):
    """Jobs with the largest predicted gain run; a job of which nothing is known comes after all others.

    So no job gains by reporting nothing.

    Higher priorities first; ties: who runs first, then who came first.
    """

    name: ClassVar[str] = "slaq"
    reason: ClassVar[str] = REASON
    params: SlaqParams

    def __init__(self, params: SlaqParams) -> None:
        super().__init__()
        check(params, self.name)
        self.params = params
        self.epoch = params.epoch

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        return {"priority": job.priority, "predictedGain": predicted_gain(job.loss_trend)}

    def rank(self, job: QueueJob) -> tuple[object, ...]:
        waits = job.key in self._known.waiting
        gain = predicted_gain(job.loss_trend)
        return (-job.priority, -gain, waits, job.submitted, job.sequence, job.key)
