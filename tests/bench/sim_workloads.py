"""Workloads for the simulator's benchmarks: the golden ones where they are, else a generated twin."""

from __future__ import annotations

import csv
import gzip
import math
import random
from pathlib import Path

Job = tuple[int, int, int]  # submitted, GPUs, seconds
GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "golden"


def workload(jobs: int, gpus: int) -> tuple[list[Job], str]:
    """That many jobs for a cluster of so many GPUs, and where they come from."""
    path = GOLDEN / f"w{jobs // 1000}k_{gpus}.csv.gz"
    if path.is_file():
        with gzip.open(path, "rt") as lines:
            rows = csv.DictReader(lines)
            return [(int(r["submit_time"]), int(r["num_gpu"]), int(r["duration"])) for r in rows], "golden"
    return twin(jobs, gpus), "twin"


def twin(jobs: int, gpus: int, seed: int = 1) -> list[Job]:
    """Jobs like the golden ones: Philly's gangs, from a minute to a week, Poisson at load 0.9."""
    rng = random.Random(seed)
    sizes = rng.choices([1, 2, 4, 8, 16, 32], [70, 7, 8, 11, 3, 1], k=jobs)
    works = [min(7 * 86400, 60 + int(rng.lognormvariate(6.9, 2.0))) for _ in range(jobs)]
    gap = sum(map(math.prod, zip(sizes, works, strict=True))) / jobs / (0.9 * gpus)
    now, rows = 0.0, []
    for size, work in zip(sizes, works, strict=True):
        rows.append((int(now), size, work))
        now += rng.expovariate(1 / gap)
    return rows
