"""`evalstop what-if`: another rule, queue policy or number of nodes, on one's own history."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import complete, flags, history_input
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.terminal import terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from sim.cluster import Cluster
    from sim.latencies import Latencies
    from sim.traces.trace import Trace
    from sim.what_if.arms import Alternative
    from sim.what_if.compare import Comparison, Window

NOTHING = "none"
_LARGE = 1000  # jobs from which on progress is shown
_SPANS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_CHANGE, _TIME, _STUDY = "What is other", "When", "How it is judged"

Rule = Annotated[
    str,
    typer.Option(
        help="Stop rule for all jobs, NAME:param=value,…; modifiers follow after a +, guardrails "
        "(METRIC=RULE) after a |. none: nobody is stopped.",
        autocompletion=complete.rules,
        rich_help_panel=_CHANGE,
    ),
]
Policy = Annotated[
    str, typer.Option(help="Queue policy, NAME or NAME:param=value,….", rich_help_panel=_CHANGE)
]
Nodes = Annotated[
    str,
    typer.Option(
        help="+2 (-2): more (fewer) nodes of the commonest size; +2x8: of 8 GPUs; 16x8 or 8,8,4: these.",
        rich_help_panel=_CHANGE,
    ),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="NAMESPACE,…=GUARANTEED[:LIMIT]",
        help="GPUs that namespaces are guaranteed, and may have at most; again for others. none: no quotas.",
        rich_help_panel=_CHANGE,
    ),
]
Enforce = Annotated[
    bool,
    typer.Option("--enforce", help="Jobs in Shadow and Off are stopped, too.", rich_help_panel=_CHANGE),
]
From = Annotated[
    str,
    typer.Option(
        "--from", help="Jobs submitted from then on: 2026-10-01, with T12:30.", rich_help_panel=_TIME
    ),
]
To = Annotated[str, typer.Option("--to", help="Jobs submitted before then.", rich_help_panel=_TIME)]
Last = Annotated[
    str, typer.Option("--last", help="Jobs of the history's last 30d, 2w, 12h.", rich_help_panel=_TIME)
]
Future = Annotated[
    str,
    typer.Option(
        help="What runs that were stopped would have done: bounds, nearest or recorded.",
        rich_help_panel=_STUDY,
    ),
]
Draws = Annotated[int, typer.Option(help="Draws of nearest.", min=2, max=1000, rich_help_panel=_STUDY)]
Seed = Annotated[int, typer.Option(help="For draws and resamples.", min=0, rich_help_panel=_STUDY)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A delay instead of the history's, as restart_cost=60; `evalstop sim settings` lists them.",
        rich_help_panel=_STUDY,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; nothing else goes there.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Where to draw (.svg, .png, .pdf). Default: build/what-if.svg."),
]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Draw nothing.")]


@command
@flags.connects
def what_if(
    files: history_input.Files = None,
    rule: Rule = "",
    policy: Policy = "",
    nodes: Nodes = "",
    quota: Quotas = None,
    enforce: Enforce = False,
    start: From = "",
    end: To = "",
    last: Last = "",
    future: Future = "bounds",
    draws: Draws = 20,
    seed: Seed = 0,
    sets: Set = None,
    json: Json = False,
    plot: Plot = None,
    no_plot: NoPlot = False,
    cluster: history_input.WithCluster = False,
    pool: history_input.PoolName = "",
    no_rotated: history_input.NotRotated = False,
    namespace: history_input.OfNamespace = "",
    connection: Connection = USUAL,
) -> None:
    """What another --rule, --policy, --quota or number of --nodes would have done on your own history.

    The history is replayed as it was and with the change, and both are compared job by job.
    """  # noqa: D401 -- help text
    try:
        for option, given in (("--from", start), ("--to", end)):
            _moment(option, given)
    except ValueError as error:
        raise Failure(Exit.USAGE, str(error), "evalstop what-if --help; docs/use/what-if.md") from None
    if not (rule or policy or nodes or quota or enforce):
        raise Failure(
            Exit.USAGE,
            "nothing is other than it was",
            "give --rule, --policy, --nodes, --quota or --enforce, as in evalstop what-if LOG --nodes +2; "
            "--set alone is no change, it holds for both sides",
        )
    trace = history_input.load(
        files or [],
        cluster=cluster,
        pool=pool,
        rotated=not no_rotated,
        connection=connection,
        namespace=namespace,
    )
    from sim.what_if.compare import compare

    try:
        other = _alternative(trace, rule, policy, nodes, enforce, quota or [])
        window = _window(trace, start, end, last)
        delays = _latencies(trace, sets)
        with _progress(len(trace.jobs)) as report:
            made = compare(
                trace,
                other,
                window=window,
                future=future,
                draws=draws,
                seed=seed,
                latencies=delays,
                progress=report,
            )
    except ValueError as error:
        raise Failure(Exit.USAGE, str(error), "evalstop what-if --help; docs/use/what-if.md") from None
    made.notes += trace.notes
    drawn = None if no_plot else _draw(made, plot)
    if json:
        document = {**made.document(), "plot": str(drawn) if drawn else None}
        typer.echo(json_module.dumps(document, allow_nan=False))
        return
    from sim.what_if.text import text

    typer.echo(text(made, terminal().width), nl=False)
    if drawn is not None:
        typer.echo(f"drawn: {drawn}", err=True)


def _alternative(
    trace: Trace, rule: str, policy: str, nodes: str, enforce: bool, quota: list[str]
) -> Alternative:
    from sim import quotas, specs
    from sim.what_if.arms import Alternative

    stops = rule != NOTHING
    cluster = other_nodes(trace.cluster, nodes) if nodes else None
    if trace.cluster is None and cluster is not None:
        trace.cluster, cluster = cluster, None
        trace.notes.insert(0, "The history names no nodes: those of --nodes are taken for both sides.")
    return Alternative(
        rule=specs.rule(rule) if rule and stops else None,
        policy=specs.policy(policy) if policy else None,
        cluster=cluster,
        stops=stops,
        enforce=enforce,
        quotas=(() if quota == [NOTHING] else quotas.checked(map(quotas.quota, quota))) if quota else None,
    )


@contextmanager
def _progress(jobs: int) -> Iterator[Callable[[int, int], None] | None]:
    """On stderr; none for a history so small that it is done before the bar is loaded."""
    if jobs < _LARGE:
        yield None
        return
    from sim.report.terminal import progress

    with progress("what-if", "run") as report:
        yield report


def other_nodes(there: Cluster | None, text: str) -> Cluster:
    """Return the cluster that ``--nodes`` asks for.

    Raises:
        ValueError: it is of no such form, or there would be no node left; the message names it.
    """
    from sim.cluster import Cluster

    change = re.fullmatch(r"([+-])(\d{1,4})(?:x(\d{1,4}))?", text.strip())
    if change is None:
        sizes: list[int] = []
        for part in text.split(","):
            one = re.fullmatch(r"(?:(\d{1,5})x)?(\d{1,4})", part.strip())
            if one is None:
                raise ValueError(f"--nodes: {part!r} is not allowed, expected +2, -2, +2x8, 16x8 or 8,8,4")
            sizes += [int(one[2])] * int(one[1] or 1)
        return Cluster.of_nodes(sizes)
    if there is None or not there.nodes:
        raise ValueError(f"--nodes: {text!r} is not allowed, for the history names no nodes, expected 16x8")
    present = [gpus for _, gpus in there.nodes]
    size = int(change[3]) if change[3] else max(set(present), key=lambda gpus: (present.count(gpus), gpus))
    count = int(change[2])
    if change[1] == "+":
        return Cluster.of_nodes([*present, *[size] * count])
    if present.count(size) < count or len(present) == count:
        raise ValueError(
            f"--nodes: {text!r} is not allowed, expected fewer than are there: of "
            f"{counted(len(present), 'node')} {present.count(size)} have {counted(size, 'GPU')}, and one "
            "node must stay"
        )
    for _ in range(count):
        present.remove(size)
    return Cluster.of_nodes(present)


def _window(trace: Trace, start: str, end: str, last: str) -> Window:
    from sim.what_if.compare import Window

    if last and (start or end):
        raise ValueError("--last: is not allowed together with --from or --to")
    if last:
        span = re.fullmatch(r"(\d{1,6})([mhdw])", last.strip())
        if span is None:
            raise ValueError(f"--last: {last!r} is not allowed, expected 30d, 2w, 12h or 90m")
        until = trace.history.get("to", max(job.submitted for job in trace.jobs))
        return Window(float(until) - int(span[1]) * _SPANS[span[2]], None)
    window = Window(_moment("--from", start), _moment("--to", end))
    if window.start is not None and window.end is not None and window.start >= window.end:
        raise ValueError(f"--to: {end!r} is not allowed, expected a time after --from {start}")
    return window


def _moment(option: str, text: str) -> float | None:
    """Return seconds on the history's clock; without a time zone UTC is meant, a bare number is seconds."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        expected = "2026-10-01, 2026-10-01T12:30 (UTC) or 2026-10-01T12:30+02:00"
        raise ValueError(f"{option}: {text!r} is not allowed, expected {expected}") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _latencies(trace: Trace, sets: list[str] | None) -> Latencies | None:
    if not sets:
        return None
    from dataclasses import replace

    from controller.cli.sim_options import pairs
    from controller.policy.params import ParamError, describe
    from sim.latencies import PREEMPTION, Latencies
    from sim.specs import number

    known = {info.name: info for info in describe(Latencies)}
    given = pairs(sets)
    for name, text in given.items():
        if name not in known:
            raise ParamError(f"--set {name}", text, "one of " + ", ".join(known))
    base = trace.latencies or Latencies(restart_cost=PREEMPTION)
    return replace(base, **{name: number(known[name], text, name) for name, text in given.items()})


def _draw(made: Comparison, plot: Path | None) -> Path:
    from sim.what_if.picture import draw

    path = plot or Path("build") / "what-if.svg"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(path, made)
    except (OSError, ValueError) as error:
        raise Failure(
            Exit.USAGE, f"--plot: cannot draw {path}: {error}", "name a .svg, .png or .pdf file, or --no-plot"
        ) from None
    return path
