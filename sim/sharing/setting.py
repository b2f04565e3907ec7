"""Settings of simulated jobs and groups, each number with where it is from.

PlexRL (arXiv 2605.20863; what digests say of it): its models' parallelism gives the training GPUs, 16, 128
and 96, and its bubble ratios of 80.10, 70.67 and 81.11 % are read as the time that training GPUs are idle.
**The private GPUs are our guess**: the paper does not say how many there are. So are the length of a cycle,
how much rollouts vary, and the time of a switch; no trace of the paper's is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from controller.frozen import dataclass
from controller.policy.sharing import SECOND


@dataclass(frozen=True, slots=True)
class SharedModel:
    """One model's GPUs and duty.

    Args:
        name: with the private GPUs, where there are two guesses.
        training: GPUs of a group (T), from the paper's parallelism.
        rollout: private GPUs of a job (R), our guess.
        duty: share of a cycle alone in which the training GPUs compute: 1 less the paper's bubble ratio.
        paper: GPU-hours that the paper saves with two jobs; None: not said for this one.
    """

    name: str
    training: int
    rollout: int
    duty: float
    paper: float | None = None


M7B = SharedModel("7B", 16, 8, 0.1990, 0.3136)
M30B = SharedModel("30B", 128, 64, 0.2933, 0.3010)
M235B_24 = SharedModel("235B, R = 24", 96, 24, 0.1889, 0.3758)
M235B_32 = SharedModel("235B, R = 32", 96, 32, 0.1889, 0.3758)
EVEN_SPLIT = SharedModel("duty .2, T = 2 R", 16, 8, 0.2)
MODELS = (M7B, M30B, M235B_24, M235B_32)


@dataclass(frozen=True, slots=True)
class SharingSetting:
    """One comparison's setting.

    Args:
        cycle: s of a step alone; RollMux reports phases of 50 to over 900 s. Our guess.
        rollout_variation: of rollouts' times, sd over mean; .15 to .4 is our guess.
        held_variation: of turns' times. Our guess: batches have the same number of tokens.
        switch: of one switch, as a share of the cycle; half off-loads, half loads. 1 to 3 % is our guess:
            235B on 96 GPUs is 39 GB each, 1.6 s each way at 25 GB/s.
        steps: of a run.
        consecutive: turns in a row that the policy allows.
        tail: share of a rollout's time that no more GPUs make shorter (colocated jobs). Our guess.
        wide: decode efficiency of a wide engine relative to a narrow one: the paper's 52.74 / 75.03 %.
    """

    cycle: float = 200.0
    rollout_variation: float = 0.25
    held_variation: float = 0.05
    switch: float = 0.01
    steps: int = 400
    consecutive: int = 1
    tail: float = 0.5
    wide: float = 0.7029

    @property
    def switch_time(self) -> int:
        """Microseconds of one switch."""
        return round(self.switch * self.cycle * SECOND)

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)


S = Any  # a frozen dataclass of numbers


def changed(setting: S, values: Mapping[str, str]) -> S:
    """Return a setting with numbers of it replaced.

    Raises:
        ValueError: there is no such number, or the value is none; the message names what is allowed.
    """
    kinds = {
        f.name: type(value)
        for f in fields(setting)
        if type(value := getattr(setting, f.name)) in (int, float)
    }
    found: dict[str, Any] = {}
    for name, text in values.items():
        if name not in kinds:
            raise ValueError(f"--set: {name!r} is not allowed, expected one of {', '.join(kinds)}")
        try:
            value = kinds[name](text)
        except ValueError:
            value = -1
        if not 0 <= value < 1e9 or (value == 0 and (kinds[name] is int or name == "cycle")):
            raise ValueError(
                f"--set {name}: {text!r} is not allowed, expected a number above 0, or 0 for a share"
            )
        found[name] = value
    return replace(setting, **found)
