"""`evalstop top` on a terminal, by its keys: textual's pilot presses them, a cluster in memory answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual import events

from controller.cli.failure import Exit, Failure
from controller.cli.jobs import fields
from controller.cli.screen.app import Top
from controller.cli.screen.dialogs import Ask, Modes, Reader
from controller.cli.screen.rows import MOST, Rows
from controller.kube.errors import ApiError
from tests.support import cli_world as w
from tests.support import group_scene

Object = dict[str, Any]


class View:
    """Jobs and pools that change when the test says so."""

    def __init__(self, jobs: list[Object], pools: list[Object] | None = None) -> None:
        self.jobs = {f"{o['metadata']['namespace']}/{o['metadata']['name']}": o for o in jobs}
        self.pools = {f"/{o['metadata']['name']}": o for o in pools or []}
        self.broken = asyncio.Event()
        self.back = asyncio.Event()
        self.silent = self.away = ""

    async def fill(self) -> None:
        if not self.back.is_set():
            raise Failure(Exit.UNREACHABLE, "no answer from the API server")

    async def follow(self) -> None:
        await self.broken.wait()
        if self.back.is_set():
            await asyncio.Event().wait()
        raise Failure(Exit.UNREACHABLE, "no answer from the API server")  # each time until it is back


class Cluster:
    """What keys ask of the API server."""

    def __init__(self, may: bool = True) -> None:
        self.allowed, self.changed, self.asked = may, [], 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: ApiError | None = None

    async def may(self, verb: str, resource: Any, namespace: str = "", subresource: str = "") -> bool:
        self.asked += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return self.allowed

    async def merge_patch(self, resource: Any, name: str, body: Any, namespace: str, **_: Any) -> None:
        if name == "fresh":
            raise ApiError(403, "Forbidden", 'User "jane" cannot patch resource "rlhfjobs"')
        self.changed.append((namespace, name, body["spec"]))

    async def list(self, resource: Any, namespace: str, labels: str = "") -> tuple[list[Object], str]:
        return [{"metadata": {"name": "over-0"}}], "1"

    async def raw(self, method: str, path: str) -> bytes:
        assert path.startswith("/api/v1/namespaces/team/pods/over-0/log?tailLines=")
        return b"step 10\n\x1b[2Jstep 20\n"


def world() -> list[Object]:
    made = [w.whole(name, record) for name, record in w.records().items()]
    for number, obj in enumerate(made):
        obj["metadata"]["resourceVersion"] = str(number)
    return made


def use(
    test: Callable[[Top, Any, View, Cluster], Awaitable[None]],
    *,
    jobs: list[Object] | None = None,
    may: bool = True,
    readonly: bool = False,
    size: tuple[int, int] = (120, 40),
) -> None:
    """Run a test against the running application."""

    async def whole() -> None:
        view, api = View(world() if jobs is None else jobs, [w.pool("a100")]), Cluster(may)
        app = Top(view, api, readonly=readonly, interval=0.05)  # type: ignore[arg-type]
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await test(app, pilot, view, api)

    asyncio.run(whole())


async def until(pilot: Any, check: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come true"
        await pilot.pause(0.02)


async def mark(app: Top, pilot: Any, name: str) -> None:
    app._table("jobs").move_cursor(row=app._keys.index(f"team/{name}"))
    await until(pilot, lambda: app.selected == f"team/{name}")


def test_what_needs_somebody_comes_first_and_enter_says_why() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        assert app._keys[0] == "team/refused"
        assert app.selected == "team/refused"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Reader))
        page = "\n".join(app.screen.lines)
        assert "PoolNotFound" in page
        assert "kubectl patch rlhfjob refused -n team" in page
        await pilot.press("c")
        assert app.clipboard == "evalstop why refused -n team"
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Reader))

    use(look)


def test_a_filter_and_a_sort_keep_what_is_marked() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        everything = list(app._keys)
        await mark(app, pilot, "over")
        await pilot.press("slash", *"stopped", "enter")
        await until(pilot, lambda: app._keys == ["team/over"])
        assert app.selected == "team/over"
        await pilot.press("escape")
        await until(pilot, lambda: app._keys == everything)
        assert app.selected == "team/over"
        await pilot.press("o", "o")  # NAMESPACE, NAME
        await until(pilot, lambda: app._keys == sorted(everything))
        assert app.selected == "team/over"
        await pilot.press("O")
        await until(pilot, lambda: app._keys == sorted(everything, reverse=True))

    use(look)


def test_a_change_of_a_job_is_seen_and_one_that_is_gone_goes() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        healthy = view.jobs["team/healthy"]
        status = {**healthy["status"], "summary": "Unwatched"}
        view.jobs["team/healthy"] = {
            **healthy,
            "metadata": {**healthy["metadata"], "resourceVersion": "99"},
            "status": status,
        }
        del view.jobs["team/done"]
        await until(pilot, lambda: "team/done" not in app._keys)
        row = app._table("jobs").get_row_at(app._keys.index("team/healthy"))
        assert "Unwatched" in [str(cell) for cell in row]

    use(look)


def test_stop_says_what_follows_and_asks() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await until(pilot, lambda: app.check_action("stop", ()) is True)
        await mark(app, pilot, "healthy")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        assert "Its best checkpoint is retained" in app.screen.wish.follows
        assert app.screen.wish.command == "evalstop stop healthy -n team"
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(app.screen, Ask))
        assert api.changed == []
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await until(pilot, lambda: api.changed)
        assert api.changed == [("team", "healthy", {"runState": "Stopped"})]

    use(look)


def test_resume_and_mode_do_what_the_commands_do() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await until(pilot, lambda: app.check_action("resume", ()) is True)
        await mark(app, pilot, "over")
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        assert "step 160" in app.screen.wish.follows
        await pilot.press("y")
        await until(pilot, lambda: api.changed)
        spec = api.changed.pop()[2]
        assert (spec["runState"], spec["resume"]["from"]) == ("Run", "Best")
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, Modes))
        await pilot.press("o")
        await until(pilot, lambda: api.changed)
        assert api.changed == [("team", "over", {"mode": "Off"})]
        await mark(app, pilot, "healthy")
        await pilot.press("r")  # it is not stopped: it is told, and nothing is asked
        await pilot.pause(0.1)
        assert not isinstance(app.screen, Ask)

    use(look)


def test_a_refusal_of_the_api_server_is_told_with_what_to_do() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await until(pilot, lambda: app.check_action("stop", ()) is True)
        await mark(app, pilot, "fresh")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await until(pilot, lambda: any("rolebinding" in one.message for one in app._notifications))

    use(look)


@pytest.mark.parametrize(("may", "readonly"), [(False, False), (True, True)])
def test_keys_without_the_right_are_grey_and_do_nothing(may: bool, readonly: bool) -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        if not readonly:
            await until(pilot, lambda: api.asked)
        await mark(app, pilot, "healthy")
        assert [app.check_action(key, ()) for key in ("mode", "stop", "resume")] == [None] * 3
        assert [app.check_action(key, ()) for key in ("logs", "copy", "filter", "help")] == [True] * 4
        await pilot.press("s", "m", "r")
        await pilot.pause(0.1)
        assert not isinstance(app.screen, Ask | Modes)
        assert api.changed == []
        assert api.asked == (0 if readonly else 1), "asked once a namespace"

    use(look, may=may, readonly=readonly)


@pytest.mark.parametrize("may", [True, False])
def test_a_key_that_comes_before_the_answer_about_rights_waits_for_it(may: bool) -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await until(pilot, lambda: api.asked)
        api.answers.clear()
        app._rights.clear()
        await mark(app, pilot, "healthy")
        await pilot.press("m")
        assert not isinstance(app.screen, Modes)
        api.answers.set()
        if may:
            await until(pilot, lambda: isinstance(app.screen, Modes))
        else:
            await until(pilot, lambda: any("You may not" in one.message for one in app._notifications))
            assert app.check_action("mode", ()) is None

    use(look, may=may)


def test_where_rights_are_not_told_the_change_itself_is_asked_for() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await until(pilot, lambda: api.asked)
        api.failure = ApiError(503, "ServiceUnavailable", "no answer")
        app._rights.clear()
        await mark(app, pilot, "healthy")
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, Modes))

    use(look)


def test_words_that_follow_the_slash_at_once_are_the_filters() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        for key in ("slash", *"stopped"):
            app.post_message(events.Key(key, "/" if key == "slash" else key))
        await until(pilot, lambda: app._keys == ["team/over"])
        await pilot.press("slash")  # in the filter it is a letter
        await until(pilot, lambda: app.rows.text == "stopped/")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: isinstance(app.screen, Reader))
        await pilot.press("slash")  # in a window it does nothing
        assert isinstance(app.screen, Reader)
        assert not app._base().query_one("#filter").display

    use(look)


def test_logs_are_shown_without_what_moves_a_cursor() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await mark(app, pilot, "over")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, Reader))
        assert [line.split(":")[0] for line in app.screen.lines] == ["over-0", "over-0"]
        assert "\x1b[2J" not in "".join(app.screen.lines)
        assert app.screen.command.startswith("kubectl logs -n team -l evalstop.dev/job=over")

    use(look)


def test_tabs_of_pools_and_queue_and_the_page_of_keys() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await pilot.press("2")
        await until(pilot, lambda: app.tab == "pools")
        assert str(app._table("pools").get_row_at(0)[0]) == "a100"
        assert app.check_action("stop", ()) is None, "no job is marked there"
        await pilot.press("3")
        await until(pilot, lambda: app.tab == "queue")
        assert [str(cell) for cell in app._table("queue").get_row_at(0)][1] == "team/waits"
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Reader))
        assert any("--readonly" in line for line in app.screen.lines)

    use(look)


def test_the_tab_of_groups_says_what_residents_tell() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        await pilot.press("4")
        await until(pilot, lambda: app.tab == "groups" and app._table("groups").row_count)
        (row,) = [[str(cell) for cell in app._table("groups").get_row_at(0)]]
        assert row[:5] == ["wg-3", "Ready", "research", "qwen-7b", "team-a/math-a, team-a/math-b"]
        assert row[5] == "1.13 x"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Reader))
        assert app.screen.command == "evalstop groups wg-3"
        assert any("team-a/math-b" in line for line in app.screen.lines)

    use(look, jobs=[group_scene.A, group_scene.B])


def test_a_cluster_that_falls_silent_is_told_in_one_line_and_taken_up_again() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        view.broken.set()
        await until(pilot, lambda: app.stale)
        assert "no answer from the API server" in app.stale
        assert app._keys, "what was known stays"
        view.back.set()
        await until(pilot, lambda: not app.stale)

    use(look)


def test_a_watch_that_breaks_is_told_at_once_not_when_all_tries_have_failed() -> None:
    async def look(app: Top, pilot: Any, view: View, api: Cluster) -> None:
        view.silent = "no answer from the API server"
        await until(pilot, lambda: "stale as of" in app._heading(time.time()).plain)
        view.silent = ""
        await until(pilot, lambda: "stale" not in app._heading(time.time()).plain)

    use(look)


def test_of_five_thousand_jobs_the_first_are_shown_and_all_are_found() -> None:
    one = w.whole("healthy", w.running())
    many = []
    for number in range(5000):
        metadata = {**one["metadata"], "name": f"run-{number:04d}", "resourceVersion": "1"}
        many.append({**one, "metadata": metadata})
    jobs = {f"team/{o['metadata']['name']}": o for o in many}
    rows = Rows(fields(wide=False, everywhere=True))
    assert len(rows.chosen(jobs, w.START)) == MOST
    assert rows.more == 5000 - MOST
    rows.text = "run-49 running"
    assert rows.chosen(jobs, w.START) == [f"team/run-{n}" for n in range(4900, 5000)]
    assert rows.more == 0


def test_columns_sort_by_their_values() -> None:
    rows = Rows(fields(wide=False, everywhere=False))
    while rows.next_sort() != "STEP":
        pass
    jobs = {f"team/{n}": w.whole(n, record) for n, record in w.records().items()}
    steps = [
        jobs[key].get("status", {}).get("printed", {}).get("step")
        for key in rows.chosen(jobs, w.START + 900.0)
    ]
    known = [step for step in steps if step is not None]
    assert known == sorted(known)
    assert steps[: len(known)] == known, "what is not known comes last"
