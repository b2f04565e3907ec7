"""`python -m tests.sweep [pages|commands]`: all pages and commands over hostile scenes; what is wrong.

Pages at 390, 900 and 1440 px, each in light, dark, forced colours and print, walked by Tab, and read by axe
in light and dark; commands at 80 and 200 columns. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from tests.browser.chromium import obtain
from tests.sweep import commands, pages


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("pages", "commands"), help="only this; none: both")
    parser.add_argument("--scene", help="only this scene of the pages")
    given = parser.parse_args(arguments)
    found: list[object] = []
    if given.part != "commands":
        found += _told(_pages(given.scene))
    if given.part != "pages" and given.scene is None:
        found += _told(_commands())
    print(f"{len(found)} faults")
    return 1 if found else 0


def _told(faults: Iterable[object]) -> list[object]:
    found = []
    for fault in faults:
        print(fault, flush=True)
        found.append(fault)
    return found


def _pages(only: str | None) -> Iterable[object]:
    chromium, looked = obtain(), Counter[str]()
    with pages.scenes(time.time(), only) as scenes, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.path,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env={**os.environ, **chromium.environ},
        )
        for scene in scenes:
            for width in pages.WIDTHS:
                yield from _scene(browser, scene, width, looked)
        browser.close()
    print(f"pages: {looked['pages']}, in {looked['looks']} looks, {looked['walked']} walked by Tab")


def _scene(browser: Any, scene: pages.Scene, width: int, looked: Counter[str]) -> Iterable[object]:
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    for path in scene.paths:
        page = context.new_page()
        pages.opened(page, scene, path)
        told = f"{scene.name}: {path}"
        yield from pages.looked_at(page, told, width, pages.LOOKS)
        yield from pages.axe_faults(page, told, width, Axe().run)
        yield from pages.walked(page, told, width)
        looked.update(pages=1, looks=len(pages.LOOKS), walked=1)
        page.close()
    context.close()


def _commands() -> Iterable[object]:
    count = 0
    with tempfile.TemporaryDirectory() as folder, commands.shell(Path(folder)) as run:
        yield from commands.facts(run)
        for command in commands.commands(run.queue, run.folder):
            for columns in commands.COLUMNS:
                count += 1
                yield from commands.looked_at(run(*command, columns=columns), command, columns)
    print(f"commands: {count}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
