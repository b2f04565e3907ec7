"""``python -m tests.bench faults``: many runs, several at a time, and a table.

After a SIGTERM no further run is begun.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from controller.kube.client import Api
from controller.kube.connect import connect
from tests.bench.faults.mischief import Mischief
from tests.bench.faults.operators import Operator
from tests.bench.faults.plan import KINDS, Plan, draw
from tests.bench.faults.proxy import FaultyProxy, Upstream
from tests.bench.faults.runs import Outcome, Runner
from tests.bench.faults.stage import OPERATOR, Stage, stage
from tests.bench.faults.witness import Witness
from tests.faults import ledger

Tell = Callable[[str], None]


@dataclass(slots=True)
class Report:
    outcomes: list[Outcome] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    felt: Counter[str] = field(default_factory=Counter)  # requests that met a fault of the API server's
    twice: list[str] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    seconds: float = 0.0
    operator_ends: int = 0

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.failed]

    def rows(self) -> list[tuple[str, str]]:
        done = self.outcomes
        ends = Counter(o.end or "not settled" for o in done)
        stops = Counter(o.stopped_by for o in done if o.stopped_by)
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        held_up = Counter(why for o in done for why in o.hindrances)
        felt = ", ".join(f"{kind} {count}" for kind, count in sorted(self.felt.items()))
        return [
            ("runs", f"{len(done)} ({', '.join(f'{n} {end}' for end, n in sorted(ends.items()))})"),
            ("lives of trainers, evals", f"{sum(o.lives for o in done)}, {sum(o.evals for o in done)}"),
            ("faults", f"{sum(self.faults.values())}: {faults}"),
            ("API calls that met one", f"{sum(self.felt.values())}: {felt}"),
            ("operator's processes that ended", str(self.operator_ends)),
            ("stops", f"{sum(stops.values())} ({', '.join(f'{by} {n}' for by, n in sorted(stops.items()))})"),
            ("runs whose best was owed", str(sum(1 for o in done if o.verdict.owed))),
            ("runs of which nothing is kept", str(sum(1 for o in done if not o.verdict.kept))),
            ("runs held up, by reason", ", ".join(f"{why} {n}" for why, n in sorted(held_up.items()))),
            ("lost bests", str(sum(len(o.verdict.lost) for o in done))),
            ("false stops", str(sum(len(o.verdict.false_stops) for o in done))),
            ("GPUs held twice", str(len(self.twice))),
            ("gangs admitted for whom there was no room", str(len(self.promised))),
            ("untrue words of a status", str(sum(len(o.verdict.untrue) for o in done))),
            ("not settled, or in trouble", str(sum(1 for o in done if o.trouble))),
            ("over, and still looking for a checkpoint that is gone", str(sum(o.looking for o in done))),
            ("longest time to settle", f"{max((o.settle for o in done), default=0.0):.0f} s"),
            (
                "time",
                f"{self.seconds / 60:.1f} min, {60 * len(done) / max(1.0, self.seconds):.1f} runs a minute",
            ),
        ]


async def bench(
    built: Stage,
    plans: Sequence[Plan],
    folder: Path,
    tell: Tell,
    *,
    operators: int = 1,
    until: float = float("inf"),
) -> Report:
    """Run the plans, one per slot at a time. ``until``: monotonic s after which none is begun."""
    report = Report()
    began = time.monotonic()
    failures = folder / "failed"
    upstream = Upstream.of(built.plane, OPERATOR, ("system:serviceaccounts", "system:authenticated"))
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultyProxy(upstream, random.Random(1)))
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        api = await stack.enter_async_context(Api(await connect({"KUBECONFIG": str(built.plane.kubeconfig)})))
        kubeconfig = proxy.kubeconfig(folder)
        replicas = [Operator(f"operator-{i}", kubeconfig, folder) for i in range(operators)]
        for replica in replicas:
            stack.callback(replica.close)
        witness = Witness(api, built.gpus)
        mischief = Mischief(proxy, replicas, session)
        runner = Runner(built, api, witness, mischief, failures)
        tasks = [asyncio.create_task(witness.watch())]
        tasks += [asyncio.create_task(replica.keep(mischief.ended)) for replica in replicas]
        stack.push_async_callback(_end, tasks)
        if not await mischief.until_led():
            raise RuntimeError(f"no operator leads; see {replicas[0].log}")
        tell(f"the operator leads after {time.monotonic() - began:.0f} s")
        waiting = list(reversed(plans))
        # The table is then of the runs that were made, and the next seeds can be run another time.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, waiting.clear)

        async def slot_work(slot: int) -> None:
            while waiting and time.monotonic() < until:
                outcome = await runner.run(waiting.pop(), built.slots[slot])
                report.outcomes.append(outcome)
                _note(outcome, report, tell, len(plans), began)
                if not any(t.end is None for t in mischief.troubles):
                    mischief.forget_before(time.time() - 1200)

        await asyncio.gather(*(slot_work(i) for i in range(len(built.slots))))
        report.faults, report.felt = mischief.done, proxy.felt
        report.twice = witness.twice + _gpus_twice(built.truth)
        report.operator_ends = sum(len(o.ends) for o in replicas)
    report.seconds = time.monotonic() - began
    report.promised = witness.promised
    if report.twice or report.promised:
        failures.mkdir(exist_ok=True)
        (failures / "gpus-twice.txt").write_text("\n".join([*report.twice, *report.promised]) + "\n")
    return report


def _gpus_twice(truth: Path) -> list[str]:
    path = truth / "gpus" / "twice.jsonl"
    return path.read_text().splitlines() if path.is_file() else []


def _note(outcome: Outcome, report: Report, tell: Tell, total: int, began: float) -> None:
    v = outcome.verdict
    words = [
        f"{len(report.outcomes)}/{total}",
        f"{(time.monotonic() - began) / 60:.1f} min",
        outcome.name,
        outcome.end or "NOT SETTLED",
        f"by {outcome.stopped_by}" if outcome.stopped_by else "",
        f"{outcome.lives} lives",
        f"settled in {outcome.settle:.0f} s",
        " ".join(f.kind for f in outcome.plan.faults),
    ]
    tell(" · ".join(w for w in words if w))
    for problem in (*v.lost, *v.false_stops, *v.untrue, outcome.trouble):
        if problem:
            tell(f"    PROBLEM {outcome.name}: {problem}")


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first; each next one's is one higher")
    parser.add_argument("--at-once", type=int, default=8, help="runs at the same time")
    parser.add_argument("--operators", type=int, default=1, help="replicas")
    parser.add_argument("--away", type=float, default=60.0, help="s for which the API server goes away")
    parser.add_argument("--minutes", type=float, default=600.0, help="no run is begun after so many")
    parser.add_argument("--faults", default=",".join(KINDS), help="which kinds; empty: none")
    parser.add_argument("--out", type=Path, default=Path("build/faults"), help="folder for what failed")
    parser.add_argument("--record", action="store_true", help="add the round to tests/faults/runs.json")
    given = parser.parse_args(arguments)
    kinds = tuple(kind for kind in given.faults.split(",") if kind)
    if unknown := set(kinds) - {*KINDS}:
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    console = Console()

    def tell(line: str) -> None:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

    folder = (given.out / f"seed-{given.seed}-{time.strftime('%m%d-%H%M%S')}").absolute()
    folder.mkdir(parents=True)
    plans = [draw(given.seed + i, given.away, kinds) for i in range(given.runs)]
    work = Path(tempfile.mkdtemp(prefix="evalstop-faults-", dir="/var/tmp"))
    gpus = tuple([2] * max(1, (given.at_once * 3 // 2 + 1) // 2))
    try:
        with stage(work, given.at_once, gpus) as built:
            tell(f"{given.at_once} slots, {sum(gpus)} GPUs; logs in {folder}")
            until = time.monotonic() + given.minutes * 60
            report = asyncio.run(bench(built, plans, folder, tell, operators=given.operators, until=until))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table = Table(show_header=False)
    for row in report.rows():
        table.add_row(*row)
    console.print(table)
    if given.record:
        runs, failures = len(report.outcomes), len(report.failed) + len(report.twice) + len(report.promised)
        ledger.add(ledger.REAL, given.seed, given.seed + runs - 1, runs, failures)
    for outcome in report.failed:
        seed = outcome.plan.seed
        tell(
            f"{outcome.name}: {folder}/failed/{outcome.name}; "
            f"again: python -m tests.bench faults --runs 1 --seed {seed}"
        )
    return 1 if report.failed or report.twice or report.promised else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
