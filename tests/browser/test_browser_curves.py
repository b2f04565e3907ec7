"""Curves in a real browser: a view is an address, keys can be switched off, print and forced colours."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from controller.cli.report import _from_statuses
from tests.support.dashboard_scene import STOPPED, many, scene
from tests.support.dashboard_world import Running, job_object, judged, pool_object, running, with_record

Tabs = Callable[..., Any]
JOB_PAGE = "/jobs/" + "/".join(STOPPED)
LONG = "/jobs/team-a/thousand"


@pytest.fixture(scope="module")
def board() -> Iterator[Running]:
    """The scene, and a run of 1,000 evals with one far outlier."""
    now, pool = time.time(), pool_object()
    curve = [(0.5 + 0.3 * math.sin(n / 90), 0.2 + n / 900) for n in range(1000)]
    curve[400] = (-1e6, 0.6)
    obj = job_object("team-a", "thousand", created=now - 9000)
    with running([*scene(now), with_record(obj, judged(obj, curve, now, pool), pool)]) as found:
        yield found


def test_a_thousand_evals_are_seen_whole_and_a_part_is_an_address(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address(LONG))
    chart = page.locator("figure.chartbox svg")
    steps = page.locator("#points tbody th")
    assert int(steps.first.text_content() or "") < 500
    assert 64 <= steps.count() <= 96
    expect(chart).to_contain_text("1 below, to -1e+06")
    expect(page.locator("main")).to_contain_text(
        "rules and what-if judge only the 32 evals from step 9690 on"
    )
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 100)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"[?&]from=\d+&to=\d+"))
    first = int(re.findall(r"from=(\d+)", page.url)[0])
    expect(chart).to_have_attribute("data-first", str(first))
    expect(page.locator("#z-from")).to_have_value(str(first))
    again = tabs().open(f"{page.url}#key={board.address().partition('key=')[2]}")
    expect(again.locator("figure.chartbox svg")).to_have_attribute("data-first", str(first))
    page.get_by_role("link", name="all", exact=True).click()
    expect(chart).not_to_have_attribute("data-first", str(first))
    page.go_back()
    expect(chart).to_have_attribute("data-first", str(first))


def test_ticked_runs_are_compared_at_an_address_of_their_own(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address("/jobs"))
    assert page.locator("svg.spark").count() > 5
    for name in ("/".join(STOPPED), "team-a/thousand"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare the ticked runs").click()
    expect(page.locator("main h1")).to_have_text("Compare")
    chart = page.locator("figure svg.chart")
    expect(chart).to_contain_text("team-a/thousand")
    expect(chart.locator('g[id^="v-run-"]')).to_have_count(2)
    page.get_by_role("link", name="Leave out team-a/thousand").click()
    expect(chart.locator('g[id^="v-run-"]')).to_have_count(1)
    page.locator("#runs").fill("team-a/overoptimising, team-x/secret")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main")).to_contain_text("Not there, or not yours to read: team-x/secret")


def test_single_keys_move_find_and_can_be_switched_off(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address("/"))
    keys = page.keyboard
    keys.press("/")
    expect(page.locator("#q")).to_be_focused()
    keys.type("jk?")  # in a field they are letters
    expect(page.locator("#q")).to_have_value("jk?")
    page.locator("#q").fill("")
    expect(page.locator("table.jobs tbody tr").nth(3)).to_be_visible()
    page.locator("main h1").focus()
    keys.press("j")
    keys.press("j")
    expect(page.locator("table.jobs tbody tr").nth(1).locator("th a")).to_be_focused()
    keys.press("k")
    expect(page.locator("table.jobs tbody tr").nth(0).locator("th a")).to_be_focused()
    keys.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.locator("#keys-on").uncheck()
    page.locator("#keys-close").click()
    expect(page.locator("#keys")).to_be_hidden()
    page.locator("table.jobs tbody tr").nth(0).locator("th a").focus()
    keys.press("j")
    expect(page.locator("table.jobs tbody tr").nth(0).locator("th a")).to_be_focused()
    page.locator("#keys-open").click()  # the way back needs no key
    page.locator("#keys-on").check()
    page.locator("#keys-close").click()
    page.locator("table.jobs tbody tr").nth(0).locator("th a").focus()
    keys.press("Enter")
    expect(page.locator("main h1")).not_to_have_text("Jobs")


def test_a_command_is_copied(tabs: Tabs, board: Running) -> None:
    page = tabs(permissions=["clipboard-read", "clipboard-write"]).open(board.address(JOB_PAGE))
    button = page.locator(".ways button.copy").first
    button.click()
    expect(button).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "evalstop resume overoptimising -n team-a --from best"


def test_a_decision_is_told_in_a_sentence_with_what_others_say(tabs: Tabs, board: Running) -> None:
    page = tabs().open(board.address(JOB_PAGE))
    told = page.locator(".evidence")
    short = re.compile(r"3 evals in a row fell, limit 3; [\d.]+ % worse than the best\.")
    expect(told).to_contain_text(short)
    expect(told).to_contain_text("judged by the evals from step 10 on")
    expect(told).to_contain_text("of flat runs of 17 evals it stops about 41 % at most")
    expect(page.locator("figure.chartbox svg")).to_contain_text("statistic, in percent of its threshold")
    expect(page.locator("figure.chartbox svg")).to_contain_text("planned to 400")


@pytest.mark.parametrize("how", [{"media": "print"}, {"forced_colors": "active"}])
def test_curves_stay_readable_in_print_and_in_forced_colours(tabs: Tabs, board: Running, how: Any) -> None:
    page = tabs().open(board.address(JOB_PAGE))
    page.emulate_media(**how)
    drawn = page.evaluate(
        "['score', 'proxy', 'share', 'kl'].map(n => getComputedStyle(document.querySelector("
        "`g[id$='pts-${n}'] path[fill=none]`))).map(s => [s.stroke, s.strokeDasharray])"
    )
    assert len({dash for _, dash in drawn}) == 4
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert all(colour not in ("none", ground) for colour, _ in drawn)
    if "media" in how:
        assert not page.locator("header").is_visible()
        assert not page.locator("button.copy").first.is_visible()
        assert page.locator("figure.chartbox svg").is_visible()


def test_pages_keep_their_size_and_shift_little(tabs: Tabs) -> None:
    """1,000 jobs, one of 1,000 evals: at most 150 kB and 3,000 elements, and nothing jumps."""
    now, pool = time.time(), pool_object()
    obj = job_object("team-00", "thousand", created=now - 9000)
    record = judged(obj, [(0.5 + 0.3 * math.sin(n / 90), n / 900) for n in range(1000)], now, pool)
    with running([*many(999, now), with_record(obj, record, pool)]) as crowd:
        six = ",".join(["team-00/thousand", *(f"team-{n:02}/run-{n:04}" for n in (0, 3, 6, 9, 2))])
        run = "/jobs/team-00/thousand"
        for path in ("/jobs", run, "/", "/pools", "/pools/research", "/savings", f"/compare?runs={six}"):
            tab = tabs()
            sizes: list[int] = []

            def read(response: Any, sizes: list[int] = sizes) -> None:
                if "/view" in response.url and response.status == 200:
                    sizes.append(int(response.headers.get("content-length", "0")))

            tab.page.on("response", read)
            page = tab.open(crowd.address(path))
            assert 0 < max(sizes) <= 150_000, (path, sizes)
            assert page.evaluate("document.querySelectorAll('*').length") <= 3000, path
            shift = page.evaluate(
                "new Promise(done => { let sum = 0; new PerformanceObserver(l => { for (const e of "
                "l.getEntries()) if (!e.hadRecentInput) sum += e.value; }).observe({type: 'layout-shift', "
                "buffered: true}); requestAnimationFrame(() => requestAnimationFrame(() => done(sum))); })"
            )
            assert shift <= 0.02, (path, shift)
            page.close()


def test_a_report_is_one_page_that_prints(tabs: Tabs, board: Running) -> None:
    objects = scene(time.time())
    pools = [obj for obj in objects if obj["kind"] == "GPUPool"]
    jobs = [obj for obj in objects if obj["kind"] == "RLHFJob"]
    one = next(obj for obj in jobs if obj["metadata"]["name"] == STOPPED[1])
    for found in (None, one):
        page = tabs(width=718).page  # A4 less its margins, at 96 px an inch
        page.set_content(_from_statuses("research", found, pools, jobs, time.time()))
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= 718
        assert page.evaluate("document.scripts.length") == 0
        assert len(page.pdf(format="A4")) > 5000
