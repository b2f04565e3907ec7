"""A parity run from beginning to end: calibrate, play every policy, simulate it, replay the decision log."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from controller.frozen import dataclass
from controller.kube.client import Api
from controller.parity import calibration
from controller.parity.calibration import Calibration
from controller.parity.cluster_run import play
from controller.parity.compressed_trace import TraceOnCluster, compressed
from controller.parity.facts import Facts
from controller.parity.manifests import ClusterTarget
from controller.parity.report import Replayed, Report, Run
from controller.parity.scatter import scatter
from controller.parity.simulated import simulated
from controller.parity.timeline import Timeline
from controller.policy import decision_log
from controller.policy.types import PolicySpec
from sim.latencies import Latencies

ReportLine = Callable[[str, str], None]  # (who, line)
_PATIENCE = 3.0  # times the simulated makespan, and
_LEAST_S = 300.0
Played = tuple[Timeline, list[Facts]]


@dataclass(frozen=True, slots=True)
class Grounds:
    """Sets of nodes to play on, and how the jobs run there.

    Attributes:
        selectors: of sets of nodes, all alike; as many policies are played at once.
        pull_secret: as in `ClusterTarget`.
    """

    selectors: tuple[tuple[str, str], ...]
    image: str = ""
    storage_class: str = ""
    scheduler: str = ""
    pull_secret: tuple[str, str] | None = None

    def place(self, number: int, what: str) -> ClusterTarget:
        """Return a place of its own on that set of nodes."""
        name = f"parity-{what}-{secrets.token_hex(3)}".lower()
        place = ClusterTarget(
            name,
            self.selectors[number],
            storage_class=self.storage_class,
            scheduler=self.scheduler,
            pull_secret=self.pull_secret,
        )
        return replace(place, image=self.image) if self.image else place


async def conduct(
    api: Api,
    trial: TraceOnCluster,
    policies: Sequence[tuple[str, PolicySpec]],
    grounds: Grounds,
    about: dict[str, Any],
    report_line: ReportLine,
    waves: int = 2,
    known: Calibration | None = None,
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Play a trial under each policy and simulate it with the overheads of a run of its own.

    Args:
        api: client of the cluster.
        trial: what to play.
        policies: (as its user wrote it, in the trace's time).
        grounds: where to play.
        about: what the report says of the trial.
        report_line: called with (who, line) on the progress.
        waves: of the calibration run.
        known: calibration measured earlier on this cluster; None: it is measured now.
        keep: called with the report so far after the calibration, and after each batch of policies.

    Raises:
        Failed: a run did not go as it was meant.
        ApiError: the API server refuses.
        ParamError: a policy that cannot be played.
        Skewed: clocks disagree.
        ValueError: a delay was not to be seen.
    """
    chosen = [(text, compressed(policy, trial.speed)) for text, policy in policies]
    together = min(len(grounds.selectors), len(chosen))
    measured = known or await calibrate(api, trial, grounds, together, report_line, waves)
    runs: list[Run] = []
    keep(Report(about, measured, ()))
    for first in range(0, len(chosen), together):
        batch = chosen[first : first + together]
        simulations = [simulated(trial, policy, measured.latencies) for _, policy in batch]
        drawn = [scatter(trial, policy, measured) for _, policy in batch]
        played = await _all(
            partial(
                play,
                api,
                trial,
                policy,
                grounds.place(number, policy.name),
                _named(report_line, text),
                _LEAST_S + _PATIENCE * simulations[number].makespan,
            )
            for number, (text, policy) in enumerate(batch)
        )
        for (text, _), sim, spread, (cluster, facts) in zip(batch, simulations, drawn, played, strict=True):
            runs.append(Run(text, sim, cluster, tuple(facts), spread))
        keep(Report(about, measured, tuple(runs)))
    return Report(about, measured, tuple(runs))


async def calibrate(
    api: Api, trial: TraceOnCluster, grounds: Grounds, together: int, report_line: ReportLine, waves: int
) -> Calibration:
    """Measure the cluster's delays by a run of its own on as many sets of nodes as the trial will use."""
    own = calibration.run(trial.cluster, waves)
    expected = simulated(own, calibration.POLICY, Latencies()).makespan
    played = await _all(
        partial(
            play,
            api,
            own,
            calibration.POLICY,
            grounds.place(number, "calibration"),
            _named(report_line, f"calibration {number + 1}" if together > 1 else "calibration"),
            _LEAST_S + _PATIENCE * expected,
        )
        for number in range(together)
    )
    return calibration.measure([facts for _, facts in played])


async def _all(runs: Iterable[Callable[[], Awaitable[Played]]]) -> list[Played]:
    """Run all at once and return their results.

    The first run that fails ends the others, each of which cleans up after itself.

    They begin apart: in step they would start their pods at the same moments, and wait for the same cores, as
    runs on clusters of their own do not.
    """
    chosen = list(runs)

    async def begin(number: int, run: Callable[[], Awaitable[Played]]) -> Played:
        await asyncio.sleep(calibration.STEP * number / len(chosen))
        return await run()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(begin(number, run)) for number, run in enumerate(chosen)]
    return [task.result() for task in tasks]


def _named(report_line: ReportLine, who: str) -> Callable[[str], None]:
    return lambda line: report_line(who, line)


def replayed(log: Path) -> Replayed:
    """Decide everything in a decision log anew, its rotated files first. Raises OSError."""
    rotated = sorted(log.parent.glob(f"{log.name}.[0-9]*"), key=lambda p: -int(p.suffix[1:]))
    decisions = different = 0
    try:
        for entry in decision_log.replay(_lines([*rotated, log])):
            decisions += 1
            different += not entry.same
    except decision_log.LogError as error:
        return Replayed(decisions, different, str(error))
    return Replayed(decisions, different)


def _lines(files: Sequence[Path]) -> Iterator[str]:
    """Whole lines only: the operator may be writing the last one."""
    for path in files:
        with path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.endswith("\n"))
