"""`evalstop sim rollout …`: how many rollout actors a step gets, in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import sim_options as options

# Named here and not read from the registry, so that starting another command does not load the statistics.
COMMANDS = {
    "headline": "The paper's scheme and ours against 3 static actors; what must lose.",
    "ablation": "What each part of ours brings, and how far the count is from hindsight's.",
    "grid": "Twelve settings: PPO and GRPO, three length profiles, two models.",
    "shared": "Two jobs on shared actors, against three of their own each.",
    "starts": "What slow starts cost, and when idle actors are better kept.",
}

app = typer.Typer(
    name="rollout",
    help="Simulate elastic rollouts: the production planner, carried out by a generation engine.",
    no_args_is_help=True,
)

Seeds = Annotated[int, typer.Option(help="Paired runs.", min=1)]


def _comparison(name: str) -> Callable[..., None]:
    def run(
        seeds: Seeds = 20,
        workers: options.Workers = None,
        sets: options.NumberSet = None,
        json: options.Json = False,
        table: options.Table = None,
    ) -> None:
        with options.refusing():
            options.check_outputs(table, None)
            from sim.experiments.executor import Processes
            from sim.report.terminal import progress
            from sim.rollout.registry import COMPARISONS, changed
            from sim.rollout.setting import RolloutSetting

            setting = changed(RolloutSetting(), options.pairs(sets))
            with progress(name, "run") as bar:
                findings = COMPARISONS[name](setting, seeds, Processes(workers), bar)
            options.put_out(findings, as_json=json, table=table)

    return run


for _name, _text in COMMANDS.items():
    app.command(_name, help=_text)(_comparison(_name))


@app.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="Recorded steps: the example trainer's --rollouts-record.")],
    json: options.Json = False,
    table: options.Table = None,
) -> None:
    """Play recorded steps of real actors again, and say how far the engine's times are from the clock's."""
    with options.refusing():
        options.check_outputs(table, None)
        from sim.rollout.replay import replay as play

        options.put_out(play(file), as_json=json, table=table)
