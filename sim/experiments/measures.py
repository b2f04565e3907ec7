"""Measures: detection, completion times and wasted GPU-time, as sums that add up over trials.

A *detection* is a rule's STOP at any eval, the last one included, although nothing is left to be saved
there; ``before_end`` counts those that came earlier. Populations are as in the paper's own figures, which
close only if negatives are all jobs that do not hack: healthy RLHF, LoRA and DPO (reference 2.1).
"""

from __future__ import annotations

from dataclasses import fields
from math import isfinite

from controller.frozen import dataclass
from sim.engine import Result
from sim.workload import Evals
from sim.workloads import Population
from sim.workloads.kinds import Kind


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over the jobs of one trial, or of several added up. Times in s, GPU-time in GPU-seconds."""

    jobs: int = 0
    hacking: int = 0
    healthy: int = 0  # do not hack, of any kind
    healthy_rlhf: int = 0
    caught: int = 0  # hacking, STOP
    caught_before_end: int = 0  # of these: before the last eval
    premature: int = 0  # of these: before the true peak, which costs quality
    false_alarms: int = 0  # healthy, STOP
    false_alarms_rlhf: int = 0
    jct: float = 0.0
    jct_base: float = 0.0
    kept_jobs: int = 0  # never stopped: no STOP before their end
    kept_jct: float = 0.0
    kept_jct_base: float = 0.0
    cut: float = 0.0  # training that stopped jobs did not do: what ends sooner though nobody waited less
    gpu_time: float = 0.0
    gpu_time_base: float = 0.0
    after_peak: float = 0.0  # GPU-time that hacking runs trained past their true peak
    after_peak_base: float = 0.0
    after_best: float = 0.0  # GPU-time of all jobs after their best observed eval, and overheads
    after_best_base: float = 0.0
    preemptions: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))


def compare(population: Population, base: Result, arm: Result) -> Tally:
    """Return the tally of an arm compared with the base policy alone, on the same workload."""
    truth, evals = population.truth, population.workload.evals
    caught = before_end = premature = false_alarms = false_alarms_rlhf = 0
    for row, stop in arm.stops.items():
        made = evals[row]
        assert made is not None  # it was judged by its evals
        if truth.hacks[row]:
            caught += 1
            before_end += stop.eval < len(made.at) - 1
            premature += made.at[stop.eval] < truth.peak[row]
        else:
            false_alarms += 1
            false_alarms_rlhf += truth.kind[row] is Kind.RLHF
    kept = [row for row in range(len(truth.hacks)) if row not in arm.stopped]
    jct, jct_base = arm.jct, base.jct
    work = population.workload.work
    common = tally_base(population, base)
    return Tally(
        jobs=common.jobs,
        hacking=common.hacking,
        healthy=common.healthy,
        healthy_rlhf=common.healthy_rlhf,
        caught=caught,
        caught_before_end=before_end,
        premature=premature,
        false_alarms=false_alarms,
        false_alarms_rlhf=false_alarms_rlhf,
        jct=sum(jct),
        jct_base=common.jct_base,
        kept_jobs=len(kept),
        kept_jct=sum(jct[row] for row in kept),
        kept_jct_base=sum(jct_base[row] for row in kept),
        cut=sum(work[row] - arm.useful[row] for row in arm.stopped),
        gpu_time=sum(arm.service),
        gpu_time_base=common.gpu_time_base,
        after_peak=after_peak(population, arm),
        after_peak_base=common.after_peak_base,
        after_best=after_best(population, arm),
        after_best_base=common.after_best_base,
        preemptions=arm.preemptions,
    )


def tally_base(population: Population, base: Result) -> Tally:
    """Return the tally of the base policy compared with itself."""
    truth = population.truth
    jct, waste, rest, spent = (
        sum(base.jct),
        after_peak(population, base),
        after_best(population, base),
        sum(base.service),
    )
    return Tally(
        jobs=len(truth.hacks),
        hacking=sum(truth.hacks),
        healthy=len(truth.hacks) - sum(truth.hacks),
        healthy_rlhf=sum(
            kind is Kind.RLHF and not hacks for kind, hacks in zip(truth.kind, truth.hacks, strict=True)
        ),
        jct=jct,
        jct_base=jct,
        kept_jobs=len(truth.hacks),
        kept_jct=jct,
        kept_jct_base=jct,
        gpu_time=spent,
        gpu_time_base=spent,
        after_peak=waste,
        after_peak_base=waste,
        after_best=rest,
        after_best_base=rest,
        preemptions=base.preemptions,
    )


def after_peak(population: Population, result: Result) -> float:
    """Return GPU-seconds of training past the true peak, of hacking runs. Waste in the narrow sense."""
    truth, workload = population.truth, population.workload
    return sum(
        max(0.0, result.useful[row] - truth.peak[row] * workload.work[row]) * workload.gpus[row]
        for row, hacks in enumerate(truth.hacks)
        if hacks
    )


def after_best(population: Population, result: Result) -> float:
    """Return GPU-seconds that no kept checkpoint has anything of. Waste in the wide sense.

    Training after each job's best observed eval, whoever it is, and whatever was no training at all:
    restarts, delays, training undone by a preemption.
    """
    workload = population.workload
    wasted = 0.0
    for row, evals in enumerate(workload.evals):
        kept = 0.0 if evals is None else best_at(evals, result.evals_made[row]) * workload.work[row]
        trained = result.useful[row] if evals is not None else 0.0
        overhead = result.service[row] - result.useful[row] * workload.gpus[row]
        wasted += max(0.0, trained - kept) * workload.gpus[row] + overhead
    return wasted


def best_at(evals: Evals, made: int) -> float:
    """Share of the training at the highest score of the first ``made`` evals (the earliest of equals)."""
    finite = [number for number in range(made) if isfinite(evals.scores[number])]
    if not finite:
        return 0.0
    return evals.at[max(finite, key=evals.scores.__getitem__)]
