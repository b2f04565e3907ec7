"""`evalstop sim sharing …`: jobs that take turns on a group of training GPUs, in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import sim_options as options

if TYPE_CHECKING:
    from sim.experiments.findings import Findings

# Named here and not read from the registry, so that starting another command does not load the statistics.
COMMANDS = {
    "saving": "GPU-hours that two jobs on one group save, for the paper's three models.",
    "curve": "GPU-hours and slow-down for 1 to 5 jobs on a group; other orders of turns.",
    "arms": "Shared, split, split on half the GPUs, colocated; synchronous and with a step of lag.",
}

app = typer.Typer(
    name="sharing",
    help="Simulate shared worker groups: the production policy of turns and placement.",
    no_args_is_help=True,
)

Seeds = Annotated[int, typer.Option(help="Runs.", min=1)]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the figures (.svg, .png or .pdf).")]


def _check_outputs(table: Path | None, plot: Path | None) -> None:
    options.check_outputs(table, plot)
    if plot is not None:
        from sim.sharing.plot import check_path

        check_path(plot)


def _put_out(findings: Findings, json: bool, table: Path | None, plot: Path | None) -> None:
    if plot is not None:
        from sim.sharing.plot import draw

        draw(findings, plot)
    options.put_out(findings, as_json=json, table=table)


def _comparison(name: str) -> Callable[..., None]:
    def run(
        seeds: Seeds = 20,
        workers: options.Workers = None,
        sets: options.NumberSet = None,
        json: options.Json = False,
        table: options.Table = None,
        plot: Plot = None,
    ) -> None:
        with options.refusing():
            _check_outputs(table, plot)
            from sim.experiments.executor import Processes
            from sim.report.terminal import progress
            from sim.sharing.registry import COMPARISONS
            from sim.sharing.setting import SharingSetting, changed

            setting = changed(SharingSetting(), options.pairs(sets))
            with progress(name, "run") as bar:
                findings = COMPARISONS[name](setting, seeds, Processes(workers), bar)
            _put_out(findings, json, table, plot)

    return run


for _name, _text in COMMANDS.items():
    app.command(_name, help=_text)(_comparison(_name))


@app.command("replay")
def replay(
    seeds: Seeds = 3,
    workers: options.Workers = None,
    sets: options.NumberSet = None,
    json: options.Json = False,
    table: options.Table = None,
    plot: Plot = None,
) -> None:
    """Place 1,000 jobs by each placement at a load of 2.5, against Isolated with backfill."""
    with options.refusing():
        _check_outputs(table, plot)
        from sim.experiments.executor import Processes
        from sim.report.terminal import progress
        from sim.sharing.replay import replay as play
        from sim.sharing.setting import changed
        from sim.sharing.trace import ReplaySetting

        setting = changed(ReplaySetting(), options.pairs(sets))
        with progress("replay", "replay") as bar:
            findings = play(setting, seeds, Processes(workers), bar)
        _put_out(findings, json, table, plot)


@app.command("advise")
def advise(
    file: Annotated[Path, typer.Argument(help="Measured steps: a JSON line for each job that runs alone.")],
    max_slowdown: Annotated[
        int, typer.Option(help="Percent by which a job's steps may take longer.", min=0, max=1000)
    ] = 10,
    max_duty: Annotated[int, typer.Option(help="Percent that duties may sum up to.", min=1, max=100)] = 80,
    json: options.Json = False,
    table: options.Table = None,
    plot: Plot = None,
) -> None:
    """Say what sharing would bring to your own jobs, and whether fewer GPUs would do."""
    with options.refusing():
        _check_outputs(table, plot)
        from sim.sharing.advise import advise as say

        _put_out(say(file, max_slowdown, max_duty), json, table, plot)
