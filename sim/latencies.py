"""Every delay and cost of the virtual world, each a named field with its unit. All default to nothing."""

from __future__ import annotations

from dataclasses import fields

from controller.frozen import dataclass
from controller.policy.params import check, param

PREEMPTION = 120.0  # s lost at each resume, where nothing else is known (the paper's)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Delays of all that takes time besides training.

    Raises:
        ParamError: a value is negative, not finite or no number; the message names the field.
    """

    start_delay: float = param(
        0.0,
        unit="s",
        doc="from admission until all members are ready, at every start; GPUs held, no service yet, and a "
        "preempted run leaves at once",
        ge=0.0,
    )
    restart_cost: float = param(
        0.0, unit="s", doc="on top of it, when a preempted run starts again; GPUs held", ge=0.0
    )
    suspend_delay: float = param(
        0.0,
        unit="s",
        doc="from the decision to stop or preempt until the pods are gone; GPUs held, no progress",
        ge=0.0,
    )
    retain_time: float = param(
        0.0,
        unit="s",
        doc="copying the best checkpoint away before a stopped run is suspended; one whose training ends "
        "meanwhile has ended by itself",
        ge=0.0,
    )
    preempt_delay: float = param(
        0.0,
        unit="s",
        doc="from the decision to preempt until the run hears of it; it trains on, and may end meanwhile",
        ge=0.0,
    )
    end_delay: float = param(
        0.0, unit="s", doc="from the end of training until the run is seen to be over; GPUs held", ge=0.0
    )
    handover_delay: float = param(
        0.0, unit="s", doc="from GPUs that come free until they are given out; nobody has them", ge=0.0
    )
    queue_delay: float = param(
        0.0, unit="s", doc="from submission until the queue policy hears of the job", ge=0.0
    )
    eval_cost: float = param(
        0.0, unit="s", doc="of each eval, while which training stands still; GPUs held", ge=0.0
    )
    eval_delay: float = param(
        0.0, unit="s", doc="from the end of an eval until its score is known; the run goes on", ge=0.0
    )
    checkpoint_interval: float = param(
        0.0,
        unit="s of training",
        doc="between checkpoints; a preempted run goes back to its last one; 0: it never loses anything",
        ge=0.0,
    )
    checkpoint_on_preempt: bool = param(
        True, unit="yes or no", doc="a preempted run writes one more checkpoint first, and loses nothing"
    )
    checkpoint_time: float = param(
        0.0, unit="s", doc="of that one more checkpoint; GPUs held, no progress", ge=0.0
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is int:
                object.__setattr__(self, f.name, float(value))
        check(self, "latencies")

    @property
    def none(self) -> bool:
        """Return whether nothing but training takes time."""
        return not any(
            (
                self.queue_delay,
                self.start_delay,
                self.restart_cost,
                self.suspend_delay,
                self.retain_time,
                self.preempt_delay,
                self.end_delay,
                self.handover_delay,
                self.eval_cost,
                self.eval_delay,
                self.checkpoint_interval and not self.checkpoint_on_preempt,
                self.checkpoint_time,
            )
        )
