"""What the pool's questions before a stop find, and what they cost.

Virtual fleets of 20 runs of 40 evals, noise .02; another evaluator comes in at eval 15 and lowers all scores.
Two of the runs decline by themselves later. The baseline of a share is that without the pool's questions.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator

from controller.policy.fleet.limits import limit_stops
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.stopping import noise
from controller.policy.types import (
    EvalPoint,
    FleetNoise,
    JobState,
    JobView,
    Paired,
    PolicySpec,
    PoolSnapshot,
    Proposal,
    Reading,
    StopLimits,
)
from sim import specs
from sim.cluster import Cluster
from sim.engine import simulate
from sim.rules.fleets import EVALS, JOBS, SIGMA, fallen
from sim.workload import Evals, Workload
from tests.bench.rows import Row

FLEETS = 20
HOUR = 3600.0
_AT = [(n + 1) / EVALS for n in range(EVALS)]
ASKS = Proposal(10, 5, "Fell", 3.0, 2.0)


def run(progress: Callable[[str], None]) -> Iterator[Row]:
    for rule in ("scan", "cusum", "drawdown:max_drop=0,sigmas=3"):
        for drop in (0, 2, 3, 5):
            progress(f"{rule}, a fall of {drop} standard deviations")
            guarded = [fallen(rule, drop, str(seed), StopLimits()) for seed in range(FLEETS)]
            bare = [fallen(rule, drop, str(seed), None) for seed in range(FLEETS)]
            name = f"fleet: {rule.partition(':')[0]}, all fall {drop} sd: healthy runs stopped"
            yield Row(name, _share(guarded, 0), "share", _share(bare, 0))
            yield Row(f"{name[: name.index('healthy')]}decliners stopped", _share(guarded, 1), "share")
    for jobs in (3, 5, 8):
        for drop in (3, 5):
            progress(f"{jobs} runs, a fall of {drop} standard deviations")
            guarded, bare = (
                [fallen("scan", drop, str(seed), limits, jobs) for seed in range(3 * FLEETS)]
                for limits in (StopLimits(), None)
            )
            name = f"fleet: scan, {jobs} runs fall {drop} sd: healthy runs stopped"
            yield Row(name, _share(guarded, 0), "share", _share(bare, 0))
    progress("promised precision")
    promised = StopLimits(precision=0.9, precision_jobs=JOBS)
    (wrong, found), (bare_wrong, bare_found) = _precision(promised), _precision(None)
    yield Row("fleet: eProcess at alpha .5, precision 0.9: wrong stops", wrong, "share of stops", bare_wrong)
    yield Row("fleet: eProcess at alpha .5, precision 0.9: decliners stopped", found, "share", bare_found)
    progress("luck and precision of the noise")
    for jobs in (3, 5, 20):
        yield Row(f"fleet: shared falls seen in {jobs} healthy runs", _by_luck(jobs), "share of looks")
    alone, shrunk = _errors()
    yield Row("fleet: error of log noise after 10 evals, shrunk by the pool", shrunk, "rms", alone)
    progress("cost")
    for jobs, asking in ((100, 5), (1000, 20)):
        yield Row(f"fleet: limits on {jobs} jobs, {asking} of which ask", _seconds(jobs, asking) * 1e3, "ms")


def _precision(limits: StopLimits | None) -> tuple[float, float]:
    """Mean over fleets of the share of stops that are wrong, and share of the declining runs stopped.

    Every tenth run declines from the middle on; all are judged at a level that is wrong half of the time.
    """
    wrong, found = [], []
    for seed in range(100):
        rng = random.Random(f"precision {seed}")
        evals = [Evals(_AT, [0.7] * EVALS, paired=_pairs(rng, decline=i < JOBS // 10)) for i in range(JOBS)]
        workload = Workload([0.0] * JOBS, [1] * JOBS, [10 * HOUR] * JOBS, evals=evals)
        policy, rule = EvalStop(make_policy(PolicySpec("fifo"))), specs.rule("eProcess:alpha=0.5")
        stopped = simulate(workload, Cluster(gpus=JOBS), policy, rule=rule, limits=limits).stopped
        right = sum(1 for row in stopped if row < JOBS // 10)
        wrong.append((len(stopped) - right) / len(stopped) if stopped else 0.0)
        found.append(right / (JOBS // 10))
    return sum(wrong) / len(wrong), sum(found) / len(found)


def _pairs(rng: random.Random, *, decline: bool) -> list[Paired]:
    """Differences of 0, 1 and -1 on 100 prompts, a fifth of which the two policies answer differently."""
    pairs = []
    for n in range(EVALS):
        worse = 0.15 if decline and n > EVALS // 2 else 0.1
        draws = [rng.random() for _ in range(100)]
        values = [-1.0 if u < worse else 1.0 if u < 0.2 else 0.0 for u in draws]
        mean = sum(values) / 100
        pairs.append(Paired(1, 100, mean, sum((v - mean) ** 2 for v in values) / 99))
    return pairs


def _share(fleets: list[tuple[float, float]], which: int) -> float:
    return sum(fleet[which] for fleet in fleets) / len(fleets)


def _views(rng: random.Random, jobs: int, asking: int) -> list[JobView]:
    return [
        JobView(
            f"ns/j{i}",
            0.0,
            i,
            1,
            1,
            state=JobState.ADMITTED,
            proposal=ASKS if i < asking else None,
            metric="gold",
            noise=FleetNoise(SIGMA, 12.0),
            readings=tuple(Reading(60.0 * n, rng.gauss(0.7, SIGMA)) for n in range(16)),
        )
        for i in range(jobs)
    ]


def _fleet() -> PoolSnapshot:
    return PoolSnapshot("p", PolicySpec("fifo"), (), ())


def _by_luck(jobs: int) -> float:
    rng = random.Random(f"luck {jobs}")
    looks = 2000 // jobs
    found = sum(bool(limit_stops(_views(rng, jobs, 1), _fleet(), 1000.0).falls) for _ in range(looks))
    return found / looks


def _errors() -> tuple[float, float]:
    rng = random.Random("noise")
    errors: tuple[list[float], list[float]] = ([], [])
    for _ in range(2000):
        state = noise.initial()
        for n in range(10):
            state = noise.observe(state, EvalPoint(n, rng.gauss(0.7, SIGMA)))
        for error, fleet in zip(errors, (None, FleetNoise(SIGMA, 16.0)), strict=True):
            known = noise.estimate(state, 0.0, 1.0, fleet)
            assert known is not None
            error.append(math.log(known.sigma / SIGMA) ** 2)
    alone, shrunk = (math.sqrt(sum(e) / len(e)) for e in errors)
    return alone, shrunk


def _seconds(jobs: int, asking: int) -> float:
    views = _views(random.Random("cost"), jobs, asking)
    best = math.inf
    for _ in range(5):
        started = time.process_time()
        limit_stops(views, _fleet(), 1000.0)
        best = min(best, time.process_time() - started)
    return best
