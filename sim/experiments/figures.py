"""The figures that are made of tallies: name, meaning, and which sum is divided by which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan

from controller.frozen import dataclass
from sim.experiments.estimate import Estimate
from sim.experiments.measures import Tally


@dataclass(frozen=True, slots=True)
class Figure:
    """``above`` / ``below``, summed over seeds; with ``gain`` 1 - that: what is saved of the base's sum."""

    key: str
    doc: str
    above: Callable[[Tally], float]
    below: Callable[[Tally], float]
    gain: bool = False

    def of(self, tallies: Sequence[Tally]) -> Estimate:
        """With its interval, over one tally for each seed."""
        from sim.experiments.statistics import ratio  # a replay of one log has none, and starts without numpy

        return ratio([self.above(t) for t in tallies], [self.below(t) for t in tallies], gain=self.gain)

    def once(self, tally: Tally) -> float:
        """Of one tally, NaN where it is not defined."""
        below = self.below(tally)
        if not below > 0.0:
            return nan
        share = self.above(tally) / below
        return 1.0 - share if self.gain else share


FIGURES: Mapping[str, Figure] = {
    figure.key: figure
    for figure in (
        Figure(
            "precision",
            "of jobs with a STOP, share that hack",
            lambda t: t.caught,
            lambda t: t.caught + t.false_alarms,
        ),
        Figure("recall", "of hacking jobs, share with a STOP", lambda t: t.caught, lambda t: t.hacking),
        Figure(
            "recall_before_end",
            "of hacking jobs, share with a STOP before their last eval",
            lambda t: t.caught_before_end,
            lambda t: t.hacking,
        ),
        Figure(
            "fpr",
            "of jobs of any kind that do not hack, share with a STOP",
            lambda t: t.false_alarms,
            lambda t: t.healthy,
        ),
        Figure(
            "fpr_healthy_rlhf",
            "of RLHF jobs that do not hack, share with a STOP",
            lambda t: t.false_alarms_rlhf,
            lambda t: t.healthy_rlhf,
        ),
        Figure(
            "premature",
            "of hacking jobs, share with a STOP before their true peak",
            lambda t: t.premature,
            lambda t: t.hacking,
        ),
        Figure(
            "precision_strict",
            "precision, a premature STOP counted as wrong",
            lambda t: t.caught - t.premature,
            lambda t: t.caught + t.false_alarms,
        ),
        Figure(
            "recall_strict",
            "recall, a premature STOP counted as missed",
            lambda t: t.caught - t.premature,
            lambda t: t.hacking,
        ),
        Figure(
            "jct_gain",
            "mean completion time saved; a stopped job's is the time of its stop",
            lambda t: t.jct,
            lambda t: t.jct_base,
            gain=True,
        ),
        Figure(
            "jct_gain_kept",
            "the same over jobs that were never stopped",
            lambda t: t.kept_jct,
            lambda t: t.kept_jct_base,
            gain=True,
        ),
        Figure(
            "jct_gain_mechanical",
            "part of jct_gain that comes of stopped jobs training less, on however large a cluster",
            lambda t: t.cut,
            lambda t: t.jct_base,
        ),
        Figure(
            "waste_gain",
            "GPU-time after the true peak of hacking jobs, saved",
            lambda t: t.after_peak,
            lambda t: t.after_peak_base,
            gain=True,
        ),
        Figure(
            "waste_gain_wide",
            "GPU-time after the best observed eval of any job, and overheads, saved",
            lambda t: t.after_best,
            lambda t: t.after_best_base,
            gain=True,
        ),
        Figure(
            "gpu_time_gain",
            "GPU-time of all jobs, saved",
            lambda t: t.gpu_time,
            lambda t: t.gpu_time_base,
            gain=True,
        ),
        Figure(
            "waste_share",
            "of the base's GPU-time, share after the true peak of hacking jobs: the most there is to save",
            lambda t: t.after_peak_base,
            lambda t: t.gpu_time_base,
        ),
    )
}


def figures(tallies: Sequence[Tally]) -> dict[str, Estimate]:
    """Return every figure, over one tally for each seed."""
    return {key: figure.of(tallies) for key, figure in FIGURES.items()}
