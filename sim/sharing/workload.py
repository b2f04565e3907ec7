"""Random turns of a job: log-normal rollouts and held times, in whole microseconds."""

from __future__ import annotations

import math

import numpy as np

from controller.frozen import dataclass
from controller.policy.sharing import SECOND
from sim.sharing.setting import SharedModel, SharingSetting


@dataclass(frozen=True, slots=True)
class TurnLaw:
    """Of one job's turns: means in s, variations as sd over mean."""

    away: float
    held: float
    away_variation: float
    held_variation: float

    @property
    def cycle(self) -> float:
        return self.away + self.held

    @property
    def duty(self) -> float:
        return self.held / self.cycle


def law(setting: SharingSetting, duty: float) -> TurnLaw:
    """Return the law of a job of this duty."""
    return TurnLaw(
        (1.0 - duty) * setting.cycle, duty * setting.cycle, setting.rollout_variation, setting.held_variation
    )


def law_of(setting: SharingSetting, model: SharedModel) -> TurnLaw:
    """Return the law of a job of this model."""
    return law(setting, model.duty)


def turns(of: TurnLaw, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Return microseconds away before each turn, and held in it."""
    random = np.random.default_rng(seed)
    return _times(of.away, of.away_variation, count, random), _times(
        of.held, of.held_variation, count, random
    )


def _times(mean: float, variation: float, count: int, random: np.random.Generator) -> list[int]:
    if variation == 0.0 or mean == 0.0:
        return [round(mean * SECOND)] * count
    spread = math.log1p(variation * variation)
    logs = random.normal(math.log(mean) - spread / 2.0, math.sqrt(spread), count)
    found: list[int] = np.rint(np.exp(logs) * SECOND).astype(np.int64).tolist()
    return found
