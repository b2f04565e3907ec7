"""``python -m tests.bench tenants``: honest jobs alone, then beside hostile ones, and what differs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.kube.errors import ApiError
from deploy.local.api import LocalApi
from deploy.local.plane import Plane
from tests.bench.rows import quantile
from tests.bench.tenants.pages import HonestTrainer, serve
from tests.bench.tenants.plan import BINDING, Honest, Object, Outcome, Scale, honest
from tests.bench.tenants.stage import LABEL, RLHFJOBS, ROOT, Place, Stage, operated, rlhfjob, stage

Tell = Callable[[str], None]
_LOOK = 0.2  # s between two looks at the honest jobs
LAG = 1.0  # s, p99


@dataclass(slots=True)
class Run:
    """One run of all honest jobs. ``told``: what the hostile did, by attack; ``ends``: of the operator's
    process."""

    outcomes: dict[str, Outcome]
    told: dict[str, Object] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def lag(self, share: float) -> float:
        """A quantile of how much later than it should a read of an honest page came, s."""
        lags = [lag for outcome in self.outcomes.values() for lag in outcome.lags]
        return quantile(lags, share) if lags else float("inf")

    @property
    def breaches(self) -> dict[str, int]:
        return {k: n for told in self.told.values() for k, n in told["breaches"].items()}


# -- one run -------------------------------------------------------------------------------------------


def perform(place: Place, prefix: str, scale: Scale, hostile: bool, folder: Path, tell: Tell) -> Run:
    """All honest jobs from their creation to their stop or their last eval, hostile ones beside them or
    not."""
    jobs, began = honest(scale, prefix), time.monotonic()
    with contextlib.ExitStack() as stack:
        built = stack.enter_context(stage(place, prefix, jobs, scale))
        trainers, ports = stack.enter_context(_trainers(jobs, scale))
        seen = Observer(place.plane.client(), built, trainers, scale, tell)
        early, late = ([job for job in jobs if job.early is first] for first in (True, False))
        for job in early:
            seen.make(job, ports[job.name])
        seen.until(lambda: all(seen.admitted(job) for job in early), 120.0, "the first honest jobs to run")
        attack = stack.enter_context(_attacked(built, jobs, scale, folder, tell)) if hostile else None
        if attack is not None:
            seen.until(lambda: attack.there(place.plane.client(), prefix), 180.0, "the hostile runs")
            tell(f"{attack.made()} hostile runs are there; all GPUs are in use: {attack.full}")
        for job in late:
            seen.make(job, ports[job.name])
        seen.until(seen.over, scale.patience, "the honest jobs to end", must=False)
        outcomes = seen.outcomes()
        told = attack.end() if attack is not None else {}
        ends, place.ends = place.ends, []
    return Run(outcomes, told, ends, time.monotonic() - began)


@contextlib.contextmanager
def _trainers(
    jobs: Sequence[Honest], scale: Scale
) -> Iterator[tuple[dict[str, HonestTrainer], dict[str, int]]]:
    """Pages of the honest, served by an event loop in a thread of its own."""
    trainers = {job.name: HonestTrainer(job, scale.interval) for job in jobs}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> dict[str, tuple[asyncio.Server, int]]:
        return {name: await serve(trainer.answer) for name, trainer in trainers.items()}

    servers = asyncio.run_coroutine_threadsafe(begin(), loop).result(30.0)
    try:
        yield trainers, {name: port for name, (_, port) in servers.items()}
    finally:
        for server, _ in servers.values():
            loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)
        loop.close()


class Observer:
    """What an onlooker sees of the honest jobs, and when."""

    def __init__(
        self, admin: LocalApi, built: Stage, trainers: dict[str, HonestTrainer], scale: Scale, tell: Tell
    ) -> None:
        self._admin, self._built, self._trainers, self._scale, self._tell = (
            admin,
            built,
            trainers,
            scale,
            tell,
        )
        self._jobs: dict[str, Honest] = {}
        self._made: dict[str, float] = {}
        self._admitted: dict[str, float] = {}
        self._decided: dict[str, float] = {}
        self._freed: dict[str, float] = {}
        self._statuses: dict[str, Object] = {}

    def make(self, job: Honest, port: int) -> None:
        body = rlhfjob(job.name, self._built.prefix, port, job.rule)
        body["metadata"]["labels"] = {LABEL: self._built.prefix}
        made = self._admin.post(f"{RLHFJOBS}/namespaces/{job.namespace}/rlhfjobs", body)
        self._made[job.name] = time.monotonic()
        self._jobs[job.name] = job
        self._trainers[job.name].uid = made["metadata"]["uid"]

    def until(self, done: Callable[[], bool], seconds: float, what: str, must: bool = True) -> bool:
        """Look, again and again, until that. Raises `TimeoutError` where it ``must`` come and does not."""
        deadline = time.monotonic() + seconds
        while True:
            self._look()
            if done():
                return True
            if time.monotonic() > deadline:
                if must:
                    raise TimeoutError(
                        f"waited {seconds:g} s for {what}; see {self._built.place.operator.log}"
                    )
                self._tell(f"waited {seconds:g} s for {what}, in vain")
                return False
            time.sleep(_LOOK)

    def admitted(self, job: Honest) -> bool:
        return job.name in self._admitted

    def over(self) -> bool:
        """Whether each is off its GPUs after a stop, or has had all of its evals judged and the best
        of them pinned where none is due."""

        def ended(name: str, status: Object) -> bool:
            if self._jobs[name].stops or name in self._decided:
                return name in self._freed
            best, pinned = status.get("best") or {}, status.get("secured") or {}
            judged = int(status.get("evalsSeen") or 0) >= len(self._jobs[name].scores)
            return judged and best.get("step") == pinned.get("step")

        return len(self._statuses) == len(self._trainers) and all(
            ended(name, status) for name, status in self._statuses.items()
        )

    def _look(self) -> None:
        self._built.place.keep()
        selector = f"?labelSelector={LABEL}%3D{self._built.prefix}"
        try:
            found = self._admin.get(f"{RLHFJOBS}/rlhfjobs{selector}", timeout_s=30.0)["items"]
        except ApiError as error:
            self._tell(f"the API server does not answer: {error}")
            return
        now = time.monotonic()
        for obj in found:
            name, status = obj["metadata"]["name"], obj.get("status") or {}
            self._statuses[name] = status
            if status.get("admission"):
                self._admitted.setdefault(name, now)
            decision = status.get("decision") or {}
            if decision:
                self._decided.setdefault(name, now)
            if decision.get("podsGoneTime"):
                self._freed.setdefault(name, now)

    def outcomes(self) -> dict[str, Outcome]:
        found = {}
        for name, job in self._jobs.items():
            status, trainer = self._statuses.get(name) or {}, self._trainers[name]
            decision, best = status.get("decision"), status.get("best") or {}
            fields = ("by", "reason", "step", "bestStep", "metric", "statistic", "threshold", "eValue")
            kept = (status.get("retained") or [None])[-1] if decision else status.get("secured")
            first = trainer.reads[0] if trainer.reads else None
            end = self._decided.get(name, time.monotonic())
            found[name] = Outcome(
                name,
                verdict=tuple(decision.get(f) for f in fields) if decision else None,
                best=(best.get("step"), best.get("score")),
                digest=(kept or {}).get("digest"),
                waited=self._admitted.get(name, float("inf")) - self._made[name],
                decided=None if first is None or name not in self._decided else end - first,
                freed=None if first is None or name not in self._freed else self._freed[name] - first,
                attempts=int(status.get("attempt") or 0),
                lags=trainer.lags(end),
            )
            assert job.name == name
        return found


# -- the hostile ---------------------------------------------------------------------------------------


class Attack:
    """The process of the hostile ones."""

    def __init__(self, process: subprocess.Popen[bytes], ready: Path, told: Path, log: Path) -> None:
        self._process, self._ready, self._told, self._log = process, ready, told, log
        self.full = False

    def there(self, admin: LocalApi, pool: str) -> bool:
        """Whether all its runs are made and the pool's idle GPUs lent to them, or a while has passed."""
        if self._process.poll() is not None:
            raise ChildProcessError(f"the hostile process ended: {self._log.read_text()[-2000:]}")
        if not self._ready.exists():
            return False
        status = admin.get(f"{RLHFJOBS}/gpupools/{pool}").get("status") or {}
        self.full = status.get("free", 1) == 0
        return self.full or time.time() - self._ready.stat().st_mtime > 30.0

    def made(self) -> int:
        return int(self._ready.read_text() or 0)

    def end(self) -> dict[str, Object]:
        """End it; what it has done, as it last wrote it down."""
        if (code := self._process.poll()) is not None:
            raise ChildProcessError(
                f"the hostile process ended by itself, {code}: {self._log.read_text()[-2000:]}"
            )
        self._process.kill()
        self._process.wait()
        found: dict[str, Object] = json.loads(self._told.read_text())
        return found


@contextlib.contextmanager
def _attacked(
    built: Stage, jobs: Sequence[Honest], scale: Scale, folder: Path, tell: Tell
) -> Iterator[Attack]:
    def identity(tenant: Any) -> Object:
        pair = built.plane.client_cert(tenant.name, ["system:authenticated"])
        return {
            "name": tenant.name,
            "namespace": tenant.namespace,
            "certificate": str(pair.certificate),
            "key": str(pair.key),
        }

    here: dict[str, list[str]] = {}
    for job in jobs:
        here.setdefault(job.namespace, []).append(job.name)
    ready, told, log = (folder / f"hostile-{built.prefix}.{end}" for end in ("ready", "json", "log"))
    config = {
        "url": built.plane.url,
        "ca": str(built.plane.ca),
        "pool": built.prefix,
        "runs": scale.hostile,
        "rate": scale.rate,
        "idle": scale.idle,
        "ports": built.place.ports,
        "services": built.place.services,
        "races": str(folder / f"races-{built.prefix}"),
        "tenants": [identity(tenant) for tenant in built.tenants],
        "bobs": [identity(tenant) for tenant in built.bobs],
        "honest": here,
        "ready": str(ready),
        "told": str(told),
    }
    path = folder / f"hostile-{built.prefix}.config"
    path.write_text(json.dumps(config))
    # What it costs the hostile to attack is no matter of the cluster's: the rest goes first.
    command = ["nice", "-n", "10", sys.executable, "-m", "tests.bench.tenants.hostile", str(path)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stderr=out, stdout=out)
    try:
        yield Attack(process, ready, told, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


# -- what comes of it ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table. ``met``: whether a goal was; None: there is none. ``timed``: a slower machine may
    miss it."""

    name: str
    alone: str
    beside: str
    goal: str = ""
    met: bool | None = None
    timed: bool = False


def compare(alone: Run, beside: Run, scale: Scale) -> list[Line]:
    """What must be reached, and what was."""
    pairs = [(alone.outcomes[name], beside.outcomes[name]) for name in alone.outcomes]
    wanted = {job.name: job.stops for job in honest(scale, "")}
    lines = []

    def same(what: str, of: Callable[[Outcome], Any]) -> None:
        equal = [one.name for one, two in pairs if of(one) == of(two)]
        differ = [f"{one.name}: {of(one)} != {of(two)}" for one, two in pairs if of(one) != of(two)]
        told = f"{len(equal)} equal" + "".join(f"; {line}" for line in differ)
        lines.append(Line(what, f"{len(pairs)}", told, "all equal", not differ))

    right = [
        [(run.outcomes[n].verdict is not None) == stops for n, stops in wanted.items()]
        for run in (alone, beside)
    ]
    lines.append(
        Line(
            "stopped where their evals say so, and not else",
            *(f"{sum(found)} of {len(found)}" for found in right),
            "all",
            all(all(found) for found in right),
        )
    )
    if scale.alone:
        same("rule, reason, step, numbers of the verdict", lambda o: o.verdict)
    else:
        lines.append(_weaker(pairs, scale))
    same("best eval", lambda o: o.best)
    same("digest of the checkpoint that is kept", lambda o: o.digest)
    same("starts", lambda o: o.attempts)
    for what, of in (("the stop", lambda o: o.decided), ("GPUs free", lambda o: o.freed)):
        times = [(of(one), of(two)) for one, two in pairs if of(one) is not None]
        later = [two - one if two is not None else float("inf") for one, two in times]
        lines.append(
            Line(
                f"from the first read to {what}, mean",
                f"{_mean([one for one, _ in times]):.1f} s",
                f"{_mean([two for _, two in times if two is not None]):.1f} s",
            )
        )
        most = scale.interval + (0.0 if scale.alone else scale.shared_fall_wait)
        wait = "" if scale.alone else ", and the wait of a shared fall"
        lines.append(
            Line(
                f"latest of all to {what}, against alone",
                "",
                f"{max(later, default=0.0):+.2f} s",
                f"at most a scrape interval{wait}, {most:g} s",
                max(later, default=0.0) <= most,
                timed=True,
            )
        )
    lags = [(run.lag(0.5), run.lag(0.99), run.lag(1.0)) for run in (alone, beside)]
    lines.append(
        Line(
            "scrapes late by (median, p99, most)",
            *(" ".join(f"{lag:.2f}" for lag in found) + " s" for found in lags),
            f"p99 at most {LAG:g} s",
            lags[1][1] <= LAG,
            timed=True,
        )
    )
    waits = [max(o.waited for o in run.outcomes.values()) for run in (alone, beside)]
    most = scale.grace + BINDING
    lines.append(
        Line(
            "longest wait for guaranteed GPUs",
            *(f"{wait:.1f} s" for wait in waits),
            f"at most {most:g} s: grace, termination, binding",
            waits[1] <= most,
            timed=True,
        )
    )
    breaches = beside.breaches
    lines.append(Line("attacks that went through and must not", "", str(breaches or 0), "none", not breaches))
    lives = Line("ends of the operator's process", str(alone.ends or 0), str(beside.ends or 0), "none")
    lines.append(replace(lives, met=not beside.ends))
    return lines


def _weaker(pairs: Sequence[tuple[Outcome, Outcome]], scale: Scale) -> Line:
    """In the scope of the pool, others may raise a run's noise and delay its stop once, and nothing else."""
    most = math.ceil(scale.shared_fall_wait / scale.interval) + 1  # evals by which a stop may come later
    wrong = {one.name: told for one, two in pairs if (told := _stronger(one.verdict, two.verdict, 10 * most))}
    told = f"{len(pairs) - len(wrong)} as alone" + "".join(f"; {name}: {why}" for name, why in wrong.items())
    name = "rule, reason, best step; step, numbers of the verdict"
    goal = f"equal; as late or up to {most} evals later, and at one step no stronger"
    return Line(name, f"{len(pairs)}", told, goal, not wrong)


def _stronger(one: tuple[Any, ...] | None, two: tuple[Any, ...] | None, late: int) -> str:
    """What of a verdict others may not have brought about; "": nothing. ``late``: steps."""
    if one is None or two is None:
        return "" if one == two else f"{one} != {two}"
    by, reason, step, best, metric, statistic, threshold, evidence = one
    if (by, reason, best, metric) != (two[0], two[1], two[3], two[4]):
        return f"{one} != {two}"
    if not step <= two[2] <= step + late:
        return f"stopped at {two[2]}, alone at {step}"
    if two[2] > step:  # other evals: its numbers are of those
        return ""
    rise = [(statistic, two[5]), (two[6], threshold), (evidence, two[7])]  # what may be lower, and was not
    higher = [pair for pair in rise if None not in pair and float(pair[1]) > float(pair[0]) + 1e-9]
    return f"{two} is more than {one}" if higher else ""


def idle(beside: Run) -> list[str]:
    """Attacks that did not take place: what was measured is less than it says."""
    return [a for a, told in beside.told.items() if not told["through"] + told["refused"]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def bench(plane: Plane, scale: Scale, folder: Path, tell: Tell, prefix: str = "bench") -> tuple[Run, Run]:
    """Both runs, one after the other."""
    with operated(plane, scale, folder) as place:
        alone = perform(place, f"{prefix}-alone", scale, False, folder, tell)
        tell(f"alone: {alone.seconds:.0f} s")
        beside = perform(place, f"{prefix}-beside", scale, True, folder, tell)
    tell(f"beside the hostile: {beside.seconds:.0f} s")
    return alone, beside


def main(arguments: Sequence[str]) -> int:
    """Exit status 1: a goal was missed."""
    whole = Scale()
    parser = argparse.ArgumentParser(prog="python -m tests.bench tenants", description=__doc__)
    parser.add_argument("--honest", type=int, default=whole.honest, help="jobs (default %(default)s)")
    parser.add_argument("--hostile", type=int, default=whole.hostile, help="runs (default %(default)s)")
    parser.add_argument("--tenants", type=int, default=whole.tenants, help="hostile namespaces")
    parser.add_argument(
        "--rate", type=float, default=whole.rate, help="requests/s of each attack, of all tenants"
    )
    parser.add_argument("--hurry", type=float, default=whole.hurry, help="of the 5 s between two scrapes")
    parser.add_argument("--scope", choices=("Namespace", "Pool"), default=whole.scope)
    parser.add_argument("--out", type=Path, default=Path("build/tenants"), help="folder for logs and figures")
    given = parser.parse_args(arguments)
    scale = replace(
        whole,
        honest=given.honest,
        hostile=given.hostile,
        tenants=min(given.tenants, max(1, given.hostile)),
        rate=given.rate,
        hurry=given.hurry,
        scope=given.scope,
    )
    console = Console()
    folder = (given.out / time.strftime("%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True)

    def tell(line: str) -> None:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

    with (
        tempfile.TemporaryDirectory(prefix="evalstop-tenants-", dir="/var/tmp") as work,
        Plane(Path(work)) as plane,
    ):
        alone, beside = bench(plane, scale, folder, tell)
    lines = compare(alone, beside, scale)
    show(console, lines, beside)
    (folder / "figures.json").write_text(
        json.dumps(
            {"scale": asdict(scale), "alone": asdict(alone), "beside": asdict(beside)}, indent=1, default=str
        )
    )
    missed = [line.name for line in lines if line.met is False]
    quiet = idle(beside)
    for attack in quiet:
        tell(f"did not take place: {attack}")
    tell(f"logs and figures: {folder}")
    tell(f"missed: {'; '.join(missed)}" if missed else "all goals met")
    return 1 if missed or quiet else 0


def show(console: Console, lines: Sequence[Line], beside: Run) -> None:
    table = Table("", "alone", "beside the hostile", "goal", "")
    for line in lines:
        met = "" if line.met is None else "met" if line.met else "MISSED"
        table.add_row(line.name, line.alone, line.beside, line.goal, met)
    console.print(table)
    attacks = Table("attack", "went through", "refused", "failed")
    for attack, told in beside.told.items():
        attacks.add_row(attack, *(str(told[key]) for key in ("through", "refused", "failed")))
    console.print(attacks)
