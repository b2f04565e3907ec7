"""The sweep's cheap part: pages of the hostile scene.

`python -m tests.sweep` looks at all pages in all looks; here are those in which most can go wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.web.dashboard import render
from tests.support.dashboard_world import running
from tests.sweep import pages
from tests.sweep.hostile import NAMESPACE, POOL, hostile, long_name
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
    tabs: Tabs, scene: Scene, path: str, width: int, css: str = "", looks: Any = ("light",)
) -> list[str]:
    """Return the faults of a page at a width; ``css``: added to the style sheet that is served."""
    tab = tabs(width=width)
    if css:
        whole = render.static("dashboard.css")[0].decode()
        tab.page.route(
            "**/dashboard.css*", lambda r: r.fulfill(body=f"{whole}\n{css}", content_type="text/css")
        )
    pages.opened(tab.page, scene, path)
    found = pages.looked_at(tab.page, path, width, looks)
    tab.page.close()
    tab.errors[:] = [error for error in tab.errors if "404" not in error]
    return [str(one) for one in found]


@pytest.mark.parametrize(("path", "width"), [(p, w) for p, widths in LOOKED_AT.items() for w in widths])
def test_a_page_of_the_hostile_scene(tabs: Tabs, wild: Scene, path: str, width: int) -> None:
    looks = pages.LOOKS if path == "/" else ("light",)
    assert seen(tabs, wild, path, width, looks=looks) == []


def test_each_width_and_look_is_among_those_of_the_whole_sweep() -> None:
    assert pages.WIDTHS == (390, 900, 1440)
    assert list(pages.LOOKS) == ["light", "dark", "forced colours", "print"]
    assert {width for widths in LOOKED_AT.values() for width in widths} == set(pages.WIDTHS)
    assert all(path in pages.OF_THE_SCENE for path in LOOKED_AT)
    assert len(NAMESPACE) == 63
