"""`evalstop sim replay`, `record`, `compare` and `formats`: real logs and recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import output
from controller.cli import sim_options as options
from controller.policy.wording import counted

if TYPE_CHECKING:
    from sim.cluster import Cluster
    from sim.experiments.replay import Plan
    from sim.traces import Trace

Files = Annotated[list[Path], typer.Argument(help="Logs of one format, plain or gzipped.")]
Format = Annotated[str, typer.Option(help="Of the files; default: told by what is in them.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip rows that are wrong, and report them.")]
Gpus = Annotated[int | None, typer.Option(help="GPUs of the cluster, any of them for any job.", min=1)]
Nodes = Annotated[str, typer.Option(help="Or nodes with their GPUs: 16x8, or 8,8,4.")]
Policy = Annotated[str, typer.Option(help="Queue policy; default: the log's, else fifo.")]
Rule = Annotated[str, typer.Option(help="Stop rule; default: the log's, else kDeclines:k=3.")]
Curves = Annotated[
    str, typer.Option(help="Draw evals from this family; default: linear, if the log has none.")
]
Seed = Annotated[int, typer.Option(help="For whatever is drawn.", min=0)]


_LARGE = 2000  # jobs; fewer are simulated within about as long as it takes to load rich


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)
    app.command("record")(record)
    app.command("compare")(compare)
    app.command("formats")(formats)


def replay(
    files: Files,
    format: Format = "",
    skip_bad: SkipBad = False,
    gpus: Gpus = None,
    nodes: Nodes = "",
    policy: Policy = "",
    rule: Rule = "",
    curves: Curves = "",
    seed: Seed = 0,
    sets: options.Set = None,
    json: options.Json = False,
    table: options.Table = None,
    html: options.Html = None,
) -> None:
    """What would have happened here: a log, without and with EvalStop."""  # noqa: D401 -- help text
    with options.refusing():
        from sim.experiments.replay import replay as run
        from sim.traces import read

        options.check_outputs(table, html)
        trace = read(files, format=format, skip_bad=skip_bad)
        plan = _plan(trace, _cluster(gpus, nodes), policy, rule, curves, seed, sets)
        with _progress("replay", plan) as report:
            findings = run(trace, plan, report)

        def page() -> None:
            from sim.report.page import write_replay

            assert html is not None
            write_replay(html, findings, plan)

        draw = page if html is not None else None
        options.put_out(findings, as_json=json, table=table, html=draw, plain=True)


def record(
    out: Annotated[Path, typer.Argument(help="File for the run, in our own trace format.")],
    files: Annotated[list[Path] | None, typer.Argument(help="Logs; default: the paper's mix.")] = None,
    format: Format = "",
    skip_bad: SkipBad = False,
    gpus: Gpus = None,
    nodes: Nodes = "",
    policy: Policy = "",
    rule: Rule = "",
    curves: Curves = "",
    seed: Seed = 0,
    sets: options.Set = None,
    evalstop: Annotated[bool, typer.Option(help="Put EvalStop around the queue policy.")] = True,
) -> None:
    """Run a log, or the paper's mix, and write down the workload and what became of every job."""
    with options.refusing():
        from sim.experiments.recording import record as run
        from sim.traces import read

        _check_recording(out, files or [])
        cluster = _cluster(gpus, nodes)
        if files:
            trace = read(files, format=format, skip_bad=skip_bad)
            plan = _plan(trace, cluster, policy, rule, curves, seed, sets)
        else:
            plan = _generated(cluster, policy, rule, curves, seed, sets)
        for note in plan.notes:
            typer.echo(note, err=True)
        with _progress("record", plan) as report:
            result, digest = run(plan, out, stops=evalstop, progress=report)
        typer.echo(
            f"{out}: {counted(len(plan.workload), 'job')} on {counted(plan.cluster.gpus, 'GPU')}, "
            f"{len(result.stopped)} stopped, decisions {digest[:12]}"
        )


def _check_recording(out: Path, files: list[Path]) -> None:
    """Refuse to write over anything but an earlier recording: a log given alone would be taken for OUT.

    Raises:
        ValueError: there is another file of that name, or no folder for it.
    """
    order = "evalstop sim record OUT LOG: the first name is that of the file to write"
    if output.is_read(out, files):
        raise ValueError(f"out: {str(out)!r} is among the logs that are read; {order}")
    if out.is_file() and out.stat().st_size and not _is_recording(out):
        raise ValueError(f"out: {str(out)!r} is there already, and is no recorded run; {order}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"out: {str(out)!r} is not allowed, expected a file in a folder that exists")


def _is_recording(file: Path) -> bool:
    from sim.traces import TraceError, read

    try:
        trace = read([file])
    except TraceError:
        return False
    return all(job.outcome is not None for job in trace.jobs)


def compare(
    a: Annotated[Path, typer.Argument(help="A recorded run.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    json: options.Json = False,
    table: options.Table = None,
) -> None:
    """Two recorded runs, job by job."""
    with options.refusing():
        from sim.experiments.recording import compare_runs
        from sim.traces import read

        options.check_outputs(table, None)
        findings = compare_runs(read([a]), read([b]))
        options.put_out(findings, as_json=json, table=table, plain=True)


def formats() -> None:
    """List the formats that are read, with their columns."""
    from controller.cli.terminal import terminal
    from sim.report.formatting import folded
    from sim.traces.formats import describe

    for line in describe().splitlines():
        typer.echo("\n".join(folded(line, terminal().width, indent="  ")))


@contextmanager
def _progress(title: str, plan: Plan) -> Iterator[Callable[[int, int], None] | None]:
    """As of the experiments, on stderr; none for a log so small that it is done before the bar is loaded."""
    if len(plan.workload) < _LARGE:
        yield None
        return
    from sim.report.terminal import progress

    with progress(title, "run") as report:
        yield report


def _cluster(gpus: int | None, nodes: str) -> Cluster | None:
    from sim.cluster import Cluster

    if not nodes:
        return None if gpus is None else Cluster.slots(gpus)
    if gpus is not None:
        raise ValueError(f"--gpus: {gpus} is not allowed together with --nodes {nodes}")
    sizes: list[int] = []
    for part in nodes.split(","):
        count, times, size = part.partition("x")
        try:
            sizes += [int(size)] * int(count) if times else [int(count)]
        except ValueError:
            raise ValueError(f"--nodes: {part!r} is not allowed, expected 16x8, or 8,8,4") from None
    return Cluster.of_nodes(sizes)


def _plan(
    trace: Trace,
    cluster: Cluster | None,
    policy: str,
    rule: str,
    curves: str,
    seed: int,
    sets: list[str] | None,
) -> Plan:
    from sim import specs
    from sim.experiments.replay import plan, setting_of

    return plan(
        trace,
        setting_of(trace, seed).changed(options.pairs(sets)),
        cluster=cluster,
        policy=specs.policy(policy) if policy else None,
        rule=specs.rule(rule) if rule else None,
        curves=curves,
    )


def _generated(
    cluster: Cluster | None, policy: str, rule: str, curves: str, seed: int, sets: list[str] | None
) -> Plan:
    from dataclasses import replace

    from sim import specs
    from sim.cluster import Cluster
    from sim.experiments.replay import Plan
    from sim.experiments.setting import Setting
    from sim.workloads import generate

    setting = Setting(first_seed=seed).changed(options.pairs(sets))
    if policy:
        setting = replace(setting, base=specs.policy(policy))
    if rule:
        setting = replace(setting, rule=specs.rule(rule))
    if curves:
        setting = setting.but(family=curves)
    population = generate(setting.mix, seed)
    return Plan(population.workload, population.truth, cluster or Cluster.slots(setting.mix.gpus), setting)
