"""``python -m tests.browser.screenshots [FOLDER]``: the pictures of docs/use/dashboard.md."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import obtain
from tests.support.dashboard_queue import queue_api
from tests.support.dashboard_scene import STOPPED, scene
from tests.support.dashboard_world import running

JOB = "/jobs/" + "/".join(STOPPED)
# name, path, width and height in px, scheme
PICTURES = (
    ("overview", "/", 1180, 900, "light"),
    ("jobs", "/jobs", 1180, 880, "light"),
    ("job", JOB, 1180, 1400, "light"),
    ("pool", "/pools/research", 1180, 1100, "light"),
    ("phone", JOB, 390, 1250, "dark"),
)


def main(arguments: list[str]) -> int:
    into = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2] / "docs" / "images"
    into.mkdir(parents=True, exist_ok=True)
    found = obtain()
    now = time.time()
    with queue_api(now) as way, running(scene(now), way=way) as board, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path, args=["--no-sandbox"], env={**os.environ, **found.environ}
        )
        for name, path, width, height, scheme in PICTURES:
            page = _tab(browser, width, height, scheme)
            page.goto(board.address(path))
            page.wait_for_selector("main article h1")
            page.wait_for_selector("#live[data-state=on]")
            page.wait_for_function("document.fonts.status === 'loaded'")
            page.screenshot(path=into / f"dashboard-{name}.png")
            print(into / f"dashboard-{name}.png")
        browser.close()
    return 0


def _tab(browser: Browser, width: int, height: int, scheme: str) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    return context.new_page()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
