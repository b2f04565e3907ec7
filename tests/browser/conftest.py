"""Fixtures for tests in a real, headless Chromium."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import NoChromium, obtain
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.cluster_report import under_ci
from tests.support.dashboard_scene import scene
from tests.support.dashboard_world import Running, running

WAIT = 45_000.0  # ms for what must come, on a busy machine
expect.set_options(timeout=WAIT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(1200))  # getting a Chromium may be part of the first one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module: no longer, because while Playwright is at work its event loop runs in this
    thread, and whoever comes next cannot start one."""
    try:
        found = obtain()
    except NoChromium as error:
        if under_ci():
            raise
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        # Only pages of these tests are opened, and as root Chromium has no sandbox.
        started = playwright.chromium.launch(
            executable_path=found.path,
            args=[
                "--no-sandbox",
                "--disable-dev-shm-usage",
                # To start processes that draw and render anew for each page was a quarter of what pages cost.
                "--in-process-gpu",
                "--renderer-process-limit=1",
            ],
            env={**os.environ, **found.environ},
        )
        yield started
        started.close()


class Tab:
    """A page that notes what must not happen: errors on the console, and requests that leave loopback."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.left: list[str] = []
        page.set_default_timeout(WAIT)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "about:")):
            self.left.append(request.url)

    def open(self, address: str) -> Page:
        """Open an address and wait for what is on it."""
        self.page.goto(address)
        self.page.wait_for_selector("main article h1")
        return self.page


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """``tabs(width=360, scheme="dark")``: a tab of its own, whose errors fail the test."""
    made: list[Tab] = []
    contexts = []

    def tab(width: int = 1180, height: int = 900, scheme: Any = "light", **more: Any) -> Tab:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **more
        )
        contexts.append(context)
        made.append(Tab(context.new_page()))
        return made[-1]

    yield tab
    for context in contexts:
        context.close()
    assert [e for one in made for e in one.errors] == []
    assert [u for one in made for u in one.left] == []


@pytest.fixture(scope="module")
def board() -> Iterator[Running]:
    """A dashboard over the scene; tests that change it put things back or use names of their own."""
    with running(scene(time.time())) as found:
        yield found
