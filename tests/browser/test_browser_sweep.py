"""The sweep's cheap part: pages of the hostile scene, and each of today's faults put back and found.

`python -m tests.sweep` looks at all pages in all looks; here are those in which most can go wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from jinja2 import BaseLoader, ChoiceLoader, DictLoader

from controller.web.dashboard import groups, render, savings
from controller.web.dashboard import pages as made
from controller.web.dashboard.app import Dashboard
from controller.web.dashboard.run_chart import curve_svg
from controller.web.dashboard.svg_elements import EventWords
from controller.web.groups import Turn
from tests.support.dashboard_world import running
from tests.sweep import pages
from tests.sweep.hostile import GAP_S, NAMESPACE, POOL, hostile, long_name, sharers
from tests.sweep.pages import JOB, Scene

Tabs = Callable[..., Any]
COMPARE = next(path for path in pages.OF_THE_SCENE if "runs=" in path)
LOOKED_AT = {
    "/": (390,),
    "/jobs": (390, 900),
    f"/pools/{POOL}": (390,),
    f"{JOB}/{long_name(5)}": (390,),
    f"{JOB}/huge": (390,),
    f"{JOB}/{long_name(6)}": (1440,),
    COMPARE: (390,),
}


@pytest.fixture(scope="module")
def wild() -> Iterator[Scene]:
    with running(hostile(time.time())) as board:
        yield Scene("hostile", board, ())


def seen(
    tabs: Tabs,
    scene: Scene,
    path: str,
    width: int,
    css: str = "",
    looks: Any = ("light",),
    walk: bool = False,
) -> list[str]:
    """Return the faults of a page at a width.

    Args:
        css: added to the style sheet that is served.
        walk: by Tab, in place of a look.
    """
    tab = tabs(width=width)
    if css:
        whole = render.static("dashboard.css")[0].decode()
        tab.page.route(
            "**/dashboard.css*", lambda r: r.fulfill(body=f"{whole}\n{css}", content_type="text/css")
        )
    pages.opened(tab.page, scene, path)
    found = pages.walked(tab.page, path, width) if walk else pages.looked_at(tab.page, path, width, looks)
    tab.page.close()
    tab.errors[:] = [error for error in tab.errors if "404" not in error]
    return [str(one) for one in found]


@pytest.mark.parametrize(("path", "width"), [(p, w) for p, widths in LOOKED_AT.items() for w in widths])
def test_a_page_of_the_hostile_scene(tabs: Tabs, wild: Scene, path: str, width: int) -> None:
    looks = pages.LOOKS if path == "/" else ("light",)
    assert seen(tabs, wild, path, width, looks=looks) == []


def test_groups_and_runs_with_actors_of_the_hostile_scene(tabs: Tabs) -> None:
    with running(sharers(time.time())) as board:
        scene = Scene("shared", board, ())
        looks = [(path, width) for path in pages.SHARED for width in pages.WIDTHS]
        assert [fault for path, width in looks for fault in seen(tabs, scene, path, width)] == []


def test_the_table_of_groups_scrolls_sideways_at_no_width(
    tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that its operator tells: whose turn it is, as of when, and how much memory is used."""
    known, now = groups._all, time.time()
    job = f"{NAMESPACE}/{pages.RESIDENTS[0]}"
    turn = Turn(job=job, phase="Held", function="train_step", sequence=7, seconds=30.0)

    def told(feed: Any, live: Any) -> list[Any]:
        members = [{"host_bytes": 180 << 30}, {"host_bytes": 180 << 30}]
        return [
            one.model_copy(
                update={
                    "reported": now - 400.0,
                    "turn": turn,
                    "members": tuple(
                        member.model_copy(update=more)
                        for member, more in zip(one.members, members, strict=True)
                    ),
                }
            )
            for one in known(feed, live)
        ]

    monkeypatch.setattr(groups, "_all", told)
    with running(sharers(now)) as board:
        page = tabs(width=1440).page
        pages.opened(page, Scene("shared", board, ()), "/groups")
        assert page.get_by_text("train_step").count() == 1
        found = []
        for width in (390, 560, 720, 721, 900, 1080, 1081, 1099, 1100, 1140, 1180, 1200, 1201, 1260, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            faults = [f"{width} px: {what}: {where}" for what, where in page.evaluate(pages.boxes.FAULTS)]
            found += [one for one in faults if "columns cut" in one or "outside" in one]
        page.close()
        assert found == []


@pytest.mark.parametrize(
    ("path", "looks"), [("/jobs", ("light",)), (f"{JOB}/{long_name(6)}", pages.AXE_LOOKS)]
)
def test_axe_finds_nothing(tabs: Tabs, wild: Scene, path: str, looks: tuple[str, ...]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = tabs().page
    pages.opened(page, wild, path)
    assert [str(one) for one in pages.axe_faults(page, path, 1180, Axe().run, looks)] == []
    page.close()


# -- faults put back --------------------


def template(name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what changes a template."""

    def change(patch: pytest.MonkeyPatch) -> None:
        whole = render._environment()
        loader = whole.loader
        assert isinstance(loader, BaseLoader)
        text = loader.get_source(whole, name)[0]
        assert old in text
        other = whole.overlay()
        other.loader = ChoiceLoader([DictLoader({name: text.replace(old, new)}), loader])
        patch.setattr(render, "_environment", lambda: other)

    return change


def filter_(name: str, put: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(render._environment().filters, name, put)


def without_frame(patch: pytest.MonkeyPatch) -> None:
    async def bare(self: Any, request: Any) -> Any:
        return render_plain()

    patch.setattr(Dashboard, "_frame", bare)


def render_plain() -> Any:
    from fastapi.responses import HTMLResponse

    return HTMLResponse("<html><head><title>404</title></head><body>Not Found</body></html>", 404)


def one_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventWords, "_taken", lambda self, row, start, end: False)
    patch.setattr(made, "curve_svg", curve_svg.__wrapped__)  # none that was drawn before, and none is kept


def forgot_its_user(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(savings, "USER", "nobody")


def at_once(patch: pytest.MonkeyPatch) -> None:
    known = made.handover

    def put(pool: str, back: Any, viewer: Any) -> Any:
        found = known(pool, back, viewer)
        first = (found.stages[0][0], 0.0)
        return made.Handover(
            **{s: getattr(found, s) for s in found.__slots__} | {"stages": (first, *found.stages[1:])}
        )

    patch.setattr(made, "handover", put)


RUN = f"{JOB}/{long_name(6)}"


class Fault(NamedTuple):
    """A fault that was here once: where it is seen, what puts it back, and which rule finds it."""

    path: str
    width: int
    finds: str
    css: str = ""
    change: Callable[[pytest.MonkeyPatch], None] | None = None
    walk: bool = False


NO_JOB = 'No job fits the filter: <a href="/jobs">all jobs</a>'
WIDE_NAMES = """
.scroll { overflow: hidden }
table.jobs tbody th a { white-space: nowrap }
.cut { max-width: none }
"""
ONE_LINE_EACH = """
table.jobs { display: table !important }
table.jobs thead { display: table-header-group !important }
table.jobs tbody { display: table-row-group !important }
table.jobs tr { display: table-row !important }
table.jobs :is(th, td) { display: table-cell !important; white-space: nowrap !important }
"""
CUT_BY_ITS_CELL = """
table.jobs td[data-label="Pool"] { max-width: 6.5rem; overflow: hidden; text-overflow: ellipsis }
table.jobs td a.cut { overflow: visible; display: inline; max-width: none }
"""
FAULTS = {
    "a long name hides columns": Fault("/jobs", 1440, "cut without ellipsis", WIDE_NAMES),
    "three columns are cut at 900 px": Fault("/jobs", 900, "columns cut", ONE_LINE_EACH),
    "a link's ring is cut by its cell": Fault("/jobs", 900, "its ring is cut", CUT_BY_ITS_CELL, walk=True),
    "the header covers what has the focus": Fault(
        "/jobs", 390, "out of sight", "header { padding-bottom: 26rem }", walk=True
    ),
    "labels overprint": Fault(f"{JOB}/{long_name(5)}", 390, "texts overlap", change=one_place),
    "fifty jobs are a long way on a phone": Fault(
        "/jobs", 390, "as long as a book", "table.cards td { padding-block: .6rem !important }"
    ),
    "five digits of an estimate": Fault(
        "/savings", 900, "too many digits", change=filter_("two_digits", lambda value: f"{value:.5g}")
    ),
    "1 GPUs": Fault(
        f"/pools/{POOL}", 390, "plural", change=filter_("counted", lambda n, word: f"{n} {word}s")
    ),
    "64 hex digits": Fault(RUN, 900, "digest", change=filter_("short_digest", lambda text: text)),
    "an empty page without a next step": Fault(
        "/jobs?q=nothing-is-so-called", 900, "no next step", change=template("jobs.html", NO_JOB, "No job.")
    ),
    "the header is 16 px off": Fault(
        "/", 1440, "header beside", "header { padding-inline: calc((100% - 1200px) / 2) }"
    ),
    "a text is cut without an ellipsis": Fault("/jobs", 390, "cut without", ".cut { text-overflow: clip }"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(
    name: str, tabs: Tabs, wild: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    if fault.change is not None:
        fault.change(monkeypatch)
    found = seen(tabs, wild, fault.path, fault.width, fault.css, walk=fault.walk)
    assert any(fault.finds in one for one in found), found


def facts(tabs: Tabs, scene: Scene) -> list[str]:
    """Return what the pages say that is not so: handovers' times, whose stops a rule's are."""
    page = tabs(width=1440).page
    wrong = []
    pages.opened(page, scene, f"/pools/{POOL}")
    stages = [
        text.split("+")[1] for text in page.locator(".stage").all_inner_texts() if text.startswith("retained")
    ]
    if sorted(stages) != sorted(f"{gap:.1f} s" for gap in GAP_S):
        wrong.append(f"retained after {stages}")
    if page.get_by_text("nobody yet").count():
        wrong.append("nobody yet, and nobody waited")
    pages.opened(page, scene, "/savings")
    stopped = page.locator("table tbody th").all_inner_texts()
    if any("by-its-user" in name for name in stopped) or not stopped:
        wrong.append(f"stopped by a rule: {stopped}")
    page.close()
    return wrong


@pytest.mark.parametrize(
    "change",
    [None, forgot_its_user, at_once, template("parts.html", "nobody{% endif %}", "nobody yet{% endif %}")],
    ids=["as it is", "a user's stop among the rules'", "retained at once", "nobody yet"],
)
def test_what_is_told_is_so(
    change: Callable[[pytest.MonkeyPatch], None] | None,
    tabs: Tabs,
    wild: Scene,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if change is not None:
        change(monkeypatch)
    assert (facts(tabs, wild) == []) is (change is None)


def test_a_bare_404_is_found(tabs: Tabs, wild: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_frame(monkeypatch)
    tab = tabs()
    tab.page.set_default_timeout(1500)
    tab.page.goto(f"{wild.board.base}/nowhere/at/all")
    assert any("no heading" in what for what, _ in tab.page.evaluate(pages.boxes.FAULTS))
    tab.page.close()
    tab.errors[:] = [error for error in tab.errors if "404" not in error]


def test_each_width_and_look_is_among_those_of_the_whole_sweep() -> None:
    assert pages.WIDTHS == (390, 900, 1440)
    assert list(pages.LOOKS) == ["light", "dark", "forced colours", "print"]
    assert {width for widths in LOOKED_AT.values() for width in widths} == set(pages.WIDTHS)
    assert all(path in pages.OF_THE_SCENE for path in LOOKED_AT)
    assert len(NAMESPACE) == 63
