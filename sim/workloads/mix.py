"""Jobs by Poisson arrivals, and evals for them.

Every quantity has a stream of random numbers of its own, and every job its own within it, so that changing
one setting changes nothing else: runs of the same seed under different settings are paired.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import exp
from random import Random

from controller.frozen import dataclass
from controller.policy.types import Paired
from sim.workload import Evals, Workload
from sim.workloads.curves import AFTER_MEAN_PEAK, FAMILIES, rise, training_loss
from sim.workloads.kinds import SIZES, Kind
from sim.workloads.paired_differences import binomial, differences
from sim.workloads.settings import SHORT, CurveSettings, MixSettings
from sim.workloads.truth import Truth


@dataclass(frozen=True, slots=True)
class Population:
    """A workload, and the truth about it, which the engine is never given."""

    workload: Workload
    truth: Truth


def stream(seed: int, purpose: str) -> Random:
    """Random numbers for one purpose; the same on every machine and version of Python."""
    return Random(f"evalstop/{seed}/{purpose}")


def generate(settings: MixSettings, seed: int) -> Population:
    """Return the paper's mix: ``settings.jobs`` of three kinds, Poisson arrivals at ``settings.load`` from 0
    s."""
    kinds = _kinds(settings, seed)
    arrivals, sizes, spread = stream(seed, "arrivals"), stream(seed, "sizes"), stream(seed, "estimates")
    tenants = stream(seed, "tenants")
    between = _mean_gpu_seconds(settings) / (settings.load * settings.gpus)
    submitted, gpus, work, keys, estimates = [], [], [], [], []
    now = 0.0
    for row, kind in enumerate(kinds):
        submitted.append(now)
        now += arrivals.expovariate(1.0) * between
        gpus.append(sizes.choice(SIZES[kind].gpus))
        work.append(sizes.uniform(*SIZES[kind].hours) * 3600.0)
        estimates.append(work[-1] * exp(spread.gauss(0.0, 1.0) * settings.estimate_spread))
        keys.append(f"tenant-{tenants.randrange(settings.tenants)}/{kind.lower()}-{row}")
    evals, truth = curves_for(kinds, settings, seed)
    workload = Workload(
        submitted, gpus, work, keys=keys, estimate=estimates, group=[str(k) for k in kinds], evals=evals
    )
    return Population(workload, truth)


def curves_for(kinds: Sequence[Kind], settings: CurveSettings, seed: int) -> tuple[list[Evals], Truth]:
    """Evals for jobs of these kinds, and the truth about them."""
    if settings.evals == SHORT:
        from sim.workloads import short_evals  # numpy: a replay of a trace starts without it

        return short_evals.drawn(kinds, settings.hacking_share, settings.stderr, seed)
    labels = stream(seed, "labels")
    evals, hacks, peaks = [], [], []
    at = _eval_times(settings.eval_interval)
    stderrs = (settings.noise,) * len(at) if settings.stderr else ()

    def paired(row: int, truth: Sequence[float], scores: Sequence[float]) -> list[Paired | None]:
        if settings.paired_prompts < 2:
            return []
        draw = binomial(stream(seed, f"differences/{row}"))
        return differences(draw, settings.paired_prompts, settings.discordant, truth, scores)

    for row, kind in enumerate(kinds):
        label, where = labels.random(), labels.random()
        hacking = kind is Kind.RLHF and label < settings.hacking_share
        peak = settings.peak_low + (settings.peak_high - settings.peak_low) * where
        errors = stream(seed, f"errors/{row}")
        scores, losses, means = [], [], []
        for progress in at:
            true = settings.floor + settings.gain * _true(kind, hacking, progress, peak, settings)
            means.append(min(1.0, max(0.0, true)))
            scores.append(min(1.0, max(0.0, true + errors.gauss(0.0, 1.0) * settings.noise)))
            losses.append(training_loss(progress) * (1.0 + errors.gauss(0.0, 1.0) * settings.loss_noise))
        evals.append(
            Evals(
                at,
                array("d", scores),
                array("d", losses),
                _proxies(at, settings, seed, row),
                paired(row, means, scores),
                stderrs=stderrs,
            )
        )
        hacks.append(hacking)
        peaks.append(peak if hacking else 1.0)
    return evals, Truth(tuple(kinds), tuple(hacks), tuple(peaks))


def _kinds(settings: MixSettings, seed: int) -> list[Kind]:
    draw = stream(seed, "kinds")
    lora = settings.rlhf_share + settings.lora_share
    kinds = []
    for _ in range(settings.jobs):
        u = draw.random()
        kinds.append(Kind.RLHF if u < settings.rlhf_share else Kind.LORA if u < lora else Kind.DPO)
    return kinds


def _mean_gpu_seconds(settings: MixSettings) -> float:
    shares = {
        Kind.RLHF: settings.rlhf_share,
        Kind.LORA: settings.lora_share,
        Kind.DPO: max(0.0, 1.0 - settings.rlhf_share - settings.lora_share),
    }
    return sum(share * SIZES[kind].mean_gpu_seconds for kind, share in shares.items())


def _eval_times(interval: float) -> tuple[float, ...]:
    """Multiples of the interval below 1, then 1. A last gap of under a hundredth of the interval is none."""
    times = []
    number = 1
    while number * interval < 1.0 - interval / 100.0:
        times.append(number * interval)
        number += 1
    return (*times, 1.0)


def _true(kind: Kind, hacking: bool, progress: float, peak: float, settings: CurveSettings) -> float:
    """Share of the gain at ``progress``."""
    if kind is Kind.LORA:
        return rise(progress, settings.lora_curvature)
    if kind is Kind.DPO:
        return rise(min(1.0, progress / settings.dpo_saturation), settings.curvature)
    family = FAMILIES[settings.family]
    fall = settings.depth / AFTER_MEAN_PEAK / settings.gain if settings.gain else 0.0
    shape = family.hacking if hacking else family.healthy
    return shape(progress, peak, fall, settings.curvature)


def _proxies(at: Sequence[float], settings: CurveSettings, seed: int, row: int) -> list[float]:
    """Return the proxy reward of each eval, as far as it is reported."""
    if not settings.proxy:
        return []
    errors = stream(seed, f"proxies/{row}")
    return [rise(share, settings.curvature) + errors.gauss(0.0, settings.proxy_noise) for share in at]
