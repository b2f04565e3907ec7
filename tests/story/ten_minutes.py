"""`python -m tests.story.ten_minutes`: paste docs/first-ten-minutes.md, as it stands, into a terminal.

All of them, in this folder, which takes minutes; tests/story/test_story_ten_minutes.py pastes all but the
first and the last on a cluster that is there already.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.chromium import Chromium, obtain
from tests.support.tmux import Tmux, tmux

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-ten-minutes.md"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/#key=\S+")
WIDTH, HEIGHT = 150, 50
Look = Callable[[str], None]


def blocks() -> list[str]:
    """Return the blocks of the page, in their order."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)


class Desk:
    """A shell in a terminal, into which blocks are pasted."""

    def __init__(self, pane: Tmux, folder: Path) -> None:
        self._pane, self._count = pane, 0
        # A shell that reads no file of its user's. tmux's own shell would take PS1 away: so it comes last.
        pane.start("env PS1='desk$ ' bash --norc --noprofile -i", {}, folder)
        pane.shows("desk$")

    def paste(self, block: str, seconds: float) -> str:
        """Paste a block; return what came of it. Fails where its last command does."""
        self._count += 1
        self._pane.paste(f"{block}echo block-{self._count} ended with $?")
        ended = re.compile(rf"^block-{self._count} ended with (\d+)$", re.M)
        self._pane.until(lambda _: ended.search(self._pane.scrolled()), f"the end of {block!r}", seconds)
        whole = self._pane.scrolled()
        found = ended.search(whole)
        assert found is not None
        begun = whole.rindex(f"block-{self._count - 1} ended with") if self._count > 1 else 0
        said = whole[begun : found.start()]
        assert found[1] == "0", said
        assert "Traceback" not in said, said
        return said

    def shows(self, pattern: re.Pattern[str]) -> str:
        """Return what fits the pattern, once the terminal shows it."""
        self._pane.until(lambda _: pattern.search(self._pane.scrolled()), pattern.pattern)
        found = pattern.findall(self._pane.scrolled())
        return str(found[-1])


def follow(desk: Desk, wanted: Sequence[str], patience: Sequence[float], look: Look) -> list[str]:
    """Paste blocks one after the other; give the dashboard's address, once it is there, to ``look``.

    Return what came of each block.
    """
    said = []
    for block, seconds in zip(wanted, patience, strict=True):
        said.append(desk.paste(block, seconds))
        if "evalstop dashboard" in block:
            look(desk.shows(ADDRESS))
    return said


def in_chromium(chromium: Chromium) -> Look:
    """Return what follows the address: by the list of jobs to the run, as a person would."""

    def look(address: str) -> None:
        with sync_playwright() as playwright:
            browser: Any = playwright.chromium.launch(
                executable_path=chromium.path,
                args=["--no-sandbox", "--disable-dev-shm-usage"],
                env={**os.environ, **chromium.environ},
            )
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            page.get_by_role("link", name="Jobs", exact=True).click()
            page.get_by_role("link", name="overoptimising").first.click()
            page.wait_for_selector("figure.chartbox svg")
            assert "Stopped" in page.locator("main h1").inner_text()
            assert "GPUs handed" in page.locator("main").inner_text()
            browser.close()

    return look


def main() -> int:
    chromium = obtain()
    with tmux(WIDTH, HEIGHT) as pane:
        wanted = blocks()
        said = follow(Desk(pane, ROOT), wanted, [900.0] * len(wanted), in_chromium(chromium))
    print("\n".join(said))
    print(f"{len(said)} blocks, each ended with 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
