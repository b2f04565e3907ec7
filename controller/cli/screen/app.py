"""The application behind `evalstop top`: tabs of jobs, pools, queue and groups, and what its keys do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane
from textual.worker import Worker

from controller.cli import change, explanation, formatting, job_view, pools
from controller.cli.failure import Failure
from controller.cli.jobs import Field, at, live_fields
from controller.cli.screen import groups, wishes
from controller.cli.screen.dialogs import Ask, Modes, Reader
from controller.cli.screen.rows import MOST, ORDER, Rows, key_of, state_of
from controller.cli.table import Column
from controller.cli.terminal import Terminal, clean

if TYPE_CHECKING:
    from controller.cli.cluster import CallerApi

Object = dict[str, Any]

AGAIN = 2.0  # s until a cluster that fell silent is asked again
RIGHTS_LAST = 60.0  # s that an answer about the caller's rights is believed
MOST_NAME, LEAST_NAME = 40, 12  # columns of a name: what is longer is cut in its middle
BESIDE_NAMES = 40  # columns beside the names for a state, its reason and the room between
CHANGES = frozenset({"mode", "stop", "resume"})
OF_A_JOB = CHANGES | {"logs", "copy"}
HELP = (
    "Enter     why the job is as it is, and what can be done",
    "/         show only rows with these words (name, state, reason, pool); Esc shows all",
    "o  O      sort by the next column; the other way round",
    "l         last lines of the job's pods, by your own rights",
    "m  s  r   mode, stop, resume: say what follows, and ask",
    "c         copy the command that does the same as what is shown (OSC 52)",
    "1 2 3 4   jobs, pools, queue, worker groups",
    "?  q      this page; leave",
    "",
    "Keys that are grey are not yours: you may not change RLHFJobs there, or --readonly was given.",
)


class Followed(Protocol):
    """The cluster as it is followed: all jobs and pools as they are now."""

    jobs: dict[str, Object]
    pools: dict[str, Object]
    away: str  # a sentence, where no operator is there; "": one is

    @property
    def silent(self) -> str:
        """Return why nothing is heard of the cluster at present; "": it is."""

    async def fill(self) -> None: ...

    async def follow(self) -> None: ...


WAITING = (
    Field(Column("POOL"), lambda o, now: str(at(o, "spec", "pool") or "")),
    Field(Column("JOB"), lambda o, now: key_of(o)),
    Field(Column("GPUS"), lambda o, now: str(at(o, "status", "printed", "gpus") or "")),
    Field(Column("PRIORITY"), lambda o, now: str(at(o, "spec", "priority") or 0)),
    Field(Column("WHY"), lambda o, now: _waits_for(o)),
)


class Top(App[None]):
    """The screen.

    Args:
        view: what is followed.
        api: the caller's client.
        everywhere: rows name their namespace.
        readonly: nothing can be changed, whatever the caller's rights are.
        interval: s between pictures.
    """

    CSS = """
    Screen { overflow: hidden; }  /* or a second line at its head would scroll the first out of sight */
    TabbedContent { height: 1fr; }
    #said { height: auto; max-height: 3; color: $text-muted; }
    #filter { display: none; height: 3; }
    DataTable { height: 1fr; }
    #more { height: auto; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "keep_filter", show=False, priority=True),  # at once, as below
        Binding("enter", "why", "Why"),
        # At once, not when the key has come back from the table: what is typed next is for the filter.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("o", "sort", "Sort"),
        Binding("O", "reverse", show=False),
        Binding("l", "logs", "Logs"),
        Binding("m", "mode", "Mode"),
        Binding("s", "stop", "Stop"),
        Binding("r", "resume", "Resume"),
        Binding("c", "copy", "Copy"),
        Binding("1", "tab('jobs')", show=False),
        Binding("2", "tab('pools')", show=False),
        Binding("3", "tab('queue')", show=False),
        Binding("4", "tab('groups')", show=False),
        Binding("j", "step(1)", show=False),
        Binding("k", "step(-1)", show=False),
        Binding("escape", "all", show=False),
        Binding("question_mark", "help", "Keys", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit"),
    ]

    def __init__(
        self,
        view: Followed,
        api: CallerApi,
        *,
        everywhere: bool = True,
        readonly: bool = False,
        interval: float = 1.0,
    ) -> None:
        super().__init__()
        self.view, self._api, self._interval = view, api, interval
        self.readonly = readonly
        self.rows = Rows(live_fields(view.jobs.values(), everywhere))
        self.stale = ""  # since when and why what is shown may be old; "": it is not
        self._last_contact = time.time()  # s, when the cluster was last heard
        self._tables_there = False  # its tables are there
        self._keys: list[str] = []  # of the rows that are shown
        self._groups: list[Object] = []  # that are shown
        self._versions: dict[str, str] = {}
        # namespace -> (asked at (s), may jobs be changed there; None: it is not known)
        self._rights: dict[str, tuple[float, bool | None]] = {}
        self._asking: dict[str, Worker[None]] = {}  # namespace -> the question after the caller's rights

    def compose(self) -> ComposeResult:
        yield Static(id="said")
        yield Input(placeholder="words that a row has; Enter keeps them, Esc shows all", id="filter")
        with TabbedContent(initial="jobs"):
            for name in ("jobs", "pools", "queue", "groups"):
                with TabPane(name.capitalize(), id=name):
                    yield DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Static(id="more")
        yield Footer()

    def on_mount(self) -> None:
        shown = {
            "jobs": self.rows.fields, "pools": pools.FIELDS, "queue": WAITING, "groups": groups.FIELDS,
        }  # fmt: skip
        for name, of in shown.items():
            for field in of:
                self._table(name).add_column(field.column.title, key=field.column.title)
        self._tables_there = True
        self.draw()
        self._table("jobs").focus()
        self.set_interval(self._interval, self.draw)
        self._follow()

    # -- what is shown -----------------------------------------------------------------------------------

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        """Keep the view up to date; where the cluster does not answer, say so and ask again."""
        while True:
            try:
                await self.view.follow()
            except Failure as failure:
                self.stale = self.stale or f"as of {formatting.moment(time.time())}: {failure.message}"
            await asyncio.sleep(AGAIN)
            try:
                await self.view.fill()
                self.stale = ""
            except Failure:
                continue

    def draw(self) -> None:
        """Bring the tables up to what is known now."""
        if self._has_tables():
            with contextlib.suppress(NoMatches):  # while it ends its parts go one by one
                self._draw()

    def _draw(self) -> None:
        now = time.time()
        self._draw_jobs(now)
        self._fill("pools", pools.FIELDS, sorted(self.view.pools.values(), key=key_of), now)
        self._fill("queue", WAITING, sorted(filter(_waits, self.view.jobs.values()), key=_by_pool), now)
        if self.tab == "groups":
            self._groups = groups.found(self.view.jobs.values())
            self._fill("groups", groups.FIELDS, self._groups, now)
        self._base().query_one("#said", Static).update(self._heading(now))
        self._base().query_one("#more", Static).update(self._foot())

    def _draw_jobs(self, now: float) -> None:
        table, jobs = self._table("jobs"), self.view.jobs
        keys = self.rows.chosen(jobs, now)
        if keys == self._keys:
            for key in keys:
                if self._versions.get(key) != self._version(jobs[key], now):
                    for column, cell in zip(table.columns, self._cells(jobs[key], now), strict=True):
                        # A column that may become narrower is measured whole, for each cell: seconds.
                        wider = cell.cell_len > table.columns[column].content_width
                        table.update_cell(key, column, cell, update_width=wider)
                    self._versions[key] = self._version(jobs[key], now)
            return
        chosen = self.selected
        place, scrolled = table.cursor_row, table.scroll_offset.y
        table.clear()
        for key in keys:
            table.add_row(*self._cells(jobs[key], now), key=key)
        self._keys = keys
        self._versions = {key: self._version(jobs[key], now) for key in keys}
        if keys:
            at_ = keys.index(chosen) if chosen in keys else min(place, len(keys) - 1)
            table.move_cursor(row=at_, animate=False, scroll=False)
            table.scroll_to(y=scrolled + (at_ - place), animate=False)

    def _cells(self, obj: Object, now: float) -> list[Text]:
        room = self._name_room()
        return [_cell(field, obj, now, room) for field in self.rows.fields]

    def _name_room(self) -> int:
        """Return the columns that a name may take, so that state and reason stay on the screen."""
        names = sum(field.column.name for field in self.rows.fields)
        return max(LEAST_NAME, min(MOST_NAME, (self.size.width - BESIDE_NAMES) // max(1, names)))

    def _version(self, obj: Object, now: float) -> str:
        """Return what a row's text depends on: the object, the age that is shown, the room for its names."""
        metadata = obj["metadata"]
        age = formatting.age(metadata.get("creationTimestamp"), now)
        return f"{metadata.get('resourceVersion', '')} {age} {self._name_room()}"

    def _fill(self, name: str, of: Sequence[Field], found: Iterable[Object], now: float) -> None:
        rows = [[_cell(field, obj, now) for field in of] for obj in list(found)[:MOST]]
        table = self._table(name)
        if [table.get_row_at(i) for i in range(table.row_count)] == rows:
            return
        place = table.cursor_row
        table.clear()
        for row in rows:
            table.add_row(*row)
        table.move_cursor(row=min(place, max(0, len(rows) - 1)), animate=False)

    def _heading(self, now: float) -> Text:
        counts: dict[str, int] = {}
        for job in self.view.jobs.values():
            counts[state_of(job)] = counts.get(state_of(job), 0) + 1
        summary = ", ".join(f"{counts[state]} {state}" for state in ORDER if state in counts) or "no jobs"
        text = Text(f"evalstop  {formatting.moment(now)}  {summary}", no_wrap=True)
        if not self.view.silent:
            self._last_contact = now
        stale = self.stale or (
            f"as of {formatting.moment(self._last_contact)}: {self.view.silent}" if self.view.silent else ""
        )
        # While the API server is silent nobody knows whether an operator renews its Lease.
        if told := f"stale {stale}" if stale else self.view.away:
            text.append(f"\n{told}", "yellow")
        return text

    def _foot(self) -> str:
        parts = [f"/{self.rows.text}"] if self.rows.text else []
        if self.rows.sort is not None:
            title = self.rows.fields[self.rows.sort].column.title
            parts.append(f"by {title}{', reversed' if self.rows.reverse else ''}")
        if self.rows.more:
            parts.append(f"and {self.rows.more} more: / narrows")
        if not self._keys:
            parts.append("no RLHFJob has these words" if self.rows.text else "No RLHFJobs.")
        return "   ".join(parts)

    # -- which job, and what may be done with it ---------------------------------------------------------

    @property
    def tab(self) -> str:
        return str(self._base().query_one(TabbedContent).active)

    @property
    def selected(self) -> str:
        """The key of the job that is marked; "": none is."""
        row = self._table("jobs").cursor_row
        return self._keys[row] if 0 <= row < len(self._keys) else ""

    def job(self) -> job_view.Reading | None:
        found = self.view.jobs.get(self.selected) if self.tab == "jobs" else None
        return None if found is None else job_view.read(found)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key does something now; None: it is shown grey."""
        if not self._has_tables():
            return True
        if action == "keep_filter":
            return self.focused is not None and self.focused.id == "filter"
        if action == "filter":  # its key goes before all others: in a window or a text it is a letter
            return len(self.screen_stack) == 1 and not isinstance(self.focused, Input)
        if action not in OF_A_JOB:
            return True
        if self.job() is None:
            return None
        return True if action not in CHANGES or self._may_change() is not False else None

    def _may_change(self) -> bool | None:
        """Return whether the marked job may be changed; None: the answer is not there yet."""
        if self.readonly:
            return False
        namespace = self.selected.partition("/")[0]
        asked, may = self._rights.get(namespace, (-RIGHTS_LAST, None))
        if time.monotonic() - asked > RIGHTS_LAST:
            self._rights[namespace] = (time.monotonic(), may)
            self._asking[namespace] = self._ask_rights(namespace)
        return may

    @work(group="rights")
    async def _ask_rights(self, namespace: str) -> None:
        from controller.kube.errors import ApiError
        from controller.kube.resources import RLHFJOBS

        try:
            may = await self._api.may("patch", RLHFJOBS, namespace)
        except ApiError:  # what was known stays, and the next key asks again
            asked, known = self._rights[namespace]
            self._rights[namespace] = (asked - RIGHTS_LAST + AGAIN, known)
        else:
            self._rights[namespace] = (time.monotonic(), may)
        self.refresh_bindings()

    async def _changeable(self) -> job_view.Reading | None:
        """Return the marked job, once it is known that the caller may change it; None: it is not so.

        Where the API server does not say, it is asked for the change itself, and tells then.
        """
        job = self.job()
        if job is None or self.readonly:
            return None
        namespace = job.key.partition("/")[0]
        if self._may_change() is None:
            await self._asking[namespace].wait()
        if self._rights[namespace][1] is False:
            self.notify(f"You may not change RLHFJobs in namespace {namespace}.", severity="warning")
            return None
        return job

    def on_data_table_row_highlighted(self) -> None:
        self.refresh_bindings()

    def on_tabbed_content_tab_activated(self) -> None:
        if self._has_tables():
            self._table(self.tab).focus()
            self.draw()  # what is only worked out while it is looked at
            self.refresh_bindings()

    # -- keys --------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        self.action_why()

    def action_why(self) -> None:
        if self.tab == "pools" and self.view.pools:
            row = self._table("pools").cursor_row
            pool = sorted(self.view.pools.values(), key=key_of)[row]
            name = str(pool["metadata"]["name"])
            lines = pools.page(pool, time.time(), self._screen())
            self.push_screen(Reader(f"GPUPool {name}", lines, f"evalstop pools {name}"))
        if self.tab == "groups" and self._groups:
            from controller.cli import groups_page

            one = self._groups[self._table("groups").cursor_row]
            lines = groups_page.page(one, time.time(), self._screen())
            self.push_screen(Reader(f"WorkerGroup {one['name']}", lines, f"evalstop groups {one['name']}"))
        job = self.job()
        if job is not None:
            from controller.cli.why import page

            lines = page(job, explanation.explain(job, time.time()), self._screen())
            self.push_screen(Reader(job.key, lines, f"evalstop why {job.name}{job.flags()}"))

    @work(exclusive=True, group="logs")
    async def action_logs(self) -> None:
        job = self.job()
        if job is not None:
            from controller.cli.screen.logs import last_lines

            lines = await last_lines(self._api, job)
            command = f"kubectl logs{job.flags()} -l evalstop.dev/job={job.name} --tail=200 --prefix"
            self.push_screen(Reader(f"Logs of {job.key}", lines, command))

    @work(exclusive=True, group="change")
    async def action_mode(self) -> None:
        job = await self._changeable()
        to = await self.push_screen_wait(Modes(job.key, job.mode)) if job is not None else ""
        if job is not None and to and to != job.mode:
            await self._carry_out(job, wishes.mode(job, to))

    @work(exclusive=True, group="change")
    async def action_stop(self) -> None:
        await self._ask(wishes.stop)

    @work(exclusive=True, group="change")
    async def action_resume(self) -> None:
        await self._ask(wishes.resume)

    async def _ask(self, of: Any) -> None:
        job = await self._changeable()
        if job is None:
            return
        wish = of(job)
        if isinstance(wish, str):
            self.notify(wish, severity="warning")
        elif await self.push_screen_wait(Ask(wish)):
            await self._carry_out(job, wish)

    async def _carry_out(self, job: job_view.Reading, wish: wishes.Wish) -> None:
        try:
            await change.patch(self._api, job, wish.spec, dry_run=False)
        except Failure as failure:
            self.notify(f"{failure.message}\n{failure.next_step}".strip(), severity="error", timeout=15)
        else:
            self.notify(wish.command, title="Asked for")

    def action_copy(self) -> None:
        job = self.job()
        if job is not None:
            command = f"evalstop why {job.name}{job.flags()}"
            self.copy_to_clipboard(command)
            self.notify(command, title="Copied")

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        self.screen.set_focus(box)  # at once: what is typed next is for the box, and no key of the table

    def on_input_changed(self, event: Input.Changed) -> None:
        self.rows.text = event.value
        self.draw()

    def action_keep_filter(self) -> None:
        self.rows.text = self.query_one("#filter", Input).value
        self._leave_filter()
        self.draw()

    def action_all(self) -> None:
        self.query_one("#filter", Input).value = ""
        self.rows.text = ""
        self._leave_filter()
        self.draw()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.screen.set_focus(self._table(self.tab))

    def action_sort(self) -> None:
        self.rows.next_sort()
        self.draw()

    def action_reverse(self) -> None:
        self.rows.reverse = not self.rows.reverse
        self.draw()

    def action_step(self, rows: int) -> None:
        table = self._table(self.tab)
        table.move_cursor(row=max(0, min(table.row_count - 1, table.cursor_row + rows)), animate=False)

    def action_tab(self, name: str) -> None:
        self.query_one(TabbedContent).active = name

    def action_help(self) -> None:
        self.push_screen(Reader("Keys", HELP))

    # -- parts -------------------------------------------------------------------------------------------

    def _has_tables(self) -> bool:
        """Return whether the tables are there: before the first picture and while it ends they are not."""
        return self._tables_there and bool(self.screen_stack) and bool(self._base().query("#queue-table"))

    def _base(self) -> Any:
        return self.screen_stack[0]

    def _table(self, name: str) -> DataTable[Any]:
        found: DataTable[Any] = self._base().query_one(f"#{name}-table", DataTable)
        return found

    def _screen(self) -> Terminal:
        return Terminal(max(40, min(102, int(self.size.width * 0.9) - 6)), colour=True)


def _cell(field: Field, obj: Object, now: float, room: int = MOST_NAME) -> Text:
    text = clean(field.of(obj, now))
    shown = Terminal().cut_middle(text, room) if field.column.name else text
    return Text(shown, style=field.column.style(text), justify="right" if field.column.right else "left")


def _waits(job: Object) -> bool:
    return state_of(job) in ("Queued", "Unfit", "Preempting")


def _by_pool(job: Object) -> tuple[str, int, str, str]:
    created = str(at(job, "metadata", "creationTimestamp") or "")
    return (str(at(job, "spec", "pool") or ""), -int(at(job, "spec", "priority") or 0), created, key_of(job))


def _waits_for(job: Object) -> str:
    found = [c for c in at(job, "status", "conditions") or () if c.get("type") == "Admitted"]
    return str(found[0].get("message", "")) if found else ""
