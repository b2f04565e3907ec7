"""Three people, three first screens: each answer is in the first 800 px at 1440, and on a phone's first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.dashboard_queue import queue_api
from tests.support.dashboard_scene import STOPPED, scene
from tests.support.dashboard_world import Running, running

Tabs = Callable[..., Any]
SCREENS = {"desk": (1440, 800), "phone": (390, 844)}
# Who looks, where, and what answers each of their questions.
ANSWERS: dict[str, tuple[str, dict[str, str]]] = {
    "on call": (
        "/",
        {
            "what needs a hand": "#h-look + ul li:first-child .what",
            "which run": "#h-look + ul li:first-child .where a",
            "since when": "#h-look + ul li:first-child time",
            "whose move": "#h-look + ul li:first-child .whose",
        },
    ),
    "pool owner": (
        "/pools/research",
        {
            "how many GPUs are in use": ".bar figcaption",
            "who has them": "dt:text-is('Who has them') + dd",
            "who waits, and why": "dt:text-is('Who waits') + dd",
            "may it enforce": "dt:text-is('May it enforce?') + dd",
        },
    ),
    "researcher": (
        "/jobs/" + "/".join(STOPPED),
        {
            "by what, and at which step": "main .lead",
            "why": ".evidence li:first-child",
            "how to go on": ".ways .way:first-child code",
        },
    ),
}


@pytest.fixture(scope="module")
def busy() -> Iterator[Running]:
    now = time.time()
    with queue_api(now) as way, running(scene(now), way=way) as found:
        yield found


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("who", ANSWERS)
def test_each_answer_is_on_the_first_screen(tabs: Tabs, busy: Running, who: str, screen: str) -> None:
    width, height = SCREENS[screen]
    path, answers = ANSWERS[who]
    page = tabs(width=width, height=height).open(busy.address(path))
    for question, where in answers.items():
        found = page.locator(where).first
        box = found.bounding_box()
        assert box is not None, question
        assert found.inner_text().strip(), question
        assert box["y"] + box["height"] <= height, f"{question}: {box} on {width} x {height}"
    page.close()
