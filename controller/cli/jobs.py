"""`evalstop list`: RLHFJobs in a table, or as they are; and what changes, as it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import command
from controller.cli.flags import Format
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, say, terminal
from controller.frozen import dataclass

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

Object = dict[str, Any]


RED = ("Crashing", "NotStarting", "Unsafe", "Unwatched", "Blind")  # marks that are a state


@dataclass(frozen=True, slots=True)
class Field:
    """A column, and what stands in it for an object at a moment (s)."""

    column: Column
    of: Callable[[Object, float], str]
    wide: bool = False


def at(obj: Object, *path: str) -> Any:
    """Return what stands at a path of an object; None: nothing."""
    for key in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)  # type: ignore[assignment]
    return obj


def shown(value: Any) -> str:
    return formatting.NOTHING if value is None or value == "" else str(value)


def state_style(state: str) -> str:
    """Return the style of a state's word. It never stands alone: the word itself says what is meant."""
    if state in ("Failed", "Refused", "RunsOn", "Unfit", *RED):
        return "red"
    if state in ("WouldStop", "Declining", "Demoted", "Stopping", "Preempting"):
        return "yellow"
    return {"Running": "green", "Stopped": "cyan", "Completed": "dim"}.get(state, "")


def _path(*path: str) -> Callable[[Object, float], str]:
    return lambda obj, now: shown(at(obj, *path))


def _retained(obj: Object, now: float) -> str:
    kept = at(obj, "status", "retained") or [{}]
    return shown(kept[-1].get("path"))


def _created(obj: Object, now: float) -> str:
    return formatting.age(at(obj, "metadata", "creationTimestamp"), now)


def _actors(obj: Object, now: float) -> str:
    """Return how many rollout actors there are, of how many its next step is to have. One whose pod waits for
    what may not come, such as its image, is not there."""
    if at(obj, "spec", "rollout") is None:
        return formatting.NOTHING
    planned = at(obj, "status", "rollout", "plan", "actors")
    there = sum(1 for actor in at(obj, "status", "actors") or [] if not actor.get("waits"))
    return str(there) if planned is None else f"{there}/{planned}"


def _group(obj: Object, now: float) -> str:
    """Return the worker group of a job, and how many times as long its steps take as alone."""
    group, slower = at(obj, "status", "residency", "group"), at(obj, "status", "residency", "slowdown")
    if not group:
        return formatting.NOTHING
    return str(group) if slower is None else f"{group} {float(slower):.2f}x"


GROUP = Field(Column("GROUP", gives_way=7), _group)  # of `top`, where a job has any
ACTORS = Field(Column("ACTORS", right=True, gives_way=7), _actors)  # of `top`, where a job has any
NAMESPACE = Field(Column("NAMESPACE", name=True), _path("metadata", "namespace"))
FIELDS = (
    Field(Column("NAME", name=True), _path("metadata", "name")),
    Field(Column("STATE", style=state_style), lambda obj, now: at(obj, "status", "summary") or "New"),
    Field(Column("REASON"), _path("status", "printed", "reason")),
    Field(Column("STEP", right=True, gives_way=2), _path("status", "printed", "step")),
    Field(Column("EVAL", right=True, gives_way=3), _path("status", "printed", "eval")),
    Field(Column("BEST", right=True, gives_way=1), _path("status", "printed", "best")),
    Field(Column("STREAK", right=True, gives_way=4), _path("status", "printed", "streak")),
    Field(Column("GPUS", right=True, gives_way=5), _path("status", "printed", "gpus")),
    Field(Column("AGE", right=True, gives_way=6), _created),
    Field(Column("BESTSTEP", right=True, gives_way=10), _path("status", "best", "step"), wide=True),
    Field(Column("ATTEMPT", right=True, gives_way=14), _path("status", "attempt"), wide=True),
    Field(Column("MODE", gives_way=13), _path("spec", "mode"), wide=True),
    Field(Column("RULE", gives_way=12), _path("status", "rule", "name"), wide=True),
    Field(Column("POOL", gives_way=11), _path("spec", "pool"), wide=True),
    Field(Column("STOPPED", gives_way=15), _path("status", "decision", "reason"), wide=True),
    Field(Column("CHECKPOINT", text=True, gives_way=16), _retained, wide=True),
)


def fields(wide: bool, everywhere: bool) -> list[Field]:
    """Return the columns of a table. ``wide``: all, and none is dropped where the screen is narrow."""
    chosen = [f for f in FIELDS if wide or not f.wide]
    if wide:
        chosen = [replace(f, column=replace(f.column, gives_way=0, text=False)) for f in chosen]
    return [NAMESPACE, *chosen] if everywhere else chosen


def live_fields(found: Iterable[Object], everywhere: bool) -> list[Field]:
    """Return the columns of a table that is kept up to date: those for actors and groups where a job has any.

    Args:
        found: the jobs that are there at first.
        everywhere: they are of all namespaces.
    """
    specs = [job.get("spec") or {} for job in found]
    asked = (("rollout", ACTORS), ("sharing", GROUP))
    extra = [field for name, field in asked if any(spec.get(name) is not None for spec in specs)]
    return [*fields(wide=False, everywhere=everywhere), *extra]


def table(
    found: Iterable[Object], chosen: Sequence[Field], now: float, screen: Terminal, header: bool = True
) -> list[str]:
    """Return the lines of a table of objects."""
    rows = [[field.of(obj, now) for field in chosen] for obj in found]
    if any(field.wide for field in chosen):  # who asks for all columns gets them; the screen breaks the lines
        screen = replace(screen, width=None)
    return render([field.column for field in chosen], rows, screen, header)


@command
@flags.connects
def list_jobs(
    namespace: flags.Namespace = "",
    all_namespaces: flags.AllNamespaces = False,
    selector: flags.Selector = "",
    form: flags.Output = Format.TABLE,
    watch: flags.Watch = False,
    no_headers: flags.NoHeaders = False,
    connection: Connection = USUAL,
) -> None:
    """List RLHFJobs: how far each is, its newest and best score, how near its rule is to a stop."""
    from controller.cli import cluster
    from controller.kube.resources import RLHFJOBS

    chosen = fields(form is Format.WIDE, all_namespaces)
    screen = terminal()

    def lines(found: list[Object], first: bool) -> list[str]:
        return table(found, chosen, time.time(), screen, first and not no_headers)

    async def work(api: CallerApi) -> None:
        where = None if all_namespaces else api.namespace
        if watch:
            from controller.cli.watching import Watched, show

            await show(api, [Watched(RLHFJOBS, where, selector)], form, lines)
            return
        found, _ = await cluster.listed(api, RLHFJOBS, where, selector)
        if not found:
            await cluster.check_namespace(api, where)
        if output.objects(found, form):
            return
        if found:
            output.lines(lines(found, True))
            await cluster.say_if_away(api, *found)
        else:
            _nothing(where, selector, await _elsewhere(api, where, selector))

    cluster.run(work, connection, namespace)


async def _elsewhere(api: CallerApi, where: str | None, selector: str) -> int:
    """Return how many RLHFJobs other namespaces have, as far as the caller may see."""
    from controller.kube.errors import ApiError
    from controller.kube.resources import RLHFJOBS

    if where is None:
        return 0
    try:
        found, _ = await api.list(RLHFJOBS, None, labels=selector)
    except ApiError:
        return 0
    return len(found)


def _nothing(where: str | None, selector: str, elsewhere: int) -> None:
    at_ = f"in namespace {where}" if where else "in any namespace"
    say(f"No RLHFJobs {at_}" + (f" with labels {selector}" if selector else "") + ".", err=True)
    if elsewhere:
        say(f"{elsewhere} in other namespaces: evalstop list -A", err=True)
