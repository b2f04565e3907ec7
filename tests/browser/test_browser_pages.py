"""The dashboard in a real browser: by pointer, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from contrast import CONTRAST
from playwright.sync_api import expect

from controller.kube.errors import Unavailable
from controller.web.dashboard.access import KeyGate
from tests.support.dashboard_scene import FALLING, STOPPED, many, scene
from tests.support.dashboard_world import (
    EVERYONE,
    KEY,
    LeasedApi,
    Running,
    job_object,
    judged,
    over_optimising,
    pool_object,
    running,
    with_record,
)
from tests.support.group_scene import OBJECTS, operator

Tabs = Callable[..., Any]
JOB_PAGE = "/jobs/" + "/".join(STOPPED)
ALL_PAGES = ("/", "/jobs", JOB_PAGE, "/pools", "/pools/research", "/groups", "/savings")


def test_every_page_loads_without_an_error_and_without_a_request_off_loopback(
    tabs: Tabs, board: Running
) -> None:
    tab = tabs()
    for path in ALL_PAGES:
        page = tab.open(board.address(path))
        expect(page.locator("main article h1")).to_be_visible()
        expect(page.locator("#live")).to_have_text("live")
    assert "key=" not in page.url  # not in the history, not in a shared link


def test_the_job_page_shows_curve_stop_and_where_the_gpus_went(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address(JOB_PAGE))
    expect(page.locator("main h1")).to_contain_text("Stopped")
    chart = page.locator("figure.chartbox svg")
    expect(chart).to_contain_text("gold_reward")
    expect(chart).to_contain_text("reward model")
    expect(chart).to_contain_text(re.compile(r"stopped \d+"))
    expect(chart).to_contain_text(re.compile(r"warned \d+"))
    expect(chart).to_contain_text("best 0.9")
    expect(page.locator(".stages")).to_contain_text("GPUs handed to team-b/gemma-rm-large")
    expect(page.locator("main")).to_contain_text("evalstop resume overoptimising -n team-a")
    page.get_by_text("The same as a table").click()
    rows = page.locator("#points tbody tr")
    expect(rows.filter(has_text="best")).to_have_count(1)
    assert rows.count() == page.locator('figure.chartbox g[id$="pts-score"] use').count()


def test_a_new_eval_appears_by_itself_and_is_announced(tabs: Tabs, board: Running) -> None:
    pool = pool_object()
    obj = job_object("team-live", "grows", created=time.time() - 100)
    curve = over_optimising(3)
    board.put(with_record(obj, judged(obj, curve[:5], time.time(), pool), pool))
    tab = tabs()
    page = tab.open(board.address("/jobs/team-live/grows"))
    points = page.locator('figure.chartbox g[id$="pts-score"] use')
    expect(points).to_have_count(5)
    page.get_by_text("The same as a table").click()
    page.locator("figure.chartbox").focus()
    board.put(with_record(obj, judged(obj, curve[:6], time.time(), pool), pool))
    expect(points).to_have_count(6)
    expect(page.locator("#announce")).to_contain_text("step 60")
    assert page.locator("#announce").get_attribute("aria-live") == "polite"
    # What the reader was doing is as it was.
    expect(page.locator("figure.chartbox")).to_be_focused()
    expect(page.locator("#points")).to_be_visible()
    board.call(lambda: board.api.drop("RLHFJob", "team-live", "grows"))
    expect(page.locator("main h1")).to_contain_text("not there")
    page.close()  # it would go on asking for what is gone
    # The browser reports each 404 of the job that was just deleted: what is meant here, and nothing else is.
    assert all("404" in error for error in tab.errors)
    tab.errors.clear()


def test_lists_are_filtered_sorted_and_opened_by_keyboard_alone(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address("/"))
    keys = page.keyboard
    keys.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    for _ in range(3):
        keys.press("Tab")
    expect(page.locator("header nav a").nth(1)).to_be_focused()
    keys.press("Enter")
    expect(page.locator("main h1")).to_have_text("Jobs")
    expect(page.locator("main h1")).to_be_focused()  # a screen reader reads where one has come to
    keys.press("Tab")
    expect(page.locator("#q")).to_be_focused()
    keys.type("llama-dpo")
    rows = page.locator("table.jobs tbody tr")
    expect(rows).to_have_count(1)
    expect(page.locator("#q")).to_be_focused()
    expect(page).to_have_url(re.compile("q=llama-dpo"))  # slow keys: one row is left before the last of them
    for _ in range(40):
        keys.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "/".join(FALLING):
            break
    keys.press("Enter")
    expect(page.locator("main h1")).to_contain_text(FALLING[1])
    for _ in range(40):
        keys.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('chartbox')"):
            break
    keys.press("End")
    readout = page.locator(".readout")
    expect(readout).to_contain_text("Step 160")
    keys.press("ArrowLeft")
    expect(readout).to_contain_text("Step 150")
    expect(page.locator('g[id$="pts-score"] use.on')).to_have_count(1)
    page.go_back()
    expect(page.locator("main h1")).to_have_text("Jobs")
    expect(page.locator("#q")).to_have_value("llama-dpo")


def test_another_rule_is_tried_on_the_runs_own_curve(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address(JOB_PAGE))
    expect(page.locator("#if-kDeclines-k")).to_have_value("3")
    page.locator("#if-rule").select_option("drawdown")
    expect(page.locator("#if-kDeclines-k")).to_have_count(0)
    page.locator("#if-drawdown-maxDrop").fill("0.02")
    page.get_by_role("button", name="Judge").click()
    answer = page.locator("#if-answer")
    expect(answer).to_contain_text(re.compile(r"drawdown\(maxDrop=0.02\).*stops this run at step \d+"))
    expect(answer.locator("svg")).to_contain_text("other rule stops")
    expect(page).to_have_url(re.compile(r"[?&]rule=drawdown&.*p\.maxDrop=0\.02&.*run=1"))
    again = tabs().open(f"{page.url}#key={KEY}")  # the link, as somebody else opens it
    expect(again.locator("#if-answer svg")).to_contain_text("other rule stops")
    assert again.locator("#if-answer").inner_text() == answer.inner_text()
    expect(again.locator("#if-drawdown-maxDrop")).to_have_value("0.02")
    again.close()
    page.locator("#if-drawdown-maxDrop").fill("-1")
    page.get_by_role("button", name="Judge").click()
    expect(answer).to_contain_text("drawdown.maxDrop: -1.0 is not allowed, expected")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(tabs: Tabs, board: Running, scheme: str) -> None:
    """WCAG 2.2 AA, computed in the browser from the colours as they are, on each page."""
    tab = tabs(scheme=scheme)
    for path in ("/", "/jobs", JOB_PAGE, "/pools/research"):
        page = tab.open(board.address(path))
        found = page.evaluate(CONTRAST)
        assert found["checked"] > 20
        assert found["low"] == [], path


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_scrolls_sideways_on_a_small_screen(tabs: Tabs, board: Running, width: int) -> None:
    tab = tabs(width=width, height=740, has_touch=True)
    for path in ALL_PAGES:
        page = tab.open(board.address(path))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if width == 360:
            wide = page.evaluate(
                "[...document.querySelectorAll('table.cards')].filter(t => t.scrollWidth > innerWidth).length"
            )
            assert wide == 0, path


def test_states_are_told_by_shape_and_word_and_series_by_marker_and_dash(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address("/jobs"))
    badges = page.locator("table.jobs td:first-child .badge:first-child").all_inner_texts()
    shapes = {tuple(text.split()[:2]) for text in badges}
    assert len({shape for shape, _ in shapes}) == len({word for _, word in shapes}) >= 4
    page = tabs().open(board.address(JOB_PAGE))
    dashes = page.evaluate(
        "['score', 'proxy'].map(n => document.querySelector(`g[id$='pts-${n}'] path[fill=none]`)"
        ".getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2


def test_the_structure_is_told_to_assistive_software(tabs: Tabs, board: Running) -> None:
    tab = tabs()
    for path in ALL_PAGES:
        page = tab.open(board.address(path))
        assert page.locator("main h1").count() == 1
        levels = page.evaluate(
            "[...document.querySelectorAll('main h1,main h2,main h3')].map(h => +h.tagName[1])"
        )
        assert all(b - a <= 1 for a, b in pairwise(levels)), (path, levels)
        unnamed = page.evaluate(
            "[...document.querySelectorAll('main input:not([type=hidden]),main select,main button')]"
            ".filter(e => !(e.labels && e.labels.length) && !e.textContent.trim()).length"
        )
        assert unnamed == 0, path
        assert page.evaluate(
            "[...document.querySelectorAll('svg.chart')]"
            ".every(s => s.querySelector('title') && s.querySelector('desc'))"
        )
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids)), path


def test_names_from_the_cluster_are_text_and_never_markup(tabs: Tabs, board: Running) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>$x$"
    pool = pool_object()
    metrics = [{"name": evil}, {"name": "</svg><b>", "role": "Proxy"}]
    obj = job_object("team-x", "evil", created=time.time(), metrics=metrics)
    record = judged(obj, over_optimising(5)[:8], time.time(), pool)
    board.put(with_record(obj, record, pool))
    page = tabs().open(board.address("/jobs/team-x/evil"))
    expect(page.locator("figure.chartbox svg")).to_contain_text("<img src=x")
    assert page.locator("main img, main script, main b b").count() == 0
    assert "owned" not in page.title()
    page.close()  # it would ask for what is gone
    board.call(lambda: board.api.drop("RLHFJob", "team-x", "evil"))


def test_a_thousand_jobs_stay_usable(tabs: Tabs) -> None:
    with running(many(1000, time.time())) as crowd:
        page = tabs().open(crowd.address("/jobs"))
        rows = page.locator("table.jobs tbody tr")
        expect(page.locator("main")).to_contain_text("1–50 of 1000")  # noqa: RUF001
        expect(rows).to_have_count(50)
        assert page.evaluate("document.querySelectorAll('*').length") < 3000  # what the browser has to keep
        page.get_by_role("link", name="Next").click()
        expect(page.locator("main")).to_contain_text("51–100 of 1000")  # noqa: RUF001
        page.get_by_label("Find").fill("run-0777")
        expect(rows).to_have_count(1)
        page.get_by_label("Find").fill("")
        page.get_by_label("State").select_option("stopped")
        expect(page.locator("main")).to_contain_text("of 333")
        page.get_by_role("columnheader", name="Job").get_by_role("link").click()
        expect(page.locator("th[aria-sort]")).to_contain_text("Job")
        expect(rows.first).to_contain_text("team-02/")
        page.close()  # it would go on asking when nobody is there any more


def test_without_a_token_one_is_asked_for(tabs: Tabs, board: Running) -> None:
    page = tabs().page
    page.goto(board.base + "/jobs")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("#signin code")).to_contain_text("evalstop dashboard")
    expect(page.locator("#token")).to_be_focused()
    expect(page.locator("main")).to_be_hidden()
    page.locator("#token").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("main h1", has_text="Jobs")).to_be_visible()
    page.reload()
    expect(page.locator("main h1", has_text="Jobs")).to_be_visible()
    assert page.context.cookies() == []


def test_the_theme_can_be_chosen(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address("/"))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_attribute("aria-label", "Theme: dark")
    assert page.evaluate(ground) != light
    page.reload()
    page.wait_for_selector("main article h1")
    assert page.evaluate(ground) != light


def test_the_key_is_handed_from_tab_to_tab_and_stored_nowhere(tabs: Tabs, board: Running) -> None:
    """A second tab or a pasted link of the same origin asks no token; no cookie, nothing outlives tabs."""
    first = tabs()
    first.open(board.address("/jobs"))
    second = first.page.context.new_page()
    second.goto(f"{board.base}/pools")
    expect(second.locator("main h1", has_text="Pools")).to_be_visible()
    expect(second.locator("#signin")).to_be_hidden()
    assert second.context.cookies() == []
    assert second.evaluate("Object.keys(localStorage)") == []
    alone = tabs().page  # another context: nobody there has a key
    alone.goto(f"{board.base}/pools")
    expect(alone.get_by_role("heading", name="Sign in")).to_be_visible()
    second.close()


def long_names(count: int) -> list[Any]:
    """Jobs with names as long as they may be, in a namespace whose name is too."""
    pool = pool_object("a-pool-with-a-name-as-long-as-a-label-may-be-" + "p" * 17)
    found: list[Any] = [pool]
    for number in range(count):
        name = f"run-of-a-sweep-with-a-long-name-{number:08d}"
        job = job_object("n" * 63, name, created=time.time() - 900, pool=pool["metadata"]["name"])
        found.append(with_record(job, judged(job, over_optimising(3)[:9], time.time(), pool), pool))
    return found


@pytest.mark.parametrize("width", [390, 900, 1440])
def test_long_names_hide_no_column_and_fifty_jobs_are_no_long_way(tabs: Tabs, width: int) -> None:
    with running(long_names(50)) as world:
        page = tabs(width=width).open(world.address("/jobs"))
        rows = page.locator("table.jobs tbody tr")
        expect(rows).to_have_count(50)
        outside = page.evaluate(
            """() => [...document.querySelectorAll('table.jobs tbody tr:first-child > *, header > *')]
              .filter((one) => { const box = one.getBoundingClientRect();
                return box.width && (box.right > innerWidth + 1 || box.left < -1); })
              .map((one) => one.dataset.label || one.className)"""
        )
        assert outside == []
        scroll = page.evaluate(
            "(() => { const s = document.querySelector('.scroll'); return s.scrollWidth - s.clientWidth; })()"
        )
        assert scroll <= 1, "no column is behind an edge"
        shown = rows.first.evaluate(
            "row => [...row.children].filter((c) => c.getBoundingClientRect().height > 0).length"
        )
        assert shown == 11
        per_job = page.evaluate("document.querySelector('table.jobs').getBoundingClientRect().height") / 50
        assert per_job <= (190 if width == 390 else 110), per_job
        left = page.evaluate(
            "['header .brand', 'main h1'].map((s) => document.querySelector(s).getBoundingClientRect().left)"
        )
        assert abs(left[0] - left[1]) <= 1.0, "the header stands above the page"
        page.close()


def test_an_address_that_is_not_there_is_a_page_with_a_way_on(tabs: Tabs, board: Running) -> None:
    tab = tabs()
    page = tab.page
    page.goto(f"{board.base}/nowhere/at/all#key={KEY}")
    expect(page.locator("main h1")).to_contain_text("404")
    expect(page.locator("main")).to_contain_text("there is no page /nowhere/at/all")
    page.get_by_role("link", name="all jobs").click()
    expect(page.locator("main h1", has_text="Jobs")).to_be_visible()
    tab.errors.clear()  # the browser's own words about status 404


def test_the_header_does_not_say_live_of_what_is_stale(tabs: Tabs) -> None:
    with running(scene(time.time())) as world:
        page = tabs().open(world.address(f"/compare?runs={'/'.join(STOPPED)}"))
        word, line = page.locator("#live"), page.locator("main .stale")
        expect(word).to_have_text("live")
        expect(line).to_have_count(0)
        watch = world.feed._watches[0]
        world.call(lambda: setattr(watch, "problem", Unavailable(0, "ConnectionBroken", "refused")))
        expect(word).to_have_text("stale")
        expect(word).to_have_attribute("data-state", "off")
        expect(line).to_contain_text("the API server does not answer")
        world.call(lambda: setattr(watch, "problem", None))
        expect(word).to_have_text("live")
        expect(line).to_have_count(0)
        page.close()


def test_without_the_operator_the_header_says_stale(tabs: Tabs) -> None:
    with Running(LeasedApi(scene(time.time())), KeyGate(KEY, EVERYONE), None) as world:
        page = tabs().open(world.address("/"))
        expect(page.locator("#live")).to_have_text("stale")
        expect(page.locator("main .stale")).to_have_count(1)
        expect(page.locator("main .stale")).to_contain_text("no operator renews its Lease")
        page.close()


def test_times_are_utc_with_the_reader_s_own_on_hover_and_numbers_keep_their_point(
    tabs: Tabs, board: Running
) -> None:
    bare = """() => { const copy = document.querySelector('main').cloneNode(true);
      for (const one of copy.querySelectorAll('time, .readout')) one.remove();
      return copy.textContent; }"""
    here = tabs().open(board.address(JOB_PAGE))
    page = tabs(locale="de-DE", timezone_id="Asia/Kolkata").open(board.address(JOB_PAGE))
    assert page.evaluate("(1.5).toLocaleString()") == "1,5", "this browser writes numbers otherwise"
    text = page.evaluate(bare)
    assert text == here.evaluate(bare)
    assert re.search(r"\b0\.\d{2,}", text)
    shown = page.locator("main time").first
    at = datetime.fromisoformat(shown.get_attribute("datetime") or "")
    utc = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    assert shown.get_attribute("title") == utc
    own = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for _ in range(2):  # said once, however often one comes back
        shown.hover()
        told = re.escape(utc) + rf" \({own.day} \w+ {own:%Y, %H:%M:%S} here\)"
        expect(shown).to_have_attribute("title", re.compile(f"^{told}$"))
        page.locator("main h1").hover()
    here.close()
    page.close()


def test_empty_pages_say_what_is_next(tabs: Tabs) -> None:
    with running([]) as world:
        for path, words in (
            ("/jobs", "evalstop check -f run.yaml"),
            ("/jobs?q=nothing", "all jobs"),
            ("/pools", "kubectl apply -f pool.yaml"),
            ("/savings", "The runs that are watched"),
        ):
            page = tabs().open(world.address(path))
            expect(page.locator("main")).to_contain_text(words)
            page.close()


def test_a_group_shows_whose_turn_it_is_and_turns_as_lanes(tabs: Tabs) -> None:
    with operator() as way, running(OBJECTS, EVERYONE, way) as board:
        for width, scheme in ((1180, "light"), (360, "dark")):
            page = tabs(width=width, height=740, scheme=scheme).open(board.address("/groups"))
            row = page.locator("tbody tr", has_text="wg-3")
            expect(row).to_contain_text("team-a/math-a (optim_step)")
            expect(row).to_contain_text("1.13 x (1.10)")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            row.get_by_role("link", name="wg-3").click()
            expect(page.locator("main h1")).to_have_text("wg-3")
            chart = page.locator("figure.chartbox svg")
            for word in ("team-a/math-b", "switches", "has the turn", "lost its turn"):
                expect(chart).to_contain_text(word)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = page.evaluate(CONTRAST)
            assert found["checked"] > 20
            assert found["low"] == []
