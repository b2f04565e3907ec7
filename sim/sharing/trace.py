"""A trace of jobs that want groups: kinds, lengths, arrivals. All of it is our guess, seeded.

PlexRL replayed three months of a private cluster; nothing of that trace is public. Ours has the paper's three
models, phases as long as RollMux reports them (50 to over 900 s), and arrivals that ask for ``load`` times
what the GPUs can do alone while they last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from controller.frozen import dataclass
from controller.policy.sharing import SECOND, Family
from sim.sharing.setting import M7B, M30B, M235B_32, SharedModel
from sim.sharing.workload import TurnLaw

GB = 1_000_000_000
MODELS = (M7B, M30B, M235B_32)
MIX = (0.6, 0.25, 0.15)  # of jobs
STATE_GB = {M7B: 8.6, M30B: 4.3, M235B_32: 39.0}  # a GPU: 18 bytes a parameter; 235B by the reference
CYCLES = (100.0, 900.0)  # s, log-uniform over kinds
VARIATIONS = (0.15, 0.4)  # of rollouts, uniform over kinds
DUTY_SPREAD = 0.25  # log-sd of a kind's duty around its model's
DUTIES = (0.08, 0.5)


@dataclass(frozen=True, slots=True)
class ReplaySetting:
    """A replay's setting.

    Args:
        jobs: of the trace.
        gpus: of the cluster.
        load: work alone, in GPU-seconds, over what the GPUs can do while jobs arrive.
        kinds: of jobs.
        shortest, longest: steps of a job, log-uniform between.
        max_slowdown: percent that each job allows.
        max_residents, max_duty: of a group; percent.
        start: s from a residency to the first rollouts (pods, load), in every arm.
        switch: of one switch, as a share of the mean cycle, as in the other comparisons.
        host: GB for sleeping states beside a GPU; a node of 8 has 2 TB, of which .8 are for this.
    """

    jobs: int = 1000
    gpus: int = 1024
    load: float = 2.5
    kinds: int = 24
    shortest: int = 40
    longest: int = 400
    max_slowdown: int = 10
    max_residents: int = 3
    max_duty: int = 80
    start: float = 60.0
    switch: float = 0.01
    host: int = 200

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs alike."""

    name: str
    model: SharedModel
    law: TurnLaw

    @property
    def state_bytes(self) -> int:
        return round(STATE_GB[self.model] * GB)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job; ``arrives``: microseconds."""

    row: int
    kind: Kind
    arrives: int
    steps: int

    @property
    def key(self) -> str:
        return f"job-{self.row}"

    def work(self, private: bool) -> float:
        """Return GPU-seconds that it takes alone; ``private``: with those of its own GPUs."""
        gpus = self.kind.model.training + (self.kind.model.rollout if private else 0)
        return gpus * self.steps * self.kind.law.cycle


def families(setting: ReplaySetting) -> dict[str, Family]:
    """Return the families of the trace's models."""
    return {
        model.name: Family(model.name, model.training, 80 * GB, 2 * GB, setting.host * GB) for model in MODELS
    }


def trace(setting: ReplaySetting, seed: int, private: bool) -> list[TraceJob]:
    """Return jobs in the order of their arrival.

    Args:
        setting: of the replay.
        seed: of the trace.
        private: whether private GPUs are scarce, too, and so count in the load.
    """
    random = np.random.default_rng((seed, 20))
    kinds = [_kind(number, random) for number in range(setting.kinds)]
    by_model = {model: [kind for kind in kinds if kind.model is model] for model in MODELS}
    low, high = math.log(setting.shortest), math.log(setting.longest)
    jobs = []
    for model in random.choice(len(MODELS), setting.jobs, p=MIX):
        own = by_model[MODELS[model]]
        kind = own[random.integers(len(own))]
        jobs.append((kind, max(1, round(math.exp(random.uniform(low, high))))))
    work = sum(TraceJob(0, kind, 0, steps).work(private) for kind, steps in jobs)
    span = work / (setting.load * setting.gpus)
    arrivals = np.sort(random.uniform(0.0, span, setting.jobs))
    return [
        TraceJob(row, kind, round(float(at) * SECOND), steps)
        for row, ((kind, steps), at) in enumerate(zip(jobs, arrivals, strict=True))
    ]


def _kind(number: int, random: np.random.Generator) -> Kind:
    model = MODELS[number % len(MODELS)]
    cycle = math.exp(random.uniform(math.log(CYCLES[0]), math.log(CYCLES[1])))
    duty = min(max(model.duty * math.exp(random.normal(0.0, DUTY_SPREAD)), DUTIES[0]), DUTIES[1])
    return Kind(
        f"{model.name}-{number}",
        model,
        TurnLaw((1.0 - duty) * cycle, duty * cycle, random.uniform(*VARIATIONS), 0.05),
    )
