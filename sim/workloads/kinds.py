"""The three kinds of jobs: how large and how long they are. Ranges are ours, the kinds are the paper's."""

from __future__ import annotations

from enum import StrEnum

from controller.frozen import dataclass


class Kind(StrEnum):
    """Kind of a job. Schedulers may know it; whether an RLHF job hacks, they may not."""

    LORA = "LoRA"
    DPO = "DPO"
    RLHF = "RLHF"


@dataclass(frozen=True, slots=True)
class Sizes:
    """``gpus``: drawn evenly from these; ``hours`` of training: evenly between these two."""

    gpus: tuple[int, ...]
    hours: tuple[float, float]

    @property
    def mean_gpu_seconds(self) -> float:
        return sum(self.gpus) / len(self.gpus) * sum(self.hours) / 2.0 * 3600.0


SIZES = {
    Kind.LORA: Sizes((1, 2), (0.5, 2.0)),
    Kind.DPO: Sizes((2, 4), (1.0, 4.0)),
    Kind.RLHF: Sizes((4, 8, 16), (3.0, 10.0)),
}
