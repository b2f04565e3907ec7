"""Settings of a generated workload, each with unit and bounds.

Values that the paper gives are marked so in ``doc``; the rest is our choice (docs/reports/reproduction.md
says which of them are the calibration).
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, describe, param
from sim.workloads.curves import FAMILIES

REGULAR, SHORT = "regular", "short"
S = TypeVar("S", bound="CurveSettings")


@dataclass(frozen=True, slots=True)
class CurveSettings:
    """Shape of a run's evals. Shares are of the run's training, scores lie in [0, 1].

    Raises:
        ParamError: a value is out of bounds; the message names the field.
    """

    family: str = param(
        "linear", unit="name", doc="shape of RLHF curves after their peak", choices=tuple(FAMILIES)
    )
    eval_interval: float = param(
        0.10, unit="share of training", doc="between evals; the last one is at the end", gt=0.0, le=1.0
    )
    noise: float = param(0.02, unit="score", doc="standard deviation of an eval's error", ge=0.0, le=1.0)
    hacking_share: float = param(0.6, unit="share", doc="of RLHF runs that hack (paper)", ge=0.0, le=1.0)
    peak_low: float = param(
        0.55, unit="share of training", doc="earliest peak of a hacking run (paper)", gt=0.0, lt=1.0
    )
    peak_high: float = param(
        0.75, unit="share of training", doc="latest peak of a hacking run (paper)", gt=0.0, lt=1.0
    )
    depth: float = param(
        0.32, unit="score", doc="fall over .35 of the training after the peak (family linear)", ge=0.0, le=1.0
    )
    floor: float = param(0.4, unit="score", doc="true score before training", ge=0.0, le=1.0)
    gain: float = param(0.4, unit="score", doc="rise from there to the best", ge=0.0, le=1.0)
    curvature: float = param(
        3.0, unit="1 / training", doc="rate of the exponential rise of RLHF and DPO curves", gt=0.0, le=50.0
    )
    lora_curvature: float = param(4.0, unit="1 / training", doc="the same for LoRA curves", gt=0.0, le=50.0)
    dpo_saturation: float = param(
        0.85, unit="share of training", doc="from which on DPO curves are flat", gt=0.0, le=1.0
    )
    loss_noise: float = param(
        0.03, unit="of the loss", doc="standard deviation of a reported loss's error", ge=0.0, le=1.0
    )
    stderr: bool = param(
        False,
        unit="yes or no",
        doc="evals carry their standard error, which is ``noise``, or with evals=short what their prompts "
        "say; else rules estimate it from the scores",
    )

    proxy: bool = param(
        False, unit="choice", doc="evals carry the proxy reward, which rises in every run as it is optimised"
    )
    proxy_noise: float = param(
        0.02, unit="proxy reward", doc="standard deviation of its error; it rises from 0 to 1", ge=0.0, le=1.0
    )
    paired_prompts: int = param(
        0,
        unit="prompts",
        doc="on which each eval is compared with the best before it, prompt by prompt; 0 or 1: none",
        ge=0,
        le=1_000_000,
    )
    discordant: float = param(
        0.2,
        unit="share of prompts",
        doc="on which only one of two compared policies is right, where equally good",
        gt=0.0,
        le=1.0,
    )

    evals: str = param(
        REGULAR,
        unit="name",
        doc="short: few evals on few prompts, as in public runs of language models (docs/use/stop-rules.md); "
        "then the other settings of curves hold for hacking_share and stderr only",
        choices=(REGULAR, SHORT),
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "float" and type(value) is int:
                object.__setattr__(self, f.name, float(value))
        check(self, "workload")
        if self.peak_low > self.peak_high:
            raise ParamError("workload.peak_low", self.peak_low, f"at most peak_high = {self.peak_high:g}")

    def but(self: S, **values: Any) -> S:
        """Return these settings with some values changed.

        Raises:
            ParamError: there is no such setting, or a value is out of bounds.
        """
        known = [info.name for info in describe(type(self))]
        for name, value in values.items():
            if name not in known:
                raise ParamError(f"workload.{name}", value, "one of " + ", ".join(known))
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MixSettings(CurveSettings):
    """The paper's mix of jobs on one cluster of alike GPUs.

    Raises:
        ParamError: a value is out of bounds; the message names the field.
    """

    jobs: int = param(200, unit="jobs", doc="per run", ge=1, le=1_000_000)
    gpus: int = param(64, unit="GPUs", doc="of the cluster (paper)", ge=16, le=1_000_000)
    load: float = param(
        1.0, unit="share", doc="GPU-time that arrives, of GPU-time that there is", gt=0.0, le=10.0
    )
    rlhf_share: float = param(0.8, unit="share", doc="of jobs that are RLHF (paper)", ge=0.0, le=1.0)
    lora_share: float = param(0.1, unit="share", doc="of jobs that are LoRA; the rest is DPO", ge=0.0, le=1.0)
    estimate_spread: float = param(
        0.2, unit="log seconds", doc="standard deviation of ln(estimated / true time)", ge=0.0, le=3.0
    )
    tenants: int = param(4, unit="namespaces", doc="that jobs belong to, evenly", ge=1, le=10_000)

    def __post_init__(self) -> None:
        CurveSettings.__post_init__(self)  # slots make a new class, which super() would not find
        if self.rlhf_share + self.lora_share > 1.0:
            expected = f"at most {1.0 - self.rlhf_share:g}, what rlhf_share leaves"
            raise ParamError("workload.lora_share", self.lora_share, expected)
