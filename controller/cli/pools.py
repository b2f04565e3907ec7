"""`evalstop pools`: GPUPools in a table; one of them with its handovers, reservations and limits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller import names
from controller.api.values import seconds
from controller.cli import complete, flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import command
from controller.cli.flags import Format
from controller.cli.jobs import Field, at, shown, table
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import counted, some

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.cli.job_view import Reading

Object = dict[str, Any]
Name = Annotated[
    str, typer.Argument(metavar="[POOL]", help="Name of a GPUPool; none: all.", autocompletion=complete.pools)
]


def ready(pool: Object) -> str:
    """``Yes``, or the reason of the first condition that does not hold."""
    conditions = at(pool, "status", "conditions") or []
    if not conditions:
        return "Unknown"
    wrong = sorted(amiss(conditions), key=lambda c: (c["type"] != "Ready", c["type"]))
    return str(wrong[0]["reason"]) if wrong else "Yes"


def amiss(conditions: Iterable[Object]) -> list[Object]:
    """Return those of a GPUPool's conditions that say that something is wrong with it."""
    return [c for c in conditions if (c["status"] == "True") is (c["type"] == names.HELD_BACK)]


def ordered_by(pool: Object) -> str:
    """Return what orders the jobs of a GPUPool: its queue policy, or the delegate."""
    from controller.policy import pool as policy
    from controller.policy.types import Delegate

    own = str(next(iter(at(pool, "spec", "queuePolicy") or {"fifo": {}})))
    try:
        return policy.ordered_by(Delegate(at(pool, "spec", "delegate") or Delegate.BUILTIN), own)
    except ValueError:  # of a newer version
        return own


def _count(name: str, title: str = "") -> Field:
    column = Column(title or name.upper(), right=True, gives_way=3)
    return Field(column, lambda o, now: shown(at(o, "status", name)))


GROUPS = _count("shared", title="GROUPS")  # only where a pool has some
FIELDS = (
    Field(Column("NAME"), lambda o, now: str(o["metadata"]["name"])),
    Field(Column("READY", style=lambda s: "green" if s == "Yes" else "red"), lambda o, now: ready(o)),
    Field(Column("POLICY", gives_way=2), lambda o, now: ordered_by(o)),
    Field(Column("GPUS", right=True), lambda o, now: shown(at(o, "status", "capacity"))),
    Field(Column("FREE", right=True), lambda o, now: shown(at(o, "status", "free"))),
    _count("held"),
    _count("foreign"),
    GROUPS,
    Field(Column("ACTORS", right=True), lambda o, now: shown(at(o, "status", "actors")), wide=True),
    Field(Column("LENT", right=True), lambda o, now: shown(at(o, "status", "lent")), wide=True),
    Field(Column("RUNNING", right=True, gives_way=1), lambda o, now: shown(at(o, "status", "running"))),
    Field(Column("QUEUED", right=True, gives_way=1), lambda o, now: shown(at(o, "status", "queued"))),
    Field(
        Column("AGE", right=True, gives_way=4),
        lambda o, now: formatting.age(at(o, "metadata", "creationTimestamp"), now),
    ),
    Field(Column("DELEGATE", gives_way=5), lambda o, now: shown(at(o, "spec", "delegate")), wide=True),
    Field(Column("MODECAP", gives_way=5), lambda o, now: shown(at(o, "spec", "modeCap")), wide=True),
    Field(
        Column("STOPS/H", right=True, gives_way=5),
        lambda o, now: shown(at(o, "status", "stops", "lastHour") or 0),
        wide=True,
    ),
    Field(Column("SCHEDULER", gives_way=6), lambda o, now: shown(at(o, "spec", "schedulerName")), wide=True),
)


def columns(found: Iterable[Object], *, wide: bool) -> list[Field]:
    """Return the columns for these GPUPools."""
    shared = any(at(pool, "status", "shared") is not None for pool in found)
    return [field for field in FIELDS if wide or not (field.wide or (field is GROUPS and not shared))]


@command
@flags.connects
def pools(
    name: Name = "",
    form: flags.Output = Format.TABLE,
    watch: flags.Watch = False,
    no_headers: flags.NoHeaders = False,
    connection: Connection = USUAL,
) -> None:
    """List GPUPools: GPUs, who runs, who waits; with a NAME, its handovers, reservations and what is wrong
    too."""
    from controller.cli import cluster
    from controller.kube.resources import GPUPOOLS

    screen = terminal()
    shadow = apart = ""
    chosen: list[Field] = []
    paged = bool(name) and form is not Format.WIDE

    def lines(found: list[Object], first: bool) -> list[str]:
        nonlocal chosen
        if first:
            chosen = columns(found, wide=form is Format.WIDE)
        now = time.time()
        shown = table(found, chosen, now, screen, (first or paged) and not no_headers)
        if paged and found:
            shown += page(found[0], now, screen, shadow, apart)
        return shown if first or not paged else ["", *shown]

    async def work(api: CallerApi) -> None:
        nonlocal shadow, apart
        if name:
            found = [await cluster.pool(api, name)]
            if form in (Format.TABLE, Format.WIDE):
                jobs = await _jobs(api, name)
                shadow = _shadow(jobs)
                apart = elsewhere(found[0], jobs, await _nodes(api)) if jobs else ""
        if watch:
            from controller.cli.watching import Watched, show

            await show(api, [Watched(GPUPOOLS, fields=f"metadata.name={name}" if name else "")], form, lines)
            return
        if not name:
            found, _ = await cluster.listed(api, GPUPOOLS, None)
        if output.objects(found, form, one=bool(name)):
            return
        if found:
            output.lines(lines(found, True))
            await cluster.say_if_away(api, *found)
        else:
            typer.echo("No GPUPools.", err=True)

    cluster.run(work, connection)


async def _jobs(api: CallerApi, pool: str) -> list[Reading]:
    """Return the pool's RLHFJobs; [] if the caller may not list them in all namespaces."""
    from controller.cli import job_view
    from controller.kube.errors import ApiError
    from controller.kube.resources import RLHFJOBS

    try:
        found, _ = await api.list(RLHFJOBS, None)
    except ApiError:
        return []
    return [job_view.read(job) for job in found if at(job, "spec", "pool") == pool]


async def _nodes(api: CallerApi) -> list[Object]:
    """Return all nodes; [] if the caller may not list them."""
    from controller.kube.errors import ApiError
    from controller.kube.resources import NODES

    try:
        return (await api.list(NODES, None))[0]
    except ApiError:
        return []


def _shadow(jobs: list[Reading]) -> str:
    """Return how right the stops of its runs in Shadow would have been; "": there were none."""
    from controller.policy.job import shadow_record

    return shadow_record(job.record for job in jobs)


MOST_ELSEWHERE = 4  # runs that are named


def elsewhere(pool: Object, jobs: Iterable[Reading], nodes: list[Object]) -> str:
    """Return which runs hold GPUs of nodes that their pool does not count, since no new pod may go there or
    they are its own no more, or are planned on such; "": none is, or the nodes are not known."""
    from controller.operator.state.nodes import selector_of, selects
    from controller.policy.job import nodes_of

    wanted = selector_of(pool)
    closed = {}
    for node in nodes:
        if not selects(wanted, node):
            closed[node["metadata"]["name"]] = "not of the pool"
        elif at(node, "spec", "unschedulable"):
            closed[node["metadata"]["name"]] = "cordoned"
    said: dict[str, list[str]] = {"on": [], "planned on": []}
    for job in jobs:
        held, bound = nodes_of(job.record.admission)
        place = "on" if bound else "planned on"
        if there := sorted(node for node in held if node in closed):
            said[place].append(f"{job.key} {place} {', '.join(f'{node} ({closed[node]})' for node in there)}")
    return "; ".join(
        f"{counted(len(found), 'run')} {place} nodes that take none of its gangs: "
        f"{some(sorted(found), MOST_ELSEWHERE)}"
        for place, found in said.items()
        if found
    )


def page(pool: Object, now: float, screen: Terminal, shadow: str = "", apart: str = "") -> list[str]:
    """Return what there is to say about one pool besides its row.

    ``shadow``: what its Shadow has to show. ``apart``: which of its runs are on others' nodes (`elsewhere`).
    """
    from controller.cli.why import facts

    spec, status = pool.get("spec") or {}, pool.get("status") or {}
    lines = [
        "",
        *facts(
            (
                *_facts(shown(at(pool, "metadata", "name")), spec, status),
                *((name, text) for name, text in (("elsewhere", apart), ("shadow", shadow)) if text),
            ),
            screen,
        ),
    ]
    wrong = amiss(status.get("conditions") or ())
    if wrong:
        rows = [[c["type"], c["reason"], c["message"]] for c in wrong]
        columns = (Column("CONDITION"), Column("REASON"), Column("WHY", text=True))
        lines += ["", *render(columns, rows, screen)]
    if quotas := status.get("quotas"):
        lines += ["", *_quotas(quotas, screen)]
    if reservations := status.get("reservations"):
        lines += ["", *_reservations(reservations, now, screen)]
    if handed := status.get("lastHandovers"):
        lines += ["", *_handovers(handed, screen)]
    return lines


def _quotas(quotas: list[Mapping[str, Any]], screen: Terminal) -> list[str]:
    columns = (
        Column("QUOTA OF", text=True),
        *(Column(title, right=True) for title in ("GUARANTEED", "LIMIT", "USED", "BORROWED", "WAITING")),
    )
    rows = [
        [
            ", ".join(map(str, one["namespaces"])),
            *(shown(one.get(name)) for name in ("guaranteed", "limit", "used", "borrowed", "waiting")),
        ]
        for one in quotas
    ]
    return render(columns, rows, screen)


def _facts(name: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from controller.cli.job_view import union

    labels = ", ".join(f"{label['key']}={label.get('value', '')}" for label in spec.get("nodeSelector") or [])
    yield "nodes", labels
    if sizes := formatting.node_sizes(status.get("nodeSizes") or ()):
        yield "sizes", sizes
    if (shared := status.get("shared")) is not None:
        has = f"{shared} of {counted(status.get('capacity') or 0, 'GPU')}"
        yield "shared", f"{has} in worker groups: evalstop groups --pool {name}"
    for one in status.get("conditions") or ():
        of_ready = (one["type"], one["status"]) == ("Ready", "True")
        if of_ready and (text := str(one.get("message", "")).partition("; ")[2]):
            yield "groups", text  # of another size than their families have by now
    policy, by = union(spec.get("queuePolicy") or {"fifo": {}}), ordered_by({"spec": spec})
    if by == spec.get("delegate"):  # its own counts for nothing
        where = (spec.get("kueue") or {}).get("localQueue")
        policy = f"{by}, by LocalQueue {where!r} of each namespace" if where else f"{by}: none waits its turn"
    yield "policy", policy
    yield "for", ", ".join(str(entry["name"]) for entry in spec.get("allowedNamespaces") or [])
    yield "mode cap", str(spec.get("modeCap") or "Enforce")
    stops = status.get("stops") or {}
    limits = spec.get("stopLimits") or {}
    most = limits.get("perHour")
    yield (
        "stops",
        (
            f"{stops.get('lastHour', 0)} in the last hour"
            + (f" of at most {most}" if most is not None else "")
            + f", {stops.get('today', 0)} since 00:00 UTC"
        ),
    )
    if since := stops.get("breakerSince"):
        yield "breaker", f"open since {since}: no rule stops anybody of the namespace whose runs opened it"
    for noise in status.get("noise") or []:
        what = f"{noise['namespace']}, {noise['metric']}{_evaluator(noise)}"
        yield (
            "noise",
            f"{what}: {formatting.number(noise['sigma'])} per eval, from {counted(noise['jobs'], 'run')}",
        )
    for fall in status.get("sharedFalls") or []:
        what = f"{fall['namespace']}, {fall.get('metric') or 'all metrics'}{_evaluator(fall)}"
        yield "shared fall", f"{what}: {fall['fell']} of {counted(fall['of'], 'job')} at {fall['before']}"


def _evaluator(entry: Mapping[str, Any]) -> str:
    return f" by evaluator {entry['evaluator']}" if entry.get("evaluator") else ""


def _reservations(reservations: list[Mapping[str, Any]], now: float, screen: Terminal) -> list[str]:
    rows = [
        [
            h["source"],
            h["target"],
            str(len(h["nodes"])),
            formatting.span(max(0.0, seconds(h["expires"]) - now)),
        ]
        for h in reservations
    ]
    columns = (Column("GPUS OF"), Column("KEPT FOR"), Column("NODES", right=True), Column("FOR", right=True))
    return render(columns, rows, screen)


def _handovers(handed: list[Mapping[str, Any]], screen: Terminal) -> list[str]:
    def after(entry: Mapping[str, Any], field: str) -> str:
        when = entry.get(field)
        if not when:
            return formatting.NOTHING
        return formatting.since(seconds(entry["decidedTime"]), seconds(when))

    rows = [
        [
            formatting.moment(seconds(h["decidedTime"])),
            h["source"],
            h["by"],
            str(h["gpus"]),
            after(h, "suspendedTime"),
            after(h, "podsGoneTime"),
            h.get("target") or formatting.NOTHING,
            after(h, "runningTime"),
        ]
        for h in reversed(handed)
    ]
    columns = (
        Column("STOPPED", gives_way=3),
        Column("JOB"),
        Column("BY", gives_way=2),
        Column("GPUS", right=True),
        Column("SUSPENDED", right=True, gives_way=4),
        Column("FREE", right=True, gives_way=1),
        Column("HANDED TO"),
        Column("RUNNING", right=True, gives_way=1),
    )
    return render(columns, rows, screen)
