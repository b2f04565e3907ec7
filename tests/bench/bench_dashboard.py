"""How long one waits for the dashboard of 1,000 jobs, beside an empty page of the same server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from playwright.sync_api import sync_playwright

from tests.bench.rows import Row, median_row
from tests.browser.chromium import obtain
from tests.support.dashboard_world import KEY
from tests.support.process_cpu import cpu_seconds
from tests.sweep.hostile import NAMESPACE, POOL

TIMES, VIEWS = 11, 20
RUN = f"/jobs/{NAMESPACE}/thousand"
PAGES = {"overview": "/", "jobs": "/jobs", "run": RUN, "pool": f"/pools/{POOL}", "savings": "/savings"}
# Notes when the heading of a page was painted: two frames after it came. In ms since the start.
_PAINTED = """
window.painted = 0;
new MutationObserver((_, watch) => {
  if (!document.querySelector('main h1')) return;
  watch.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
# From the next event of a kind until two frames after HOLDS does, in ms.
_ANSWERED = """(kind) => {
  window.answered = 0;
  addEventListener(kind, (event) => {
    const begun = event.timeStamp, done = () => { window.answered = performance.now() - begun; };
    const look = () => {
      if (!(HOLDS)) return void setTimeout(look, 1);
      requestAnimationFrame(() => requestAnimationFrame(done));
    };
    look();
  }, { once: true, capture: true });
}"""


def run(tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield the time to paint each page and to answer a zoom, a filter, a key; the server's CPU a view."""
    chromium = obtain()
    command = [sys.executable, "-m", "tests.bench.dashboard_server"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{int(server.stdout.readline())}"
        yield from _server(server.pid, base, tell)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium.path,
                args=["--no-sandbox", "--disable-dev-shm-usage"],
                env={**os.environ, **chromium.environ},
            )
            yield from _painted(browser, base, tell)
            yield from _answered(browser, base, tell)
            browser.close()
    finally:
        server.communicate()


def _server(pid: int, base: str, tell: Callable[[str], None]) -> Iterator[Row]:
    for name, path in {**PAGES, "an empty page": "/empty"}.items():
        tell(f"server: {name}")
        address = f"{base}{path}" if path == "/empty" else f"{base}/view{path}?width=1180"
        for count in (2, VIEWS):  # the first draw what is then kept
            before = cpu_seconds(pid)
            for _ in range(count):
                asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {KEY}"})
                with urllib.request.urlopen(asked, timeout=60.0) as answer:
                    size = len(answer.read())
            spent = (cpu_seconds(pid) - before) / count
        yield Row(f"dashboard: server, CPU a view of {name}", 1000 * spent, "ms")
        yield Row(f"dashboard: size of {name}", size / 1000, "kB")


def _painted(browser: Any, base: str, tell: Callable[[str], None]) -> Iterator[Row]:
    taken: dict[str, list[float]] = {name: [] for name in ("empty", *PAGES)}
    for _ in range(TIMES + 1):  # one beside the other, each in a tab of its own
        for name, path in {"empty": "/empty", **PAGES}.items():
            page = _tab(browser, _PAINTED)
            page.goto(f"{base}{path}#key={KEY}")
            taken[name].append(_told(page, "window.painted"))
            page.context.close()
    tell("pages painted")
    for name in PAGES:
        yield median_row(f"dashboard: {name} painted", taken[name][1:], "s", taken["empty"][1:])


def _answered(browser: Any, base: str, tell: Callable[[str], None]) -> Iterator[Row]:
    acts: dict[str, tuple[str, str, str, Callable[[Any], None]]] = {
        "zoom": (
            RUN, "click", "document.querySelector('svg.chart').dataset.first !== '10'",
            lambda page: page.locator(".zoom nav a").nth(1).click(),
        ),
        "filter by state": (
            "/jobs", "input", "document.querySelectorAll('table.jobs .badge.stop').length >= 50",
            lambda page: page.locator("#state").select_option("stopped"),
        ),
        "filter by a word": (
            "/jobs", "input", "document.querySelectorAll('table.jobs tbody tr').length === 1",
            lambda page: page.locator("#q").fill("thousand"),
        ),
        "key j": (
            "/jobs", "keydown", "document.activeElement.closest('tbody')",
            lambda page: page.keyboard.press("j"),
        ),
    }  # fmt: skip
    for name, (path, kind, of, act) in acts.items():
        taken = []
        for _ in range(TIMES):
            page = _tab(browser)
            page.goto(f"{base}{path}#key={KEY}")
            page.wait_for_selector("main article h1")
            page.evaluate(_ANSWERED.replace("HOLDS", of), kind)
            act(page)
            taken.append(_told(page, "window.answered"))
            page.context.close()
        tell(name)
        yield median_row(f"dashboard: {name} answered", taken, "s")


def _told(page: Any, name: str) -> float:
    """Return a time (s) once the page has noted it. Its policy lets nobody wait for a text of code there."""
    deadline = time.monotonic() + 60.0
    while not (found := page.evaluate(name)):
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.02)
    return float(found) / 1000


def _tab(browser: Any, script: str = "") -> Any:
    context = browser.new_context(viewport={"width": 1180, "height": 900}, reduced_motion="reduce")
    if script:
        context.add_init_script(script)
    return context.new_page()
