"""`evalstop sim headline`, `bases`, `competitors`, the sweeps, `grid`, `report` and `settings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import sim_options as options

if TYPE_CHECKING:
    from sim.experiments.executor import Executor
    from sim.experiments.findings import Findings
    from sim.experiments.setting import Setting

Seeds = Annotated[int | None, typer.Option(help="Paired runs; default: the documented setting's.", min=1)]
FirstSeed = Annotated[int, typer.Option("--first-seed", help="Seed of the first run.", min=0)]

# Named here and not read from the registry, so that starting another command does not load the statistics.
COMMANDS = {
    "headline": "Precision, recall, false alarms, JCT and waste, against the paper's.",
    "bases": "EvalStop on every base policy, and on the one given if it has parameters.",
    "competitors": "Other stop rules on the same base.",
    "standard-errors": "Rules that ask for the noise of evals, with and without standard errors.",
    "noise": "Over the noise of evals.",
    "base-rate": "Over the share of RLHF runs that hack.",
    "k": "Over the number of declines in a row that stop a run.",
    "eval-interval": "Over the share of training between evals.",
    "load": "Over the GPU-time that arrives, of what there is.",
    "families": "Over shapes of RLHF curves, such as Gao's laws.",
    "grid": "The headline over depth of the decline, eval interval and k.",
}


def register(app: typer.Typer) -> None:
    for name, text in COMMANDS.items():
        app.command(name, help=text)(_experiment(name))
    app.command("report")(report)
    app.command("settings")(settings)


def _experiment(name: str) -> Callable[..., None]:
    def run(
        seeds: Seeds = None,
        first_seed: FirstSeed = 0,
        base: options.Base = "srtfEst",
        rule: options.Rule = "kDeclines:k=3",
        sets: options.Set = None,
        workers: options.Workers = None,
        json: options.Json = False,
        table: options.Table = None,
        html: options.Html = None,
    ) -> None:
        with options.refusing():
            options.check_outputs(table, html)
            setting = _setting(seeds, first_seed, base, rule, sets)
            findings = _perform(name, setting, _executor(workers))

            def page() -> None:
                from sim.report.page import write_page

                assert html is not None
                write_page(html, [findings], setting)

            options.put_out(findings, as_json=json, table=table, html=page if html is not None else None)

    return run


def report(
    folder: Annotated[Path, typer.Argument(help="Folder for index.html, figures.csv and findings.json.")],
    seeds: Seeds = None,
    first_seed: FirstSeed = 0,
    base: options.Base = "srtfEst",
    rule: options.Rule = "kDeclines:k=3",
    sets: options.Set = None,
    workers: options.Workers = None,
    fill: Annotated[
        Path | None, typer.Option(help="Fill in the tables of this Markdown page, too.", exists=True)
    ] = None,
) -> None:
    """Every experiment on one page with plots, and all figures as files."""
    import json

    with options.refusing():
        from sim.report.files import write_table
        from sim.report.page import write_page

        setting = _setting(seeds, first_seed, base, rule, sets)
        folder.mkdir(parents=True, exist_ok=True)
        executor = _executor(workers)
        found = [_perform(name, setting, executor) for name in COMMANDS]
        write_page(folder / "index.html", found, setting)
        write_table(folder / "figures.csv", found)
        documents = {findings.name: findings.document() for findings in found}
        (folder / "findings.json").write_text(json.dumps(documents, allow_nan=False, indent=1) + "\n")
        if fill is not None:
            from sim.report import reproduction

            page = reproduction.fill(fill.read_text(), {findings.name: findings for findings in found})
            fill.write_text(page)
        typer.echo(f"{folder / 'index.html'}")


def settings() -> None:
    """List every setting with its unit, default, bounds and meaning."""
    from rich.console import Console
    from rich.table import Table

    from controller.policy.params import describe
    from sim.experiments.setting import Setting

    table = Table("setting", "default", "unit", "allowed", "meaning")
    setting = Setting()
    for part in (setting.mix, setting.latencies):
        for info in describe(type(part)):
            allowed = ", ".join(info.bounds.choices) or str(info.bounds)
            table.add_row(info.name, f"{getattr(part, info.name)}", info.unit, allowed, info.doc)
    Console().print(table)


def _setting(seeds: int | None, first_seed: int, base: str, rule: str, sets: list[str] | None) -> Setting:
    from dataclasses import replace

    from sim import specs
    from sim.experiments.setting import Setting

    setting = Setting(base=specs.policy(base), rule=specs.rule(rule), first_seed=first_seed)
    if seeds is not None:
        setting = replace(setting, seeds=seeds)
    return setting.changed(options.pairs(sets))


def _executor(workers: int | None) -> Executor:
    from sim.experiments.executor import Processes

    return Processes(workers)


def _perform(name: str, setting: Setting, executor: Executor) -> Findings:
    from sim.experiments.registry import run_experiment
    from sim.report.terminal import progress

    with progress(name) as bar:
        return run_experiment(name, setting, executor, bar)
