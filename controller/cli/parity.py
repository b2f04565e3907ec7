"""`evalstop parity TRACE`: a trace in the simulator and on a cluster, and why where they differ."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags
from controller.cli.connection import Connection
from controller.cli.failure import Exit, Failure, command, of_api
from controller.frozen import dataclass

if TYPE_CHECKING:
    from controller.parity.calibration import Calibration
    from controller.parity.compressed_trace import TraceOnCluster
    from controller.parity.parity_run import Grounds, ReportLine
    from controller.parity.report import Report
    from controller.policy.types import PolicySpec

FIGURES = "parity.json"
PATIENT = Connection(timeout=30.0)
POLICIES = ("fifo", "srtf", "las")
_PARITY = "Run"
_OUT = "Output"

Log = Annotated[Path, typer.Argument(help="Any trace that `evalstop sim replay` reads (docs/use/traces.md).")]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help=f"Queue policy, in the trace's own time; again for more. Default: {', '.join(POLICIES)}.",
        rich_help_panel=_PARITY,
    ),
]
Rule = Annotated[
    str,
    typer.Option(
        "--rule", help="Stop rule. Default: the trace's, else kDeclines:k=3.", rich_help_panel=_PARITY
    ),
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes", help="Nodes with their GPUs, as in 4x8. Default: the trace's.", rich_help_panel=_PARITY
    ),
]
Minutes = Annotated[
    float,
    typer.Option(
        "--minutes",
        min=0.1,
        help="Compress the trace so that all GPUs, always busy, would need so long.",
        rich_help_panel=_PARITY,
    ),
]
Speed = Annotated[
    float | None,
    typer.Option(
        "--speed", min=1e-6, help="Or: seconds of the trace that pass in one.", rich_help_panel=_PARITY
    ),
]
Waves = Annotated[
    int,
    typer.Option(
        "--waves", min=1, max=20, help="Of the calibration run, 130 s each.", rich_help_panel=_PARITY
    ),
]
Overheads = Annotated[
    Path | None,
    typer.Option(
        "--overheads",
        help="No calibration run: the overheads of this parity.json, of the same cluster.",
        rich_help_panel=_PARITY,
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes-of",
        metavar="LABEL=VALUE",
        help="Label of the cluster's nodes to use, with as many GPUs as --nodes says. Given again for other "
        "nodes like them: as many policies are played at once.",
        rich_help_panel="Cluster",
    ),
]
Image = Annotated[
    str,
    typer.Option("--image", help="Image of the pods: Python and this repository.", rich_help_panel="Cluster"),
]
StorageClass = Annotated[
    str,
    typer.Option(
        "--storage-class",
        help="Of two volumes that many pods mount. Default: the cluster's.",
        rich_help_panel="Cluster",
    ),
]
PullSecret = Annotated[
    str,
    typer.Option(
        "--image-pull-secret",
        metavar="NAMESPACE/NAME",
        help="Secret that the image is pulled with; it is copied to the namespace that is made.",
        rich_help_panel="Cluster",
    ),
]
SchedulerName = Annotated[
    str,
    typer.Option(
        "--scheduler-name",
        help="A kube-scheduler that asks the extender. Without it members go to other nodes than the plan's, "
        "which the simulator does not know.",
        rich_help_panel="Cluster",
    ),
]
DecisionLog = Annotated[
    Path | None,
    typer.Option(
        "--decision-log",
        help="The operator's decision log, where this machine can read it: it is decided anew.",
        rich_help_panel="Cluster",
    ),
]
AtOnce = Annotated[
    bool,
    typer.Option(
        "--at-once", help="On a local cluster: play all policies at the same time.", rich_help_panel=_PARITY
    ),
]
Out = Annotated[
    Path, typer.Option("--out", help="Folder for page, figures and decision log.", rich_help_panel=_OUT)
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        help="Also write the report into this file, between its lines <!-- parity --> and <!-- /parity -->.",
        rich_help_panel=_OUT,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="One JSON document on stdout; nothing else goes there.", rich_help_panel=_OUT
    ),
]
Recorded = Annotated[
    bool,
    typer.Option("--recorded", help="Run nothing: TRACE is a parity.json of before.", rich_help_panel=_OUT),
]


@command
@flags.connects
def parity(
    trace: Log,
    policy: Policy = None,
    rule: Rule = "",
    nodes: Nodes = "",
    minutes: Minutes = 10.0,
    speed: Speed = None,
    at_once: AtOnce = False,
    waves: Waves = 2,
    overheads: Overheads = None,
    nodes_of: At = None,
    image: Image = "",
    image_pull_secret: PullSecret = "",
    storage_class: StorageClass = "",
    scheduler_name: SchedulerName = "",
    decision_log: DecisionLog = None,
    connection: Connection = PATIENT,
    out: Out = Path("build/parity"),
    markdown: Markdown = None,
    as_json: AsJson = False,
    recorded: Recorded = False,
) -> None:
    """Run a TRACE in the simulator and, time-compressed, on a cluster; say why where they differ.

    On the cluster real pods play the runs of the trace: they take as long, report its evals, write
    checkpoints, give way and go on. Without --kubeconfig and --context it starts a local cluster of its own.
    """
    with _refusing():
        if recorded:
            report = _read(trace)
        else:
            from sim import specs

            trial = _trial(trace, nodes, rule, speed, minutes)
            chosen = [(text, specs.policy(text)) for text in policy or POLICIES]
            remote = bool(connection.kubeconfig or connection.context)
            there = {
                "--nodes-of": nodes_of,
                "--image": image,
                "--image-pull-secret": image_pull_secret,
                "--storage-class": storage_class,
                "--scheduler-name": scheduler_name,
                "--decision-log": decision_log,
            }
            _check(trial, [spec for _, spec in chosen], there, {"--at-once": at_once}, remote)
            out.mkdir(parents=True, exist_ok=True)
            known = None if overheads is None else _read(overheads).calibration
            asked = _Asked(trial, chosen, _about(trace, trial), waves, known, connection.timeout, out)
            if remote:
                secret = _secret(image_pull_secret)
                grounds = _grounds(_pairs(nodes_of), image, storage_class, scheduler_name, secret)
                report = _there(asked, grounds, connection)
                report = _with_log(report, decision_log)
            else:
                report = _here(asked, len(chosen) if at_once else 1)
        _write(report, out, markdown)
    typer.echo(json.dumps(report.summary(), allow_nan=False) if as_json else _text(report, out))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request to replay. ``policies``: as written, and read."""

    trial: TraceOnCluster
    policies: list[tuple[str, PolicySpec]]
    about: dict[str, Any]
    waves: int
    known: Calibration | None
    timeout: float
    out: Path


def _trial(file: Path, nodes: str, rule: str, speed: float | None, minutes: float) -> TraceOnCluster:
    from controller.cli.sim_traces import _cluster
    from controller.parity.compressed_trace import compress_trace
    from sim import specs
    from sim.traces import read

    found = read([file])
    return compress_trace(
        found,
        cluster=_cluster(None, nodes),
        rule=specs.rule(rule) if rule else None,
        speed=speed,
        minutes=minutes,
    )


def _check(
    trial: TraceOnCluster,
    policies: Sequence[PolicySpec],
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    remote: bool,
) -> None:
    """Refuse before anything is started what could not be played, or simulated, or would not be heeded.

    Args:
        trial: what is to be played.
        policies: queue policies to play it under.
        there: options about a given cluster, with their values.
        here: options about the local cluster, with their values.
        remote: whether a cluster is given.
    """
    from controller.parity.compressed_trace import compressed
    from controller.parity.simulated import simulated
    from sim.latencies import Latencies

    if remote and not there["--nodes-of"]:
        raise ValueError("--nodes-of: is missing, expected the label of the nodes to use, LABEL=VALUE")
    for option, given in (here if remote else there).items():
        if given and remote:
            raise ValueError(
                f"{option}: is about the local cluster, expected no --kubeconfig and no --context"
            )
        if given:
            raise ValueError(f"{option}: is about a given cluster, expected --kubeconfig or --context too")
    _pairs(there["--nodes-of"])
    _secret(there["--image-pull-secret"])
    for policy in policies:
        simulated(trial, compressed(policy, trial.speed), Latencies())


def _pairs(nodes_of: list[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in nodes_of or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"--nodes-of: {text!r} is not allowed, expected LABEL=VALUE")
        pairs.append((key, value))
    return tuple(pairs)


def _secret(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"--image-pull-secret: {text!r} is not allowed, expected NAMESPACE/NAME")
    return namespace, name


def _about(file: Path, trial: TraceOnCluster) -> dict[str, Any]:
    from sim.specs import rule_text

    sizes = [gpus for _, gpus in trial.cluster.nodes]
    shape = f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes))
    return {
        "trace": file.name,
        "jobs": len(trial.workload),
        "gpus": trial.cluster.gpus,
        "nodes": shape,
        "speed": trial.speed,
        "load": trial.load,
        "rule": rule_text(trial.rule),
        "command": shlex.join(["evalstop", *sys.argv[1:]]),
        "notes": list(trial.notes),
    }


def _here(asked: _Asked, sets: int) -> Report:
    """On a local cluster that is there for this alone; its decision log is decided anew."""
    from controller.parity.local_cluster import NoLocalCluster, start_local_cluster

    sizes = [gpus for _, gpus in asked.trial.cluster.nodes]
    kept = asked.out / "decisions.jsonl"
    with _progress_shown() as report_line:
        try:
            with start_local_cluster(
                asked.out / "cluster", sizes, sets, lambda line: report_line("cluster", line)
            ) as cluster:
                grounds = _grounds(cluster.selectors, scheduler=cluster.scheduler)
                report = _played(
                    asked, grounds, Connection(str(cluster.kubeconfig), timeout=asked.timeout), report_line
                )
                _keep(cluster.decision_log, kept)
        except NoLocalCluster as error:
            raise Failure(
                Exit.UNREACHABLE, str(error), "evalstop parity TRACE --kubeconfig FILE --nodes-of LABEL=VALUE"
            ) from None
        report_line("decision log", "is being decided anew")
        return _with_log(report, kept)


def _there(asked: _Asked, grounds: Grounds, connection: Connection) -> Report:
    """On a cluster with an operator, whose nodes carry the labels of these grounds."""
    with _progress_shown() as report_line:
        return _played(asked, grounds, connection, report_line)


def _grounds(
    selectors: tuple[tuple[str, str], ...],
    image: str = "",
    storage_class: str = "",
    scheduler: str = "",
    pull_secret: tuple[str, str] | None = None,
) -> Grounds:
    from controller.parity.parity_run import Grounds

    return Grounds(selectors, image, storage_class, scheduler, pull_secret)


def _played(asked: _Asked, grounds: Grounds, connection: Connection, report_line: ReportLine) -> Report:
    from controller.cli import cluster
    from controller.kube.errors import ApiError
    from controller.parity.calibration import Skewed
    from controller.parity.cluster_run import Failed
    from controller.parity.parity_run import conduct

    def keep(so_far: Report) -> None:
        _keep_figures(so_far, asked.out)

    async def work(api: cluster.CallerApi) -> Report:
        try:
            return await conduct(
                api,
                asked.trial,
                asked.policies,
                grounds,
                asked.about,
                report_line,
                asked.waves,
                asked.known,
                keep,
            )
        except ExceptionGroup as group:  # of what was played at once
            first = _first(group)
            if isinstance(first, ApiError):
                raise of_api(first, "play the trace") from group
            if isinstance(first, Failed):
                raise Failure(Exit.REFUSED, str(first), first.next_step) from group
            raise
        except Skewed as error:
            raise Failure(Exit.REFUSED, str(error), _SYNCHRONISE) from None

    return cluster.run(work, connection)


def _keep_figures(report: Report, out: Path) -> None:
    """Everything so far: what comes after may fail, and took long."""
    (out / FIGURES).write_text(json.dumps(report.document(), allow_nan=False) + "\n", encoding="utf-8")


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _keep(log: Path, copy: Path) -> None:
    """Copy the decision log and its rotated files to a place beside the page."""
    import shutil

    for old in copy.parent.glob(f"{copy.name}*"):
        old.unlink()
    for path in log.parent.glob(f"{log.name}*"):
        shutil.copyfile(path, copy.with_name(path.name.replace(log.name, copy.name)))


def _with_log(report: Report, log: Path | None) -> Report:
    from dataclasses import replace

    from controller.parity.parity_run import replayed

    return report if log is None else replace(report, replayed=replayed(log))


def _read(file: Path) -> Report:
    from controller.parity.report import of_document

    try:
        return of_document(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _write(report: Report, out: Path, into: Path | None) -> None:
    from controller.parity import page

    out.mkdir(parents=True, exist_ok=True)
    _keep_figures(report, out)
    page.write_page(out / "parity.html", report)
    if into is not None:
        page.write_markdown(into, report)


def _text(report: Report, out: Path) -> str:
    from controller.parity.page import plain

    return f"{plain(report)}\npage: {out / 'parity.html'}\nfigures: {out / FIGURES}"


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors about a trace, a policy or a file that the user gave into a `Failure` of usage."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise Failure(
            Exit.USAGE, str(error), "evalstop parity --help; docs/understand/parity.md, docs/use/traces.md"
        ) from None


@contextmanager
def _progress_shown() -> Iterator[Callable[[str, str], None]]:
    """Show the progress of both sides on stderr: in place on a terminal, else now and then."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True)
    newest: dict[str, str] = {}
    if console.is_terminal:

        def drawn() -> Table:
            table = Table.grid(padding=(0, 2))
            for who, line in newest.items():
                table.add_row(who, line)
            return table

        with Live(drawn(), console=console, refresh_per_second=4, transient=True) as live:

            def show(who: str, line: str) -> None:
                newest[who] = line
                live.update(drawn())

            yield show
        return
    printed_at: dict[str, float] = {}

    def report_line(who: str, line: str) -> None:
        if newest.get(who) == line or time.monotonic() - printed_at.get(who, float("-inf")) < _SELDOM_S:
            return
        newest[who], printed_at[who] = line, time.monotonic()
        typer.echo(f"{who}: {line}", err=True)

    yield report_line


_SELDOM_S = 15.0
_SYNCHRONISE = (
    "let a time service set the clocks of these machines (timedatectl tells of each whether one does), then "
    "run the command again"
)
