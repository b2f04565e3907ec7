"""Effects of a pool's runs on each other's stops, by the pool's scope: tables of docs/use/stop-rules.md.

Virtual pools with the pool's own questions (`policy.fleet.limits`), on as many GPUs as there are runs.
Noise is not reported: runs are judged by what they show of it, and by what their namespace's runs do, or
others.

Shared falls: another evaluator comes in at one eval and lowers all scores; the runs are spread over
namespaces. Where there are `JOBS` of them, two decline by themselves later. Liars: runs of other namespaces
whose evals hardly vary, beside honest ones that stay flat.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from controller.frozen import dataclass
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import FleetScope, PolicySpec, StopLimits
from controller.policy.wording import counted
from sim import specs
from sim.cluster import Cluster
from sim.engine import simulate
from sim.rules.evaluate import exact_interval
from sim.workload import Evals, Workload

SIGMA, JOBS, EVALS, CHANGE = 0.02, 20, 40, 15
DECLINING = 2
HOUR = 3600.0
DROPS = (0, 2, 3, 5)  # standard deviations of the noise
# (rule, runs, namespaces that they are spread over)
FALLS = (
    ("scan", 20, 1),
    ("cusum", 20, 1),
    ("scan", 8, 1),
    ("scan", 5, 1),
    ("scan", 3, 1),
    ("scan", 20, 5),
    ("scan", 20, 20),
)
HONEST, LENGTH = 4, 50  # honest runs beside liars, each of a namespace of its own; evals of each
LATER = 2 * HOUR  # s by which the honest ones come after the liars: ten evals
LIARS = ((0, 1), (10, 1), (30, 1), (30, 10))  # how many, of how many namespaces
LIE = 0.01  # of the honest runs' noise

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FallRow:
    """Shares of the runs that a rule stops when the scores of a pool fall together.

    Attributes:
        healthy: share stopped of the runs that do not decline by themselves.
        declining: share stopped of those that do.
    """

    rule: str
    runs: int
    namespaces: int
    scope: str  # "": the pool asks nothing
    drop: float
    pools: int
    healthy: float
    declining: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LiarRow:
    """``stopped``: share of the honest flat runs, and its exact 95 % interval."""

    rule: str
    scope: str
    liars: int
    namespaces: int  # of the liars
    runs: int
    stopped: float
    interval: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def shared_falls(
    pools: int, seed: int, report: Progress, cases: Sequence[tuple[str, int, int]] | None = None
) -> Iterator[FallRow]:
    """``cases``: rule, runs, and over how many namespaces they are spread. Default: those in the docs."""
    for rule, runs, spaces in FALLS if cases is None else cases:
        for drop in DROPS:
            for scope in ("", *FleetScope):
                asked = f"scope {scope}" if scope else "no questions"
                report(
                    f"{rule}, {counted(runs, 'run')} of {counted(spaces, 'namespace')}, "
                    f"{counted(drop, 'deviation')}, {asked}"
                )
                limits = StopLimits(scope=FleetScope(scope)) if scope else None
                found = [fallen(rule, drop, f"{seed} {n}", limits, runs, spaces) for n in range(pools)]
                healthy, declining = (sum(share) / pools for share in zip(*found, strict=True))
                yield FallRow(rule, runs, spaces, str(scope), drop, pools, healthy, declining)


def fallen(
    rule: str, drop: float, seed: str, limits: StopLimits | None, runs: int = JOBS, spaces: int = 1
) -> tuple[float, float]:
    """Share of a pool's healthy runs, and of the two that decline later in a full one, that are stopped."""
    rng = random.Random(f"fleet {seed}")
    declining = set(range(DECLINING)) if runs == JOBS else set()
    curves = [_curve(rng, drop, decline=i in declining) for i in range(runs)]
    stopped = _stopped(rule, curves, [f"n{i % spaces}/j{i}" for i in range(runs)], limits)
    healthy = len(stopped - declining) / (runs - len(declining))
    return healthy, len(stopped & declining) / max(1, len(declining))


def beside_liars(honest: int, seed: int, report: Progress, rules: Sequence[str]) -> Iterator[LiarRow]:
    """Yield what becomes of so many honest runs, in full pools; the same ones in every row of a rule."""
    pools = -(-honest // HONEST)
    for rule in rules:
        for scope in FleetScope:
            for liars, spaces in LIARS:
                report(f"{rule}, {counted(liars, 'liar')} of {counted(spaces, 'namespace')}, scope {scope}")
                limits, runs = StopLimits(scope=scope), pools * HONEST
                hits = sum(misled(rule, f"{seed} {n}", limits, liars, spaces) for n in range(pools))
                yield LiarRow(rule, str(scope), liars, spaces, runs, hits / runs, exact_interval(hits, runs))


def misled(rule: str, seed: str, limits: StopLimits, liars: int, spaces: int = 1, namespace: str = "") -> int:
    """Return how many of a pool's honest flat runs are stopped beside so many liars, of so many namespaces.

    ``namespace``: one that all are in, the honest ones and the liars.
    """
    honest, lying = random.Random(f"honest {seed}"), random.Random(f"lying {seed}")
    curves = [[0.7 + lying.gauss(0.0, LIE * SIGMA) for _ in range(LENGTH)] for _ in range(liars)]
    curves += [[0.7 + honest.gauss(0.0, SIGMA) for _ in range(LENGTH)] for _ in range(HONEST)]
    keys = [f"liar-{i % spaces}/l{i}" for i in range(liars)] + [f"honest-{i}/j{i}" for i in range(HONEST)]
    if namespace:
        keys = [f"{namespace}/{key.partition('/')[2]}" for key in keys]
    submitted = [0.0] * liars + [LATER] * HONEST
    return sum(row >= liars for row in _stopped(rule, curves, keys, limits, submitted))


def _curve(rng: random.Random, drop: float, decline: bool) -> list[float]:
    def level(n: int) -> float:
        below = drop * SIGMA if n >= CHANGE else 0.0
        return 0.7 - below - (0.4 * SIGMA * max(0, n - CHANGE - 5) if decline else 0.0)

    return [level(n) + rng.gauss(0.0, SIGMA) for n in range(1, EVALS + 1)]


def _stopped(
    rule: str,
    curves: Sequence[Sequence[float]],
    keys: Sequence[str],
    limits: StopLimits | None,
    submitted: Sequence[float] = (),
) -> set[int]:
    runs = len(curves)
    at = [[(n + 1) / len(curve) for n in range(len(curve))] for curve in curves]
    workload = Workload(
        submitted or [60.0 * i for i in range(runs)],
        [1] * runs,
        [10 * HOUR] * runs,
        keys=keys,
        evals=[Evals(shares, curve) for shares, curve in zip(at, curves, strict=True)],
    )
    policy = EvalStop(make_policy(PolicySpec("fifo")))
    result = simulate(workload, Cluster(gpus=runs), policy, rule=specs.rule(rule), limits=limits)
    return set(result.stopped)


def tables(falls: Sequence[FallRow], liars: Sequence[LiarRow]) -> Iterator[str]:
    """Yield those that there are as Markdown."""
    if falls:
        yield from _of_falls(falls)
    if falls and liars:
        yield ""
    if liars:
        yield from _of_liars(liars)


def _of_falls(falls: Sequence[FallRow]) -> Iterator[str]:
    yield "| rule, runs | scope | nothing falls | all fall by 2 deviations of the noise | by 3 | by 5 |"
    yield "|---|---|---|---|---|---|"
    known = {replace(row, healthy=0.0, declining=0.0, pools=0): row for row in falls}
    for rule, runs, spaces in dict.fromkeys((row.rule, row.runs, row.namespaces) for row in falls):
        where = f" in {counted(spaces, 'namespace')}" if spaces > 1 else ""
        for scope in FleetScope:
            cells = []
            for drop in DROPS:
                found, without = (
                    known[FallRow(rule, runs, spaces, name, drop, 0, 0.0, 0.0)] for name in (str(scope), "")
                )
                cells.append(f"{100 * found.healthy:.0f} % ({100 * without.healthy:.0f} %)")
            yield f"| `{rule}`, {counted(runs, 'run')}{where} | {scope} | {' | '.join(cells)} |"
    few = [row for row in falls if row.scope and row.runs == JOBS]
    if few:
        least = min(row.declining for row in few)
        yield ""
        yield f"Of runs that decline by themselves at least {100 * least:.0f} % were stopped in every row."


def _of_liars(liars: Sequence[LiarRow]) -> Iterator[str]:
    heads = [f"{counted(n, 'liar')} of {counted(spaces, 'namespace')}" for n, spaces in LIARS[1:]]
    yield f"| rule | scope | no liars (95 %) | {' | '.join(heads)} |"
    yield "|---|---|---|" + "---|" * len(LIARS[1:])
    for name, asked in dict.fromkeys((row.rule, row.scope) for row in liars):
        mine = [row for row in liars if (row.rule, row.scope) == (name, asked)]
        low, high = mine[0].interval
        cells = [f"{100 * mine[0].stopped:.1f} % ({100 * low:.1f} to {100 * high:.1f})"]
        cells += [f"{100 * row.stopped:.1f} %" for row in mine[1:]]
        yield f"| `{name}` | {asked} | {' | '.join(cells)} |"
