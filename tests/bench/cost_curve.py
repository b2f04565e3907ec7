"""`python -m tests.bench.cost_curve`: the simulator's cost against jobs, GPUs and running jobs, drawn.

Reads what `python -m tests.bench sim` wrote, so that the curve and the table are of one run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import NullFormatter

from sim.report.style import SERIES, drawing

_COST = re.compile(r"sim: (?P<policy>.+), twin of (?P<jobs>\d+) jobs, (?P<gpus>\d+) GPUs")
_RUNNING = "running at a time"


class Point(NamedTuple):
    """What one job costs, in us of CPU, in a run of so many ``jobs`` on so many ``gpus``."""

    jobs: int
    gpus: int
    cost: float


def curves(rows: list[dict[str, object]]) -> tuple[dict[str, list[Point]], dict[int, float]]:
    """Points by policy, and jobs running at a time by GPUs, from the rows of a benchmark.

    Raises:
        ValueError: the benchmark of the simulator is not among the rows.
    """
    points: dict[str, list[Point]] = {}
    running: dict[int, float] = {}
    for row in rows:
        found = _COST.fullmatch(str(row["name"]))
        if found is None:
            continue
        jobs, gpus, value = int(found["jobs"]), int(found["gpus"]), float(str(row["value"]))
        if found["policy"] == _RUNNING:
            running[gpus] = value
        else:
            points.setdefault(found["policy"], []).append(Point(jobs, gpus, value))
    if not points or not running:
        raise ValueError(
            "no costs of the simulator in this file, expected one of `python -m tests.bench sim`"
        )
    return points, running


def draw(points: dict[str, list[Point]], running: dict[int, float]) -> str:
    """An SVG of three panels; what does not vary in each is the twin's 64 GPUs, or its 10,000 jobs."""
    with drawing(3, width=12.0, height=3.6) as made:
        for (policy, measured), colour in zip(points.items(), SERIES, strict=False):
            by_jobs = sorted((p.jobs, p.cost) for p in measured if p.gpus == 64)
            by_gpus = sorted((p.gpus, p.cost) for p in measured if p.jobs == 10_000)
            by_running = [(running[gpus], cost) for gpus, cost in by_gpus]
            for axes, line in zip(made.axes, (by_jobs, by_gpus, by_running), strict=True):
                axes.plot(*zip(*line, strict=True), "o-", ms=4, color=colour, label=policy)
        for axes, what in zip(
            made.axes, ("jobs, on 64 GPUs", "GPUs, 10,000 jobs", "jobs running at a time"), strict=True
        ):
            axes.set(xscale="log", xlabel=what, ylim=(0, None))
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        made.axes[0].set(ylabel="CPU time of a job, us", title="What a simulated job costs")
        made.axes[2].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made.svg


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost_curve", description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("build/bench.json"), help="default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("build/sim-cost.svg"), help="default %(default)s")
    given = parser.parse_args()
    try:
        svg = draw(*curves(json.loads(given.rows.read_text())))
    except (OSError, ValueError) as error:
        parser.error(f"{given.rows}: {error}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(svg)
    print(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
