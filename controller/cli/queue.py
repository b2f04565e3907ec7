"""`evalstop queue POOL`: who waits in a pool, in which place and why, as the operator sees it now.

The operator serves this on its pod's loopback address; the command reaches it through
``kubectl port-forward``, with the rights of the kubeconfig in use, or by ``--url``. Without port-forward
permission the command falls back to the RLHFJobs' statuses, which have no queue position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from controller import names
from controller.cli import complete, flags, formatting, output, queue_positions
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.table import Column, render
from controller.cli.terminal import terminal

JobName = Annotated[
    str,
    typer.Option(
        "--job", help="Only this RLHFJob, by its name or namespace/name.", autocompletion=complete.jobs
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Only RLHFJobs of this namespace. Default: all; for --job NAME: the namespace of the current "
        "context.",
        autocompletion=complete.namespaces,
        rich_help_panel="Cluster",
    ),
]
Url = Annotated[
    str, typer.Option("--url", help="Where the operator's queue API is, instead of a port-forward.")
]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Namespace of the operator's Deployment.")
]
Port = Annotated[int, typer.Option("--operator-port", help="The operator's EVALSTOP_QUEUE_PORT.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=queue_positions.MOST, help="How many to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Keep watching and print the queue again when it changes.")
]


@command
@flags.connects
def queue(
    pool: flags.Pool,
    job: JobName = "",
    namespace: Namespace = "",
    url: Url = "",
    operator_namespace: OperatorNamespace = names.NAMESPACE,
    operator_port: Port = names.QUEUE_API_PORT,
    limit: Limit = 50,
    watch: Watch = False,
    form: flags.Page = Document.TEXT,
    as_json: AsJson = False,
    connection: Connection = USUAL,
) -> None:
    """Show who waits in a POOL, in which place, why, for how long, and what the policy ranks them by."""
    operator = queue_positions.Operator(url, operator_namespace, operator_port, connection)
    if job:
        job = _key(job, namespace, connection)
    wanted = queue_positions.Wanted(pool, job, namespace, limit)
    show = _printer(wanted, Document.JSON if as_json else form, watch)
    operator.show(
        wanted,
        watch,
        show,
        lambda failure: queue_positions.by_status(failure, wanted, connection, watch, show),
    )


def _key(job: str, namespace: str, connection: Connection) -> str:
    """``namespace/name`` of a job that was given so, or by its plain name.

    Raises:
        Failure: it is neither; or there is no kubeconfig to say in which namespace a plain name is.
    """
    from controller.cli import cluster

    parts = job.split("/")
    if len(parts) > 2 or not all(parts):
        raise Failure(
            Exit.USAGE,
            f"--job: {job!r} is not allowed, expected NAME or NAMESPACE/NAME",
            "give --job NAME -n NAMESPACE, or --job NAMESPACE/NAME",
        )
    if len(parts) == 2:
        return job

    async def here(api: cluster.CallerApi) -> str:
        return api.namespace

    return f"{namespace or cluster.run(here, connection)}/{job}"


def _printer(wanted: queue_positions.Wanted, form: Document, watch: bool) -> Callable[[Any], None]:
    """Return a function that prints an answer unless it equals the previous one, ignoring waiting times.

    An answer is the queue API's JSON: `Queue`, or for one job `QueuePosition`, of controller/web/positions.py
    (docs/operate/queueing.md).
    """
    before: list[Any] = []

    def show(answer: Any) -> None:
        items = [answer] if wanted.job else answer["items"]
        state = [
            [item[name] for name in ("job", "state", "position", "reason", "message", "overdue")]
            for item in items
        ] + ([] if wanted.job else [answer["total"], answer["policy"]])
        if before == [state]:
            return
        again = bool(before)
        before[:] = [state]
        if output.document(answer, form, stream=watch):
            return
        if again:
            typer.echo()
        _show(items)
        if wanted.job:
            return
        shown = len(items)
        scope = f" of namespace {wanted.namespace}" if wanted.namespace else ""
        more = f", the first {shown} shown" if shown < answer["total"] else ""
        if (seen := answer.get("ofNamespace")) is not None:
            scope = f" that you may see, those of namespace {seen},"
        policy = f" ({answer['policy']})" if answer["policy"] != queue_positions.UNKNOWN else ""
        typer.echo(f"{answer['total']}{scope} waiting in pool {answer['pool']}{policy}{more}")

    return show


def _show(items: list[Mapping[str, Any]]) -> None:
    columns = [
        Column("#", right=True),
        Column("JOB"),
        Column("GPUS", right=True, gives_way=2),
        Column("WAITED", right=True, gives_way=1),
        Column("REASON"),
        Column("RANKED BY", text=True, gives_way=3),
    ]
    # Whoever waits for a residency: of which family, and what no group has for it.
    if shares := any(item.get("family") for item in items):
        columns[4] = Column("REASON", text=True)
        columns.insert(3, Column("FAMILY", gives_way=2))
    rows = []
    for item in items:
        reason = item["reason"] or item["state"]
        key = ", ".join(
            f"{name} {_value(name, value)}" for name, value in item["key"].items() if name != "submitted"
        )
        if item.get("family") and item["message"] and len(items) > 1:
            reason += f": {item['message']}"
        row = [
            formatting.NOTHING if item["position"] is None else str(item["position"]),
            item["job"],
            str(item["gpus"]),
            formatting.NOTHING if item["waitedSeconds"] is None else formatting.span(item["waitedSeconds"]),
            reason + (", overdue" if item["overdue"] else ""),
            key,
        ]
        if shares:
            row.insert(3, item.get("family") or formatting.NOTHING)
        rows.append(row)
    output.lines(render(columns, rows, terminal()))
    if len(items) == 1 and items[0]["message"]:
        typer.echo(items[0]["message"])


def _value(name: str, value: Any) -> str:
    if name == "since" and value is not None:
        return formatting.moment(value)
    return "unknown" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
