"""Measure a cluster's own delays by a run of its own, for the simulator as `Latencies`.

The run has nothing of the trace but the nodes and the number of arenas: gangs that fill them, and short ones,
healthy and falling, that make srtf preempt the long ones. Each delay is the
mean of what was measured between two moments that the operator's status or a pod's last words name; nothing
is fitted to what the trial itself gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import fsum, sqrt
from typing import Any

from controller.frozen import dataclass
from controller.parity.compressed_trace import TraceOnCluster
from controller.parity.facts import Admitted, Facts
from controller.parity.manifests import SCRAPE_SECONDS
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.foresight import RuleSpec
from sim.latencies import Latencies
from sim.workload import Evals, Workload

POLICY = PolicySpec("srtf")
RULE = RuleSpec(PolicySpec("kDeclines", {"k": 2}))
WAVE = 130.0  # s between waves
_LONG = (60, 66, 72, 78)  # s of training of those that fill the nodes
_FALLS = 30  # s of training of those that fall, so that they can be stopped before their end
STEP = 7.3  # s between short ones: no multiple of what anybody does periodically
_RISING = Evals([0.2, 0.4, 0.6, 0.8, 1.0], [0.2, 0.4, 0.6, 0.7, 0.8])
_SHORT = 8  # runs of a wave that come one after the other, every other one falling

SKEW_MOST = 0.5  # s below 0 that a delay may be: what a watch and rounding take
_HERE, _OPERATOR, _NODES = "this machine", "the operator", "the pods' nodes"
# By whose clocks a delay's two moments are told. Of a hand-over only what came in this order is looked for.
_CLOCKS = {
    "queue_delay": (_HERE, _OPERATOR),
    "start_delay": (_OPERATOR, _NODES),
    "eval_delay": (_NODES, _OPERATOR),
    "retain_time": (_OPERATOR, _NODES),
    "preempt_delay": (_OPERATOR, _NODES),
    "suspend_delay": (_NODES, _OPERATOR),
    "end_delay": (_NODES, _HERE),
}

# Of each delay: between which two moments, and its measurements (s).
Samples = dict[str, tuple[str, list[float]]]
Row = tuple[float, int, float, Evals | None]  # a run: when it comes (s), GPUs, training (s), evals


def _falling(phase: float) -> Evals:
    """Scores that fall, the third of them at another time between two scrapes for each ``phase`` (0 to 1).

    A run is scraped from when it is ready on: were that eval in every run equally long after, it would be in
    every run equally long before the next scrape.
    """
    third = 6.6 + phase * SCRAPE_SECONDS
    return Evals([0.1, 0.2, third / _FALLS, 0.9], [0.8, 0.6, 0.4, 0.2])


class Skewed(ValueError):
    """The clocks that the moments are told by disagree; the message says which, and by how much."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A delay: mean and standard deviation (s) of ``count`` measurements."""

    name: str
    count: int
    mean: float
    deviation: float
    between: str  # which two moments


@dataclass(frozen=True, slots=True)
class Calibration:
    """All delays, by the names of `Latencies`."""

    measured: tuple[Measured, ...]
    facts: tuple[tuple[Facts, ...], ...] = ()  # what it was measured on, by arena

    @property
    def latencies(self) -> Latencies:
        values: dict[str, Any] = {m.name: m.mean for m in self.measured}
        return Latencies(**values)

    def mean(self, name: str) -> float:
        """Of one delay, s; 0 where it was not measured."""
        return next((m.mean for m in self.measured if m.name == name), 0.0)

    def deviation(self, name: str) -> float:
        """Return the standard deviation of one delay, s; 0 where it was not measured."""
        return next((m.deviation for m in self.measured if m.name == name), 0.0)


def run(cluster: Cluster, waves: int = 2) -> TraceOnCluster:
    """Return the calibration's own trial: per wave, four long gangs that fill the nodes, and eight short
    ones, one after the other, of which every other one falls."""
    largest = max(gpus for _, gpus in cluster.nodes)
    wide = min(max(1, cluster.gpus // 4), largest)
    falls = waves * _SHORT // 2
    falling = (_falling(n / falls) for n in range(falls))  # as many phases as there are such runs
    rows: list[Row] = []
    for wave in range(waves):
        began = wave * WAVE
        rows += [(began + 1.7 * n, wide, work, _RISING) for n, work in enumerate(_LONG)]
        rows += [
            (began + 14.0 + STEP * n, wide, 9 + n, _RISING)
            if n % 2
            else (began + 14.0 + STEP * n, wide, _FALLS, next(falling))
            for n in range(_SHORT)
        ]
    return made(cluster, rows)


def made(cluster: Cluster, rows: Sequence[Row]) -> TraceOnCluster:
    """Return a trial of these runs, each on one node, in its own time."""
    workload = Workload(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        keys=[f"calibration/run-{n}" for n in range(len(rows))],
        evals=[row[3] for row in rows],
    )
    names = tuple(f"calibration-{n}" for n in range(len(rows)))
    return TraceOnCluster(workload, cluster, tuple((1, row[1]) for row in rows), names, RULE, 1.0)


def measure(arenas: Sequence[Sequence[Facts]]) -> Calibration:
    """Return the delays that these jobs show; ``arenas``: those of each pool.

    Raises:
        Skewed: one of them is so negative that two clocks disagree.
        ValueError: one of the delays was never to be seen. The message names it.
    """
    samples = _samples(arenas)
    _agreeing(samples)
    measured = _measured(samples)
    for one in measured:
        if not one.count:
            raise ValueError(f"{one.name}: was not to be seen in the calibration run (from {one.between})")
    return Calibration(measured, tuple(map(tuple, arenas)))


def sampled(arenas: Sequence[Sequence[Facts]]) -> tuple[Measured, ...]:
    """Return the delays as far as these jobs show them; of one that none shows, no measurement.

    Negative ones count as 0: watching and rounding take a little, and `measure` refuses what is more.
    """
    return _measured(_samples(arenas))


def _measured(found: Samples) -> tuple[Measured, ...]:
    measured = []
    for name, (between, samples) in found.items():
        kept = [max(0.0, s) for s in samples]
        mean = fsum(kept) / max(1, len(kept))
        spread = sqrt(fsum((s - mean) ** 2 for s in kept) / max(1, len(kept) - 1))
        measured.append(Measured(name, len(kept), mean, spread, between))
    return tuple(measured)


def _samples(arenas: Sequence[Sequence[Facts]]) -> Samples:
    """Return every measurement as the clocks have it."""
    facts = [one for arena in arenas for one in arena]
    found: dict[str, tuple[str, Iterable[float | None]]] = {
        "queue_delay": ("submission, admission into free GPUs", _queue(arenas)),
        "start_delay": ("admission, training", [_start(a) for a in _each(facts)]),
        "eval_delay": ("a falling eval, the decision to stop", [_eval_delay(f) for f in facts]),
        "retain_time": ("the decision to stop, SIGTERM", [_retained(f) for f in facts]),
        "preempt_delay": ("the decision to preempt, SIGTERM", [_preempt_delay(a) for a in _each(facts)]),
        "suspend_delay": ("SIGTERM, pods gone", [_left(f, a) for f in facts for a in f.admissions.values()]),
        "end_delay": ("the end of training, pods terminal", [_ended(f) for f in facts]),
        "handover_delay": ("GPUs free, the next admission", _handovers(arenas)),
    }
    return {name: (between, [s for s in all_ if s is not None]) for name, (between, all_) in found.items()}


def _agreeing(found: Samples) -> None:
    """Raise `Skewed` where a delay is too negative to be one: its two moments are of two clocks."""
    wrong = []
    for name, (between, samples) in found.items():
        if (least := min(samples, default=0.0)) < -SKEW_MOST and name in _CLOCKS:
            first, second = _CLOCKS[name]
            wrong.append(f"{name}: {least:.2f} s (from {between}; by the clocks of {first} and of {second})")
    if wrong:
        raise Skewed(
            f"delays of the calibration run that clocks make negative: {'; '.join(wrong)}. At least "
            f"-{SKEW_MOST} s is right: synchronise these clocks"
        )


def _each(facts: Iterable[Facts]) -> Iterable[Admitted]:
    return (admitted for one in facts for admitted in one.admissions.values())


def _start(a: Admitted) -> float | None:
    return None if a.words is None else a.words.began - a.at


def _eval_delay(f: Facts) -> float | None:
    last = f.last
    if f.decided is None or last is None or last.words is None:
        return None
    return next((f.decided - at for step, at in last.words.evals if step == f.decided_step), None)


def _retained(f: Facts) -> float | None:
    last = f.last
    if f.decided is None or f.pods_gone is None or last is None or last.words is None:
        return None
    return last.words.ended - f.decided if last.words.left else None


def _preempt_delay(a: Admitted) -> float | None:
    if a.preempted is None or a.words is None or not a.words.left:
        return None
    return a.words.ended - a.preempted


def _left(f: Facts, a: Admitted) -> float | None:
    if a.words is None or not a.words.left:
        return None
    gone = a.back if a.back is not None else f.pods_gone if a is f.last else None
    return None if gone is None else gone - a.words.ended


def _ended(f: Facts) -> float | None:
    last = f.last
    if f.freed is None or last is None or last.words is None or last.words.left:
        return None
    return f.freed - last.words.ended


def _moments(arena: Sequence[Facts]) -> list[tuple[float, str, frozenset[str]]]:
    """Submissions, admissions and GPUs coming free, on which nodes, in the order of time."""
    found: list[tuple[float, str, frozenset[str]]] = []
    for f in arena:
        found.append((f.submitted, "submit", frozenset()))
        for a in f.admissions.values():
            found.append((a.at, "admit", frozenset(a.nodes)))
            if a.back is not None:
                found.append((a.back, "free", frozenset(a.nodes)))
        gone = f.pods_gone if f.freed is None else f.freed
        if gone is not None:
            found.append((gone, "free", frozenset(() if f.last is None else f.last.nodes)))
    return sorted(found, key=lambda one: one[0])


def _queue(arenas: Sequence[Sequence[Facts]]) -> list[float]:
    """Of jobs admitted when nothing had come free since they came: there was room already."""
    samples = []
    for arena in arenas:
        moments = _moments(arena)
        for f in arena:
            if not f.admissions:
                continue
            at = f.admissions[min(f.admissions)].at
            if not any(f.submitted <= t <= at and what == "free" for t, what, _ in moments):
                samples.append(at - f.submitted)
    return samples


def _handovers(arenas: Sequence[Sequence[Facts]]) -> list[float]:
    """Of admissions that come right after GPUs came free, with nothing in between, to one of their nodes.

    One to other nodes waited for something else. Of recordings from before nodes were kept all count.
    """
    samples = []
    for arena in arenas:
        for (before, what, freed), (at, then, taken) in pairwise(_moments(arena)):
            if (what, then) == ("free", "admit") and (freed & taken or not (freed and taken)):
                samples.append(at - before)
    return samples
