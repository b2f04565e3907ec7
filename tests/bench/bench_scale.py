"""The operator with thousands of jobs, on a real control plane with a thousand simulated nodes (KWOK).

All jobs run, none of them changes: what scraping and deciding costs when there is nothing to do. One job
comes up by itself, the others are copies of it (`scale_clones`), and the operator is started over them all.
They are in Shadow mode, for a simulated pod cannot keep a checkpoint. Baseline of CPU: the goal of a quarter
of a core; of memory: 150 MB; a write is always one too many. At last each gets the whole curve of a long run
into its status (`full_curve`): what that takes besides. $EVALSTOP_BENCH_JOBS: other numbers of jobs. Then
100 worker groups (`bench_scale_groups`).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

from controller.api import codec
from controller.policy.job import EvalCurve, JobRecord
from controller.policy.job.curve import with_eval
from controller.policy.types import Attempt, EvalPoint, Verb, Verdict
from tests.bench import bench_scale_groups
from tests.bench.rows import Row
from tests.bench.scale_clones import Original
from tests.bench.scale_stage import NAMESPACE, OPERATOR, Json, Scale, Usage, rlhfjob, scale

NODES, GPUS = 1_000, 8
# Taken away: the operator, which inherits the rest, refuses settings that it does not know.
SIZES = tuple(int(size) for size in os.environ.pop("EVALSTOP_BENCH_JOBS", "1000,5000").split(","))
INTERVAL = 15  # s between scrapes
WINDOW = 60.0  # s measured: four scrapes of every job
_FIRST = "job-00000"
_STEP, _QUIET = 15.0, 3  # s, and how often in a row it must have been quiet for so long
_PATIENCE_S = 900.0
_GROWS = 1 << 20  # bytes in a step


def run(say: Callable[[str], None]) -> Iterator[Row]:
    yield from run_jobs(say)
    yield from bench_scale_groups.run(say)


def run_jobs(say: Callable[[str], None]) -> Iterator[Row]:
    with scale(NODES, GPUS, say) as built:
        built.start_operator()
        built.create([rlhfjob(_FIRST, built.stub, members=1, gpus=1, mode="Shadow", interval=INTERVAL)], say)
        built.wait("jobs judged", lambda: sum(map(_judged, built.jobs())), 1, say, _PATIENCE_S)
        time.sleep(_STEP)  # whatever it still has to say of it
        built.stop_all_but_the_api()
        original, made = Original(built.plane, NAMESPACE, _FIRST), 1
        for size in SIZES:
            began = time.monotonic()
            built.plane.stop(OPERATOR)
            original.copy(
                {f"job-{i:05d}": (f"sim-{i // GPUS:04d}", _address(i)) for i in range(made, size)}, say
            )
            say(f"{size - made} jobs copied in {time.monotonic() - began:.0f} s")
            made = size
            built.plane.restart(OPERATOR)
            started = _settled(built, say)
            name = f"scale: {size} jobs"
            yield Row(f"{name}, operator's start: CPU per job", 1e3 * started.cpu / size, "ms")
            yield Row(f"{name}, operator's start: most memory", started.peak / 1e6, "MB")
            yield from _at_rest(built, size, say)
        bare = built.usage(OPERATOR).memory
        built.plane.stop(OPERATOR)
        names = [_FIRST, *(f"job-{i:05d}" for i in range(1, made))]
        original.patch({name: {"curve": full_curve(n)} for n, name in enumerate(names)}, say)
        built.plane.restart(OPERATOR)
        _settled(built, say)
        more = built.usage(OPERATOR).memory - bare
        yield Row(f"scale: {made} jobs with full curves, at rest: memory more", more / 1e6, "MB", 15.0)


def full_curve(seed: int) -> Json:
    """`status.curve` of a run of 1,000 evals, as large as one gets; no two are alike."""
    drawn, score, curve, largest = random.Random(seed), 0.5, None, None
    for n in range(1, 1001):
        score += drawn.gauss(0.0, 0.01)
        verdict = Verdict(Verb.CONTINUE, "R", drawn.random(), 1.0)
        point = EvalPoint(16 * n, score, Attempt(1, "1"), proxy=drawn.gauss(0.0, 1.0))
        curve = with_eval(JobRecord(curve=curve), point, verdict)
        if largest is None or _characters(curve) > _characters(largest):  # the next may halve it
            largest = curve
    assert largest is not None
    return codec.encode(largest)


def _characters(curve: EvalCurve) -> int:
    return sum(map(len, curve.buckets))


def _address(number: int) -> str:
    """Of the simulated pods' range: all of it is loopback, where the stub listens."""
    return f"127.4.{number >> 8}.{number & 255}"


def _judged(job: Json) -> bool:
    status = job.get("status") or {}
    return len(status.get("evals") or ()) > 0 and status.get("summary") == "Running"


def _settled(built: Scale, say: Callable[[str], None]) -> Usage:
    """Until, for a while, nobody writes, it uses not much more CPU than ever, and grows no more; what it took
    until then. Beside much other work it uses little CPU also while it starts, but it grows."""
    deadline = time.monotonic() + _PATIENCE_S
    before, writes, least, quiet = built.usage(OPERATOR), built.writes(), float("inf"), 0
    while True:
        time.sleep(_STEP)
        now, later = built.usage(OPERATOR), built.writes()
        used = now.cpu - before.cpu
        least = min(least, used)
        grew = now.memory - before.memory > _GROWS
        quiet = quiet + 1 if later == writes and used <= 2.0 * least and not grew else 0
        told = "no writes" if later == writes else "writes"
        say(f"{used / _STEP:.2f} cores, {now.memory / 1e6:.0f} MB, {told}")
        if quiet == _QUIET or time.monotonic() > deadline:
            return now
        before, writes = now, later


def _at_rest(built: Scale, size: int, say: Callable[[str], None]) -> Iterator[Row]:
    before, writes, began = built.usage(OPERATOR), built.writes(), time.monotonic()
    time.sleep(WINDOW)
    after, later = built.usage(OPERATOR), built.writes()
    passed = time.monotonic() - began
    changed = {name: n - writes.get(name, 0.0) for name, n in later.items() if n != writes.get(name, 0.0)}
    say(f"{size} jobs at rest for {passed:.0f} s; writes: {changed or 'none'}")
    name = f"scale: {size} jobs at {INTERVAL} s, at rest"
    yield Row(f"{name}: operator's CPU", (after.cpu - before.cpu) / passed, "cores", 0.25)
    yield Row(f"{name}: operator's memory", after.memory / 1e6, "MB", 150.0)
    yield Row(f"{name}: API writes in {WINDOW:g} s", sum(changed.values()), "writes")
