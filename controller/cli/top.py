"""`evalstop top`: all jobs and pools on one screen, live."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags, formatting, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import command
from controller.cli.jobs import live_fields, table
from controller.cli.screen.rows import ORDER, key_of, rank, state_of
from controller.cli.terminal import Terminal, terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi
    from controller.kube.resources import Resource

Object = dict[str, Any]
LOOK = 30.0  # s between two looks whether an operator is there

Interval = Annotated[float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between pictures.")]
Once = Annotated[
    bool, typer.Option("--once", help="One picture, then end; so where no screen is written to.")
]
ReadOnly = Annotated[bool, typer.Option("--readonly", help="Look only: no key changes anything.")]


@command
@flags.connects
def top(
    namespace: flags.Namespace = "",
    all_namespaces: flags.AllNamespaces = False,
    selector: flags.Selector = "",
    interval: Interval = 1.0,
    once: Once = False,
    readonly: ReadOnly = False,
    ascii_only: flags.Ascii = False,
    connection: Connection = USUAL,
) -> None:
    """Watch jobs and pools live: first what goes wrong or ends, then what runs, then what waits.

    On a terminal keys filter, sort, explain, show logs, and after asking stop, resume or set the mode: ?
    lists them. Without the package textual (pip install 'evalstop[top]') it is a picture without keys.
    """
    from controller.cli import cluster

    async def work(api: CallerApi) -> None:
        where = None if all_namespaces else api.namespace
        view = View(api, where, selector)
        await view.fill()
        if once or not sys.stdout.isatty():
            output.lines(view.picture(time.time(), terminal(ascii_only=ascii_only), None))
        elif _has_keys(ascii_only):
            from controller.cli.screen.app import Top

            made = Top(view, api, everywhere=where is None, readonly=readonly, interval=interval)
            await made.run_async(mouse=False)
        else:
            await _live(view, interval, ascii_only)

    cluster.run(work, connection, namespace)


def _has_keys(ascii_only: bool) -> bool:
    """Return whether there is a keyboard, a terminal that shows lines and boxes, and the package that draws
    them."""
    drawn = terminal(ascii_only=ascii_only).unicode and os.environ.get("TERM", "dumb") != "dumb"
    return sys.stdin.isatty() and drawn and importlib.util.find_spec("textual") is not None


class View:
    """Jobs, and pools where the caller may read them, as they are now."""

    def __init__(self, api: CallerApi, namespace: str | None, labels: str) -> None:
        self._api, self._namespace, self._labels = api, namespace, labels
        self.jobs: dict[str, Object] = {}
        self.pools: dict[str, Object] = {}
        self._versions: dict[Resource, str] = {}
        self._silent: dict[Resource, str] = {}
        self.away = ""  # a sentence, where no operator is there

    @property
    def silent(self) -> str:
        """Return why nothing is heard of the cluster at present; "": it is."""
        return next(filter(None, self._silent.values()), "")

    async def fill(self) -> None:
        from controller.cli.cluster import listed, operator_away
        from controller.cli.failure import Exit, Failure
        from controller.kube.resources import GPUPOOLS, RLHFJOBS

        found, self._versions[RLHFJOBS] = await listed(self._api, RLHFJOBS, self._namespace, self._labels)
        self.jobs = {key_of(obj): obj for obj in found}
        try:
            found, self._versions[GPUPOOLS] = await listed(self._api, GPUPOOLS, None)
            self.pools = {key_of(obj): obj for obj in found}
        except Failure as failure:
            if failure.code is not Exit.FORBIDDEN:
                raise
        self.away = await operator_away(self._api, time.time(), self.jobs.values())

    async def follow(self) -> None:
        """Keep jobs and pools up to date until it is cancelled.

        Raises:
            Failure: the API server refuses, or is gone.
        """
        from controller.cli.watching import together

        await together(self._operator(), *(self._one(resource) for resource in self._versions))

    async def _operator(self) -> None:
        """Look again and again whether an operator is there."""
        from controller.cli.cluster import operator_away

        while True:
            await asyncio.sleep(LOOK)
            self.away = await operator_away(self._api, time.time(), self.jobs.values())

    async def _one(self, resource: Resource) -> None:
        from controller.cli.watching import follow
        from controller.kube.resources import RLHFJOBS

        ours = resource is RLHFJOBS
        kept = self.jobs if ours else self.pools
        namespace, labels = (self._namespace, self._labels) if ours else (None, "")
        changes = follow(
            self._api,
            resource,
            namespace,
            labels,
            self._versions[resource],
            list(kept.values()),
            silence=lambda why: self._silent.update({resource: why}),
        )
        async for kind, obj in changes:
            if kind == "DELETED":
                kept.pop(key_of(obj), None)
            else:
                kept[key_of(obj)] = obj

    def picture(self, now: float, screen: Terminal, height: int | None) -> list[str]:
        """Return the screen as lines, at most ``height`` of them; None: all."""
        most = None if height is None else max(1, height // 3)  # of pools: jobs are to be seen, too
        head, *pools = heading(self.jobs.values(), self.pools.values(), now, screen, most)
        away = self.away if screen.width is None else screen.cut(self.away, screen.width)
        warning = [screen.paint(away, "yellow")] if away else []
        lines = [head, *warning, *pools, ""]
        found = sorted(self.jobs.values(), key=rank)
        room = len(found) if height is None else max(1, height - len(lines) - 2)
        chosen = live_fields(found, everywhere=self._namespace is None)
        rows = table(found[:room], chosen, now, screen)
        if len(found) > room:
            rows.append(screen.paint(f"and {len(found) - room} more", "dim"))
        return [*lines, *(rows if found else ["No RLHFJobs."])]


def heading(jobs: Any, pools: Any, now: float, screen: Terminal, most: int | None = None) -> list[str]:
    """Return counts of jobs by state, and one line for each of at most ``most`` pools; None: for all."""
    counts: dict[str, int] = {}
    for job in jobs:
        state = state_of(job)
        counts[state] = counts.get(state, 0) + 1
    summary = ", ".join(f"{counts[state]} {state}" for state in ORDER if state in counts) or "no jobs"
    lines = [f"evalstop  {formatting.moment(now)}  {summary}"]
    pools = sorted(pools, key=key_of)
    lines += [_pool_line(pool, screen) for pool in pools[:most]]
    if most is not None and len(pools) > most:
        lines.append(f"and {counted(len(pools) - most, 'more pool')}: evalstop pools")
    return [screen.cut(line, screen.width) if screen.width else line for line in lines]


def _pool_line(pool: Mapping[str, Any], screen: Terminal) -> str:
    status = pool.get("status") or {}
    capacity, free = status.get("capacity") or 0, status.get("free") or 0
    bar = ""
    if capacity:
        full = round(20 * (capacity - free) / capacity)
        on, off = ("█", "░") if screen.unicode else ("#", ".")
        bar = f"[{on * full}{off * (20 - full)}] "
    actors, lent = status.get("actors"), status.get("lent")
    lends = f", {actors} for rollout actors" if actors else ""
    lends += f", {lent} lent" if lent else ""
    lends += f", {shared} of worker groups" if (shared := status.get("shared")) else ""
    last = (status.get("lastHandovers") or [{}])[-1]
    handed = f", last handover {last['source']} to {last.get('target') or 'nobody'}" if last else ""
    outside = " in Kueue" if (pool.get("spec") or {}).get("delegate") == "Kueue" else ""
    return (
        f"{pool['metadata']['name']}  {bar}{capacity - free} of {counted(capacity, 'GPU')} used{lends}, "
        f"{status.get('running', 0)} running, {status.get('queued', 0)} waiting{outside}{handed}"
    )


async def _live(view: View, interval: float, ascii_only: bool) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    following = asyncio.create_task(view.follow())
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not following.done():
                screen = terminal(ascii_only=ascii_only)
                lines: Sequence[str] = view.picture(time.time(), screen, console.size.height)
                live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)
                await asyncio.wait([following], timeout=interval)
        await following
    finally:
        following.cancel()
