"""How fast the simulator is: jobs per CPU-second, side by side with SimPy and a bare heapq loop.

Every figure is the best of several runs that take turns with the baseline's, so that both have the machine
alike. All answers are compared: a simulator that is fast and wrong has no speed.
"""

from __future__ import annotations

import csv
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.compiled import CompileError, build
from sim.engine import simulate
from sim.foresight import RuleSpec
from sim.workload import Evals, Workload
from tests.bench.rows import Row
from tests.bench.sim_baselines import with_heapq, with_simpy
from tests.bench.sim_workloads import Job, twin, workload

_ROUNDS = 5
_FIFO, _SRTF = PolicySpec("fifo"), PolicySpec("srtf")
_LAS, _DEFAULT_LAS = PolicySpec("las", {"variant": "Tiresias"}), PolicySpec("las")
# As they are called in rows.
_POLICIES = {"fifo": _FIFO, "srtf": _SRTF, "las (Tiresias)": _LAS, "las": _DEFAULT_LAS}
_ROOT = Path(__file__).resolve().parents[2]


def run(say: Callable[[str], None]) -> Iterator[Row]:
    yield from _against_others(say)
    yield from _preemptive(say)
    yield from _compiled(say)
    yield from _evalstop(say)
    yield from _a_million(say)
    yield from _cold_start()
    yield from _curve(say)
    yield from _nodes(say)


def _against_others(say: Callable[[str], None]) -> Iterator[Row]:
    for count, gpus in ((10_000, 64), (10_000, 512)):
        jobs, source = workload(count, gpus)
        columns = _columns(jobs)
        say(f"FIFO, {count} jobs on {gpus} GPUs ({source}), against SimPy and heapq")
        ours, simpys, bares = _best(
            partial(_jct, columns, gpus, _FIFO),
            partial(with_simpy, jobs, gpus),
            partial(with_heapq, jobs, gpus),
        )
        name = f"sim: fifo, {gpus} GPUs"
        yield Row(f"{name}, against SimPy", count / ours, "jobs/CPU-s", count / simpys)
        yield Row(f"{name}, against bare heapq", count / ours, "jobs/CPU-s", count / bares)


def _preemptive(say: Callable[[str], None]) -> Iterator[Row]:
    for gpus in (64, 512):
        jobs, source = workload(10_000, gpus)
        columns = _columns(jobs)
        for name, spec in _POLICIES.items():
            if spec is _FIFO:
                continue  # measured against others
            say(f"{name}, 10000 jobs on {gpus} GPUs ({source})")
            (ours,) = _best(partial(_jct, columns, gpus, spec))
            yield Row(f"sim: {name}, {gpus} GPUs", len(jobs) / ours, "jobs/CPU-s")


_SPEED = """
import csv, sys, time
from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.workload import Workload
with open(sys.argv[1], newline="") as lines:
    workload = Workload(*(list(map(int, column)) for column in zip(*csv.reader(lines))))
tiresias = {"variant": "Tiresias"}
for name, policy, params in (
    ("fifo", "fifo", {}), ("srtf", "srtf", {}), ("las-Tiresias", "las", tiresias), ("las", "las", {})
):
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        result = simulate(workload, Cluster.slots(64), make_policy(PolicySpec(policy, params)))
        best = min(best, time.process_time() - begin)
    print(name, len(workload) / best, result.mean_jct, result.preemptions)
"""


def _compiled(say: Callable[[str], None]) -> Iterator[Row]:
    say("the same sources compiled by mypyc (half a minute to build)")
    jobs, _ = workload(10_000, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        with path.open("w", newline="") as lines:
            csv.writer(lines).writerows(jobs)
        try:
            build(Path(folder) / "compiled")
        except CompileError as error:
            say(f"not measured: {error}")
            return
        pure, fast = (
            [line.split() for line in _output(_SPEED, str(path), cwd=cwd).splitlines()]
            for cwd in (_ROOT, Path(folder) / "compiled")
        )
    for (name, speed, *answer), (_, faster, *same) in zip(pure, fast, strict=True):
        if list(map(float, answer)) != list(map(float, same)):
            raise AssertionError(f"{name}: compiled {same}, pure Python {answer}")
        yield Row(f"sim: {name}, 64 GPUs, compiled, against pure", float(faster), "jobs/CPU-s", float(speed))


def _evalstop(say: Callable[[str], None]) -> Iterator[Row]:
    jobs, _ = workload(10_000, 64)
    say("10000 jobs of 50 evals under EvalStop, foreseen and eval by eval")
    rng = random.Random(3)
    at = [number / 50 for number in range(1, 51)]
    peak = 0.6
    evals = [
        Evals(at, array("d", [1 - abs(share - peak) + rng.gauss(0, 0.02) for share in at]))
        if rng.random() < 0.5
        else Evals(at, array("d", [share + rng.gauss(0, 0.02) for share in at]))
        for _ in jobs
    ]
    columns = list(zip(*jobs, strict=True))
    with_evals = Workload(columns[0], columns[1], columns[2], evals=evals)
    rule = RuleSpec(PolicySpec("kDeclines", {"k": 5}))

    def stopping(foresight: bool) -> float:
        policy = EvalStop(make_policy(_FIFO))
        return simulate(with_evals, Cluster.slots(64), policy, rule=rule, foresight=foresight).mean_jct

    bare = _columns(jobs)
    base, foreseen = _best(partial(_jct, bare, 64, _FIFO), lambda: stopping(True), agree=False)
    yield Row("sim: 10k jobs x 50 evals under EvalStop, against the eval-free base", foreseen, "CPU-s", base)
    streamed, again = _best(lambda: stopping(False), lambda: stopping(True), rounds=2)
    yield Row("sim: the same eval by eval, against the eval-free base", streamed, "CPU-s", base)
    del again


_MILLION = """
import sys
from controller.policy.queueing import make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.workload import Workload
submitted, gpus, work = [], [], []
with open(sys.argv[1]) as lines:
    for line in lines:
        when, size, seconds = line.split(",")
        submitted.append(int(when))
        gpus.append(int(size))
        work.append(int(seconds))
result = simulate(Workload(submitted, gpus, work), Cluster.slots(1024), make_policy(PolicySpec("fifo")))
print(result.mean_jct, result.makespan)
"""


def _a_million(say: Callable[[str], None]) -> Iterator[Row]:
    say("one million jobs, from a CSV file to the mean JCT, in a process of its own")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        with path.open("w", newline="") as lines:
            csv.writer(lines).writerows(twin(1_000_000, 1024))
        before, walls, used = _children(), [], []
        for _ in range(3):
            walls.append(_wall(_MILLION, str(path)))
            used.append(_children() - before)
            before += used[-1]
        yield Row("sim: a million jobs end to end", min(walls), "s")
        yield Row("sim: a million jobs end to end, CPU time", min(used), "CPU-s")


_TEN = """
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec
from sim.cluster import Cluster
from sim.engine import simulate
from sim.foresight import RuleSpec
from sim.workload import Evals, Workload
evals = [Evals([0.25, 0.5, 0.75, 1.0], [1.0, 0.9, 0.8, 0.7])] * 10
workload = Workload(list(range(10)), [1] * 10, [60] * 10, evals=evals)
policy = EvalStop(make_policy(PolicySpec("srtf")))
print(simulate(workload, Cluster.slots(4), policy, rule=RuleSpec(PolicySpec("kDeclines"))).mean_jct)
"""


_REPLAY = """
import sys
from controller.cli.main import app
app(["sim", "replay", sys.argv[1]])
"""


def _cold_start() -> Iterator[Row]:
    ours = min(_wall(_TEN) for _ in range(_ROUNDS))
    bare = min(_wall("pass") for _ in range(_ROUNDS))
    yield Row("sim: ten jobs, cold, against an empty Python", ours, "s", bare)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ten.csv"
        path.write_text("job,submitted,gpus,work\n" + "".join(f"run-{n},{n},1,600\n" for n in range(10)))
        ours = min(_wall(_REPLAY, str(path)) for _ in range(_ROUNDS))
    yield Row("sim: `evalstop sim replay` of ten jobs, cold", ours, "s", bare)


def _curve(say: Callable[[str], None]) -> Iterator[Row]:
    """What `tests.bench.cost_curve` draws."""
    say("cost against jobs and against GPUs (and with them running jobs)")
    for count in (1_000, 10_000, 100_000):
        jobs = _columns(twin(count, 64))
        for name, spec in _POLICIES.items():
            (seconds,) = _best(partial(_jct, jobs, 64, spec), rounds=2)
            yield Row(f"sim: {name}, twin of {count} jobs, 64 GPUs", seconds / count * 1e6, "us/job")
    for gpus in (64, 256, 1024, 4096):
        jobs = _columns(twin(10_000, gpus))
        yield Row(f"sim: running at a time, twin of 10000 jobs, {gpus} GPUs", _running(jobs, gpus), "jobs")
        for name, spec in _POLICIES.items() if gpus != 64 else ():
            (seconds,) = _best(partial(_jct, jobs, gpus, spec), rounds=2)
            yield Row(f"sim: {name}, twin of 10000 jobs, {gpus} GPUs", seconds / 1e4 * 1e6, "us/job")


def _running(jobs: Workload, gpus: int) -> float:
    """Jobs running at a time under FIFO, the mean from the first submission to the last."""
    ended, last = simulate(jobs, Cluster.slots(gpus), make_policy(_FIFO)).ended, jobs.submitted[-1]
    starts = [end - work for end, work in zip(ended, jobs.work, strict=True)]  # nobody is preempted
    within = (max(0.0, min(end, last) - start) for start, end in zip(starts, ended, strict=True))
    return sum(within) / (last - jobs.submitted[0])


def _nodes(say: Callable[[str], None]) -> Iterator[Row]:
    say("cost against nodes, where gangs are placed")
    for nodes in (8, 100, 1_000):
        jobs = _columns(twin(3_000, 8 * nodes))
        cluster = Cluster.of_nodes([8] * nodes)
        for spec in (_FIFO, _SRTF):
            (seconds,) = _best(partial(_jct, jobs, cluster, spec), rounds=2)
            name = f"sim: {spec.name}, twin of 3000 jobs, {nodes} nodes of 8"
            yield Row(name, seconds / 3_000 * 1e6, "us/job")


def _columns(jobs: Sequence[Job]) -> Workload:
    submitted, gpus, work = zip(*jobs, strict=True)
    return Workload(submitted, gpus, work)


def _jct(jobs: Workload, gpus: int | Cluster, spec: PolicySpec) -> float:
    cluster = gpus if isinstance(gpus, Cluster) else Cluster.slots(gpus)
    return simulate(jobs, cluster, make_policy(spec)).mean_jct


def _best(*ways: Callable[[], float], rounds: int = _ROUNDS, agree: bool = True) -> list[float]:
    """CPU seconds of each way, best of the rounds; the ways take turns and must give one answer."""
    best = [float("inf")] * len(ways)
    answers = [0.0] * len(ways)
    for _ in range(rounds):
        for number, way in enumerate(ways):
            begin = time.process_time()
            answers[number] = way()
            best[number] = min(best[number], time.process_time() - begin)
    if agree and max(answers) - min(answers) > 1e-6 * max(answers):
        raise AssertionError(f"mean JCTs differ: {answers}")
    return best


def _output(program: str, *arguments: str, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=cwd
    ).stdout


def _children() -> float:
    """CPU seconds of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wall(program: str, *arguments: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=_ROOT
    )
    return time.perf_counter() - begin
