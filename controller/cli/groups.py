"""`evalstop groups [NAME]`: worker groups, whose turn it is, who waits, and what residents are charged.

Turns are in no status: the operator serves what groups last reported on its pod's loopback address, reached
as `evalstop queue` does. Without that the WorkerGroups tell all but turns, and without those the RLHFJobs
that the caller may read tell of their own residencies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller import names
from controller.cli import complete, flags, output, queue_positions
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.cli.flags import Document
from controller.cli.queue import OperatorNamespace, Port, Url
from controller.cli.terminal import terminal
from controller.frozen import dataclass

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

Object = dict[str, Any]

Name = Annotated[
    str,
    typer.Argument(
        metavar="[GROUP]", help="Name of a WorkerGroup; none: all.", autocompletion=complete.groups
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Only groups whose residents are of this namespace. Default: all.",
        autocompletion=complete.namespaces,
        rich_help_panel="Cluster",
    ),
]
OfPool = Annotated[
    str, typer.Option("--pool", help="Only groups of this GPUPool.", autocompletion=complete.pools)
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Keep watching and print the groups again when they change.")
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A choice of groups; "": all."""

    name: str = ""
    namespace: str = ""
    pool: str = ""

    @property
    def hint(self) -> str:
        return "evalstop groups lists all that there are"

    @property
    def path(self) -> str:
        from controller.web.queue_api import group_path

        return group_path(self.name)

    def of_all(self, answer: Object) -> Object:
        """Return an answer as a list of groups, those that are wanted."""
        found = [answer] if self.name else answer["items"]
        return {
            "items": [
                one for one in found
                if self.name or (self.namespace in ("", one["namespace"]) and self.pool in ("", one["pool"]))
            ]
        }  # fmt: skip


@command
@flags.connects
def groups(
    name: Name = "",
    namespace: Namespace = "",
    pool: OfPool = "",
    url: Url = "",
    operator_namespace: OperatorNamespace = names.NAMESPACE,
    operator_port: Port = names.QUEUE_API_PORT,
    watch: Watch = False,
    form: flags.Page = Document.TEXT,
    connection: Connection = USUAL,
) -> None:
    """List worker groups: whose turn, which function, who waits, memory; with a NAME, its residents too."""
    operator = queue_positions.Operator(url, operator_namespace, operator_port, connection)
    wanted = Wanted(name.removeprefix("workergroup/"), namespace, pool)
    show = _printer(wanted, form, watch)
    operator.show(
        wanted,
        watch,
        show,
        lambda failure: _by_objects(failure, wanted, connection, watch, show),
    )


def _printer(wanted: Wanted, form: Document, watch: bool) -> Callable[[Object], None]:
    """Return a function that prints an answer unless nothing but the time has changed since the last one.

    An answer is ``{"items": […]}``, each as `controller.web.groups.Group` in JSON.
    """
    before: list[Any] = []

    def show(answer: Object) -> None:
        from controller.cli import groups_page

        items = answer["items"]
        state = [groups_page.state(one) for one in items]
        if before == [state]:
            return
        again, before[:] = bool(before), [state]
        if output.document(items[0] if wanted.name and items else answer, form, stream=watch):
            return
        if again:
            typer.echo()
        now, screen = time.time(), terminal()
        if wanted.name and items:
            output.lines(groups_page.page(items[0], now, screen))
        elif items:
            output.lines(groups_page.table(items, now, screen))
        else:
            typer.echo(_none(wanted), err=True)

    return show


def _none(wanted: Wanted) -> str:
    of = f" of pool {wanted.pool}" if wanted.pool else ""
    of += f" with residents of namespace {wanted.namespace}" if wanted.namespace else ""
    return f"No WorkerGroups{of}."


def _by_objects(
    failure: Failure, wanted: Wanted, connection: Connection, watch: bool, show: Callable[[Object], None]
) -> None:
    """Show what WorkerGroups say, or the RLHFJobs that the caller may read; neither knows of turns.

    Raises:
        Failure: neither can be read, or there is no such group.
    """
    from controller.cli import cluster

    async def work(api: CallerApi) -> None:
        import asyncio

        reported = False
        while True:
            found = await _read(api, wanted)
            if not reported:
                why = f"turns are the operator's to tell, and it was not reached: {failure}"
                typer.echo(f"note: {why}", err=True)
                reported = True
            show({"items": found})
            if not watch:
                return
            await asyncio.sleep(queue_positions.EVERY)

    cluster.run(work, connection)


async def _read(api: CallerApi, wanted: Wanted) -> list[Object]:
    from controller.kube.errors import ApiError
    from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS
    from controller.policy.group_types import GROUPS_NAMESPACE
    from controller.web import groups as seen

    async def listed(resource: Any, namespace: str | None) -> list[Object] | None:
        try:
            return (await api.list(resource, namespace))[0]
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            return None

    there = await listed(WORKERGROUPS, GROUPS_NAMESPACE)
    jobs = await listed(RLHFJOBS, wanted.namespace or None)
    if jobs is None and not wanted.namespace:
        jobs = await listed(RLHFJOBS, api.namespace)
    if there is None and jobs is None:
        from controller.cli.cluster import listed as must

        await must(api, RLHFJOBS, wanted.namespace or api.namespace)  # says which right is missing
    if there is None:
        found = seen.groups_of_jobs(jobs or ())
    else:
        pools = {str(one["metadata"]["name"]): one for one in await listed(GPUPOOLS, None) or ()}
        by_key = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": one for one in jobs or ()}
        found = tuple(_group(obj, by_key, pools) for obj in there)
    shown = [one.model_dump(mode="json", by_alias=True) for one in found]
    if not wanted.name:
        return list(wanted.of_all({"items": shown})["items"])
    one = [group for group in shown if group["name"] == wanted.name]
    if not one:
        known = ", ".join(str(group["name"]) for group in shown[:20]) or "none"
        mine = "" if there is not None else " in which a job that you may read is a resident"
        raise Failure(
            Exit.NOT_FOUND, f"there is no WorkerGroup {wanted.name!r}{mine}; there are: {known}", wanted.hint
        )
    return one


def _group(obj: Object, jobs: Mapping[str, Object], pools: Mapping[str, Object]) -> Any:
    from controller.web.groups import Around, group

    pool = pools.get(str((obj.get("spec") or {}).get("pool")))
    try:
        return group(obj, Around(jobs.get, pool))
    except ValueError as error:
        name = obj["metadata"]["name"]
        raise Failure(
            Exit.REFUSED,
            f"WorkerGroup {name}: this evalstop cannot read its status ({error})",
            "evalstop version tells whether operator and evalstop are of one version",
        ) from None
